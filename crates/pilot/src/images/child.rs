//! Long work in a separate process: a fork of the pilot that reports progress as lines of JSON and dies with the pilot.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use serde_json::{json, Value};
use tidemill_sys::child;
use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_wire::{Fill, LineBuffer};

const LINE_BYTES_MAX: usize = 64 << 10;

/// The child's end.
pub struct Teller(OwnedFd);

impl Teller {
    /// Send a message to the pilot.
    pub fn tell(&self, message: &Value) {
        let mut line = message.to_string();
        line.push('\n');
        let _ = fd::write(self.0.as_fd(), line.as_bytes()); // a failed write means that the pilot is dead
    }

    /// Sleep for `time_us`; false when the pilot is gone.
    pub fn sleep(&self, time_us: u64) -> bool {
        let mut polls = [Poll::new(self.0.as_fd(), 0)];
        fd::poll(&mut polls, Some(time_us)).is_ok() && !polls[0].readable()
    }

    /// Sleep until `watched` is readable; false when the pilot is gone.
    pub fn wait(&self, watched: BorrowedFd<'_>) -> bool {
        let mut polls = [Poll::new(watched, READABLE), Poll::new(self.0.as_fd(), 0)];
        fd::poll(&mut polls, None).is_ok() && !polls[1].readable()
    }
}

/// The pilot's end.
pub struct Child {
    pid: i32,
    from: File,
    lines: LineBuffer,
    closed: bool,
}

impl Child {
    /// Run `work` in a child. It has our memory and mounts, none of our descriptors.
    pub fn start(work: impl FnOnce(&Teller)) -> Result<Self, String> {
        let wrong = |error| tidemill_wire::log::cause(&error);
        let (from, to) = fd::pipe().map_err(wrong)?;
        fd::set_nonblocking(from.as_fd(), true).map_err(wrong)?;
        let teller = Teller(to);
        let pid = child::start(&[teller.0.as_raw_fd()], || work(&teller)).map_err(wrong)?;
        Ok(Child {
            pid,
            from: File::from(from),
            lines: LineBuffer::new(LINE_BYTES_MAX),
            closed: false,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// The messages since the last call; never blocks. An invalid message becomes a failure and closes the connection.
    pub fn hear(&mut self) -> Vec<Value> {
        let mut told = Vec::new();
        while !self.closed {
            let fill = self.lines.fill(&mut self.from);
            while let Some(line) = self.lines.next_line() {
                match serde_json::from_slice::<Value>(line) {
                    Ok(value) => told.push(value),
                    Err(error) => {
                        self.closed = true;
                        told.push(json!({ "failed": format!("it sent an invalid message: {error}") }));
                        return told;
                    }
                }
            }
            match fill {
                Ok(Fill::Open(0)) => break,
                Ok(Fill::Open(_)) => {}
                Ok(Fill::Closed) => self.closed = true,
                Err(error) => {
                    self.closed = true;
                    told.push(json!({ "failed": tidemill_wire::log::cause(&error) }));
                }
            }
        }
        told
    }

    /// Whether it has ended, or cannot say anything any more.
    pub fn is_over(&self) -> bool {
        self.closed
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        child::end(self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_read_ends_the_child_with_a_cause() {
        let (from, to) = fd::pipe().unwrap();
        fd::set_nonblocking(from.as_fd(), true).unwrap();
        fd::write(to.as_fd(), b"{\"fetched\": 1}\n{\"sho\n{\"shown\": \"fuse\"}\n").unwrap();
        let mut child = Child {
            pid: i32::MAX, // no such process
            from: File::from(from),
            lines: LineBuffer::new(LINE_BYTES_MAX),
            closed: false,
        };
        let told = child.hear();
        assert_eq!(told.len(), 2);
        let cause = told[1]["failed"].as_str().unwrap();
        assert!(cause.contains("invalid message"), "{cause}");
        assert!(child.is_over() && child.hear().is_empty());
    }
}
