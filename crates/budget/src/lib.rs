//! Decides when payloads may start, so that the load of their starts on shared file systems stays within the centre's
//! limits. Pure.
//!
//! Each area has a rate of metadata operations and one of bytes. A start costs each what its program says, times a
//! factor that follows what the nodes' counters saw (`correction`). Two rules (`bound`) apply to operations and to
//! bytes, and all must allow a start:
//!
//! - starts are spaced: after one of cost c the next comes c / rate later (the virtual scheduling algorithm of ITU-T
//!   I.371). An area that was left alone has saved up `SAVED_S` of its rate, no more.
//! - over the last `WINDOW_US`, the starts and the next one together cost at most `OVER_MAX` times what the rate gives.
//!   A start that alone costs more than that has a window for itself.
//!
//! A start's operations take their time; spacing, rather than a bucket that empties at once, keeps them as even as the
//! starts.
//! Waiters are served in turn, one start each. A waiter that cannot start yet keeps its areas for itself, so that cheap
//! starts do not overtake a costly one forever.
//!
//! A node mostly finds what it has read in its page cache at later starts, so it may read far fewer bytes than the
//! files have. The first start of a program by a waiter is therefore never taken to read less than its program says.

mod bound;
mod correction;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use tidemill_wire::{IoArea, Program, Usage};

use crate::bound::Bound;
pub use crate::bound::{AIM, OVER_MAX, SAVED_S, WINDOW_US};
use crate::correction::Correction;

/// Programs that one pilot may wait for.
const WAITING_MAX: usize = 256;
/// Starts of a program that one pilot may wait for: it waits for one per slot, and no node has that many slots.
pub const STARTS_MAX: u64 = 10_000;
/// A start is taken to cost at least this share of what its program says.
const OPS_FACTOR_MIN: f64 = 0.25;
/// The same for bytes, nearly all of which a page cache may serve.
const BYTES_FACTOR_MIN: f64 = 0.1;

/// Who waits: the lead's number of a pilot, or of a slot where there is no lead.
pub type Waiter = usize;

/// Starts that may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub waiter: Waiter,
    pub program: u64,
    pub starts: u64,
}

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// metadata operations
    Ops,
    Bytes,
}

/// What one start of a program costs, per area.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    pub ops: &'a BTreeMap<String, i64>,
    pub bytes: &'a BTreeMap<String, i64>,
}

/// Areas where the nodes were seen to do more than is allowed: the observed rate in thousandths of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Over {
    pub ops: BTreeMap<String, i64>,
    pub bytes: BTreeMap<String, i64>,
}

#[derive(Debug)]
struct Area {
    ops: Bound,
    bytes: Bound,
}

#[derive(Debug)]
struct Wanting {
    waiter: Waiter,
    program: u64,
    starts: u64,
}

/// The budget of a fleet (or, without a lead, of an allocation) and who waits for a part of it.
#[derive(Debug, Default)]
pub struct Budget {
    areas: BTreeMap<String, Area>,
    /// in the order in which they are served
    waiting: VecDeque<Wanting>,
    /// whose page cache may hold what a program reads at its start
    warm: HashSet<(Waiter, u64)>,
}

impl<'a> Costs<'a> {
    /// What a program says.
    pub fn of(program: &'a Program) -> Self {
        Costs {
            ops: &program.start_ops,
            bytes: &program.start_bytes,
        }
    }

    fn each(self) -> impl Iterator<Item = (&'a str, Kind, i64)> {
        let of = |kind| move |(name, cost): (&'a String, &i64)| (name.as_str(), kind, *cost);
        let ops = self.ops.iter().map(of(Kind::Ops));
        ops.chain(self.bytes.iter().map(of(Kind::Bytes)))
    }
}

impl Over {
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.bytes.is_empty()
    }
}

impl Area {
    fn new(now_us: u64) -> Self {
        Area {
            ops: Bound::new(Correction::new(OPS_FACTOR_MIN), now_us),
            bytes: Bound::new(Correction::new(BYTES_FACTOR_MIN), now_us),
        }
    }

