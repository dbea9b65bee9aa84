//! A child process that makes the calls that may hang, those on shared file systems, so that the pilot waits only for
//! sockets.
//!
//! A message is a JSON head and a body of bytes; descriptors and cancellations use sockets of their own. The child is a
//! process and not a thread because slots are forked, and because a thread that blocks in the kernel would also keep
//! the pilot from ending. This module does not know what the calls do.

use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::Serialize;
use tidemill_sys::fd::{self, Poll, READABLE, WRITABLE};
use tidemill_sys::process::{self, Waited};
use tidemill_sys::{child, socket, SysError};
use tidemill_wire::log::cause;

use crate::error::PilotError;

/// In /proc/PID/comm.
const NAME: &std::ffi::CStr = c"tidemill-files";
/// Lengths of head and body before each message, little-endian.
const LENGTHS: usize = 8;
const READ_BYTES: usize = 64 << 10;

/// The pilot's side; `A` is what the child answers. Dropping it kills the child and waits for nothing.
pub struct Aside<A> {
    pid: i32,
    socket: UnixStream,
    passing: OwnedFd,
    calling: OwnedFd,
    out: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    answers: PhantomData<A>,
}

impl<A: DeserializeOwned> Aside<A> {
    /// Start a child that serves until it or the pilot ends; it keeps these descriptors of the pilot.
    pub fn start(kept: &[RawFd], serve: impl FnOnce(Served)) -> Result<Self, PilotError> {
        let wrong = |error: SysError| PilotError::system("start a process for files")(error.source);
        let (ours, theirs) = socket::stream_pair().map_err(wrong)?;
        let (passing, passed) = socket::stream_pair().map_err(wrong)?;
        let (calling, called) = socket::stream_pair().map_err(wrong)?;
        let mut all = kept.to_vec();
        all.extend([&theirs, &passed, &called].map(AsRawFd::as_raw_fd));
        let served = Served {
            socket: theirs.into(),
            passed,
            called,
        };
        let pid = child::start(&all, || {
            process::set_name(NAME);
            serve(served);
        })
        .map_err(wrong)?;
        fd::set_nonblocking(ours.as_fd(), true).map_err(wrong)?;
        Ok(Aside {
            pid,
            socket: ours.into(),
            passing,
            calling,
            out: Vec::new(),
            sent: 0,
            incoming: Vec::new(),
            answers: PhantomData,
        })
    }

    pub fn poll(&self) -> Poll {
        let writes = if self.sent < self.out.len() { WRITABLE } else { 0 };
        Poll::new(self.socket.as_fd(), READABLE | writes)
    }

    /// Queue a request and send what the socket takes. A child that is gone is heard of by `hear`.
    pub fn send(&mut self, head: &impl Serialize, body: &[u8]) -> Result<(), PilotError> {
        put(&mut self.out, head, body).map_err(PilotError::system("encode a request"))?;
        self.flush();
        Ok(())
    }

    /// Pass the child a descriptor, which belongs to the next request that needs one. The socket holds a few hundred,
    /// so keep no more than a few tens in transit.
    pub fn pass(&mut self, descriptor: BorrowedFd<'_>) {
        let _ = socket::send_descriptor(self.passing.as_fd(), descriptor); // `hear` reports a child that has died
    }

    /// Ask the child to cancel the request with this number.
    pub fn call_off(&mut self, number: u64) {
        let _ = socket::send(self.calling.as_fd(), &number.to_le_bytes());
    }

    fn flush(&mut self) {
        while self.sent < self.out.len() {
            match socket::send(self.socket.as_fd(), &self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(_) => return, // full, or gone
            }
        }
        self.out.clear();
        self.sent = 0;
    }

