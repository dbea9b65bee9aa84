//! Which slot traces the first payload of a program: one slot of the node, not each. Pure.

use std::collections::BTreeMap;

use tidemill_wire::Program;

/// The slots that were chosen.
#[derive(Debug, Default)]
pub struct FirstTraces {
    /// per program that asks for a trace; None = there is a profile
    slots: BTreeMap<u64, Option<u32>>,
}

impl FirstTraces {
    /// The program as sent to this slot: with the order to trace only if no other slot has it.
    pub fn told_to(&mut self, slot: u32, mut program: Program) -> Program {
        if program.trace_first {
            let chosen = *self.slots.entry(program.program).or_insert(Some(slot));
            program.trace_first = chosen == Some(slot);
        }
        program
    }

    /// There is a profile: no other slot is asked for one.
    pub fn traced(&mut self, program: u64) {
        if let Some(slot) = self.slots.get_mut(&program) {
            *slot = None;
        }
    }

    /// The slot has ended: the next one traces what it has not.
    pub fn gone(&mut self, slot: u32) {
        self.slots.retain(|_, chosen| *chosen != Some(slot));
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
