//! Starts that cost shared file systems something wait until the pilot permits them. Others never come here.

use tidemill_sys::time;
use tidemill_wire::Program;

use super::Init;
use crate::FromSlot;

/// A permit that is not used by then is void: the budget has gone on.
const VALID_US: u64 = 2_000_000;

/// What was asked for, and what was permitted. Pure.
#[derive(Debug, Default)]
pub(super) struct Permits {
    asked: Option<u64>,
    held: Option<(u64, u64)>,
    note: String,
}

/// What comes next for a payload that could start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Start,
    Ask,
    Wait,
}

impl Permits {
    /// Whether a payload of this program may start now; a permit is used up by that.
    pub fn look(&mut self, program: u64, now_us: u64) -> Verdict {
        if let Some((_, since_us)) = self.held.take().filter(|held| held.0 == program) {
            if now_us <= since_us + VALID_US {
                return Verdict::Start;
            }
        }
        if self.asked.replace(program) == Some(program) {
            return Verdict::Wait;
        }
        Verdict::Ask
    }

    /// The pilot permits a start; `note` is for the log of what starts.
    pub fn permit(&mut self, program: u64, note: String, now_us: u64) {
        self.asked = None;
        self.held = Some((program, now_us));
        self.note = note;
    }

    /// The pilot has been informed that the slot is idle, and so forgets that it waits for a permit.
    pub fn forget(&mut self) {
        self.asked = None;
    }

    /// What the next payload's log says first.
    pub fn take_note(&mut self) -> String {
        std::mem::take(&mut self.note)
    }
}

impl Init {
    /// Whether a payload of this job may start now; asks for a permit if it needs one.
    pub(super) fn is_permitted(&mut self, id: u64) -> bool {
        let Some(job) = self.jobs.get(&id).filter(|job| is_paced(&job.program)) else {
            return true;
        };
        if self.size(job, 0) == 0 {
            return true; // it goes back, for its time is over
        }
        let program = job.program.program;
        match self.permits.look(program, time::monotonic_us()) {
            Verdict::Start => true,
            Verdict::Wait => false,
            Verdict::Ask => {
                self.control.put(FromSlot::Want { program });
                false
            }
        }
    }
}

fn is_paced(program: &Program) -> bool {
    let mut costs = program.start_ops.values().chain(program.start_bytes.values());
    costs.any(|&cost| cost > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_asked_for_once_and_a_permit_is_used_once() {
        let mut permits = Permits::default();
        assert_eq!(permits.look(1, 0), Verdict::Ask);
        assert_eq!(permits.look(1, 1), Verdict::Wait);
        permits.permit(1, String::from("slow"), 2);
        assert_eq!(permits.look(1, 3), Verdict::Start);
        assert_eq!(permits.take_note(), "slow");
        assert_eq!(permits.look(1, 4), Verdict::Ask);
    }

    #[test]
    fn a_slot_that_was_idle_asks_again() {
        let mut permits = Permits::default();
        permits.look(1, 0);
        permits.forget();
        assert_eq!(permits.look(1, 1), Verdict::Ask);
    }

    #[test]
    fn a_permit_for_another_program_or_an_old_one_is_void() {
        let mut permits = Permits::default();
        permits.look(1, 0);
        permits.permit(1, String::new(), 0);
        assert_eq!(permits.look(2, 1), Verdict::Ask);
        permits.permit(2, String::new(), 1);
        assert_eq!(permits.look(2, 2 + VALID_US), Verdict::Ask);
    }
}
