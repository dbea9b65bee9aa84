//! Starts that load shared file systems: slots ask, and the lead permits; without a lead the pilot does, within its
//! allocation's own share. Of work it knows only what a program's start costs.

#[cfg(test)]
mod hostile;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidemill_budget::{Budget, Costs, Over};
use tidemill_slot::ToSlot;
use tidemill_wire::{Permit, PilotMessage, StagedFile, Usage, Want};

use crate::context::Context;
use crate::error::PilotError;
use crate::report::Note;
use usage::{bytes_in, UsageMeter};

/// How long a permit that no slot waits for is kept.
const SPARE_US: u64 = 500_000;
/// Interval of records of counts, and of records that an area is over its budget.
const NOTE_US: u64 = 60_000_000;

/// Which slots wait for a permit, and what the lead knows of that. Pure.
#[derive(Debug, Default)]
struct Waiting {
    slots: VecDeque<(u32, u64)>,
    /// per program, the starts last reported to the lead
    told: BTreeMap<u64, u64>,
    spare: BTreeMap<u64, (u64, u64)>,
}

impl Waiting {
    /// A slot wants to start a payload of this program: true if it may at once, with a spare permit.
    fn want(&mut self, slot: u32, program: u64, now_us: u64) -> bool {
        self.gone(slot);
        if let Some((starts, until_us)) = self.spare.get_mut(&program) {
            if *starts > 0 && now_us <= *until_us {
                *starts -= 1;
                return true;
            }
        }
        self.slots.push_back((slot, program));
        false
    }

    /// Keep only the slots that exist.
    fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.slots.retain(|(waiting, _)| is_there(*waiting));
    }

    /// The slot no longer waits, because it has no work.
    fn gone(&mut self, slot: u32) {
        self.slots.retain(|(waiting, _)| *waiting != slot);
    }

    /// Permit this number of starts: returns the slots that may start, in the order in which they asked.
    fn permit(&mut self, program: u64, starts: u64, now_us: u64) -> Vec<u32> {
        let told = self.told.entry(program).or_default();
        *told = told.saturating_sub(starts);
        let mut chosen = Vec::new();
        while (chosen.len() as u64) < starts {
            let Some(at) = self.slots.iter().position(|(_, waiting)| *waiting == program) else {
                break;
            };
            chosen.extend(self.slots.remove(at).map(|(slot, _)| slot));
        }
        let left = starts - chosen.len() as u64;
        if left > 0 {
            self.spare.insert(program, (left, now_us + SPARE_US));
        }
        chosen
    }

    /// A new connection, whose lead knows nothing of this pilot.
    fn reconnected(&mut self) {
        self.told.clear();
    }

    /// The changes to report to the lead.
    fn tell(&mut self) -> Vec<Want> {
        let mut wanted: BTreeMap<u64, u64> = self.told.keys().map(|&program| (program, 0)).collect();
        for (_, program) in &self.slots {
            *wanted.entry(*program).or_default() += 1;
        }
        let mut wants = Vec::new();
        for (&program, &starts) in &wanted {
            if self.told.get(&program).copied().unwrap_or(0) != starts {
                wants.push(Want { program, starts });
            }
        }
        wanted.retain(|_, starts| *starts > 0);
        self.told = wanted;
        wants
    }

    fn of(&self, program: u64) -> impl Iterator<Item = u32> + '_ {
        let mine = move |(_, waiting): &&(u32, u64)| *waiting == program;
        self.slots.iter().filter(mine).map(|(slot, _)| *slot)
    }
}

/// A pilot's part in the I/O budget.
#[derive(Default)]
pub struct Permits {
    waiting: Waiting,
    /// without a lead
    own: Option<Budget>,
    own_due_us: Option<u64>,
    meter: UsageMeter,
    /// counted since the last record
    counted: Usage,
    counted_us: u64,
    over_noted_us: Option<u64>,
}

impl Permits {
    pub fn new(own: Option<Budget>, meter: UsageMeter, now_us: u64) -> Self {
        Permits {
            own,
            meter,
            counted_us: now_us,
            ..Permits::default()
        }
    }

