//! Slots of payloads that span nodes: a directory that all nodes see, the pilot's variables, a launcher that ends its ranks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidemill_slot::{Isolated, SlotSpec, ToSlot};
use tidemill_wire::{JobDef, Program};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    (
        "a wide slot lives in the directory it is given, and leaves nothing there",
        directory,
    ),
    ("variables of the pilot are passed only when asked for", variables),
    ("a launcher is asked to end before it is killed", asked),
    ("a launcher that does not end is killed", deaf),
    (
        "a launcher that was asked to end and says that all is well has done nothing",
        contented,
    ),
];

fn shared() -> (tempfile::TempDir, SlotSpec) {
    let directory = tempfile::tempdir().unwrap();
    let spec = SlotSpec {
        directory: Some(PathBuf::from(directory.path())),
        ..isolated() // `required` is for payloads within a node
    };
    (directory, spec)
}

fn directory() {
    let (shared, spec) = shared();
    let mut rig = Rig::new(&spec);
    assert_eq!(rig.slot.isolation().0, Isolated::Subreaper);
    assert!(rig.slot.isolation().1.contains("span nodes"));
    let mut wide = shell("pwd; echo $TMPDIR; echo kept > out");
    wide.0.outputs = vec![output("o", "out")];
    rig.learn(&wide).give(0, 1).all();
    let told = String::from_utf8(rig.done[0].stdout.clone()).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with(shared.path().to_str().unwrap()), "{told}");
    let tmp = std::env::var("TMPDIR").unwrap_or_else(|_| "/tmp".into());
    assert_eq!(lines[1], tmp); // each node's own
    assert!(rig.slot.open_output(&rig.done[0].outputs[0].path).is_ok());
    drop(rig);
    assert_eq!(std::fs::read_dir(shared.path()).unwrap().count(), 0);
}

fn variables() {
    std::env::set_var("WIDE_TEST_ONE", "1");
    std::env::set_var("WIDE_TEST_TWO", "2");
    std::env::set_var("WIDETEST", "3");
    let script = "env | grep '^WIDE' | sort | tr '\\n' ' '";
    for (asked, told) in [
        (vec![], ""),
        (vec!["WIDE_TEST_*"], "WIDE_TEST_ONE=1 WIDE_TEST_TWO=own "),
        (vec!["WIDETEST", "WIDE_TEST_ON"], "WIDETEST=3 WIDE_TEST_TWO=own "),
    ] {
        let mut wide = shell(script);
        wide.0.pass_env = asked.iter().map(|&name| name.to_owned()).collect();
        if !told.is_empty() {
            wide.0.env.insert("WIDE_TEST_TWO".into(), "own".into()); // the application's word counts
        }
        let mut rig = Rig::new(&isolated());
        rig.learn(&wide).give(0, 1).all();
        assert_eq!(String::from_utf8_lossy(&rig.done[0].stdout), told);
    }
}

/// A payload that writes down its end, as a launcher that ends its ranks.
const LAUNCHER: &str =
    "trap 'echo ended > $MARK; exit 9' TERM; echo up > $MARK; while :; do sleep 0.01; done";

fn started(script: &str, spec: &SlotSpec, mark: &Path) -> Rig {
    begun(&shell(script), spec, mark)
}

fn begun(wide: &(Program, JobDef), spec: &SlotSpec, mark: &Path) -> Rig {
    let mut rig = Rig::new(spec);
    let mut wide = wide.clone();
    wide.0
        .env
        .insert("MARK".into(), mark.to_string_lossy().into_owned());
    rig.learn(&wide).give(0, 3);
    let limit = Instant::now() + Duration::from_secs(20);
    while !mark.exists() {
        assert!(Instant::now() < limit, "the payload did not start");
        tidemill_sys::fd::poll(&mut [], Some(5_000)).unwrap();
    }
    rig
}

fn asked() {
    for order in [ToSlot::Stop, ToSlot::CancelJob { job: 5 }] {
        let (shared, spec) = shared();
        let mark = shared.path().join("mark");
        let mut rig = started(LAUNCHER, &spec, &mark);
        rig.tell(&order).all();
        let limit = Instant::now() + Duration::from_secs(5);
        while std::fs::read_to_string(&mark).unwrap() != "ended\n" {
            assert!(Instant::now() < limit, "the launcher was not asked to end");
            tidemill_sys::fd::poll(&mut [], Some(5_000)).unwrap();
        }
    }
}

/// As many do: their own ranks have ended, so all is well.
const CONTENTED: &str = "trap 'echo x > out; exit 0' TERM; echo up > $MARK; while :; do sleep 0.01; done";

fn contented() {
    let with_output = |script: &str| {
        let mut wide = shell(script);
        wide.0.outputs = vec![output("o", "out")];
        wide
    };
    for (order, reason) in [(ToSlot::Stop, "yield"), (ToSlot::CancelJob { job: 5 }, "cancel")] {
        let (shared, spec) = shared();
        let mark = shared.path().join("mark");
        let mut rig = begun(&with_output(CONTENTED), &spec, &mark);
        rig.tell(&order).all().until(|rig| rig.idle > 0);
        assert!(rig.done.is_empty() && rig.failed.is_empty(), "{:?}", rig.done);
        assert!(rig.returned.iter().all(|(_, _, told)| told == reason));
    }
    let (shared, spec) = shared();
    let mark = shared.path().join("mark");
    let mut slow = with_output(CONTENTED);
    slow.0.timeout_s = Some(0.3);
    let mut rig = begun(&slow, &spec, &mark);
    rig.until(|rig| rig.settled() > 0);
    assert!(rig.done.is_empty(), "{:?}", rig.done);
    assert_eq!(
        (rig.failed[0].failure.as_str(), rig.failed[0].exit_status),
        ("walltime", Some(0))
    );
}

/// Events go back long before the kill, and that comes soon: both are times, which only a clock shows.
fn deaf() {
    in_time(stays_deaf);
}

fn stays_deaf() -> Result<(), String> {
    let (shared, spec) = shared();
    let mark = shared.path().join("mark");
    let script = "trap '' TERM; echo $$ > $MARK.tmp; mv $MARK.tmp $MARK; while :; do sleep 0.01; done";
    let mut rig = started(script, &spec, &mark);
    let pid = std::fs::read_to_string(&mark).unwrap();
    let began = Instant::now();
    rig.tell(&ToSlot::Stop).all(); // its events go back at once
    let prompt = within(began, 800);
    drop(rig);
    assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists());
    prompt.and(within(began, 4000))
}
