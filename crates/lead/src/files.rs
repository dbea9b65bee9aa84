//! What the lead looks for in the fleet directory: work files, STOP, a newer lead.

use tidemill_wire::log::cause;
use tidemill_wire::{Cancel, LeadMessage};

use crate::address;
use crate::server::{Exit, Lead};
use crate::work::WorkText;

/// Work files per turn.
const FILES_PER_TURN: usize = 16;
/// After a work file that cannot be read, try again so much later.
const RETRY_US: u64 = 1_000_000;

impl Lead {
    /// Look for what is due.
    pub(crate) fn look_at_files(&mut self, now: u64) {
        if now >= self.work_at && !self.ledger.is_closed() {
            self.look_for_work(now);
        }
        if now >= self.stop_at && !self.stopped {
            self.stop_at = now + self.intervals.stop_us;
            if self.fleet.join("STOP").exists() {
                self.stopped = true;
                self.ledger.drain();
                self.log
                    .warning("lead.stopped", &[("fleet", &self.manifest.fleet)]);
            }
        }
        if now >= self.superseded_at && !self.superseded {
            self.superseded_at = now + self.intervals.superseded_us;
            match address::published(&self.fleet) {
                Ok(newest) if newest > self.incarnation => {
                    self.superseded = true;
                    self.ledger.drain();
                    let fields: [(&str, &dyn tidemill_wire::log::Text); 2] =
                        [("incarnation", &self.incarnation), ("newest", &newest)];
                    self.log.warning("lead.superseded", &fields);
                    self.drain_told = true; // the pilots are the newer lead's: they are not to leave
                }
                Ok(_) => {}
                Err(error) => self
                    .log
                    .warning("lead.address_unreadable", &[("error", &cause(&error))]),
            }
        }
        if self.ledger.is_closed() && self.ledger.is_settled() {
            self.ledger.drain();
        }
        if self.ledger.is_draining() && !self.drain_told {
            self.drain_told = true;
            let reason = self.drain_reason();
            self.tell_all_to_drain(&reason, now);
            self.log.info(
                "lead.drains",
                &[("reason", &reason), ("open_events", &self.ledger.open_events())],
            );
        }
    }

    /// Read the work files that are there, some per turn.
    pub(crate) fn look_for_work(&mut self, now: u64) {
        self.work_at = now + self.intervals.work_us;
        for _ in 0..FILES_PER_TURN {
            match self.work.next() {
                Ok(Some(work)) => {
                    self.work_problem = None;
                    self.take_work(work, now);
                    self.work_at = now;
                }
                Ok(None) => {
                    self.work_at = now + self.intervals.work_us;
                    return;
                }
                Err(error) => {
                    let problem = cause(&error);
                    if self.work_problem.as_ref() != Some(&problem) {
                        self.log.error("work.unreadable", &[("error", &problem)]);
                        self.work_problem = Some(problem);
                    }
                    self.work_at = now + RETRY_US;
                    return;
                }
            }
        }
    }

    fn take_work(&mut self, work: WorkText, now: u64) {
        let number = work.number;
        let orders = self.ledger.load(work);
        for problem in &orders.problems {
            self.log
                .error("work.unusable", &[("number", &number), ("error", problem)]);
        }
        for connection in self.connections.iter_mut().flatten() {
            for job in &orders.redefined {
                connection.told_jobs.remove(job);
            }
        }
        if orders.cancelled.is_empty() {
            return;
        }
        self.log.info("jobs.cancelled", &[("jobs", &orders.cancelled)]);
        for connection in self.connections.iter_mut().flatten() {
            // a pilot forgets a cancelled job: should it be granted again, it is told again
            let jobs: Vec<u64> = orders
                .cancelled
                .iter()
                .copied()
                .filter(|job| connection.told_jobs.remove(job))
                .collect();
            if !jobs.is_empty() {
                connection.send(&LeadMessage::Cancel(Cancel { jobs }), now, self.log);
            }
        }
    }

    /// Whether and why to leave now.
    pub(crate) fn exit_reason(&mut self, now: u64) -> Option<Exit> {
        if self.asked {
            return Some(Exit::Asked);
        }
        if self.superseded {
            return Some(Exit::Superseded);
        }
        if !self.ledger.is_closed() && !self.stopped {
            self.quiet_since = now;
            return None;
        }
        let alone =
            self.pilots_connected() == 0 && !self.ledger.awaits_pilots() && !self.ledger.is_holding(now);
        if !alone {
            self.quiet_since = now;
            return None;
        }
        let dead_after_us = self.seconds(self.manifest.settings.dead_after_s);
        let given_up = now.saturating_sub(self.quiet_since) > dead_after_us;
        let over = self.ledger.is_draining() || given_up;
        (over && self.commit.is_idle()).then_some(Exit::Finished)
    }
}
