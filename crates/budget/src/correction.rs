//! What starts really cost an area, compared with what was forecast: pure.

use std::collections::HashMap;

/// A forecast and an observation count half after this time.
const HALF_LIFE_US: f64 = 60_000_000.0;
/// After fewer starts nothing is corrected.
const STARTS_MIN: f64 = 3.0;
/// The largest correction of a forecast that is too low: a node's counters include what other users do there.
const FACTOR_MAX: f64 = 8.0;
/// A node's rate counts for this long after its report.
const FRESH_US: u64 = 30_000_000;

/// Decaying sums, and the rate that each node last reported.
#[derive(Debug)]
pub(crate) struct Correction {
    factor_min: f64,
    starts: f64,
    forecast: f64,
    observed: f64,
    at_us: u64,
    rates: HashMap<usize, (u64, f64)>,
}

impl Correction {
    /// `factor_min` is the largest correction of a forecast that is too high.
    pub fn new(factor_min: f64) -> Self {
        Correction {
            factor_min,
            starts: 0.0,
            forecast: 0.0,
            observed: 0.0,
            at_us: 0,
            rates: HashMap::new(),
        }
    }

    /// Starts, what they were to cost, and what was counted meanwhile.
    pub fn learn(&mut self, (starts, forecast, observed): (f64, f64, f64), now_us: u64) {
        let left = 0.5_f64.powf(now_us.saturating_sub(self.at_us) as f64 / HALF_LIFE_US);
        self.at_us = now_us;
        self.starts = self.starts * left + starts;
        self.forecast = self.forecast * left + forecast;
        self.observed = self.observed * left + observed;
    }

    /// The rate of a node over its last report.
    pub fn saw(&mut self, node: usize, rate_per_s: f64, now_us: u64) {
        self.rates.insert(node, (now_us, rate_per_s));
    }

    /// Observed over forecast, bounded; 1 while too little is known.
    pub fn factor(&self) -> f64 {
        if self.starts < STARTS_MIN || self.forecast <= 0.0 {
            return 1.0;
        }
        (self.observed / self.forecast).clamp(self.factor_min, FACTOR_MAX)
    }

    /// Of all nodes together, lately.
    pub fn observed_per_s(&self, now_us: u64) -> f64 {
        let fresh = |(at_us, _): &&(u64, f64)| at_us + FRESH_US > now_us;
        self.rates.values().filter(fresh).map(|(_, rate)| rate).sum()
    }
}
