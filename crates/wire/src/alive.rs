//! The agent's sign of life, FLEET/alive.json: whether it has changed lately, by the reader's own clock.
//!
//! Time during which the reader itself did not read the file (it was stopped, its file system hung) does not count as
//! the agent's silence: both may have been suspended together. Processes that hear nothing from *this* one judge that.

use std::path::{Path, PathBuf};

use crate::generated::Alive;

/// The shortest interval between reads of the file; otherwise it is a tenth of `dead_after_s`.
const LOOK_US_MIN: u64 = 1_000_000;
/// A read that comes later than this many intervals after the last one counts as that many.
const INTERVALS_COUNTED: u64 = 2;

/// How long nothing was heard. Pure: gets what the file said, and when.
#[derive(Debug)]
pub struct Silence {
    limit_us: u64,
    interval_us: u64,
    said: Option<(u64, u64)>,
    silent_us: u64,
    looked_us: u64,
}

impl Silence {
    /// Reads every `interval_us`. The agent counts as dead after `dead_after_us`, less one interval where that is small
    /// in comparison, so that pilots are notified before `dead_after_us` have passed.
    pub fn new(dead_after_us: u64, interval_us: u64, now_us: u64) -> Self {
        let early_us = if interval_us <= dead_after_us / 3 {
            interval_us
        } else {
            0
        };
        Silence {
            limit_us: dead_after_us - early_us,
            interval_us: interval_us.max(1),
            said: None,
            silent_us: 0,
            looked_us: now_us,
        }
    }

    /// When to read next: never later than when the agent would count as dead.
    pub fn due_us(&self) -> u64 {
        let left_us = self.limit_us.saturating_sub(self.silent_us);
        let wait_us = if left_us == 0 {
            self.interval_us
        } else {
            self.interval_us.min(left_us)
        };
        self.looked_us + wait_us
    }

    /// Take note of what the file says (None: nothing that could be read). Whether the agent counts as alive.
    pub fn hear(&mut self, said: Option<(u64, u64)>, now_us: u64) -> bool {
        let passed_us = now_us.saturating_sub(self.looked_us);
        self.looked_us = now_us;
        if said.is_some() && said != self.said {
            self.said = said;
            self.silent_us = 0;
        } else {
            self.silent_us += passed_us.min(INTERVALS_COUNTED * self.interval_us);
        }
        self.is_alive()
    }

    pub fn is_alive(&self) -> bool {
        self.silent_us < self.limit_us
    }
}

/// Reads the file when it is due: one open, no other look-up.
#[derive(Debug)]
pub struct AliveFile {
    path: PathBuf,
    silence: Silence,
}

impl AliveFile {
    /// Looks a tenth of `dead_after_us` apart, but at least a second.
    pub fn new(fleet: &Path, dead_after_us: u64, now_us: u64) -> Self {
        AliveFile::every(
            fleet,
            dead_after_us,
            (dead_after_us / 10).max(LOOK_US_MIN),
            now_us,
        )
    }

    /// Looks `interval_us` apart.
    pub fn every(fleet: &Path, dead_after_us: u64, interval_us: u64, now_us: u64) -> Self {
        AliveFile {
            path: fleet.join("alive.json"),
            silence: Silence::new(dead_after_us, interval_us, now_us),
        }
    }

    pub fn due_us(&self) -> u64 {
        self.silence.due_us()
    }

    /// Look if it is due. Whether the agent counts as alive; a file that is missing or damaged says nothing.
    pub fn look(&mut self, now_us: u64) -> bool {
        if now_us < self.due_us() {
            return self.silence.is_alive();
        }
        let said = std::fs::read(&self.path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .map(|alive: Alive| (alive.epoch, alive.count));
        self.silence.hear(said, now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn an_agent_that_changes_its_sign_is_alive_and_a_silent_one_is_dead_in_time() {
        let mut silence = Silence::new(30 * S, 3 * S, 0);
        for k in 1..20 {
            assert!(silence.hear(Some((1, k)), k * 3 * S));
        }
        let mut now = 57 * S;
        let since = now;
        while silence.is_alive() {
            now = silence.due_us();
            silence.hear(Some((1, 19)), now);
        }
        assert_eq!(now - since, 27 * S);
        assert!(silence.hear(Some((2, 1)), now + S)); // the next agent
    }

    #[test]
    fn without_a_file_it_counts_from_the_start_and_a_short_limit_is_kept_to() {
        let mut silence = Silence::new(2 * S, S, 0);
        assert!(silence.hear(None, S));
        assert!(!silence.hear(None, 2 * S));
        assert!(silence.hear(Some((1, 1)), 3 * S));
    }

    #[test]
    fn time_that_the_reader_slept_is_not_the_agents_silence() {
        let mut silence = Silence::new(30 * S, 3 * S, 0);
        assert!(silence.hear(Some((1, 1)), 3 * S));
        assert!(silence.hear(Some((1, 1)), 3000 * S));
        assert!(silence.hear(Some((1, 2)), 3003 * S));
    }

    #[test]
    fn the_file_is_read_when_due_and_what_is_damaged_says_nothing() {
        let fleet = tempfile::tempdir().unwrap();
        let mut alive = AliveFile::every(fleet.path(), 2 * S, S, 0);
        std::fs::write(
            fleet.path().join("alive.json"),
            r#"{"format":1,"epoch":1,"count":7,"new":0}"#,
        )
        .unwrap();
        assert!(alive.look(S));
        std::fs::write(fleet.path().join("alive.json"), "{").unwrap();
        assert!(alive.look(2 * S));
        assert!(!alive.look(3 * S));
    }
}
