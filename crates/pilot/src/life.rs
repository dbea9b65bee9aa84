//! The phase that a pilot is in, and what changes it. Pure, except that it checks for STOP files.
//!
//! ```text
//! Working ─ lead's order, STOP file, silent lead or agent, idleness, USR1, slots that keep dying ─▶ Draining ─▶ gone
//!    │                                                                   deadline, TERM, `drain_s` over │        ▲
//!    └─────────────────────────────── deadline, TERM ──────────────────────────▶ Stopping ◀─────────────┘────────┘
//! ```
//!
//! Changes that time alone makes stand in one table, `edges`, which also says when the next one is due.

use std::path::{Path, PathBuf};

use tidemill_sys::time::realtime_us;
use tidemill_wire::{log, Settings};

use crate::error::LOG;
use crate::time::seconds_us;

/// Interval at which a pilot whose lead is unreachable checks for STOP files: a lead checks for all its pilots.
const LOOK_US: u64 = 60_000_000;
/// Time without work after which idle slots forget the jobs that they know.
const FORGET_US: u64 = 2_000_000;
/// Time in which slots must answer an order to stop.
const STOP_US: u64 = 600_000;
/// Time for copies of outputs after an order to stop.
const COPY_US: u64 = 400_000;
/// Time kept free at the end for the last writes: 2 % of the time, at least 3 s (a 10 ms fsync of the journal and one
/// of a bundle with at most 64 MiB dirty, at 25 MB/s), at most 30 s, never more than a quarter except for the 2 s that
/// stopping takes.
const MARGIN_SHARE: f64 = 0.02;
const MARGIN_S_MIN: f64 = 3.0;
const MARGIN_S_MAX: f64 = 30.0;
const STOPPING_S: f64 = 2.0;

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
    /// It started after the time before which it had to.
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
    Draining(Leaving),
    /// Slots kill what they run.
    Stopping(Leaving),
}

/// Why, and since when.
#[derive(Debug)]
pub struct Leaving {
    pub reason: Reason,
    message: String,
    pub since_us: u64,
}

/// A way out of a phase.
#[derive(Debug, PartialEq)]
pub enum Change {
    /// Give back what has not started, let slots finish the rest, then leave.
    Drain(Reason, String),
    /// Give back everything that is not done, then leave.
    Stop(Reason),
}

impl Change {
    pub fn drain(reason: Reason, message: &str) -> Self {
        Change::Drain(reason, message.to_owned())
    }
}

/// What the phase depends on besides time.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Work, outputs or set-ups are under way.
    pub busy: bool,
    /// No slot has work.
    pub waiting: bool,
    /// Only this pilot checks for STOP files.
    pub alone: bool,
    pub agent_is_dead: bool,
    /// When the lead counts as dead.
    pub lead_dies_us: Option<u64>,
    /// Time without work after which the pilot leaves; None: no work can come at present.
    pub patience_us: Option<u64>,
}

/// The phase, the end of the allocation, and what this pilot has seen of idleness.
pub struct Life {
    phase: Phase,
    /// Monotonic; when the batch system ends the pilot, as known at the start.
    granted_us: Option<u64>,
    /// The same, as known last.
    ends_us: Option<u64>,
    /// Monotonic; no payload runs after this.
    deadline_us: Option<u64>,
    drain_us: u64,
    stop_paths: Vec<PathBuf>,
    stop_checked_us: u64,
    worked_us: u64,
    /// When no work could come last, such as before the lead's first answer: idle time counts from then at the earliest.
    closed_us: u64,
    was_busy: bool,
    /// Idle slots have forgotten their jobs.
    forgot: bool,
}

