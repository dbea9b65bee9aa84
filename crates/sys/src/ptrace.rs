//! Tracing other processes: attach, wait, registers, memory. Nothing here changes memory of this process.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::error::{check, Result, SysError};
use crate::process::Exit;

pub const EVENT_FORK: i32 = libc::PTRACE_EVENT_FORK;
pub const EVENT_VFORK: i32 = libc::PTRACE_EVENT_VFORK;
pub const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
pub const EVENT_EXEC: i32 = libc::PTRACE_EVENT_EXEC;
pub const EVENT_EXIT: i32 = libc::PTRACE_EVENT_EXIT;
pub const EVENT_SECCOMP: i32 = libc::PTRACE_EVENT_SECCOMP;
pub const EVENT_STOP: i32 = libc::PTRACE_EVENT_STOP;

/// Seizes a process: it goes on running, its future children are seized too, it stops at what a seccomp filter says, at
/// exec and before its end, and it is killed when this process ends.
pub fn seize(pid: i32) -> Result<()> {
    let options = libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, 0, options as usize, "trace process")
}

/// How a stopped process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// to the next event, with this signal (0: none)
    On(i32),
    /// to the end of the system call it is in or does next
    ToCallEnd(i32),
    /// it stays in its group-stop until SIGCONT
    Listen,
}

/// Lets a stopped process continue. One that was killed meanwhile is not an error: its end will be reported.
pub fn resume(pid: i32, how: Resume) -> Result<()> {
    let (what, signal) = match how {
        Resume::On(signal) => (libc::PTRACE_CONT, signal),
        Resume::ToCallEnd(signal) => (libc::PTRACE_SYSCALL, signal),
        Resume::Listen => (libc::PTRACE_LISTEN, 0),
    };
    gone_is_fine(request(what, pid, 0, signal as usize, "resume process"))
}

fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.os_error() == libc::ESRCH => Ok(()),
        result => result,
    }
}

fn request(what: libc::c_uint, pid: i32, address: usize, data: usize, operation: &'static str) -> Result<()> {
    // SAFETY: the requests that come here take numbers, or write a word into the other process; none writes to memory of
    // this process.
    let result = unsafe { libc::ptrace(what, pid, address, data) };
    done(result, operation, pid)
}

/// As `check`, of a process: its number becomes text only where something failed, which these requests seldom do.
fn done(result: libc::c_long, operation: &'static str, pid: i32) -> Result<()> {
    if result == -1 {
        let source = io::Error::last_os_error();
        return Err(SysError::new(operation, pid.to_string(), source));
    }
    Ok(())
}

/// Who waits for stops needs no SIGCHLD of each: the kernel does not even make one.
pub fn stops_without_signal() -> Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed sigaction is valid, and the kernel fills it; its handler stays what it was, only a flag is added.
    let result = unsafe {
        libc::sigaction(libc::SIGCHLD, std::ptr::null(), action.as_mut_ptr());
        (*action.as_mut_ptr()).sa_flags |= libc::SA_NOCLDSTOP;
        libc::sigaction(libc::SIGCHLD, action.as_ptr(), std::ptr::null_mut())
    };
    check(result, "handle signal", "SIGCHLD")?;
    Ok(())
}

/// What a wait for traced processes gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Ended(i32, Exit),
    /// (process, what)
    Stopped(i32, Stop),
    NoChildren,
    /// by a signal, such as that of `tick`
    Interrupted,
}

/// Why a traced process stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// one of EVENT_*
    Event(i32),
    /// with all of its group, by this signal
    Group,
    /// at the begin or end of a system call
    Call,
    /// before it gets this signal
    Signal(i32),
}

/// Waits for the next event of any traced process or child.
pub fn wait() -> Result<Event> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
    if pid > 0 {
        return Ok(event(pid, status));
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EINTR) => Ok(Event::Interrupted),
        Some(libc::ECHILD) => Ok(Event::NoChildren),
        _ => Err(SysError::new("wait for", "traced processes", source)),
    }
}

/// ptrace(2), "Stopped tracees".
fn event(pid: i32, status: i32) -> Event {
    if libc::WIFEXITED(status) {
        return Event::Ended(pid, Exit::Status(libc::WEXITSTATUS(status)));
    }
    if libc::WIFSIGNALED(status) {
        return Event::Ended(pid, Exit::Signal(libc::WTERMSIG(status)));
    }
    let signal = libc::WSTOPSIG(status);
    let stop = match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        0 => Stop::Signal(signal),
        EVENT_STOP if signal != libc::SIGTRAP => Stop::Group,
        event => Stop::Event(event),
    };
    Event::Stopped(pid, stop)
}

/// The number that belongs to an event: the new process's, or the thread's before exec.
pub fn event_message(pid: i32) -> Result<i32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long to its data argument.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, &raw mut message) };
    done(result, "ask for the event of", pid)?;
    Ok(message as i32)
}

