//! One rate, and what was spent of it: when may something of a cost begin? Pure.

use std::collections::VecDeque;

use crate::correction::Correction;

/// The window over which a centre averages Tidemill's rate.
pub const WINDOW_US: u64 = 10_000_000;
/// The most that any window may cost, as a multiple of the budget.
pub const OVER_MAX: f64 = 1.10;
/// An idle area saves up this many seconds of its rate.
pub const SAVED_S: f64 = 0.2;
/// The share of the rate to aim at: starts that spend their cost more slowly than others must not coincide.
pub const AIM: f64 = 0.97;

/// What one kind of budget of one area has left.
#[derive(Debug)]
pub(crate) struct Bound {
    /// per second; None = no bound
    pub rate: Option<f64>,
    /// no start before
    next_us: f64,
    /// starts of the last window: when, and what they cost
    spent: VecDeque<(u64, f64)>,
    spent_sum: f64,
    pub correction: Correction,
}

impl Bound {
    pub fn new(correction: Correction, now_us: u64) -> Self {
        Bound {
            rate: None,
            next_us: now_us as f64,
            spent: VecDeque::new(),
            spent_sum: 0.0,
            correction,
        }
    }

    /// When a start of this cost may begin; None: never as things are.
    pub fn earliest_us(&mut self, cost: f64, now_us: u64) -> Option<f64> {
        let rate = self.rate?;
        if rate <= 0.0 {
            return None;
        }
        self.forget(now_us);
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

    pub fn spend(&mut self, cost: f64, now_us: u64) {
        let Some(rate) = self.rate.filter(|&rate| rate > 0.0) else {
            return;
        };
        self.forget(now_us);
        let saved_from_us = now_us as f64 - SAVED_S * 1e6;
        self.next_us = self.next_us.max(saved_from_us) + cost / (AIM * rate) * 1e6;
        self.spent.push_back((now_us, cost));
        self.spent_sum += cost;
    }

    /// What was spent before the window.
    fn forget(&mut self, now_us: u64) {
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
    }

    /// The observed rate in thousandths of the budget, where that is too much.
    pub fn over(&self, now_us: u64) -> Option<i64> {
        let rate = self.rate.filter(|&rate| rate > 0.0)?;
        let share = self.correction.observed_per_s(now_us) / rate;
        (share > OVER_MAX).then(|| (share * 1000.0).round() as i64)
    }
}
