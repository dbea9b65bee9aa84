//! How a pilot leaves: drains or stops, makes everything safe, says why.

use tidemill_slot::ToSlot;
use tidemill_sys::child;
use tidemill_sys::fd::{self, Poll};
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::{Ended, Record};

use crate::error::{PilotError, LOG};
use crate::lead::link::{LinkEvent, OUT_BYTES_MAX};
use crate::pilot::Pilot;
use crate::time::seconds_us;
use crate::work::piece::Piece;

/// Slots that were told to stop have so long to answer.
const STOP_US: u64 = 600_000;
/// Outputs are copied until so long after it was told to stop.
pub const COPY_US: u64 = 400_000;
/// A pilot that stops waits for the lead's acknowledgement until so long after it was told.
const STOP_ACK_US: u64 = 1_300_000;
/// One that leaves in peace waits so long.
const PEACE_ACK_US: u64 = 10_000_000;
/// A journal that cannot be written at the end is tried again for so long, in peace.
const SAVE_US: u64 = 20_000_000;
const PAUSE_US: u64 = 100_000;
/// What takes long to remove gets so long at the end, when all is safe.
const STOP_REMOVAL_US: u64 = 300_000;
const PEACE_REMOVAL_US: u64 = 10_000_000;

/// Why a pilot leaves: `reason` of its Ended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Idle,
    Yield,
    Walltime,
    Drain,
    Stop,
    DeadLead,
    DeadAgent,
    /// It started after the time that it was told.
    Late,
    Error,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Reason::Idle => "idle",
            Reason::Yield => "yield",
            Reason::Walltime => "walltime",
            Reason::Drain => "drain",
            Reason::Stop => "stop",
            Reason::DeadLead => "dead_lead",
            Reason::DeadAgent => "dead_agent",
            Reason::Late => "late",
            Reason::Error => "error",
        }
    }
}

/// Where a pilot is in its life.
#[derive(Debug)]
pub enum Phase {
    Working,
    /// Slots finish what they run.
    Draining {
        reason: Reason,
        message: String,
        since_us: u64,
    },
    /// Slots kill what they run.
    Stopping {
        reason: Reason,
        since_us: u64,
    },
}

impl Phase {
    /// The reason that goes with events given back in this phase.
    pub fn returned(&self) -> Option<&'static str> {
        match self {
            Phase::Working => None,
            Phase::Draining { reason, .. } | Phase::Stopping { reason, .. } => Some(match reason {
                Reason::Yield => "yield",
                Reason::Walltime => "walltime",
                _ => "drain",
            }),
        }
    }

    /// The next moment that ends this phase by itself: the deadline, that the lead counts as dead, or that it has
    /// drained for `drain_us`.
    pub fn ends_us(&self, deadline_us: Option<u64>, dead_us: Option<u64>, drain_us: u64) -> Option<u64> {
        match self {
            Phase::Working => deadline_us.into_iter().chain(dead_us).min(),
            Phase::Draining { .. } => {
                let limit_us = self.limit_us(drain_us, deadline_us);
                deadline_us.into_iter().chain(limit_us).min()
            }
            Phase::Stopping { .. } => None,
        }
    }

    /// When what still runs is killed. Near the end of the walltime the deadline alone counts: what fits is finished.
    fn limit_us(&self, drain_us: u64, deadline_us: Option<u64>) -> Option<u64> {
        match self {
            Phase::Draining {
                reason: Reason::Walltime,
                ..
            } if deadline_us.is_some() => None,
            Phase::Draining { since_us, .. } => Some(since_us + drain_us),
            _ => None,
        }
    }

    /// The reason of a drain that has taken too long.
    pub fn overdue(&self, now_us: u64, (drain_us, deadline_us): (u64, Option<u64>)) -> Option<Reason> {
        match self {
            Phase::Draining { reason, .. } => {
                let limit_us = self.limit_us(drain_us, deadline_us)?;
                (now_us >= limit_us).then_some(*reason)
            }
            _ => None,
        }
    }

    /// Whether it has been stopping for so long.
    pub fn is_past(&self, now_us: u64, duration_us: u64) -> bool {
        matches!(self, Phase::Stopping { since_us, .. } if now_us >= since_us + duration_us)
    }

    pub fn due_us(&self) -> Option<u64> {
        match self {
            Phase::Stopping { since_us, .. } => Some(since_us + STOP_US),
            _ => None,
        }
    }
}

