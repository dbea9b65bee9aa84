//! The system calls that ask a file system for metadata, with their numbers and where they name a path.
//!
//! Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64) of Linux 6.12.

/// Where a call names its (first) path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// argument of the path, relative to the current directory
    Path(usize),
    /// arguments of a directory's descriptor and of a path relative to it
    At(usize, usize),
    /// argument of a descriptor
    Descriptor(usize),
    Nothing,
}

/// What a call does beside being counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    /// the result is a descriptor; argument of the flags (None: creat)
    Opens(Option<usize>),
    /// argument of a buffer, into which success writes what the path is (see `mode_at`)
    Stats(usize),
    /// success says: the path is a directory
    Directory,
    /// a directory is read
    Lists,
    /// success says: the path is a symbolic link; EINVAL: it exists and is not a symbolic link
    Reads,
    /// success says: the path is a file
    Executes,
    /// names below the path may be others now
    Renames,
    /// the current directory is another one now
    Changes,
}

/// Kinds of calls as a metadata server sees them, in the order of `Group::NAMES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Open,
    Stat,
    Readlink,
    List,
    Exec,
    Chdir,
    Other,
}

impl Group {
    pub const COUNT: usize = 7;
    pub const NAMES: [&'static str; Group::COUNT] =
        ["open", "stat", "readlink", "list", "exec", "chdir", "other"];
}

/// When a call is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// not where this argument has AT_EMPTY_PATH: that is an fstat by another name; with `--also fstat` it is
    Path(usize),
    /// with `--also NAME`
    Also(&'static str),
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub name: &'static str,
    /// -1: this architecture has none
    pub x86_64: i32,
    pub aarch64: i32,
    pub names: Names,
    pub group: Group,
    pub effect: Effect,
    pub when: When,
}

impl Call {
    /// Whether it is counted without `--also`.
    pub const fn when_unasked(&self) -> bool {
        !matches!(self.when, When::Also(_))
    }