    /// When there is something to do at the latest.
    pub fn due_us(&self) -> Option<u64> {
        self.own_due_us.into_iter().chain(self.meter.due_us()).min()
    }

    /// A slot is ready to start a payload whose start costs something.
    pub fn want(&mut self, cx: &mut Context, slot: u32, program: u64) {
        if self.waiting.want(slot, program, cx.now_us) {
            self.let_start(cx, slot, program, &Over::default());
        }
    }

    /// The slot no longer waits, because it has no work.
    pub fn idle(&mut self, slot: u32) {
        self.waiting.gone(slot);
    }

    /// A new connection, whose lead knows nothing of this pilot.
    pub fn connected(&mut self) {
        self.waiting.reconnected();
    }

    /// The lead permits starts.
    pub fn permit(&mut self, cx: &mut Context, permit: Permit) -> Result<(), PilotError> {
        let over = Over {
            ops: permit.over,
            bytes: permit.over_bytes,
        };
        self.permitted(cx, permit.program, permit.starts, &over);
        if over.is_empty() {
            return Ok(());
        }
        self.note_over(cx, &over)
    }

    fn permitted(&mut self, cx: &mut Context, program: u64, starts: u64, over: &Over) {
        self.waiting.keep(|slot| cx.slots.get(slot).is_some());
        for slot in self.waiting.permit(program, starts, cx.now_us) {
            self.let_start(cx, slot, program, over);
        }
    }

    fn let_start(&mut self, cx: &mut Context, slot: u32, program: u64, over: &Over) {
        self.meter.started(program);
        let note = over_text(over);
        cx.slots.tell(slot, &ToSlot::Permit { program, note });
    }

    /// Without a lead: what the stage reads for no start counts as well.
    pub fn charge(&mut self, cx: &Context, reads: Vec<StagedFile>) {
        if let Some(budget) = &mut self.own {
            for file in reads {
                budget.charge(&bytes_in(&file, &cx.settings.io), cx.now_us);
            }
        }
    }

    /// Report what is wanted, permit what the own share allows, read the node's counters.
    pub fn step(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        if let Some(usage) = self.meter.step(cx.now_us) {
            self.counted(cx, usage)?;
        }
        if !cx.life.is_working() {
            self.own_due_us = None;
            return Ok(()); // no payload starts while the pilot leaves
        }
        self.waiting.keep(|slot| cx.slots.get(slot).is_some());
        if cx.lead.is_files() {
            self.permit_own(cx);
        } else if cx.lead.has_lead() {
            for want in self.waiting.tell() {
                cx.send(&PilotMessage::Want(want))?;
            }
        }
        Ok(())
    }

    fn counted(&mut self, cx: &mut Context, usage: Usage) -> Result<(), PilotError> {
        add(&mut self.counted, &usage);
        if let Some(budget) = &mut self.own {
            let costs = |program| cx.work.program(program).map(Costs::of);
            budget.observe(&usage, costs, 0, cx.now_us);
            let over = budget.over(cx.now_us);
            if !over.is_empty() {
                self.note_over(cx, &over)?;
            }
        } else {
            cx.send(&PilotMessage::Usage(usage))?;
        }
        if cx.now_us >= self.counted_us + NOTE_US {
            self.note_usage(cx)?;
        }
        Ok(())
    }

    fn permit_own(&mut self, cx: &mut Context) {
        let Some(budget) = &mut self.own else {
            return;
        };
        for want in self.waiting.tell() {
            let waiting: BTreeSet<u32> = self.waiting.of(want.program).collect();
            budget.want(0, want.program, waiting.len() as u64);
        }
        let costs = |program| cx.work.program(program).map(Costs::of);
        let (granted, due_us) = budget.grant(costs, cx.now_us);
        self.own_due_us = due_us;
        for each in granted {
            self.permitted(cx, each.program, each.starts, &Over::default());
        }
    }

