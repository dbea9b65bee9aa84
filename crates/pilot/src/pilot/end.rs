//! How a pilot leaves: it makes everything safe, and records the reason.

use tidemill_sys::child;
use tidemill_sys::fd;
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::{Ended, LeadMessage, Record};

use super::Pilot;
use crate::error::{PilotError, LOG};
use crate::lead::link::{LinkEvent, Standing};
use crate::life::{Phase, Reason};

/// Longest wait for the lead's acknowledgement, from the order to stop.
const STOP_ACK_US: u64 = 1_300_000;
/// ... of which the lead alone has this long, from the last record: after it the own journal is written as well.
const ACK_ALONE_US: u64 = 100_000;
/// Shortest time for the own journal of a pilot that was ordered to stop.
const STOP_SAVE_US: u64 = 300_000;
/// Longest wait for the lead's acknowledgement of a pilot that leaves in peace, from the last record.
const PEACE_ACK_US: u64 = 10_000_000;
/// Retries of a journal that cannot be written at the end, in peace.
const SAVE_US: u64 = 20_000_000;
const PAUSE_US: u64 = 100_000;
/// Time for removals at the end, when all is safe.
const STOP_REMOVAL_US: u64 = 300_000;
const PEACE_REMOVAL_US: u64 = 10_000_000;

impl Pilot {
    /// Make everything safe and leave; the exit code.
    pub(super) fn end(mut self) -> Result<i32, PilotError> {
        self.cx.now_us = monotonic_us();
        let cx = &mut self.cx;
        self.keep.leave(cx)?;
        let ended_us = realtime_us();
        let reason = cx.life.returned().unwrap_or("slot");
        for slot in cx.work.slot_ids() {
            for piece in cx.work.lose_slot(slot) {
                cx.give_back(&piece, reason)?;
            }
        }
        self.keep.finish(cx)?;
        self.permits.note_usage(cx)?;
        self.supply.note_cache(cx)?;
        let (reason, message) = cx.life.why();
        let slot_us = cx.slots.occupancy.slot_us(ended_us);
        let busy_us = cx.slots.occupancy.busy_us;
        cx.report.records.seal()?;
        let ended = Ended {
            reason: reason.word().to_owned(),
            message,
            busy_us,
            slot_us,
            at_us: ended_us,
            ..Ended::default()
        };
        cx.report.add(Record::Ended(ended), cx.now_us)?;
        self.make_safe()?;
        self.cx.slots.end_all();
        self.cx.slots.lingering.extend(self.supply.leave());
        self.wait_for_lingering();
        LOG.info(
            "pilot.left",
            &[
                ("reason", &reason.word()),
                ("busy_us", &busy_us),
                ("slot_us", &slot_us),
                ("acked", &self.cx.report.records.all_acked()),
            ],
        );
        let failed = reason == Reason::Error || !self.cx.report.records.all_safe();
        Ok(if failed { 3 } else { 0 })
    }

    /// Give removals some time; they end with us, and what they have not got to is removed by the next pilot.
    fn wait_for_lingering(&self) {
        let limit_us = match self.cx.life.phase() {
            Phase::Stopping(_) => STOP_REMOVAL_US,
            _ => PEACE_REMOVAL_US,
        };
        let until_us = monotonic_us() + limit_us;
        for &pid in &self.cx.slots.lingering {
            let _ = child::wait_at_most(pid, until_us.saturating_sub(monotonic_us()));
        }
    }

    /// Hand everything to the lead; what it does not acknowledge in time goes to the own journal. There is no time for one
    /// after the other where the pilot has to stop: the journal is written while the lead is awaited.
    fn make_safe(&mut self) -> Result<(), PilotError> {
        let now_us = monotonic_us();
        let (until_us, mut save_us, mut save_until_us) = match self.cx.life.phase() {
            Phase::Stopping(leaving) => {
                let until_us = leaving.since_us + STOP_ACK_US;
                let save_until_us = until_us.max(now_us + STOP_SAVE_US);
                (until_us, now_us + ACK_ALONE_US, save_until_us)
            }
            _ => (now_us + PEACE_ACK_US, u64::MAX, now_us + SAVE_US),
        };
        let mut until_us = self.cx.life.ends_us().map_or(until_us, |ends_us| {
            until_us.min(ends_us.saturating_sub(STOP_ACK_US))
        });
        while self.cx.lead.has_lead() && !self.cx.report.records.all_acked() {
            let now_us = monotonic_us();
            if now_us >= until_us {
                break;
            }
            if save_us == u64::MAX && self.cx.signals.is_pending() {
                // it left in peace, and has to hurry now
                (until_us, save_us) = (until_us.min(now_us + STOP_ACK_US), now_us);
                save_until_us = save_until_us.min(until_us + STOP_SAVE_US);
            }
            if now_us >= save_us {
                self.cx.report.save(now_us)?;
                save_us = now_us + PAUSE_US;
            }
            self.exchange(now_us, until_us.min(save_us).min(now_us + PAUSE_US))?;
        }
        if self.cx.report.records.all_acked() {
            return Ok(());
        }
        self.save(save_until_us)
    }

    /// Write the own journal until everything is safe, or it is too late; a try that failed is followed by a pause.
    fn save(&mut self, until_us: u64) -> Result<(), PilotError> {
        let report = &mut self.cx.report;
        let mut save_us = 0;
        loop {
            let now_us = monotonic_us();
            let is_safe = if now_us >= save_us {
                save_us = now_us + PAUSE_US;
                report.save(now_us)?
            } else {
                report.is_saved(now_us)
            };
            if is_safe {
                return Ok(());
            }
            if now_us >= until_us {
                let bytes = report.records.unsafe_bytes();
                LOG.error("records.lost", &[("bytes", &bytes)]);
                return Ok(());
            }
            report.wait(save_us.saturating_sub(now_us))?;
        }
    }

    /// One round of nothing but records and acknowledgements.
    fn exchange(&mut self, now_us: u64, until_us: u64) -> Result<(), PilotError> {
        let (lead, report) = (&mut self.cx.lead, &mut self.cx.report);
        report.carry(lead, now_us);
        lead.flush(now_us);
        let Some(poll) = lead.poll() else {
            return Ok(());
        };
        let mut polls = [poll];
        fd::poll(&mut polls, Some(until_us - now_us))
            .map_err(|error| PilotError::system("poll")(error.source))?;
        if !polls[0].readable() {
            return Ok(());
        }
        let (acked, journaled) = report.records.safe();
        let nothing = || Standing {
            held: Vec::new(),
            acked,
            journaled,
        };
        for event in lead.advance(monotonic_us(), &nothing) {
            match event {
                LinkEvent::Message(LeadMessage::Ack(ack)) => report.acknowledge(ack.acked, now_us),
                LinkEvent::Message(LeadMessage::Work(work)) => {
                    // it was sent while the pilot was leaving: not started
                    for grant in work.grants {
                        LOG.info(
                            "work.ignored",
                            &[("grant", &grant.grant), ("first", &grant.first)],
                        );
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
