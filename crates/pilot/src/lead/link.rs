//! The connection to the lead: found through lead.json, authenticated with the fleet's secret, reopened when it breaks.
//!
//! Knows messages, but not what they mean for the work.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use tidemill_sys::fd::{Poll, READABLE, WRITABLE};
use tidemill_wire::{handshake, log, Challenge, Fill, Grant, Hello, LeadMessage, LineBuffer, OutBuffer};
use tidemill_wire::{PilotMessage, Welcome, LINE_BYTES_MAX};

use super::address::AddressReader;
use crate::error::{PilotError, LOG};

const BACKOFF_MIN_US: u64 = 50_000;
const BACKOFF_MAX_US: u64 = 5_000_000;
/// Longest interval between reads of lead.json: a restarted lead mostly listens at the same address as before.
const READ_AGAIN_MAX_US: u64 = 30_000_000;
/// Longest wait for the file where an address is known already.
const READ_WAIT_US: u64 = 2_000_000;
/// A read that takes longer than this hangs.
const READ_HANG_US: u64 = 10_000_000;
/// A connection attempt blocks the pilot's loop; its slots go on meanwhile.
const CONNECT_WAIT: Duration = Duration::from_millis(500);
const HANDSHAKE_US_MAX: u64 = 5_000_000;
/// Before the peer has proved that it is the lead.
const GREETING_BYTES_MAX: usize = 4096;
/// Bytes on their way to the lead, above which no more records are handed to the connection.
pub const OUT_BYTES_MAX: usize = 1 << 20;

/// What Hello says about this pilot.
pub struct Identity {
    pub pilot: String,
    pub allocation: String,
    pub rank: u64,
    pub node: String,
    pub secret: String,
}

/// What we have at a moment, for Hello.
pub struct Standing {
    pub held: Vec<Grant>,
    /// Highest numbers of records that a lead has acknowledged, and that are in the own journal.
    pub acked: u64,
    pub journaled: u64,
}

/// What happened on the connection.
#[derive(Debug)]
pub enum LinkEvent {
    /// The lead is authenticated: report what this pilot holds and resend what the lead does not have.
    Up {
        acked: u64,
    },
    Message(LeadMessage),
    /// Work that was given before no longer belongs to this pilot.
    Revoked,
}

enum State {
    Away,
    /// Connected; waits for Challenge, then (with our nonce) for Welcome.
    Greeting {
        stream: TcpStream,
        since_us: u64,
        nonces: Option<(String, String)>,
    },
    Up {
        stream: TcpStream,
    },
}

/// One lead at a time.
pub struct Link {
    reader: AddressReader,
    identity: Identity,
    state: State,
    lines: LineBuffer,
    out: OutBuffer,
    retry_at_us: u64,
    backoff_us: u64,
    address: Option<SocketAddr>,
    read_at_us: u64,
    read_again_us: u64,
    jitter: u64,
    /// Where other nodes get files from us, for Hello.
    pub serves: Option<String>,
    pub last_heard_us: u64,
    pub last_sent_us: u64,
    last_cause: String,
}

