//! Layers of directories, FUSE connections, and mounts that have no place yet; in a mount namespace of one's own.
//!
//! Directories are named to the kernel through /proc/self/fd, so that no `:` or `,` in a path can be mistaken for
//! overlayfs's own separators (Documentation/filesystems/overlayfs.rst, "Multiple lower layers").

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{check, Result, SysError};
use crate::fd::{high, owned};
use crate::mount;

/// Who may use a FUSE connection, in numbers of our own user namespace.
#[derive(Clone, Copy, Debug)]
pub struct FuseUser {
    pub uid: u32,
    pub gid: u32,
    /// everybody in the user namespace may, not just this user
    pub everybody: bool,
}

/// Mounts an overlay at `target`: what is in `lower`, with all changes in `upper`. `work` is empty and on the file system
/// of `upper`. Needs Linux 5.11 in a user namespace; extended attributes are of the `user.` kind there.
pub fn overlay(
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    target: &Path,
) -> Result<()> {
    let [lower, upper, work] = [lower, upper, work].map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let plain = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mounted = mount::of_kind(c"overlay", target, &format!("userxattr,{plain}"));
    match mounted {
        // kernels before 5.11, where only real root comes here, do not know `userxattr`
        Err(error) if error.os_error() == libc::EINVAL => mount::of_kind(c"overlay", target, &plain),
        mounted => mounted,
    }
}

/// Opens the FUSE device, for one new connection.
pub fn open_fuse() -> Result<File> {
    let file = File::options().read(true).write(true).open("/dev/fuse");
    let file = file.map_err(|source| SysError::new("open", "/dev/fuse", source))?;
    Ok(File::from(high(file.into())?))
}

/// Mounts the file system that whoever reads `fuse` is going to serve at `target`, read-only.
pub fn mount_fuse(fuse: BorrowedFd<'_>, user: FuseUser, target: &Path) -> Result<()> {
    let everybody = if user.everybody { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}{everybody}",
        fuse.as_raw_fd(),
        user.uid,
        user.gid
    );
    mount::read_only_of_kind(c"fuse", target, &data)
}

// linux/mount.h
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const MOUNT_ATTR_RDONLY: u32 = 1;
const MOUNT_ATTR_NOSUID: u32 = 2;
const MOUNT_ATTR_NODEV: u32 = 4;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;

/// As `mount_fuse`, but nowhere yet: the descriptor can be sent to a process with other namespaces, which puts it where
/// it wants it (`place_mount`). Owners of files are numbers in the user namespace of the caller. Linux 5.2.
pub fn detached_fuse(fuse: BorrowedFd<'_>, user: FuseUser) -> Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), FSOPEN_CLOEXEC) };
    let context = owned(check(context, "open file system", "fuse")?);
    let number = |value: u32| format!("{value}\0");
    let values = [
        (c"source", "squashfuse\0".to_owned()),
        (c"fd", format!("{}\0", fuse.as_raw_fd())),
        (c"rootmode", "40000\0".to_owned()),
        (c"user_id", number(user.uid)),
        (c"group_id", number(user.gid)),
    ];
    for (key, value) in &values {
        configure(&context, FSCONFIG_SET_STRING, Some(key), Some(value))?;
    }
    configure(&context, FSCONFIG_SET_FLAG, Some(c"ro"), None)?;
    if user.everybody {
        configure(&context, FSCONFIG_SET_FLAG, Some(c"allow_other"), None)?;
    }
    configure(&context, FSCONFIG_CMD_CREATE, None, None)?;
    let attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    // SAFETY: plain call on a descriptor of ours.
    let mounted = unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes,
        )
    };
    high(owned(check(mounted, "mount", "fuse")?))
}

fn configure(context: &OwnedFd, command: u32, key: Option<&CStr>, value: Option<&str>) -> Result<()> {
    let key_pointer = key.map_or(std::ptr::null(), CStr::as_ptr);
    let value_pointer = value.map_or(std::ptr::null(), str::as_ptr);
    // SAFETY: key and value are null or NUL-terminated (the values above end in `\0`) and live during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            command,
            key_pointer,
            value_pointer,
            0,
        )
    };
    let what = key.map_or_else(|| "fuse".to_owned(), |key| key.to_string_lossy().into_owned());
    check(result, "configure file system with", what)?;
    Ok(())
}

/// Puts a mount that is nowhere yet at `target`.
pub fn place_mount(mounted: BorrowedFd<'_>, target: &Path) -> Result<()> {
    let at = mount::c_path(target)?;
    // SAFETY: both strings are NUL-terminated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mounted.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(result, "place mount at", target.to_string_lossy())?;
    Ok(())
}
