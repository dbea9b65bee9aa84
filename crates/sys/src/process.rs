//! This process and its children: fork into namespaces, wait, affinity, limits, identity.

pub mod proc;

use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Pid, Resource, Rlimit};
use rustix::thread::UnshareFlags;

use crate::error::{check, Named, Result, SysError};
use crate::security;

/// Which namespaces a new process gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    pub user: bool,
    pub mount: bool,
    pub pid: bool,
    pub ipc: bool,
    /// a network of its own, with a loopback that is down: no address, no abstract Unix socket of others
    pub network: bool,
}

impl Namespaces {
    pub const NONE: Namespaces = Namespaces {
        user: false,
        mount: false,
        pid: false,
        ipc: false,
        network: false,
    };
    /// All but a network.
    pub const ALL: Namespaces = Namespaces {
        user: true,
        mount: true,
        pid: true,
        ipc: true,
        network: false,
    };

    pub(crate) fn flags(self) -> libc::c_int {
        let mut flags = 0;
        for (wanted, flag) in [
            (self.user, libc::CLONE_NEWUSER),
            (self.mount, libc::CLONE_NEWNS),
            (self.pid, libc::CLONE_NEWPID),
            (self.ipc, libc::CLONE_NEWIPC),
            (self.network, libc::CLONE_NEWNET),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        flags
    }
}

/// Who returns from `fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    Parent { child: i32 },
    Child,
}

/// A thread that was joined is listed for some microseconds: who waits is woken before the kernel has removed it (exit_mm
/// comes before exit_notify in kernel/exit.c).
const JOINED_LOOKS: usize = 100;
const JOINED_LOOK_US: u64 = 500;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count())
}

/// Forks, the child in new namespaces. Refused when the process has more than one thread: the child would inherit locks
/// that are never released.
pub fn fork(namespaces: Namespaces) -> Result<Fork> {
    let mut threads_left = threads();
    for _ in 0..JOINED_LOOKS {
        if threads_left <= 1 {
            break;
        }
        crate::fd::poll(&mut [], Some(JOINED_LOOK_US))?;
        threads_left = threads();
    }
    if threads_left > 1 {
        let source = io::Error::other(format!("{threads_left} threads are running"));
        return Err(SysError::new("fork", "", source));
    }
    let flags = namespaces.flags() | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack, clone is fork: the child goes on with a copy of this memory. There
    // is only one thread, so no lock is held by a thread that the child lacks.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags as usize,
            0_usize,
            0_usize,
            0_usize,
            0_usize,
        )
    };
    match check(pid, "fork", "")? {
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent { child: child as i32 }),
    }
}

/// Names this thread in /proc/PID/comm, at most 15 bytes: for people who inspect processes.
pub fn set_name(name: &std::ffi::CStr) {
    let _ = rustix::thread::set_name(name); // it only fails where the kernel has none
}

/// Moves this process, which has one thread, into new namespaces. It has all capabilities in a new user namespace; that
/// also clears the parent-death signal. A new PID namespace is for its children only.
pub fn unshare(namespaces: Namespaces) -> Result<()> {
    let flags = UnshareFlags::from_bits_retain(namespaces.flags() as u32);
    // SAFETY: of what may be unshared, only the table of descriptors can invalidate descriptors of other code; it is
    // not among the namespaces.
    unsafe { rustix::thread::unshare_unsafe(flags) }.named("enter", "namespaces")
}

/// In a user namespace that this process has just got: user and group `outside` are `inside` in it, and no others are
/// there. The process is dumpable meanwhile: else root owns its entries in /proc, and a user may not write them.
pub fn map_user(outside: (u32, u32), inside: (u32, u32)) -> Result<()> {
    let write = |name: &str, text: String| {
        let path = format!("/proc/self/{name}");
        std::fs::write(&path, text).named("write", path)
    };
    let dumpable = security::is_dumpable()?;
    security::set_dumpable(true)?;
    let mapped = write("setgroups", "deny".to_owned())
        .and_then(|()| write("uid_map", format!("{} {} 1", inside.0, outside.0)))
        .and_then(|()| write("gid_map", format!("{} {} 1", inside.1, outside.1)));
    security::set_dumpable(dumpable)?;
    mapped
}

/// What a process used until its end, with the children it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub rss_max_kb: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Status(status) => write!(to, "status {status}"),
            Exit::Signal(number) => write!(to, "signal {number}"),
        }
    }
}

/// What waiting for any child gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Ended {
        pid: i32,
        exit: Exit,
        usage: Usage,
    },
    /// children exist, none has ended
    Running,
    NoChildren,
}

