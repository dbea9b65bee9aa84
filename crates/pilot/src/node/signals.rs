//! Signals from the batch system or an operator.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tidemill_sys::fd::{self, Poll};
use tidemill_sys::{process, signal};

use super::cgroups::is_below;
use super::system;
use crate::error::{PilotError, LOG};

/// What a signal from the batch system or an operator means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// TERM, INT, HUP: return all work now.
    Yield,
    /// USR1: the walltime is near.
    Finish,
}

/// Signals, as a descriptor to poll.
pub struct Signals {
    pending: OwnedFd,
    /// an ignored signal is in the log already: a payload may send any number
    has_ignored: Cell<bool>,
}

impl Signals {
    /// Block the signals that this pilot handles; call once, at the start.
    pub fn block() -> Result<Self, PilotError> {
        let list = [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGUSR1,
            libc::SIGPIPE,
        ];
        signal::block_only(&list).map_err(system("block signals"))?;
        Ok(Signals {
            pending: signal::descriptor(&list[..4]).map_err(system("watch signals"))?,
            has_ignored: Cell::new(false),
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// Whether a notice waits to be taken.
    pub fn is_pending(&self) -> bool {
        let mut polls = [Poll::new(self.fd(), fd::READABLE)];
        fd::poll(&mut polls, Some(0)).is_ok_and(|ready| ready > 0)
    }

    /// The strongest notice among the pending signals. Signals from a process that the pilot started, such as a payload
    /// without namespaces, are ignored.
    pub fn take(&self) -> Option<Notice> {
        let mut notice = None;
        while let Some((number, sender)) = signal::take_with_sender(self.fd()) {
            if is_below(sender.pid, process::id()) {
                if !self.has_ignored.replace(true) {
                    LOG.warning("signal.ignored", &[("signal", &number), ("pid", &sender.pid)]);
                }
                continue;
            }
            notice = match number {
                libc::SIGUSR1 => notice.or(Some(Notice::Finish)),
                _ => Some(Notice::Yield),
            };
        }
        notice
    }
}