    /// Starts are slowed because areas are over their budget: a record now and then.
    fn note_over(&mut self, cx: &mut Context, over: &Over) -> Result<(), PilotError> {
        let noted_us = self.over_noted_us;
        if noted_us.is_some_and(|at_us| cx.now_us < at_us + NOTE_US) {
            return Ok(());
        }
        self.over_noted_us = Some(cx.now_us);
        let mut note = Note::new("io", "over", over_text(over));
        for (kind, shares) in [("ops", &over.ops), ("bytes", &over.bytes)] {
            for (area, &share) in shares {
                note = note.number(format!("{area}.{kind}"), share);
            }
        }
        cx.note(note)
    }

    /// What the node's counters saw since the last record of it.
    pub fn note_usage(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let counted = std::mem::take(&mut self.counted);
        self.counted_us = cx.now_us;
        if counted.over_us == 0 {
            return Ok(());
        }
        let mut note = Note::new("io", "usage", "").number("over_us", counted.over_us);
        for (kind, values) in [("ops", &counted.ops), ("bytes", &counted.bytes)] {
            for (area, &value) in values {
                note = note.number(format!("{area}.{kind}"), value);
            }
        }
        cx.note(note)
    }
}

fn add(counted: &mut Usage, usage: &Usage) {
    counted.over_us += usage.over_us;
    for (sums, more) in [
        (&mut counted.ops, &usage.ops),
        (&mut counted.bytes, &usage.bytes),
        (&mut counted.starts, &usage.starts),
    ] {
        for (name, value) in more {
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*value);
        }
    }
}

fn over_text(over: &Over) -> String {
    let of = |what: &'static str| {
        move |(area, share): (&String, &i64)| {
            format!(
                "area `{area}` is at {}.{} % of its budget{what}",
                share / 10,
                share % 10
            )
        }
    };
    if over.is_empty() {
        return String::new();
    }
    let bytes = over.bytes.iter().map(of(" of bytes"));
    let areas: Vec<String> = over.ops.iter().map(of("")).chain(bytes).collect();
    format!("starts are slowed: {}", areas.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(waiting: &mut Waiting) -> Vec<(u64, u64)> {
        let wants = waiting.tell();
        wants.iter().map(|want| (want.program, want.starts)).collect()
    }

    #[test]
    fn the_lead_is_told_when_the_number_changes_and_slots_start_in_the_order_in_which_they_asked() {
        let mut waiting = Waiting::default();
        assert!(!waiting.want(4, 1, 0));
        assert!(!waiting.want(2, 1, 0));
        assert!(!waiting.want(3, 9, 0));
        assert_eq!(told(&mut waiting), [(1, 2), (9, 1)]);
        assert_eq!(told(&mut waiting), []);
        assert_eq!(waiting.permit(1, 1, 0), [4]);
        assert_eq!(told(&mut waiting), []); // the lead knows that one is left
        waiting.gone(2);
        assert_eq!(told(&mut waiting), [(1, 0)]);
        waiting.reconnected();
        assert_eq!(told(&mut waiting), [(9, 1)]);
    }

    #[test]
    fn a_permit_that_nobody_waits_for_serves_the_next_one_for_a_moment() {
        let mut waiting = Waiting::default();
        assert!(waiting.permit(1, 1, 0).is_empty());
        assert!(waiting.want(0, 1, SPARE_US));
        assert!(!waiting.want(0, 1, SPARE_US));
        assert!(waiting.permit(2, 1, 0).is_empty());
        assert!(!waiting.want(1, 2, SPARE_US + 1));
    }

    #[test]
    fn what_is_over_its_budget_is_told_in_words() {
        let over = Over {
            ops: [("sw".to_owned(), 1244)].into(),
            bytes: [("data".to_owned(), 3000)].into(),
        };
        assert_eq!(
            over_text(&over),
            "starts are slowed: area `sw` is at 124.4 % of its budget, area `data` is at 300.0 % of its budget of bytes"
        );
        assert_eq!(over_text(&Over::default()), "");
    }
}