    pub const fn number(&self) -> i32 {
        if cfg!(target_arch = "aarch64") {
            self.aarch64
        } else {
            self.x86_64
        }
    }
}

const fn call(name: &'static str, numbers: (i32, i32), names: Names, group: Group, effect: Effect) -> Call {
    Call {
        name,
        x86_64: numbers.0,
        aarch64: numbers.1,
        names,
        group,
        effect,
        when: When::Always,
    }
}

const fn only(when: When, call: Call) -> Call {
    Call { when, ..call }
}

use Effect::{Changes, Directory, Executes, Lists, Opens, Reads, Renames, Stats};
use Group::{Chdir, Exec, List, Open, Other, Readlink, Stat};
use Names::{At, Descriptor, Nothing, Path};

/// All of them.
#[rustfmt::skip]
pub const CALLS: &[Call] = &[
    call("open", (2, -1), Path(0), Open, Opens(Some(1))),
    call("openat", (257, 56), At(0, 1), Open, Opens(Some(2))),
    call("openat2", (437, 437), At(0, 1), Open, Opens(None)),
    call("creat", (85, -1), Path(0), Open, Opens(None)),
    call("stat", (4, -1), Path(0), Stat, Stats(1)),
    call("lstat", (6, -1), Path(0), Stat, Stats(1)),
    only(When::Path(3), call("newfstatat", (262, 79), At(0, 1), Stat, Stats(2))),
    only(When::Path(2), call("statx", (332, 291), At(0, 1), Stat, Stats(4))),
    call("access", (21, -1), Path(0), Stat, Effect::None),
    call("faccessat", (269, 48), At(0, 1), Stat, Effect::None),
    call("faccessat2", (439, 439), At(0, 1), Stat, Effect::None),
    call("statfs", (137, 43), Path(0), Stat, Effect::None),
    call("readlink", (89, -1), Path(0), Readlink, Reads),
    call("readlinkat", (267, 78), At(0, 1), Readlink, Reads),
    call("getdents", (78, -1), Descriptor(0), List, Lists),
    call("getdents64", (217, 61), Descriptor(0), List, Lists),
    call("execve", (59, 221), Path(0), Exec, Executes),
    call("execveat", (322, 281), At(0, 1), Exec, Executes),
    call("chdir", (80, 49), Path(0), Chdir, Changes),
    call("fchdir", (81, 50), Descriptor(0), Chdir, Changes),
    call("mkdir", (83, -1), Path(0), Other, Directory),
    call("mkdirat", (258, 34), At(0, 1), Other, Directory),
    call("rmdir", (84, -1), Path(0), Other, Directory),
    call("unlink", (87, -1), Path(0), Other, Effect::None),
    call("unlinkat", (263, 35), At(0, 1), Other, Effect::None),
    call("rename", (82, -1), Path(0), Other, Renames),
    call("renameat", (264, 38), At(0, 1), Other, Renames),
    call("renameat2", (316, 276), At(0, 1), Other, Renames),
    call("link", (86, -1), Path(0), Other, Effect::None),
    call("linkat", (265, 37), At(0, 1), Other, Effect::None),
    call("symlink", (88, -1), Path(1), Other, Effect::None),
    call("symlinkat", (266, 36), At(1, 2), Other, Effect::None),
    call("chmod", (90, -1), Path(0), Other, Effect::None),
    call("fchmodat", (268, 53), At(0, 1), Other, Effect::None),
    call("fchmodat2", (452, 452), At(0, 1), Other, Effect::None),
    call("chown", (92, -1), Path(0), Other, Effect::None),
    call("lchown", (94, -1), Path(0), Other, Effect::None),
    call("fchownat", (260, 54), At(0, 1), Other, Effect::None),
    call("utime", (132, -1), Path(0), Other, Effect::None),
    call("utimes", (235, -1), Path(0), Other, Effect::None),
    call("futimesat", (261, -1), At(0, 1), Other, Effect::None),
    call("utimensat", (280, 88), At(0, 1), Other, Effect::None),
    call("truncate", (76, 45), Path(0), Other, Effect::None),
    call("setxattr", (188, 5), Path(0), Other, Effect::None),
    call("lsetxattr", (189, 6), Path(0), Other, Effect::None),
    call("getxattr", (191, 8), Path(0), Other, Effect::None),
    call("lgetxattr", (192, 9), Path(0), Other, Effect::None),
    call("listxattr", (194, 11), Path(0), Other, Effect::None),
    call("llistxattr", (195, 12), Path(0), Other, Effect::None),
    call("removexattr", (197, 14), Path(0), Other, Effect::None),
    call("lremovexattr", (198, 15), Path(0), Other, Effect::None),
    call("mknod", (133, -1), Path(0), Other, Effect::None),
    call("mknodat", (259, 33), At(0, 1), Other, Effect::None),
    only(When::Also("fstat"), call("fstat", (5, 80), Descriptor(0), Stat, Effect::None)),
    only(When::Also("close"), call("close", (3, 57), Nothing, Other, Effect::None)),
    only(When::Also("getcwd"), call("getcwd", (79, 17), Nothing, Chdir, Effect::None)),
];

/// Where in the buffer the type and mode of a file stand: struct stat of the kernel (asm/stat.h), struct statx (linux/stat.h).
pub const fn mode_at(buffer_argument: usize) -> usize {
    match buffer_argument {
        STATX_BUFFER => 28,
        _ if cfg!(target_arch = "aarch64") => 16,
        _ => 24,
    }
}

/// The buffer of statx is this argument; its mode has two bytes, that of the others four.
pub const STATX_BUFFER: usize = 4;

/// Names for `--also`.
pub const ALSO: &[&str] = &["close", "fstat", "getcwd"];

/// Calls that are not counted, but after which descriptors or directories of the caller may be others, or that go past
/// the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// the result is a descriptor whose number is not known beforehand
    Duplicates,
    /// argument 1 is a descriptor that becomes another one
    Replaces,
    /// argument 0 are flags: current directory and descriptors may be shared no more
    Unshares,
    /// descriptors and directory may be in other namespaces now
    Enters,
    /// what goes through a ring of io_uring is seen by no filter
    Ring,
    /// a descriptor becomes a connection (see `watch.rs`)
    Connects,
    /// arguments 0 and 1 are the first and the last of descriptors that are closed
    ClosesRange,
    /// the caller asks on which CPUs a thread may run, or sets it (see `beside.rs`)
    Cpus,
}

/// One such call; traced only where an argument (number, values) is one of these.
#[derive(Clone, Copy, Debug)]
pub struct SilentCall {
    pub x86_64: i32,
    pub aarch64: i32,
    pub only: Option<(usize, [u32; 2])>,
    pub does: Silent,
}

impl SilentCall {
    pub const fn number(&self) -> i32 {
        if cfg!(target_arch = "aarch64") {
            self.aarch64
        } else {
            self.x86_64
        }
    }
}

const fn silent(numbers: (i32, i32), does: Silent) -> SilentCall {
    SilentCall {
        x86_64: numbers.0,
        aarch64: numbers.1,
        only: None,
        does,
    }
}

const DUPLICATING: [u32; 2] = [libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32];

/// dup, fcntl, open_by_handle_at, open_tree, fsmount, pidfd_getfd; dup2, dup3; unshare, setns, chroot; io_uring_setup;
/// sched_setaffinity, sched_getaffinity; connect; close_range.
pub const SILENT: &[SilentCall] = &[
    silent((32, 23), Silent::Duplicates),
    SilentCall {
        only: Some((1, DUPLICATING)),
        ..silent((72, 25), Silent::Duplicates)
    },
    silent((304, 265), Silent::Duplicates),
    silent((428, 428), Silent::Duplicates),
    silent((432, 432), Silent::Duplicates),
    silent((438, 438), Silent::Duplicates),
    silent((33, -1), Silent::Replaces),
    silent((292, 24), Silent::Replaces),
    silent((272, 97), Silent::Unshares),
    silent((308, 268), Silent::Enters),
    silent((161, 51), Silent::Enters),
    silent((425, 425), Silent::Ring),
    silent((203, 122), Silent::Cpus),
    silent((204, 123), Silent::Cpus),
    silent((42, 203), Silent::Connects),
    silent((436, 436), Silent::ClosesRange),
];

