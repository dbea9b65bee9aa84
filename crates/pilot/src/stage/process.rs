//! The stage of this node: `tidemill-node stage`, a child that ends when its socket does.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use tidemill_stage::{Order, Report};
use tidemill_sys::fd::{Poll, READABLE, WRITABLE};
use tidemill_sys::process::Waited;
use tidemill_sys::{child, socket};
use tidemill_wire::log::cause;
use tidemill_wire::{Fill, LineBuffer, OutBuffer, LINE_BYTES_MAX};

use crate::error::PilotError;

pub struct StageProcess {
    pid: i32,
    socket: UnixStream,
    lines: LineBuffer,
    out: OutBuffer,
}

impl StageProcess {
    /// Start it and give it its first order.
    pub fn start(first: &Order) -> Result<Self, PilotError> {
        let failed =
            |error: tidemill_sys::SysError| PilotError::system("make the stage's socket")(error.source);
        let (ours, theirs) = socket::stream_pair().map_err(failed)?;
        let ours = UnixStream::from(ours);
        ours.set_nonblocking(true)
            .map_err(PilotError::system("make the stage's socket nonblocking"))?;
        let child = Command::new("/proc/self/exe")
            .arg("stage")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(PilotError::system("start the stage"))?;
        let mut stage = StageProcess {
            pid: child.id() as i32,
            socket: ours,
            lines: LineBuffer::new(LINE_BYTES_MAX),
            out: OutBuffer::default(),
        };
        stage.order(first)?;
        Ok(stage)
    }

    pub fn poll(&self) -> Poll {
        let writes = if self.out.pending() > 0 { WRITABLE } else { 0 };
        Poll::new(self.socket.as_fd(), READABLE | writes)
    }

    /// Queue an order and send what the socket takes.
    pub fn order(&mut self, order: &Order) -> Result<(), PilotError> {
        self.out.push(order)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), PilotError> {
        self.out
            .flush(&mut self.socket)
            .map(drop)
            .map_err(PilotError::system("write to the stage"))
    }

    /// What it reported since; never waits. Err: it is gone, and why.
    pub fn hear(&mut self) -> Result<Vec<Report>, String> {
        self.flush().map_err(|error| self.broke(&cause(&error)))?;
        let mut reports = Vec::new();
        loop {
            let filled = self.lines.fill(&mut self.socket);
            let fill = filled.map_err(|error| self.broke(&cause(&error)))?;
            while let Some(line) = self.lines.next_line() {
                let report = serde_json::from_slice(line)
                    .map_err(|error| format!("it sent an invalid report: {error}"))?;
                reports.push(report);
            }
            match fill {
                Fill::Closed if reports.is_empty() => return Err(self.end()),
                Fill::Closed | Fill::Open(0) => return Ok(reports),
                Fill::Open(_) => {}
            }
        }
    }

    /// How it ended.
    fn end(&mut self) -> String {
        self.broke("hung up and has not ended")
    }

    /// How it ended; `running`: what is wrong with it if it has not. One that was killed resets the connection where
    /// orders were unread.
    fn broke(&mut self, running: &str) -> String {
        let how = match child::wait_a_moment(self.pid) {
            Ok(Waited::Ended { exit, .. }) => format!("ended with {exit}"),
            Ok(Waited::Running) => running.to_owned(),
            Ok(Waited::NoChildren) => String::from("is gone"),
            Err(error) => format!("is gone: {}", cause(&error)),
        };
        format!("the process that brings files to this node {how}")
    }
}

impl Drop for StageProcess {
    fn drop(&mut self) {
        child::end(self.pid);
    }
}
