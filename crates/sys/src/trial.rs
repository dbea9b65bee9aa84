//! Trials: what this kernel lets us do, found out by doing it. Call each in a process that ends afterwards.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{check, Result, SysError};
use crate::process::Namespaces;
use crate::security;

/// Moves this process (of one thread) into new namespaces.
pub fn unshare(namespaces: Namespaces) -> Result<()> {
    // SAFETY: takes a number; a process with one thread has nothing that it could pull away from others.
    let result = unsafe { libc::unshare(namespaces.flags()) };
    check(result, "unshare", "namespaces")?;
    Ok(())
}

fn mount(kind: &str, target: &Path, data: &str) -> Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|error| SysError::new("use", "text", error.into()));
    let (kind_c, data_c) = (text(kind.as_bytes())?, text(data.as_bytes())?);
    let target_c = text(target.as_os_str().as_bytes())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all strings are NUL-terminated and live during the call.
    let result = unsafe {
        libc::mount(
            kind_c.as_ptr(),
            target_c.as_ptr(),
            kind_c.as_ptr(),
            flags,
            data_c.as_ptr().cast(),
        )
    };
    check(result, "mount", kind)?;
    Ok(())
}

/// Mounts an overlay of `at/l` (lower), `at/u` (upper) and `at/w` (work) on `at/m`; `userxattr` is what a user
/// namespace needs (Linux 5.11, Documentation/filesystems/overlayfs.rst).
pub fn overlay(at: &Path) -> Result<()> {
    let below = |name: &str| at.join(name).display().to_string();
    let (lower, upper, work) = (below("l"), below("u"), below("w"));
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr");
    mount("overlay", &at.join("m"), &data)
}

/// Mounts an open /dev/fuse on a directory; whoever looks below it waits for an answer that nobody gives.
pub fn fuse(target: &Path, device: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Result<()> {
    let fd = device.as_raw_fd();
    mount(
        "fuse",
        target,
        &format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}"),
    )
}

/// What of tracing is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// a child asks to be traced
    Ptrace,
    /// a child filters its system calls
    Seccomp,
    /// both: a filtered call stops the child for its tracer
    Both,
}

/// The child's exit status when the filter was refused: this and the error number.
const FILTER_REFUSED: i32 = 128;

/// Tries it with a child of this process.
pub fn trace(what: Tracing) -> Result<()> {
    // SAFETY: fork of a process with one thread; the child makes system calls only and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        traced_child(what);
    }
    check(child, "fork", "")?;
    let options = libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;
    let mut status = wait(child)?;
    if libc::WIFSTOPPED(status) {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the child is stopped and ours to trace; these requests read numbers only.
        unsafe {
            check(
                libc::ptrace(libc::PTRACE_SETOPTIONS, child, null, options),
                "set options of",
                "ptrace",
            )?;
            check(
                libc::ptrace(libc::PTRACE_CONT, child, null, 0),
                "continue",
                "a traced child",
            )?;
        }
        status = wait(child)?;
    }
    let was_stopped = libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_SECCOMP;
    if libc::WIFSTOPPED(status) {
        // SAFETY: a plain signal to our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait(child)?;
    }
    let code = libc::WEXITSTATUS(status);
    match (what, was_stopped) {
        (Tracing::Both, true) => Ok(()),
        _ if libc::WIFEXITED(status) && code >= FILTER_REFUSED => {
            Err(refused("filter", code - FILTER_REFUSED))
        }
        _ if libc::WIFEXITED(status) && code > 0 => Err(refused("ptrace", code)),
        (Tracing::Both, false) => Err(SysError::new(
            "see",
            "a filtered system call",
            io::Error::other("the child did not stop"),
        )),
        _ => Ok(()),
    }
}

fn refused(subject: &str, errno: i32) -> SysError {
    SysError::new("use", subject, io::Error::from_raw_os_error(errno))
}

fn wait(child: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let result = unsafe { libc::waitpid(child, &mut status, 0) };
    check(result, "wait for", "a child")?;
    Ok(status)
}

