//! What slots answer: who of the parts hears what.

use tidemill_slot::FromSlot;

use super::Pilot;
use crate::context::Context;
use crate::error::PilotError;

impl Pilot {
    /// Read everything that slots have said.
    pub(super) fn hear_slots(&mut self) -> Result<(), PilotError> {
        for slot in self.cx.work.slot_ids() {
            let (told, gone) = self.cx.slots.hear(slot);
            for message in told {
                self.hear(slot, message)?;
            }
            if let Some(cause) = gone {
                self.cx.slots.lose(slot, cause);
            }
            self.take_back_lost()?;
        }
        Ok(())
    }

    fn hear(&mut self, slot: u32, message: FromSlot) -> Result<(), PilotError> {
        let cx = &mut self.cx;
        match message {
            FromSlot::Done(done) => {
                cx.slots.count_kills(slot);
                self.keep.done(cx, slot, done)
            }
            FromSlot::Failed(failed) => {
                let failed = cx.slots.explained(slot, failed);
                let signs = (failed.signal, &failed.stderr[..]);
                if self.supply.lost_its_image(cx, slot, signs)? {
                    return Ok(());
                }
                self.keep.failed(cx, slot, failed)
            }
            FromSlot::Returned {
                ticket,
                first,
                count,
                reason,
                ..
            } => returned(cx, (slot, ticket), (first, count), &reason),
            FromSlot::Log(log) => {
                self.keep.log(&log);
                Ok(())
            }
            FromSlot::Traced {
                program,
                ops,
                failed,
                log,
            } => self.keep.traced(cx, program, (ops, failed), &log),
            FromSlot::Want { program } => {
                self.permits.want(cx, slot, program);
                Ok(())
            }
            FromSlot::Idle => {
                self.permits.idle(slot);
                Ok(())
            }
            FromSlot::Up { .. } => Ok(()),
        }
    }
}

/// Events come back from a slot that has not run them.
fn returned(
    cx: &mut Context,
    (slot, ticket): (u32, u64),
    (first, count): (u64, u64),
    reason: &str,
) -> Result<(), PilotError> {
    let Some(piece) = cx.settle(slot, ticket, first, count) else {
        return Ok(());
    };
    if reason == "again" && !cx.report.canceled.has(&piece) {
        return cx.run_again(piece);
    }
    let reason = cx.life.returned().unwrap_or(match reason {
        "walltime" => "walltime",
        "cancel" => "cancel",
        "drain" => "drain",
        "yield" => "yield",
        _ => "slot",
    });
    cx.give_back(&piece, reason)
}
