//! Files relative to directory descriptors, without following links out of them.
//!
//! What has to cope with failing calls has a `..._by`, which takes the calls: the kernel's, or those of a test.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, SeekFrom, Stat, StatVfsMountFlags,
    Timespec, Timestamps, CWD,
};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::calls::{Calls, Kernel, Listed};
use crate::error::{check, Named, Result, SysError};
use crate::fd::high;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
/// A FIFO does not block the open, and a terminal does not become the controlling one.
const READ_ANYTHING: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Kind and identity of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    mode: u32,
    pub links: u64,
    pub size: u64,
    /// nanoseconds; the kernel sets it, programs cannot
    pub changed_ns: i128,
}

impl Status {
    #[allow(clippy::unnecessary_cast)] // links are 32 bits wide on aarch64
    fn from(stat: &Stat) -> Self {
        Status {
            mode: stat.st_mode,
            links: stat.st_nlink as u64,
            size: stat.st_size as u64,
            changed_ns: i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
        }
    }

    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_dir()
    }

    pub fn is_link(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_symlink()
    }

    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_file()
    }
}

/// Of an open descriptor.
pub fn status(fd: BorrowedFd<'_>) -> Result<Status> {
    let stat = rustix::fs::fstat(fd).named("stat", "descriptor")?;
    Ok(Status::from(&stat))
}

/// The device that holds an open file.
pub fn device(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(fd).named("stat", "descriptor")?;
    Ok(stat.st_dev)
}

