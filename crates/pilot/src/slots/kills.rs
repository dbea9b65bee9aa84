//! When the kernel killed processes of a slot for lack of memory. Pure. Times are wall clock, in microseconds.

/// What is known about one slot.
#[derive(Debug)]
pub(super) struct Kills {
    count: u64,
    at_us: u64,
    /// between these times there was a kill that no failure has explained
    between_us: Option<(u64, u64)>,
}

impl Kills {
    /// `count` kills happened before the slot started.
    pub fn new(count: u64, now_us: u64) -> Self {
        Kills {
            count,
            at_us: now_us,
            between_us: None,
        }
    }

    /// Set the kernel's count as of now.
    pub fn count(&mut self, count: u64, now_us: u64) {
        if count > self.count {
            self.between_us = Some((self.at_us, now_us));
        }
        (self.count, self.at_us) = (count, now_us);
    }

    /// Whether a kill may have hit a payload that ran between these times; if so, that kill counts as explained.
    pub fn take(&mut self, (started_us, ended_us): (u64, u64)) -> bool {
        let overlaps = |&(from_us, to_us): &(u64, u64)| from_us <= ended_us && started_us <= to_us;
        self.between_us.take_if(|between| overlaps(between)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_explains_one_failure_of_a_payload_that_ran_then() {
        let mut kills = Kills::new(3, 10);
        kills.count(3, 20);
        assert!(!kills.take((0, 20)), "of an earlier slot");
        kills.count(4, 30);
        assert!(
            !kills.take((31, 40)),
            "of a payload that ended well although it lost a process"
        );
        assert!(!kills.take((11, 19)));
        assert!(kills.take((15, 25)) && !kills.take((15, 25)));
    }
}
