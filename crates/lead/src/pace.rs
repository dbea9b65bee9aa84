//! How long an event takes: the application's estimate until measured, then a moving average.

/// Weight of the newest record.
const NEWEST: f64 = 0.25;
/// No event is taken to be shorter, so that sizes stay finite.
const EVENT_S_MIN: f64 = 20e-6;

/// Seconds per event.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    event_s: f64,
    measured: bool,
}

impl Pace {
    /// Starts with an estimate.
    pub fn estimated(event_s: f64) -> Self {
        Pace {
            event_s: if event_s.is_finite() {
                event_s.max(EVENT_S_MIN)
            } else {
                EVENT_S_MIN
            },
            measured: false,
        }
    }

    pub fn event_s(&self) -> f64 {
        self.event_s
    }

    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Learn from a record: the first one replaces the estimate.
    pub fn learn(&mut self, wall_us: u64, count: u64) {
        if count == 0 {
            return;
        }
        let measured = (wall_us as f64 / 1e6 / count as f64).max(EVENT_S_MIN);
        self.event_s = if self.measured {
            self.event_s + NEWEST * (measured - self.event_s)
        } else {
            measured
        };
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
        pace.learn(5_000, 1);
        assert!((pace.event_s() - 0.002).abs() < 1e-9);
        pace.learn(0, 0);
        pace.learn(0, 1_000_000);
        assert!(pace.event_s() > 0.0 && pace.is_measured());
    }

    #[test]
    fn a_senseless_estimate_is_replaced_by_the_smallest() {
        assert!(Pace::estimated(f64::NAN).event_s() > 0.0);
        assert!(Pace::estimated(-1.0).event_s() > 0.0);
    }
}
