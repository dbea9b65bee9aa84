//! A persistent payload's side of the range protocol: pipes, what it asked for, what it was given. Decides nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tidemill_sys::fd;
use tidemill_wire::intervals::Intervals;

use crate::protocol::{Line, LINE_BYTES_MAX};
use crate::queue::Events;

/// Requests that may be outstanding.
const ASKED_MAX: usize = 4096;
/// Bytes read from a payload before others get their turn.
const READ_BYTES: usize = 256 << 10;

/// A message that repeats an earlier one is cut to this many bytes.
const AGAIN_BYTES_MAX: usize = 256;

/// A range that was given to a payload.
#[derive(Debug)]
struct Given {
    events: Events,
    /// what is neither done nor failed
    left: Intervals,
    given_us: u64,
    /// when a piece of it was last reported
    last_us: u64,
}

/// What `settle` returns about a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub events: Events,
    pub wall_us: u64,
    /// the range is over: its events, and how long it took
    pub whole: Option<(u64, u64, u64)>,
}

/// The protocol with one process.
pub(crate) struct Talk {
    to: OwnedFd,
    from: Option<OwnedFd>,
    input: Vec<u8>,
    output: Vec<u8>,
    pub ready: bool,
    pub asked: VecDeque<Option<u64>>,
    given: Vec<Given>,
    /// when `end` was sent
    pub ended_us: Option<u64>,
    /// when a range was last given to an idle payload, or the payload last said anything
    pub progress_us: u64,
    /// has it ever taken a range?
    pub took: bool,
    /// first and last event given
    pub span: Option<Events>,
    last_settled_us: u64,
    serial: bool,
    last_failure: Option<LastFailure>,
}

/// What the last `failed` of a payload said, so that a range whose events all fail for one reason says it once.
struct LastFailure {
    event: u64,
    message: String,
    printed: u64,
}

impl Talk {
    /// `serial`: the payload works on one range at a time (one core).
    pub fn new(to: OwnedFd, from: OwnedFd, serial: bool, now_us: u64) -> Self {
        Talk {
            to,
            from: Some(from),
            input: Vec::new(),
            output: Vec::new(),
            ready: false,
            asked: VecDeque::new(),
            given: Vec::new(),
            ended_us: None,
            progress_us: now_us,
            took: false,
            span: None,
            last_settled_us: now_us,
            serial,
            last_failure: None,
        }
    }

    /// Returns what to report of a failed event: its message, and the end of stderr, of which `printed` bytes have
    /// come. Where an earlier event said the same, that event is named instead.
    pub fn failure(
        &mut self,
        event: u64,
        message: String,
        (printed, last): (u64, impl FnOnce() -> Vec<u8>),
    ) -> (String, Vec<u8>) {
        let before = self.last_failure.take();
        let (told, stderr) = match &before {
            Some(before) => (
                said_again(before, &message).unwrap_or_else(|| message.clone()),
                if before.printed == printed && printed > 0 {
                    format!("(nothing was printed since event {} failed)\n", before.event).into_bytes()
                } else {
                    last()
                },
            ),
            None => (message.clone(), last()),
        };
        // the event that said it whole stays the one that is named
        let event = before
            .filter(|before| before.printed == printed && before.message == message)
            .map_or(event, |before| before.event);
        self.last_failure = Some(LastFailure {
            event,
            message,
            printed,
        });
        (told, stderr)
    }

    pub fn to(&self) -> &OwnedFd {
        &self.to
    }

    pub fn from(&self) -> Option<&OwnedFd> {
        self.from.as_ref()
    }

    pub fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// No range is with the payload.
    pub fn idle(&self) -> bool {
        self.given.is_empty()
    }

    /// Events with the payload that are not reported.
    pub fn outstanding(&self) -> u64 {
        self.given.iter().map(|range| range.left.len()).sum()
    }

    /// Events of the largest range with the payload.
    pub fn largest(&self) -> u64 {
        self.given
            .iter()
            .map(|range| range.events.count)
            .max()
            .unwrap_or(0)
    }

    /// Gives a range; the line is written by `flush`.
    pub fn give(&mut self, events: Events, seed: u64, now_us: u64) {
        if self.given.is_empty() {
            self.progress_us = now_us;
        }
        let line = format!("range {} {} {seed}\n", events.first, events.count);
        self.output.extend_from_slice(line.as_bytes());
        let left = Intervals::of(events.first, events.count);
        self.given.push(Given {
            events,
            left,
            given_us: now_us,
            last_us: now_us,
        });
        self.took = true;
        self.span = Some(match self.span {
            None => events,
            Some(span) => {
                let first = span.first.min(events.first);
                Events {
                    first,
                    count: span.end().max(events.end()) - first,
                    ..events
                }
            }
        });
    }

    /// Tells the payload that there is no more; once.
    pub fn end(&mut self, now_us: u64) {
        if self.ended_us.is_none() {
            self.output.extend_from_slice(b"end\n");
            self.ended_us = Some(now_us);
        }
        self.asked.clear();
    }