/// Whether `divert` and its kin work: registers that a system call loses anyway are needed for it.
pub const DIVERTS: bool = cfg!(target_arch = "x86_64");

/// Registers of a stopped process: those that a system call is made of.
#[derive(Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

/// The part of `user_regs_struct` that is read and set (linux/ptrace.h of x86: 17 words to rip, then cs and flags). On
/// x86_64 the stack and segments follow, which are neither read nor changed here, and each of which takes time.
#[cfg(target_arch = "x86_64")]
const READ_BYTES: usize = 19 * 8;
#[cfg(target_arch = "x86_64")]
const SET_BYTES: usize = 17 * 8;
#[cfg(not(target_arch = "x86_64"))]
const READ_BYTES: usize = size_of::<libc::user_regs_struct>();
#[cfg(not(target_arch = "x86_64"))]
const SET_BYTES: usize = READ_BYTES;

/// Reads registers; None where the process runs in a mode (32 bits) whose registers are others.
pub fn registers(pid: i32) -> Result<Option<Registers>> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    let mut part = libc::iovec {
        iov_base: registers.as_mut_ptr().cast(),
        iov_len: READ_BYTES,
    };
    // SAFETY: PTRACE_GETREGSET writes at most iov_len bytes to iov_base, which is valid for that; a zeroed structure of
    // integers is valid if less is written.
    let (result, registers) = unsafe {
        let result = libc::ptrace(
            libc::PTRACE_GETREGSET,
            pid,
            libc::NT_PRSTATUS as usize,
            &raw mut part,
        );
        (result, registers.assume_init())
    };
    done(result, "read registers of", pid)?;
    Ok((part.iov_len == READ_BYTES).then_some(Registers(registers)))
}

/// Sets registers. A process that was killed meanwhile is not an error.
pub fn set_registers(pid: i32, registers: &Registers) -> Result<()> {
    let mut copy = registers.0;
    let mut part = libc::iovec {
        iov_base: (&raw mut copy).cast(),
        iov_len: SET_BYTES,
    };
    // SAFETY: PTRACE_SETREGSET reads iov_len bytes from iov_base, which is valid for that.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGSET,
            pid,
            libc::NT_PRSTATUS as usize,
            &raw mut part,
        )
    };
    gone_is_fine(done(result, "set registers of", pid))
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// number of the system call
    pub fn call(&self) -> i64 {
        self.0.orig_rax as i64
    }

    pub fn argument(&self, index: usize) -> u64 {
        let it = &self.0;
        [it.rdi, it.rsi, it.rdx, it.r10, it.r8, it.r9][index]
    }

    /// what the system call gave: negative errno, or the result
    pub fn result(&self) -> i64 {
        self.0.rax as i64
    }

    pub fn next_instruction(&self) -> u64 {
        self.0.rip
    }

    /// The system call will return to `to`, with `slot` in rcx and the place to return to in r11. Programs expect both
    /// to be lost by a system call (System V ABI, AMD64 supplement, A.2.1). Gives the place to return to.
    pub fn divert(&mut self, to: u64, slot: u64) -> u64 {
        let back = self.0.rip;
        self.0.r11 = back;
        self.0.rcx = slot;
        self.0.rip = to;
        back
    }

    /// As if the system call had returned `result` to `back`.
    pub fn undivert(&mut self, back: u64, result: i64) {
        self.0.rax = result as u64;
        self.0.rip = back;
        self.0.rcx = back;
        self.0.r11 = self.0.eflags;
    }

    /// Another system call instead.
    pub fn replace_call(&mut self, number: i64, arguments: [u64; 6]) {
        let it = &mut self.0;
        it.orig_rax = number as u64;
        it.rax = number as u64;
        [it.rdi, it.rsi, it.rdx, it.r10, it.r8, it.r9] = arguments;
    }

    /// The system call is done anew: its instruction, of two bytes, is executed again.
    pub fn call_again(&mut self) {
        self.0.rip -= 2;
        self.0.rax = self.0.orig_rax;
        self.0.orig_rax = u64::MAX;
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// number of the system call
    pub fn call(&self) -> i64 {
        self.0.regs[8] as i64
    }

    pub fn argument(&self, index: usize) -> u64 {
        self.0.regs[index]
    }

    /// what the system call gave: negative errno, or the result
    pub fn result(&self) -> i64 {
        self.0.regs[0] as i64
    }

    pub fn next_instruction(&self) -> u64 {
        self.0.pc
    }

    /// Not possible here (see `DIVERTS`): changes nothing.
    pub fn divert(&mut self, _to: u64, _slot: u64) -> u64 {
        self.0.pc
    }

    /// Changes nothing, as there is no diversion.
    pub fn undivert(&mut self, _back: u64, _result: i64) {}

    /// Changes nothing, as there is no diversion.
    pub fn replace_call(&mut self, _number: i64, _arguments: [u64; 6]) {}

    /// Changes nothing, as there is no diversion.
    pub fn call_again(&mut self) {}
}