/// Of `name` below `dir`; a link is not followed at the end. None where there is no such file.
pub fn status_at(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Status>> {
    status_with(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// As `status_at`, of what a link leads to.
pub fn status_followed(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Status>> {
    status_with(dir, name, AtFlags::empty())
}

fn status_with(dir: BorrowedFd<'_>, name: &str, flags: AtFlags) -> Result<Option<Status>> {
    match Kernel.status(dir, name, flags).named("stat", name) {
        Ok(stat) => Ok(Some(Status::from(&stat))),
        Err(error) if matches!(error.os_error(), libc::ENOENT | libc::ENOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub block_bytes: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The file system that holds an open descriptor.
pub fn space(fd: BorrowedFd<'_>) -> Result<Space> {
    let info = rustix::fs::fstatfs(fd).named("statfs", "descriptor")?;
    Ok(Space {
        block_bytes: info.f_bsize as u64,
        blocks: info.f_blocks,
        blocks_free: info.f_bfree,
        inodes: info.f_files,
        inodes_free: info.f_ffree,
    })
}

/// A mounted file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// as in <linux/magic.h>
    pub magic: u64,
    pub bytes: u64,
    /// that we may use
    pub free_bytes: u64,
    pub free_inodes: u64,
    pub read_only: bool,
    pub no_exec: bool,
}

/// The file system at a path.
pub fn file_system(path: &Path) -> Result<FileSystem> {
    let plain = rustix::fs::statfs(path).named("statfs", path.to_string_lossy())?;
    let flags = rustix::fs::statvfs(path)
        .named("statvfs", path.to_string_lossy())?
        .f_flag;
    let block = plain.f_bsize as u64;
    Ok(FileSystem {
        magic: plain.f_type as u64 & 0xffff_ffff,
        bytes: plain.f_blocks * block,
        free_bytes: plain.f_bavail * block,
        free_inodes: plain.f_ffree,
        read_only: flags.contains(StatVfsMountFlags::RDONLY),
        no_exec: flags.contains(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC)),
    })
}

/// Opens a directory, close-on-exec, numbered from 10.
pub fn open_dir(path: &Path) -> Result<OwnedFd> {
    let opened = Kernel.open(CWD, path, DIRECTORY, 0);
    high(opened.named("open", path.to_string_lossy())?)
}

/// Opens a directory as a place only (O_PATH of open(2)): names below it can be looked up as far as this user may, and it
/// need not be readable.
pub fn open_place(path: &Path) -> Result<OwnedFd> {
    let opened = Kernel.open(CWD, path, DIRECTORY | OFlags::PATH, 0);
    high(opened.named("open", path.to_string_lossy())?)
}

/// Opens a directory below `dir`; the name itself must be no link.
pub fn open_dir_at(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    open_dir_by(Kernel, dir, name)
}

fn open_dir_by(calls: impl Calls, dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    calls
        .open(dir, name, DIRECTORY | OFlags::NOFOLLOW, 0)
        .named("open", name)
}

/// Opens an existing file below `dir` for reading, links followed as in any look-up that starts there.
pub fn open_file_at(dir: BorrowedFd<'_>, name: &str) -> Result<File> {
    let opened = Kernel.open(dir, name, OFlags::RDONLY, 0);
    Ok(File::from(opened.named("open", name)?))
}

/// Opens the file at an absolute `path` for reading as if `root` were `/`, for links too. Kernels before 5.6 look
/// absolute links up from the real root.
pub fn open_in_root(root: BorrowedFd<'_>, path: &str) -> Result<File> {
    open_in_root_by(Kernel, root, path)
}

fn open_in_root_by(calls: impl Calls, root: BorrowedFd<'_>, path: &str) -> Result<File> {
    let opened = calls.open_resolved(root, path, READ_ANYTHING, ResolveFlags::IN_ROOT);
    let opened = match opened {
        Err(error) if lacks_openat2(&error) => {
            calls.open(root, path.trim_start_matches('/'), READ_ANYTHING, 0)
        }
        opened => opened,
    };
    Ok(File::from(opened.named("open", path)?))
}

/// Old kernels say ENOSYS, and containers whose profile is older than the call say EPERM, which opening to read never
/// gives otherwise.
fn lacks_openat2(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// Sets the permission bits of an open file or directory.
pub fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).named("set mode of", "descriptor")
}

/// Sets when a file was last modified, of a link its own; the time of last access becomes the same.
pub fn set_modified(path: &Path, modified_s: i64) -> Result<()> {
    let time = Timespec {
        tv_sec: modified_s,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .named("set time of", path.to_string_lossy())
}

/// Takes the lock of an open file or directory (flock(2)) unless another process holds one that forbids it: alone, or with
/// others who share. It goes with the last descriptor of this opening.
pub fn lock(fd: BorrowedFd<'_>, alone: bool) -> Result<bool> {
    let kind = if alone {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(fd, kind).named("lock", "descriptor") {
        Ok(()) => Ok(true),
        Err(error) if error.os_error() == libc::EWOULDBLOCK => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates (or empties) a file below `dir` for writing.
pub fn create_at(dir: BorrowedFd<'_>, name: &str, mode: u32) -> Result<File> {
    create_by(Kernel, dir, name, mode)
}

fn create_by(calls: impl Calls, dir: BorrowedFd<'_>, name: &str, mode: u32) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
    Ok(File::from(
        calls.open(dir, name, flags, mode).named("create", name)?,
    ))
}

/// Whether a file to append to is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// it must not be
    New,
    /// it may be
    Any,
}

/// Opens a file to append to it.
pub fn open_to_append(calls: impl Calls, path: &Path, which: Append, mode: u32) -> io::Result<File> {
    let mut flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    flags.set(OFlags::EXCL, which == Append::New);
    Ok(File::from(calls.open(CWD, path, flags, mode)?))
}

/// Makes a file that must not exist, for writing.
pub fn create_new(calls: impl Calls, path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    Ok(File::from(calls.open(CWD, path, flags, mode)?))
}

/// Bytes of a file that are alike: all written, or all of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub until: u64,
    pub is_hole: bool,
}

/// What is from byte `at` of an open file on, until `end` at most (lseek(2), SEEK_DATA and SEEK_HOLE). File systems that
/// know of no holes have written bytes only. Behind the end of the file there are written bytes, which a read does not find.
pub fn extent(file: &File, at: u64, end: u64) -> io::Result<Extent> {
    let until = |until: u64, is_hole| Extent {
        until: until.min(end),
        is_hole,
    };
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) if data > at => Ok(until(data, true)),
        Ok(_) => Ok(until(rustix::fs::seek(file, SeekFrom::Hole(at))?, false)),
        Err(Errno::NXIO) => {
            let size = file.metadata()?.len();
            Ok(if size > at {
                until(size, true)
            } else {
                until(end, false)
            })
        }
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(until(end, false)),
        Err(error) => Err(error.into()),
    }
}

/// Puts a file of this content (0600) in the place of `name` below `dir`, through `temporary` there. It survives a crash
/// once this has returned; after an error, or a crash before, `name` is whole: as it was, or new.
pub fn replace(dir: &Path, name: &str, temporary: &str, content: &[u8]) -> Result<()> {
    replace_by(Kernel, dir, name, temporary, content)
}

/// As `replace`, by these calls.
pub fn replace_by(calls: impl Calls, dir: &Path, name: &str, temporary: &str, content: &[u8]) -> Result<()> {
    let at = |name: &str| dir.join(name).display().to_string();
    let opened = calls.open(CWD, dir, DIRECTORY, 0).named("open", at(""))?;
    let below = opened.as_fd();
    let file = create_by(&calls, below, temporary, 0o600)?;
    calls
        .write_all(&file, content)
        .and_then(|()| calls.sync_all(&file))
        .named("write", at(temporary))?;
    calls
        .rename(below, temporary, below, name)
        .named("put in place", at(name))?;
    calls.sync_all(below).named("fsync", at(""))
}

/// Makes new names in a directory survive a crash.
pub fn sync_directory(dir: &Path) -> Result<()> {
    let opened = Kernel.open(CWD, dir, DIRECTORY, 0);
    opened
        .and_then(|opened| Kernel.sync_all(opened))
        .named("fsync", dir.to_string_lossy())
}

/// Opens a regular file that lies below `dir` for reading; a link anywhere in `relative`, or `..`, is an error, and so
/// is anything that is not a regular file.
pub fn open_beneath(dir: BorrowedFd<'_>, relative: &str) -> Result<File> {
    open_beneath_by(Kernel, dir, relative)
}

/// As `open_beneath`, by these calls.
pub fn open_beneath_by(calls: impl Calls, dir: BorrowedFd<'_>, relative: &str) -> Result<File> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match calls.open_resolved(dir, relative, READ_ANYTHING, how) {
        Err(error) if lacks_openat2(&error) => open_step_by_step(calls, dir, relative)?,
        opened => opened.named("open", relative)?,
    };
    if !status(file.as_fd())?.is_file() {
        let source = io::Error::other("not a regular file");
        return Err(SysError::new("open", relative, source));
    }
    Ok(File::from(file))
}

/// As `open_beneath`, for kernels before 5.6.
fn open_step_by_step(calls: impl Calls, dir: BorrowedFd<'_>, relative: &str) -> Result<OwnedFd> {
    let parts: Vec<&str> = relative
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if relative.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
        let source = io::Error::from_raw_os_error(libc::EXDEV);
        return Err(SysError::new("open", relative, source));
    }
    let (last, parents) = (parts[parts.len() - 1], &parts[..parts.len() - 1]);
    let mut at: Option<OwnedFd> = None;
    for part in parents {
        let from = at.as_ref().map_or(dir, |fd| fd.as_fd());
        at = Some(open_dir_by(&calls, from, part)?);
    }
    let from = at.as_ref().map_or(dir, |fd| fd.as_fd());
    calls
        .open(from, last, READ_ANYTHING | OFlags::NOFOLLOW, 0)
        .named("open", last)
}

/// Makes a directory; one that exists is fine.
pub fn make_dir_at(dir: BorrowedFd<'_>, name: &str, mode: u32) -> Result<()> {
    let made = rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode));
    match made.named("make directory", name) {
        Err(error) if error.os_error() != libc::EEXIST => Err(error),
        _ => Ok(()),
    }
}

