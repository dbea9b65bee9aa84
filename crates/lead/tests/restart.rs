//! Leads that die between any two steps, and leads that are replaced.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod support;

use support::*;
use tidemill_lead::Exit;
use tidemill_wire::{frame, JournalWriter};

#[test]
fn a_lead_that_is_restarted_between_every_two_steps_loses_and_repeats_nothing() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 5.0);
    fleet.one_job(6, 10.0);
    let mut held = Vec::new();
    let mut settled = Vec::new();
    for round in 0..6u64 {
        let lead = fleet.lead();
        assert_eq!(lead.incarnation, 2 * round + 1);
        let mut pilot = Pilot::join(lead.address, "a.r0.i1", &held);
        assert_eq!(
            pilot.acked, round,
            "what was acknowledged is known to the next lead"
        );
        pilot.ask(1);
        if held.is_empty() {
            held = pilot.work().grants;
        }
        lead.kill();
        let lead = fleet.lead();
        let mut pilot = Pilot::join(lead.address, "a.r0.i1", &held);
        let mut one = held[0].clone();
        one.count = 1;
        let number = pilot.done(&one, 10_000_000);
        pilot.wait_acked(number);
        settled.push(one.first);
        lead.kill();
        held[0].first += 1;
        held[0].count -= 1;
        held.retain(|grant| grant.count > 0);
    }
    assert_eq!(settled, [0, 1, 2, 3, 4, 5]);
    fleet.work(|work| work.close = true);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.drained();
    pilot.record(ended("drain"));
    pilot.wait_acked(7);
    drop(pilot);
    assert_eq!(lead.exit(), Exit::Finished);
}

#[test]
fn after_a_restart_work_waits_until_the_live_pilots_have_told_what_they_hold() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 5.0);
    fleet.one_job(2, 10.0);
    let lead = fleet.lead();
    let mut holder = lead.pilot("a.r0.i1");
    let number = holder.record(returned(&grant(1, 1, 0, 0), "yield"));
    holder.wait_acked(number);
    holder.ask(1);
    let held = holder.work().grants;
    lead.kill();
    let lead = fleet.lead();
    let mut other = lead.pilot("b.r0.i1");
    other.ask(1);
    let mut holder = Pilot::join(lead.address, "a.r0.i1", &held);
    holder.ask(1);
    let second = other.work();
    assert!(
        second.grants.iter().all(|grant| grant.first != held[0].first),
        "{held:?} and {second:?}"
    );
}

#[test]
fn what_a_pilot_wrote_itself_while_no_lead_answered_counts() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 0.1);
    fleet.one_job(3, 10.0);
    let mut own = JournalWriter::create(&fleet.journal("a.r0.i1.log")).unwrap();
    for (number, record) in [(1, done(&grant(1, 1, 0, 1), 5)), (2, done(&grant(1, 1, 1, 1), 5))] {
        own.append(&numbered(record, "a.r0.i1", number)).unwrap();
    }
    own.sync().unwrap();
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    assert_eq!(pilot.acked, 2);
    own.append(&numbered(done(&grant(1, 1, 2, 1), 5), "a.r0.i1", 3))
        .unwrap();
    own.sync().unwrap();
    drop(pilot);
    pilot = lead.pilot("a.r0.i1");
    assert_eq!(pilot.acked, 3, "also what was written while this lead ran");
    fleet.work(|work| work.close = true);
    pilot.drained();
}

/// Where reading a journal would be an error.
fn spoil(fleet: &Fleet, name: &str) {
    let path = fleet.journal(name);
    let _ = std::fs::remove_file(&path);
    std::fs::create_dir(path).unwrap();
}

#[test]
fn a_thousand_pilots_that_come_at_once_have_no_journal_opened() {
    let mut fleet = Fleet::new();
    fleet.one_job(3, 10.0);
    for number in 1..=20 {
        JournalWriter::create(&fleet.journal(&format!("lead-{number}.log"))).unwrap();
    }
    let lead = fleet.lead();
    spoil(&fleet, "lead-7.log");
    let id = |k: u64| format!("a{k}.r0.i1");
    let pilots: Vec<Pilot> = (0..1000)
        .map(|k| {
            spoil(&fleet, &format!("{}.log", id(k)));
            Pilot::join_saying(lead.address, &id(k), (0, 0))
        })
        .collect();
    assert!(pilots.iter().all(|pilot| pilot.acked == 0));
    // one that says more than is known is not welcomed before it was read
    let secret = (id(0), SECRET);
    let held = &[];
    assert!(Pilot::try_join(lead.address, (&secret.0, secret.1), held).is_none());
}

