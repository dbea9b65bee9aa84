//! TERM to the slot's init: the batch system takes the allocation away. It sends the signal to every process of a job,
//! payloads among them, in any order and within a moment; how a payload ends then says nothing about its events.
//!
//! So TERM ends the running payload, and its events run again elsewhere, whatever its status. A failure counts only
//! after a moment, since TERM may reach a payload before its init. Where the batch system signals nothing but the
//! pilot, no TERM comes here: a payload that ends with status 0 before the pilot's order is done.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use tidemill_sys::signal::{self, Sender};
use tidemill_sys::{process, time};

use super::usage::{self, Reach};
use super::Init;
use crate::queue::Events;
use crate::{Failed, FromSlot};

/// Events go back with this reason, and run again on this node unless the pilot leaves.
pub(super) const RUN_AGAIN: &str = "again";
/// A failure counts when no TERM has come for this time: `kill` for each process of a job takes microseconds, and a
/// busy node lets a process wait for some 10 ms.
const HOLD_US: u64 = 100_000;
/// The same for a payload that spans nodes: their batch daemons learn of the end one after the other.
const HOLD_WIDE_US: u64 = 2_000_000;
/// Nothing starts for this time after a TERM: a pilot that leaves says so within milliseconds. If it stays, TERM was
/// not the batch system's, and no later one is believed: a payload whose site gives it no namespaces may have sent it,
/// and would run for ever.
const PAUSE_US: u64 = 2_000_000;
/// What failures that wait may hold; the oldest do not wait when there is more.
const HELD_BYTES_MAX: usize = 8 << 20;
/// Generations above a process.
const ANCESTORS_MAX: usize = 64;
/// Walks over a sender's ancestors while they keep ending.
const WALKS_MAX: usize = 16;

/// Signals that came, and failures that wait for one.
#[derive(Default)]
pub(super) struct Taken {
    /// a child has ended and was not waited for
    pub child_ended: bool,
    /// when TERM came first
    since_us: Option<u64>,
    pause_ends_us: Option<u64>,
    /// when each counts; the oldest first
    held: VecDeque<(u64, Failed)>,
    held_bytes: usize,
}

impl Taken {
    /// Whether a TERM from outside means the allocation; `leaving`: the pilot has ordered a stop.
    fn believes(&mut self, leaving: bool, now_us: u64) -> bool {
        let since_us = *self.since_us.get_or_insert(now_us);
        let ends_us = since_us + PAUSE_US;
        if now_us < ends_us {
            self.pause_ends_us = Some(ends_us);
        }
        leaving || now_us < ends_us
    }

    /// Whether nothing is started now.
    pub fn pauses(&mut self, now_us: u64) -> bool {
        self.pause_ends_us = self.pause_ends_us.filter(|&ends_us| now_us < ends_us);
        self.pause_ends_us.is_some()
    }

    /// When something is to be done: `waits`: there is work that has not started.
    pub fn due_us(&self, waits: bool) -> Option<u64> {
        let held = self.held.front().map(|(due_us, _)| *due_us);
        let start = self.pause_ends_us.filter(|_| waits);
        let reap = self.child_ended.then_some(0);
        [held, start, reap].into_iter().flatten().min()
    }

    fn hold(&mut self, failed: Failed, due_us: u64) {
        self.held_bytes += bytes(&failed);
        self.held.push_back((due_us, failed));
    }

    /// A failure that counts by now.
    fn due(&mut self, now_us: u64) -> Option<Failed> {
        let (due_us, _) = self.held.front()?;
        if *due_us > now_us && self.held_bytes <= HELD_BYTES_MAX {
            return None;
        }
        let (_, failed) = self.held.pop_front()?;
        self.held_bytes -= bytes(&failed);
        Some(failed)
    }

    /// No failure waits.
    pub fn is_settled(&self) -> bool {
        self.held.is_empty()
    }
}

fn bytes(failed: &Failed) -> usize {
    size_of::<Failed>() + failed.stdout.len() + failed.stderr.len() + failed.message.len()
}

