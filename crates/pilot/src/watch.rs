//! What changes with time only: the end of the allocation, a silent lead or agent, STOP files, idleness.

use tidemill_slot::ToSlot;
use tidemill_sys::time::realtime_us;

use crate::error::{PilotError, LOG};
use crate::lead::Source;
use crate::leaving::{Phase, Reason};
use crate::pilot::Pilot;
use crate::time::seconds_us;

/// A pilot whose lead is away looks for STOP files so often: with a lead, the lead does for all of them.
const STOP_US: u64 = 60_000_000;
/// Jobs that idle slots still know are forgotten after so long without work.
const FORGET_US: u64 = 2_000_000;
/// Kept free at the end for what is still to be written: 2 % of the time, at least 3 s (a 10 ms fsync of the journal
/// and one of a bundle with at most 64 MiB dirty, at 25 MB/s), at most 30 s, never more than a quarter but for the 2 s
/// that stopping takes.
const MARGIN_SHARE: f64 = 0.02;
const MARGIN_S_MIN: f64 = 3.0;
const MARGIN_S_MAX: f64 = 30.0;
const STOPPING_S: f64 = 2.0;

/// When no payload may run any more so that all is written at the end.
pub fn deadline_us(ends_us: u64, now_us: u64) -> u64 {
    let remaining_us = ends_us.saturating_sub(now_us);
    ends_us.max(now_us) - seconds_us(margin_s(remaining_us as f64 / 1e6)).min(remaining_us)
}

fn margin_s(remaining_s: f64) -> f64 {
    (remaining_s * MARGIN_SHARE)
        .clamp(MARGIN_S_MIN, MARGIN_S_MAX)
        .min((remaining_s / 4.0).max(STOPPING_S))
}

impl Pilot {
    /// Look at what is due.
    pub(crate) fn watch(&mut self, now_us: u64) -> Result<(), PilotError> {
        if let Some(lead) = &mut self.lead_process {
            lead.watch(now_us);
        }
        let is_busy = self.is_busy();
        if is_busy || self.was_busy {
            self.worked_us = now_us; // nothing may have woken us since the last look: what was busy then is idle from now
            self.forgot = false;
            self.was_busy = is_busy;
        } else if !self.forgot && now_us >= self.worked_us + FORGET_US {
            self.forgot = true;
            let actions = self.binding.forget(true);
            self.act(actions, now_us)?;
        }
        if self.stop_due_us().is_some_and(|due_us| now_us >= due_us) {
            self.stop_checked_us = now_us;
            let more = self.post.settings().stop_files.iter().map(Into::into);
            let mut paths = std::iter::once(self.post.fleet.join("STOP")).chain(more);
            if let Some(path) = paths.find(|path| path.exists()) {
                let message = format!("there is a file `{}`", path.display());
                self.drain(Reason::Stop, &message, now_us)?;
            }
        }
        if self.post.deadline_us.is_some_and(|at_us| now_us >= at_us) {
            self.stop_now(Reason::Walltime, now_us)?;
        }
        self.watch_others(now_us)
    }

    fn watch_others(&mut self, now_us: u64) -> Result<(), PilotError> {
        let settings = self.post.settings();
        let (dead_after_us, drain_us) = (seconds_us(settings.dead_after_s), seconds_us(settings.drain_s));
        if let Some(reason) = self.phase.overdue(now_us, (drain_us, self.post.deadline_us)) {
            return self.stop_now(reason, now_us);
        }
        if self
            .source
            .dead_us(dead_after_us)
            .is_some_and(|at_us| now_us >= at_us)
        {
            return self.drain(Reason::DeadLead, "the lead has been silent", now_us);
        }
        if matches!(&self.source, Source::Files(mailbox, _) if !mailbox.agent_lives()) {
            return self.drain(Reason::DeadAgent, "the agent has been silent", now_us);
        }
        if self.idle_due_us().is_some_and(|due_us| now_us >= due_us) {
            return self.drain(Reason::Idle, "", now_us);
        }
        Ok(())
    }

    /// When STOP files are due; files alone are looked at together with the work files.
    pub(crate) fn stop_due_us(&self) -> Option<u64> {
        let alone =
            !self.source.has_lead() && !self.source.is_files() && matches!(self.phase, Phase::Working);
        alone.then_some(self.stop_checked_us + STOP_US)
    }

    fn is_busy(&self) -> bool {
        self.binding.work_left() || self.keeper.has_unkept() || self.setups.is_pending()
    }

    /// When a pilot that has nothing to do leaves, although work could come: with files alone, after two looks at least.
    pub(crate) fn idle_due_us(&self) -> Option<u64> {
        let idle = self.source.is_open() && !self.is_busy();
        let settings = self.post.settings();
        let patience_s = match &self.source {
            Source::Files(mailbox, _) if mailbox.closed => 0.0,
            Source::Files(..) => settings.idle_s.max(2.0 * settings.top_up_s),
            Source::Lead(_) => settings.idle_s,
        };
        (idle && matches!(self.phase, Phase::Working)).then_some(self.worked_us + seconds_us(patience_s))
    }

    pub(crate) fn forget_due_us(&self) -> Option<u64> {
        (!self.forgot && self.binding.is_waiting()).then_some(self.worked_us + FORGET_US)
    }

    /// The allocation ends at this time (microseconds since 1970) or, if that is earlier, when we were told at the start:
    /// an end that was brought forward may be put back, but nobody can give us more than the batch system granted.
    pub(crate) fn end_at(&mut self, at_us: u64, now_us: u64) -> Result<(), PilotError> {
        let told_us = now_us + at_us.saturating_sub(realtime_us());
        let ends_us = self
            .post
            .granted_us
            .map_or(told_us, |granted_us| granted_us.min(told_us));
        let deadline_us = deadline_us(ends_us, now_us);
        LOG.info(
            "pilot.end_moved",
            &[
                ("ends_in_s", &(ends_us.saturating_sub(now_us) / 1_000_000)),
                ("deadline_in_s", &(deadline_us.saturating_sub(now_us) / 1_000_000)),
            ],
        );
        (self.post.ends_us, self.post.deadline_us) = (Some(ends_us), Some(deadline_us));
        self.asked = None; // the lead gives what fits the time that we said
        for slot in self.binding.slot_ids() {
            let monotonic_us = self.post.deadline_us;
            self.tell(slot, &ToSlot::Deadline { monotonic_us }, now_us)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_what_stopping_takes_and_at_most_30_seconds() {
        assert_eq!([4.0, 60.0, 600.0, 86_400.0].map(margin_s), [2.0, 3.0, 12.0, 30.0]);
        assert_eq!(deadline_us(60_000_000, 0), 57_000_000);
        assert_eq!(deadline_us(1_000_000, 0), 0);
        assert_eq!(deadline_us(5, 9), 9);
    }
}