impl Link {
    pub fn new(fleet: &Path, identity: Identity, now_us: u64) -> Self {
        let jitter = identity.pilot.bytes().fold(now_us | 1, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        Link {
            reader: AddressReader::new(fleet.join("lead.json")),
            identity,
            state: State::Away,
            lines: LineBuffer::new(GREETING_BYTES_MAX),
            out: OutBuffer::default(),
            retry_at_us: now_us,
            backoff_us: BACKOFF_MIN_US,
            address: None,
            read_at_us: now_us,
            read_again_us: BACKOFF_MIN_US,
            jitter,
            serves: None,
            last_heard_us: now_us,
            last_sent_us: now_us,
            last_cause: String::new(),
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Bytes that the socket has not taken yet.
    pub fn pending(&self) -> usize {
        self.out.pending()
    }

    /// Who we are to the lead, and the address at which it, and so other nodes, reach us.
    pub fn identity(&self) -> (&Identity, Option<IpAddr>) {
        let address = match &self.state {
            State::Up { stream } => stream.local_addr().ok().map(|address| address.ip()),
            _ => None,
        };
        (&self.identity, address)
    }

    /// What to wait for.
    pub fn poll(&self) -> Option<Poll> {
        let writes = if self.out.pending() > 0 { WRITABLE } else { 0 };
        match &self.state {
            State::Away => self.reader.poll(),
            State::Greeting { stream, .. } | State::Up { stream } => {
                Some(Poll::new(stream.as_fd(), READABLE | writes))
            }
        }
    }

    /// When `advance` should be called at the latest.
    pub fn due_us(&self) -> Option<u64> {
        match &self.state {
            State::Away => Some(self.away_until_us()),
            State::Greeting { since_us, .. } => Some(since_us + HANDSHAKE_US_MAX),
            State::Up { .. } => None,
        }
    }

    /// Read what is there, connect if it is time; `standing` is asked for when a Hello is due.
    pub fn advance(&mut self, now_us: u64, standing: &dyn Fn() -> Standing) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        if matches!(self.state, State::Away) {
            if let Err(error) = self.approach(now_us) {
                self.lose(now_us, &log::cause(&error));
            }
        }
        if !matches!(self.state, State::Away) {
            if let Err(error) = self.read(now_us, standing, &mut events) {
                self.lose(now_us, &log::cause(&error));
            }
        }
        if let State::Greeting { since_us, .. } = &self.state {
            if now_us > since_us + HANDSHAKE_US_MAX {
                self.lose(now_us, "no answer to the greeting");
            }
        }
        events
    }

    /// Queue a message for the lead; dropped while there is no connection.
    pub fn send(&mut self, message: &PilotMessage, now_us: u64) -> Result<(), PilotError> {
        if self.is_up() {
            self.out.push(message)?;
            self.last_sent_us = now_us;
        }
        Ok(())
    }

    /// The buffer for framed records, if the connection can take some now.
    pub fn records_buffer(&mut self, now_us: u64) -> Option<&mut Vec<u8>> {
        if !self.is_up() || self.out.pending() >= OUT_BYTES_MAX {
            return None;
        }
        self.last_sent_us = now_us;
        Some(self.out.buffer())
    }

    /// Write what the socket takes.
    pub fn flush(&mut self, now_us: u64) {
        let result = match &mut self.state {
            State::Away => return,
            State::Greeting { stream, .. } | State::Up { stream } => self.out.flush(stream),
        };
        if let Err(error) = result {
            self.lose(now_us, &error.to_string());
        }
    }

    /// When the next attempt is made, unless an answer comes before.
    fn away_until_us(&self) -> u64 {
        let wait_us = if self.address.is_some() {
            READ_WAIT_US
        } else {
            READ_HANG_US
        };
        let asked_us = self.reader.asked_us();
        asked_us.map_or(self.retry_at_us, |asked_us| {
            self.retry_at_us.max(asked_us + wait_us)
        })
    }

    /// Find out where the lead is, and connect if it is time.
    fn approach(&mut self, now_us: u64) -> Result<(), PilotError> {
        match self.reader.hear() {
            Some(Ok(address)) => self.address = Some(address),
            Some(Err(why)) => {
                self.lose(now_us, &why);
                return Ok(());
            }
            None => {}
        }
        let is_due = now_us >= self.retry_at_us;
        if is_due && now_us >= self.read_at_us && self.reader.asked_us().is_none() {
            self.read_at_us = now_us + self.read_again_us;
            self.read_again_us = (self.read_again_us * 2).min(READ_AGAIN_MAX_US);
            self.reader.ask(now_us)?;
        }
        if now_us < self.away_until_us() {
            return Ok(());
        }
        match self.address {
            Some(address) => self.connect(address, now_us),
            None => Err(PilotError::Lead {
                message: self.why_unknown(),
            }),
        }
    }

    fn why_unknown(&self) -> String {
        match self.reader.asked_us() {
            Some(_) => format!("`{}` has not answered for 10 s", self.reader.path().display()),
            None => String::from("its address is not known yet"),
        }
    }

    fn connect(&mut self, socket: SocketAddr, now_us: u64) -> Result<(), PilotError> {
        let stream = TcpStream::connect_timeout(&socket, CONNECT_WAIT)
            .map_err(PilotError::system("connect to the lead"))?;
        stream
            .set_nonblocking(true)
            .map_err(PilotError::system("make the connection nonblocking"))?;
        stream
            .set_nodelay(true)
            .map_err(PilotError::system("set TCP_NODELAY"))?;
        self.lines = LineBuffer::new(GREETING_BYTES_MAX);
        self.out = OutBuffer::default();
        self.state = State::Greeting {
            stream,
            since_us: now_us,
            nonces: None,
        };
        Ok(())
    }

    fn read(
        &mut self,
        now_us: u64,
        standing: &dyn Fn() -> Standing,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), PilotError> {
        loop {
            let fill = match &mut self.state {
                State::Away => return Ok(()),
                State::Greeting { stream, .. } | State::Up { stream } => self.lines.fill(stream),
            };
            let fill = fill.map_err(|error| PilotError::Lead {
                message: log::cause(&error),
            })?;
            let mut count = 0;
            while let Some(line) = self.lines.next_line() {
                count += 1;
                let message: LeadMessage =
                    serde_json::from_slice(line).map_err(|error| PilotError::Lead {
                        message: format!(
                            "{error}: `{}`",
                            String::from_utf8_lossy(&line[..line.len().min(120)])
                        ),
                    })?;
                self.last_heard_us = now_us;
                if let Some(event) = self.understand(message, now_us, standing)? {
                    events.push(event);
                }
            }
            match fill {
                Fill::Closed => {
                    return Err(PilotError::Lead {
                        message: "it closed the connection".into(),
                    })
                }
                Fill::Open(0) => return Ok(()),
                // a lead that sends without end must not keep us from our slots
                Fill::Open(_) if count > 0 || events.len() > 64 => return Ok(()),
                Fill::Open(_) => {}
            }
        }
    }

    fn understand(
        &mut self,
        message: LeadMessage,
        now_us: u64,
        standing: &dyn Fn() -> Standing,
    ) -> Result<Option<LinkEvent>, PilotError> {
        let who = &self.identity;
        match (&mut self.state, message) {
            (State::Greeting { nonces, .. }, LeadMessage::Challenge(Challenge { nonce, .. }))
                if nonces.is_none() =>
            {
                let mine = handshake::nonce()?;
                let Standing {
                    held,
                    acked,
                    journaled,
                } = standing();
                let hello = Hello {
                    pilot: who.pilot.clone(),
                    allocation: who.allocation.clone(),
                    rank: who.rank,
                    node: who.node.clone(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    proof: handshake::pilot_proof(&who.secret, &nonce, &mine, &who.pilot),
                    nonce: mine.clone(),
                    held,
                    serves: self.serves.clone(),
                    acked: Some(acked),
                    journaled: Some(journaled),
                };
                *nonces = Some((nonce, mine));
                self.out.push(&PilotMessage::Hello(hello))?;
                self.last_sent_us = now_us;
                Ok(None)
            }
            (
                State::Greeting {
                    nonces: Some((theirs, mine)),
                    ..
                },
                LeadMessage::Welcome(Welcome { proof, acked }),
            ) => {
                if !handshake::lead_is_known(&who.secret, theirs, mine, &who.pilot, &proof) {
                    return Err(PilotError::Lead {
                        message: "it does not know the fleet's secret".into(),
                    });
                }
                if let State::Greeting { stream, .. } = std::mem::replace(&mut self.state, State::Away) {
                    self.state = State::Up { stream };
                }
                self.lines.set_limit(LINE_BYTES_MAX);
                (self.backoff_us, self.read_again_us) = (BACKOFF_MIN_US, BACKOFF_MIN_US);
                self.last_cause.clear();
                self.reader.rest();
                Ok(Some(LinkEvent::Up { acked }))
            }
            (State::Up { .. }, message) => Ok(Some(LinkEvent::Message(message))),
            (_, message) => Err(PilotError::Lead {
                message: format!("{message:?} instead of a greeting"),
            }),
        }
    }

    /// Give this connection up; a new one is made after a pause. The same cause is logged once.
    pub fn lose(&mut self, now_us: u64, cause: &str) {
        self.state = State::Away;
        self.lines = LineBuffer::new(GREETING_BYTES_MAX);
        self.out = OutBuffer::default();
        // xorshift: pilots that lost one lead at one moment do not come back at one moment
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        self.retry_at_us = now_us + self.backoff_us / 2 + self.jitter % (self.backoff_us / 2 + 1);
        self.backoff_us = (self.backoff_us * 2).min(BACKOFF_MAX_US);
        if self.address.is_none() {
            self.retry_at_us = self.retry_at_us.max(self.read_at_us); // there is nothing else to try
        }
        if self.last_cause != cause {
            cause.clone_into(&mut self.last_cause);
            LOG.warning("lead.lost", &[("cause", &cause)]);
        }
    }
}