/// Makes a symbolic link `name` below `dir` that says `target`.
pub fn link_at(dir: BorrowedFd<'_>, name: &str, target: &str) -> Result<()> {
    rustix::fs::symlinkat(target, dir, name).named("link", name)
}

/// Renames within one file system.
pub fn rename_at(from: BorrowedFd<'_>, old: &str, to: BorrowedFd<'_>, new: &str) -> Result<()> {
    Kernel.rename(from, old, to, new).named("rename", old)
}

/// Removes a file, link or (where `is_dir`) empty directory.
pub fn remove_at(dir: BorrowedFd<'_>, name: &str, is_dir: bool) -> Result<()> {
    Kernel.remove(dir, name, is_dir).named("remove", name)
}

/// Names in an open directory, without `.` and `..`, and whether each is a directory.
pub fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>> {
    entries_by(Kernel, dir)
}

/// As `entries`, by these calls.
pub fn entries_by(calls: impl Calls, dir: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>> {
    known(calls, dir, Err)
}

/// The entries of a directory; `unknown` says what becomes of one whose status cannot be read.
fn known(
    calls: impl Calls,
    dir: BorrowedFd<'_>,
    unknown: impl Fn(SysError) -> Result<bool>,
) -> Result<Vec<(CString, bool)>> {
    let found = calls.list(dir).named("list", "directory")?;
    let mut known = Vec::with_capacity(found.len());
    for (name, said) in found {
        let is_dir = match said {
            Listed::Directory => true,
            Listed::Other => false,
            // NFS without READDIRPLUS, XFS with ftype=0
            Listed::Unknown => match calls.status(dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Status::from(&stat).is_dir(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => unknown(SysError::new("stat", name.to_string_lossy(), error))?,
            },
        };
        known.push((name, is_dir));
    }
    Ok(known)
}

/// The entries of a directory that is to go: one whose status cannot be read is removed as a file, which reports the
/// error, and the others go.
fn doomed(calls: &impl Calls, dir: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>> {
    known(calls, dir, |_| Ok(false))
}

/// Directories nested deeper are moved up before they are emptied: each level holds a descriptor open.
const DEPTH_MAX: usize = 100;

/// Removes everything in an open directory except the names in `keep`; follows no link. Directories whose mode forbids
/// it are opened up first. Goes on after an error and returns the first one.
pub fn empty(dir: BorrowedFd<'_>, keep: &[&str]) -> Result<()> {
    empty_by(Kernel, dir, keep)
}

/// As `empty`, by these calls.
pub fn empty_by(calls: impl Calls, dir: BorrowedFd<'_>, keep: &[&str]) -> Result<()> {
    let mut top = doomed(&calls, dir)?;
    top.retain(|(name, _)| !keep.iter().any(|kept| kept.as_bytes() == name.as_bytes()));
    let mut first_error = None;
    let mut moved = 0_u64;
    while let Some((name, is_dir)) = top.pop() {
        let result = if is_dir {
            let mut raise = |at: BorrowedFd<'_>, deep: &CStr| {
                let shallow = move_up(&calls, at, deep, dir, &mut moved)?;
                top.push((shallow, true));
                Ok(())
            };
            remove_tree(&calls, dir, &name, 0, &mut raise)
        } else {
            remove_one(&calls, dir, &name, false)
        };
        note(&mut first_error, result);
    }
    first_error.map_or(Ok(()), Err)
}

/// Moves a directory to a free name in `to`: the maker of the tree may have used any name.
fn move_up(
    calls: &impl Calls,
    from: BorrowedFd<'_>,
    deep: &CStr,
    to: BorrowedFd<'_>,
    moved: &mut u64,
) -> Result<CString> {
    loop {
        *moved += 1;
        let shallow = CString::new(format!(".deep-{moved}")).unwrap_or_default();
        match calls.status(to, &*shallow, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).named("stat", shallow.to_string_lossy()),
        }
        calls
            .rename(from, deep, to, &*shallow)
            .named("move up", deep.to_string_lossy())?;
        return Ok(shallow);
    }
}

type Raise<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &CStr) -> Result<()>;

