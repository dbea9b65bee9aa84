//! Unmodified programs.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use sha2::{Digest, Sha256};
use tidemill_slot::ToSlot;
use tidemill_wire::{InputDef, JobDef, LineRule, Program};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    (
        "a failing event is reported with status and stderr and its neighbours are done",
        failing_event,
    ),
    ("a signal is reported", signal),
    (
        "programs that cannot be started fail their whole run at once",
        missing,
    ),
    (
        "a program that is replaced while it starts does not count",
        replaced_at_start,
    ),
    ("templates and environment name the events", templates),
    ("outputs are put aside and can be read and removed", outputs),
    ("a missing or false output fails the event", bad_outputs),
    (
        "the umask and soft limits of a shell hold, and outputs keep their mode",
        shell_limits,
    ),
    ("bytes that are not UTF-8 reach words and variables", octets),
    (
        "what no output names is in the log of a job's first payloads",
        left,
    ),
    ("stdout can be an output of any length", stdout_output),
    ("inputs lie in the work directory and cannot be changed", inputs),
    (
        "an approved program's inputs lie apart, and its lines are legal or fail their event",
        approved_inputs,
    ),
    (
        "a copy that a payload makes of an input can be changed",
        inputs_copied,
    ),
    ("an input that the node holds is shown and not copied", held_input),
    (
        "a job that is defined again reads its inputs again",
        inputs_told_anew,
    ),
    ("a missing input is a stage_in failure", missing_input),
    (
        "inputs whose copy failed are copied by the next payload",
        input_missing_for_a_while,
    ),
    ("what one payload leaves the next does not see", emptied),
    ("processes left over are killed", leftovers),
    ("an unknown template is a dispatch failure", unknown_template),
    ("chunks hold several events", chunks),
    ("idle is reported once", idle),
    (
        "a start that costs something waits for a permit, each for its own",
        paced,
    ),
    ("a slot that was idle asks for a permit again", paced_again),
];

fn failing_event() {
    for spec in [isolated(), plain()] {
        let what = shell("test $TIDEMILL_FIRST != 13 || { echo bad luck >&2; exit 3; }");
        let mut rig = Rig::new(&spec);
        let began = Instant::now();
        rig.learn(&what).give(0, 30).all();
        let [failed] = rig.failed.as_slice() else {
            panic!("{:?}", rig.failed)
        };
        assert_eq!((failed.first, failed.count, failed.exit_status), (13, 1, Some(3)));
        assert_eq!(
            (failed.failure.as_str(), failed.stderr.as_slice()),
            ("payload", &b"bad luck\n"[..])
        );
        assert_eq!(rig.done.iter().map(|done| done.payloads).sum::<u64>(), 29);
        assert!(rig.done.iter().all(|done| done.wall_us > 0 && done.rss_kb > 0));
        // neighbours are joined: messages go every 50 ms at most, at the end, and one more at the event between
        let messages_max = began.elapsed().as_millis() / 50 + 2;
        assert!(
            rig.done.len() as u128 <= messages_max,
            "{} messages, at most {messages_max} fit that time",
            rig.done.len()
        );
    }
}

fn signal() {
    let failed = fails(&isolated(), &shell("kill -SEGV $$"));
    assert_eq!((failed.signal, failed.exit_status), (Some(11), None));
    assert!(failed.message.contains("SIGSEGV"), "{}", failed.message);
}

