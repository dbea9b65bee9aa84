//! Layers of directories, FUSE connections, and mounts that have no place yet; in a mount namespace of one's own.
//!
//! Directories are named to the kernel through /proc/self/fd, so that no `:` or `,` in a path can be mistaken for
//! overlayfs's own separators (Documentation/filesystems/overlayfs.rst, "Multiple lower layers").

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};

use crate::error::{Named, Result};
use crate::fd::high;
use crate::mount;

/// Who may use a FUSE connection, in numbers of our own user namespace.
#[derive(Clone, Copy, Debug)]
pub struct FuseUser {
    pub uid: u32,
    pub gid: u32,
    /// every user in the user namespace may, not just this one
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
    let file = file.named("open", "/dev/fuse")?;
    Ok(File::from(high(file.into())?))
}

/// Mounts at `target`, read-only, the file system that the reader of `fuse` is going to serve.
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

/// As `mount_fuse`, but nowhere yet: the descriptor can be sent to a process with other namespaces, which puts it where
/// it wants it (`place_mount`). Owners of files are numbers in the user namespace of the caller. Linux 5.2.
pub fn detached_fuse(fuse: BorrowedFd<'_>, user: FuseUser) -> Result<OwnedFd> {
    let context =
        rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).named("open file system", "fuse")?;
    let what = "configure file system with";
    for (key, value) in [
        ("source", "squashfuse"),
        ("fd", &fuse.as_raw_fd().to_string()),
        ("rootmode", "40000"),
        ("user_id", &user.uid.to_string()),
        ("group_id", &user.gid.to_string()),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, value).named(what, key)?;
    }
    for (flag, wanted) in [("ro", true), ("allow_other", user.everybody)] {
        if wanted {
            rustix::mount::fsconfig_set_flag(&context, flag).named(what, flag)?;
        }
    }
    rustix::mount::fsconfig_create(&context).named(what, "fuse")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    high(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).named("mount", "fuse")?)
}

/// Puts a mount that is nowhere yet at `target`.
pub fn place_mount(mounted: BorrowedFd<'_>, target: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mounted, "", CWD, target, flags)
        .named("place mount at", target.to_string_lossy())
}
