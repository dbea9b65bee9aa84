//! Signals as descriptors, and kill.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::{check, Result, SysError};
use crate::fd::{high, owned};

pub const CHILD: i32 = libc::SIGCHLD;
pub const INT: i32 = libc::SIGINT;
pub const BUS: i32 = libc::SIGBUS;
pub const TERM: i32 = libc::SIGTERM;
pub const KILL: i32 = libc::SIGKILL;
pub const STOP: i32 = libc::SIGSTOP;
/// What batch systems send to all processes of a job, and what a write into a closed pipe brings: the pilot decides, not its children.
pub const SENT_TO_ALL: [i32; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGTERM,
];

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; sigaddset is given that set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Exactly these signals are blocked from now on.
pub fn block_only(signals: &[i32]) -> Result<()> {
    let set = set_of(signals);
    // SAFETY: `set` is initialised; the old mask is not asked for.
    let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
    check(result, "set", "signal mask")?;
    Ok(())
}

/// Whether a blocked signal waits to be taken.
pub fn is_pending(signal: i32) -> bool {
    let mut set = set_of(&[]);
    // SAFETY: `set` is initialised, and filled by the first call.
    unsafe { libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, signal) == 1 }
}

/// A descriptor that is readable while one of these (blocked) signals is pending.
pub fn descriptor(signals: &[i32]) -> Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: `set` is initialised.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    high(owned(check(fd, "make", "signalfd")?))
}

/// Takes one pending signal: its number, or None when there is none.
pub fn take(fd: BorrowedFd<'_>) -> Option<i32> {
    take_with_origin(fd).map(|(signal, _)| signal)
}

/// As `take`, and whether a process sent it; signals of the terminal come from the kernel, to a whole process group.
pub fn take_with_origin(fd: BorrowedFd<'_>) -> Option<(i32, bool)> {
    take_with_sender(fd).map(|(signal, sender)| (signal, sender.code <= 0)) // SI_USER and below: sigaction(2)
}

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    code: i32,
    /// 0: the kernel, or a process outside of the receiver's PID namespace
    pub pid: i32,
    pub uid: u32,
}

impl Sender {
    /// Whether the kernel itself vouches for `pid` and `uid`: rt_sigqueueinfo(2) lets a program write what it likes there.
    pub fn is_certain(&self) -> bool {
        self.code == libc::SI_USER || self.code == libc::SI_KERNEL
    }
}

/// As `take`, and who sent it.
pub fn take_with_sender(fd: BorrowedFd<'_>) -> Option<(i32, Sender)> {
    // signalfd(2): a structure of this size, which begins with ssi_signo, ssi_errno, ssi_code, ssi_pid and ssi_uid of 32
    // bits each
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    if !matches!(rustix::io::read(fd, &mut info), Ok(got) if got == info.len()) {
        return None;
    }
    let number = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let sender = Sender {
        code: number(8),
        pid: number(12),
        uid: number(16) as u32,
    };
    Some((number(0), sender))
}

extern "C" fn nothing(_signal: i32) {}

/// These signals do nothing to this process; programs that it starts have them at their defaults (a handler, unlike
/// SIG_IGN, does not survive exec).
pub fn shrug_off(signals: &[i32]) -> Result<()> {
    for &signal in signals {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a zeroed sigaction is valid (empty mask, no flags); the handler is a function that does nothing and so
        // is safe at any moment.
        let result = unsafe {
            (*action.as_mut_ptr()).sa_sigaction = nothing as extern "C" fn(i32) as libc::sighandler_t;
            (*action.as_mut_ptr()).sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut())
        };
        check(result, "handle signal", signal.to_string())?;
    }
    Ok(())
}

/// All signals are at their defaults and none is blocked.
pub fn reset_all() -> Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action is always valid; KILL, STOP and those of the C library refuse, which is right.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    block_only(&[])
}

/// None is blocked, and the one that Rust's start-up ignores (PIPE) is at its default; what our starter ignored, such as
/// HUP by nohup(1), stays ignored.
pub fn reset_handled() -> Result<()> {
    // SAFETY: the default action is always valid.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    block_only(&[])
}

/// These signals are at their defaults.
pub fn reset(signals: &[i32]) -> Result<()> {
    for &signal in signals {
        // SAFETY: the default action is always valid.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(SysError::last("reset signal", signal.to_string()));
        }
    }
    Ok(())
}

/// Sends a signal to one process.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: plain call; touches no memory of this process.
    let result = unsafe { libc::kill(pid, signal) };
    check(result, "signal process", pid.to_string())?;
    Ok(())
}

/// SIGKILL to every process that we may signal except ourselves: for PID 1 of a PID namespace, everything in it.
/// Refused (does nothing) for any other process.
pub fn kill_namespace() {
    // SAFETY: plain calls; touch no memory of this process.
    unsafe {
        if libc::getpid() == 1 {
            libc::kill(-1, libc::SIGKILL);
        }
    }
}