/// A script whose interpreter is hidden, and an executable that is a link to what is hidden: both are shown themselves.
fn hidden_behind(dir: &std::path::Path) {
    let python = dir.join("python");
    std::fs::copy("/bin/true", &python).unwrap();
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (script, link) = (place.path().join("script"), place.path().join("link"));
    std::fs::write(&script, format!("#!{}\n", python.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(&python, &link).unwrap();
    let told = format!("`{}` is hidden from payloads", python.display());
    for executable in [script, link] {
        let started = (program(executable.to_str().unwrap(), "command"), job(&[]));
        let failed = fails(&isolated(), &started);
        assert!(failed.message.contains(&told), "{failed:?}");
        let mut approved = started;
        approved.0.files = vec![tidemill_wire::ApprovedFile {
            path: executable.to_str().unwrap().to_owned(),
            ..tidemill_wire::ApprovedFile::default()
        }];
        let failed = fails(&isolated(), &approved);
        assert!(
            executable.ends_with("script") || failed.message.contains(&told),
            "{failed:?}"
        );
    }
}

fn missing() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "hello").unwrap();
    let unexecutable = text.to_str().unwrap().to_owned();
    let hidden = fails(&isolated(), &(program(&unexecutable, "command"), job(&[])));
    let told = format!("`{unexecutable}` is hidden from payloads");
    assert!(hidden.message.contains(&told), "{hidden:?}");
    assert!(hidden.message.contains("`show = [\""), "{hidden:?}");
    hidden_behind(dir.path());
    let spec = tidemill_slot::SlotSpec {
        view: shown(&[&text]),
        ..isolated()
    };
    let cases = [
        ("/no/such/program", "No such file"),
        (&unexecutable, "Permission denied"),
        ("bin/true", "absolute"),
    ];
    for (path, says) in cases {
        let mut rig = Rig::new(&spec);
        rig.learn(&(program(path, "command"), job(&[])))
            .give(0, 1000)
            .all();
        let [failed] = rig.failed.as_slice() else {
            panic!("{:?}", rig.failed)
        };
        assert_eq!(failed.count, 1000);
        assert!(failed.message.contains(says), "{}", failed.message);
        if path != "bin/true" {
            assert_eq!(failed.failure, "payload_setup");
            assert!(failed.message.contains(path), "{}", failed.message);
        }
    }
    std::fs::set_permissions(&text, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&text, "\0\0hello").unwrap();
    let failed = fails(&spec, &(program(&unexecutable, "command"), job(&[])));
    assert!(
        failed.failure == "payload_setup" && failed.message.contains("#!"),
        "{failed:?}"
    );
}

/// The payload replaces its own approved file, as another user may between the check and the start.
fn replaced_at_start() {
    let good = "data 1\n";
    for (then, ms_max) in [("exit 0", 1_000), ("sleep 100", 2_000)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data").to_str().unwrap().to_owned();
        let mut what = shell(&format!("echo data 2 >{path}.new; mv {path}.new {path}; {then}"));
        what.0.files = vec![tidemill_wire::ApprovedFile {
            path: path.clone(),
            sha256: format!("{:x}", Sha256::digest(good)),
            bytes: good.len() as u64,
            mtime_ns: 0,
            ctime_ns: Some(0),
        }];
        in_time(|| {
            std::fs::write(&path, good).unwrap();
            let began = Instant::now();
            let failed = fails(&plain(), &what);
            assert_eq!(failed.failure, "dispatch", "{failed:?}");
            assert!(failed.message.contains("approved is sha256:"), "{failed:?}");
            within(began, ms_max)
        });
    }
}

fn templates() {
    let mut what = (program("/bin/sh", "command"), job(&["-c", "echo $* $TIDEMILL_FIRST $TIDEMILL_COUNT $TIDEMILL_SEED $TIDEMILL_JOB $TIDEMILL_CORES $TIDEMILL_NODE $A $B $PWD $HOME $TMPDIR", "x"]));
    what.1.argv.extend(
        [
            "{event}",
            "{last_event}",
            "{events}",
            "{seed}",
            "{cores}",
            "a{{b}}",
        ]
        .map(String::from),
    );
    what.0.env.insert("A".into(), "program".into());
    what.0.env.insert("B".into(), "program".into());
    what.1.env.insert("B".into(), "job".into());
    what.1.env.insert("TIDEMILL_NODE".into(), "elsewhere".into());
    let mut rig = Rig::new(&tidemill_slot::SlotSpec {
        node: "n7".into(),
        ..isolated()
    });
    rig.learn(&what).give(7, 1).all();
    assert_eq!(
        rig.stdout(),
        "7 7 1 108 1 a{b} 7 1 108 5 1 n7 program job /tmp/work /tmp/home /tmp\n"
    );
}

