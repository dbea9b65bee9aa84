//! Persistent payloads.

use std::io::Read;

use tidemill_slot::ToSlot;

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("one payload serves all ranges of a job", serves),
    ("only what was not reported fails when a payload dies", partial),
    (
        "of what a payload had asked for ahead nothing fails when it dies",
        fetched_ahead,
    ),
    ("done messages carry the CPU time of their ranges", cpu_time),
    ("a failed event is told and the rest goes on", failed_event),
    ("events that all fail for one reason say it once", failed_alike),
    ("a wrong line ends the payload and is quoted", wrong_lines),
    (
        "a payload that is never ready is a payload_setup failure of its whole run",
        never_ready,
    ),
    ("a payload that leaves work is a failure", leaves_work),
    ("a payload that asks no more is followed by another", asks_no_more),
    ("outputs of pieces are put aside", outputs),
    ("a payload makes room for another job", makes_room),
    ("a payload ends when its job is forgotten", forgotten),
    ("log lines and streams come at the payload's end", log),
    ("several ranges can be outstanding", outstanding),
    ("a range is sized by the time left", deadline),
    ("a payload that stops reporting is killed", stuck),
];

const LOOP: &str =
    "echo ready >&4; echo next >&4; while read -r verb first count seed <&3; do [ $verb = end ] && break; ";

fn serves() {
    for spec in [isolated(), plain()] {
        let script = format!("sleep 0.05; {LOOP} echo done $first $count >&4; echo next >&4; done; exit 0");
        let mut rig = Rig::new(&spec);
        rig.learn(&range_shell(&script)).give(0, 100).give(100, 50).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        assert!(rig.done[0].setup_us >= 50_000, "{:?}", rig.done[0]);
        assert!(rig.done[1..]
            .iter()
            .all(|done| done.setup_us == 0 && done.payloads == 0));
        rig.until(|rig| rig.idle == 1).give(150, 3).all();
        assert_eq!(
            rig.done
                .iter()
                .map(|done| done.setup_us)
                .filter(|&us| us > 0)
                .count(),
            1,
            "one process"
        );
    }
}

fn partial() {
    let script = format!("{LOOP} [ $first = 0 ] && {{ echo done $((first + 2)) 3 >&4; echo boom >&2; kill -SEGV $$; }}; echo done $first $count >&4; echo next >&4; done");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script.replace("{{", "{").replace("}}", "}")))
        .give(0, 20)
        .all();
    let failed: Vec<_> = rig
        .failed
        .iter()
        .map(|f| (f.first, f.count, f.signal, f.failure.as_str()))
        .collect();
    assert_eq!(failed, [(0, 2, Some(11), "payload"), (5, 5, Some(11), "payload")]);
    assert_eq!(rig.failed[0].stderr, b"boom\n");
    assert_eq!(rig.failed[1].stderr, b"(see the failure of event 0)\n");
    assert_eq!(rig.done.iter().map(|done| done.count).sum::<u64>(), 13);
}

fn fetched_ahead() {
    let script = "echo ready >&4; for i in 1 2 3; do echo next 2 >&4; done; for i in 1 2 3; do read a f c s <&3; done; echo done 0 1 >&4; kill -SEGV $$";
    for spec in [isolated(), plain()] {
        let mut rig = Rig::new(&spec);
        rig.learn(&range_shell(script)).give(0, 6).all();
        let failed: Vec<_> = rig.failed.iter().map(|f| (f.first, f.count, f.signal)).collect();
        assert_eq!(failed, [(1, 1, Some(11))]);
        let again = |first| (first, 2, "again".to_owned());
        assert_eq!(rig.returned, [again(2), again(4)]);
    }
}

fn cpu_time() {
    let burn = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; ";
    for (keep, spec) in [("", isolated()), (" o=out", isolated()), (" o=out", plain())] {
        let script =
            format!("{LOOP} {burn} echo > out; echo done $first $count{keep} >&4; echo next >&4; done");
        let mut what = range_shell(&script);
        what.0.chunk_max = 1;
        if !keep.is_empty() {
            what.0.outputs = vec![output("o", "out")];
        }
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 3).all();
        let used: Vec<u64> = rig
            .done
            .iter()
            .map(|done| done.user_us + done.system_us)
            .collect();
        let wall_us: u64 = rig.done.iter().map(|done| done.wall_us).sum();
        // the first record has what its range took and no more, the last one what is left
        assert!(
            used[0] > 50_000 && used.iter().sum::<u64>() > 150_000,
            "{used:?} {keep}"
        );
        assert!(
            used.iter().sum::<u64>() <= wall_us + 200_000,
            "{used:?} {wall_us}"
        );
    }
}