fn remove_tree(
    calls: &impl Calls,
    parent: BorrowedFd<'_>,
    name: &CStr,
    depth: usize,
    raise: Raise<'_>,
) -> Result<()> {
    // opening rights up is for the owner's own files; failure shows at the open
    let _ = rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty());
    let dir = calls
        .open(parent, name, DIRECTORY | OFlags::NOFOLLOW, 0)
        .named("open", name.to_string_lossy())?;
    let mut first_error = None;
    for (below, is_dir) in doomed(calls, dir.as_fd())? {
        let result = if !is_dir {
            remove_one(calls, dir.as_fd(), &below, false)
        } else if depth >= DEPTH_MAX {
            raise(dir.as_fd(), &below)
        } else {
            remove_tree(calls, dir.as_fd(), &below, depth + 1, raise)
        };
        note(&mut first_error, result);
    }
    note(&mut first_error, remove_one(calls, parent, name, true));
    first_error.map_or(Ok(()), Err)
}

fn remove_one(calls: &impl Calls, dir: BorrowedFd<'_>, name: &CStr, is_dir: bool) -> Result<()> {
    calls
        .remove(dir, name, is_dir)
        .named("remove", name.to_string_lossy())
}

fn note(first: &mut Option<SysError>, result: Result<()>) {
    if let (None, Err(error)) = (&first, result) {
        *first = Some(error);
    }
}

