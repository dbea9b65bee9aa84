//! What the lead says, and what the pilot does about it.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_slot::ToSlot;
use tidemill_wire::LeadMessage;

use crate::error::{PilotError, LOG};
use crate::lead::link::LinkEvent;
use crate::leaving::Phase;
use crate::leaving::Reason;
use crate::pilot::Pilot;
use crate::setup::Admitted;
use crate::slots::TOLD_MAX;
use crate::work::piece::Piece;

impl Pilot {
    /// Read and connect; do what the lead says.
    pub(crate) fn talk(&mut self, now_us: u64) -> Result<(), PilotError> {
        if !self.source.is_open() {
            // what Hello does not hold must have its record on the way
            self.records.seal()?;
        }
        let (binding, keeper, setups) = (&self.binding, &self.keeper, &self.setups);
        let held = || {
            let mut held = binding.held();
            held.extend(keeper.held());
            held.extend(setups.held());
            held
        };
        for event in self.source.advance(now_us, &held) {
            match event {
                LinkEvent::Up { acked } => {
                    LOG.info("lead.joined", &[("acked", &acked)]);
                    self.asked = None;
                    self.catching_up = true;
                    self.permits.waiting.reconnected();
                    self.safe_us = now_us;
                    self.records.reconnected(acked);
                    let steps = self.staging.stager.connected(now_us);
                    self.act_stage(steps, now_us)?;
                }
                LinkEvent::Lost { cause } => LOG.warning("lead.lost", &[("cause", &cause)]),
                LinkEvent::Message(message) => self.follow(message, now_us)?,
                LinkEvent::Revoked => {
                    let dropped = self.binding.drain_queue().len() + self.setups.drop_waiting().len();
                    LOG.warning("work.revoked", &[("pieces", &dropped)]);
                }
            }
        }
        Ok(())
    }

    /// Why a job can never run on this node, said once.
    fn tell_no_fit(&mut self, piece: &Piece, why: &str, now_us: u64) -> Result<(), PilotError> {
        if self.told.len() >= TOLD_MAX || !self.told.insert(why.to_owned()) {
            return Ok(());
        }
        let program = self.binding.job(piece.job).map(|job| job.program);
        self.note(
            ("memory", "no_fit", why.to_owned()),
            program,
            BTreeMap::new(),
            now_us,
        )
    }

    fn follow(&mut self, message: LeadMessage, now_us: u64) -> Result<(), PilotError> {
        match message {
            LeadMessage::Work(work) => {
                self.asked = None;
                for grant in &work.grants {
                    self.canceled.remove(&grant.job); // its owner retries it
                }
                let admitted = self.setups.take(work, now_us);
                self.admit(admitted, now_us)?;
                if !matches!(self.phase, Phase::Working) {
                    self.return_queue(now_us)?;
                }
            }
            LeadMessage::Ack(ack) => {
                self.records.acknowledge(ack.acked);
                self.safe_us = now_us;
            }
            LeadMessage::Cancel(cancel) => {
                LOG.info("jobs.canceled", &[("jobs", &cancel.jobs)]);
                self.canceled.extend(&cancel.jobs);
                self.setups.cancel(&cancel.jobs);
                for (slot, job) in self.binding.cancel(&cancel.jobs) {
                    self.tell(slot, &ToSlot::CancelJob { job }, now_us)?;
                }
            }
            LeadMessage::Drain(drain) => {
                let reason = match drain.reason.as_str() {
                    "stop" => Reason::Stop,
                    "dead_agent" => Reason::DeadAgent,
                    _ => Reason::Drain,
                };
                self.drain(reason, &drain.reason, now_us)?;
            }
            LeadMessage::Source(source) => {
                let steps = self.staging.stager.told(source);
                self.act_stage(steps, now_us)?;
            }
            LeadMessage::Deadline(deadline) => self.end_at(deadline.at_us, now_us)?,
            LeadMessage::Permit(permit) => self.hear_permit(&permit, now_us)?,
            LeadMessage::Beat(_) | LeadMessage::Challenge(_) | LeadMessage::Welcome(_) => {}
        }
        Ok(())
    }

    /// Take up work whose set-up is known, fail what waited for one that failed, record how it became known.
    pub(crate) fn admit(&mut self, admitted: Admitted, now_us: u64) -> Result<(), PilotError> {
        for news in admitted.news {
            LOG.info(
                "setup.known",
                &[
                    ("key", &news.key),
                    ("mode", &news.mode),
                    ("message", &news.message),
                ],
            );
            let numbers = BTreeMap::from([(String::from("variables"), news.variables as i64)]);
            let message = format!("{}: {}", news.key, news.message);
            self.note(("setup", news.mode, message), None, numbers, now_us)?;
        }
        for (grant, why) in admitted.failed {
            self.fail_in_slot(&Piece::from(grant), 0, ("payload_setup", &why), now_us)?;
        }
        for grant in admitted.returned {
            self.give_back(&Piece::from(grant), "slot", now_us)?; // the lead gives it to others for a while
        }
        let Some(work) = admitted.work else {
            return Ok(());
        };
        let jobs: BTreeSet<u64> = work.grants.iter().map(|grant| grant.job).collect();
        let refused = self.binding.take_work(work, now_us);
        for (piece, why) in &refused.no_fit {
            self.tell_no_fit(piece, why, now_us)?;
            self.give_back(piece, "no_fit", now_us)?;
        }
        for piece in &refused.no_image {
            self.give_back(piece, "slot", now_us)?; // the lead gives it to others for a while
        }
        if self.source.is_files() {
            for piece in &refused.unknown {
                self.give_back(piece, "slot", now_us)?;
            }
        } else if !refused.unknown.is_empty() {
            // definitions are told once per connection, and we drop those of jobs that are over: a new one
            // brings them again, and the work that our Hello does not hold with them
            self.source
                .reset(now_us, "it gave work of a job that is over here");
        }
        self.stage_inputs(&jobs, now_us)
    }

    /// Set-ups that have become known.
    pub(crate) fn hear_setups(&mut self, now_us: u64) -> Result<(), PilotError> {
        let admitted = self.setups.look(now_us);
        self.admit(admitted, now_us)
    }
}
