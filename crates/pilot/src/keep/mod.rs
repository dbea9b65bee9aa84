//! Outputs and logs of payloads: they go into the node's bundle, and a record follows when they are safe there.
//!
//! Does not know the lead: a record is finished here when it is in the report.

mod bundle;
mod keeper;
mod tar;
mod trouble;
mod writer;

use tidemill_slot::{Done, Failed, PayloadLog};
use tidemill_sys::time::monotonic_us;
use tidemill_wire::{log, Record};

use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::life::Phase;
use crate::report::Note;
use crate::work::piece::WorkPiece;
pub use bundle::Bundle;
use keeper::Kept;
pub use keeper::{BundleTarget, Keeper};
pub use writer::Origin;

const STDERR_TAIL_BYTES: usize = 4096;
/// Outputs that a job left before it was canceled are made durable at once for this time: its site waits for them.
const HURRY_US: u64 = 3_000_000;
/// Outputs of a canceled job that have found no room after this time are dropped.
const CANCELED_KEPT_US: u64 = 20_000_000;
/// Longest wait for the storage when a pilot leaves without an order to stop.
const PEACE_US: u64 = 60_000_000;
/// Longest wait for the storage after an order to stop: the lead's acknowledgement needs some time after that.
const STOP_US: u64 = 900_000;
/// Time kept free before the allocation's end for the rest of the shutdown.
const END_US: u64 = 2_000_000;
const LOOK_US: u64 = 50_000;

impl Keeper {
    /// A slot has done events: count them, and keep what they left.
    pub fn done(&mut self, cx: &mut Context, slot: u32, mut done: Done) -> Result<(), PilotError> {
        let Some(piece) = cx.settle(slot, done.ticket, done.first, done.count) else {
            drop_outputs(cx, slot, &done);
            return Ok(());
        };
        cx.slots.works();
        let occupancy = &mut cx.slots.occupancy;
        occupancy.count(done.started_us, done.ended_us, done.wall_us);
        let wall_s = done.wall_us.saturating_sub(done.setup_us) as f64 / 1e6;
        cx.work.measure(done.job, done.count, wall_s);
        cx.work.forget_done(done.job, done.count);
        let (stdout, stderr) = (std::mem::take(&mut done.stdout), std::mem::take(&mut done.stderr));
        let events = (done.job, done.first, done.count, done.truncated);
        self.logs(events, &stdout, &stderr);
        if cx.report.canceled.is_former(&piece) {
            drop_outputs(cx, slot, &done);
            return Ok(());
        }
        if done.outputs.is_empty() {
            let record = keeper::record(&done, &piece, slot, Vec::new());
            cx.report.add_open(record, cx.now_us);
            return Ok(());
        }
        let slots = &cx.slots;
        let kept = self.take(slot, (done, piece), &|slot: u32| slots.get(slot));
        tell(cx, kept.into_iter().collect())
    }

    /// A payload has failed.
    pub fn failed(&mut self, cx: &mut Context, slot: u32, failed: Failed) -> Result<(), PilotError> {
        let Some(piece) = cx.settle(slot, failed.ticket, failed.first, failed.count) else {
            return Ok(());
        };
        let occupancy = &mut cx.slots.occupancy;
        occupancy.count(
            failed.at_us.saturating_sub(failed.wall_us),
            failed.at_us,
            failed.wall_us,
        );
        let tail = failed.stderr.len().saturating_sub(STDERR_TAIL_BYTES);
        let stderr_tail = String::from_utf8_lossy(&failed.stderr[tail..]).into_owned();
        let events = (failed.job, failed.first, failed.count, false);
        self.logs(events, &failed.stdout, &failed.stderr);
        if cx.report.canceled.has(&piece) {
            return Ok(());
        }
        let record = tidemill_wire::Failed {
            grant: piece.grant,
            job: piece.job,
            first: piece.first,
            count: piece.count,
            event: failed.event,
            failure: failed.failure,
            message: failed.message,
            exit_status: failed.exit_status,
            signal: failed.signal,
            stderr_tail,
            slot: slot.into(),
            at_us: failed.at_us,
            wall_us: failed.wall_us,
            user_us: failed.user_us,
            system_us: failed.system_us,
            ..Default::default()
        };
        cx.report.add(Record::Failed(record), cx.now_us)
    }

    /// Keep what a payload printed.
    pub fn log(&mut self, log: &PayloadLog) {
        let events = (log.job, log.first, log.count, log.truncated);
        self.logs(events, &log.stdout, &log.stderr);
    }