/// Numbers of calls that make processes: clone, clone3; what clone's flags say is in its first argument.
pub const CLONE: i64 = if cfg!(target_arch = "aarch64") { 220 } else { 56 };
pub const CLONE3: i64 = 435;
pub const CLOSE: i64 = if cfg!(target_arch = "aarch64") { 57 } else { 3 };
pub const VFORK: i64 = if cfg!(target_arch = "aarch64") { -2 } else { 58 };

/// Calls of i386 (asm/unistd_32.h) that ask for metadata, as ranges: 64-bit programs can make them by `int $0x80`.
/// open; creat to chdir; access; rename to rmdir; readlink; stat, lstat; stat64, lstat64; getdents64; openat to
/// faccessat; statx; openat2; faccessat2.
pub const FOREIGN: &[(u32, u32)] = if cfg!(target_arch = "x86_64") {
    &[
        (5, 5),
        (8, 12),
        (33, 33),
        (38, 40),
        (85, 85),
        (106, 107),
        (195, 196),
        (220, 220),
        (295, 307),
        (383, 383),
        (437, 437),
        (439, 439),
    ]
} else {
    &[]
};

/// Numbers of x32 (asm/unistd.h: __X32_SYSCALL_BIT), which programs of x86_64 can use as well.
pub const X32: i64 = 0x4000_0000;

/// Whether this number of i386 is one of `FOREIGN`.
pub fn is_foreign(number: i64) -> bool {
    FOREIGN
        .iter()
        .any(|&(first, last)| (i64::from(first)..=i64::from(last)).contains(&number))
}

/// The name of an errno.
pub fn errno_name(number: i32) -> String {
    let name = ERRNO_NAMES.iter().find(|&&(known, _)| known == number);
    name.map_or_else(|| format!("errno{number}"), |&(_, name)| name.to_owned())
}

// ERESTART*: include/linux/errno.h; a signal came first, the call is done again
#[rustfmt::skip]
const ERRNO_NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"), (libc::ENOENT, "ENOENT"), (libc::EINTR, "EINTR"), (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"), (libc::E2BIG, "E2BIG"), (libc::ENOEXEC, "ENOEXEC"), (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"), (libc::ENOMEM, "ENOMEM"), (libc::EACCES, "EACCES"), (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"), (libc::EEXIST, "EEXIST"), (libc::EXDEV, "EXDEV"), (libc::ENODEV, "ENODEV"),
    (libc::ENOTDIR, "ENOTDIR"), (libc::EISDIR, "EISDIR"), (libc::EINVAL, "EINVAL"), (libc::ENFILE, "ENFILE"),
    (libc::EMFILE, "EMFILE"), (libc::ENOTTY, "ENOTTY"), (libc::ETXTBSY, "ETXTBSY"), (libc::EFBIG, "EFBIG"),
    (libc::ENOSPC, "ENOSPC"), (libc::EROFS, "EROFS"), (libc::EMLINK, "EMLINK"), (libc::EPIPE, "EPIPE"),
    (libc::ERANGE, "ERANGE"), (libc::EDEADLK, "EDEADLK"), (libc::ENAMETOOLONG, "ENAMETOOLONG"),
    (libc::ENOSYS, "ENOSYS"), (libc::ENOTEMPTY, "ENOTEMPTY"), (libc::ELOOP, "ELOOP"), (libc::ENODATA, "ENODATA"),
    (libc::EOVERFLOW, "EOVERFLOW"), (libc::ELIBBAD, "ELIBBAD"), (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ETIMEDOUT, "ETIMEDOUT"), (libc::ESTALE, "ESTALE"), (libc::EDQUOT, "EDQUOT"),
    (libc::ENOTCONN, "ENOTCONN"), (libc::EREMOTEIO, "EREMOTEIO"), (libc::ECANCELED, "ECANCELED"),
    (512, "ERESTARTSYS"), (513, "ERESTARTNOINTR"), (514, "ERESTARTNOHAND"), (516, "ERESTART_RESTARTBLOCK"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_stands_for_two_calls() {
        let mut numbers: Vec<i32> = CALLS.iter().map(Call::number).collect();
        numbers.extend(SILENT.iter().map(SilentCall::number));
        numbers.retain(|&number| number >= 0);
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn numbers_are_those_of_the_c_library() {
        let known = [
            ("openat", libc::SYS_openat),
            ("statx", libc::SYS_statx),
            ("getdents64", libc::SYS_getdents64),
            ("utimensat", libc::SYS_utimensat),
            ("lremovexattr", libc::SYS_lremovexattr),
            ("mknodat", libc::SYS_mknodat),
            ("renameat2", libc::SYS_renameat2),
            ("execveat", libc::SYS_execveat),
        ];
        for (name, number) in known {
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            assert_eq!(i64::from(call.x86_64), number, "{name}");
        }
    }

    #[test]
    fn every_errno_that_is_not_in_the_table_still_has_a_name() {
        assert_eq!(errno_name(libc::ENOENT), "ENOENT");
        assert_eq!(errno_name(999), "errno999");
    }
}
