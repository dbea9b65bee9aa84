//! What the lead looks for in the fleet directory: work files, STOP, the agent's sign of life, a newer lead.
//!
//! Look-ups per second of a lead beside the agent while no pilot waits for work: 2 for work files, 0.5 for each of
//! FLEET/STOP and `stop_files`, 0.5 for a newer lead, and one in a tenth of `dead_after_s`; whatever the number of
//! pilots.

use tidemill_wire::log::cause;
use tidemill_wire::{Cancel, Deadline, Drain, LeadMessage, Withdrawn};

use crate::address;
use crate::server::{seconds_us, Exit, Lead};
use tidemill_wire::WorkText;

/// Work files per turn.
const FILES_PER_TURN: usize = 16;
/// Time until the next try after a work file that could not be read.
const RETRY_US: u64 = 1_000_000;

impl Lead {
    /// Look for what is due.
    pub(crate) fn look_at_files(&mut self, now: u64) {
        if now >= self.work_at && !self.ledger.is_closed() {
            self.look_for_work(now);
        }
        if now >= self.stop_at && !self.stopped {
            self.stop_at = now + self.intervals.stop_us;
            if let Some(path) = self.stop_paths.iter().find(|path| path.exists()) {
                self.stopped = true;
                self.ledger.drain();
                let path = path.display().to_string();
                self.log.warning(
                    "lead.stopped",
                    &[("fleet", &self.manifest.fleet), ("file", &path)],
                );
            }
        }
        self.look_for_agent(now);
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

    /// The dead-man's switch. While the agent has been silent for too long, every pilot that is connected or connects
    /// is ordered to drain, and nothing is handed out; when all have left, the lead leaves too. If the agent comes back
    /// before that, pilots that were ordered to leave still leave, and those that connect from then on get work.
    fn look_for_agent(&mut self, now: u64) {
        let abandoned = !self.alive.look(now);
        if abandoned == self.abandoned || self.superseded {
            return;
        }
        self.abandoned = abandoned;
        self.ledger.pause(abandoned);
        let connected = self.pilots_connected();
        if abandoned {
            let dead_after_s = self.manifest.settings.dead_after_s;
            let fields: [(&str, &dyn tidemill_wire::log::Text); 2] =
                [("dead_after_s", &dead_after_s), ("pilots", &connected)];
            self.log.warning("lead.abandoned", &fields);
            let reason = self.drain_reason();
            self.tell_all_to_drain(&reason, now);
        } else {
            self.log.info("lead.agent_is_back", &[("pilots", &connected)]);
        }
    }

    /// Look for work sooner where a pilot waits for some.
    pub(crate) fn hurry(&mut self, now: u64) {
        if !self.asking.is_empty() && self.work_problem.is_none() {
            self.work_at = self.work_at.min(now + self.intervals.hungry_us);
        }
    }

    /// Read the work files that are there, some per turn.
    pub(crate) fn look_for_work(&mut self, now: u64) {
        self.work_at = now + self.intervals.work_us;
        for _ in 0..FILES_PER_TURN {
            match self.work.read_next() {
                Ok(Some(work)) => {
                    self.work_problem = None;
                    self.take_work(work, now);
                    self.work_at = now;
                }
                Ok(None) => {
                    self.looks.work_at = now;
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
        if let Some(areas) = &work.io {
            self.set_budget(areas, now);
        }
        let orders = self.ledger.load(work);
        for problem in &orders.problems {
            self.log
                .error("work.unusable", &[("number", &number), ("error", problem)]);
        }
        self.cancel(orders.cancelled, now);
        self.withdraw(&orders.withdrawn, now);
        for connection in self.connections.iter_mut().flatten() {
            for job in &orders.redefined {
                connection.told_jobs.remove(job);
            }
        }
        for end in &orders.ends {
            let message = LeadMessage::Deadline(Deadline { at_us: end.at_us });
            self.tell_allocation(&end.allocation, &message, now);
        }
        for allocation in &orders.leave {
            let reason = self.drain_reason();
            self.tell_allocation(allocation, &LeadMessage::Drain(Drain { reason }), now);
        }
    }

    /// Sends cancellations to the pilots that know the jobs. A pilot forgets a cancelled job, so the job is sent again if
    /// it is granted again.
    fn cancel(&mut self, cancelled: Vec<u64>, now: u64) {
        if cancelled.is_empty() {
            return;
        }
        self.log.info("jobs.cancelled", &[("jobs", &cancelled)]);
        for connection in self.connections.iter_mut().flatten() {
            let jobs: Vec<u64> = cancelled
                .iter()
                .copied()
                .filter(|job| connection.told_jobs.remove(job))
                .collect();
            if !jobs.is_empty() {
                connection.send(&LeadMessage::Cancel(Cancel { jobs, events: None }), now, self.log);
            }
        }
    }

    /// Sends withdrawn events to the pilots that know their jobs: which of them has an event may be known only later.
    fn withdraw(&mut self, parts: &[Withdrawn], now: u64) {
        if parts.is_empty() {
            return;
        }
        self.log.info("events.withdrawn", &[("parts", &parts.len())]);
        for connection in self.connections.iter_mut().flatten() {
            let known = parts
                .iter()
                .filter(|part| connection.told_jobs.contains(&part.job));
            let events: Vec<Withdrawn> = known.cloned().collect();
            if !events.is_empty() {
                let cancel = Cancel {
                    jobs: Vec::new(),
                    events: Some(events),
                };
                connection.send(&LeadMessage::Cancel(cancel), now, self.log);
            }
        }
    }

    /// Sends a message to the connected pilots of an allocation; others get it when they connect.
    fn tell_allocation(&mut self, allocation: &str, message: &LeadMessage, now: u64) {
        let slots: Vec<usize> = self
            .ledger
            .pilots_of(allocation)
            .iter()
            .filter_map(|&key| self.connection_of.get(key).copied().flatten())
            .collect();
        for slot in slots {
            if let Some(connection) = &mut self.connections[slot] {
                connection.send(message, now, self.log);
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
        if !self.ledger.is_closed() && !self.stopped && !self.abandoned {
            self.quiet_since = now;
            return None;
        }
        let alone =
            self.pilots_connected() == 0 && !self.ledger.awaits_pilots() && !self.ledger.is_holding(now);
        if !alone {
            self.quiet_since = now;
            return None;
        }
        let dead_after_us = seconds_us(self.manifest.settings.dead_after_s);
        let given_up = now.saturating_sub(self.quiet_since) > dead_after_us;
        let over = self.ledger.is_draining() || self.abandoned || given_up;
        let exit = if self.abandoned && !self.ledger.is_closed() && !self.stopped {
            Exit::Abandoned
        } else {
            Exit::Finished
        };
        (over && self.commit.is_idle()).then_some(exit)
    }
}
