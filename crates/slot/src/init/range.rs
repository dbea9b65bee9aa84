//! Ranges to and from a persistent payload.

use tidemill_sys::time;

use super::batch_term;
use super::finish::STDERR_TAIL_BYTES;
use super::job::Job;
use super::payload::{Kind, Payload, Verdict};
use super::range_protocol::{Settled, Talk};
use super::Init;
use crate::protocol::Line;
use crate::queue::Events;
use crate::{Done, Failed, FromSlot, SlotOutput};

impl Init {
    /// Answers requests for ranges from the queue; holds them while there is no work; sends `end` when the payload
    /// should make room for another job.
    pub(super) fn hand_out(&mut self) {
        let Some(mut payload) = self.payload.take() else {
            return;
        };
        if payload.talk().is_none() {
            self.payload = Some(payload);
            return;
        }
        let id = payload.job;
        if let Some(job) = self.jobs.remove(&id) {
            if let Some(talk) = payload.talk() {
                self.answer(talk, &job);
                talk.flush();
            }
            self.jobs.insert(id, job);
        }
        self.payload = Some(payload);
    }

    fn answer(&mut self, talk: &mut Talk, job: &Job) {
        let id = job.def.job;
        while let Some(&events_max) = talk.asked.front() {
            if self.control.overfull() {
                return;
            }
            if self.queue.of_job(id).is_none() {
                break;
            }
            let ahead = talk.outstanding();
            let size = self.size(job, ahead).min(events_max.unwrap_or(u64::MAX));
            if size == 0 {
                // with nothing in its hands even an idle payload could not do it
                self.return_run(id, "walltime");
                continue;
            }
            let Some(events) = self.queue.take(id, size) else {
                break;
            };
            if self.provide_each(job, events) {
                talk.give(events, job.seed(events.first), time::monotonic_us());
                talk.asked.pop_front();
            }
        }
        let leave = self.draining.is_some() || job.forgotten || !self.queue.is_empty();
        let listens = talk.ready && (!talk.asked.is_empty() || talk.idle());
        if leave && listens && self.queue.of_job(id).is_none() {
            talk.end(time::monotonic_us());
        }
    }

    /// Copies the files of these events; false when that failed and the events are settled.
    fn provide_each(&mut self, job: &Job, events: Events) -> bool {
        let control = &mut self.control;
        let range = (events.first, events.count);
        let copied = job
            .inputs
            .copy_each(&self.scratch.place, &job.def, range, &mut || !control.urgent());
        let Err(error) = copied else {
            return true;
        };
        if error.failure == "preempted" {
            self.give_back(events, "yield");
            return false;
        }
        self.fail(Failed {
            ticket: events.ticket,
            job: events.job,
            first: events.first,
            count: events.count,
            failure: error.failure.to_owned(),
            message: error.message,
            at_us: time::realtime_us(),
            ..Failed::default()
        });
        false
    }