fn failed_event() {
    let script = format!("{LOOP} echo done $first 3 >&4; echo failed $((first+3)) no luck with it >&4; echo done $((first+4)) $((count-4)) >&4; echo next >&4; done");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script)).give(0, 10).all();
    let [failed] = rig.failed.as_slice() else {
        panic!("{:?}", rig.failed)
    };
    assert_eq!((failed.event, failed.first, failed.count), (Some(3), 3, 1));
    assert_eq!(
        (failed.message.as_str(), failed.failure.as_str()),
        ("no luck with it", "payload")
    );
    assert_eq!(rig.done.iter().map(|done| done.count).sum::<u64>(), 9);
}

fn failed_alike() {
    let reason = "x".repeat(3000);
    let script = format!("{LOOP} echo $reason >&2; while [ $count -gt 0 ]; do echo failed $first $reason >&4; first=$((first+1)); count=$((count-1)); done; echo next >&4; done");
    let (program, mut job) = range_shell(&format!("reason={reason}; {script}"));
    job.events = 10;
    let mut rig = Rig::new(&isolated());
    rig.learn(&(program, job)).give(0, 10).all();
    assert_eq!(rig.failed.len(), 10);
    assert_eq!(rig.failed[0].message, reason);
    assert!(rig.failed[0].stderr.starts_with(b"xxx"));
    let rest: usize = rig.failed[1..]
        .iter()
        .map(|f| f.message.len() + f.stderr.len())
        .sum();
    assert!(rest < 9 * 500, "{rest}");
    let last = &rig.failed[9];
    assert!(last.message.ends_with("(as event 0)"), "{last:?}");
    assert_eq!(last.stderr, b"(nothing was printed since event 0 failed)\n");
}

fn wrong_lines() {
    for (say, quoted) in [
        ("hello", "`hello`"),
        ("done 5 100", "`done 5 100`"),
        ("done $first 1; echo done $first 1", "`done 0 1`"),
        ("ready", "`ready`"),
        ("done $first 1 nosuch=x", "`nosuch`"),
    ] {
        let script = format!("{LOOP} echo {say} >&4; sleep 1000; done")
            .replace("; echo done $first 1 >&4", " >&4; echo done $first 1 >&4");
        let mut rig = Rig::new(&isolated());
        rig.learn(&range_shell(&script)).give(0, 10).all();
        let failed = &rig.failed[0];
        assert!(
            failed.failure == "payload" && failed.message.contains("protocol error"),
            "{failed:?}"
        );
        assert!(failed.message.contains(quoted), "{failed:?}");
    }
    let failed = fails(&isolated(), &range_shell("echo next >&4; sleep 1000"));
    assert!(
        failed.failure == "payload_setup" && failed.message.contains("`next`"),
        "{failed:?}"
    );
}

fn never_ready() {
    for script in ["exit 3", "exit 0", "sleep 1000"] {
        let mut what = range_shell(script);
        what.0.ready_timeout_s = 0.3;
        let mut rig = Rig::new(&isolated());
        rig.learn(&what).give(0, 1000).all();
        let [failed] = rig.failed.as_slice() else {
            panic!("{:?}", rig.failed)
        };
        assert_eq!(
            (failed.failure.as_str(), failed.count),
            ("payload_setup", 1000),
            "{failed:?}"
        );
    }
}

fn leaves_work() {
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&format!("{LOOP} exit 0; done")))
        .give(0, 10)
        .all();
    assert!(
        rig.failed[0].message.contains("without finishing"),
        "{:?}",
        rig.failed
    );
    assert_eq!(
        (rig.failed[0].failure.as_str(), rig.failed[0].exit_status),
        ("payload", Some(0))
    );
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell("echo ready >&4")).give(0, 10).all();
    assert!(
        rig.failed[0].message.contains("without asking"),
        "{:?}",
        rig.failed
    );
}

fn asks_no_more() {
    let script = format!("{LOOP} echo done $first $count >&4; exit 0; done");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script)).give(0, 100).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    assert!(
        rig.done
            .iter()
            .map(|done| u64::from(done.setup_us > 0))
            .sum::<u64>()
            >= 1
    );
}