impl Pilot {
    /// Give back what has not started, let slots finish the rest, then leave.
    pub(crate) fn drain(&mut self, reason: Reason, message: &str, now_us: u64) -> Result<(), PilotError> {
        if !matches!(self.phase, Phase::Working) {
            return Ok(());
        }
        LOG.info(
            "pilot.drains",
            &[("reason", &reason.word()), ("message", &message)],
        );
        self.phase = Phase::Draining {
            reason,
            message: message.to_owned(),
            since_us: now_us,
        };
        self.return_queue(now_us)?;
        self.tell_all(&ToSlot::Finish, now_us)
    }

    /// Give back everything that is not done, then leave.
    pub(crate) fn stop_now(&mut self, reason: Reason, now_us: u64) -> Result<(), PilotError> {
        if matches!(self.phase, Phase::Stopping { .. }) {
            return Ok(());
        }
        LOG.info("pilot.stops", &[("reason", &reason.word())]);
        self.phase = Phase::Stopping {
            reason,
            since_us: now_us,
        };
        self.return_queue(now_us)?;
        self.tell_all(&ToSlot::Stop, now_us)
    }

    pub(crate) fn return_queue(&mut self, now_us: u64) -> Result<(), PilotError> {
        let reason = self.phase.returned().unwrap_or("drain");
        let waiting = self.setups.drop_waiting().into_iter().map(Piece::from);
        for piece in self.binding.drain_queue().into_iter().chain(waiting) {
            self.give_back(&piece, reason, now_us)?;
        }
        Ok(())
    }

    fn tell_all(&mut self, message: &ToSlot, now_us: u64) -> Result<(), PilotError> {
        for slot in self.binding.slot_ids() {
            self.tell(slot, message, now_us)?;
        }
        Ok(())
    }

    /// Whether the slots have answered, or had their time.
    pub(crate) fn is_over(&self, now_us: u64) -> bool {
        match self.phase {
            Phase::Working => false,
            Phase::Draining { .. } => !self.binding.at_slots(),
            Phase::Stopping { since_us, .. } => !self.binding.at_slots() || now_us >= since_us + STOP_US,
        }
    }

    /// Make everything safe and leave; the exit code.
    pub(crate) fn end(mut self) -> Result<i32, PilotError> {
        let now_us = monotonic_us();
        let kept = self.retry_copies(now_us);
        self.tell_kept(kept, now_us)?;
        let kept = self.keeper.abandon();
        self.tell_kept(kept, now_us)?;
        let ended_us = realtime_us();
        for slot in self.binding.slot_ids() {
            for piece in self.binding.lose_slot(slot) {
                let reason = self.phase.returned().unwrap_or("slot");
                self.give_back(&piece, reason, now_us)?;
            }
        }
        let kept = self.keeper.sync(now_us);
        self.tell_kept(kept, now_us)?;
        let logs_lost = self.keeper.finish();
        if logs_lost > 0 {
            LOG.warning("logs.lost", &[("count", &logs_lost)]);
        }
        let (reason, message) = match &self.phase {
            Phase::Working => (Reason::Error, String::new()),
            Phase::Draining { reason, message, .. } => (*reason, message.clone()),
            Phase::Stopping { reason, .. } => (*reason, String::new()),
        };
        self.note_usage(now_us)?;
        let slot_us = self.slot_us(ended_us);
        let busy_us = self.tally.busy_us;
        self.records.seal()?;
        self.add(
            Record::Ended(Ended {
                p: String::new(),
                s: 0,
                reason: reason.word().to_owned(),
                message,
                busy_us,
                slot_us,
                at_us: ended_us,
            }),
            now_us,
        )?;
        self.make_safe(now_us)?;
        for (_, slot) in std::mem::take(&mut self.slots) {
            self.kill_slot(slot);
        }
        let left = [self.leave_stage(), self.node.leave()];
        self.lingering.extend(left.into_iter().flatten());
        self.wait_for_lingering();
        LOG.info(
            "pilot.left",
            &[
                ("reason", &reason.word()),
                ("busy_us", &busy_us),
                ("slot_us", &slot_us),
                ("acked", &self.records.all_acked()),
            ],
        );
        self.outlive_lead(reason)?;
        Ok(if reason == Reason::Error || !self.records.all_safe() {
            3
        } else {
            0
        })
    }