    /// Writes what the pipe takes. A closed pipe is not an error here: the payload's end will show.
    pub fn flush(&mut self) {
        while !self.output.is_empty() {
            match fd::write(self.to.as_fd(), &self.output) {
                Ok(put) => drop(self.output.drain(..put)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.output.clear(),
            }
        }
    }

    /// Reads what is there, up to a limit; true when there may be more.
    pub fn read(&mut self, buffer: &mut [u8]) -> bool {
        let mut total = 0;
        while let Some(from) = &self.from {
            match fd::read(from.as_fd(), buffer) {
                Ok(0) => self.from = None,
                Ok(got) => {
                    self.input.extend_from_slice(&buffer[..got]);
                    total += got;
                    if total >= READ_BYTES {
                        return true;
                    }
                    if got < buffer.len() {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Takes the lines that have been read whole. The error quotes a line that is wrong; what follows it is dropped.
    pub fn lines(
        &mut self,
        each: &mut dyn FnMut(&mut Talk, Line) -> Result<(), String>,
    ) -> Result<(), String> {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(length) = input[at..].iter().position(|&byte| byte == b'\n') {
            let line = &input[at..at + length];
            at += length + 1;
            let parsed = Line::parse(line).map_err(str::to_owned);
            parsed
                .and_then(|parsed| each(self, parsed))
                .map_err(|what| wrong(line, &what))?;
        }
        let rest = &input[at..];
        if rest.len() > LINE_BYTES_MAX {
            return Err(wrong(rest, "a line that is too long"));
        }
        self.input = rest.to_vec();
        Ok(())
    }

    /// Notes a request for a range.
    pub fn ask(&mut self, events_max: Option<u64>) -> Result<(), String> {
        if self.asked.len() >= ASKED_MAX {
            return Err(format!("more than {ASKED_MAX} ranges asked for"));
        }
        if self.ended_us.is_none() {
            self.asked.push_back(events_max);
        }
        Ok(())
    }

    /// Takes `first..first + count` off the range that holds it.
    pub fn settle(&mut self, first: u64, count: u64, now_us: u64) -> Result<Settled, String> {
        let end = first.checked_add(count).ok_or("numbers too large")?;
        let at = self.given.iter().position(|range| range.left.holds(first, end));
        let Some(at) = at else {
            return Err("these events were not given to it, or are reported already".to_owned());
        };
        let range = &mut self.given[at];
        range.left.remove(first, end);
        // a payload that asks ahead has the next range waiting in its pipe: that time is not the range's
        let began = if self.serial {
            range.last_us.max(self.last_settled_us)
        } else {
            range.last_us
        };
        let wall_us = now_us.saturating_sub(began);
        range.last_us = now_us;
        self.last_settled_us = now_us;
        self.progress_us = now_us;
        let events = Events {
            first,
            count,
            ..range.events
        };
        let mut whole = None;
        if range.left.is_empty() {
            let range = self.given.remove(at);
            whole = Some((range.events.first, range.events.count, now_us - range.given_us));
        }
        Ok(Settled {
            events,
            wall_us,
            whole,
        })
    }

    /// Everything that was given and not reported.
    pub fn take_left(&mut self) -> Vec<Events> {
        let given = std::mem::take(&mut self.given);
        given.iter().flat_map(Given::left).collect()
    }

    /// What was given and has no answer.
    pub fn left(&self) -> impl Iterator<Item = Events> + '_ {
        self.given.iter().flat_map(Given::left)
    }

    /// What is left of the oldest range: where the payload most likely was.
    pub fn take_oldest_left(&mut self) -> Vec<Events> {
        if self.given.is_empty() {
            return Vec::new();
        }
        self.given.remove(0).left().collect()
    }
}

impl Given {
    fn left(&self) -> impl Iterator<Item = Events> + '_ {
        self.left.spans().iter().map(|&(first, end)| Events {
            first,
            count: end - first,
            ..self.events
        })
    }
}

/// A long message that an event before gave too.
fn said_again(before: &LastFailure, message: &str) -> Option<String> {
    if before.message != message || message.len() <= AGAIN_BYTES_MAX {
        return None;
    }
    let mut at = AGAIN_BYTES_MAX;
    while !message.is_char_boundary(at) {
        at -= 1;
    }
    Some(format!("{} ... (as event {})", &message[..at], before.event))
}

fn wrong(line: &[u8], what: &str) -> String {
    let cut = &line[..line.len().min(200)];
    let dots = if cut.len() < line.len() { "..." } else { "" };
    format!("protocol error: `{}{dots}`: {what}", String::from_utf8_lossy(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> Talk {
        let ((_, to), (from, _)) = (fd::pipe().unwrap(), fd::pipe().unwrap());
        Talk::new(to, from, true, 0)
    }

    fn events(ticket: u64, first: u64, count: u64) -> Events {
        Events {
            ticket,
            job: 1,
            first,
            count,
        }
    }

    #[test]
    fn pieces_of_a_range_come_in_any_order_and_size_and_never_twice() {
        let mut talk = talk();
        talk.give(events(7, 10, 10), 1, 0);
        assert_eq!(talk.settle(12, 3, 100).unwrap().whole, None);
        assert_eq!(talk.settle(10, 2, 150).unwrap().wall_us, 50);
        assert!(talk.settle(11, 1, 150).is_err());
        assert!(talk.settle(19, 2, 150).is_err());
        assert_eq!(talk.outstanding(), 5);
        let last = talk.settle(15, 5, 300).unwrap();
        assert_eq!((last.events, last.whole), (events(7, 15, 5), Some((10, 10, 300))));
        assert!(talk.idle());
    }

    #[test]
    fn what_is_left_is_only_what_was_not_reported() {
        let mut talk = talk();
        talk.give(events(7, 0, 10), 1, 0);
        talk.give(events(8, 20, 2), 1, 0);
        talk.settle(3, 4, 1).unwrap();
        assert_eq!(talk.take_oldest_left(), [events(7, 0, 3), events(7, 7, 3)]);
        talk.give(events(9, 30, 1), 1, 0);
        assert_eq!(talk.take_left(), [events(8, 20, 2), events(9, 30, 1)]);
        assert!(talk.take_oldest_left().is_empty());
    }
}
