//! When payloads may start, so that what their starts cost shared file systems stays within what the centre allows: pure.
//!
//! Each area has a rate. A start costs each area what its program says, times a factor that follows what the nodes'
//! counters saw (`correction`). Two rules, and both must allow a start:
//!
//! - starts are spaced: after one of cost c the next comes c / rate later (the virtual scheduling algorithm of ITU-T
//!   I.371). An area that was left alone has saved up `SAVED_S` of its rate, no more.
//! - over the last `WINDOW_US`, the starts and the next one together cost at most `OVER_MAX` times what the rate gives. A
//!   start that alone costs more than that has a window for itself.
//!
//! A start's operations take their time; spacing, rather than a bucket that empties at once, keeps them as even as the starts.
//! Who waits is served in turn, one start each. One that cannot go yet keeps its areas for itself: cheap starts
//! do not overtake a costly one for ever.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tidemill_wire::{IoArea, Usage};

use crate::correction::Correction;

/// The time over which a centre looks at us.
pub const WINDOW_US: u64 = 10_000_000;
/// In no window more than so many times the budget.
pub const OVER_MAX: f64 = 1.10;
/// Seconds of its rate that an idle area saves up.
pub const SAVED_S: f64 = 0.2;
/// Aimed at this part of the rate: starts that take longer than others to spend what they cost must not meet.
pub const AIM: f64 = 0.97;
/// Programs that one pilot may wait for.
const WAITING_MAX: usize = 256;

/// Who waits: the lead's number of a pilot, or of a slot where there is no lead.
pub type Waiter = usize;

/// What starts of a program cost, per area.
pub type Costs = BTreeMap<String, i64>;

/// Starts that may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub waiter: Waiter,
    pub program: u64,
    pub starts: u64,
}

#[derive(Debug)]
struct Area {
    /// operations per second; None = no bound
    rate: Option<f64>,
    /// no start before
    next_us: f64,
    /// starts of the last window: when, and what they cost
    spent: VecDeque<(u64, f64)>,
    spent_sum: f64,
    correction: Correction,
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
}

impl Area {
    fn new(now_us: u64) -> Self {
        Area {
            rate: None,
            next_us: now_us as f64,
            spent: VecDeque::new(),
            spent_sum: 0.0,
            correction: Correction::default(),
        }
    }

    /// When a start of this cost may begin; None: never as things are.
    fn earliest_us(&mut self, cost: f64, now_us: u64) -> Option<f64> {
        let rate = self.rate?;
        if rate <= 0.0 {
            return None;
        }
        while let Some(&(at_us, old)) = self.spent.front() {
            if at_us + WINDOW_US > now_us {
                break;
            }
            self.spent.pop_front();
            self.spent_sum -= old;
        }
        if self.spent.is_empty() {
            self.spent_sum = 0.0; // what rounding left
        }
        let mut over = self.spent_sum + cost - OVER_MAX * rate * WINDOW_US as f64 / 1e6;
        let mut earliest_us = self.next_us;
        for &(at_us, old) in &self.spent {
            if over <= 0.0 {
                break;
            }
            over -= old;
            earliest_us = earliest_us.max((at_us + WINDOW_US) as f64);
        }
        Some(earliest_us)
    }

    fn spend(&mut self, cost: f64, now_us: u64) {
        let Some(rate) = self.rate else { return };
        let saved_from_us = now_us as f64 - SAVED_S * 1e6;
        self.next_us = self.next_us.max(saved_from_us) + cost / (AIM * rate) * 1e6;
        self.spent.push_back((now_us, cost));
        self.spent_sum += cost;
    }
}

impl Budget {
    /// The areas and their rates, from now on. What was spent counts on.
    pub fn set(&mut self, areas: &[IoArea], now_us: u64) {
        for area in self.areas.values_mut() {
            area.rate = None;
        }
        for told in areas {
            let area = self
                .areas
                .entry(told.name.clone())
                .or_insert_with(|| Area::new(now_us));
            area.rate = told.ops_per_s.filter(|rate| rate.is_finite());
        }
    }

    /// Whether any area has a bound.
    pub fn is_bounded(&self) -> bool {
        self.areas.values().any(|area| area.rate.is_some())
    }

    /// A pilot would start so many payloads of a program; replaces what it wanted of it before, and keeps its turn.
    pub fn want(&mut self, waiter: Waiter, program: u64, starts: u64) {
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
    }