/// Writes a word into a traced process, whatever the protection of the page.
pub fn poke(pid: i32, address: u64, word: u64) -> Result<()> {
    request(
        libc::PTRACE_POKEDATA,
        pid,
        address as usize,
        word as usize,
        "write to memory of",
    )
}

/// Parts of another process's memory that one call reads.
pub const PARTS_MAX: usize = 3;

/// Reads parts (address, length) of another process's memory, one after the other, into `into`, which has room for all.
/// Gives how many bytes were read: a part that is not there ends it.
pub fn read_memory(pid: i32, parts: &[(u64, usize)], into: &mut [u8]) -> usize {
    let empty = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let mut theirs = [empty; PARTS_MAX];
    let mut room = into.len();
    let mut count = 0;
    for (place, &(address, length)) in theirs.iter_mut().zip(parts) {
        place.iov_base = address as *mut libc::c_void;
        place.iov_len = length.min(room);
        room -= place.iov_len;
        count += 1;
    }
    let ours = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes at most the sum of the local lengths, which is no more than `into` has; the kernel
    // checks addresses of the other process.
    let got = unsafe { libc::process_vm_readv(pid, &ours, 1, theirs.as_ptr(), count, 0) };
    usize::try_from(got).unwrap_or(0)
}

static FORWARD_TO: AtomicI32 = AtomicI32::new(0);

extern "C" fn forward(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let pid = FORWARD_TO.load(Ordering::Relaxed);
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO; kill is async-signal-safe; errno is
    // restored, as the interrupted code may read it.
    unsafe {
        // a key at the terminal reaches the whole foreground group: the other process has got it too
        if pid > 0 && (*info).si_code <= 0 {
            let before = *libc::__errno_location();
            libc::kill(pid, signal);
            *libc::__errno_location() = before;
        }
    }
}

/// These signals go to `pid` from now on, except those that a terminal sends to both; with 0 they are swallowed.
pub fn forward_signals(signals: &[i32], pid: i32) -> Result<()> {
    FORWARD_TO.store(pid, Ordering::Relaxed);
    for &signal in signals {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let handler = forward as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: a zeroed sigaction is valid (empty mask); the handler has the type that SA_SIGINFO asks for and does
        // only what is safe at any moment.
        let result = unsafe {
            (*action.as_mut_ptr()).sa_sigaction = handler as libc::sighandler_t;
            (*action.as_mut_ptr()).sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
            libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut())
        };
        check(result, "handle signal", signal.to_string())?;
    }
    Ok(())
}

static TICKED: AtomicBool = AtomicBool::new(false);

extern "C" fn tock(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    if unsafe { (*info).si_code } > 0 {
        TICKED.store(true, Ordering::Relaxed);
    } else {
        forward(signal, info, context);
    }
}

/// Whether the interval of `tick` has passed since the last call.
pub fn ticked() -> bool {
    TICKED.load(Ordering::Relaxed) && TICKED.swap(false, Ordering::Relaxed)
}

/// From now on `wait` is interrupted at this interval, and `ticked` says so; 0: never. Uses SIGALRM; one that another
/// process sends goes where `forward_signals` says.
pub fn tick(interval_us: u64) -> Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler = tock as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: a zeroed sigaction is valid (empty mask, no restart: waits are interrupted); the handler has the type that
    // SA_SIGINFO asks for and does only what is safe at any moment.
    let result = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = handler as libc::sighandler_t;
        (*action.as_mut_ptr()).sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGALRM, action.as_ptr(), std::ptr::null_mut())
    };
    check(result, "handle signal", "SIGALRM")?;
    let time = libc::timeval {
        tv_sec: (interval_us / 1_000_000) as libc::time_t,
        tv_usec: (interval_us % 1_000_000) as libc::suseconds_t,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: `timer` is initialised; the old value is not asked for.
    let result = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    check(result, "start", "timer")?;
    Ok(())
}

/// Ends this process by a signal, without a core dump. Returns where the signal does not end it.
pub fn die_of(signal: i32) {
    let _ = crate::process::forbid_core_dumps();
    // SAFETY: the default action is valid for every signal that can end a process; raise touches no memory.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
    let _ = crate::signal::block_only(&[]);
    // SAFETY: as above.
    unsafe { libc::raise(signal) };
}

/// Takes over descriptor `number`, which we were started with; programs do not inherit it.
pub fn inherited(number: i32) -> Result<std::fs::File> {
    // SAFETY: plain call; a number that is not open is an error.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    check(result, "use descriptor", number.to_string())?;
    Ok(std::fs::File::from(crate::fd::owned(number.into())))
}
