//! The lead, as this pilot sees it: the source of work and the destination of records, over TCP or through files alone.
//!
//! Knows messages, but not what they mean for work and slots.

mod address;
pub mod board;
pub mod link;
pub mod mailbox;

use std::net::IpAddr;
use std::path::Path;

use serde::de::DeserializeOwned;
use tidemill_sys::fd::Poll;
use tidemill_sys::machine;
use tidemill_wire::{LeadMessage, PilotMessage, Settings, FORMAT};

use crate::error::PilotError;
use crate::time::seconds_us;
use board::Board;
use link::{Link, LinkEvent, Standing};
use mailbox::Mailbox;

/// A JSON file of the fleet's directory, unless a newer version wrote it.
pub fn read_fleet_file<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
    format: impl Fn(&T) -> u64,
) -> Result<T, PilotError> {
    let text = std::fs::read(path).map_err(PilotError::file("read", path))?;
    let read = serde_json::from_slice(&text).map_err(|source| PilotError::Json {
        what,
        path: path.to_owned(),
        source,
    })?;
    match format(&read) {
        0..=FORMAT => Ok(read),
        found => Err(PilotError::Format {
            path: path.to_owned(),
            found,
            known: FORMAT,
        }),
    }
}

/// Where work comes from.
pub enum WorkSource {
    Lead(Link),
    /// Records go to the pilot's own journal only; other nodes are found by peers files, where nodes reach each other.
    Files(Mailbox, Option<Board>),
}

impl WorkSource {
    /// A lead is connected.
    pub fn has_lead(&self) -> bool {
        matches!(self, WorkSource::Lead(link) if link.is_up())
    }

    /// Whether a lead is connected and at most `bytes_max` bytes wait to be sent to it.
    pub fn is_quiet(&self, bytes_max: usize) -> bool {
        matches!(self, WorkSource::Lead(link) if link.is_up() && link.pending() <= bytes_max)
    }

    /// Whether there is a source to ask where files are: a lead, connected or not, or peers files.
    pub fn tells_sources(&self) -> bool {
        !matches!(self, WorkSource::Files(_, None))
    }

    /// Whether it answers now, as far as the pilot knows.
    pub fn answers(&self) -> bool {
        self.has_lead() || matches!(self, WorkSource::Files(_, Some(_)))
    }

    /// Whether work could come: not while the lead of this fleet is unreachable.
    pub fn is_open(&self) -> bool {
        match self {
            WorkSource::Lead(link) => link.is_up(),
            WorkSource::Files(..) => true,
        }
    }

    pub fn is_files(&self) -> bool {
        matches!(self, WorkSource::Files(..))
    }

    /// Whether there are orders that have not been read yet.
    pub fn is_behind(&self, now_us: u64) -> bool {
        matches!(self, WorkSource::Files(mailbox, _) if mailbox.is_behind(now_us))
    }

    /// What to wait for.
    pub fn poll(&self) -> Option<Poll> {
        match self {
            WorkSource::Lead(link) => link.poll(),
            WorkSource::Files(..) => None,
        }
    }

    /// When `advance` should be called at the latest.
    pub fn due_us(&self) -> Option<u64> {
        match self {
            WorkSource::Lead(link) => link.due_us(),
            WorkSource::Files(mailbox, board) => {
                let board_us = board.as_ref().and_then(Board::due_us);
                Some(board_us.map_or(mailbox.due_us(), |at_us| at_us.min(mailbox.due_us())))
            }
        }
    }

    /// When a connected lead was sent something last.
    pub fn sent_us(&self) -> Option<u64> {
        match self {
            WorkSource::Lead(link) if link.is_up() => Some(link.last_sent_us),
            _ => None,
        }
    }

    /// When the lead counts as dead, if it stays silent.
    pub fn dies_us(&self, dead_after_s: f64) -> Option<u64> {
        match self {
            WorkSource::Lead(link) => Some(link.last_heard_us + seconds_us(dead_after_s)),
            WorkSource::Files(..) => None,
        }
    }

    /// Whether there is no lead and the agent gives no sign of life.
    pub fn agent_is_dead(&self) -> bool {
        matches!(self, WorkSource::Files(mailbox, _) if !mailbox.agent_lives())
    }

    /// How long a pilot without work waits for more: with files alone, for at least two polls. None if no work can come
    /// at present.
    pub fn patience_us(&self, settings: &Settings) -> Option<u64> {
        let patience_s = match self {
            WorkSource::Files(mailbox, _) if mailbox.closed => 0.0,
            WorkSource::Files(..) => settings.idle_s.max(2.0 * settings.top_up_s),
            WorkSource::Lead(_) => settings.idle_s,
        };
        self.is_open().then(|| seconds_us(patience_s))
    }

    /// Read what has arrived; calls `standing` when a Hello is due.
    pub fn advance(&mut self, now_us: u64, standing: &dyn Fn() -> Standing) -> Vec<LinkEvent> {
        match self {
            WorkSource::Lead(link) => link.advance(now_us, standing),
            WorkSource::Files(mailbox, board) => {
                let mut events = mailbox.advance(now_us);
                let told = board.iter_mut().flat_map(|board| board.advance(now_us));
                events.extend(told.map(|source| LinkEvent::Message(LeadMessage::Source(source))));
                events
            }
        }
    }

    /// Queue a message for the lead; dropped while there is none. Peers files answer what is about files.
    pub fn send(&mut self, message: &PilotMessage, now_us: u64) -> Result<(), PilotError> {
        match self {
            WorkSource::Lead(link) => link.send(message, now_us),
            WorkSource::Files(_, board) => {
                if let Some(board) = board {
                    board.hear(message, now_us);
                }
                Ok(())
            }
        }
    }

    pub fn records_buffer(&mut self, now_us: u64) -> Option<&mut Vec<u8>> {
        match self {
            WorkSource::Lead(link) => link.records_buffer(now_us),
            WorkSource::Files(..) => None,
        }
    }

    pub fn flush(&mut self, now_us: u64) {
        if let WorkSource::Lead(link) = self {
            link.flush(now_us);
        }
    }

    /// Who we are towards other nodes, and the address at which they reach this one.
    pub fn as_peer(&self) -> Option<(&str, &str, Option<IpAddr>)> {
        match self {
            WorkSource::Lead(link) => {
                let (identity, address) = link.identity();
                Some((&identity.pilot, &identity.secret, address))
            }
            WorkSource::Files(_, Some(board)) => {
                Some((&board.pilot, &board.secret, machine::outbound_address()))
            }
            WorkSource::Files(_, None) => None,
        }
    }

    /// The lead's connection, where there is to be one.
    pub fn link(&mut self) -> Option<&mut Link> {
        match self {
            WorkSource::Lead(link) => Some(link),
            WorkSource::Files(..) => None,
        }
    }

    pub fn reset(&mut self, now_us: u64, cause: &str) {
        if let WorkSource::Lead(link) = self {
            link.lose(now_us, cause);
        }
    }
}
