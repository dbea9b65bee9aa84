//! A child that makes the calls that may hang or take long, those on shared file systems first of all, so that its
//! parent waits only for sockets.
//!
//! A message is a frame: JSON, a newline, a body of bytes. Descriptors and cancellations use sockets of their own. The
//! child is a process and not a thread because slots are forked, and because a thread that blocks in the kernel would
//! also keep the parent from ending. This module does not know what the calls do.

use std::ffi::CStr;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;
use serde::Serialize;
use tidemill_sys::fd::{self, Poll, READABLE, WRITABLE};
use tidemill_sys::framed::{put_frame, read_frame, Framed};
use tidemill_sys::process::{self, Waited};
use tidemill_sys::{child, socket};

use crate::error::WireError;
use crate::log::cause;

/// The parent's side; `A` is what the child answers. Dropping it kills the child and waits for nothing.
pub struct Worker<A> {
    name: String,
    pid: i32,
    socket: Framed,
    /// Where descriptors, and where numbers of cancellations go.
    passing: Option<OwnedFd>,
    calling: Option<OwnedFd>,
    answers: PhantomData<A>,
}

impl<A: DeserializeOwned> Worker<A> {
    /// Fork a child that serves until it or its parent ends; it keeps these descriptors, and memory and mounts. `name`
    /// stands in its /proc/PID/comm. Call while single-threaded.
    pub fn start(name: &'static CStr, kept: &[RawFd], serve: impl FnOnce(Served)) -> Result<Self, WireError> {
        let shown = name.to_string_lossy().into_owned();
        Self::fork(name, kept, serve).map_err(wrong("start", &shown))
    }

    fn fork(name: &'static CStr, kept: &[RawFd], serve: impl FnOnce(Served)) -> io::Result<Self> {
        let pair = || socket::stream_pair().map_err(|error| error.source);
        let ((ours, theirs), (passing, passed), (calling, called)) = (pair()?, pair()?, pair()?);
        let mut all = kept.to_vec();
        all.extend([&theirs, &passed, &called].map(AsRawFd::as_raw_fd));
        let served = Served {
            passed: Some(passed),
            called: Some(called),
            ..Served::new(theirs.into())
        };
        let work = || {
            process::set_name(name);
            serve(served);
        };
        let pid = child::start(&all, work).map_err(|error| error.source)?;
        let mut worker = Worker::of(name.to_string_lossy().into_owned(), pid, ours);
        (worker.passing, worker.calling) = (Some(passing), Some(calling));
        Ok(worker)
    }

    /// Start this program with another verb, which finds its socket at descriptor 0.
    pub fn execute(verb: &str) -> Result<Self, WireError> {
        let name = format!("tidemill-node {verb}");
        let start = || {
            let (ours, theirs) = socket::stream_pair().map_err(|error| error.source)?;
            let mut command = Command::new("/proc/self/exe");
            command.arg(verb).stdin(Stdio::from(theirs)).stdout(Stdio::null());
            io::Result::Ok((command.spawn()?, ours))
        };
        let (child, ours) = start().map_err(wrong("start", &name))?;
        Ok(Worker::of(name, child.id() as i32, ours))
    }

    fn of(name: String, pid: i32, socket: OwnedFd) -> Self {
        Worker {
            name,
            pid,
            socket: Framed::new(socket),
            passing: None,
            calling: None,
            answers: PhantomData,
        }
    }

    pub fn poll(&self) -> Poll {
        let writes = if self.socket.pending() > 0 { WRITABLE } else { 0 };
        Poll::new(self.socket.fd(), READABLE | writes)
    }

    /// Queue a request and send what the socket takes. A child that is gone is heard of by `hear`.
    pub fn send(&mut self, request: &impl Serialize, body: &[u8]) -> Result<(), WireError> {
        put(&mut self.socket.output(), request, body).map_err(wrong("ask", &self.name))?;
        self.flush();
        Ok(())
    }

    fn flush(&self) {
        let _ = self.socket.flush(); // `hear` reports a child that has died
    }

    /// Pass the child a descriptor, which belongs to the next request that needs one. The socket holds a few hundred,
    /// so keep no more than a few tens in transit.
    pub fn pass(&mut self, descriptor: BorrowedFd<'_>) {
        if let Some(passing) = &self.passing {
            let _ = socket::send_descriptor(passing.as_fd(), descriptor); // as above
        }
    }

    /// Ask the child to cancel the request with this number.
    pub fn call_off(&mut self, number: u64) {
        if let Some(calling) = &self.calling {
            let _ = socket::send(calling.as_fd(), &number.to_le_bytes()); // as above
        }
    }

    /// What it has answered since; never waits. Err: it is gone, and how.
    pub fn hear(&mut self) -> Result<Vec<A>, String> {
        self.flush();
        let is_open = self.socket.receive().unwrap_or(false);
        let mut answers = Vec::new();
        let next = |socket: &mut Framed| socket.next(|content| Ok(serde_json::from_slice(head(content))?));
        loop {
            match next(&mut self.socket) {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) if is_open || !answers.is_empty() => return Ok(answers),
                Ok(None) => return Err(self.how_it_ended()),
                Err(error) => {
                    return Err(format!(
                        "the process `{}` sent an invalid answer: {error}",
                        self.name
                    ))
                }
            }
        }
    }

    fn how_it_ended(&self) -> String {
        let how = match child::wait_a_moment(self.pid) {
            Ok(Waited::Ended { exit, .. }) => format!("ended with {exit}"),
            Ok(Waited::Running) => String::from("hung up and has not ended"),
            Ok(Waited::NoChildren) => String::from("is gone"),
            Err(error) => format!("is gone: {}", cause(&error)),
        };
        format!("the process `{}` {how}", self.name)
    }
}

