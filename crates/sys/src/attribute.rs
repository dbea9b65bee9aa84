//! Times and locks of files.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{check, Result, SysError};

/// Sets when a file was last modified, of a link its own; the time of last access becomes the same.
pub fn set_modified(path: &Path, modified_s: i64) -> Result<()> {
    let text = CString::new(path.as_os_str().as_bytes())
        .map_err(|source| SysError::new("use as path", path.to_string_lossy(), source.into()))?;
    let time = libc::timespec {
        tv_sec: modified_s as libc::time_t,
        tv_nsec: 0,
    };
    let times = [time, time];
    // SAFETY: `text` is NUL-terminated, and two times are what the call reads.
    let result = unsafe {
        libc::utimensat(
            libc::AT_FDCWD,
            text.as_ptr(),
            times.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    check(result, "set time of", path.to_string_lossy())?;
    Ok(())
}

/// Takes the lock of an open file or directory (flock(2)) if nobody else's forbids it: alone, or with others who share.
/// It goes with the last descriptor of this opening.
pub fn lock(fd: BorrowedFd<'_>, alone: bool) -> Result<bool> {
    let kind = if alone { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: plain call on a borrowed, open descriptor.
    let result = unsafe { libc::flock(fd.as_raw_fd(), kind | libc::LOCK_NB) };
    match check(result, "lock", "descriptor") {
        Ok(_) => Ok(true),
        Err(error) if error.os_error() == libc::EWOULDBLOCK => Ok(false),
        Err(error) => Err(error),
    }
}
