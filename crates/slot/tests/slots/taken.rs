//! TERM, as batch systems send it to every process of an allocation.

use std::time::Instant;

use tidemill_slot::{SlotSpec, ToSlot};
use tidemill_sys::{fd, signal};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    (
        "an event whose payload and slot get TERM runs again",
        all_get_term,
    ),
    ("no end counts in the instant of TERM", ends_in_the_instant),
    ("a persistent payload's last words do not count", last_words),
    ("a payload that ends itself by TERM fails", own_term),
    ("a payload cannot take its slot away", term_from_a_payload),
    (
        "a failure of the instant before a stop does not count",
        failure_before_stop,
    ),
    ("TERM from elsewhere is believed once", believed_once),
    (
        "a payload that spans nodes may hear of TERM a second before its slot",
        wide,
    ),
];

const CONT: i32 = 18;

/// Where payloads say by files that they have started; the pilot sees it.
struct Bench {
    place: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let place = tempfile::tempdir().unwrap();
        Bench { place }
    }

    fn spec(&self, spec: SlotSpec) -> SlotSpec {
        let mut spec = spec;
        spec.view.write = vec![self.place.path().to_str().unwrap().to_owned()];
        spec
    }

    /// A script that says by a file that it runs.
    fn script(&self, script: &str) -> String {
        self.prepared("", script)
    }

    /// The same once `trap` is set.
    fn prepared(&self, trap: &str, script: &str) -> String {
        format!("{trap} echo > {}/up; {script}", self.place.path().display())
    }

    fn wait(&self) {
        let up = self.place.path().join("up");
        for _ in 0..2000 {
            if up.exists() {
                return std::fs::remove_file(up).unwrap();
            }
            pause_ms(5);
        }
        panic!("no payload has started");
    }
}

fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

fn term(pid: i32) {
    signal::kill(pid, signal::TERM).unwrap();
}

fn pause_ms(ms: u64) {
    let _ = fd::poll(&mut [], Some(1000 * ms));
}

fn again(first: u64) -> [(u64, u64, String); 1] {
    [(first, 1, "again".to_owned())]
}

/// In either order, whatever status the payload makes of it.
fn all_get_term() {
    for spec in [isolated(), plain()] {
        for trap in ["", "trap 'exit 3' TERM;", "trap 'exit 0' TERM;"] {
            slot_gets_term_first(&spec, trap);
            if !trap.contains("exit 0") {
                in_time(|| payload_gets_term_first(&spec, trap));
            }
        }
    }
}

fn slot_gets_term_first(spec: &SlotSpec, trap: &str) {
    let bench = Bench::new();
    let (mut rig, payload) = trapping(&bench, spec, trap);
    term(rig.slot.pid());
    let _ = signal::kill(payload, signal::TERM); // its slot may have killed it
    rig.all();
    assert_eq!(rig.returned, again(0), "{trap} {:?} {:?}", rig.failed, rig.done);
}

/// An error when TERM was sent to the slot after the 100 ms for which a failure waits for it. The slot has to see the
/// failure first, so no event can take the place of the pause.
fn payload_gets_term_first(spec: &SlotSpec, trap: &str) -> Result<(), String> {
    let bench = Bench::new();
    let (mut rig, payload) = trapping(&bench, spec, trap);
    let began = Instant::now();
    term(payload);
    pause_ms(20);
    term(rig.slot.pid());
    let together = within(began, 100);
    rig.all();
    if rig.returned != again(0) {
        together?;
        panic!("{trap} {:?} {:?} {:?}", rig.returned, rig.failed, rig.done);
    }
    Ok(())
}

/// A slot with a payload that waits for TERM with this trap, and the payload.
fn trapping(bench: &Bench, spec: &SlotSpec, trap: &str) -> (Rig, i32) {
    let mut rig = Rig::new(&bench.spec(spec.clone()));
    let rest = match trap {
        "" => "sleep 1000",
        _ => "sleep 1000 & wait",
    };
    rig.learn(&shell(&bench.prepared(trap, rest))).give(0, 1);
    bench.wait();
    let payload = children(rig.slot.pid())[0];
    (rig, payload)
}

