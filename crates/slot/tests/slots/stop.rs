//! Yielding, and what happens when the pilot or the slot dies.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidemill_slot::{SlotSpec, ToSlot};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("stop returns everything within half a second", stop),
    (
        "stop leaves what a persistent payload has reported done",
        stop_range,
    ),
    ("finish lets the running payload end", finish),
    ("cancel drops one job", cancel),
    ("a killed pilot takes its payloads with it", dead_pilot),
    ("a killed slot shows as the end", dead_slot),
];

/// That everything comes back, an event shows; that a yield takes half a second at most, only a clock.
fn stop() {
    for spec in [isolated(), plain()] {
        in_time(|| stops(&spec));
    }
}

fn stops(spec: &SlotSpec) -> Result<(), String> {
    let mut rig = Rig::new(spec);
    rig.learn(&shell(
        "trap '' TERM; echo started > started; sleep 1000 & sleep 1000",
    ))
    .give(0, 100)
    .give(100, 50);
    let began = Instant::now();
    rig.tell(&ToSlot::Stop).all();
    let prompt = within(began, 500);
    assert!(rig.returned.iter().all(|(_, _, reason)| reason == "yield"));
    assert_eq!(rig.returned.iter().map(|(_, count, _)| count).sum::<u64>(), 150);
    rig.give(150, 1).all().until(|rig| rig.idle >= 1);
    prompt
}

/// In half a second at most, as in `stop`.
fn stop_range() {
    in_time(stops_range);
}

fn stops_range() -> Result<(), String> {
    let script =
        "echo ready >&4; echo next >&4; read a first count seed <&3; echo done $first 4 >&4; sleep 1000";
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(script))
        .give(0, 100)
        .until(|rig| !rig.done.is_empty());
    let began = Instant::now();
    rig.tell(&ToSlot::Stop).all();
    let prompt = within(began, 500);
    assert_eq!((rig.done[0].first, rig.done[0].count), (0, 4));
    let mut returned = rig.returned.clone();
    returned.sort();
    assert_eq!(
        returned,
        [(4, 6, "yield".to_owned()), (10, 90, "yield".to_owned())]
    );
    prompt
}

fn finish() {
    for spec in [isolated(), plain()] {
        let dir = tempfile::tempdir().unwrap();
        let fifo = make_fifo(&dir.path().join("fifo"));
        let mut what = shell("echo started > $1; while [ ! -e $1.go ]; do sleep 0.02; done; sleep 0.2");
        what.1.argv.extend(["x".to_owned(), fifo.clone()]);
        let mut rig = Rig::new(&writing(spec, dir.path()));
        rig.learn(&what).give(0, 10);
        wait_for_line(&fifo);
        rig.tell(&ToSlot::Finish);
        std::fs::write(format!("{fifo}.go"), "").unwrap();
        rig.all();
        assert_eq!((rig.done[0].first, rig.done[0].count), (0, 1));
        assert_eq!(rig.returned, [(1, 9, "drain".to_owned())]);
    }
}

fn cancel() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&dir.path().join("fifo"));
    let mut what = shell("echo started > $1; sleep 1000");
    what.1.argv.extend(["x".to_owned(), fifo.clone()]);
    let mut rig = Rig::new(&writing(isolated(), dir.path()));
    rig.learn(&what).give(0, 10);
    wait_for_line(&fifo);
    rig.tell(&ToSlot::CancelJob { job: 5 }).all();
    assert!(rig.returned.iter().all(|(_, _, reason)| reason == "cancel"));
    rig.learn(&shell("true")).give(0, 3).all();
    assert_eq!(
        rig.done.iter().map(|done| done.count).sum::<u64>(),
        3,
        "the slot goes on"
    );
}

/// A pilot with one slot, whose payloads hold a fifo open; killed. The fifo's end shows that they are gone.
fn dead_pilot() {
    for mode in ["--as-isolated-pilot", "--as-plain-pilot"] {
        let dir = tempfile::tempdir().unwrap();
        let fifo = make_fifo(&dir.path().join("fifo"));
        let mut pilot = Command::new(std::env::current_exe().unwrap())
            .args([mode, &fifo])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut file = std::fs::File::open(&fifo).unwrap();
        let mut byte = [0_u8; 8];
        file.read_exact(&mut byte).unwrap();
        pilot.kill().unwrap();
        pilot.wait().unwrap();
        let began = Instant::now();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert!(
            rest.is_empty() && began.elapsed() < Duration::from_secs(5),
            "{mode}"
        );
    }
}

/// The pilot of `dead_pilot`.
pub fn play(mode: &str, args: &[String]) {
    let spec = if mode == "--as-isolated-pilot" {
        isolated()
    } else {
        plain()
    };
    let mut what = shell("exec 5>$1; echo started >&5; setsid sleep 1000 & sleep 1000 & sleep 1000");
    what.1.argv.extend(["x".to_owned(), args[0].clone()]);
    let place = Path::new(&args[0]).parent().unwrap();
    let mut rig = Rig::new(&writing(spec, place));
    rig.learn(&what).give(0, 1).all();
}

fn dead_slot() {
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell("sleep 1000")).give(0, 1);
    tidemill_sys::signal::kill(rig.slot.pid(), tidemill_sys::signal::KILL).unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    let mut messages = Vec::new();
    while rig.slot.receive(&mut messages).unwrap() {
        assert!(Instant::now() < limit);
        tidemill_sys::fd::poll(
            &mut [tidemill_sys::fd::Poll::new(
                rig.slot.fd(),
                tidemill_sys::fd::READABLE,
            )],
            Some(100_000),
        )
        .unwrap();
    }
    rig.tell(&ToSlot::Stop); // is taken silently
}
