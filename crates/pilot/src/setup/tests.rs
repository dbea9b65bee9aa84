use super::*;
use tidemill_wire::{JobDef, Program};

const KEY: &str = "k";

fn work(defs: bool, store: &Path, first: u64) -> Work {
    let program = Program {
        program: 1,
        setup: Some(SetupDef {
            key: KEY.into(),
            lines: vec![],
            store: store.display().to_string(),
            timeout_s: 60.0,
        }),
        ..Program::default()
    };
    let job = JobDef {
        job: 7,
        program: 1,
        ..JobDef::default()
    };
    let grant = Grant {
        grant: 1,
        job: 7,
        first,
        count: 1,
        chunk_max: None,
    };
    Work {
        programs: if defs { vec![program] } else { vec![] },
        jobs: if defs { vec![job] } else { vec![] },
        grants: vec![grant],
    }
}

/// A set-up whose last try is under way: its process ends without an answer.
fn at_the_last_try(def: &SetupDef) -> Known {
    let child = Command::new("false").stdout(Stdio::piped()).spawn().unwrap();
    Known {
        def: def.clone(),
        state: State::Running {
            child,
            claim: None,
            end_us: u64::MAX,
        },
        failures: 3,
    }
}

#[test]
fn only_the_try_fails_work_and_later_work_goes_back_until_it_is_tried_again() {
    let store = tempfile::tempdir().unwrap();
    let mut setups = Setups::default();
    let def = work(true, store.path(), 0).programs[0].setup.clone().unwrap();
    setups.by_key.insert(KEY.into(), at_the_last_try(&def));
    assert!(setups.take(work(true, store.path(), 0), 1).work.is_none());
    let mut now_us = 2;
    let admitted = loop {
        let admitted = setups.look(now_us);
        if !admitted.news.is_empty() {
            break admitted;
        }
        now_us += 1;
        tidemill_sys::fd::poll(&mut [], Some(1_000)).unwrap();
    };
    assert_eq!((admitted.failed.len(), admitted.returned.len()), (1, 0));
    assert!(!setups.is_pending() && setups.held().is_empty());

    let later = setups.take(work(false, store.path(), 1), now_us + TRY_AGAIN_US - 1);
    assert_eq!((later.failed.len(), later.returned.len()), (0, 1));
    assert!(later.work.is_none() && !setups.is_pending());

    let found = Stored {
        format: stored::FORMAT,
        lines: vec![],
        host: String::new(),
        variables: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        left_out: vec![],
    };
    let path = setups.path(&def);
    stored::write(&path, &found).unwrap(); // another node has done better
    let again = setups.take(work(false, store.path(), 2), now_us + TRY_AGAIN_US);
    assert!(again.failed.is_empty() && again.returned.is_empty());
    let ready = again.work.unwrap();
    assert_eq!((ready.jobs.len(), ready.grants[0].first), (1, 2));
    assert_eq!(
        ready.programs[0].env["A"], "1",
        "what was told before it was known counts"
    );
}
