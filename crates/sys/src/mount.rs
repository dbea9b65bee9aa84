//! Mounts, in a mount namespace of one's own.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::error::{check, Named, Result};
use crate::mountinfo;

const NO_PRIVILEGES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

fn mount(kind: &CStr, target: &Path, flags: MountFlags, data: &CStr) -> Result<()> {
    rustix::mount::mount(kind, target, kind, flags, data).named("mount on", target.to_string_lossy())
}

/// A file system of this kind with these options, nosuid and nodev.
pub(crate) fn of_kind(kind: &CStr, target: &Path, data: &str) -> Result<()> {
    with_options(kind, target, NO_PRIVILEGES, data)
}

/// As `of_kind`, read-only.
pub(crate) fn read_only_of_kind(kind: &CStr, target: &Path, data: &str) -> Result<()> {
    with_options(kind, target, NO_PRIVILEGES | MountFlags::RDONLY, data)
}

fn with_options(kind: &CStr, target: &Path, flags: MountFlags, data: &str) -> Result<()> {
    let options = CString::new(data).named("use as mount options", data)?;
    mount(kind, target, flags, &options)
}

/// From now on no mount of this namespace is seen elsewhere, and none from elsewhere here.
pub fn make_all_private() -> Result<()> {
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", flags).named("mount on", "/")
}

/// Mounts a tmpfs of `size_bytes`, nosuid and nodev. One inode per 4 KiB, at least 1024.
pub fn tmpfs(target: &Path, size_bytes: u64, mode: u32) -> Result<()> {
    let inodes = (size_bytes / 4096).max(1024);
    let data = format!("size={size_bytes},nr_inodes={inodes},mode={mode:o}");
    of_kind(c"tmpfs", target, &data)
}

/// The /proc of the PID namespace we are in. Processes that one may not trace are not there (hidepid=4, Linux 5.8), or
/// at least closed (hidepid=1, which does not bind group 0).
pub fn proc(target: &Path) -> Result<()> {
    let flags = NO_PRIVILEGES | MountFlags::NOEXEC;
    match mount(c"proc", target, flags, c"hidepid=4") {
        Err(error) if error.os_error() == libc::EINVAL => mount(c"proc", target, flags, c"hidepid=1"),
        mounted => mounted,
    }
}

/// Shows `source` (file or directory) at `target`, with what is mounted below it.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    rustix::mount::mount_bind_recursive(source, target).named("mount on", target.to_string_lossy())
}

/// Shows the directory of an open descriptor at `target`, with what is mounted below it.
pub fn bind_descriptor(source: BorrowedFd<'_>, target: &Path) -> Result<()> {
    bind(
        Path::new(&format!("/proc/self/fd/{}", source.as_raw_fd())),
        target,
    )
}

/// Flags of an existing mount at `target`, which a user namespace may keep or tighten but not loosen.
fn flags_of(target: &Path) -> Result<MountFlags> {
    let flags = rustix::fs::statvfs(target)
        .named("statvfs", target.to_string_lossy())?
        .f_flag;
    let mut kept = MountFlags::empty();
    for (has, keep) in [
        (libc::ST_NOSUID, MountFlags::NOSUID),
        (libc::ST_NODEV, MountFlags::NODEV),
        (libc::ST_NOEXEC, MountFlags::NOEXEC),
        (libc::ST_NOATIME, MountFlags::NOATIME),
        (libc::ST_NODIRATIME, MountFlags::NODIRATIME),
        (libc::ST_RELATIME, MountFlags::RELATIME),
    ] {
        if flags.contains(StatVfsMountFlags::from_bits_retain(has)) {
            kept |= keep;
        }
    }
    Ok(kept)
}

/// Whether nothing can be written through the mount that holds `path`.
pub fn is_read_only(path: &Path) -> Result<bool> {
    let found = rustix::fs::statvfs(path).named("statvfs", path.to_string_lossy())?;
    Ok(found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Makes the mount at `target` read-only, or writable again.
pub fn set_read_only(target: &Path, read_only: bool) -> Result<()> {
    let mut flags = MountFlags::BIND | flags_of(target)?;
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount_remount(target, flags, c"").named("mount on", target.to_string_lossy())
}

/// `struct mount_attr` of mount_setattr(2), Linux 5.12.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const ATTRIBUTE_READ_ONLY: u64 = 1;
const RECURSIVE: libc::c_uint = 0x8000;

/// Makes the mount at `target` and all mounts below it read-only.
pub fn set_tree_read_only(target: &Path) -> Result<()> {
    let path =
        CString::new(target.as_os_str().as_encoded_bytes()).named("use as path", target.to_string_lossy())?;
    let wanted = Attributes {
        set: ATTRIBUTE_READ_ONLY,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    // SAFETY: `path` is NUL-terminated, `wanted` is laid out as struct mount_attr, and both live during the call.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            RECURSIVE,
            &raw const wanted,
            std::mem::size_of::<Attributes>(),
        )
    };
    match check(set, "make read-only", target.to_string_lossy()) {
        // older kernels, and filters of containers that do not know the call
        Err(error) if matches!(error.os_error(), libc::ENOSYS | libc::EPERM) => set_each_read_only(target),
        set => set.map(drop),
    }
}

/// One mount after the other. What payloads cannot reach either is left as it is.
fn set_each_read_only(target: &Path) -> Result<()> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).named("read", path)?;
    for each in mountinfo::mounts(&text) {
        let point = Path::new(&each.point);
        if !point.starts_with(target) {
            continue;
        }
        match set_read_only(point, true) {
            Err(error)
                if !matches!(
                    error.os_error(),
                    libc::ENOENT | libc::EACCES | libc::ENOTDIR | libc::EINVAL
                ) =>
            {
                return Err(error)
            }
            _ => {}
        }
    }
    Ok(())
}

/// Detaches the mount at `target`: at once for new look-ups, and wholly when it is no longer in use.
pub fn detach(target: &Path) -> Result<()> {
    rustix::mount::unmount(target, UnmountFlags::DETACH).named("unmount", target.to_string_lossy())
}