impl Init {
    /// Notes the signals that have come. True when the allocation is being taken away: the running payload is to be
    /// killed, and failures that wait have gone back.
    pub(super) fn take_signals(&mut self) -> bool {
        let mut term = false;
        while let Some((number, sender)) = signal::take_with_sender(self.signals.as_fd()) {
            if number == signal::CHILD {
                self.taken.child_ended = true;
            } else {
                term |= self.is_from_outside(sender);
            }
        }
        let now_us = time::monotonic_us();
        if !term || !self.taken.believes(self.draining == Some("yield"), now_us) {
            return false;
        }
        if let Some(payload) = &mut self.payload {
            payload.taken = true;
            payload.recalled.get_or_insert((RUN_AGAIN, now_us));
        }
        self.return_failures(RUN_AGAIN);
        true
    }

    /// Payloads of a slot with namespaces are the only ones there that have a number; others could be anything.
    fn is_from_outside(&self, sender: Sender) -> bool {
        match self.reach {
            Reach::Namespace => sender.is_certain() && sender.pid == 0,
            Reach::Descendants => {
                let me = (process::id(), process::user_and_group().0);
                sender.is_certain() && is_outside(sender.pid, sender.uid, me, usage::parent)
            }
        }
    }

    /// Reports a failure in a moment, unless the allocation is taken away by then.
    pub(super) fn fail(&mut self, mut failed: Failed) {
        let job = self.jobs.get(&failed.job);
        let ways = job.map(|job| job.inputs.ways((failed.first, failed.count)));
        if let Some(ways) = ways.filter(|ways| !ways.is_empty()) {
            failed.message = format!("{}; {ways}", failed.message);
        }
        let now_us = time::monotonic_us();
        if self.taken.pauses(now_us) {
            return self.give_back(events_of(&failed), RUN_AGAIN);
        }
        let is_wide = self.spec.directory.is_some();
        let hold_us = if is_wide { HOLD_WIDE_US } else { HOLD_US };
        self.taken.hold(failed, now_us + hold_us);
    }

    /// Reports the failures that count by now.
    pub(super) fn tell_failures(&mut self, now_us: u64) {
        while let Some(failed) = self.taken.due(now_us) {
            self.control.put(FromSlot::Failed(failed));
        }
    }

    /// Gives the events of failures that do not count back.
    pub(super) fn return_failures(&mut self, reason: &str) {
        while let Some(failed) = self.taken.due(u64::MAX) {
            self.give_back(events_of(&failed), reason);
        }
    }
}

fn events_of(failed: &Failed) -> Events {
    Events {
        ticket: failed.ticket,
        job: failed.job,
        first: failed.first,
        count: failed.count,
    }
}

/// Whether a sender (its number and user) is not among what we started. One that has ended may have been: only user 0,
/// as whom batch daemons run, is believed then. A process above it that cannot be seen is another user's.
fn is_outside(pid: i32, uid: u32, me: (i32, u32), parent: impl Fn(i32) -> Option<i32>) -> bool {
    if pid == 0 || (uid == 0 && me.1 != 0) {
        return true;
    }
    // a payload's processes may end in the middle of a walk: those below them have another parent in the next one
    (0..WALKS_MAX)
        .find_map(|_| leads_outside(pid, me.0, &parent))
        .unwrap_or(false)
}

