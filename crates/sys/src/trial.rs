//! A trial of tracing: what this kernel lets us do, found out by doing it, with what tracing itself uses. Call it in a
//! process that ends afterwards.

use std::io;

use crate::error::{Result, SysError};
use crate::process::{Exit, Fork, Namespaces};
use crate::ptrace::{self, Event, Resume, Stop};
use crate::security::{self, Instruction};
use crate::signal;

/// What of tracing is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// a child is traced
    Ptrace,
    /// a child filters its system calls
    Seccomp,
    /// both: a filtered call stops the child for its tracer
    Both,
}

/// The child's exit status when the filter was refused: this and the error number.
const FILTER_REFUSED: i32 = 128;

/// Tries it with a child of this process, which has one thread.
pub fn trace(what: Tracing) -> Result<()> {
    let (go_out, go_in) = crate::fd::pipe()?;
    let child = match crate::process::fork(Namespaces::NONE)? {
        Fork::Parent { child } => child,
        Fork::Child => {
            drop(go_in);
            filtered_child(what, go_out)
        }
    };
    drop(go_out);
    if what != Tracing::Seccomp {
        if let Err(error) = ptrace::seize(child) {
            crate::child::end(child);
            return Err(refused("ptrace", error.os_error()));
        }
    }
    drop(go_in);
    let mut was_stopped = false;
    loop {
        match ptrace::wait()? {
            Event::Stopped(_, stop) => {
                was_stopped |= stop == Stop::Event(ptrace::EVENT_SECCOMP);
                ptrace::resume(child, Resume::On(0))?;
            }
            Event::Ended(_, Exit::Status(0)) if what != Tracing::Both || was_stopped => return Ok(()),
            Event::Ended(_, Exit::Status(status)) if status >= FILTER_REFUSED => {
                return Err(refused("filter", status - FILTER_REFUSED));
            }
            Event::Interrupted => {}
            Event::Ended(..) | Event::NoChildren => {
                let source = io::Error::other("the child did not stop");
                return Err(SysError::new("see", "a filtered system call", source));
            }
        }
    }
}

fn refused(subject: &str, errno: i32) -> SysError {
    SysError::new("use", subject, io::Error::from_raw_os_error(errno))
}

/// Waits until it is traced, where it is to be.
fn filtered_child(what: Tracing, go: std::os::fd::OwnedFd) -> ! {
    use std::os::fd::AsFd;
    let _ = crate::security::set_parent_death_signal(signal::KILL);
    let _ = crate::fd::read(go.as_fd(), &mut [0]); // the end is the signal to go on
    let installed = if what == Tracing::Ptrace {
        Ok(())
    } else {
        security::forbid_new_privileges().and_then(|()| security::install_filter(&filter()))
    };
    let status = match installed {
        Ok(()) => {
            // the filter stops it for the tracer; without one it fails
            let _ = crate::process::new_session();
            0
        }
        Err(error) => FILTER_REFUSED + error.os_error(),
    };
    crate::process::exit_now(status)
}

/// setsid(2) stops for the tracer, everything else goes on (seccomp(2), SECCOMP_RET_TRACE).
fn filter() -> [Instruction; 4] {
    let one = |code, yes, no, k| Instruction {
        code: code as u16,
        yes,
        no,
        k,
    };
    [
        one(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        one(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_setsid as u32,
        ),
        one(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_TRACE),
        one(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
