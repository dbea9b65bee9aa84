//! The ledger against a model: random schedules of pilots and leads never leave an event behind.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::value::RawValue;
use tidemill_wire::{Ask, Grant, Program};

use crate::ledger::record::RecordHead;
use crate::ledger::{Ledger, Number};
use tidemill_wire::WorkText;

const GRACE_US: u64 = 1_000;
const PILOTS: usize = 3;

fn program_text() -> String {
    serde_json::to_string(&Program {
        program: 1,
        app: String::new(),
        version: String::new(),
        executable: String::new(),
        mode: String::from("command"),
        env: BTreeMap::new(),
        cores: 1,
        memory_mb: 1,
        devices: BTreeMap::new(),
        scratch_mb: 0,
        event_s: 1.0,
        chunk_max: 1,
        range_s: 1.0,
        timeout_s: None,
        looping_s: None,
        ready_timeout_s: 1.0,
        log_bytes_max: 0,
        outputs: vec![],
        stdout_output: false,
        batch_commands: false,
        ..Program::default()
    })
    .unwrap()
}

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap()
}

/// Work file `number`; the first one defines program and job.
fn work(number: u64, grants: Vec<Grant>) -> WorkText {
    let first = number == 1;
    WorkText {
        format: 1,
        number,
        programs: if first { vec![raw(program_text())] } else { vec![] },
        jobs: Vec::from_iter(first.then(|| raw(String::from(r#"{"job":1,"program":1}"#)))),
        grants,
        cancel_jobs: vec![],
        ended: vec![],
        ends: vec![],
        shares: vec![],
        io: None,
        leave: vec![],
        drain: false,
        close: false,
        withdrawn: None,
    }
}

fn grant(id: u64, first: u64, count: u64) -> Grant {
    Grant {
        grant: id,
        job: 1,
        first,
        count,
        chunk_max: None,
    }
}

fn ask(cores: u64) -> Ask {
    Ask {
        cores,
        memory_mb: 10,
        devices: BTreeMap::new(),
        remaining_s: None,
        queued_s: 0.0,
        idle_cores: None,
    }
}

/// A pilot that runs what it is given and reports it, over connections that break.
#[derive(Default)]
struct Model {
    incarnation: u64,
    connected: bool,
    held: Vec<Grant>,
    /// Every record so far; those above the acknowledged one are sent again.
    records: Vec<String>,
    sent: usize,
}

impl Model {
    fn id(&self, k: usize) -> String {
        format!("p{k}.r0.i{}", self.incarnation)
    }
}

struct World {
    ledger: Ledger,
    files: Vec<Vec<Grant>>,
    loaded: usize,
    pilots: Vec<Model>,
    /// The lead's journal: all that was received.
    journal: Vec<String>,
    done: BTreeSet<(u64, u64)>,
    now: u64,
    next_grant: u64,
    at_once: Option<u64>,
}

impl World {
    fn new(at_once: Option<u64>) -> Self {
        let mut ledger = Ledger::default();
        ledger.start(0);
        World {
            ledger,
            files: vec![],
            loaded: 0,
            pilots: (0..PILOTS).map(|_| Model::default()).collect(),
            journal: vec![],
            done: BTreeSet::new(),
            now: 1,
            next_grant: 1,
            at_once,
        }
    }

    /// Events that pilots have, or had when they were last heard of.
    fn out(&self) -> u64 {
        let grants = self.ledger.grants.values();
        grants.map(|state| state.open.len() - state.free.len()).sum()
    }

    fn step(&mut self, (kind, k, n): (u8, usize, u64)) {
        match kind {
            0 => {
                let id = self.next_grant;
                self.next_grant += 1;
                self.files.push(vec![grant(id, id * 100, n % 7 + 1)]);
                self.load();
            }
            1 => self.connect(k),
            2 => self.disconnect(k),
            3 | 4 => self.ask(k, n % 4 + 1),
            5..=7 => self.run(k, n),
            8 => self.give_back(k, n),
            9 => self.die(k),
            10 => self.restart_lead(),
            _ => self.pass(n * 100),
        }
        self.check();
    }

    fn load(&mut self) {
        while self.loaded < self.files.len() {
            let mut file = work(self.loaded as u64 + 1, self.files[self.loaded].clone());
            if let (Some(limit), Some(job)) = (self.at_once, file.jobs.first_mut()) {
                *job = raw(format!(r#"{{"job":1,"program":1,"at_once":{limit}}}"#));
            }
            assert!(self.ledger.load(file).problems.is_empty());
            self.loaded += 1;
        }
    }

    fn connect(&mut self, k: usize) {
        if self.pilots[k].connected {
            return;
        }
        let key = self.ledger.key_of(&self.pilots[k].id(k));
        self.ledger.connect(key, &self.pilots[k].held, self.now);
        self.pilots[k].connected = true;
        self.pilots[k].sent = self.ledger.pilot(key).received as usize;
        self.send(k);
    }

    fn disconnect(&mut self, k: usize) {
        if std::mem::take(&mut self.pilots[k].connected) {
            let key = self.ledger.key_of(&self.pilots[k].id(k));
            self.ledger.disconnect(key, self.now);
        }
    }

    fn ask(&mut self, k: usize, cores: u64) {
        if !self.pilots[k].connected {
            return;
        }
        self.send(k);
        let key = self.ledger.key_of(&self.pilots[k].id(k));
        self.ledger.ask(key, ask(cores), self.now);
        if let Some(given) = self.ledger.hand_out(key, 1.0, self.now) {
            assert!(!given.is_empty() && given.iter().all(|grant| grant.count > 0));
            if let Some(limit) = self.at_once {
                assert!(self.out() <= limit, "{} are out, {limit} may be", self.out());
                assert!(given.iter().all(|grant| grant.chunk_max == Some(1)));
            }
            self.pilots[k].held.extend(given);
        }
    }

    /// Finish some of what it holds first; the record may wait for a connection.
    fn run(&mut self, k: usize, n: u64) {
        let Some(grant) = self.pilots[k].held.first_mut() else {
            return;
        };
        let count = grant.count.min(n % 3 + 1);
        let (id, first) = (grant.grant, grant.first);
        grant.first += count;
        grant.count -= count;
        if grant.count == 0 {
            self.pilots[k].held.remove(0);
        }
        self.tell(
            k,
            &format!(r#""k":"done","grant":{id},"job":1,"first":{first},"count":{count},"wall_us":{n}"#),
        );
        if self.pilots[k].connected {
            self.send(k);
        }
    }

    fn give_back(&mut self, k: usize, n: u64) {
        let Some(grant) = self.pilots[k].held.pop() else {
            return;
        };
        let reason = ["yield", "walltime", "slot", "drain"][n as usize % 4];
        self.tell(
            k,
            &format!(
                r#""k":"returned","grant":{},"job":1,"first":{},"count":{},"reason":"{reason}""#,
                grant.grant, grant.first, grant.count
            ),
        );
    }

    fn tell(&mut self, k: usize, fields: &str) {
        let number = self.pilots[k].records.len() + 1;
        let id = self.pilots[k].id(k);
        self.pilots[k]
            .records
            .push(format!(r#"{{{fields},"p":"{id}","s":{number}}}"#));
    }

    fn send(&mut self, k: usize) {
        let key = self.ledger.key_of(&self.pilots[k].id(k));
        let unsent = self.pilots[k].records[self.pilots[k].sent..].to_vec();
        for text in unsent {
            let head: RecordHead<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(self.ledger.number(key, head.s), Number::New);
            self.ledger.record(key, &head, self.now);
            self.keep(&head);
            self.journal.push(text);
        }
        self.pilots[k].sent = self.pilots[k].records.len();
    }

    fn keep(&mut self, head: &RecordHead<'_>) {
        if head.kind() == crate::ledger::record::Kind::Done {
            self.done
                .extend((head.first..head.first + head.count).map(|event| (head.grant, event)));
        }
    }

    /// The node is gone, with what was not sent.
    fn die(&mut self, k: usize) {
        self.disconnect(k);
        let incarnation = self.pilots[k].incarnation + 1;
        self.pilots[k] = Model {
            incarnation,
            ..Model::default()
        };
    }

    fn restart_lead(&mut self) {
        for pilot in &mut self.pilots {
            pilot.connected = false;
        }
        self.ledger = Ledger::default();
        for text in &self.journal {
            let head: RecordHead<'_> = serde_json::from_str(text).unwrap();
            let key = self.ledger.key_of(&head.p);
            self.ledger.record(key, &head, self.now);
        }
        self.loaded = 0;
        self.load();
        self.ledger.start(self.now + GRACE_US);
    }

    fn pass(&mut self, us: u64) {
        self.now += us;
        self.ledger.tick(self.now, GRACE_US);
    }

    fn all(&self) -> BTreeSet<(u64, u64)> {
        let grants = self.files.iter().flatten();
        grants
            .flat_map(|grant| (grant.first..grant.first + grant.count).map(|event| (grant.grant, event)))
            .collect()
    }

    /// Open is exactly what no received record settles; free events are open and counted.
    fn check(&self) {
        let mut open = BTreeSet::new();
        let mut free = 0;
        for (&id, state) in &self.ledger.grants {
            for &(first, end) in state.open.spans() {
                open.extend((first..end).map(|event| (id, event)));
            }
            for &(first, end) in state.free.spans() {
                assert_eq!(state.open.within(first, end), [(first, end)]);
                free += end - first;
            }
            let queued = self.ledger.programs[&1].queue.get(&state.order) == Some(&id);
            assert_eq!(queued, !state.free.is_empty());
        }
        let undone: BTreeSet<(u64, u64)> = self.all().difference(&self.done).copied().collect();
        assert_eq!(open, undone);
        assert_eq!(self.ledger.free_events(), free);
        assert_eq!(self.ledger.jobs[&1].out, self.out());
        let cores: u64 = self.ledger.pilots.iter().map(|pilot| pilot.cores).sum();
        assert_eq!(self.ledger.cores_connected, cores);
    }

    /// From here on nothing fails: everything must end.
    fn finish(&mut self) {
        for _ in 0..2000 {
            self.pass(60_000_000);
            for k in 0..PILOTS {
                self.connect(k);
                self.ask(k, 4);
                while !self.pilots[k].held.is_empty() {
                    self.run(k, 2);
                }
            }
            if self.ledger.is_settled() {
                return;
            }
        }
        panic!("{} events are never handed out", self.ledger.open_events());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_event_ends_whatever_pilots_and_leads_do(
        steps in proptest::collection::vec((0u8..13, 0usize..PILOTS, 0u64..40), 0..120),
        at_once in proptest::option::of(1u64..8)
    ) {
        let mut world = World::new(at_once);
        world.files.push(vec![grant(1_000_000, 0, 5)]);
        world.load();
        for step in steps {
            world.step(step);
        }
        world.finish();
        prop_assert_eq!(&world.done, &world.all());
    }

    /// Without failures of any kind, no event is handed out twice.
    #[test]
    fn nothing_is_handed_out_twice_while_nothing_fails(
        steps in proptest::collection::vec((prop_oneof![Just(0u8), Just(3u8), Just(5u8), Just(11u8)], 0usize..PILOTS, 0u64..40), 0..150),
        at_once in proptest::option::of(1u64..8)
    ) {
        let mut world = World::new(at_once);
        world.files.push(vec![]);
        world.load();
        (0..PILOTS).for_each(|k| world.connect(k));
        for step in steps {
            world.step(step);
        }
        world.finish();
        let told: u64 = world.pilots.iter().flat_map(|pilot| &pilot.records)
            .map(|text| serde_json::from_str::<RecordHead<'_>>(text).unwrap().count).sum();
        prop_assert_eq!(told, world.all().len() as u64);
    }
}

#[test]
fn twenty_thousand_jobs_of_one_event_are_handed_out_quickly() {
    let mut ledger = Ledger::default();
    let count = 20_000;
    let mut file = work(
        1,
        (1..=count)
            .map(|id| Grant {
                grant: id,
                job: id,
                first: 0,
                count: 1,
                chunk_max: None,
            })
            .collect(),
    );
    file.jobs = (1..=count)
        .map(|id| raw(format!(r#"{{"job":{id},"program":1}}"#)))
        .collect();
    assert!(ledger.load(file).problems.is_empty());
    ledger.start(0);
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[], 0);
    let began = std::time::Instant::now();
    let mut number = 0;
    while !ledger.is_settled() {
        ledger.ask(key, ask(2), 1);
        for given in ledger.hand_out(key, 5.0, 1).unwrap() {
            number += 1;
            let text = format!(
                r#"{{"k":"done","p":"a.r0.i1","s":{number},"grant":{},"job":{},"first":0,"count":1,"wall_us":500}}"#,
                given.grant, given.job
            );
            ledger.record(key, &serde_json::from_str(&text).unwrap(), 1);
        }
    }
    assert_eq!(number, count);
    let seconds = began.elapsed().as_secs_f64();
    // 0.1 s unoptimised when nothing else runs; if each cost grew with their number it would be minutes
    assert!(seconds < 10.0, "{count} hand-outs took {seconds} s");
}

/// Results become durable seconds after payloads end: until then the lead knows of no end, and the pilot's cores stood
/// idle beside free work.
#[test]
fn cores_whose_results_are_not_durable_yet_get_work() {
    let mut ledger = Ledger::default();
    ledger.start(0);
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[], 0);
    ledger.load(work(1, vec![grant(1, 0, 1000)]));
    let mut given = |idle: u64, done: Option<&str>| {
        if let Some(text) = done {
            ledger.record(key, &serde_json::from_str(text).unwrap(), 1);
        }
        let idle_cores = Some(idle);
        ledger.ask(key, Ask { idle_cores, ..ask(8) }, 0);
        let grants = ledger.hand_out(key, 2.0, 0).unwrap();
        grants.iter().map(|grant| grant.count).sum::<u64>()
    };
    assert_eq!(given(8, None), 16, "never measured");
    let done = r#"{"k":"done","p":"a.r0.i1","s":1,"grant":1,"job":1,"first":0,"count":1,"wall_us":10000000}"#;
    assert_eq!(given(8, Some(done)), 8, "of 10 s each");
    assert_eq!(given(8, None), 8, "these have run, too");
    assert_eq!(given(0, None), 1, "what fills the queue of all cores");
}

#[test]
fn the_time_left_of_a_standing_ask_goes_by() {
    let mut ledger = Ledger::default();
    ledger.start(0);
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[], 0);
    let three_s = Ask {
        remaining_s: Some(3.0),
        ..ask(1)
    };
    ledger.ask(key, three_s, 0);
    let mut file = work(1, vec![grant(1, 0, 1)]); // of 1 s
    file.jobs = vec![raw(String::from(r#"{"job":1,"program":1}"#))];
    ledger.load(file);
    let late = ledger.hand_out(key, 5.0, 2_500_000);
    assert_eq!(late, None, "half a second is left");
    assert!(ledger.hand_out(key, 5.0, 1_500_000).is_some());
}

/// Seconds of a chunk whose process takes 0.1 s to start, 0.5 ms per event.
fn tell_chunk(ledger: &mut Ledger, key: usize, number: u64, (first, count): (u64, u64)) {
    let wall_us = 100_000 + 500 * count;
    let text = format!(
        r#"{{"k":"done","p":"a.r0.i1","s":{number},"grant":1,"job":1,"first":{first},"count":{count},"wall_us":{wall_us}}}"#
    );
    ledger.record(key, &serde_json::from_str(&text).unwrap(), 1);
}

fn chunked(events: u64) -> (Ledger, usize) {
    let mut ledger = Ledger::default();
    ledger.start(0);
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[], 0);
    let mut file = work(1, vec![grant(1, 0, events)]);
    let text = program_text()
        .replace(r#""chunk_max":1"#, r#""chunk_max":500"#)
        .replace(r#""range_s":1.0"#, r#""range_s":5.0"#);
    file.programs = vec![raw(text)];
    ledger.load(file);
    (ledger, key)
}

#[test]
fn large_payloads_get_two_ranges_of_work_for_each_core_however_slow_their_first_events_were() {
    let (mut ledger, key) = chunked(10_000);
    let mut sizes = Vec::new();
    for round in 1..=4 {
        ledger.ask(key, ask(1), 0);
        let given = ledger.hand_out(key, 2.0, 0).unwrap();
        sizes.push(given.iter().map(|grant| grant.count).sum::<u64>());
        tell_chunk(&mut ledger, key, round, (given[0].first, given[0].count));
    }
    assert_eq!(sizes[0], 2, "never measured");
    assert!(sizes[1] >= 190, "2 x 5 s at 0.05 s: {sizes:?}");
    assert!(sizes[2] >= 1000, "two payloads: {sizes:?}");
}

#[test]
fn large_payloads_leave_work_for_the_other_pilots() {
    let (mut ledger, key) = chunked(400);
    let other = ledger.key_of("b.r0.i1");
    ledger.connect(other, &[], 0);
    ledger.ask(key, ask(1), 0);
    assert_eq!(ledger.hand_out(key, 2.0, 0).unwrap()[0].count, 2);
    tell_chunk(&mut ledger, key, 1, (0, 2));
    ledger.ask(other, ask(1), 0);
    ledger.hand_out(other, 2.0, 0).unwrap();
    ledger.ask(key, ask(1), 0);
    let given = ledger.hand_out(key, 2.0, 0).unwrap();
    // 20 s of work were free: half of the share of one of two cores, of what the other has left
    let count = given.iter().map(|grant| grant.count).sum::<u64>();
    assert!((40..=100).contains(&count), "{count}");
}

#[test]
fn a_program_of_single_events_gets_what_fills_its_queue_and_no_more() {
    let mut ledger = Ledger::default();
    ledger.start(0);
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[], 0);
    let mut file = work(1, vec![grant(1, 0, 10_000)]);
    file.programs = vec![raw(
        program_text().replace(r#""range_s":1.0"#, r#""range_s":90.0"#)
    )];
    ledger.load(file);
    ledger.ask(key, ask(2), 0);
    assert_eq!(
        ledger.hand_out(key, 2.0, 0).unwrap()[0].count,
        4,
        "never measured"
    );
    let text = r#"{"k":"done","p":"a.r0.i1","s":1,"grant":1,"job":1,"first":0,"count":4,"wall_us":400000}"#;
    ledger.record(key, &serde_json::from_str(text).unwrap(), 1);
    ledger.ask(key, ask(2), 0);
    let given = ledger.hand_out(key, 2.0, 0).unwrap();
    assert_eq!(given.iter().map(|grant| grant.count).sum::<u64>(), 40);
}

#[test]
fn what_a_pilot_says_of_work_that_it_was_never_given_changes_no_measure() {
    let (mut ledger, key) = chunked(10_000);
    let text =
        r#"{"k":"done","p":"b.r0.i1","s":1,"grant":7,"job":1,"first":0,"count":1,"wall_us":9000000000000}"#;
    let stranger = ledger.key_of("b.r0.i1");
    ledger.connect(stranger, &[], 0);
    ledger.record(stranger, &serde_json::from_str(text).unwrap(), 1);
    ledger.ask(key, ask(1), 0);
    assert_eq!(
        ledger.hand_out(key, 2.0, 0).unwrap()[0].count,
        2,
        "never measured"
    );
}

#[test]
fn events_of_a_job_at_once_go_to_pilots_in_turn_and_an_end_opens_one_hand_out() {
    let mut world = World::new(Some(3));
    world.files.push(vec![grant(1_000_000, 0, 50)]);
    world.load();
    (0..PILOTS).for_each(|k| world.connect(k));
    let held = |world: &World| Vec::from_iter(world.pilots.iter().map(|pilot| pilot.held.len()));
    for _ in 0..2 {
        (0..PILOTS).for_each(|k| world.ask(k, 2));
        assert_eq!(held(&world), [1, 1, 1]);
    }
    world.run(0, 0); // the first one is measured, which is news for all
    world.ask(0, 2);
    world.ledger.take_changed();
    world.run(1, 0);
    assert_eq!(world.ledger.take_changed(), 1);
    world.ask(2, 2);
    world.ask(1, 2);
    assert_eq!(held(&world), [1, 0, 2]);
}

#[test]
fn a_busy_pilot_gets_no_event_of_a_job_at_once_to_queue() {
    let mut world = World::new(Some(10));
    world.files.push(vec![grant(1_000_000, 0, 50)]);
    world.load();
    world.connect(0);
    for wanted in [1, 2, 2] {
        world.ask(0, 2);
        assert_eq!(world.pilots[0].held.len(), wanted);
    }
}

#[test]
fn a_job_behind_those_that_fill_a_pilot_is_not_at_work_until_it_is_the_oldest_or_an_event_of_it_has_ended() {
    let mut ledger = Ledger::default();
    ledger.start(0);
    let behind = |id: u64, job: u64| Grant {
        job,
        ..grant(id, 0, 2)
    };
    let mut file = work(1, vec![grant(1, 0, 2), behind(2, 2)]);
    file.jobs.push(raw(String::from(r#"{"job":2,"program":1}"#)));
    assert!(ledger.load(file).problems.is_empty());
    assert!(ledger.at_work().is_empty(), "no pilot is there");
    let key = ledger.key_of("a.r0.i1");
    ledger.connect(key, &[grant(1, 0, 2), behind(2, 2)], 1);
    ledger.ask(key, ask(2), 1);
    assert_eq!(
        ledger.at_work().spans(),
        &[(1, 2)],
        "two events of the first job fill two cores"
    );
    let record = |ledger: &mut Ledger, text: &str| {
        let head: RecordHead<'_> = serde_json::from_str(text).unwrap();
        ledger.record(key, &head, 2);
    };
    let done = r#""k":"done","p":"a.r0.i1","count":1,"wall_us":1"#;
    record(
        &mut ledger,
        &format!(r#"{{{done},"s":1,"grant":1,"job":1,"first":0}}"#),
    );
    assert_eq!(
        ledger.at_work().spans(),
        &[(1, 3)],
        "a core is free for the second job"
    );
    record(
        &mut ledger,
        &format!(r#"{{{done},"s":2,"grant":1,"job":1,"first":1}}"#),
    );
    assert_eq!(ledger.at_work().spans(), &[(2, 3)], "the first job is over");
}