impl Life {
    pub fn new(fleet: &Path, settings: &Settings, ends_us: Option<u64>, now_us: u64) -> Self {
        let more = settings.stop_files.iter().map(Into::into);
        Life {
            phase: Phase::Working,
            granted_us: ends_us,
            ends_us,
            deadline_us: ends_us.map(|ends_us| deadline_us(ends_us, now_us)),
            drain_us: seconds_us(settings.drain_s),
            stop_paths: std::iter::once(fleet.join("STOP")).chain(more).collect(),
            stop_checked_us: now_us,
            worked_us: now_us,
            closed_us: now_us,
            was_busy: false,
            forgot: true,
        }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn ends_us(&self) -> Option<u64> {
        self.ends_us
    }

    pub fn deadline_us(&self) -> Option<u64> {
        self.deadline_us
    }

    pub fn is_working(&self) -> bool {
        matches!(self.phase, Phase::Working)
    }

    /// The reason recorded with events that are returned in this phase.
    pub fn returned(&self) -> Option<&'static str> {
        match &self.phase {
            Phase::Working => None,
            Phase::Draining(leaving) | Phase::Stopping(leaving) => Some(match leaving.reason {
                Reason::Yield => "yield",
                Reason::Walltime => "walltime",
                _ => "drain",
            }),
        }
    }

    /// Whether it is too late to copy outputs.
    pub fn stops_copies(&self, now_us: u64) -> bool {
        self.has_stopped_for(COPY_US, now_us)
    }

    /// Whether it is time to leave; `answered`: no slot has work.
    pub fn is_over(&self, answered: bool, now_us: u64) -> bool {
        match self.phase {
            Phase::Working => false,
            Phase::Draining(_) => answered,
            Phase::Stopping(_) => answered || self.has_stopped_for(STOP_US, now_us),
        }
    }

    fn has_stopped_for(&self, duration_us: u64, now_us: u64) -> bool {
        matches!(&self.phase, Phase::Stopping(leaving) if now_us >= leaving.since_us + duration_us)
    }

    /// Update the idle time; true once, when idle slots should forget the jobs that they know.
    pub fn see(&mut self, outlook: &Outlook, now_us: u64) -> bool {
        if outlook.patience_us.is_none() {
            self.closed_us = now_us;
        }
        if outlook.busy || self.was_busy {
            self.worked_us = now_us; // the pilot may have slept since the last call: idle time counts from now
            self.forgot = false;
            self.was_busy = outlook.busy;
            return false;
        }
        let forgets = !self.forgot && now_us >= self.worked_us + FORGET_US;
        self.forgot |= forgets;
        forgets
    }

    /// The change that is due, to be applied by `enter`; call until it returns None.
    pub fn next(&mut self, outlook: &Outlook, now_us: u64) -> Option<Change> {
        if self.look_due_us(outlook).is_some_and(|due_us| now_us >= due_us) {
            self.stop_checked_us = now_us;
            if let Some(path) = self.stop_paths.iter().find(|path| path.exists()) {
                let message = format!("there is a file `{}`", path.display());
                return Some(Change::Drain(Reason::Stop, message));
            }
        }
        let mut edges = self.edges(outlook).into_iter().flatten();
        edges.find(|(at_us, _)| now_us >= *at_us).map(|edge| edge.1)
    }

    /// When `see` or `next` has something to do, or a pilot that stops waits for slots no longer.
    pub fn due_us(&self, outlook: &Outlook) -> Option<u64> {
        let edges = self.edges(outlook).into_iter().flatten();
        let over_us = match &self.phase {
            Phase::Stopping(leaving) => Some(leaving.since_us + STOP_US),
            _ => None,
        };
        let forget_us = (!self.forgot && outlook.waiting).then_some(self.worked_us + FORGET_US);
        let others = [self.look_due_us(outlook), over_us, forget_us];
        edges
            .map(|(at_us, _)| at_us)
            .chain(others.into_iter().flatten())
            .min()
    }

    /// When STOP files are looked for.
    fn look_due_us(&self, outlook: &Outlook) -> Option<u64> {
        (outlook.alone && self.is_working()).then_some(self.stop_checked_us + LOOK_US)
    }

