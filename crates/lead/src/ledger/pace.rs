//! How long an event takes: the application's estimate until measured, then what was measured lately.
//!
//! Seconds and events are averaged apart and divided then: a chunk of 500 events says more than one of a single event,
//! whose time is mostly the start of its process.

/// Weight of the newest record.
const NEWEST: f64 = 0.25;
/// No event is taken to be shorter, so that sizes stay finite.
const EVENT_S_MIN: f64 = 20e-6;

/// Seconds per event.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Of an average record, lately; or the estimate and one event.
    wall_s: f64,
    events: f64,
    measured: bool,
}

impl Pace {
    /// Starts with an estimate.
    pub fn estimated(event_s: f64) -> Self {
        let senseless = !event_s.is_finite();
        Pace {
            wall_s: if senseless { EVENT_S_MIN } else { event_s },
            events: 1.0,
            measured: false,
        }
    }

    pub fn event_s(&self) -> f64 {
        (self.wall_s / self.events).max(EVENT_S_MIN)
    }

    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Learn from a record: the first one replaces the estimate.
    pub fn learn(&mut self, wall_us: u64, count: u64) {
        if count == 0 {
            return;
        }
        let newest = if self.measured { NEWEST } else { 1.0 };
        self.wall_s += newest * (wall_us as f64 / 1e6 - self.wall_s);
        self.events += newest * (count as f64 - self.events);
        self.measured = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_measurement_replaces_the_estimate_and_later_ones_move_it() {
        let mut pace = Pace::estimated(60.0);
        assert!(!pace.is_measured());
        pace.learn(2_000, 2);
        assert!((pace.event_s() - 0.001).abs() < 1e-9);
        pace.learn(6_750, 1);
        assert!((pace.event_s() - 0.001_821_428).abs() < 1e-6);
        pace.learn(0, 0);
        pace.learn(0, 1_000_000);
        assert!(pace.event_s() > 0.0 && pace.is_measured());
    }

    #[test]
    fn chunks_weigh_by_their_events() {
        let mut pace = Pace::estimated(1.0);
        for _ in 0..20 {
            pace.learn(100_500, 1); // 0.1 s to start, 0.5 ms per event
        }
        pace.learn(350_000, 500);
        assert!(pace.event_s() < 0.0015, "{}", pace.event_s());
        pace.learn(100_500, 1);
        assert!(pace.event_s() < 0.0025, "{}", pace.event_s());
    }

    #[test]
    fn a_senseless_estimate_is_replaced_by_the_smallest() {
        assert!(Pace::estimated(f64::NAN).event_s() > 0.0);
        assert!(Pace::estimated(-1.0).event_s() > 0.0);
    }
}
