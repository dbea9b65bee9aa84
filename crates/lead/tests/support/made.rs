//! Definitions and records as the tests need them.

use std::collections::BTreeMap;

use tidemill_wire::*;

pub fn program(id: u64, event_s: f64) -> Program {
    Program {
        program: id,
        app: String::from("app"),
        version: String::from("1"),
        executable: String::from("/bin/true"),
        mode: String::from("command"),
        env: BTreeMap::new(),
        cores: 1,
        memory_mb: 100,
        devices: BTreeMap::new(),
        scratch_mb: 10,
        event_s,
        chunk_max: 1,
        range_s: 1.0,
        timeout_s: None,
        looping_s: None,
        ready_timeout_s: 10.0,
        log_bytes_max: 1000,
        outputs: vec![],
        stdout_output: false,
        batch_commands: false,
        pass_env: vec![],
        ..Program::default()
    }
}

pub fn job(id: u64, program: u64, events: u64) -> JobDef {
    JobDef {
        job: id,
        program,
        argv: vec![String::from("{event}")],
        env: BTreeMap::new(),
        params: String::from("{}"),
        seed_base: 0,
        events,
        inputs: vec![],
        ..JobDef::default()
    }
}

pub fn grant(id: u64, job: u64, first: u64, count: u64) -> Grant {
    Grant {
        grant: id,
        job,
        first,
        count,
        chunk_max: None,
    }
}

pub fn numbered(mut record: Record, pilot: &str, number: u64) -> Record {
    let (p, s) = match &mut record {
        Record::Started(each) => (&mut each.p, &mut each.s),
        Record::Done(each) => (&mut each.p, &mut each.s),
        Record::Failed(each) => (&mut each.p, &mut each.s),
        Record::Returned(each) => (&mut each.p, &mut each.s),
        Record::Ended(each) => (&mut each.p, &mut each.s),
        Record::Noted(each) => (&mut each.p, &mut each.s),
    };
    (*p, *s) = (pilot.to_owned(), number);
    record
}

pub fn done(grant: &Grant, wall_us: u64) -> Record {
    Record::Done(Done {
        p: String::new(),
        s: 0,
        grant: grant.grant,
        job: grant.job,
        first: grant.first,
        count: grant.count,
        payloads: 1,
        slot: 0,
        started_us: 1,
        ended_us: 2,
        wall_us,
        setup_us: 0,
        user_us: 1,
        system_us: 1,
        rss_kb: 1,
        read_bytes: None,
        write_bytes: None,
        outputs: vec![],
    })
}

pub fn returned(grant: &Grant, reason: &str) -> Record {
    Record::Returned(Returned {
        p: String::new(),
        s: 0,
        grant: grant.grant,
        job: grant.job,
        first: grant.first,
        count: grant.count,
        reason: reason.to_owned(),
    })
}

pub fn ended(reason: &str) -> Record {
    Record::Ended(Ended {
        p: String::new(),
        s: 0,
        reason: reason.to_owned(),
        message: String::new(),
        busy_us: 1,
        slot_us: 1,
        at_us: 1,
    })
}

/// The events of hand-outs, sorted; panics where one was handed out twice.
pub fn events(work: &[Work]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = work
        .iter()
        .flat_map(|work| &work.grants)
        .flat_map(|grant| (grant.first..grant.first + grant.count).map(|event| (grant.grant, event)))
        .collect();
    all.sort_unstable();
    assert!(
        all.windows(2).all(|pair| pair[0] != pair[1]),
        "handed out twice: {all:?}"
    );
    all
}