    fn logs(&mut self, (job, first, count, truncated): (u64, u64, u64, bool), stdout: &[u8], stderr: &[u8]) {
        for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
            let log = writer::Log {
                profile: false,
                name: name.to_owned(),
                job,
                first,
                count,
                truncated,
                bytes: text.len(),
            };
            self.take_log(log, text);
        }
    }

    /// Keep the profile of a traced payload as logs are kept, and note what it counted.
    pub fn traced(
        &mut self,
        cx: &mut Context,
        program: u64,
        (ops, failed): (u64, u64),
        log: &PayloadLog,
    ) -> Result<(), PilotError> {
        let profile = writer::Log {
            profile: true,
            name: String::from("profile"),
            job: log.job,
            first: log.first,
            count: log.count,
            truncated: false,
            bytes: log.stdout.len(),
        };
        self.take_log(profile, &log.stdout);
        let traced = !log.stdout.is_empty();
        if traced {
            cx.slots.first_traces.traced(program);
        }
        let mode = if traced { "ptrace" } else { "none" };
        let note = Note::new("trace", mode, String::from_utf8_lossy(&log.stderr))
            .of(Some(program), Some(log.job))
            .number("ops", ops)
            .number("failed", failed)
            .number("profile_bytes", log.stdout.len());
        cx.note(note)
    }

    /// Take note of what the storage has done; send it what is due.
    pub fn step(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let now_us = cx.now_us;
        let canceled = &cx.report.canceled;
        let idle = cx.work.is_waiting() || canceled.is_recent(HURRY_US, now_us);
        let slots = &cx.slots;
        let slot_of = |slot: u32| slots.get(slot);
        let mut kept = self.hear(&slot_of, now_us);
        if !canceled.is_empty() {
            let is_over = |piece: &WorkPiece| canceled.has_for(piece, CANCELED_KEPT_US, now_us);
            self.drop_canceled(&is_over, &slot_of);
        }
        kept.extend(self.go_on(&slot_of, idle, now_us)?);
        if let Some((mode, message)) = self.news() {
            cx.note(Note::new("storage", mode, message))?;
        }
        tell(cx, kept)
    }

    /// The pilot leaves: bring to the bundle what it takes in time, give up the rest.
    pub fn leave(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let until_us = until_us(cx);
        loop {
            cx.now_us = monotonic_us();
            self.step(cx)?;
            let is_over = cx.life.stops_copies(cx.now_us) || cx.now_us >= until_us || cx.signals.is_pending();
            if is_over || !(self.is_copying(cx.now_us) || self.is_logging()) {
                break;
            }
            self.wait(LOOK_US)?;
        }
        let kept = self.abandon(false);
        self.give_up(cx, kept)
    }

    /// Make everything safe in time, and end the archive; what is not safe then goes back.
    pub fn finish(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let mut until_us = until_us(cx);
        self.end_archive()?;
        loop {
            cx.now_us = monotonic_us();
            if cx.signals.is_pending() {
                until_us = until_us.min(cx.now_us + STOP_US); // it left in peace, and has to hurry now
            }
            let slots = &cx.slots;
            let kept = self.hear(&|slot: u32| slots.get(slot), cx.now_us);
            tell(cx, kept)?;
            if !self.is_syncing() || self.hopeless(cx.now_us).is_some() || cx.now_us >= until_us {
                break;
            }
            self.wait(LOOK_US)?;
        }
        let kept = self.abandon(true);
        if self.is_syncing() {
            LOG.warning("storage.hangs", &[("results_given_back", &kept.len())]);
        }
        self.give_up(cx, kept)?;
        let logs_lost = self.take_lost_logs();
        if logs_lost > 0 {
            LOG.warning("logs.lost", &[("count", &logs_lost)]);
        }
        Ok(())
    }

    /// Events whose outputs the storage has not taken when the pilot leaves: they go back unharmed. Of each job one piece
    /// says why, as a failure that counts for nothing.
    fn give_up(&mut self, cx: &mut Context, kept: Vec<Kept>) -> Result<(), PilotError> {
        for each in kept {
            match each {
                Kept::Refused { piece, slot, message }
                    if !cx.report.canceled.has(&piece) && self.explained.insert(piece.job) =>
                {
                    let fields: [log::Field<'_>; 3] =
                        [("job", &piece.job), ("first", &piece.first), ("cause", &message)];
                    LOG.warning("outputs.refused", &fields);
                    cx.fail(&piece, slot, ("node", &message))?;
                }
                other => tell(cx, vec![other])?,
            }
        }
        Ok(())
    }
}

/// Drop outputs of work that is no longer wanted.
fn drop_outputs(cx: &Context, slot: u32, done: &Done) {
    keeper::remove_outputs(cx.slots.get(slot), done);
}

/// The time until which a pilot that leaves waits for its storage.
fn until_us(cx: &Context) -> u64 {
    match cx.life.phase() {
        Phase::Stopping(leaving) => leaving.since_us + STOP_US,
        _ => {
            let ends_us = cx.life.ends_us().unwrap_or(u64::MAX);
            (monotonic_us() + PEACE_US).min(ends_us.saturating_sub(END_US))
        }
    }
}

/// Record what became of outputs.
fn tell(cx: &mut Context, kept: Vec<Kept>) -> Result<(), PilotError> {
    for each in kept {
        match each {
            Kept::Safe(done) => cx.report.add(Record::Done(done), cx.now_us)?,
            Kept::Lost { piece, .. } | Kept::Orphaned { piece } | Kept::Refused { piece, .. }
                if cx.report.canceled.has(&piece) => {}
            Kept::Lost { piece, slot, message } => {
                LOG.warning(
                    "outputs.lost",
                    &[("job", &piece.job), ("first", &piece.first), ("cause", &message)],
                );
                cx.fail(&piece, slot, ("payload", &message))?;
            }
            Kept::Orphaned { piece } | Kept::Refused { piece, .. } => cx.run_again(piece)?,
        }
    }
    Ok(())
}