/// Whether the ancestors of a process lead past `me`; None when one of them ended meanwhile.
fn leads_outside(pid: i32, me: i32, parent: impl Fn(i32) -> Option<i32>) -> Option<bool> {
    let (mut at, mut below) = (pid, None);
    for _ in 0..ANCESTORS_MAX {
        if at == me || at <= 1 {
            return Some(at != me);
        }
        match (parent(at), below) {
            (Some(above), _) => (at, below) = (above, Some(at)),
            (None, None) => return Some(false), // the sender itself has ended
            // one that cannot be seen is still the parent; one that has ended is not
            (None, Some(child)) => return (parent(child) == Some(at)).then_some(true),
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn failed(first: u64, printed: usize) -> Failed {
        Failed {
            first,
            count: 1,
            stdout: vec![b'x'; printed],
            ..Failed::default()
        }
    }

    #[test]
    fn a_failure_counts_after_a_moment_and_at_once_where_too_much_waits() {
        let mut taken = Taken::default();
        assert!(taken.is_settled() && taken.due_us(true).is_none());
        taken.hold(failed(1, 10), 100);
        taken.hold(failed(2, 10), 200);
        assert_eq!((taken.due_us(true), taken.due(99)), (Some(100), None));
        assert_eq!(taken.due(100).map(|failed| failed.first), Some(1));
        assert_eq!(taken.due(100), None);
        taken.hold(failed(3, HELD_BYTES_MAX), 300);
        assert_eq!(taken.due(0).map(|failed| failed.first), Some(2));
        assert_eq!(taken.due(0).map(|failed| failed.first), Some(3));
        assert!(taken.is_settled() && taken.held_bytes == 0);
    }

    #[test]
    fn term_is_believed_once_in_the_life_of_a_slot_whose_pilot_stays() {
        let mut taken = Taken::default();
        assert!(taken.believes(false, 10) && taken.pauses(10));
        assert_eq!(
            (taken.due_us(true), taken.due_us(false)),
            (Some(10 + PAUSE_US), None)
        );
        assert!(taken.believes(false, 9 + PAUSE_US), "sent twice");
        assert!(!taken.pauses(10 + PAUSE_US), "the pilot stays");
        assert!(!taken.believes(false, 10 + PAUSE_US) && !taken.pauses(10 + PAUSE_US));
        assert_eq!(taken.due_us(true), None);
        assert!(taken.believes(true, 20 + PAUSE_US), "it leaves after all");
    }

    #[test]
    fn what_a_slot_started_does_not_speak_for_the_batch_system() {
        let tree = [(50, 40), (40, 7), (7, 3), (3, 1), (9, 3), (8, 2)];
        let parent = |pid: i32| {
            tree.iter()
                .find(|(child, _)| *child == pid)
                .map(|(_, parent)| *parent)
        };
        let outside = |pid: i32, uid: u32| is_outside(pid, uid, (7, 1000), parent);
        assert!(!outside(50, 1000) && !outside(40, 1000), "payloads");
        assert!(!outside(51, 1000), "it has ended");
        assert!(outside(9, 1000) && outside(3, 1000), "an agent, the pilot");
        assert!(outside(8, 1000), "below what cannot be seen");
        assert!(outside(51, 0) && outside(0, 0), "the batch system, the kernel");
        let circle = |_: i32| Some(5);
        assert!(!is_outside(5, 0, (7, 0), circle), "a circle ends");
    }

    #[test]
    fn what_ends_while_one_looks_at_it_does_not_speak_for_the_batch_system() {
        let looks = Cell::new(0);
        let outside = |tree: &dyn Fn(u32, i32) -> Option<i32>| {
            looks.set(0);
            is_outside(50, 1000, (7, 1000), |pid| {
                looks.set(looks.get() + 1);
                tree(looks.get(), pid)
            })
        };
        for end in 1..5 {
            let sender_ends = |look: u32, pid: i32| match pid {
                50 if look > end => None,
                50 => Some(40),
                40 => Some(7),
                _ => None,
            };
            assert!(!outside(&sender_ends), "the sender ended after look {end}");
            let parent_ends = |look: u32, pid: i32| match pid {
                50 if look > end => Some(7),
                50 => Some(40),
                40 if look > end => None,
                40 => Some(7),
                _ => None,
            };
            assert!(!outside(&parent_ends), "its parent ended after look {end}");
        }
        let ever_another = |look: u32, pid: i32| (pid == 50).then_some(look as i32 + 100);
        assert!(!outside(&ever_another), "it is never found");
    }
}