fn outputs() {
    for spec in [isolated(), plain()] {
        let script = format!(
            "{LOOP} echo $first $seed > 'o %'; echo done $first $count r=o%20%25 >&4; echo next >&4; done"
        );
        let mut what = range_shell(&script);
        what.0.outputs = vec![output("r", "ignored")];
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 30).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        for done in &rig.done {
            let mut text = String::new();
            rig.slot
                .open_output(&done.outputs[0].path)
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, format!("{} {}\n", done.first, 101 + done.first));
            rig.slot.remove_output(&done.outputs[0].path).unwrap();
        }
    }
    let mut what = range_shell(&format!(
        "{LOOP} echo done $first $count >&4; echo next >&4; done"
    ));
    what.0.outputs = vec![output("r", "r")];
    assert!(fails(&isolated(), &what).message.contains("`r` missing"));
}

fn makes_room() {
    let script = format!("{LOOP} echo done $first $count >&4; echo next >&4; done");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script))
        .give(0, 5)
        .all()
        .until(|rig| rig.idle == 1);
    let (program, mut other) = shell("echo other");
    other.job = 6;
    other.program = 2;
    rig.tell(&ToSlot::Program(tidemill_wire::Program {
        program: 2,
        ..program
    }))
    .tell(&ToSlot::Job(other));
    rig.tell(&ToSlot::Run {
        ticket: 99,
        job: 6,
        first: 0,
        count: 1,
        chunk_max: None,
    });
    rig.until(|rig| rig.done.iter().any(|done| done.job == 6));
    rig.give(5, 5).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
}

fn forgotten() {
    let script = format!("{LOOP} echo done $first $count >&4; echo next >&4; done; echo bye");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script))
        .give(0, 5)
        .all()
        .until(|rig| rig.idle == 1);
    rig.tell(&ToSlot::Forget { job: 5 })
        .until(|rig| rig.logs.len() == 1);
    assert_eq!(rig.logs[0].stdout, b"bye\n");
}

fn log() {
    let script = format!("echo out; echo err >&2; {LOOP} echo log line $first >&4; echo done $first $count >&4; echo next >&4; done");
    let mut rig = Rig::new(&isolated());
    rig.learn(&range_shell(&script))
        .give(3, 10)
        .all()
        .tell(&ToSlot::Finish)
        .until(|rig| rig.logs.len() == 1);
    let log = &rig.logs[0];
    assert_eq!((log.first, log.count, log.job), (3, 10, 5));
    assert_eq!(log.stdout, b"out\n");
    let text = String::from_utf8_lossy(&log.stderr).into_owned();
    assert!(text.contains("err\n") && text.contains("line 3\n"), "{text}");
}

fn outstanding() {
    let script = "echo ready >&4; echo next 2 >&4; echo next 3 >&4; read a f1 c1 s1 <&3; read a f2 c2 s2 <&3; echo done $f2 $c2 >&4; echo done $f1 $c1 >&4; echo next >&4; read a <&3; exit 0";
    let mut what = range_shell(script);
    what.0.cores = 2;
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 5).all();
    let mut got: Vec<_> = rig.done.iter().map(|done| (done.first, done.count)).collect();
    got.sort_unstable();
    assert_eq!(got, [(0, 2), (2, 3)]);
}

fn deadline() {
    let script = format!("{LOOP} echo done $first $count >&4; echo next >&4; done");
    let mut what = range_shell(&script);
    what.0.event_s = 90.0;
    let mut rig = Rig::new(&isolated());
    let in_60_s = tidemill_sys::time::monotonic_us() + 60_000_000;
    rig.learn(&what)
        .tell(&ToSlot::Deadline {
            monotonic_us: Some(in_60_s),
        })
        .give(0, 10)
        .all();
    assert_eq!(rig.returned, [(0, 10, "walltime".to_owned())]);
}

fn stuck() {
    let mut what = range_shell(&format!("{LOOP} while :; do :; done; done"));
    (what.0.timeout_s, what.0.chunk_max) = (Some(0.3), 1);
    let failed = fails(&isolated(), &what);
    assert!(failed.failure == "walltime", "{failed:?}");
    let mut what = range_shell(&format!("{LOOP} sleep 1000; done"));
    what.0.looping_s = Some(0.5);
    assert_eq!(fails(&isolated(), &what).failure, "payload");
}
