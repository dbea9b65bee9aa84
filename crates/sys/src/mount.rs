//! Mounts, in a mount namespace of one's own.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{check, Result, SysError};

pub(crate) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|source| SysError::new("use as path", path.to_string_lossy(), source.into()))
}

fn mount(source: &CStr, target: &Path, kind: &CStr, flags: libc::c_ulong, data: &CStr) -> Result<()> {
    let at = c_path(target)?;
    // SAFETY: all four strings are NUL-terminated and live during the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    };
    check(result, "mount on", target.to_string_lossy())?;
    Ok(())
}

/// A file system of this kind with these options, nosuid and nodev.
pub(crate) fn of_kind(kind: &CStr, target: &Path, data: &str) -> Result<()> {
    with_options(kind, target, libc::MS_NOSUID | libc::MS_NODEV, data)
}

/// As `of_kind`, read-only.
pub(crate) fn read_only_of_kind(kind: &CStr, target: &Path, data: &str) -> Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY;
    with_options(kind, target, flags, data)
}

fn with_options(kind: &CStr, target: &Path, flags: libc::c_ulong, data: &str) -> Result<()> {
    let data =
        CString::new(data).map_err(|source| SysError::new("use as mount options", data, source.into()))?;
    mount(kind, target, kind, flags, &data)
}

/// From now on no mount of this namespace is seen elsewhere, and none from elsewhere here.
pub fn make_all_private() -> Result<()> {
    mount(c"none", Path::new("/"), c"", libc::MS_REC | libc::MS_PRIVATE, c"")
}

/// A tmpfs of so many bytes, nosuid and nodev. One inode per 4 KiB, at least 1024.
pub fn tmpfs(target: &Path, size_bytes: u64, mode: u32) -> Result<()> {
    let inodes = (size_bytes / 4096).max(1024);
    let data =
        CString::new(format!("size={size_bytes},nr_inodes={inodes},mode={mode:o}")).unwrap_or_default();
    mount(
        c"tmpfs",
        target,
        c"tmpfs",
        libc::MS_NOSUID | libc::MS_NODEV,
        &data,
    )
}

/// The /proc of the PID namespace we are in. Processes that one may not trace are not there (hidepid=4, Linux 5.8), or
/// at least closed (hidepid=1, which does not bind group 0).
pub fn proc(target: &Path) -> Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let mounted = mount(c"proc", target, c"proc", flags, c"hidepid=4");
    match mounted {
        Err(error) if error.os_error() == libc::EINVAL => {
            mount(c"proc", target, c"proc", flags, c"hidepid=1")
        }
        mounted => mounted,
    }
}

/// Shows `source` (file or directory) at `target`, with what is mounted below it.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(&c_path(source)?, target, c"", libc::MS_BIND | libc::MS_REC, c"")
}

/// Shows the directory of an open descriptor at `target`, with what is mounted below it.
pub fn bind_descriptor(source: BorrowedFd<'_>, target: &Path) -> Result<()> {
    bind(
        Path::new(&format!("/proc/self/fd/{}", source.as_raw_fd())),
        target,
    )
}

/// Flags of an existing mount at `target`, which a user namespace may keep or tighten but not loosen.
fn flags_of(target: &Path) -> Result<libc::c_ulong> {
    let at = c_path(target)?;
    let mut info = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `at` is NUL-terminated, `info` is a valid place for the result, read only after success.
    let flags = unsafe {
        check(
            libc::statvfs(at.as_ptr(), info.as_mut_ptr()),
            "statvfs",
            target.to_string_lossy(),
        )?;
        info.assume_init().f_flag
    };
    let mut kept = 0;
    for (has, keep) in [
        (libc::ST_NOSUID, libc::MS_NOSUID),
        (libc::ST_NODEV, libc::MS_NODEV),
        (libc::ST_NOEXEC, libc::MS_NOEXEC),
        (libc::ST_NOATIME, libc::MS_NOATIME),
        (libc::ST_NODIRATIME, libc::MS_NODIRATIME),
        (libc::ST_RELATIME, libc::MS_RELATIME),
    ] {
        if flags & has != 0 {
            kept |= keep;
        }
    }
    Ok(kept)
}

/// Makes the mount at `target` read-only, or writable again.
pub fn set_read_only(target: &Path, read_only: bool) -> Result<()> {
    let mut flags = libc::MS_REMOUNT | libc::MS_BIND | flags_of(target)?;
    if read_only {
        flags |= libc::MS_RDONLY;
    }
    mount(c"none", target, c"", flags, c"")
}

/// Takes the mount at `target` away, at once for new look-ups, and wholly when nobody uses it any more.
pub fn detach(target: &Path) -> Result<()> {
    let at = c_path(target)?;
    // SAFETY: `at` is NUL-terminated.
    let result = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    check(result, "unmount", target.to_string_lossy())?;
    Ok(())
}
