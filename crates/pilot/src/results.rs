//! What slots tell, and what slots are told.

use std::path::PathBuf;

use tidemill_slot::{Done, Failed, FromSlot, PayloadLog, Slot, SlotSpec, ToSlot};
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::{log, Record};

use crate::error::{PilotError, LOG};
use crate::keep::bundle::Member;
use crate::keep::{self, Kept};
use crate::leaving::{Reason, COPY_US};
use crate::pilot::Pilot;
use crate::work::piece::Piece;
use crate::work::Action;

/// After so many deaths of slots without a Done between them, the oldest work of the next one that dies failed.
const DEATHS_SUSPECT: u32 = 3;
/// After so many the node is not fit for work.
const DEATHS_MAX: u32 = 6;
const STDERR_TAIL_BYTES: usize = 4096;
const LIVES_MAX: usize = 100_000;

impl Pilot {
    /// Do what the binding decided.
    pub(crate) fn act(&mut self, actions: Vec<Action>, now_us: u64) -> Result<(), PilotError> {
        for action in actions {
            match action {
                Action::Create { slot, shape, share } => self.create_slot(slot, &shape, share, now_us)?,
                Action::Destroy { slot } => self.end_slot(slot),
                Action::TellProgram { slot, program } => {
                    if let Some(program) = self.binding.program(program).cloned() {
                        let program = self.first_traces.told_to(slot, program);
                        self.tell(slot, &ToSlot::Program(program), now_us)?;
                    }
                }
                Action::TellJob { slot, job } => {
                    if let Some(job) = self.binding.job(job).cloned() {
                        let job = if self.staging.blind.contains(&slot) {
                            job
                        } else {
                            self.staging.stager.with_held(job)
                        };
                        self.tell(slot, &ToSlot::Job(job), now_us)?;
                    }
                }
                Action::Run { slot, ticket, piece } => {
                    let Piece {
                        job,
                        first,
                        count,
                        chunk_max,
                        ..
                    } = piece;
                    self.tell(
                        slot,
                        &ToSlot::Run {
                            ticket,
                            job,
                            first,
                            count,
                            chunk_max,
                        },
                        now_us,
                    )?;
                }
                Action::Forget { slot, job } => self.tell(slot, &ToSlot::Forget { job }, now_us)?,
                Action::Bring {
                    sha256,
                    limit_mb,
                    by_files,
                } => self.bring_image(&sha256, (limit_mb, by_files), now_us)?,
                Action::Drop { sha256 } => self.drop_image(&sha256, now_us)?,
                Action::DropInput { sha256 } => self.drop_input(&sha256, now_us)?,
                Action::FailImage { sha256, message } => self.fail_image(&sha256, &message, now_us)?,
            }
        }
        Ok(())
    }

    /// Tell a slot; one that cannot be told is dead. One that died a moment ago has given its work back already.
    pub(crate) fn tell(&mut self, slot: u32, message: &ToSlot, now_us: u64) -> Result<(), PilotError> {
        let Some(target) = self.slots.get_mut(&slot) else {
            return Ok(());
        };
        match target.send(message) {
            Ok(()) => Ok(()),
            Err(error) => self.lose_slot(slot, &log::cause(&error), now_us),
        }
    }

    /// Kill a slot that has no work.
    pub(crate) fn end_slot(&mut self, slot: u32) {
        if let Some(ended) = self.slots.remove(&slot) {
            self.kill_slot(ended);
            LOG.info("slot.ended", &[("slot", &slot)]);
        }
        self.close_life(slot);
    }

    /// Kill a slot; what is not over at once is left to itself.
    pub(crate) fn kill_slot(&mut self, slot: Slot) {
        let index = slot.index();
        let left = slot.kill();
        if !left.is_empty() {
            LOG.warning("slot.lingers", &[("slot", &index), ("pids", &left)]);
        }
        self.lingering.extend(left);
    }

    fn close_life(&mut self, slot: u32) {
        self.permits.waiting.gone(slot);
        self.first_traces.gone(slot);
        self.staging.blind.remove(&slot);
        if let Some(made_us) = self.tally.made_us.remove(&slot) {
            if self.tally.lives.len() < LIVES_MAX {
                self.tally.lives.push((made_us, realtime_us()));
            }
        }
    }