impl<A> Drop for Worker<A> {
    fn drop(&mut self) {
        // a child that blocks in the kernel ends when its file system answers; nothing waits for that
        child::end(self.pid);
    }
}

/// The child's side, which may block.
pub struct Served {
    socket: UnixStream,
    passed: Option<OwnedFd>,
    called: Option<OwnedFd>,
}

impl Served {
    /// Of a socket to the parent, or in a test to the child.
    pub fn new(socket: UnixStream) -> Self {
        Served {
            socket,
            passed: None,
            called: None,
        }
    }

    /// The next request and its body; None when the parent is gone.
    pub fn request<Q: DeserializeOwned>(&mut self) -> io::Result<Option<(Q, Vec<u8>)>> {
        let Some(mut content) = read_frame(&mut self.socket)? else {
            return Ok(None);
        };
        let length = head(&content).len();
        let request = serde_json::from_slice(&content[..length])?;
        content.drain(..content.len().min(length + 1));
        Ok(Some((request, content)))
    }

    /// Answer each request with what `work` makes of it and its body, until the parent is gone.
    pub fn answer_all<Q: DeserializeOwned, A: Serialize>(&mut self, mut work: impl FnMut(Q, Vec<u8>) -> A) {
        while let Ok(Some((request, body))) = self.request() {
            if !self.answer(&work(request, body)) {
                return;
            }
        }
    }

    /// Whether the parent took the answer.
    pub fn answer(&mut self, answer: &impl Serialize) -> bool {
        let mut out = Vec::new();
        put(&mut out, answer, &[])
            .and_then(|()| self.socket.write_all(&out))
            .is_ok()
    }

    /// The next descriptor that was passed.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        let passed = self.passed.as_ref()?;
        socket::receive_descriptor(passed.as_fd()).ok().flatten()
    }

    /// Whether the work of this number was called off.
    pub fn is_called_off(&self, number: u64) -> bool {
        let mut bytes = [0; 8];
        let Some(called) = &self.called else { return false };
        while let Ok(8) = socket::receive(called.as_fd(), &mut bytes) {
            if u64::from_le_bytes(bytes) == number {
                return true;
            }
        }
        false
    }

    /// Sleep for `time_us`; false when the parent, which asks nothing meanwhile, is gone.
    pub fn sleep(&self, time_us: u64) -> bool {
        let mut polls = [Poll::new(self.socket.as_fd(), 0)];
        fd::poll(&mut polls, Some(time_us)).is_ok() && !polls[0].readable()
    }

    /// Sleep until `watched` is readable; false when the parent is gone.
    pub fn wait(&self, watched: BorrowedFd<'_>) -> bool {
        let mut polls = [Poll::new(watched, READABLE), Poll::new(self.socket.as_fd(), 0)];
        fd::poll(&mut polls, None).is_ok() && !polls[1].readable()
    }
}

fn wrong(operation: &'static str, name: &str) -> impl FnOnce(io::Error) -> WireError {
    let name = name.to_owned();
    move |source| WireError::Process {
        operation,
        name,
        source,
    }
}

fn put(out: &mut Vec<u8>, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    put_frame(out, |content| {
        content.extend_from_slice(&head);
        content.push(b'\n');
        content.extend_from_slice(body);
    });
    Ok(())
}

/// The JSON of a message, which holds no newline.
fn head(content: &[u8]) -> &[u8] {
    let end = content.iter().position(|&byte| byte == b'\n');
    &content[..end.unwrap_or(content.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PROCESS: i32 = i32::MAX;

    #[test]
    fn requests_are_answered_in_turn_and_the_end_is_said_behind_the_last_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = std::thread::spawn(move || {
            Served::new(theirs).answer_all(|number: u64, body| number + body.len() as u64);
        });
        let mut worker: Worker<u64> = Worker::of(String::from("x"), NO_PROCESS, ours.into());
        worker.send(&5_u64, b"a\nb").unwrap();
        worker.send(&6_u64, &[]).unwrap();
        worker.send(&"no number", &[]).unwrap();
        child.join().unwrap();
        assert_eq!(worker.hear(), Ok(vec![8, 6]));
        assert_eq!(worker.hear(), Err(String::from("the process `x` is gone")));
    }

    #[test]
    fn an_answer_that_cannot_be_read_ends_the_talk_with_a_cause() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut worker: Worker<u64> = Worker::of(String::from("x"), NO_PROCESS, ours.into());
        for content in [&b"1\n"[..], b"{\"sho\n", b"2\n"] {
            let mut frame = Vec::new();
            put_frame(&mut frame, |into| into.extend_from_slice(content));
            theirs.write_all(&frame).unwrap();
        }
        let cause = worker.hear().unwrap_err();
        assert!(cause.contains("invalid answer"), "{cause}");
    }
}
