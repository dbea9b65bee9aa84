//! Files relative to directory descriptors, without following links out of them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{check, Result, SysError};
use crate::fd::{high, owned};

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|source| SysError::new("use as path", name, source.into()))
}

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
    fn from(stat: &libc::stat) -> Self {
        Status {
            mode: stat.st_mode,
            links: stat.st_nlink as u64,
            size: stat.st_size as u64,
            changed_ns: i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Of an open descriptor.
pub fn status(fd: BorrowedFd<'_>) -> Result<Status> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is a valid place for the result; zeroed, it is a valid value anyway.
    let stat = unsafe {
        check(
            libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()),
            "stat",
            "descriptor",
        )?;
        stat.assume_init()
    };
    Ok(Status::from(&stat))
}

/// Of `name` below `dir`; a link is not followed at the end. None where there is no such file.
pub fn status_at(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Status>> {
    status_with(dir, name, libc::AT_SYMLINK_NOFOLLOW)
}

/// As `status_at`, of what a link leads to.
pub fn status_followed(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Status>> {
    status_with(dir, name, 0)
}

fn status_with(dir: BorrowedFd<'_>, name: &str, flags: i32) -> Result<Option<Status>> {
    let text = c_name(name)?;
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `text` is NUL-terminated; `stat` as in `status`.
    let (result, stat) = unsafe {
        let result = libc::fstatat(dir.as_raw_fd(), text.as_ptr(), stat.as_mut_ptr(), flags);
        (result, stat.assume_init())
    };
    match check(result, "stat", name) {
        Ok(_) => Ok(Some(Status::from(&stat))),
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
    let mut info = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `info` is a valid place for the result; zeroed, it is a valid value anyway.
    let info = unsafe {
        check(
            libc::fstatfs(fd.as_raw_fd(), info.as_mut_ptr()),
            "statfs",
            "descriptor",
        )?;
        info.assume_init()
    };
    Ok(Space {
        block_bytes: info.f_bsize as u64,
        blocks: info.f_blocks,
        blocks_free: info.f_bfree,
        inodes: info.f_files,
        inodes_free: info.f_ffree,
    })
}

/// Opens a directory, close-on-exec, numbered from 10.
pub fn open_dir(path: &Path) -> Result<OwnedFd> {
    let text = path.to_string_lossy();
    let file = open_at_flags(None, &text, libc::O_RDONLY | libc::O_DIRECTORY)?;
    high(file)
}

/// Opens a directory below `dir`; the name itself must be no link.
pub fn open_dir_at(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    open_at_flags(
        Some(dir),
        name,
        libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW,
    )
}

/// Opens an existing file below `dir` for reading, links followed as in any look-up that starts there.
pub fn open_file_at(dir: BorrowedFd<'_>, name: &str) -> Result<File> {
    Ok(File::from(open_at_flags(Some(dir), name, libc::O_RDONLY)?))
}

/// Opens the file at an absolute `path` for reading as if `root` were `/`, for links too. O_NONBLOCK keeps a FIFO from
/// holding us up. Kernels before 5.6 look absolute links up from the real root.
pub fn open_in_root(root: BorrowedFd<'_>, path: &str) -> Result<File> {
    let text = c_name(path)?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let how = OpenHow {
        flags: flags as u64,
        mode: 0,
        resolve: RESOLVE_IN_ROOT,
    };
    // SAFETY: `text` is NUL-terminated, `how` is the structure that openat2 expects, of the size passed.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            text.as_ptr(),
            &how,
            size_of::<OpenHow>(),
        )
    };
    match check(fd, "open", path) {
        Err(error) if error.os_error() == libc::ENOSYS => {
            let relative = path.trim_start_matches('/');
            Ok(File::from(open_at_flags(Some(root), relative, flags)?))
        }
        result => Ok(File::from(owned(result?))),
    }
}

/// Sets the permission bits of an open file or directory.
pub fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    // SAFETY: plain call on a borrowed, open descriptor.
    let result = unsafe { libc::fchmod(fd.as_raw_fd(), mode) };
    check(result, "set mode of", "descriptor")?;
    Ok(())
}

/// Creates (or empties) a file below `dir` for writing.
pub fn create_at(dir: BorrowedFd<'_>, name: &str, mode: u32) -> Result<File> {
    let text = c_name(name)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `text` is NUL-terminated; O_CREAT comes with its mode.
    let fd = unsafe { libc::openat(dir.as_raw_fd(), text.as_ptr(), flags, mode) };
    Ok(File::from(owned(check(fd, "create", name)?)))
}

fn open_at_flags(dir: Option<BorrowedFd<'_>>, name: &str, flags: i32) -> Result<OwnedFd> {
    open_c(dir, &c_name(name)?, flags)
}

fn open_c(dir: Option<BorrowedFd<'_>>, name: &CStr, flags: i32) -> Result<OwnedFd> {
    let at = dir.map_or(libc::AT_FDCWD, |dir| dir.as_raw_fd());
    // SAFETY: `name` is NUL-terminated; without O_CREAT there is no mode.
    let fd = unsafe { libc::openat(at, name.as_ptr(), flags | libc::O_CLOEXEC) };
    Ok(owned(check(fd, "open", name.to_string_lossy())?))
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

// linux/openat2.h
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const RESOLVE_BENEATH: u64 = 0x08;
const RESOLVE_IN_ROOT: u64 = 0x10;

/// Opens a regular file that lies below `dir` for reading; a link anywhere in `relative`, or `..`, is an error, and so
/// is anything that is no regular file. O_NONBLOCK keeps a FIFO from holding us up.
pub fn open_beneath(dir: BorrowedFd<'_>, relative: &str) -> Result<File> {
    let text = c_name(relative)?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let how = OpenHow {
        flags: flags as u64,
        mode: 0,
        resolve: RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    // SAFETY: `text` is NUL-terminated, `how` is the structure that openat2 expects, of the size passed.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            text.as_ptr(),
            &how,
            size_of::<OpenHow>(),
        )
    };
    let file = match check(fd, "open", relative) {
        Ok(fd) => owned(fd),
        Err(error) if error.os_error() == libc::ENOSYS => open_step_by_step(dir, relative)?,
        Err(error) => return Err(error),
    };
    if !status(file.as_fd())?.is_file() {
        let source = io::Error::other("not a regular file");
        return Err(SysError::new("open", relative, source));
    }
    Ok(File::from(file))
}

/// As `open_beneath`, for kernels before 5.6.
fn open_step_by_step(dir: BorrowedFd<'_>, relative: &str) -> Result<OwnedFd> {
    let parts: Vec<&str> = relative
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if relative.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
        return Err(SysError::new(
            "open",
            relative,
            io::Error::from_raw_os_error(libc::EXDEV),
        ));
    }
    let (last, parents) = (parts[parts.len() - 1], &parts[..parts.len() - 1]);
    let mut at: Option<OwnedFd> = None;
    for part in parents {
        let from = at.as_ref().map_or(dir, |fd| fd.as_fd());
        at = Some(open_dir_at(from, part)?);
    }
    let from = at.as_ref().map_or(dir, |fd| fd.as_fd());
    open_at_flags(
        Some(from),
        last,
        libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY,
    )
}

