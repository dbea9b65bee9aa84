//! Two slots at once, many events: nothing is lost and nothing is done twice.

use crate::bench::{bench, Bench};
use crate::Test;

pub const TESTS: &[Test] = &[("two slots do every event once", two_slots)];

fn two_slots() {
    let argv = vec!["/bin/true".to_owned()];
    let outcome = bench(&Bench {
        slots: 2,
        events: 1500,
        argv,
        mode: "command".into(),
        chunk_max: 1,
        pin: true,
        images: Vec::new(),
    })
    .unwrap();
    assert_eq!(
        (outcome.events, outcome.failed, outcome.payloads),
        (1500, 0, 1500)
    );
}