    /// A slot died or never came up: its work goes back, and after repeated deaths its oldest work failed.
    pub(crate) fn lose_slot(&mut self, slot: u32, cause: &str, now_us: u64) -> Result<(), PilotError> {
        self.slot_deaths += 1;
        LOG.warning(
            "slot.lost",
            &[("slot", &slot), ("cause", &cause), ("deaths", &self.slot_deaths)],
        );
        let lost = self.binding.lose_slot(slot);
        if let Some(dead) = self.slots.remove(&slot) {
            self.kill_slot(dead);
        }
        self.close_life(slot);
        for (place, piece) in lost.into_iter().enumerate() {
            if place == 0 && self.slot_deaths >= DEATHS_SUSPECT {
                let message = format!(
                    "slots died {} times in a row, the last one: {cause}",
                    self.slot_deaths
                );
                self.fail_in_slot(&piece, slot, ("node", &message), now_us)?;
            } else {
                self.run_again(piece, now_us)?;
            }
        }
        if self.slot_deaths >= DEATHS_MAX {
            self.slot_ready = false;
            self.drain(
                Reason::Error,
                &format!("slots die again and again: {cause}"),
                now_us,
            )?;
        }
        Ok(())
    }

    /// Read everything that slots have told.
    pub(crate) fn hear_slots(&mut self, now_us: u64) -> Result<(), PilotError> {
        let mut told = Vec::new();
        for slot in self.binding.slot_ids() {
            let Some(source) = self.slots.get_mut(&slot) else {
                continue;
            };
            let mut result = Ok(());
            if source.wants_write() {
                result = source.flush();
            }
            let result = result.and_then(|()| source.receive(&mut told));
            for message in told.drain(..) {
                self.hear(slot, message, now_us)?;
            }
            match result {
                Ok(true) => {}
                Ok(false) => self.lose_slot(slot, "it ended", now_us)?,
                Err(error) => self.lose_slot(slot, &log::cause(&error), now_us)?,
            }
        }
        Ok(())
    }

    fn hear(&mut self, slot: u32, message: FromSlot, now_us: u64) -> Result<(), PilotError> {
        match message {
            FromSlot::Done(done) => self.hear_done(slot, done, now_us),
            FromSlot::Failed(failed) => self.hear_failed(slot, failed, now_us),
            FromSlot::Returned {
                ticket,
                first,
                count,
                reason,
                ..
            } => {
                let Some(piece) = self.settle(slot, ticket, first, count) else {
                    return Ok(());
                };
                if reason == "again" && !self.canceled.contains(&piece.job) {
                    return self.run_again(piece, now_us);
                }
                let reason = self.phase.returned().unwrap_or(match reason.as_str() {
                    "walltime" => "walltime",
                    "cancel" => "cancel",
                    "drain" => "drain",
                    "yield" => "yield",
                    _ => "slot",
                });
                self.give_back(&piece, reason, now_us)
            }
            FromSlot::Log(PayloadLog {
                job,
                first,
                count,
                stdout,
                stderr,
                truncated,
                ..
            }) => {
                self.take_logs((job, first, count, truncated), &stdout, &stderr);
                Ok(())
            }
            FromSlot::Traced {
                program,
                ops,
                failed,
                log,
            } => self.take_trace(program, (ops, failed), &log, now_us),
            FromSlot::Want { program } => self.hear_want(slot, program, now_us),
            FromSlot::Idle => {
                self.permits.waiting.gone(slot);
                Ok(())
            }
            FromSlot::Up { .. } => Ok(()),
        }
    }

    fn settle(&mut self, slot: u32, ticket: u64, first: u64, count: u64) -> Option<Piece> {
        let piece = self.binding.settle(slot, ticket, first, count);
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

    fn hear_done(&mut self, slot: u32, mut done: Done, now_us: u64) -> Result<(), PilotError> {
        let Some(piece) = self.settle(slot, done.ticket, done.first, done.count) else {
            return Ok(());
        };
        self.slot_deaths = 0;
        self.count(done.started_us, done.ended_us, done.wall_us);
        self.binding.measure(
            done.job,
            done.count,
            done.wall_us.saturating_sub(done.setup_us) as f64 / 1e6,
        );
        self.forget_settled(done.job, done.count);
        let (stdout, stderr) = (std::mem::take(&mut done.stdout), std::mem::take(&mut done.stderr));
        self.take_logs(
            (done.job, done.first, done.count, done.truncated),
            &stdout,
            &stderr,
        );
        if self.canceled.contains(&piece.job) {
            return Ok(());
        }
        if done.outputs.is_empty() {
            self.flush_since_us.get_or_insert(now_us);
            self.records
                .add_open(keep::record(&done, &piece, slot, Vec::new()));
            return Ok(());
        }
        let kept = match self.slots.get(&slot) {
            Some(source) => {
                let stop = || self.phase.is_past(monotonic_us(), COPY_US) || self.signals.is_pending();
                self.keeper.take(source, (done, piece), &stop, now_us)
            }
            None => Some(Kept::Orphaned { piece }),
        };
        self.tell_kept(kept.into_iter().collect(), now_us)
    }

    fn hear_failed(&mut self, slot: u32, failed: Failed, now_us: u64) -> Result<(), PilotError> {
        if self.lost_its_image(slot, (failed.signal, &failed.stderr), now_us)? {
            return Ok(());
        }
        let Some(piece) = self.settle(slot, failed.ticket, failed.first, failed.count) else {
            return Ok(());
        };
        self.count(
            failed.at_us.saturating_sub(failed.wall_us),
            failed.at_us,
            failed.wall_us,
        );
        let tail = failed.stderr.len().saturating_sub(STDERR_TAIL_BYTES);
        let stderr_tail = String::from_utf8_lossy(&failed.stderr[tail..]).into_owned();
        self.take_logs(
            (failed.job, failed.first, failed.count, false),
            &failed.stdout,
            &failed.stderr,
        );
        if self.canceled.contains(&piece.job) {
            return Ok(());
        }
        self.add(
            Record::Failed(tidemill_wire::Failed {
                p: String::new(),
                s: 0,
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
            }),
            now_us,
        )
    }

    /// Record what became of outputs.
    pub(crate) fn tell_kept(&mut self, kept: Vec<Kept>, now_us: u64) -> Result<(), PilotError> {
        for each in kept {
            match each {
                Kept::Safe(done) => self.add(Record::Done(done), now_us)?,
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
                    self.fail_in_slot(&piece, slot, (failure, &message), now_us)?;
                }
                Kept::Orphaned { piece } => self.run_again(piece, now_us)?,
            }
        }
        Ok(())
    }