    /// What changes this phase by itself, and when: the first that is due counts.
    fn edges(&self, outlook: &Outlook) -> [Option<(u64, Change)>; 4] {
        let deadline = self
            .deadline_us
            .map(|at_us| (at_us, Change::Stop(Reason::Walltime)));
        match &self.phase {
            Phase::Working => {
                let dead_lead = Change::drain(Reason::DeadLead, "the lead has been silent");
                let dead_agent = Change::drain(Reason::DeadAgent, "the agent has been silent");
                let idle_us = self.worked_us.max(self.closed_us);
                let patience_us = outlook.patience_us.filter(|_| !outlook.busy);
                [
                    deadline,
                    outlook.lead_dies_us.map(|at_us| (at_us, dead_lead)),
                    outlook.agent_is_dead.then_some((0, dead_agent)),
                    patience_us.map(|us| (idle_us + us, Change::drain(Reason::Idle, ""))),
                ]
            }
            Phase::Draining(Leaving { reason, since_us, .. }) => {
                // near the end of the walltime the deadline alone counts: what fits is finished
                let until_deadline = *reason == Reason::Walltime && deadline.is_some();
                let over = (!until_deadline).then_some((since_us + self.drain_us, Change::Stop(*reason)));
                [deadline, over, None, None]
            }
            Phase::Stopping(_) => [None, None, None, None],
        }
    }