    fn bound(&mut self, kind: Kind) -> &mut Bound {
        match kind {
            Kind::Ops => &mut self.ops,
            Kind::Bytes => &mut self.bytes,
        }
    }
}

impl Budget {
    /// The areas and their rates, from now on. What was spent counts on.
    pub fn set(&mut self, areas: &[IoArea], now_us: u64) {
        for area in self.areas.values_mut() {
            (area.ops.rate, area.bytes.rate) = (None, None);
        }
        for told in areas {
            let area = self
                .areas
                .entry(told.name.clone())
                .or_insert_with(|| Area::new(now_us));
            area.ops.rate = told.ops_per_s.filter(|rate| rate.is_finite());
            area.bytes.rate = told.bytes_per_s.filter(|rate| rate.is_finite());
        }
    }

    /// Records how many payloads of a program a pilot would start. Replaces its earlier request for the program, at the
    /// same place in the queue.
    pub fn want(&mut self, waiter: Waiter, program: u64, starts: u64) {
        let starts = starts.min(STARTS_MAX);
        let same = |each: &Wanting| each.waiter == waiter && each.program == program;
        if let Some(at) = self.waiting.iter().position(same) {
            if starts == 0 {
                self.waiting.remove(at);
            } else {
                self.waiting[at].starts = starts;
            }
            return;
        }
        let programs = self.waiting.iter().filter(|each| each.waiter == waiter).count();
        if starts > 0 && programs < WAITING_MAX {
            self.waiting.push_back(Wanting {
                waiter,
                program,
                starts,
            });
        }
    }

    /// A pilot is gone: it waits for nothing. What it was permitted counts as spent.
    pub fn leave(&mut self, waiter: Waiter) {
        self.waiting.retain(|each| each.waiter != waiter);
        self.warm.retain(|(warm, _)| *warm != waiter);
    }

    /// Whether there is no waiter.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What may start now; `costs` of a program, None while it is not known (it waits).
    pub fn grant<'a>(
        &mut self,
        costs: impl Fn(u64) -> Option<Costs<'a>>,
        now_us: u64,
    ) -> (Vec<Granted>, Option<u64>) {
        let mut granted = Vec::new();
        let mut places = HashMap::new();
        loop {
            let mut taken: BTreeSet<(&str, Kind)> = BTreeSet::new();
            let mut progress = false;
            let mut due_us: Option<u64> = None;
            let mut kept = VecDeque::with_capacity(self.waiting.len());
            let mut served = VecDeque::new();
            while let Some(mut wanting) = self.waiting.pop_front() {
                let Some(costs) = costs(wanting.program) else {
                    kept.push_back(wanting);
                    continue;
                };
                let needs = || costs.each().map(|(name, kind, _)| (name, kind));
                if needs().any(|each| taken.contains(&each)) {
                    taken.extend(needs());
                    kept.push_back(wanting);
                    continue;
                }
                let is_cold = !self.warm.contains(&(wanting.waiter, wanting.program));
                match start(&mut self.areas, costs, (is_cold, now_us)) {
                    Ok(()) => {
                        progress = true;
                        self.warm.insert((wanting.waiter, wanting.program));
                        wanting.starts -= 1;
                        note(&mut granted, &mut places, &wanting);
                        if wanting.starts > 0 {
                            served.push_back(wanting);
                        }
                    }
                    Err(later_us) => {
                        due_us = match (due_us, later_us) {
                            (Some(due_us), Some(later_us)) => Some(due_us.min(later_us)),
                            (due_us, later_us) => due_us.or(later_us),
                        };
                        taken.extend(needs());
                        kept.push_back(wanting);
                    }
                }
            }
            kept.append(&mut served);
            self.waiting = kept;
            if !progress {
                return (granted, due_us);
            }
        }
    }

    /// What a node's counters saw: `costs` of its starts were forecast.
    pub fn observe<'a>(
        &mut self,
        usage: &Usage,
        costs: impl Fn(u64) -> Option<Costs<'a>>,
        waiter: Waiter,
        now_us: u64,
    ) {
        let mut forecast: HashMap<(&str, Kind), (f64, f64)> = HashMap::new();
        for (program, &starts) in &usage.starts {
            let known = program.parse().ok().and_then(&costs);
            for (area, kind, cost) in known.into_iter().flat_map(Costs::each) {
                let sum = forecast.entry((area, kind)).or_default();
                sum.0 += starts.max(0) as f64;
                sum.1 += starts.max(0) as f64 * cost.max(0) as f64;
            }
        }
        let observed = Costs {
            ops: &usage.ops,
            bytes: &usage.bytes,
        };
        for (name, kind, observed) in observed.each() {
            if let Some(area) = self.areas.get_mut(name) {
                let correction = &mut area.bound(kind).correction;
                let (starts, expected) = forecast.get(&(name, kind)).copied().unwrap_or_default();
                correction.learn((starts, expected, observed.max(0) as f64), now_us);
                let rate_per_s = observed.max(0) as f64 * 1e6 / usage.over_us.max(1) as f64;
                correction.saw(waiter, rate_per_s, now_us);
            }
        }
    }

    /// Charges bytes that are read for no start, such as those of an image. They need no permit, but they delay later
    /// starts.
    pub fn charge(&mut self, bytes: &BTreeMap<String, i64>, now_us: u64) {
        for (name, &bytes) in bytes {
            if let Some(area) = self.areas.get_mut(name) {
                area.bytes.spend(bytes.max(0) as f64, now_us);
                area.bytes
                    .correction
                    .learn((0.0, bytes.max(0) as f64, 0.0), now_us);
            }
        }
    }

    /// Areas where the nodes did more than is allowed.
    pub fn over(&self, now_us: u64) -> Over {
        let of = |bound: fn(&Area) -> &Bound| {
            let each = |(name, area): (&String, &Area)| Some((name.clone(), bound(area).over(now_us)?));
            self.areas.iter().filter_map(each).collect()
        };
        Over {
            ops: of(|area| &area.ops),
            bytes: of(|area| &area.bytes),
        }
    }

    /// What a start is taken to cost, as a multiple of what its program says.
    pub fn factor(&self, area: &str, kind: Kind) -> f64 {
        let correction = |area: &Area| match kind {
            Kind::Ops => area.ops.correction.factor(),
            Kind::Bytes => area.bytes.correction.factor(),
        };
        self.areas.get(area).map_or(1.0, correction)
    }
}

