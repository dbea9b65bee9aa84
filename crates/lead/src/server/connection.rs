//! One TCP connection of a pilot, or of a peer that has not authenticated.

use std::collections::HashSet;
use std::io;
use std::net::TcpStream;

use tidemill_wire::log::{cause, Log};
use tidemill_wire::{Fill, LeadMessage, LineBuffer, OutBuffer, LINE_BYTES_MAX};

use crate::ledger::PilotKey;

/// Longest line that an unauthenticated peer may send (`held` of a reconnecting pilot is long).
pub const GREETING_BYTES_MAX: usize = 4 << 20;
/// The limit while all of these peers together have sent more than `GREETING_BYTES_TOTAL`.
pub const GREETING_BYTES_CROWDED: usize = 64 << 10;
pub const GREETING_BYTES_TOTAL: usize = 32 << 20;
/// Time for a peer to authenticate.
pub const GREETING_US: u64 = 5_000_000;
/// A pilot that does not read is dropped when more than this is waiting for it.
const OUT_BYTES_MAX: usize = 64 << 20;
/// With more than this waiting, a pilot gets no more work.
const OUT_BYTES_BUSY: usize = 8 << 20;
/// Reads of one connection per turn of the loop.
const READS_PER_TURN: usize = 4;

/// Who is at the other end.
#[derive(Debug, PartialEq, Eq)]
pub enum Peer {
    Unknown { nonce: String, until: u64 },
    Pilot(PilotKey),
}

#[derive(Debug)]
pub struct Connection {
    pub stream: TcpStream,
    pub lines: LineBuffer,
    pub out: OutBuffer,
    pub address: String,
    pub peer: Peer,
    pub told_programs: HashSet<u64>,
    pub told_jobs: HashSet<u64>,
    pub accepted_at: u64,
    pub heard_at: u64,
    pub sent_at: u64,
    /// A record came while it asks: try again to give it work.
    pub hungry: bool,
}

impl Connection {
    pub fn new(stream: TcpStream, address: String, (nonce, now): (String, u64)) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            lines: LineBuffer::new(GREETING_BYTES_CROWDED),
            out: OutBuffer::default(),
            address,
            peer: Peer::Unknown {
                nonce,
                until: now + GREETING_US,
            },
            told_programs: HashSet::new(),
            told_jobs: HashSet::new(),
            accepted_at: now,
            heard_at: now,
            sent_at: now,
            hungry: false,
        })
    }

    /// The pilot at the other end, if it has proved to be one.
    pub fn pilot(&self) -> Option<PilotKey> {
        match self.peer {
            Peer::Pilot(key) => Some(key),
            Peer::Unknown { .. } => None,
        }
    }

    pub fn become_pilot(&mut self, key: PilotKey) {
        self.peer = Peer::Pilot(key);
        self.lines.set_limit(LINE_BYTES_MAX);
    }

    /// Reads what is there, up to a limit per turn. Err says why the connection is over.
    pub fn read(&mut self, now: u64) -> Result<(), String> {
        for _ in 0..READS_PER_TURN {
            match self.lines.fill(&mut self.stream) {
                Ok(Fill::Closed) => return Err(String::from("the peer closed it")),
                Ok(Fill::Open(0)) => return Ok(()),
                Ok(Fill::Open(count)) => {
                    self.heard_at = now;
                    if count < 4096 {
                        return Ok(()); // a short read: nothing more was there
                    }
                }
                Err(error) => return Err(cause(&error)),
            }
            if self.lines.buffered() > 1 << 20 {
                return Ok(()); // take these lines first
            }
        }
        Ok(())
    }

    /// Put a message on its way.
    pub fn send(&mut self, message: &LeadMessage, now: u64, log: Log) {
        if let Err(error) = self.out.push(message) {
            log.error("message.unwritable", &[("error", &cause(&error))]);
        }
        self.sent_at = now;
    }

    /// Whether it should get more work now.
    pub fn takes_work(&self) -> bool {
        self.out.pending() < OUT_BYTES_BUSY
    }

    /// Sends what the socket takes. Err says why the connection is over.
    pub fn flush(&mut self) -> Result<(), String> {
        match self.out.flush(&mut self.stream) {
            Ok(_) if self.out.pending() > OUT_BYTES_MAX => Err(format!(
                "it does not read: {} bytes wait for it",
                self.out.pending()
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}
