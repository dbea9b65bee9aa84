//! Children that do a part of our work, and how any child is ended: without waiting for one that the kernel holds.

use std::os::fd::RawFd;

use crate::error::Result;
use crate::process::{self, Fork, Namespaces, Waited};
use crate::{fd, security, signal, time};

/// Time to wait for a killed child, or for one with a short task. Usually it has ended within a millisecond.
const END_US: u64 = 200_000;
const LOOK_US: u64 = 1_000;

/// Runs `work` in a child and returns its number. The child has our memory and mounts, of our descriptors `kept` and 0
/// to 2, and no namespaces of its own; signals that batch systems send to all processes have no effect on it, and it
/// dies with us.
pub fn start(kept: &[RawFd], work: impl FnOnce()) -> Result<i32> {
    let parent = process::id();
    match process::fork(Namespaces::NONE)? {
        Fork::Parent { child } => Ok(child),
        Fork::Child => {
            let prepared = signal::reset_all()
                .and_then(|()| signal::shrug_off(&signal::SENT_TO_ALL))
                .and_then(|()| security::set_parent_death_signal(signal::KILL))
                .and_then(|()| fd::close_from(3, kept));
            if prepared.is_ok() && process::parent_id() == parent {
                work();
            }
            process::exit_now(0)
        }
    }
}

/// As `start`, for work that is usually short: None when it is done, else the child that is still running, for which
/// the caller must wait later.
pub fn aside(kept: &[RawFd], work: impl FnOnce()) -> Result<Option<i32>> {
    let pid = start(kept, work)?;
    Ok((wait_at_most(pid, END_US)? == Waited::Running).then_some(pid))
}

/// Waits for the end of a child, for at most `limit_us`: `Running` when it has not ended by then.
pub fn wait_at_most(pid: i32, limit_us: u64) -> Result<Waited> {
    let end_us = time::monotonic_us() + limit_us;
    loop {
        let waited = process::wait(pid, false)?;
        if waited != Waited::Running || time::monotonic_us() >= end_us {
            return Ok(waited);
        }
        fd::poll(&mut [], Some(LOOK_US))?;
    }
}

/// Whether a child has not ended yet; one that has is waited for with this. Never waits itself.
pub fn still_runs(pid: i32) -> bool {
    matches!(process::wait(pid, false), Ok(Waited::Running))
}

/// Lets a child end by itself for a moment: how it ended, `Running` when it has not.
pub fn wait_a_moment(pid: i32) -> Result<Waited> {
    wait_at_most(pid, END_US)
}

/// Kills a child and takes it away; false where the kernel holds it (it hangs in a file system): it ends when that lets
/// go of it, and is then there to be waited for until we end.
pub fn end(pid: i32) -> bool {
    if still_runs(pid) {
        let _ = signal::kill(pid, signal::KILL); // it may have ended just now
    }
    !matches!(wait_a_moment(pid), Ok(Waited::Running))
}