    /// What it has answered since; never waits. Err: it is gone, and how.
    pub fn hear(&mut self) -> Result<Vec<A>, String> {
        self.flush();
        let mut chunk = [0; READ_BYTES];
        let gone = loop {
            match socket::receive(self.socket.as_fd(), &mut chunk) {
                Ok(0) => break true,
                Ok(count) => self.incoming.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
        };
        let mut answers = Vec::new();
        let mut at = 0;
        while let Some((head, length)) = whole(&self.incoming[at..]) {
            let answer = serde_json::from_slice(head)
                .map_err(|error| format!("the process for files sent an invalid answer: {error}"))?;
            answers.push(answer);
            at += length;
        }
        self.incoming.drain(..at);
        if gone && answers.is_empty() {
            return Err(self.how_it_ended());
        }
        Ok(answers)
    }

    fn how_it_ended(&self) -> String {
        let how = match child::wait_a_moment(self.pid) {
            Ok(Waited::Ended { exit, .. }) => format!("ended with {exit}"),
            Ok(_) => String::from("is gone"),
            Err(error) => format!("is gone: {}", cause(&error)),
        };
        format!("the process for files {how}")
    }
}

impl<A> Drop for Aside<A> {
    fn drop(&mut self) {
        // a child that blocks in the kernel ends when its file system answers; the pilot does not wait for that
        child::end(self.pid);
    }
}

/// The child's side, which may block.
pub struct Served {
    socket: UnixStream,
    passed: OwnedFd,
    called: OwnedFd,
}

impl Served {
    /// One whose answers are read from the other end.
    #[cfg(test)]
    pub fn alone() -> (Self, UnixStream) {
        let (socket, other) = UnixStream::pair().unwrap();
        let ((passed, _), (called, _)) = (socket::stream_pair().unwrap(), socket::stream_pair().unwrap());
        (
            Served {
                socket,
                passed,
                called,
            },
            other,
        )
    }

    /// The answers that stand in these bytes.
    #[cfg(test)]
    pub fn answers<A: DeserializeOwned>(mut bytes: &[u8]) -> Vec<A> {
        let mut found = Vec::new();
        while let Some((head, length)) = whole(bytes) {
            found.push(serde_json::from_slice(head).unwrap());
            bytes = &bytes[length..];
        }
        found
    }

    /// The next request and its body; None when the pilot is gone.
    pub fn next<Q: DeserializeOwned>(&mut self) -> Option<(Q, Vec<u8>)> {
        let mut lengths = [0; LENGTHS];
        self.socket.read_exact(&mut lengths).ok()?;
        let (head, body) = read_lengths(lengths);
        let mut bytes = vec![0; head];
        self.socket.read_exact(&mut bytes).ok()?;
        let request = serde_json::from_slice(&bytes).ok()?;
        let mut bytes = vec![0; body];
        self.socket.read_exact(&mut bytes).ok()?;
        Some((request, bytes))
    }

    /// The next descriptor that was passed.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        socket::receive_descriptor(self.passed.as_fd()).ok().flatten()
    }

    /// Whether the work of this number was called off.
    pub fn is_called_off(&self, number: u64) -> bool {
        let mut bytes = [0; 8];
        while let Ok(8) = socket::receive(self.called.as_fd(), &mut bytes) {
            if u64::from_le_bytes(bytes) == number {
                return true;
            }
        }
        false
    }

    /// Whether the pilot took the answer.
    pub fn answer(&mut self, answer: &impl Serialize) -> bool {
        let mut out = Vec::new();
        put(&mut out, answer, &[])
            .and_then(|()| self.socket.write_all(&out))
            .is_ok()
    }
}

fn put(out: &mut Vec<u8>, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    for length in [head.len(), body.len()] {
        let length = u32::try_from(length).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&head);
    out.extend_from_slice(body);
    Ok(())
}

fn read_lengths(bytes: [u8; LENGTHS]) -> (usize, usize) {
    let [a, b, c, d, e, f, g, h] = bytes;
    (
        u32::from_le_bytes([a, b, c, d]) as usize,
        u32::from_le_bytes([e, f, g, h]) as usize,
    )
}

/// The head of the message at the start of these bytes, and the message's length; None: it is not whole.
fn whole(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let lengths = bytes.first_chunk::<LENGTHS>()?;
    let (head, body) = read_lengths(*lengths);
    let end = LENGTHS + head + body;
    (bytes.len() >= end).then(|| (&bytes[LENGTHS..LENGTHS + head], end))
}
