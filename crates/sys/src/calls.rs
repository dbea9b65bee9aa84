//! System calls on files whose failure the caller must handle, behind one trait: the kernel's, and a double that makes
//! the n-th call fail. Knows no purpose of a file.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::retry_on_intr;
use rustix::path::Arg;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    /// openat2(2), which old kernels and some containers do not have
    OpenResolved,
    Status,
    List,
    Write,
    Cut,
    Sync,
    Rename,
    Remove,
}

/// Whether an entry of a directory is one itself; file systems need not say (readdir(3), DT_UNKNOWN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    Directory,
    Other,
    Unknown,
}

/// Every call asks `admit` first, and is what the kernel does unless that is an error.
pub trait Calls {
    #[inline]
    fn admit(&self, _call: Call) -> io::Result<()> {
        Ok(())
    }

    /// Bytes of one write at most.
    #[inline]
    fn write_max(&self) -> usize {
        usize::MAX
    }

    /// What a directory says of an entry.
    #[inline]
    fn listed(&self, said: Listed) -> Listed {
        said
    }

    /// openat(2), close-on-exec; `mode` is that of a file that is made.
    #[inline]
    fn open(&self, dir: BorrowedFd<'_>, path: impl Arg, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        self.admit(Call::Open)?;
        let flags = flags | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let open = |path: &CStr| retry_on_intr(|| rustix::fs::openat(dir, path, flags, mode));
        Ok(path.into_with_c_str(open)?)
    }

    #[inline]
    fn open_resolved(
        &self,
        dir: BorrowedFd<'_>,
        path: &str,
        flags: OFlags,
        how: ResolveFlags,
    ) -> io::Result<OwnedFd> {
        self.admit(Call::OpenResolved)?;
        let flags = flags | OFlags::CLOEXEC;
        let open = || rustix::fs::openat2(dir, path, flags, Mode::empty(), how);
        Ok(retry_on_intr(open)?)
    }

    #[inline]
    fn status(&self, dir: BorrowedFd<'_>, name: impl Arg, flags: AtFlags) -> io::Result<Stat> {
        self.admit(Call::Status)?;
        Ok(rustix::fs::statat(dir, name, flags)?)
    }

    /// Entries of an open directory but for `.` and `..`; its position stays.
    fn list(&self, dir: BorrowedFd<'_>) -> io::Result<Vec<(CString, Listed)>> {
        self.admit(Call::List)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let said = match entry.file_type() {
                FileType::Directory => Listed::Directory,
                FileType::Unknown => Listed::Unknown,
                _ => Listed::Other,
            };
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                found.push((entry.file_name().to_owned(), self.listed(said)));
            }
        }
        Ok(found)
    }

    /// write(2): maybe fewer bytes than there are.
    #[inline]
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        self.admit(Call::Write)?;
        let part = &bytes[..bytes.len().min(self.write_max())];
        Ok(rustix::io::write(file, part)?)
    }

    /// Writes everything, whatever a single write takes.
    fn write_all(&self, file: &File, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(file, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// pwrite(2): maybe fewer bytes than there are.
    #[inline]
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.admit(Call::Write)?;
        let part = &bytes[..bytes.len().min(self.write_max())];
        Ok(rustix::io::pwrite(file, part, at)?)
    }

    /// Writes everything at a place in the file, whatever a single write takes.
    fn write_all_at(&self, file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(file, bytes, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// ftruncate(2): cuts a file, or lets it end with a hole.
    #[inline]
    fn cut(&self, file: &File, length: u64) -> io::Result<()> {
        self.admit(Call::Cut)?;
        file.set_len(length)
    }

    /// fdatasync(2): the content of a file.
    #[inline]
    fn sync_data(&self, fd: impl AsFd) -> io::Result<()> {
        self.admit(Call::Sync)?;
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&fd))?)
    }

    /// fsync(2), for new files and the directories that name them.
    #[inline]
    fn sync_all(&self, fd: impl AsFd) -> io::Result<()> {
        self.admit(Call::Sync)?;
        Ok(retry_on_intr(|| rustix::fs::fsync(&fd))?)
    }

    #[inline]
    fn rename(
        &self,
        from: BorrowedFd<'_>,
        old: impl Arg,
        to: BorrowedFd<'_>,
        new: impl Arg,
    ) -> io::Result<()> {
        self.admit(Call::Rename)?;
        Ok(rustix::fs::renameat(from, old, to, new)?)
    }

    /// Removes a file, link or (where `is_dir`) empty directory.
    #[inline]
    fn remove(&self, dir: BorrowedFd<'_>, name: impl Arg, is_dir: bool) -> io::Result<()> {
        self.admit(Call::Remove)?;
        let flags = if is_dir {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        Ok(rustix::fs::unlinkat(dir, name, flags)?)
    }
}

/// The kernel: nothing fails but what does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Calls for Kernel {}

/// For tests: one call fails, or every one of a kind; short writes and directories that do not say what is in them.
#[derive(Debug)]
pub struct Failing {
    fails: RangeInclusive<u64>,
    /// None: calls of every kind are counted
    kind: Option<Call>,
    errno: i32,
    write_max: usize,
    says_nothing: bool,
    made: Cell<u64>,
}

impl Failing {
    /// The `n`-th call (from 1) of this kind, or of any, fails with this error number; all others are real.
    pub fn nth(n: u64, kind: Option<Call>, errno: i32) -> Self {
        Failing::those(n..=n, kind, errno)
    }

    /// Every call of this kind fails.
    pub fn always(kind: Call, errno: i32) -> Self {
        Failing::those(1..=u64::MAX, Some(kind), errno)
    }

    fn those(fails: RangeInclusive<u64>, kind: Option<Call>, errno: i32) -> Self {
        Failing {
            fails,
            kind,
            errno,
            write_max: usize::MAX,
            says_nothing: false,
            made: Cell::new(0),
        }
    }

    /// Bytes that one write takes at most.
    pub fn writes_at_most(self, bytes: usize) -> Self {
        Failing {
            write_max: bytes,
            ..self
        }
    }

    /// Directories do not say what kind their entries are of.
    pub fn directories_say_nothing(self) -> Self {
        Failing {
            says_nothing: true,
            ..self
        }
    }

    /// Whether the call that was to fail has come.
    pub fn has_failed(&self) -> bool {
        self.made.get() >= *self.fails.start()
    }
}

impl Calls for Failing {
    fn admit(&self, call: Call) -> io::Result<()> {
        if self.kind.is_some_and(|kind| kind != call) {
            return Ok(());
        }
        self.made.set(self.made.get() + 1);
        if self.fails.contains(&self.made.get()) {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        Ok(())
    }

    fn write_max(&self) -> usize {
        self.write_max
    }

    fn listed(&self, said: Listed) -> Listed {
        if self.says_nothing {
            Listed::Unknown
        } else {
            said
        }
    }
}

impl<C: Calls> Calls for &C {
    fn admit(&self, call: Call) -> io::Result<()> {
        (**self).admit(call)
    }

    fn write_max(&self) -> usize {
        (**self).write_max()
    }

    fn listed(&self, said: Listed) -> Listed {
        (**self).listed(said)
    }
}