/// Spend what a start costs, or say when it can be tried again (None: not before something changes).
fn start(
    areas: &mut BTreeMap<String, Area>,
    costs: Costs<'_>,
    (is_cold, now_us): (bool, u64),
) -> Result<(), Option<u64>> {
    let corrected = |bound: &Bound, kind, cost: i64| {
        let factor = bound.correction.factor();
        let least = if is_cold && kind == Kind::Bytes { 1.0 } else { 0.0 };
        cost as f64 * factor.max(least)
    };
    let mut at_us = now_us as f64;
    for (name, kind, cost) in costs.each().filter(|&(_, _, cost)| cost > 0) {
        let bound = areas.get_mut(name).map(|area| area.bound(kind));
        if let Some(bound) = bound.filter(|bound| bound.rate.is_some()) {
            match bound.earliest_us(corrected(bound, kind, cost), now_us) {
                Some(earliest_us) => at_us = at_us.max(earliest_us),
                None => return Err(None),
            }
        }
    }
    if at_us > now_us as f64 {
        return Err(Some(at_us.ceil() as u64));
    }
    for (name, kind, cost) in costs.each().filter(|&(_, _, cost)| cost > 0) {
        if let Some(area) = areas.get_mut(name) {
            let bound = area.bound(kind);
            let cost = corrected(bound, kind, cost);
            bound.spend(cost, now_us);
        }
    }
    Ok(())
}

/// Counts one more start; `places` holds the index in `granted` for each waiter and program.
fn note(granted: &mut Vec<Granted>, places: &mut HashMap<(Waiter, u64), usize>, wanting: &Wanting) {
    let (waiter, program) = (wanting.waiter, wanting.program);
    let at = *places.entry((waiter, program)).or_insert(granted.len());
    match granted.get_mut(at) {
        Some(each) => each.starts += 1,
        None => granted.push(Granted {
            waiter,
            program,
            starts: 1,
        }),
    }
}
