//! What payloads leave: outputs and logs go into the node's bundle, and a record follows when they are safe there.
//!
//! Knows no lead: a record is done with when it is in the report.

mod bundle;
mod keeper;
mod tar;

use tidemill_slot::{Done, Failed, PayloadLog};
use tidemill_sys::time::monotonic_us;
use tidemill_wire::Record;

use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::report::Note;
pub use bundle::Bundle;
use bundle::Member;
pub use keeper::Keeper;
use keeper::Kept;

const STDERR_TAIL_BYTES: usize = 4096;
/// Outputs that a job left before it was canceled are made durable at once for this time: its site waits for them.
const HURRY_US: u64 = 3_000_000;
/// ... and those that have found no room after this time are dropped.
const CANCELED_KEPT_US: u64 = 20_000_000;

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
        let kept = match cx.slots.get(slot) {
            Some(source) => self.take(source, (done, piece), &stop(cx), cx.now_us),
            None => Some(Kept::Orphaned { piece }),
        };
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
        self.take_failed();
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
        let now_us = monotonic_us();
        for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
            let member = Member {
                kind: "log",
                name,
                job,
                first,
                count,
                truncated,
            };
            self.take_log(member, text, now_us);
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
        let member = Member {
            kind: "profile",
            name: "profile",
            job: log.job,
            first: log.first,
            count: log.count,
            truncated: false,
        };
        self.take_log(member, &log.stdout, cx.now_us);
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

    /// Try again what found no room or was interrupted; fsync what is due.
    pub fn step(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let since_us = cx.now_us.saturating_sub(cx.report.canceled_at_us);
        if since_us > CANCELED_KEPT_US {
            let canceled = &cx.report.canceled;
            self.drop_canceled(canceled, |slot| cx.slots.get(slot), cx.now_us);
        }
        self.retry_copies(cx)?;
        let idle = cx.work.is_waiting() || since_us < HURRY_US;
        let kept = self.sync_if_due(cx.now_us, idle);
        tell(cx, kept)
    }

    fn retry_copies(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let kept = self.retry(|slot| cx.slots.get(slot), &stop(cx), cx.now_us);
        tell(cx, kept)
    }

    /// The pilot leaves: copy what can be copied, give up the rest.
    pub fn leave(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        self.retry_copies(cx)?;
        while self.is_copying() && !stop(cx)() {
            self.retry_copies(cx)?;
        }
        let kept = self.abandon(cx.now_us);
        tell(cx, kept)
    }

    /// Make everything safe and end the archive.
    pub fn finish(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let kept = self.sync(cx.now_us);
        tell(cx, kept)?;
        let logs_lost = self.end_archive();
        if logs_lost > 0 {
            LOG.warning("logs.lost", &[("count", &logs_lost)]);
        }
        Ok(())
    }
}

/// Outputs that nobody asks for any more.
fn drop_outputs(cx: &Context, slot: u32, done: &Done) {
    if let Some(source) = cx.slots.get(slot) {
        keeper::remove_outputs(source, done);
    }
}

/// Whether a copy should end now.
fn stop(cx: &Context) -> impl Fn() -> bool + '_ {
    || cx.life.stops_copies(monotonic_us()) || cx.signals.is_pending()
}

/// Record what became of outputs.
fn tell(cx: &mut Context, kept: Vec<Kept>) -> Result<(), PilotError> {
    for each in kept {
        match each {
            Kept::Safe(done) => cx.report.add(Record::Done(done), cx.now_us)?,
            Kept::Lost {
                piece,
                slot,
                failure,
                message,
            } => {
                LOG.warning(
                    "outputs.lost",
                    &[("job", &piece.job), ("first", &piece.first), ("cause", &message)],
                );
                cx.fail(&piece, slot, (failure, &message))?;
            }
            Kept::Orphaned { piece } if cx.report.canceled.has(&piece) => {}
            Kept::Orphaned { piece } => cx.run_again(piece)?,
        }
    }
    Ok(())
}