fn outputs() {
    for spec in [isolated(), plain()] {
        let mut what = shell("mkdir sub; echo $TIDEMILL_FIRST > sub/result-$TIDEMILL_FIRST; echo b > b");
        what.0.outputs = vec![output("result", "sub/result-{event}"), output("b", "b")];
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 600);
        let mut read = 0;
        while read < 600 {
            rig.until(|rig| !rig.done.is_empty());
            for done in std::mem::take(&mut rig.done) {
                let names: Vec<_> = done.outputs.iter().map(|output| output.name.as_str()).collect();
                assert_eq!(names, ["result", "b"]);
                let mut text = String::new();
                rig.slot
                    .open_output(&done.outputs[0].path)
                    .unwrap()
                    .read_to_string(&mut text)
                    .unwrap();
                assert_eq!(text, format!("{}\n", done.first));
                for output in &done.outputs {
                    rig.slot.remove_output(&output.path).unwrap();
                    assert!(rig.slot.open_output(&output.path).is_err());
                }
                read += 1;
            }
            assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        }
    }
}

fn bad_outputs() {
    let cases = [
        ("true", "x", "`x` is missing"),
        (
            "for n in 0 1 2 3; do echo > x-$n; done; : > .x; ln -s /etc link",
            "x",
            "`x` is missing; the work directory has `x-0`, `x-1`, `x-2` and 1 more",
        ),
        (
            "mkdir -p d/e; echo > d/x; echo > y",
            "./d/e/x",
            "`./d/e/x` is missing; the work directory has `d/x`",
        ),
        ("echo > y; ln -s /etc d", "d/x", "`d` is a symbolic link"),
        ("ln -s /etc/passwd x", "x", "`x` is a symbolic link"),
        (
            "echo a > y; ln -s y x",
            "x",
            "copy the file itself to `x` (`cp -L`)",
        ),
        ("ln -s x x", "x", "`x` is a symbolic link"),
        (
            "mkdir d; echo a > d/x; ln -s d e",
            "e/x",
            "`e` is a symbolic link",
        ),
        ("mkdir x", "x", "`x` is a directory"),
        (
            "mkfifo x",
            "x",
            "`x` is not a regular file, but a pipe, socket or device",
        ),
    ];
    for (script, path, says) in cases {
        let mut what = shell(script);
        what.0.outputs = vec![output("x", path)];
        let failed = fails(&isolated(), &what);
        assert!(
            failed.failure == "payload" && failed.message.contains("output `x`"),
            "{failed:?}"
        );
        assert!(failed.message.contains(says), "{failed:?}");
        assert_eq!(failed.exit_status, Some(0));
    }
}

fn shell_limits() {
    for spec in [isolated(), plain()] {
        let mut what = shell(
            "umask; ulimit -S -s; ulimit -S -n; umask 0; touch open; stat -c %a open; : > x; chmod 751 x",
        );
        what.0.outputs = vec![output("x", "x")];
        what.1.umask = Some(0o077);
        what.1.limits = Some(
            [
                ("stack", 4 << 20),
                ("nofile", 100),
                ("core", -1),
                ("of-a-later-version", 1),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        );
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 1).all();
        assert_eq!(rig.stdout(), "0077\n4096\n100\n666\n");
        let file = rig.slot.open_output(&rig.done[0].outputs[0].path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o751);
    }
}

fn octets() {
    let mut what = shell("printf %s-%s-%s \"$A\" \"$0\" \"$1\" | od -An -tx1 | tr -d ' \\n'");
    what.1
        .argv
        .extend(["\u{10ffe9}{event}".to_owned(), "é".to_owned()]);
    what.1.env.insert("A".into(), "/x/\u{10ffe9}\u{10ff80}".into());
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(7, 1).all();
    assert_eq!(rig.stdout(), "2f782fe9802de9372dc3a9");
}

