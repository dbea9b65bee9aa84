//! A trial of tracing: what this kernel lets us do, found out by doing it, with what tracing itself uses. Call it in a
//! process that ends afterwards.

use std::io;

use crate::bpf::{self, Instruction};
use crate::error::{Result, SysError};
use crate::process::{Exit, Fork, Namespaces};
use crate::ptrace::{self, Event, Resume, Stop};
use crate::security;
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
    follow(what, child, &mut Child { pid: child })
}

/// What happens to a traced child, and what is done about it: by the kernel, or by one as a test remembers it.
trait Traced {
    fn wait(&mut self) -> Result<Event>;
    fn resume(&mut self, how: Resume) -> Result<()>;
    /// what its registers hold as the result of its system call
    fn result(&mut self) -> Result<Option<i64>>;
}

struct Child {
    pid: i32,
}

impl Traced for Child {
    fn wait(&mut self) -> Result<Event> {
        ptrace::wait()
    }

    fn resume(&mut self, how: Resume) -> Result<()> {
        ptrace::resume(self.pid, how)
    }

    fn result(&mut self) -> Result<Option<i64>> {
        Ok(ptrace::registers(self.pid)?.map(|registers| registers.result()))
    }
}

/// From the filter's stop a child that is to go on to the end of its call has to be there at its next stop: before
/// Linux 4.8 it is only at the call's begin (ptrace(2), "PTRACE_EVENT_SECCOMP stops"), and what is taken for the result
/// is not one. The filtered call is setsid(2), which gives the child's number.
fn follow(what: Tracing, child: i32, traced: &mut impl Traced) -> Result<()> {
    let (mut at_call, mut was_stopped) = (false, false);
    loop {
        match traced.wait()? {
            Event::Stopped(_, Stop::Event(ptrace::EVENT_SECCOMP)) => {
                at_call = true;
                traced.resume(Resume::ToCallEnd(0))?;
            }
            Event::Stopped(_, Stop::Call) if at_call => {
                if traced.result()? != Some(child.into()) {
                    crate::child::end(child);
                    let source = io::Error::other("it stops at its begin, as on kernels before 4.8");
                    return Err(SysError::new("see", "the end of a filtered system call", source));
                }
                (at_call, was_stopped) = (false, true);
                traced.resume(Resume::On(0))?;
            }
            Event::Stopped(..) => traced.resume(Resume::On(0))?,
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
    [
        bpf::load(bpf::NUMBER_AT),
        bpf::equal(libc::SYS_setsid as u32, 0, 1),
        bpf::answer(libc::SECCOMP_RET_TRACE),
        bpf::answer(libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that lets a filter stop a call before or after the tracer sees its begin.
    struct Double {
        filter_first: bool,
        /// where the child stands: 0 nowhere, 1 filtered, 2 at the begin of the call, 3 at its end
        at: u32,
    }

    /// The number of no process: the trial may end it.
    const CHILD: i32 = i32::MAX;

    impl Traced for Double {
        fn wait(&mut self) -> Result<Event> {
            let stop = match self.at {
                0 => Stop::Event(ptrace::EVENT_SECCOMP),
                2 | 3 => Stop::Call,
                _ => return Ok(Event::Ended(CHILD, Exit::Status(0))),
            };
            self.at = self.at.max(1);
            Ok(Event::Stopped(CHILD, stop))
        }

        fn resume(&mut self, how: Resume) -> Result<()> {
            self.at = match (self.at, how) {
                (1, Resume::ToCallEnd(_)) if self.filter_first => 2,
                (1 | 2, Resume::ToCallEnd(_)) => 3,
                _ => 4,
            };
            Ok(())
        }

        fn result(&mut self) -> Result<Option<i64>> {
            let nothing_yet = i64::from(-libc::ENOSYS);
            Ok(Some(if self.at == 3 { CHILD.into() } else { nothing_yet }))
        }
    }

    #[test]
    fn a_kernel_that_filters_before_the_begin_of_a_call_is_refused_with_a_sentence() {
        let on = |filter_first| follow(Tracing::Both, CHILD, &mut Double { filter_first, at: 0 });
        assert!(on(false).is_ok());
        let error = on(true).unwrap_err();
        assert!(error.source.to_string().contains("before 4.8"), "{error:?}");
    }
}
