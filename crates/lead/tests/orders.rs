//! Messages of the lead besides work: ends, leaving, a silent agent, files of the staff; starts that replace others.

mod support;

use std::time::Instant;

use support::*;
use tidemill_lead::Exit;
use tidemill_wire::{End, LeadMessage};

#[test]
fn the_end_of_an_allocation_is_told_to_its_pilots_now_and_when_they_come() {
    let mut fleet = Fleet::new();
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.7.r0.i1");
    let mut other = lead.pilot("a.8.r0.i1");
    fleet.work(|work| {
        work.ends.push(End {
            allocation: String::from("a.7"),
            at_us: 77,
        });
    });
    assert_eq!(pilot.deadline(), 77);
    let mut late = lead.pilot("a.7.r1.i1");
    assert_eq!(late.deadline(), 77);
    other.ask(2);
    other.work();
    assert!(other.seen.is_empty(), "{:?}", other.seen);
}

#[test]
fn pilots_of_an_allocation_that_is_to_leave_drain_and_get_nothing_more() {
    let mut fleet = Fleet::new();
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.1.r0.i1");
    pilot.ask(2);
    fleet.work(|work| work.leave.push(String::from("a.1")));
    assert_eq!(pilot.drained(), "drain");
    fleet.one_job(10, 1.0);
    let mut late = lead.pilot("a.1.r1.i1");
    assert_eq!(late.drained(), "drain");
    let mut other = lead.pilot("a.10.r0.i1");
    other.ask(2);
    other.work();
    assert!(pilot.seen.is_empty() && other.seen.is_empty());
}

#[test]
fn a_silent_agent_drains_all_pilots_and_the_lead_leaves_when_they_have() {
    let mut fleet = Fleet::with(|settings| settings.dead_after_s = 1.0);
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    assert_eq!(pilot.drained(), "dead_agent");
    pilot.ask(2);
    let number = pilot.record(ended("dead_agent"));
    pilot.wait_acked(number);
    assert!(!pilot.seen.iter().any(|told| matches!(told, LeadMessage::Work(_))));
    drop(pilot);
    assert_eq!(lead.exit(), Exit::Abandoned);
}

#[test]
fn an_agent_that_comes_back_is_served_by_the_pilots_that_come_then() {
    let mut fleet = Fleet::with(|settings| settings.dead_after_s = 1.0);
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    assert_eq!(pilot.drained(), "dead_agent");
    // ordered to leave while the agent still counts as dead, and given work after the lead's next poll
    let began = Instant::now();
    for count in 1.. {
        fleet.sign(2, count);
        let mut next = lead.pilot(&format!("b{count}.r0.i1"));
        next.ask(2);
        match next.receive() {
            Some(LeadMessage::Work(_)) => break,
            told => assert!(matches!(told, Some(LeadMessage::Drain(_))), "{told:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "the lead serves again");
    }
}

#[test]
fn a_file_of_the_staff_stops_the_fleet() {
    let staff = tempfile::tempdir().unwrap();
    let path = staff.path().join("no-tidemill");
    let named = path.display().to_string();
    let fleet = Fleet::with(move |settings| settings.stop_files = vec![named]);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    std::fs::write(&path, "maintenance").unwrap();
    assert_eq!(pilot.drained(), "stop");
    let number = pilot.record(ended("stop"));
    pilot.wait_acked(number);
    drop(pilot);
    assert_eq!(lead.exit(), Exit::Finished);
}

#[test]
fn a_new_start_of_an_allocation_gets_the_work_of_the_old_one_at_once() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 60.0);
    fleet.one_job(4, 60.0);
    let lead = fleet.lead();
    let mut old = lead.pilot("tm-x-e1-4.17.r0.i1");
    old.ask(4);
    let given = events(&[old.work()]);
    let mut other = lead.pilot("tm-x-e1-4.18.r0.i1"); // another element of the array
    other.ask(1);
    let mut new = lead.pilot("tm-x-e1-4.17.r0.i2");
    old.closed();
    new.ask(4);
    let again = events(&[new.work(), other.work()]);
    assert_eq!(given.len(), again.len());
}

#[test]
fn a_lead_that_is_started_again_listens_where_the_last_one_did() {
    let fleet = Fleet::new();
    let lead = fleet.lead();
    let address = lead.address;
    lead.kill();
    let again = fleet.lead();
    assert_eq!((again.address, again.incarnation), (address, 2));
    let beside = fleet.lead();
    assert_ne!(
        beside.address, address,
        "the port is taken while another lead lives"
    );
}

#[test]
fn an_allocation_that_had_ended_and_was_started_again_is_served() {
    let mut fleet = Fleet::new();
    fleet.one_job(4, 60.0);
    let lead = fleet.lead();
    let mut old = lead.pilot("a.1.r0.i1");
    old.ask(4);
    old.work();
    drop(old);
    fleet.work(|work| work.ended.push(String::from("a.1")));
    let mut new = lead.pilot("a.1.r0.i2");
    new.ask(4);
    assert_eq!(events(&[new.work()]).len(), 4);
}