fn left() {
    let said = |script: &str, path: &str, count: u64| {
        let mut what = shell(script);
        what.0.chunk_max = 1;
        what.0.outputs = if path.is_empty() {
            Vec::new()
        } else {
            vec![output("x", path)]
        };
        let mut rig = Rig::new(&isolated());
        rig.learn(&what).give(0, count).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        let texts = rig.done.iter().map(|done| done.stderr.clone());
        String::from_utf8(texts.collect::<Vec<_>>().concat()).unwrap()
    };
    let start = "tidemill: removed from the work directory, since no output names it: ";
    assert_eq!(
        said("echo a > out.root; mkdir plots; echo b > kept", "kept", 1),
        format!("{start}`out.root`, `plots/`\n")
    );
    assert_eq!(
        said("for n in 1 2 3 4 5; do echo > f$n; done", "", 1),
        format!("{start}`f1`, `f2`, `f3` and 2 more\n")
    );
    let many = said("i=0; while [ $i -lt 1200 ]; do : > f$i; i=$((i+1)); done", "", 1);
    assert!(many.ends_with(" and many more\n"), "{many}");
    assert_eq!(
        said("echo > out.root", "", 10).matches(start).count(),
        3,
        "once is enough"
    );
    for (script, path) in [
        ("true", ""),
        (
            "echo a > $HOME/x; echo a > /tmp/y; echo a > .hidden; ln -s /etc link",
            "",
        ),
        ("mkdir a; echo b > a/kept; echo c > a/other", "./a/kept"),
        ("mkdir cards; : > .tidemill-packed", ""),
        ("mkdir cards; ln -s /dev/zero .tidemill-packed", ""),
        (
            "mkdir pl a; echo > a/h.root; printf '%s\\0' pl ./a/h.root > .tidemill-packed",
            "",
        ),
    ] {
        assert_eq!(said(script, path, 1), "", "{script}");
    }
    assert_eq!(
        said(
            "mkdir pl cards; echo > left.root; echo > x; printf '%s\\0' cards pl > .tidemill-packed",
            "x",
            1
        ),
        format!("{start}`left.root`\n"),
        "beside an archive"
    );
}

fn stdout_output() {
    let mut what = shell("echo hello; echo log >&2; [ $TIDEMILL_FIRST = 0 ] || head -c 5000000 /dev/zero");
    what.0.stdout_output = true;
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 2).all();
    let (short, long) = (&rig.done[0], &rig.done[1]);
    assert_eq!(short.outputs[0].inline.as_deref(), Some(&b"hello\n"[..]));
    assert_eq!(
        (short.stdout.len(), short.stderr.as_slice(), short.truncated),
        (0, &b"log\n"[..], false)
    );
    let file = rig.slot.open_output(&long.outputs[0].path).unwrap();
    assert_eq!(
        (long.outputs[0].name.as_str(), file.metadata().unwrap().len()),
        ("stdout", 5_000_006)
    );
    assert!(!long.truncated);
}

fn input(name: &str, kind: &str, path: Option<&str>, lines: Option<&str>) -> InputDef {
    let text = |text: &str| text.to_owned();
    InputDef {
        name: text(name),
        kind: text(kind),
        path: path.map(text),
        lines: lines.map(text),
        first: 0,
        sha256: None,
        bytes: None,
        node_cache: None,
        unpack: None,
    }
}

fn inputs() {
    let stage = tempfile::tempdir().unwrap();
    let at = |name: &str| stage.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("cards"), "the cards\n").unwrap();
    std::fs::create_dir(at("files")).unwrap();
    for event in 0..3 {
        std::fs::write(at(&format!("files/{event}")), format!("file {event}\n")).unwrap();
    }
    std::fs::write(at("lines"), "zero\none\ntwo\n").unwrap();
    for base in [isolated(), plain()] {
        let mut what = shell("cat cards data $TIDEMILL_INPUT_CARDS $TIDEMILL_INPUT_DATA; echo $1; echo x 2>/dev/null >> cards && echo changed; rm -f cards; :");
        if user() == 0 && base.isolation == tidemill_slot::Isolation::Off {
            // modes do not bind root, and there is no read-only mount
            what = shell("cat cards data $TIDEMILL_INPUT_CARDS $TIDEMILL_INPUT_DATA; echo $1; rm -f cards");
        }
        what.1
            .argv
            .extend(["x".to_owned(), "{line} {input.cards}".to_owned()]);
        what.1.inputs = vec![
            input("cards", "shared", Some(&at("cards")), None),
            input("data", "each", Some(&at("files")), Some(&at("lines"))),
        ];
        // the stage is masked: inputs are read all the same
        let spec = tidemill_slot::SlotSpec {
            mask: vec![stage.path().into()],
            ..base
        };
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 3).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        let lines = ["zero", "one", "two"];
        for (event, done) in rig.done.iter().enumerate() {
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            let twice = format!("the cards\nfile {event}\n").repeat(2) + lines[event] + " ";
            assert!(text.starts_with(&twice) && !text.contains("changed"), "{text}");
        }
    }
}

