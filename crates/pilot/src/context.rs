//! What the parts of a pilot share: time, settings, the phase, records, the lead, work and slots.
//!
//! Knows no part. A part has state of its own; what it does beyond that, it does through a `&mut Context`.

use tidemill_slot::{Isolation, ToSlot};
use tidemill_wire::{PilotMessage, Settings};

use crate::error::{PilotError, LOG};
use crate::lead::WorkSource;
use crate::life::Life;
use crate::node::signals::Signals;
use crate::report::{Note, Report};
use crate::slots::Slots;
use crate::work::piece::WorkPiece;
use crate::work::Binding;

/// Deaths of slots without a Done between them after which the oldest work of the next one that dies failed.
const DEATHS_SUSPECT: u32 = 3;

pub struct Context {
    /// Monotonic; when this turn began.
    pub now_us: u64,
    /// Name of this node, as the batch system has it.
    pub node: String,
    pub settings: Settings,
    pub isolation: Isolation,
    pub life: Life,
    pub report: Report,
    pub lead: WorkSource,
    pub work: Binding,
    pub slots: Slots,
    pub signals: Signals,
}

impl Context {
    /// Queue a message for the lead, if there is one.
    pub fn send(&mut self, message: &PilotMessage) -> Result<(), PilotError> {
        self.lead.send(message, self.now_us)
    }

    pub fn note(&mut self, note: Note) -> Result<(), PilotError> {
        self.report.note(note, self.now_us)
    }

    pub fn note_once(&mut self, note: Note) -> Result<(), PilotError> {
        self.report.note_once(note, self.now_us)
    }

    /// Record that events go back to the lead.
    pub fn give_back(&mut self, piece: &WorkPiece, reason: &str) -> Result<(), PilotError> {
        self.report.give_back(piece, reason, self.now_us)
    }

    /// Record a failure that no payload reported: its class and message.
    pub fn fail(&mut self, piece: &WorkPiece, slot: u32, failure: (&str, &str)) -> Result<(), PilotError> {
        self.report.fail(piece, slot, failure, self.now_us)
    }

    /// Events that went down with their slot or payload: first in the queue, or back to the lead when we leave.
    pub fn run_again(&mut self, piece: WorkPiece) -> Result<(), PilotError> {
        if let Some(reason) = self.life.returned() {
            return self.give_back(&piece, reason);
        }
        match self.work.requeue(piece, self.now_us) {
            None => Ok(()),
            Some(unknown) => self.give_back(&unknown, "slot"),
        }
    }

    /// Events that a slot has answered for; the piece that they belong to.
    pub fn settle(&mut self, slot: u32, ticket: u64, first: u64, count: u64) -> Option<WorkPiece> {
        let piece = self.work.settle(slot, ticket, first, count);
        if piece.is_none() {
            LOG.error(
                "slot.wrong",
                &[
                    ("slot", &slot),
                    ("ticket", &ticket),
                    ("first", &first),
                    ("count", &count),
                ],
            );
        }
        piece
    }

    pub fn tell_all(&mut self, message: &ToSlot) {
        for slot in self.work.slot_ids() {
            self.slots.tell(slot, message);
        }
    }

    /// Take back the work of slots that were lost; after repeated deaths the oldest work of each failed. Why the node is
    /// not fit for work, if it is not.
    pub fn take_back_lost(&mut self) -> Result<Option<String>, PilotError> {
        let mut unfit = None;
        for lost in self.slots.take_lost() {
            for (place, piece) in self.work.lose_slot(lost.slot).into_iter().enumerate() {
                if place == 0 && lost.deaths >= DEATHS_SUSPECT {
                    let message = format!(
                        "slots died {} times in a row, the last one: {}",
                        lost.deaths, lost.cause
                    );
                    self.fail(&piece, lost.slot, ("node", &message))?;
                } else {
                    self.run_again(piece)?;
                }
            }
            unfit = self.slots.keep_dying().then_some(lost.cause);
        }
        Ok(unfit.map(|cause| format!("slots keep dying on this node; last cause: {cause}")))
    }
}