/// Makes a directory; one that exists is fine.
pub fn make_dir_at(dir: BorrowedFd<'_>, name: &str, mode: u32) -> Result<()> {
    let text = c_name(name)?;
    // SAFETY: `text` is NUL-terminated.
    let result = unsafe { libc::mkdirat(dir.as_raw_fd(), text.as_ptr(), mode) };
    match check(result, "make directory", name) {
        Err(error) if error.os_error() != libc::EEXIST => Err(error),
        _ => Ok(()),
    }
}

/// Makes a symbolic link `name` below `dir` that says `target`.
pub fn link_at(dir: BorrowedFd<'_>, name: &str, target: &str) -> Result<()> {
    let (name_text, target_text) = (c_name(name)?, c_name(target)?);
    // SAFETY: both strings are NUL-terminated.
    let result = unsafe { libc::symlinkat(target_text.as_ptr(), dir.as_raw_fd(), name_text.as_ptr()) };
    check(result, "link", name)?;
    Ok(())
}

/// Renames within one file system.
pub fn rename_at(from: BorrowedFd<'_>, old: &str, to: BorrowedFd<'_>, new: &str) -> Result<()> {
    let (old_text, new_text) = (c_name(old)?, c_name(new)?);
    // SAFETY: both strings are NUL-terminated.
    let result = unsafe {
        libc::renameat(
            from.as_raw_fd(),
            old_text.as_ptr(),
            to.as_raw_fd(),
            new_text.as_ptr(),
        )
    };
    check(result, "rename", old)?;
    Ok(())
}

/// Removes a file, link or (where `is_dir`) empty directory.
pub fn remove_at(dir: BorrowedFd<'_>, name: &str, is_dir: bool) -> Result<()> {
    remove_c(dir, &c_name(name)?, is_dir)
}

fn remove_c(dir: BorrowedFd<'_>, name: &CStr, is_dir: bool) -> Result<()> {
    let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: `name` is NUL-terminated.
    let result = unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) };
    check(result, "remove", name.to_string_lossy())?;
    Ok(())
}