    /// Events that went down with their slot or payload: first in the queue, or back to the lead when we leave.
    pub(crate) fn run_again(&mut self, piece: Piece, now_us: u64) -> Result<(), PilotError> {
        if let Some(reason) = self.phase.returned() {
            return self.give_back(&piece, reason, now_us);
        }
        match self.binding.requeue(piece, now_us) {
            None => Ok(()),
            Some(unknown) => self.give_back(&unknown, "slot", now_us),
        }
    }

    /// Record that events cannot begin: their image cannot be had.
    pub(crate) fn fail_without_slot(
        &mut self,
        piece: &Piece,
        message: &str,
        now_us: u64,
    ) -> Result<(), PilotError> {
        if self.canceled.contains(&piece.job) {
            return Ok(());
        }
        self.fail_in_slot(piece, 0, ("image", message), now_us)
    }

    /// Record a failure that no payload reported.
    pub(crate) fn fail_in_slot(
        &mut self,
        piece: &Piece,
        slot: u32,
        (failure, message): (&str, &str),
        now_us: u64,
    ) -> Result<(), PilotError> {
        self.add(
            Record::Failed(tidemill_wire::Failed {
                p: String::new(),
                s: 0,
                grant: piece.grant,
                job: piece.job,
                first: piece.first,
                count: piece.count,
                event: None,
                failure: failure.to_owned(),
                message: message.to_owned(),
                exit_status: None,
                signal: None,
                stderr_tail: String::new(),
                slot: slot.into(),
                at_us: realtime_us(),
                wall_us: 0,
                user_us: 0,
                system_us: 0,
            }),
            now_us,
        )
    }

    fn take_logs(
        &mut self,
        (job, first, count, truncated): (u64, u64, u64, bool),
        stdout: &[u8],
        stderr: &[u8],
    ) {
        if stdout.is_empty() && stderr.is_empty() {
            return;
        }
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
            self.keeper.take_log(&member, text, now_us);
        }
    }

    fn count(&mut self, started_us: u64, ended_us: u64, wall_us: u64) {
        let tally = &mut self.tally;
        tally.busy_us += wall_us;
        tally.first_us = Some(
            tally
                .first_us
                .map_or(started_us, |first_us| first_us.min(started_us)),
        );
        tally.last_us = tally.last_us.max(ended_us);
    }

    /// Drop a job's definition once all its events are done: nobody grants them again but by way of a new connection.
    fn forget_settled(&mut self, job: u64, count: u64) {
        let done = self.settled.entry(job).or_insert(0);
        *done += count;
        let events = self.binding.job(job).map_or(0, |def| def.events);
        if *done >= events {
            self.settled.remove(&job);
            self.binding.drop_job(job);
        }
    }
}

/// Isolation of this node's slots, from one that is started and ended at once: `required` fails here and not under way.
pub fn probe(
    isolation: tidemill_slot::Isolation,
    directory: Option<PathBuf>,
) -> Result<(String, String), PilotError> {
    let spec = SlotSpec {
        scratch_mb: 1,
        isolation,
        directory,
        ..SlotSpec::default()
    };
    let slot: Slot = tidemill_slot::start(&spec).map_err(|error| PilotError::Slot {
        message: log::cause(&error),
    })?;
    let (isolated, note) = slot.isolation();
    let answer = (isolated.name().to_owned(), note.to_owned());
    slot.kill();
    Ok(answer)
}
