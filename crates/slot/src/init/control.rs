//! The init's end of the socket to the pilot, and the Done messages that are put together before they go there.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

use tidemill_sys::framed::Framed;

use crate::codec::{self, Downward, Upward};
use crate::{Done, FromSlot, ToSlot};

/// While more than this waits for the pilot, nothing new is started.
const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// Longest time that Done messages wait to be joined with others.
const JOIN_US: u64 = 50_000;
/// Done messages of different ranges that wait at once.
const JOIN_MAX: usize = 64;

/// Messages from and to the pilot.
pub(crate) struct Control {
    socket: Framed,
    pub inbox: VecDeque<Downward>,
    /// the pilot is gone, or wrote what cannot be read
    pub closed: bool,
}

impl Control {
    pub fn new(socket: OwnedFd) -> Self {
        Control {
            socket: Framed::new(socket),
            inbox: VecDeque::new(),
            closed: false,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Moves what has arrived into the inbox. What cannot be read ends the slot, and the pilot gets the reason.
    pub fn receive(&mut self) {
        if self.closed {
            return;
        }
        match self.socket.receive() {
            Ok(open) => self.closed = !open,
            Err(error) => return self.give_up(&format!("failed to read from its pilot: {error}")),
        }
        loop {
            match self.socket.next(codec::get) {
                Ok(Some(message)) => self.inbox.push_back(message),
                Ok(None) => return,
                Err(garbled) => {
                    return self.give_up(&format!(
                        "its pilot sent a message that cannot be read: {garbled}"
                    ));
                }
            }
        }
    }

    fn give_up(&mut self, reason: &str) {
        self.closed = true;
        self.refuse(reason.to_owned());
    }

    /// Has something arrived that a long copy must not hold up?
    pub fn urgent(&mut self) -> bool {
        self.receive();
        let stops = |message: &Downward| {
            matches!(
                message,
                Downward::Pilot(ToSlot::Stop | ToSlot::CancelJob { .. } | ToSlot::CancelEvents { .. })
            )
        };
        self.closed || self.inbox.iter().any(stops)
    }

    pub fn put(&mut self, message: FromSlot) {
        codec::put(&mut self.socket.output(), &Upward::Slot(message));
    }

    pub fn refuse(&mut self, reason: String) {
        codec::put(&mut self.socket.output(), &Upward::Refused(reason));
    }

    pub fn wants_write(&self) -> bool {
        self.socket.pending() > 0
    }

    pub fn overfull(&self) -> bool {
        self.socket.pending() > BACKLOG_BYTES_MAX
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        self.closed |= self.socket.flush().is_err();
    }
}

/// Done messages that may still grow, or wait for what was used in the meantime.
#[derive(Default)]
pub(crate) struct Joiner {
    waiting: Vec<Done>,
    since_us: u64,
}

impl Joiner {
    /// Adds a Done. True when it is time to `take_all`.
    pub fn add(&mut self, done: Done, now_us: u64) -> bool {
        if self.waiting.is_empty() {
            self.since_us = now_us;
        }
        match self.waiting.iter_mut().rev().find(|each| joins(each, &done)) {
            Some(each) => join(each, &done),
            None => self.waiting.push(done),
        }
        self.waiting.len() >= JOIN_MAX || now_us >= self.since_us + JOIN_US
    }

    pub fn take_all(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.waiting)
    }

    /// Takes all but the newest, which what was used can still be added to.
    pub fn take_older(&mut self) -> Vec<Done> {
        match self.waiting.pop() {
            None => Vec::new(),
            Some(newest) => std::mem::replace(&mut self.waiting, vec![newest]),
        }
    }

    /// Where what was used in the meantime can be added.
    pub fn last(&mut self) -> Option<&mut Done> {
        self.waiting.last_mut()
    }

    pub fn due_us(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.since_us + JOIN_US)
    }
}

/// Whether a Done has nothing that is its own.
pub(crate) fn is_plain(done: &Done) -> bool {
    done.outputs.is_empty() && done.stdout.is_empty() && done.stderr.is_empty()
}

fn joins(each: &Done, next: &Done) -> bool {
    is_plain(each) && is_plain(next) && each.ticket == next.ticket && each.first + each.count == next.first
}

fn join(each: &mut Done, next: &Done) {
    each.count += next.count;
    each.payloads += next.payloads;
    each.ended_us = next.ended_us;
    each.wall_us += next.wall_us;
    each.setup_us += next.setup_us;
    each.user_us += next.user_us;
    each.system_us += next.system_us;
    each.rss_kb = each.rss_kb.max(next.rss_kb);
    for (sum, more) in [
        (&mut each.read_bytes, next.read_bytes),
        (&mut each.write_bytes, next.write_bytes),
    ] {
        if let Some(more) = more {
            *sum = Some(sum.unwrap_or(0) + more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotOutput;

    fn done(ticket: u64, first: u64, count: u64) -> Done {
        Done {
            ticket,
            first,
            count,
            payloads: 1,
            wall_us: 5,
            ..Done::default()
        }
    }

    #[test]
    fn a_message_that_cannot_be_read_closes_the_connection_with_the_reason() {
        use tidemill_sys::socket;

        let (pilots, slots) = socket::stream_pair().unwrap();
        let (mut pilot, mut control) = (Framed::new(pilots), Control::new(slots));
        pilot.output().extend_from_slice(&[1, 0, 0, 0, 250]); // a frame of one byte that no message begins with
        pilot.flush().unwrap();
        control.receive();
        control.flush();
        assert!(control.closed);
        assert!(pilot.receive().unwrap());
        match pilot.next(codec::get) {
            Ok(Some(Upward::Refused(reason))) => assert!(reason.contains("cannot be read"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn neighbours_of_one_ticket_are_joined_and_others_are_not() {
        let mut joiner = Joiner::default();
        assert!(!joiner.add(done(1, 0, 1), 0));
        assert!(!joiner.add(done(1, 5, 1), 0));
        assert!(!joiner.add(done(2, 1, 1), 0));
        assert!(!joiner.add(done(1, 1, 2), 0));
        assert!(joiner.add(done(1, 6, 1), JOIN_US));
        let all: Vec<_> = joiner
            .take_all()
            .iter()
            .map(|d| (d.ticket, d.first, d.count, d.payloads))
            .collect();
        assert_eq!(all, [(1, 0, 3, 2), (1, 5, 2, 2), (2, 1, 1, 1)]);
        assert_eq!(joiner.due_us(), None);
    }

    #[test]
    fn outputs_are_never_joined_and_the_newest_can_stay() {
        let mut joiner = Joiner::default();
        for first in 0..3 {
            let outputs = vec![SlotOutput::default()];
            joiner.add(
                Done {
                    outputs,
                    ..done(1, first, 1)
                },
                0,
            );
        }
        let firsts = |all: Vec<Done>| all.iter().map(|done| done.first).collect::<Vec<_>>();
        assert_eq!(firsts(joiner.take_older()), [0, 1]);
        assert_eq!(firsts(joiner.take_all()), [2]);
        assert!(joiner.take_older().is_empty());
    }
}