    /// Enter the phase that follows; false where this one is as late or later.
    pub fn enter(&mut self, change: Change, now_us: u64) -> bool {
        let leaving = |reason: Reason, message: String| Leaving {
            reason,
            message,
            since_us: now_us,
        };
        self.phase = match (&self.phase, change) {
            (Phase::Working, Change::Drain(reason, message)) => {
                let fields: [log::Field<'_>; 2] = [("reason", &reason.word()), ("message", &message)];
                LOG.info("pilot.drains", &fields);
                Phase::Draining(leaving(reason, message))
            }
            (Phase::Working | Phase::Draining(_), Change::Stop(reason)) => {
                LOG.info("pilot.stops", &[("reason", &reason.word())]);
                Phase::Stopping(leaving(reason, String::new()))
            }
            _ => return false,
        };
        true
    }

    /// The pilot cannot go on: it leaves with what it has.
    pub fn break_off(&mut self, message: String, now_us: u64) {
        self.phase = Phase::Draining(Leaving {
            reason: Reason::Error,
            message,
            since_us: now_us,
        });
    }

    /// Reason and message of the Ended record.
    pub fn why(&self) -> (Reason, String) {
        match &self.phase {
            Phase::Working => (Reason::Error, String::new()),
            Phase::Draining(leaving) | Phase::Stopping(leaving) => (leaving.reason, leaving.message.clone()),
        }
    }

    /// Set the end of the allocation: this time (microseconds since 1970) or, if earlier, the end known at the start.
    /// An end that was brought forward may be put back, but never beyond what the batch system granted.
    pub fn end_at(&mut self, at_us: u64, now_us: u64) {
        let told_us = now_us + at_us.saturating_sub(realtime_us());
        let ends_us = self
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
        (self.ends_us, self.deadline_us) = (Some(ends_us), Some(deadline_us));
    }
}

/// When no payload may run any more so that all is written at the end.
fn deadline_us(ends_us: u64, now_us: u64) -> u64 {
    let remaining_us = ends_us.saturating_sub(now_us);
    ends_us.max(now_us) - seconds_us(margin_s(remaining_us as f64 / 1e6)).min(remaining_us)
}

fn margin_s(remaining_s: f64) -> f64 {
    (remaining_s * MARGIN_SHARE)
        .clamp(MARGIN_S_MIN, MARGIN_S_MAX)
        .min((remaining_s / 4.0).max(STOPPING_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN_US: u64 = 60_000_000;

    fn life(ends_us: Option<u64>) -> Life {
        let settings = Settings {
            drain_s: 60.0,
            ..Settings::default()
        };
        Life::new(Path::new("/nonexistent"), &settings, ends_us, 0)
    }

    #[test]
    fn the_margin_is_what_stopping_takes_and_at_most_30_seconds() {
        assert_eq!([4.0, 60.0, 600.0, 86_400.0].map(margin_s), [2.0, 3.0, 12.0, 30.0]);
        assert_eq!(deadline_us(60_000_000, 0), 57_000_000);
        assert_eq!(deadline_us(1_000_000, 0), 0);
        assert_eq!(deadline_us(5, 9), 9);
    }

    #[test]
    fn each_change_that_time_makes_is_due_when_it_happens_and_not_earlier() {
        let idle = Outlook {
            waiting: true,
            patience_us: Some(5_000_000),
            lead_dies_us: Some(9_000_000),
            ..Outlook::default()
        };
        let mut life = life(Some(600_000_000));
        assert_eq!(life.due_us(&idle), Some(5_000_000));
        assert_eq!(life.next(&idle, 4_999_999), None);
        let change = life.next(&idle, 5_000_000).unwrap();
        assert_eq!(change, Change::drain(Reason::Idle, ""));
        assert!(life.enter(change, 5_000_000));
        let over_us = 5_000_000 + DRAIN_US;
        assert_eq!(life.due_us(&idle), Some(over_us));
        assert_eq!(life.next(&idle, over_us - 1), None);
        let change = life.next(&idle, over_us).unwrap();
        assert_eq!(change, Change::Stop(Reason::Idle));
        assert!(life.enter(change, over_us));
        assert_eq!(life.due_us(&idle), Some(over_us + STOP_US));
        assert_eq!(life.next(&idle, u64::MAX), None);
        assert!(!life.is_over(false, over_us) && life.is_over(false, over_us + STOP_US));
    }

    #[test]
    fn a_pilot_is_idle_from_when_its_lead_could_send_work_and_not_from_its_start() {
        let outlook = |patience_us: Option<u64>| Outlook {
            waiting: true,
            patience_us,
            ..Outlook::default()
        };
        let (joining, joined) = (outlook(None), outlook(Some(1_000_000)));
        let mut life = life(None);
        life.see(&joining, 7_000_000); // a starved machine: connected at once, answered late
        life.see(&joined, 7_000_001);
        assert_eq!(life.next(&joined, 7_000_001), None);
        assert_eq!(life.due_us(&joined), Some(8_000_000));
        assert_eq!(
            life.next(&joined, 8_000_000),
            Some(Change::drain(Reason::Idle, ""))
        );
        life.see(&joining, 8_500_000); // the lead is lost, and another one is found
        assert_eq!(life.due_us(&joined), Some(9_500_000));
    }

    #[test]
    fn a_drain_for_the_walltime_lasts_until_the_deadline_and_no_phase_is_entered_twice() {
        let busy = Outlook {
            busy: true,
            ..Outlook::default()
        };
        let mut life = life(Some(600_000_000));
        assert_eq!(life.due_us(&busy), Some(588_000_000));
        assert!(life.enter(Change::drain(Reason::Walltime, ""), 0));
        assert!(!life.enter(Change::drain(Reason::Stop, ""), 0));
        assert_eq!(
            (life.due_us(&busy), life.returned()),
            (Some(588_000_000), Some("walltime"))
        );
        assert_eq!(
            life.next(&busy, 588_000_000),
            Some(Change::Stop(Reason::Walltime))
        );
        assert!(life.enter(Change::Stop(Reason::Yield), 1));
        assert!(!life.enter(Change::Stop(Reason::Walltime), 2));
        assert_eq!(life.returned(), Some("yield"));
    }

    #[test]
    fn idle_slots_forget_their_jobs_once_after_a_while_without_work() {
        let (busy, idle) = (true, false);
        let mut life = life(None);
        let mut see = |busy: bool, now_us: u64| {
            let outlook = Outlook {
                busy,
                ..Outlook::default()
            };
            life.see(&outlook, now_us)
        };
        let seen = [
            (busy, 0),
            (idle, 1),
            (idle, FORGET_US),
            (idle, 1 + FORGET_US),
            (idle, u64::MAX),
        ];
        assert_eq!(
            seen.map(|(busy, now_us)| see(busy, now_us)),
            [false, false, false, true, false]
        );
    }
}