/// A stopped slot finds TERM and the end of its payload at once, as on a busy node.
fn ends_in_the_instant() {
    for spec in [isolated(), plain()] {
        for status in [0, 3] {
            let bench = Bench::new();
            let mut rig = Rig::new(&bench.spec(spec.clone()));
            // `up` reports a trap that is set; the child to kill may start a moment later
            let script = format!("sleep 1000; exit {status}");
            rig.learn(&shell(&bench.prepared("trap '' TERM;", &script)))
                .give(0, 1);
            bench.wait();
            let slot = rig.slot.pid();
            let payload = children(slot)[0];
            while children(payload).is_empty() {
                pause_ms(5);
            }
            signal::kill(slot, signal::STOP).unwrap();
            for pid in children(payload) {
                signal::kill(pid, signal::KILL).unwrap(); // the shell goes on and ends
            }
            pause_ms(50);
            term(slot);
            signal::kill(slot, CONT).unwrap();
            rig.all();
            assert_eq!(rig.returned, again(0), "{status}");
        }
    }
}

fn last_words() {
    for spec in [isolated(), plain()] {
        let bench = Bench::new();
        let place = bench.place.path().display();
        let script = format!(
            "echo ready >&4; echo next >&4; read a first count seed <&3; echo done $first 4 >&4; \
             while [ ! -e {place}/go ]; do sleep 0.02; done; \
             echo done 4 1 >&4; echo failed 5 ended by TERM >&4; echo > {place}/up; sleep 1000"
        );
        let mut rig = Rig::new(&bench.spec(spec));
        rig.learn(&range_shell(&script))
            .give(0, 10)
            .until(|rig| !rig.done.is_empty());
        let slot = rig.slot.pid();
        signal::kill(slot, signal::STOP).unwrap();
        std::fs::write(bench.place.path().join("go"), "").unwrap();
        bench.wait();
        term(slot);
        signal::kill(slot, CONT).unwrap();
        rig.all();
        assert_eq!((rig.done.len(), rig.failed.len()), (1, 0), "{:?}", rig.done);
        assert_eq!(rig.returned, [(4, 6, "again".to_owned())]);
    }
}

fn own_term() {
    for spec in [isolated(), plain()] {
        let failed = fails(&spec, &shell("kill -TERM $$; sleep 1000"));
        assert_eq!((failed.failure.as_str(), failed.signal), ("payload", Some(15)));
    }
}

fn term_from_a_payload() {
    for spec in [isolated(), plain()] {
        let mut rig = Rig::new(&spec);
        let script = "kill -TERM $PPID; /bin/kill -TERM $PPID; (kill -TERM $PPID) & sleep 0.05; exit 3";
        rig.learn(&shell(script)).give(0, 1).give(1, 1).all();
        assert_eq!(
            (rig.failed.len(), rig.returned.len()),
            (2, 0),
            "{:?}",
            rig.returned
        );
        assert!(rig.failed.iter().all(|failed| failed.exit_status == Some(3)));
    }
}

/// As where only the pilot has heard so far that the batch system takes the allocation away.
fn failure_before_stop() {
    let bench = Bench::new();
    let mut rig = Rig::new(&bench.spec(isolated()));
    let go = bench.place.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; exit 3", go.display());
    rig.learn(&shell(&bench.script(&script))).give(0, 1);
    bench.wait();
    let slot = rig.slot.pid();
    let payload = children(slot)[0];
    signal::kill(slot, signal::STOP).unwrap();
    std::fs::write(go, "").unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{payload}/stat")).unwrap();
    while !state().contains(") Z ") {
        pause_ms(5);
    }
    rig.tell(&ToSlot::Stop);
    signal::kill(slot, CONT).unwrap();
    rig.all();
    assert_eq!(rig.returned, [(0, 1, "yield".to_owned())]);
}

/// A pilot that stays gets work done, and a payload that sent it by a friend fails in the end.
fn believed_once() {
    let bench = Bench::new();
    let mut rig = Rig::new(&bench.spec(plain()));
    rig.learn(&shell(&bench.script("sleep 1000"))).give(0, 1);
    bench.wait();
    term(rig.slot.pid());
    rig.all();
    assert_eq!(rig.returned, again(0));
    rig.give(0, 1);
    bench.wait(); // after a pause
    term(rig.slot.pid());
    term(children(rig.slot.pid())[0]);
    rig.all();
    assert_eq!((rig.returned.len(), rig.failed[0].signal), (1, Some(15)));
}

fn wide() {
    let bench = Bench::new();
    let mut spec = bench.spec(plain());
    spec.directory = Some(bench.place.path().to_owned());
    let mut rig = Rig::new(&spec);
    rig.learn(&shell("exit 143")).give(0, 1).give(1, 1);
    pause_ms(1000);
    term(rig.slot.pid());
    rig.all();
    assert!(
        rig.failed.is_empty() && rig.returned.len() == 2,
        "{:?}",
        rig.failed
    );
}