/// Waits for any child (or `pid` where positive), without blocking unless `block`.
pub fn wait(pid: i32, block: bool) -> Result<Waited> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let target = if pid > 0 { pid } else { -1 };
    let options = if block { 0 } else { libc::WNOHANG };
    // SAFETY: `status` and `usage` are valid places for the results; a zeroed rusage is valid should it stay unwritten.
    let (got, usage) = unsafe {
        let got = libc::wait4(target, &mut status, options, usage.as_mut_ptr());
        (got, usage.assume_init())
    };
    match got {
        0 => Ok(Waited::Running),
        -1 => {
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::ECHILD) => Ok(Waited::NoChildren),
                Some(libc::EINTR) => Ok(Waited::Running),
                _ => Err(SysError::new("wait for", "children", source)),
            }
        }
        pid => {
            let exit = if libc::WIFSIGNALED(status) {
                Exit::Signal(libc::WTERMSIG(status))
            } else {
                Exit::Status(libc::WEXITSTATUS(status))
            };
            let usage = Usage {
                user_us: micros(usage.ru_utime),
                system_us: micros(usage.ru_stime),
                rss_max_kb: usage.ru_maxrss as u64,
            };
            Ok(Waited::Ended { pid, exit, usage })
        }
    }
}

fn micros(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}

/// Ends this process at once, running nothing on the way out.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit does not return and runs no handlers.
    unsafe { libc::_exit(status) }
}

pub fn id() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The process that made this one, or that took it over; 0 where that is outside of our PID namespace.
pub fn parent_id() -> i32 {
    Pid::as_raw(rustix::process::getppid())
}

/// Real user and group.
pub fn user_and_group() -> (u32, u32) {
    (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    )
}

/// New session: no controlling terminal, own process group.
pub fn new_session() -> Result<()> {
    rustix::process::setsid().named("start", "session").map(drop)
}

/// CPUs this process may run on.
pub fn affinity() -> Result<Vec<usize>> {
    affinity_of(0)
}

/// CPUs of a mask at most: 512 words. Linux is built for 8,192 CPUs at most (arch/x86/Kconfig, NR_CPUS_RANGE_END).
const MASK_WORDS_MAX: usize = 512;
/// As glibc's cpu_set_t: 1,024 CPUs.
const MASK_WORDS_MIN: usize = 16;
const WORD_BITS: usize = 64;

/// CPUs a thread may run on (0: this one). The kernel refuses a mask that is shorter than its own by EINVAL
/// (sched_setaffinity(2), "Handling systems with more than 1024 CPUs"): it is asked with longer ones.
pub fn affinity_of(pid: i32) -> Result<Vec<usize>> {
    let ask = |mask: &mut [u64]| {
        let bytes = std::mem::size_of_val(mask);
        // SAFETY: the kernel writes at most the length that is given, into memory of that length.
        let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, bytes, mask.as_mut_ptr()) };
        match result {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mask = grown(ask).map_err(|source| SysError::new("get", "CPU affinity", source))?;
    Ok(cpus_of(&mask))
}

/// A mask that is long enough for whom it is asked of.
fn grown(mut ask: impl FnMut(&mut [u64]) -> io::Result<()>) -> io::Result<Vec<u64>> {
    let mut words = MASK_WORDS_MIN;
    loop {
        let mut mask = vec![0u64; words];
        match ask(&mut mask) {
            Ok(()) => return Ok(mask),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && words < MASK_WORDS_MAX => words *= 2,
            Err(error) => return Err(error),
        }
    }
}

/// Runs on these CPUs only, and so do its children.
pub fn set_affinity(cpus: &[usize]) -> Result<()> {
    set_affinity_of(0, cpus)
}

/// A thread (0: this one) runs on these CPUs only, and so do those that it makes.
pub fn set_affinity_of(pid: i32, cpus: &[usize]) -> Result<()> {
    let mask = mask_of(cpus);
    // SAFETY: the kernel reads the length that is given, from memory of that length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            pid,
            mask.len() * WORD_BITS / 8,
            mask.as_ptr(),
        )
    };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(SysError::new("set CPU affinity to", format!("{cpus:?}"), error));
    }
    Ok(())
}

/// As many words as the highest CPU needs; CPUs beyond what any kernel has are left out.
fn mask_of(cpus: &[usize]) -> Vec<u64> {
    let highest = cpus
        .iter()
        .copied()
        .filter(|&cpu| cpu < MASK_WORDS_MAX * WORD_BITS)
        .max()
        .unwrap_or(0);
    let mut mask = vec![0u64; (highest / WORD_BITS + 1).max(MASK_WORDS_MIN)];
    for &cpu in cpus.iter().filter(|&&cpu| cpu <= highest) {
        mask[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
    }
    mask
}

fn cpus_of(mask: &[u64]) -> Vec<usize> {
    let bits = (0..mask.len() * WORD_BITS).filter(|&cpu| mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1);
    bits.collect()
}

/// The CPU this thread runs on just now.
pub fn current_cpu() -> usize {
    // SAFETY: plain call; it fails only where the kernel lacks it, which gives a CPU that no thread has.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// No core dumps, for this process and its children.
pub fn forbid_core_dumps() -> Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none).named("limit", "core dumps")
}