fn traced_child(what: Tracing) -> ! {
    let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(1);
    let status = if what != Tracing::Seccomp && trace_me().is_err() {
        errno()
    } else if what != Tracing::Ptrace && filter().is_err() {
        FILTER_REFUSED + errno()
    } else {
        // SAFETY: touches no memory; the filter stops it for the tracer.
        unsafe { libc::syscall(libc::SYS_getppid) };
        0
    };
    crate::process::exit_now(status)
}

fn trace_me() -> Result<()> {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: takes no memory; the stop lets the parent set its options.
    unsafe {
        check(libc::ptrace(libc::PTRACE_TRACEME, 0, null, null), "use", "ptrace")?;
        libc::raise(libc::SIGSTOP);
    }
    Ok(())
}

/// getppid(2) stops for the tracer, everything else goes on (seccomp(2), SECCOMP_RET_TRACE).
fn filter() -> Result<()> {
    security::forbid_new_privileges()?;
    let ld = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let word = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut words = [
        word(ld, 0, 0, 0),
        word(jump, 0, 1, libc::SYS_getppid as u32),
        word(ret, 0, 0, libc::SECCOMP_RET_TRACE),
        word(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: words.len() as u16,
        filter: words.as_mut_ptr(),
    };
    // SAFETY: `program` and its words live during the call, which copies them.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    check(result, "use", "filter")?;
    Ok(())
}

/// Soft and hard limit of a resource (RLIMIT_*); None = unlimited.
pub fn limit(resource: Resource) -> Result<(Option<u64>, Option<u64>)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let number = match resource {
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        Resource::Stack => libc::RLIMIT_STACK,
        Resource::AddressSpace => libc::RLIMIT_AS,
    };
    // SAFETY: `limit` is a valid place for the result.
    check(unsafe { libc::getrlimit(number, &mut limit) }, "get", "limit")?;
    let told = |value: u64| (value != libc::RLIM_INFINITY).then_some(value);
    Ok((told(limit.rlim_cur), told(limit.rlim_max)))
}

/// Limits of a process, getrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    OpenFiles,
    Processes,
    LockedMemory,
    Stack,
    AddressSpace,
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
    let text = path.to_string_lossy();
    let at = CString::new(path.as_os_str().as_bytes())
        .map_err(|source| SysError::new("use as path", text.as_ref(), source.into()))?;
    let mut plain = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    let mut flags = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `at` is NUL-terminated; both are valid places for results, and valid zeroed.
    let (plain, flags) = unsafe {
        check(
            libc::statfs(at.as_ptr(), plain.as_mut_ptr()),
            "statfs",
            text.as_ref(),
        )?;
        check(
            libc::statvfs(at.as_ptr(), flags.as_mut_ptr()),
            "statvfs",
            text.as_ref(),
        )?;
        (plain.assume_init(), flags.assume_init())
    };
    let block = plain.f_bsize as u64;
    Ok(FileSystem {
        magic: plain.f_type as u64 & 0xffff_ffff,
        bytes: plain.f_blocks * block,
        free_bytes: plain.f_bavail * block,
        free_inodes: plain.f_ffree,
        read_only: flags.f_flag & libc::ST_RDONLY != 0,
        no_exec: flags.f_flag & libc::ST_NOEXEC != 0,
    })
}

/// May this process write there (access(2), W_OK)?
pub fn may_write(path: &Path) -> bool {
    CString::new(path.as_os_str().as_bytes()).is_ok_and(|at| {
        // SAFETY: `at` is NUL-terminated.
        unsafe { libc::access(at.as_ptr(), libc::W_OK) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_file_systems_are_told() {
        let (soft, _) = limit(Resource::OpenFiles).unwrap();
        assert!(soft.is_none_or(|files| files > 0));
        let proc = file_system(Path::new("/proc")).unwrap();
        assert_eq!(proc.magic, 0x9fa0);
        assert!(file_system(Path::new("/no/such/place")).is_err());
        assert!(!may_write(Path::new("/no/such/place")));
    }
}