/// The work directory is empty, also where a slot has no namespaces; lines that begin like options start nothing.
fn approved_inputs() {
    let stage = tempfile::tempdir().unwrap();
    let at = |name: &str| stage.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("cards"), "cards\n").unwrap();
    std::fs::write(at("lines"), "run7/a.root\t1\n-c\t2\nrun8\t-3\nrun9\n").unwrap();
    let rule = |pattern: Option<&str>| LineRule {
        pattern: pattern.map(str::to_owned),
        bytes_max: 255,
    };
    for base in [isolated(), plain()] {
        let mut what = shell("ls -A; ls $TIDEMILL_INPUTS; cat $2; echo $1");
        what.0.inputs_apart = Some(true);
        what.0.lines = Some(
            [
                ("*".to_owned(), rule(None)),
                ("1".to_owned(), rule(Some("[0-9]"))),
            ]
            .into(),
        );
        let words = ["x", "{column.0}:{column.1}", "{input.cards}"];
        what.1.argv.extend(words.map(str::to_owned));
        what.1.inputs = vec![
            input("cards", "shared", Some(&at("cards")), None),
            input("data", "each", None, Some(&at("lines"))),
        ];
        let mut rig = Rig::new(&base);
        rig.learn(&what).give(0, 4).all();
        assert_eq!(rig.done.len(), 1, "{:?}", rig.failed);
        let said = String::from_utf8_lossy(&rig.done[0].stdout).into_owned();
        assert_eq!(said, "cards\ndata\ndata.lines\ncards\nrun7/a.root:1\n");
        let reasons = [
            "column 0 of event 1 cannot become an argument: it is `-c`",
            "column 1 of event 2 cannot become an argument: it is `-3`",
            "the line of event 3 has no column 1",
        ];
        for (failed, reason) in rig.failed.iter().zip(reasons) {
            assert_eq!(failed.failure, "payload_setup");
            assert!(failed.message.contains(reason), "{}", failed.message);
        }
        assert_eq!(rig.failed.len(), reasons.len());
    }
}

/// What a payload makes of an input with `cp` is its own, to be changed; the input itself is not.
fn inputs_copied() {
    let stage = tempfile::tempdir().unwrap();
    let card = stage.path().join("card");
    std::fs::write(&card, "card\n").unwrap();
    for (base, mode) in [(isolated(), "755"), (plain(), "555")] {
        let mut what = shell("umask 022; stat -Lc %a card; cp card own; stat -c %a own");
        if base.isolation == tidemill_slot::Isolation::Required {
            what = shell(
                "umask 022; stat -Lc %a card; (echo x >> card) 2>/dev/null && echo changed; cp card own; echo x >> own; \
                 stat -c %a own",
            );
        } // else modes do not bind root
        what.1.inputs = vec![input("card", "shared", card.to_str(), None)];
        let mut rig = Rig::new(&base);
        rig.learn(&what).give(0, 1).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        let text = String::from_utf8_lossy(&rig.done[0].stdout).into_owned();
        assert_eq!(text, format!("{mode}\n{mode}\n"));
    }
}