/// Bounds the processes and threads (RLIMIT_NPROC) of this user namespace, for this process and its children for good.
/// False where the kernel would count something else: before Linux 5.14 all processes of the user on the machine, and for
/// real root nothing. That is tried out with two children, and then the limit stays what it was.
pub fn limit_tasks(tasks_max: u64) -> Result<bool> {
    let before = rustix::process::getrlimit(Resource::Nproc);
    let set = |current: Option<u64>, maximum: Option<u64>| {
        rustix::process::setrlimit(Resource::Nproc, Rlimit { current, maximum })
            .named("set limit of", "processes")
    };
    set(Some(1), before.maximum)?;
    let counts = !may_fork()?;
    set(Some(2), before.maximum)?;
    let counts_only_us = counts && may_fork()?;
    if !counts_only_us {
        set(before.current, before.maximum)?;
        return Ok(false);
    }
    let tasks_max = before.maximum.unwrap_or(u64::MAX).min(tasks_max);
    set(Some(tasks_max), Some(tasks_max))?;
    Ok(true)
}

fn may_fork() -> Result<bool> {
    match fork(Namespaces::NONE) {
        Ok(Fork::Child) => exit_now(0),
        Ok(Fork::Parent { child }) => wait(child, true).map(|_| true),
        Err(error) if error.os_error() == libc::EAGAIN => Ok(false),
        Err(error) => Err(error),
    }
}

/// Raises the soft limit of open files to the hard one.
pub fn raise_open_files() -> Result<u64> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised).named("set limit of", "open files")?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// Bounds the open files of this process and its children for good, but never below what programs get now: the soft limit.
pub fn bound_open_files(open_max: u64) -> Result<()> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let wanted = before.current.unwrap_or(u64::MAX).max(open_max);
    if before.maximum.is_some_and(|maximum| maximum <= wanted) {
        return Ok(());
    }
    let bounded = Rlimit {
        current: before.current,
        maximum: Some(wanted),
    };
    rustix::process::setrlimit(Resource::Nofile, bounded).named("set limit of", "open files")
}

/// Limits of a process, getrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    OpenFiles,
    Processes,
    LockedMemory,
    Stack,
    AddressSpace,
}

/// Soft and hard limit of this process; None = unlimited.
pub fn limit(of: Limit) -> (Option<u64>, Option<u64>) {
    let limit = rustix::process::getrlimit(match of {
        Limit::OpenFiles => Resource::Nofile,
        Limit::Processes => Resource::Nproc,
        Limit::LockedMemory => Resource::Memlock,
        Limit::Stack => Resource::Stack,
        Limit::AddressSpace => Resource::As,
    });
    (limit.current, limit.maximum)
}

/// Kernel ticks per second, the unit of CPU times in /proc/PID/stat.
pub fn ticks_per_s() -> u64 {
    configured(libc::_SC_CLK_TCK).unwrap_or(100).max(1)
}

/// Bytes per page.
pub fn page_bytes() -> u64 {
    configured(libc::_SC_PAGESIZE).unwrap_or(4096)
}

/// kB of shared memory and files in memory of the whole node (sysinfo(2); Shmem of /proc/meminfo). 0 if it is not known.
pub fn shared_kb() -> u64 {
    let mut found = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills the structure; all its zeros are a valid one.
    let found = unsafe {
        libc::sysinfo(found.as_mut_ptr());
        found.assume_init()
    };
    found.sharedram * u64::from(found.mem_unit) / 1024
}

// rustix reads the auxiliary vector for these, from /proc/self/auxv, which a process that is not dumpable may not open
fn configured(name: libc::c_int) -> Option<u64> {
    // SAFETY: plain call.
    u64::try_from(unsafe { libc::sysconf(name) }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_grows_until_the_kernel_takes_it() {
        let mut asked = Vec::new();
        let mask = grown(|mask| {
            asked.push(mask.len());
            if mask.len() < 64 {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            mask[31] = 1 << 63;
            mask[0] = 1;
            Ok(())
        });
        assert_eq!(asked, [16, 32, 64]);
        assert_eq!(cpus_of(&mask.unwrap()), [0, 2047]);
        let refused = grown(|_| Err(io::Error::from_raw_os_error(libc::ESRCH)));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert!(grown(|_| Err(io::Error::from_raw_os_error(libc::EINVAL))).is_err());
    }

    #[test]
    fn cpus_above_1023_are_set_too() {
        assert_eq!(cpus_of(&mask_of(&[3, 1500, 8191])), [3, 1500, 8191]);
        assert_eq!(mask_of(&[3]).len(), MASK_WORDS_MIN);
        assert_eq!(cpus_of(&mask_of(&[3, usize::MAX])), [3], "what no kernel has");
    }

    #[test]
    fn what_is_read_can_be_set_again() {
        let cpus = affinity().unwrap();
        assert!(!cpus.is_empty());
        set_affinity(&cpus).unwrap();
        assert_eq!(affinity().unwrap(), cpus);
    }
}