    /// Reads what a persistent payload says. A wrong line is its end.
    pub(super) fn hear(&mut self) {
        if self.take_signals() {
            return self.recall(batch_term::RUN_AGAIN);
        }
        let Some(mut payload) = self.payload.take_if(|payload| !payload.taken) else {
            return;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        if let Some(talk) = payload.talk() {
            talk.read(&mut buffer);
        }
        self.buffer = buffer;
        self.understand(&mut payload);
        let wrong = payload.verdict.is_some();
        self.payload = Some(payload);
        if wrong {
            self.kill();
        }
    }

    /// Works off the lines that have been read.
    pub(super) fn understand(&mut self, payload: &mut Payload) {
        let id = payload.job;
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        let now_us = time::monotonic_us();
        let started = (payload.started_us, payload.started_at_us);
        let mut setup_us = payload.setup_us;
        if let Kind::Range(talk) = &mut payload.kind {
            let heard = talk.lines(&mut |talk, line| {
                if line == Line::Ready && !talk.ready {
                    setup_us = now_us - started.0;
                }
                self.heard(talk, (&mut job, &mut setup_us), line, now_us)
            });
            if let Err(message) = heard {
                payload.verdict.get_or_insert(Verdict {
                    failure: "payload",
                    message,
                });
            }
        }
        payload.setup_us = setup_us;
        self.jobs.insert(id, job);
    }

    fn heard(
        &mut self,
        talk: &mut Talk,
        (job, setup_us): (&mut Job, &mut u64),
        line: Line,
        now_us: u64,
    ) -> Result<(), String> {
        match line {
            Line::Ready if talk.ready => return Err("said `ready` before".to_owned()),
            Line::Ready => {
                talk.ready = true;
                talk.progress_us = now_us;
            }
            Line::Beat => talk.progress_us = now_us,
            Line::Log { message } => self.streams.note(&format!("{message}\n")),
            _ if !talk.ready => return Err("before `ready`".to_owned()),
            Line::Next { events_max } => {
                talk.ask(events_max)?;
                // answered at once, so that a done and the next range share a wake-up
                if talk.asked.len() == 1 {
                    self.answer(talk, job);
                }
            }
            Line::Failed { event, message } => {
                let piece = talk.settle(event, 1, now_us)?;
                self.finish_range(job, piece);
                let message = if message.is_empty() {
                    "the payload gave no reason".to_owned()
                } else {
                    message
                };
                let stderr = &self.streams.stderr;
                let printed = (stderr.total(), || stderr.last(STDERR_TAIL_BYTES));
                let (message, stderr) = talk.failure(event, message, printed);
                self.fail(Failed {
                    event: Some(event),
                    message,
                    stderr,
                    ..failed(piece.events, "payload", piece.wall_us)
                });
            }
            Line::Done {
                first,
                count,
                outputs,
            } => {
                check_names(job, &outputs)?;
                let piece = talk.settle(first, count, now_us)?;
                self.finish_range(job, piece);
                self.piece_done(job, piece, outputs, setup_us, now_us);
            }
        }
        Ok(())
    }

    fn finish_range(&mut self, job: &mut Job, piece: Settled) {
        if let Some((first, count, wall_us)) = piece.whole {
            let wall_us = if piece.events.count == count {
                piece.wall_us
            } else {
                wall_us
            };
            job.pace.measure(count, wall_us);
            job.inputs
                .remove_each(&self.scratch.place, &job.def, (first, count));
        }
    }

    fn piece_done(
        &mut self,
        job: &Job,
        piece: Settled,
        outputs: Vec<(String, String)>,
        setup_us: &mut u64,
        now_us: u64,
    ) {
        let missing = job
            .program
            .outputs
            .iter()
            .find(|def| !outputs.iter().any(|(name, _)| *name == def.name));
        let moved: Result<Vec<SlotOutput>, String> = match missing {
            Some(def) => Err(format!("output `{}` missing: `done` did not name it", def.name)),
            None if outputs.is_empty() => Ok(Vec::new()),
            None => self.scratch.put_aside(&outputs),
        };
        let Events {
            ticket,
            job: id,
            first,
            count,
        } = piece.events;
        match moved {
            Err(message) => {
                let failed = failed(piece.events, "payload", piece.wall_us);
                self.fail(Failed { message, ..failed });
            }
            Ok(outputs) => {
                let ended_us = time::realtime_us();
                let done = Done {
                    ticket,
                    job: id,
                    first,
                    count,
                    started_us: ended_us.saturating_sub(piece.wall_us),
                    ended_us,
                    wall_us: piece.wall_us,
                    setup_us: std::mem::take(setup_us),
                    outputs,
                    ..Done::default()
                };
                self.add_piece(done, now_us);
            }
        }
    }

    /// Stdout and stderr of a persistent payload that has ended.
    pub(super) fn tell_log(&mut self, job: u64, span: Option<Events>) {
        if self.streams.printed() == 0 {
            return;
        }
        let span = span.unwrap_or(Events {
            job,
            ..Events::default()
        });
        self.control.put(FromSlot::Log(crate::PayloadLog {
            ticket: span.ticket,
            job,
            first: span.first,
            count: span.count,
            stdout: self.streams.stdout.text(),
            stderr: self.streams.stderr.text(),
            truncated: self.streams.stdout.truncated() || self.streams.stderr.truncated(),
        }));
    }
}

/// A failure of these events, now.
pub(super) fn failed(events: Events, failure: &str, wall_us: u64) -> Failed {
    Failed {
        ticket: events.ticket,
        job: events.job,
        first: events.first,
        count: events.count,
        failure: failure.to_owned(),
        at_us: time::realtime_us(),
        wall_us,
        ..Failed::default()
    }
}

fn check_names(job: &Job, outputs: &[(String, String)]) -> Result<(), String> {
    for (index, (name, _)) in outputs.iter().enumerate() {
        if !job.program.outputs.iter().any(|def| def.name == *name) {
            return Err(format!("the application has no output `{name}`"));
        }
        if outputs[..index].iter().any(|(other, _)| other == name) {
            return Err(format!("output `{name}` is named twice"));
        }
    }
    Ok(())
}