/// What a tree of directories takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// on the disk, as the kernel counts blocks
    pub bytes: u64,
    pub files: u64,
    /// there is more: too many files, too many levels, or a directory that cannot be read
    pub partly: bool,
}

/// What everything below an open directory takes, `files_max` files and directories at most; follows no link. By
/// descriptors, since paths have a largest length and trees have none. Directories that may not be read are for a
/// moment opened up.
pub fn tree(dir: BorrowedFd<'_>, files_max: u64) -> Tree {
    let mut found = Tree::default();
    match Kernel.list(dir) {
        Ok(entries) => count((dir, entries), (0, files_max), &mut found),
        Err(_) => found.partly = true,
    }
    found
}

type Entries = Vec<(CString, Listed)>;

fn count((dir, entries): (BorrowedFd<'_>, Entries), (depth, files_max): (usize, u64), found: &mut Tree) {
    for (name, _) in entries {
        if found.files >= files_max {
            found.partly = true;
            return;
        }
        let Ok(stat) = Kernel.status(dir, &*name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue; // it has just gone
        };
        found.files += 1;
        found.bytes += stat.st_blocks as u64 * 512;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            continue;
        }
        if depth >= DEPTH_MAX {
            found.partly = true;
            continue;
        }
        // what a link in its place leads to would be the same user's, and is not listed
        let readable = (Mode::RUSR | Mode::XUSR).bits();
        let is_open = stat.st_mode & readable == readable;
        let set = |mode: u32| rustix::fs::chmodat(dir, &*name, Mode::from_raw_mode(mode), AtFlags::empty());
        let opened_up = !is_open && set(stat.st_mode | readable).is_ok();
        match list_below(dir, &name) {
            Ok((below, entries)) => count((below.as_fd(), entries), (depth + 1, files_max), found),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(_) => found.partly = true,
        }
        if opened_up {
            let _ = set(stat.st_mode); // it may be gone by now
        }
    }
}

fn list_below(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<(OwnedFd, Entries)> {
    let below = Kernel.open(dir, name, DIRECTORY | OFlags::NOFOLLOW, 0)?;
    let entries = Kernel.list(below.as_fd())?;
    Ok((below, entries))
}

/// Current directory of this process and of what it starts.
pub fn change_dir(dir: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(dir).named("change to", "directory")
}

/// May this process execute it (access(2), X_OK)?
pub fn may_execute(path: impl Arg) -> bool {
    rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// May this process write there (access(2), W_OK)?
pub fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

/// May this process open it for reading and writing (access(2))? Of a device file, the device controller of its cgroup
/// is asked too (Linux, fs/namei.c, inode_permission).
pub fn may_open(path: &Path) -> bool {
    rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
}

/// Asks the kernel to start writing these bytes to storage, so that a later fsync finds little left, and does not wait for
/// it; no promise of durability (sync_file_range(2), "Warning").
pub fn start_writing_out(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<()> {
    let (offset, length) = (offset as i64, length as i64);
    // SAFETY: plain call on a borrowed, open descriptor.
    let result =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
    check(result, "start writing out", "")?;
    Ok(())
}

#[cfg(test)]
mod tests;