#[test]
fn what_a_pilot_says_is_safe_elsewhere_is_read_before_it_is_welcomed() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 5.0);
    fleet.one_job(4, 10.0);
    let mut former = JournalWriter::create(&fleet.journal("lead-1.log")).unwrap();
    let mut own = JournalWriter::create(&fleet.journal("a.r0.i1.log")).unwrap();
    let lead = fleet.lead();
    let write = |journal: &mut JournalWriter, number: u64| {
        let record = numbered(done(&grant(1, 1, number - 1, 1), 5), "a.r0.i1", number);
        journal.append(&record).unwrap();
        journal.sync().unwrap();
    };
    write(&mut former, 1);
    assert_eq!(Pilot::join_saying(lead.address, "a.r0.i1", (1, 0)).acked, 1);
    write(&mut own, 2);
    assert_eq!(Pilot::join_saying(lead.address, "a.r0.i1", (1, 2)).acked, 2);
    write(&mut former, 3);
    write(&mut own, 4);
    assert_eq!(Pilot::join_saying(lead.address, "a.r0.i1", (3, 4)).acked, 4);
}

#[test]
fn a_torn_journal_is_read_up_to_its_tear_and_the_rest_is_asked_for_again() {
    let mut fleet = Fleet::new();
    fleet.one_job(3, 10.0);
    let mut bytes = Vec::new();
    for number in 1..=3 {
        let record = numbered(done(&grant(1, 1, number - 1, 1), 5), "a.r0.i1", number);
        frame::encode(&record, &mut bytes).unwrap();
    }
    bytes.truncate(bytes.len() - 7);
    std::fs::write(fleet.journal("lead-1.log"), &bytes).unwrap();
    let lead = fleet.lead();
    assert_eq!(lead.incarnation, 2);
    let mut pilot = lead.pilot("a.r0.i1");
    assert_eq!(pilot.acked, 2);
    pilot.ask(3);
    assert_eq!(events(&[pilot.work()]), [(1, 2)]);
}

#[test]
fn what_a_file_system_shows_late_of_a_journal_is_read_when_it_comes_and_does_not_run_again() {
    let mut fleet = Fleet::new();
    fleet.one_job(4, 10.0);
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        let record = numbered(done(&grant(1, 1, number - 1, 1), 5), "a.r0.i1", number);
        frame::encode(&record, &mut bytes).unwrap();
        ends.push(bytes.len());
    }
    let mut holed = bytes.clone();
    holed[ends[0]..ends[1] - 1].fill(0);
    std::fs::write(fleet.journal("a.r0.i1.log"), &holed).unwrap();
    let lead = fleet.lead();
    let mut pilot = Pilot::join_saying(lead.address, "a.r0.i1", (0, 3));
    assert_eq!(pilot.acked, 3, "what follows is known at once");
    std::fs::write(fleet.journal("a.r0.i1.log"), &bytes).unwrap();
    let since = std::time::Instant::now();
    while since.elapsed().as_millis() < 600 {
        drop(Pilot::join_saying(lead.address, "b.r0.i1", (0, 0))); // some of the lead's ticks
    }
    pilot.ask(4);
    assert_eq!(events(&[pilot.work()]), [(1, 3)]);
}

#[test]
fn an_older_lead_that_wakes_up_gives_way_and_what_it_took_meanwhile_is_known() {
    let mut fleet = Fleet::new();
    fleet.one_job(3, 10.0);
    let old = fleet.lead();
    let new = fleet.lead();
    let mut pilot = Pilot::join(old.address, "a.r0.i1", &[]);
    pilot.record(done(&grant(1, 1, 0, 1), 5));
    pilot.wait_acked(1);
    assert_eq!(old.exit(), Exit::Superseded);
    let mut pilot = new.pilot("a.r0.i1");
    assert_eq!(pilot.acked, 1);
    pilot.ask(3);
    assert_eq!(events(&[pilot.work()]), [(1, 1), (1, 2)]);
}
