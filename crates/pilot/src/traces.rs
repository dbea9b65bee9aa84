//! Profiles of traced payloads: into the bundle, and a word about each into the journal.

use std::collections::BTreeMap;

use tidemill_slot::PayloadLog;
use tidemill_wire::Program;

use crate::error::PilotError;
use crate::keep::bundle::Member;
use crate::pilot::Pilot;

/// Which slot traces the first payload of a program: one of the node's, not each. Pure.
#[derive(Debug, Default)]
pub struct FirstTraces {
    /// per program that asked for it; None = there is a profile
    slots: BTreeMap<u64, Option<u32>>,
}

impl FirstTraces {
    /// The program as this slot is told: with the order only if no other slot has it.
    pub fn told_to(&mut self, slot: u32, mut program: Program) -> Program {
        if program.trace_first {
            let chosen = *self.slots.entry(program.program).or_insert(Some(slot));
            program.trace_first = chosen == Some(slot);
        }
        program
    }

    /// There is a profile: nobody else is asked.
    pub fn traced(&mut self, program: u64) {
        if let Some(slot) = self.slots.get_mut(&program) {
            *slot = None;
        }
    }

    /// The slot has ended: what it has not traced the next one does.
    pub fn gone(&mut self, slot: u32) {
        self.slots.retain(|_, chosen| *chosen != Some(slot));
    }
}

impl Pilot {
    /// Keep the profile of a traced payload as logs are kept, and note what it counted.
    pub(crate) fn take_trace(
        &mut self,
        program: u64,
        (ops, failed): (u64, u64),
        log: &PayloadLog,
        now_us: u64,
    ) -> Result<(), PilotError> {
        let member = Member {
            kind: "profile",
            name: "profile",
            job: log.job,
            first: log.first,
            count: log.count,
            truncated: false,
        };
        self.keeper.take_log(&member, &log.stdout, now_us);
        let traced = !log.stdout.is_empty();
        if traced {
            self.first_traces.traced(program);
        }
        let count = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let numbers = [
            ("ops", count(ops)),
            ("failed", count(failed)),
            ("profile_bytes", log.stdout.len() as i64),
        ];
        let mode = if traced { "ptrace" } else { "none" };
        let message = String::from_utf8_lossy(&log.stderr).into_owned();
        let numbers = BTreeMap::from(numbers.map(|(name, value)| (name.to_owned(), value)));
        let whose = (Some(program), Some(log.job));
        self.note_work(("trace", mode, message), whose, numbers, now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slot_traces_the_first_payload_and_the_next_one_when_it_ends_before_that() {
        let mut first = FirstTraces::default();
        let program = |number: u64, trace_first: bool| Program {
            program: number,
            trace_first,
            trace_every: 50,
            ..Program::default()
        };
        let told = |first: &mut FirstTraces, slot: u32, number: u64| {
            let told = first.told_to(slot, program(number, true));
            assert_eq!(told.trace_every, 50);
            told.trace_first
        };
        assert!(told(&mut first, 1, 7));
        assert!(!told(&mut first, 2, 7));
        assert!(told(&mut first, 2, 8));
        assert!(!first.told_to(3, program(9, false)).trace_first);
        first.gone(1);
        assert!(told(&mut first, 3, 7));
        first.traced(7);
        first.gone(3);
        assert!(!told(&mut first, 4, 7));
    }
}