    /// Give removals some time; they end with us, and what they have not got to is removed by the next pilot.
    fn wait_for_lingering(&self) {
        let limit_us = match self.phase {
            Phase::Stopping { .. } => STOP_REMOVAL_US,
            _ => PEACE_REMOVAL_US,
        };
        let until_us = monotonic_us() + limit_us;
        for &pid in &self.lingering {
            let _ = child::wait_at_most(pid, until_us.saturating_sub(monotonic_us()));
        }
    }

    /// Slot time between the first start and the last end of a payload.
    fn slot_us(&self, now_us: u64) -> u64 {
        let Some(first_us) = self.tally.first_us else {
            return 0;
        };
        let alive = self.tally.made_us.values().map(|&made_us| (made_us, now_us));
        let lives = self.tally.lives.iter().copied().chain(alive);
        lives
            .map(|(from, to)| to.min(self.tally.last_us).saturating_sub(from.max(first_us)))
            .sum()
    }

    /// Hand everything to the lead; what it does not acknowledge in time goes to the own journal.
    fn make_safe(&mut self, now_us: u64) -> Result<(), PilotError> {
        let (until_us, save_until_us) = match self.phase {
            Phase::Stopping { since_us, .. } => (since_us + STOP_ACK_US, since_us + STOP_ACK_US),
            _ => (now_us + PEACE_ACK_US, now_us + SAVE_US),
        };
        let until_us = self.post.ends_us.map_or(until_us, |ends_us| {
            until_us.min(ends_us.saturating_sub(STOP_ACK_US))
        });
        while self.source.has_lead() && !self.records.all_acked() {
            let now_us = monotonic_us();
            if now_us >= until_us {
                break;
            }
            self.exchange(now_us, until_us)?;
        }
        if self.records.all_acked() {
            return Ok(());
        }
        while !self.save(monotonic_us())? && monotonic_us() < save_until_us {
            fd::poll(&mut [], Some(PAUSE_US)).map_err(|error| PilotError::system("poll")(error.source))?;
        }
        Ok(())
    }

    /// One round of nothing but records and acknowledgements.
    fn exchange(&mut self, now_us: u64, until_us: u64) -> Result<(), PilotError> {
        if let Some(buffer) = self.source.records_buffer(now_us) {
            self.records.write_unsent(buffer, OUT_BYTES_MAX);
        }
        self.source.flush(now_us);
        let Some(lead) = self.source.fd() else {
            return Ok(());
        };
        let events = if self.source.wants_write() {
            fd::READABLE | fd::WRITABLE
        } else {
            fd::READABLE
        };
        let mut polls = [Poll::new(lead, events)];
        fd::poll(&mut polls, Some(until_us - now_us))
            .map_err(|error| PilotError::system("poll")(error.source))?;
        if !polls[0].readable() {
            return Ok(());
        }
        for event in self.source.advance(monotonic_us(), &Vec::new) {
            match event {
                LinkEvent::Message(tidemill_wire::LeadMessage::Ack(ack)) => {
                    self.records.acknowledge(ack.acked)
                }
                LinkEvent::Message(tidemill_wire::LeadMessage::Work(work)) => {
                    // it crossed our leaving: nobody started it
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

    /// Rank 0 stays while its lead serves the others, unless it has to go.
    fn outlive_lead(&mut self, reason: Reason) -> Result<(), PilotError> {
        let Some(mut lead) = self.lead_process.take() else {
            return Ok(());
        };
        // it waits for all pilots to have left, us included
        self.source.reset(monotonic_us(), "we leave");
        if matches!(
            reason,
            Reason::Idle | Reason::Drain | Reason::Stop | Reason::DeadAgent
        ) {
            // the others drain too, for as long at most; who is idle waits for those who are not
            let limit_us = monotonic_us() + seconds_us(self.post.settings().drain_s) + PEACE_ACK_US;
            while lead.watch(monotonic_us()) {
                let now_us = monotonic_us();
                let over = self.post.deadline_us.is_some_and(|at_us| now_us >= at_us)
                    || (reason != Reason::Idle && now_us >= limit_us);
                if over || self.signals.take().is_some() {
                    break;
                }
                let mut polls = [Poll::new(self.signals.fd(), fd::READABLE)];
                fd::poll(&mut polls, Some(PAUSE_US))
                    .map_err(|error| PilotError::system("poll")(error.source))?;
            }
        }
        lead.stop();
        Ok(())
    }
}
