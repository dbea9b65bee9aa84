//! The pilot's side of a slot.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{FromSlot, Isolated, SlotError, SlotSpec, ToSlot};

/// A running slot init. Dropping it kills the slot and everything in it.
pub struct Slot {
    index: u32,
    pid: i32,
    socket: OwnedFd,
    isolated: Isolated,
    note: String,
}

/// Forks the slot's init and waits until it is up (10 s at most). Call only while single-threaded.
pub fn start(spec: &SlotSpec) -> Result<Slot, SlotError> {
    Err(SlotError::Refused {
        index: spec.index,
        reason: "not built yet".into(),
    })
}

impl Slot {
    /// Poll it for reading (and for writing while `wants_write`).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Process id of the init, as the pilot sees it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Messages wait to be written: poll for writing and call `flush`.
    pub fn wants_write(&self) -> bool {
        false
    }

    /// What the slot got, and a note that says why not more.
    pub fn isolation(&self) -> (Isolated, &str) {
        (self.isolated, &self.note)
    }

    /// Queues a message and writes what the socket takes; never blocks.
    pub fn send(&mut self, _message: &ToSlot) -> Result<(), SlotError> {
        Ok(())
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), SlotError> {
        Ok(())
    }

    /// Appends what the slot has told since; false when the slot has ended. Never blocks.
    pub fn receive(&mut self, _into: &mut Vec<FromSlot>) -> Result<bool, SlotError> {
        Ok(false)
    }

    /// Opens an output of a Done message for reading: a regular file below the scratch directory, no links.
    pub fn open_output(&self, _relative: &str) -> Result<File, SlotError> {
        Err(SlotError::Refused {
            index: self.index,
            reason: "not built yet".into(),
        })
    }

    /// Removes an output that is kept. The slot holds its next payload back while too many wait.
    pub fn remove_output(&self, _relative: &str) -> Result<(), SlotError> {
        Ok(())
    }

    /// Kills the init and with it everything in the slot, and waits for its end.
    pub fn kill(self) {}
}
