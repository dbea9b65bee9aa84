//! Microseconds, and when something that failed on this node is tried again. Pure.

/// A trouble of the shared file system or of the node that lasts longer than these is not outwaited; a cause that does
/// not go away costs three more tries.
const PAUSES_S: [f64; 3] = [1.0, 4.0, 16.0];

const TIMES_MAX: usize = PAUSES_S.len();

pub fn seconds_us(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}

/// After it failed for the `failures`-th time in a row: the pause before the next try, never longer than `limit_us`, and
/// what to say of it. No pause: it is not tried again.
pub fn pause_after(failures: usize, limit_us: u64) -> (Option<u64>, String) {
    let pause_s = failures.checked_sub(1).and_then(|place| PAUSES_S.get(place));
    match pause_s {
        Some(pause_s) => {
            let pause_us = seconds_us(*pause_s).min(limit_us);
            let pause_s = pause_us as f64 / 1e6;
            let told = format!("tried again in {pause_s} s, {failures} of {TIMES_MAX} times");
            (Some(pause_us), told)
        }
        None => (None, format!("tried {failures} times")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_and_are_told() {
        let pauses: Vec<_> = (1..=4)
            .map(|failures| pause_after(failures, 9_000_000).0)
            .collect();
        assert_eq!(pauses, [Some(1_000_000), Some(4_000_000), Some(9_000_000), None]);
        assert_eq!(pause_after(2, u64::MAX).1, "tried again in 4 s, 2 of 3 times");
        assert_eq!(pause_after(4, u64::MAX).1, "tried 4 times");
    }
}
