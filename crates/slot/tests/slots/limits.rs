//! Payloads that take too much.

use std::time::{Duration, Instant};

use tidemill_slot::{SlotSpec, ToSlot};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    (
        "a payload that prints 1 GB is drained and its ends are kept",
        gigabyte,
    ),
    ("a payload that runs too long is a walltime failure", walltime),
    ("a payload that does nothing is killed as looping", looping),
    ("a payload that computes or prints is not looping", not_looping),
    ("a payload that takes too much memory is a memory failure", memory),
    (
        "a full scratch is a disk failure and does not harm the next payload",
        disk,
    ),
    (
        "outputs that cannot be put aside leave nothing that keeps later payloads from starting",
        leaks,
    ),
    (
        "outputs beside a stdout that found no room leave nothing either",
        leaks_of_stdout,
    ),
    ("what cannot end before the deadline is not started", deadline),
    ("payloads over a second have their bytes told", bytes),
];

fn gigabyte() {
    let mut what = shell("echo first; head -c 1000000000 /dev/zero; echo; echo last; echo error >&2");
    what.0.log_bytes_max = 1000;
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    let done = &rig.done[0];
    assert!(
        done.truncated && done.stdout.len() < 1100,
        "{}",
        done.stdout.len()
    );
    assert!(done.stdout.starts_with(b"first\n\0") && done.stdout.ends_with(b"\0\nlast\n"));
    assert!(String::from_utf8_lossy(&done.stdout).contains("999999012 bytes left out"));
    assert_eq!(done.stderr, b"error\n");
}

/// Killed soon after its time is over, which only a clock shows; and it had a core for some of that time.
fn walltime() {
    for spec in [isolated(), plain()] {
        let mut what = shell("while :; do :; done");
        what.0.timeout_s = Some(0.3);
        in_time(|| {
            let failed = fails(&spec, &what);
            assert!(
                failed.failure == "walltime" && failed.signal == Some(9),
                "{failed:?}"
            );
            assert!(failed.wall_us > 300_000, "{failed:?}");
            if failed.wall_us < 3_000_000 && failed.user_us > 50_000 {
                return Ok(());
            }
            Err(format!("{failed:?}"))
        });
    }
}

fn looping() {
    let mut what = shell("sleep 1000");
    what.0.looping_s = Some(0.5);
    let failed = fails(&isolated(), &what);
    assert!(
        failed.failure == "payload" && failed.message.contains("no CPU"),
        "{failed:?}"
    );
}

fn not_looping() {
    let mut what = shell("for i in 1 2 3 4 5 6; do sleep 0.4; echo $i; done");
    what.0.looping_s = Some(2.0); // a busy node holds up the payload too
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    assert_eq!(rig.stdout(), "1\n2\n3\n4\n5\n6\n", "{:?}", rig.failed);
}

fn memory() {
    let hog =
        "import time\nx = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(1000)";
    let mut what = (program("/usr/bin/python3", "command"), job(&["-c", hog]));
    for spec in [isolated(), plain()] {
        what.0.memory_mb = 100;
        let failed = fails(&spec, &what);
        assert!(
            failed.failure == "memory" && failed.message.contains("limit is 100 MB"),
            "{failed:?}"
        );
    }
    let spec = SlotSpec {
        memory_mb: 50,
        ..isolated()
    };
    what.0.memory_mb = 0;
    let failed = fails(&spec, &what);
    assert!(
        failed.failure == "memory" && failed.message.contains("limit is 50 MB"),
        "{failed:?}"
    );
}

fn disk() {
    let fill = "[ $TIDEMILL_FIRST != 0 ] || head -c 100000000 /dev/zero > x || exit 4";
    let mut rig = Rig::new(&SlotSpec {
        scratch_mb: 10,
        ..isolated()
    });
    rig.learn(&shell(fill)).give(0, 2).all();
    let failed = &rig.failed[0];
    assert!(
        failed.failure == "disk" && failed.exit_status == Some(4),
        "{failed:?}"
    );
    assert_eq!(rig.done[0].first, 1);
    let failed = fails(
        &isolated(),
        &shell("echo 'write error: No space left on device' >&2; exit 1"),
    );
    assert_eq!(failed.failure, "disk");
}

/// More payloads than may have outputs waiting.
const MANY: u64 = 270;

fn leaks() {
    for spec in [isolated(), plain()] {
        let mut twice = shell("echo x > out");
        twice.0.outputs = vec![output("a", "out"), output("b", "out")]; // the second rename finds nothing
        let mut rig = Rig::new(&spec);
        rig.learn(&twice).give(0, MANY).all();
        assert_eq!((rig.failed.len() as u64, rig.done.len()), (MANY, 0));
        assert!(
            rig.failed[0].message.contains("output `b`"),
            "{:?}",
            rig.failed[0]
        );
    }
}

fn leaks_of_stdout() {
    let spec = SlotSpec {
        scratch_mb: 2,
        ..isolated()
    };
    let mut long = shell("echo x > out; head -c 3000000 /dev/zero");
    long.0.outputs = vec![output("a", "out")];
    (long.0.stdout_output, long.0.log_bytes_max) = (true, 10);
    let mut rig = Rig::new(&spec);
    rig.learn(&long).give(0, MANY).all();
    assert_eq!((rig.failed.len() as u64, rig.done.len()), (MANY, 0));
    assert_eq!(rig.failed[0].failure, "disk", "{:?}", rig.failed[0]);
}

fn deadline() {
    let mut what = shell("true");
    what.0.event_s = 90.0;
    let mut rig = Rig::new(&isolated());
    let in_60_s = tidemill_sys::time::monotonic_us() + 60_000_000;
    rig.learn(&what)
        .tell(&ToSlot::Deadline {
            monotonic_us: Some(in_60_s),
        })
        .give(0, 100)
        .all();
    assert_eq!(rig.returned, [(0, 100, "walltime".to_owned())]);
    rig.tell(&ToSlot::Deadline { monotonic_us: None })
        .give(100, 1)
        .all();
    assert_eq!(rig.done.len(), 1);
    // now it is measured, and fast
    rig.tell(&ToSlot::Deadline {
        monotonic_us: Some(in_60_s),
    })
    .give(101, 3)
    .all();
    assert_eq!(rig.done.iter().map(|done| done.count).sum::<u64>(), 4);
}

fn bytes() {
    let began = Instant::now();
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell("head -c 3000000 /dev/zero > x; sleep 1.2"))
        .give(0, 1)
        .all();
    assert!(began.elapsed() > Duration::from_secs(1));
    let done = &rig.done[0];
    assert!(
        done.write_bytes.is_some_and(|bytes| bytes >= 3_000_000),
        "{done:?}"
    );
    assert!(
        done.read_bytes.is_some_and(|bytes| bytes >= 3_000_000),
        "{done:?}"
    );
    rig.learn(&shell("true")).give(1, 1).all();
    assert_eq!(rig.done[1].write_bytes, None);
}