fn held_input() {
    // below /tmp, which slots replace, and masked: shown all the same
    let store = tempfile::tempdir_in("/tmp").unwrap();
    let held = store.path().join("5ec2e7");
    std::fs::write(&held, "held\n").unwrap();
    std::fs::set_permissions(&held, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    for base in [isolated(), plain()] {
        let mut script = String::from("cat cards; stat -Lc %h,%a cards; ls /tmp/.tidemill/in; ");
        if base.isolation == tidemill_slot::Isolation::Required {
            script +=
                "grep -c tidemill/in /proc/self/mountinfo; (echo x >> cards) 2>/dev/null && echo changed; ";
        } // else modes do not bind root
        script += ":";
        let mut what = shell(&script);
        what.1.inputs = vec![input("cards", "shared", held.to_str(), None)];
        let spec = tidemill_slot::SlotSpec {
            mask: vec![store.path().into()],
            stores: vec![store.path().into()],
            ..base
        };
        let mut rig = Rig::new(&spec);
        for _ in 0..2 {
            rig.done.clear();
            rig.learn(&what)
                .give(0, 1)
                .until(|rig| rig.done.len() + rig.failed.len() > 0);
            assert!(rig.failed.is_empty(), "{:?}", rig.failed);
            let text = String::from_utf8_lossy(&rig.done[0].stdout).into_owned();
            let told: Vec<&str> = text.lines().collect();
            if spec.isolation == tidemill_slot::Isolation::Required {
                assert_eq!(
                    told,
                    ["held", "1,555", "5", "1"],
                    "a read-only mount of the very file"
                );
            } else {
                // a link where both are on one file system, else a copy
                assert!(told[0] == "held" && told[1].ends_with(",555"), "{text}");
            }
            rig.tell(&tidemill_slot::ToSlot::Forget { job: 5 });
        }
        rig.slot.kill();
        assert_eq!(std::fs::read(&held).unwrap(), b"held\n");
    }
}

/// Files of the same names and as many bytes, for a job that was canceled and comes back.
fn inputs_told_anew() {
    let (store, stage) = (
        tempfile::tempdir_in("/tmp").unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let write = |life: &str| {
        let held = store.path().join(life);
        let (card, each) = (stage.path().join("card"), stage.path().join("each"));
        std::fs::create_dir_all(&each).unwrap();
        std::fs::write(&held, format!("held {life}\n")).unwrap();
        for path in [card.clone(), each.join("0"), each.join("1")] {
            std::fs::write(path, format!("card {life}\n")).unwrap();
        }
        vec![
            input("held", "shared", held.to_str(), None),
            input("card", "shared", card.to_str(), None),
            input("each", "each", each.to_str(), None),
        ]
    };
    let fifo = make_fifo(&stage.path().join("fifo"));
    for base in [isolated(), plain()] {
        let mut what = shell("cat held card each; test $1 = 0 || { echo started > $2; exec sleep 100; }");
        what.1
            .argv
            .extend(["x".to_owned(), "{event}".to_owned(), fifo.clone()]);
        let spec = tidemill_slot::SlotSpec {
            stores: vec![store.path().into()],
            ..writing(base, stage.path())
        };
        let mut rig = Rig::new(&spec);
        let mut read = |what: &(Program, JobDef), lives: &[&str]| {
            let told: Vec<String> = lives
                .iter()
                .map(|life| format!("held {life}\ncard {life}\ncard {life}\n"))
                .collect();
            rig.learn(what).give(0, 1);
            rig.until(|rig| rig.done.len() + rig.failed.len() == lives.len());
            assert_eq!(rig.stdout(), told.concat(), "{:?}", rig.failed);
            rig.give(1, 1);
            wait_for_line(&fifo);
            // as the pilot does it; the payload is still being killed when the job is defined again
            rig.tell(&ToSlot::CancelJob { job: 5 });
            rig.tell(&ToSlot::Forget { job: 5 });
        };
        for lives in [&["one"][..], &["one", "two"], &["one", "two", "six"]] {
            what.1.inputs = write(lives[lives.len() - 1]);
            read(&what, lives);
        }
        rig.slot.kill();
    }
}

fn input_missing_for_a_while() {
    let store = tempfile::tempdir_in("/tmp").unwrap();
    let stage = tempfile::tempdir().unwrap();
    let (held, late) = (store.path().join("5ec2e7"), stage.path().join("late"));
    std::fs::write(&held, "held\n").unwrap();
    for base in [isolated(), plain()] {
        let shown = u32::from(base.isolation == tidemill_slot::Isolation::Required);
        let mut what = shell("cat a b; grep -c /in/5/a /proc/self/mountinfo; :");
        what.1.inputs = vec![
            input("a", "shared", held.to_str(), None),
            input("b", "shared", late.to_str(), None),
        ];
        let spec = tidemill_slot::SlotSpec {
            stores: vec![store.path().into()],
            ..base
        };
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 1).all();
        assert!(rig.failed[0].message.contains("`b`"), "{:?}", rig.failed);
        std::fs::write(&late, "late\n").unwrap();
        rig.give(1, 1).all();
        assert_eq!(rig.stdout(), format!("held\nlate\n{shown}\n"), "{:?}", rig.failed);
        rig.slot.kill();
        std::fs::remove_file(&late).unwrap();
    }
}

fn missing_input() {
    let mut what = shell("true");
    what.1.inputs = vec![input("cards", "shared", Some("/no/such/cards"), None)];
    let failed = fails(&isolated(), &what);
    assert!(
        failed.failure == "stage_in" && failed.message.contains("/no/such/cards"),
        "{failed:?}"
    );
}

fn emptied() {
    let script = "set -e; for d in /tmp /tmp/work $HOME /dev/shm; do test ! -e $d/x; done; test $(ls -A /tmp | wc -l) = 3; test $(ls -A | wc -l) = 0; \
        case $TIDEMILL_FIRST in 0) ;; 1) rmdir /tmp/home; touch /tmp/x;; 2) mkdir -p x/y; chmod 0 x;; 3) touch $HOME/x;; 4) echo > /dev/shm/x;; 5) chmod 0 /tmp;; *) touch x; rm -rf /tmp/work;; esac";
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell(script)).give(0, 9).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
}

