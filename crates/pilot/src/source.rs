//! Where work comes from and records go: a lead over TCP, or files alone.

use std::os::fd::BorrowedFd;

use tidemill_wire::{Grant, PilotMessage};

use crate::error::PilotError;
use crate::link::{Link, LinkEvent};
use crate::mailbox::Mailbox;

pub enum Source {
    Lead(Link),
    /// Records go to the pilot's own journal only.
    Files(Mailbox),
}

impl Source {
    /// A lead is connected.
    pub fn has_lead(&self) -> bool {
        matches!(self, Source::Lead(link) if link.is_up())
    }

    /// Work could come: not while a lead that there should be is away.
    pub fn is_open(&self) -> bool {
        match self {
            Source::Lead(link) => link.is_up(),
            Source::Files(_) => true,
        }
    }

    pub fn is_files(&self) -> bool {
        matches!(self, Source::Files(_))
    }

    /// Whether orders that are there have not been read yet.
    pub fn is_behind(&self, now_us: u64) -> bool {
        matches!(self, Source::Files(mailbox) if mailbox.is_behind(now_us))
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::Lead(link) => link.fd(),
            Source::Files(_) => None,
        }
    }

    pub fn wants_write(&self) -> bool {
        matches!(self, Source::Lead(link) if link.wants_write())
    }

    /// When `advance` should be called at the latest.
    pub fn due_us(&self) -> Option<u64> {
        match self {
            Source::Lead(link) => link.due_us(),
            Source::Files(mailbox) => Some(mailbox.due_us()),
        }
    }

    /// When a connected lead has to be sent a sign of life.
    pub fn beat_due_us(&self, beat_us: u64) -> Option<u64> {
        match self {
            Source::Lead(link) if link.is_up() => Some(link.last_sent_us + beat_us),
            _ => None,
        }
    }

    /// When the lead counts as dead.
    pub fn dead_us(&self, dead_after_us: u64) -> Option<u64> {
        match self {
            Source::Lead(link) => Some(link.last_heard_us + dead_after_us),
            Source::Files(_) => None,
        }
    }

    /// Read what there is; `held` is asked for when a Hello is due.
    pub fn advance(&mut self, now_us: u64, held: &dyn Fn() -> Vec<Grant>) -> Vec<LinkEvent> {
        match self {
            Source::Lead(link) => link.advance(now_us, held),
            Source::Files(mailbox) => mailbox.advance(now_us),
        }
    }

    /// Queue a message for the lead; dropped while there is none.
    pub fn send(&mut self, message: &PilotMessage, now_us: u64) -> Result<(), PilotError> {
        match self {
            Source::Lead(link) => link.send(message, now_us),
            Source::Files(_) => Ok(()),
        }
    }

    pub fn records_buffer(&mut self, now_us: u64) -> Option<&mut Vec<u8>> {
        match self {
            Source::Lead(link) => link.records_buffer(now_us),
            Source::Files(_) => None,
        }
    }

    pub fn flush(&mut self, now_us: u64) -> Vec<LinkEvent> {
        match self {
            Source::Lead(link) => link.flush(now_us),
            Source::Files(_) => Vec::new(),
        }
    }

    /// The lead's connection, where there is to be one.
    pub fn link(&mut self) -> Option<&mut Link> {
        match self {
            Source::Lead(link) => Some(link),
            Source::Files(_) => None,
        }
    }

    pub fn reset(&mut self, now_us: u64, cause: &str) {
        if let Source::Lead(link) = self {
            link.reset(now_us, cause);
        }
    }
}