    /// Nobody waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What may start now; `costs` of a program, None while it is not known (it waits).
    pub fn grant<'a>(
        &mut self,
        costs: impl Fn(u64) -> Option<&'a Costs>,
        now_us: u64,
    ) -> (Vec<Granted>, Option<u64>) {
        let mut granted: Vec<Granted> = Vec::new();
        loop {
            let mut taken: BTreeSet<&str> = BTreeSet::new();
            let mut progress = false;
            let mut due_us: Option<u64> = None;
            let mut kept = VecDeque::with_capacity(self.waiting.len());
            let mut served = VecDeque::new();
            while let Some(mut wanting) = self.waiting.pop_front() {
                let Some(costs) = costs(wanting.program) else {
                    kept.push_back(wanting);
                    continue;
                };
                if costs.keys().any(|name| taken.contains(name.as_str())) {
                    taken.extend(costs.keys().map(String::as_str));
                    kept.push_back(wanting);
                    continue;
                }
                match start(&mut self.areas, costs, now_us) {
                    Ok(()) => {
                        progress = true;
                        wanting.starts -= 1;
                        note(&mut granted, &wanting);
                        if wanting.starts > 0 {
                            served.push_back(wanting);
                        }
                    }
                    Err(later_us) => {
                        due_us = match (due_us, later_us) {
                            (Some(due_us), Some(later_us)) => Some(due_us.min(later_us)),
                            (due_us, later_us) => due_us.or(later_us),
                        };
                        taken.extend(costs.keys().map(String::as_str));
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
        costs: impl Fn(u64) -> Option<&'a Costs>,
        (waiter, now_us): (Waiter, u64),
    ) {
        let mut forecast: HashMap<&str, (f64, f64)> = HashMap::new();
        for (program, &starts) in &usage.starts {
            let known = program.parse().ok().and_then(&costs);
            for (area, &cost) in known.into_iter().flatten() {
                let sum = forecast.entry(area.as_str()).or_default();
                sum.0 += starts.max(0) as f64;
                sum.1 += starts.max(0) as f64 * cost.max(0) as f64;
            }
        }
        for (name, &observed) in &usage.ops {
            if let Some(area) = self.areas.get_mut(name) {
                let (starts, expected) = forecast.get(name.as_str()).copied().unwrap_or_default();
                area.correction
                    .learn((starts, expected, observed.max(0) as f64), now_us);
                let rate_per_s = observed.max(0) as f64 * 1e6 / usage.over_us.max(1) as f64;
                area.correction.saw(waiter, rate_per_s, now_us);
            }
        }
    }

    /// Areas where the nodes did more than is allowed: the observed rate in thousandths of the budget.
    pub fn over(&self, now_us: u64) -> BTreeMap<String, i64> {
        let mut over = BTreeMap::new();
        for (name, area) in &self.areas {
            let Some(rate) = area.rate.filter(|&rate| rate > 0.0) else {
                continue;
            };
            let share = area.correction.observed_per_s(now_us) / rate;
            if share > OVER_MAX {
                over.insert(name.clone(), (share * 1000.0).round() as i64);
            }
        }
        over
    }

    /// What a start is taken to cost, as a multiple of what its program says.
    pub fn factor(&self, area: &str) -> f64 {
        self.areas.get(area).map_or(1.0, |area| area.correction.factor())
    }
}

/// Spend what a start costs, or say when it can be tried again (None: not before something changes).
fn start(areas: &mut BTreeMap<String, Area>, costs: &Costs, now_us: u64) -> Result<(), Option<u64>> {
    let mut at_us = now_us as f64;
    for (name, &cost) in costs {
        if let Some(area) = areas.get_mut(name).filter(|area| area.rate.is_some() && cost > 0) {
            let cost = cost as f64 * area.correction.factor();
            match area.earliest_us(cost, now_us) {
                Some(earliest_us) => at_us = at_us.max(earliest_us),
                None => return Err(None),
            }
        }
    }
    if at_us > now_us as f64 {
        return Err(Some(at_us.ceil() as u64));
    }
    for (name, &cost) in costs {
        if let Some(area) = areas.get_mut(name).filter(|_| cost > 0) {
            area.spend(cost as f64 * area.correction.factor(), now_us);
        }
    }
    Ok(())
}

fn note(granted: &mut Vec<Granted>, wanting: &Wanting) {
    let same = |each: &&mut Granted| each.waiter == wanting.waiter && each.program == wanting.program;
    match granted.iter_mut().find(same) {
        Some(each) => each.starts += 1,
        None => granted.push(Granted {
            waiter: wanting.waiter,
            program: wanting.program,
            starts: 1,
        }),
    }
}