fn leftovers() {
    // each payload leaves processes and finds none of the last
    let script = "set -e; test $(ls -d /proc/[0-9]* | wc -l) -le 5; sleep 1000 & setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & exit 0";
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell(script)).give(0, 20).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);

    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    std::fs::write(&pids, "").unwrap();
    let mut what = shell("sh -c 'setsid sleep 1000 & echo $!' >> $1");
    what.1
        .argv
        .extend(["x".to_owned(), pids.to_str().unwrap().to_owned()]);
    let mut rig = Rig::new(&plain());
    rig.learn(&what).give(0, 3).all();
    let pids = std::fs::read_to_string(&pids).unwrap();
    assert_eq!(pids.lines().count(), 3);
    for pid in pids.lines() {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!line.contains("sleep"), "{pid} lives: {line}");
    }
}

fn unknown_template() {
    let failed = fails(&isolated(), &(program("/bin/true", "command"), job(&["{evnt}"])));
    assert!(
        failed.failure == "dispatch" && failed.message.contains("{evnt}"),
        "{failed:?}"
    );
}

fn chunks() {
    let mut what = shell("echo $TIDEMILL_COUNT");
    (what.0.chunk_max, what.0.event_s) = (10, 0.01);
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 25).all();
    assert_eq!(rig.stdout(), "10\n10\n5\n");
}

fn idle() {
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell("true"))
        .give(0, 5)
        .give(5, 5)
        .until(|rig| rig.idle == 1);
    assert_eq!(rig.settled(), 10, "idle comes after everything else");
    rig.give(10, 1).until(|rig| rig.idle == 2);
}

fn paced_again() {
    let mut what = shell("echo here");
    what.0.start_ops = [("sw".to_owned(), 300)].into();
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).until(|rig| rig.wants.len() == 1);
    rig.tell(&ToSlot::CancelJob { job: 5 }).until(|rig| rig.idle == 1);
    // the pilot has forgotten that we wait
    rig.give(1, 1).until(|rig| rig.wants.len() == 2);
}

fn paced() {
    for spec in [isolated(), plain()] {
        let mut what = shell("echo here");
        what.0.start_ops = [("sw".to_owned(), 300)].into();
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 2).until(|rig| rig.wants.len() == 1);
        assert_eq!((rig.settled(), rig.wants.as_slice()), (0, &[1_u64][..]));
        let note = "starts are slowed".to_owned();
        rig.tell(&ToSlot::Permit { program: 1, note });
        rig.until(|rig| rig.wants.len() == 2);
        rig.until(|rig| rig.settled() == 1);
        assert_eq!(rig.done[0].stderr, b"tidemill: starts are slowed\n");
        // a stop returns what waits
        rig.tell(&ToSlot::Finish);
        rig.all();
        assert_eq!(rig.returned, [(1, 1, "drain".to_owned())]);
    }
}
