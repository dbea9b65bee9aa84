//! The lead's orders, and how the parts carry them out.

use std::collections::BTreeSet;

use tidemill_slot::ToSlot;
use tidemill_wire::{LeadMessage, Work};

use super::Pilot;
use crate::error::{PilotError, LOG};
use crate::lead::link::{LinkEvent, Standing};
use crate::life::{Change, Reason};
use crate::report::Note;
use crate::setup::Admitted;

impl Pilot {
    /// Read and connect; do what the lead orders.
    pub(super) fn hear_lead(&mut self) -> Result<(), PilotError> {
        let cx = &mut self.cx;
        if !cx.lead.is_open() {
            // what Hello does not hold must have its record on the way
            cx.report.records.seal()?;
        }
        let (work, records) = (&cx.work, &cx.report.records);
        let standing = || {
            let mut held = work.held();
            held.extend(self.keep.held());
            held.extend(self.setups.held());
            let (acked, journaled) = records.safe();
            Standing {
                held,
                acked,
                journaled,
            }
        };
        for event in cx.lead.advance(cx.now_us, &standing) {
            match event {
                LinkEvent::Up { acked } => self.joined(acked)?,
                LinkEvent::Message(message) => self.follow(message)?,
                LinkEvent::Revoked => {
                    let dropped = self.cx.work.drain_queue().len() + self.setups.drop_waiting().len();
                    LOG.warning("work.revoked", &[("pieces", &dropped)]);
                }
            }
        }
        Ok(())
    }

    fn joined(&mut self, acked: u64) -> Result<(), PilotError> {
        LOG.info("lead.joined", &[("acked", &acked)]);
        self.asking.again();
        self.permits.connected();
        self.cx.report.connected(acked, self.cx.now_us);
        self.supply.connected(&mut self.cx)
    }

    fn follow(&mut self, message: LeadMessage) -> Result<(), PilotError> {
        let cx = &mut self.cx;
        match message {
            LeadMessage::Work(work) => {
                self.asking.again();
                let held = || self.keep.held().into_iter().chain(cx.work.held()).collect();
                cx.report.canceled.granted(&work.grants, held);
                let admitted = self.setups.take(work, cx.now_us);
                self.admit(admitted)?;
                if !self.cx.life.is_working() {
                    self.return_queue()?;
                }
            }
            LeadMessage::Ack(ack) => cx.report.acknowledge(ack.acked, cx.now_us),
            LeadMessage::Cancel(cancel) => {
                LOG.info("jobs.canceled", &[("jobs", &cancel.jobs)]);
                cx.report.canceled.add(&cancel.jobs, cx.now_us);
                self.setups.cancel(&cancel.jobs);
                for (slot, job) in cx.work.cancel(&cancel.jobs) {
                    cx.slots.tell(slot, &ToSlot::CancelJob { job });
                    cx.slots.tell(slot, &ToSlot::Forget { job });
                }
                let withdrawn = cancel.events.unwrap_or_default();
                if !withdrawn.is_empty() {
                    LOG.info("events.withdrawn", &[("parts", &withdrawn.len())]);
                }
                self.setups.withdraw(&withdrawn);
                for (slot, ticket, first, count) in cx.work.withdraw(&withdrawn) {
                    cx.slots
                        .tell(slot, &ToSlot::CancelEvents { ticket, first, count });
                }
            }
            LeadMessage::Drain(drain) => {
                let reason = match drain.reason.as_str() {
                    "stop" => Reason::Stop,
                    "dead_agent" => Reason::DeadAgent,
                    _ => Reason::Drain,
                };
                self.change(Change::Drain(reason, drain.reason))?;
            }
            LeadMessage::Source(source) => self.supply.sourced(cx, source)?,
            LeadMessage::Deadline(deadline) => {
                cx.life.end_at(deadline.at_us, cx.now_us);
                self.asking.again(); // the lead gives what fits the time that we said
                let monotonic_us = cx.life.deadline_us();
                cx.tell_all(&ToSlot::Deadline { monotonic_us });
            }
            LeadMessage::Permit(permit) => self.permits.permit(cx, permit)?,
            LeadMessage::Beat(_) | LeadMessage::Challenge(_) | LeadMessage::Welcome(_) => {}
        }
        Ok(())
    }

    /// Take up work whose set-up is known, fail what waited for one that failed, record how it became known.
    pub(super) fn admit(&mut self, admitted: Admitted) -> Result<(), PilotError> {
        for news in admitted.news {
            LOG.info(
                "setup.known",
                &[
                    ("key", &news.key),
                    ("mode", &news.mode),
                    ("message", &news.message),
                ],
            );
            let message = format!("{}: {}", news.key, news.message);
            let note = Note::new("setup", news.mode, message).number("variables", news.variables);
            self.cx.note(note)?;
        }
        for (grant, why) in admitted.failed {
            self.cx.fail(&grant, 0, ("payload_setup", &why))?;
        }
        for grant in admitted.returned {
            self.cx.give_back(&grant, "slot")?; // the lead gives it to other pilots for a while
        }
        match admitted.work {
            Some(work) => self.take_up(work),
            None => Ok(()),
        }
    }

    fn take_up(&mut self, work: Work) -> Result<(), PilotError> {
        let cx = &mut self.cx;
        let jobs: BTreeSet<u64> = work.grants.iter().map(|grant| grant.job).collect();
        let refused = cx.work.take_work(work, cx.now_us);
        for (piece, why) in &refused.no_fit {
            let program = cx.work.job(piece.job).map(|job| job.program);
            cx.note_once(Note::new("memory", "no_fit", why).of(program, None))?;
            cx.give_back(piece, "no_fit")?;
        }
        for piece in &refused.no_image {
            cx.give_back(piece, "slot")?; // the lead gives it to other pilots for a while
        }
        if cx.lead.is_files() {
            for piece in &refused.unknown {
                cx.give_back(piece, "slot")?;
            }
        } else if !refused.unknown.is_empty() {
            // the lead sends definitions once per connection, and the pilot drops those of finished jobs: a new
            // connection brings them again, with the work that Hello does not list as held
            cx.lead
                .reset(cx.now_us, "it gave work of a job that is over here");
        }
        self.supply.bring_inputs(cx, &jobs)
    }
}