/// Names in an open directory, without `.` and `..`, and whether each is a directory.
pub fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>> {
    // a new description, so that the position of `dir` stays
    let copy = open_at_flags(Some(dir), ".", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut found = Vec::new();
    // SAFETY: fdopendir takes the descriptor over (it is forgotten here) and closedir closes it; each entry is read before
    // the next call of readdir, and its name is NUL-terminated.
    unsafe {
        let stream = libc::fdopendir(copy.as_raw_fd());
        if stream.is_null() {
            return Err(SysError::last("list", "directory"));
        }
        std::mem::forget(copy);
        loop {
            let entry = libc::readdir(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                found.push((name.to_owned(), (*entry).d_type == libc::DT_DIR));
            }
        }
        libc::closedir(stream);
    }
    Ok(found)
}

/// Directories nested deeper are moved up before they are emptied: each level holds a descriptor open.
const DEPTH_MAX: usize = 100;

/// Removes everything in an open directory except the names in `keep`; follows no link. Directories whose mode forbids
/// it are opened up first. Goes on after an error and returns the first one.
pub fn empty(dir: BorrowedFd<'_>, keep: &[&str]) -> Result<()> {
    let mut top = entries(dir)?;
    top.retain(|(name, _)| !keep.iter().any(|kept| kept.as_bytes() == name.as_bytes()));
    let mut first_error = None;
    let mut moved = 0_u64;
    while let Some((name, is_dir)) = top.pop() {
        let result = if is_dir {
            let mut raise = |at: BorrowedFd<'_>, deep: &CStr| {
                moved += 1;
                let shallow = CString::new(format!(".deep-{moved}")).unwrap_or_default();
                // SAFETY: both names are NUL-terminated.
                let result = unsafe {
                    libc::renameat(at.as_raw_fd(), deep.as_ptr(), dir.as_raw_fd(), shallow.as_ptr())
                };
                check(result, "move up", deep.to_string_lossy())?;
                top.push((shallow, true));
                Ok(())
            };
            remove_tree(dir, &name, 0, &mut raise)
        } else {
            remove_c(dir, &name, false)
        };
        note(&mut first_error, result);
    }
    first_error.map_or(Ok(()), Err)
}

type Raise<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &CStr) -> Result<()>;

fn remove_tree(parent: BorrowedFd<'_>, name: &CStr, depth: usize, raise: Raise<'_>) -> Result<()> {
    // SAFETY: `name` is NUL-terminated. Opening rights up is for the owner's own files; failure shows at the open.
    unsafe { libc::fchmodat(parent.as_raw_fd(), name.as_ptr(), 0o700, 0) };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let dir = open_c(Some(parent), name, flags)?;
    let mut first_error = None;
    for (below, is_dir) in entries(dir.as_fd())? {
        let result = if !is_dir {
            remove_c(dir.as_fd(), &below, false)
        } else if depth >= DEPTH_MAX {
            raise(dir.as_fd(), &below)
        } else {
            remove_tree(dir.as_fd(), &below, depth + 1, raise)
        };
        note(&mut first_error, result);
    }
    note(&mut first_error, remove_c(parent, name, true));
    first_error.map_or(Ok(()), Err)
}

fn note(first: &mut Option<SysError>, result: Result<()>) {
    if let (None, Err(error)) = (&first, result) {
        *first = Some(error);
    }
}

/// Current directory of this process and of what it starts.
pub fn change_dir(dir: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: plain call on a borrowed, open descriptor.
    check(unsafe { libc::fchdir(dir.as_raw_fd()) }, "change to", "directory")?;
    Ok(())
}

/// May we execute it? Ok, or the errno of access(2).
pub fn executable(path: &CStr) -> std::result::Result<(), i32> {
    // SAFETY: `path` is NUL-terminated.
    if unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_removes_all_but_the_kept_and_follows_no_link() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("precious"), "x").unwrap();
        let inside = tempfile::tempdir().unwrap();
        let root = inside.path();
        std::fs::create_dir_all(root.join("a/b/c")).unwrap();
        std::fs::write(root.join("a/b/c/file"), "x").unwrap();
        std::fs::write(root.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("a/link")).unwrap();
        let dir = open_dir(root).unwrap();
        empty(dir.as_fd(), &["kept"]).unwrap();
        let left: Vec<_> = entries(dir.as_fd()).unwrap();
        assert_eq!(left, vec![(c"kept".to_owned(), false)]);
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn empty_removes_deep_trees_and_forbidden_directories() {
        use std::os::unix::fs::PermissionsExt;
        let inside = tempfile::tempdir().unwrap();
        let mut at = open_dir(inside.path()).unwrap();
        for _ in 0..700 {
            make_dir_at(at.as_fd(), "d", 0o755).unwrap();
            at = open_dir_at(at.as_fd(), "d").unwrap();
        }
        let shut = inside.path().join("shut");
        std::fs::create_dir_all(shut.join("in")).unwrap();
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o0)).unwrap();
        let dir = open_dir(inside.path()).unwrap();
        empty(dir.as_fd(), &[]).unwrap();
        assert_eq!(entries(dir.as_fd()).unwrap(), vec![]);
    }

    #[test]
    fn a_link_on_the_way_to_a_file_beneath_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::fs::write(dir.path().join("real/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let fd = open_dir(dir.path()).unwrap();
        assert!(open_beneath(fd.as_fd(), "real/file").is_ok());
        for bad in ["link/file", "../etc/passwd", "/etc/passwd", "real"] {
            assert!(open_beneath(fd.as_fd(), bad).is_err(), "{bad}");
        }
        assert!(open_step_by_step(fd.as_fd(), "real/file").is_ok());
        for bad in ["link/file", "../etc/passwd", "/etc/passwd"] {
            assert!(open_step_by_step(fd.as_fd(), bad).is_err(), "{bad}");
        }
    }
}
