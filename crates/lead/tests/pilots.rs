//! Pilots that come, ask, record, go and come back.

mod support;

use std::io::Write;

use support::*;
use tidemill_lead::Exit;
use tidemill_wire::{Record, Work};

/// A pilot that has two events of the fleet's only job, which has this many, and asks for more.
fn busy_pilot(fleet: &mut Fleet, events: u64) -> (Running, Pilot) {
    fleet.one_job(events, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    pilot.work();
    pilot.ask(2);
    (lead, pilot)
}

#[test]
fn a_pilot_gets_little_until_measured_and_then_a_full_queue() {
    let mut fleet = Fleet::new();
    fleet.one_job(100_000, 60.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    let first = pilot.work();
    assert_eq!((first.programs.len(), first.jobs.len()), (1, 1));
    assert_eq!(
        events(std::slice::from_ref(&first)).len(),
        2,
        "estimated at a minute each: one per core"
    );
    pilot.done(&first.grants[0], 2_000);
    pilot.ask(2);
    let second = pilot.work();
    assert_eq!(
        (second.programs.len(), second.jobs.len()),
        (0, 0),
        "told once per connection"
    );
    assert_eq!(events(&[first, second]).len(), 2 + 4000, "2 s per core at 1 ms");
}

#[test]
fn an_unmeasured_program_is_given_two_events_per_core_however_short_its_estimate() {
    let mut fleet = Fleet::new();
    fleet.one_job(100_000, 0.0001);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(4);
    assert_eq!(events(&[pilot.work()]).len(), 8);
}

#[test]
fn records_are_acknowledged_when_they_are_in_the_journal() {
    let mut fleet = Fleet::new();
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    let work = pilot.work();
    let number = pilot.done(&work.grants[0], 5);
    pilot.wait_acked(number);
    assert_eq!(
        fleet.records(),
        [numbered(done(&work.grants[0], 5), "a.r0.i1", 1)]
    );
}

#[test]
fn the_work_of_a_lost_pilot_goes_to_another_after_its_time_of_grace() {
    let mut fleet = Fleet::new();
    fleet.one_job(4, 10.0);
    let lead = fleet.lead();
    let mut lost = lead.pilot("a.r0.i1");
    lost.ask(4);
    let gone = lost.work();
    assert_eq!(events(std::slice::from_ref(&gone)).len(), 4);
    let number = lost.record(done(&grant(1, 1, 1, 1), 10));
    lost.wait_acked(number);
    drop(lost);
    let mut other = lead.pilot("b.r0.i1");
    other.ask(4);
    assert_eq!(
        events(&[other.work()]),
        [(1, 0), (1, 2), (1, 3)],
        "the lost pilot's, without what it had done"
    );
}

#[test]
fn the_work_of_an_ended_allocation_is_given_away_at_once() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 1000.0);
    fleet.one_job(4, 10.0);
    let lead = fleet.lead();
    let mut lost = lead.pilot("a.r0.i1");
    lost.ask(4);
    lost.work();
    drop(lost);
    let mut other = lead.pilot("b.r0.i1");
    other.ask(4);
    fleet.work(|work| work.ended.push(String::from("a")));
    assert_eq!(events(&[other.work()]).len(), 4);
}

#[test]
fn a_pilot_that_tells_its_end_or_returns_work_leaves_it_to_others_at_once() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 1000.0);
    fleet.one_job(4, 10.0);
    let lead = fleet.lead();
    let (mut first, mut second) = (lead.pilot("a.r0.i1"), lead.pilot("b.r0.i1"));
    first.ask(4);
    let work = first.work();
    second.ask(4);
    first.record(returned(&grant(1, 1, 0, 2), "yield"));
    assert_eq!(events(&[second.work()]), [(1, 0), (1, 1)]);
    second.ask(4);
    first.record(done(&grant(1, 1, 2, 1), 5));
    first.record(ended("yield"));
    assert_eq!(events(&[second.work()]), [(1, 3)]);
    assert_eq!(events(&[work]).len(), 4);
}

#[test]
fn the_ask_of_a_pilot_that_returned_work_for_lack_of_time_still_stands() {
    let mut fleet = Fleet::new();
    fleet.one_job(2, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    let work = pilot.work();
    pilot.ask(2);
    for grant in &work.grants {
        pilot.record(returned(grant, "walltime"));
    }
    fleet.work(|work| {
        work.jobs.push(job(2, 1, 1));
        work.grants.push(grant(2, 2, 0, 1));
    });
    assert_eq!(
        events(&[pilot.work()]),
        [(2, 0)],
        "but not the grant that it returned"
    );
}

#[test]
fn a_pilot_is_not_given_again_what_did_not_fit_it() {
    let mut fleet = Fleet::new();
    fleet.work(|work| {
        work.programs.push(program(1, 1.0));
        work.jobs.extend([job(1, 1, 1), job(2, 1, 1)]);
        work.grants.extend([grant(1, 1, 0, 1), grant(2, 2, 0, 1)]);
    });
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(1);
    let work = pilot.work();
    assert_eq!(work.grants[0].grant, 1);
    pilot.record(returned(&work.grants[0], "no_fit"));
    let rest = work.grants[1..].to_vec();
    pilot.ask_with(|ask| ask.queued_s = 0.0);
    let mut other = lead.pilot("b.r0.i1");
    other.ask(1);
    assert_eq!(other.work().grants[0].grant, 1);
    let _ = rest;
}

#[test]
fn a_pilot_gets_only_what_fits_its_memory_cores_devices_and_time() {
    let mut fleet = Fleet::new();
    fleet.work(|work| {
        let mut wide = program(1, 1.0);
        wide.cores = 8;
        let mut fat = program(2, 1.0);
        fat.memory_mb = 100_000;
        let mut gpu = program(3, 1.0);
        gpu.devices.insert(String::from("gpu"), 1);
        let long = program(4, 100.0);
        let fitting = program(5, 1.0);
        for (k, each) in [wide, fat, gpu, long, fitting].into_iter().enumerate() {
            let k = k as u64 + 1;
            work.programs.push(each);
            work.jobs.push(job(k, k, 2));
            work.grants.push(grant(k, k, 0, 2));
        }
    });
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask_with(|ask| (ask.cores, ask.remaining_s) = (4, Some(60.0)));
    let work = pilot.work();
    assert_eq!(
        work.grants.iter().map(|grant| grant.grant).collect::<Vec<_>>(),
        [5]
    );
    assert_eq!(work.programs.len(), 1);
}

#[test]
fn no_more_is_given_than_fits_the_time_left() {
    let mut fleet = Fleet::with(|settings| settings.queue_s = 1000.0);
    fleet.one_job(10_000, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    let work = pilot.work();
    pilot.done(&work.grants[0], work.grants[0].count * 1_000_000);
    pilot.ask_with(|ask| ask.remaining_s = Some(30.5));
    assert_eq!(events(&[pilot.work()]).len(), 61, "30.5 s on 2 cores at 1 s");
}

#[test]
fn a_standing_ask_is_served_when_work_comes_and_grants_go_in_the_order_of_the_files() {
    let mut fleet = Fleet::new();
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    fleet.work(|work| {
        work.programs.push(program(1, 1.0));
        work.jobs.extend([job(7, 1, 1), job(8, 1, 1)]);
        work.grants.extend([grant(12, 7, 0, 1), grant(11, 8, 0, 1)]);
    });
    fleet.work(|work| work.grants.push(grant(10, 7, 0, 1)));
    let mut order = Vec::new();
    while order.len() < 3 {
        let work = pilot.work();
        for grant in &work.grants {
            order.push(grant.grant);
            pilot.done(grant, 1_000_000);
        }
        pilot.ask(2);
    }
    assert_eq!(order, [12, 11, 10]);
}

#[test]
fn cancelled_jobs_are_taken_from_pilots_and_can_be_granted_again() {
    let mut fleet = Fleet::new();
    let (lead, mut pilot) = busy_pilot(&mut fleet, 100);
    fleet.work(|work| work.cancel_jobs.push(1));
    assert_eq!(pilot.cancelled(), [1]);
    drop(pilot);
    let mut again = Pilot::join(lead.address, "a.r0.i1", &[grant(1, 1, 0, 2)]);
    assert_eq!(again.cancelled(), [1], "it still held some");
    again.ask(2);
    fleet.work(|work| work.grants.push(grant(2, 1, 0, 1)));
    let work = again.work();
    assert_eq!((work.grants[0].grant, work.jobs.len()), (2, 1));
}

#[test]
fn withdrawn_events_are_taken_from_pilots_and_the_others_of_the_grant_go_on() {
    let mut fleet = Fleet::new();
    let (lead, mut pilot) = busy_pilot(&mut fleet, 4);
    let part = tidemill_wire::Withdrawn {
        grant: 1,
        job: 1,
        first: 1,
        count: 2,
    };
    fleet.work(|work| work.withdrawn = Some(vec![part.clone()]));
    assert_eq!(pilot.withdrawn(), std::slice::from_ref(&part));
    drop(pilot);
    let mut again = Pilot::join(lead.address, "a.r0.i1", &[grant(1, 1, 0, 3)]);
    assert_eq!(again.withdrawn(), [part], "it still held them");
    again.done(&grant(1, 1, 0, 1), 1_000_000);
    again.ask(2);
    let work = again.work();
    assert_eq!(events(std::slice::from_ref(&work)), [(1, 3)]);
}

#[test]
fn what_a_work_file_cancels_is_what_earlier_ones_granted() {
    let mut fleet = Fleet::new();
    let (_lead, mut pilot) = busy_pilot(&mut fleet, 2);
    fleet.work(|work| {
        work.cancel_jobs.push(1);
        work.grants.push(grant(2, 1, 0, 1));
    });
    assert_eq!(pilot.cancelled(), [1]);
    let work = pilot.work();
    assert_eq!(
        (events(std::slice::from_ref(&work)), work.jobs.len()),
        (vec![(2, 0)], 1)
    );
}

#[test]
fn a_job_that_is_canceled_and_defined_otherwise_in_one_file_is_canceled_at_pilots_first() {
    let mut fleet = Fleet::new();
    fleet.one_job(1, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(2);
    let work = pilot.work();
    pilot.done(&work.grants[0], 1_000_000);
    pilot.ask(2);
    fleet.work(|work| {
        let mut repaired = job(1, 1, 1);
        repaired.argv.push(String::from("repaired"));
        work.cancel_jobs.push(1);
        work.jobs.push(repaired);
        work.grants.push(grant(2, 1, 0, 1));
    });
    assert_eq!(pilot.cancelled(), [1], "its slots hold what it was");
    assert_eq!(pilot.work().jobs.len(), 1);
}

#[test]
fn a_job_that_is_canceled_comes_again_as_another_program() {
    let mut fleet = Fleet::new();
    let (_lead, mut pilot) = busy_pilot(&mut fleet, 2);
    fleet.work(|work| {
        work.cancel_jobs.push(1);
        work.programs.push(program(2, 1.0));
        work.jobs.push(job(1, 2, 2));
        work.grants.push(grant(2, 1, 0, 2));
    });
    assert_eq!(pilot.cancelled(), [1]);
    let work = pilot.work();
    assert_eq!((work.programs.len(), work.jobs.len()), (1, 1));
    assert_eq!((work.programs[0].program, work.jobs[0].program), (2, 2));
}

#[test]
fn a_job_that_is_told_again_with_more_inputs_is_told_again_to_pilots() {
    let mut fleet = Fleet::new();
    fleet.one_job(1, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    for (round, told) in [(1, 1), (2, 0), (3, 1)] {
        pilot.ask(1);
        let work = pilot.work();
        assert_eq!((work.grants[0].grant, work.jobs.len()), (round, told));
        pilot.done(&work.grants[0], 1_000_000);
        fleet.work(|work| {
            let mut again = job(1, 1, 1);
            if round == 2 {
                again.argv.push(String::from("more"));
            }
            work.jobs.push(again);
            work.grants.push(grant(round + 1, 1, 0, 1));
        });
    }
}

#[test]
fn a_duplicate_is_dropped_and_a_gap_ends_the_connection() {
    let mut fleet = Fleet::new();
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    let one = grant(1, 1, 0, 1);
    pilot.send_record(1, done(&one, 5));
    pilot.wait_acked(1);
    pilot.acked = 0;
    pilot.send_record(1, done(&one, 5));
    pilot.wait_acked(1);
    pilot.send_record(3, done(&one, 5));
    pilot.closed();
    assert_eq!(fleet.records().len(), 1);
    assert_eq!(lead.pilot("a.r0.i1").acked, 1);
}

#[test]
fn records_that_are_damaged_or_of_somebody_else_end_the_connection() {
    let mut fleet = Fleet::new();
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.send_raw(b"00000000 {\"k\":\"done\"}\n");
    pilot.closed();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.id = String::from("b.r0.i1");
    pilot.send_record(1, done(&grant(1, 1, 0, 1), 5));
    pilot.closed();
    assert!(fleet.records().is_empty());
}

#[test]
fn whoever_does_not_know_the_secret_is_refused_whatever_it_sends() {
    let mut fleet = Fleet::new();
    fleet.one_job(10, 1.0);
    let lead = fleet.lead();
    assert!(Pilot::try_join(lead.address, ("a.r0.i1", &"0".repeat(64)), &[]).is_none());
    for text in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"{\"m\":\"ask\"}\n",
        b"{}\n",
        b"\n",
        b"\xff\xfe\n",
    ] {
        let mut stranger = std::net::TcpStream::connect(lead.address).unwrap();
        stranger.write_all(text).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stranger, &mut rest);
        assert_eq!(
            rest.iter().filter(|&&byte| byte == b'\n').count(),
            1,
            "only the challenge"
        );
    }
    assert!(Pilot::try_join(lead.address, ("../../x", SECRET), &[]).is_none());
    let _ = lead.pilot("a.r0.i1");
}

#[test]
fn a_pilot_that_comes_back_keeps_what_it_holds_and_the_rest_goes_on() {
    let mut fleet = Fleet::with(|settings| settings.pilot_grace_s = 1000.0);
    fleet.one_job(4, 10.0);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(4);
    let work = pilot.work();
    assert_eq!(events(&[work]).len(), 4);
    drop(pilot);
    // of 0..3 it holds 2 and 3, has done 0 without reporting it, and 1 was lost on the way
    let mut pilot = Pilot::join(lead.address, "a.r0.i1", &[grant(1, 1, 2, 2)]);
    pilot.record(done(&grant(1, 1, 0, 1), 10_000_000));
    pilot.ask(4);
    assert_eq!(events(&[pilot.work()]), [(1, 1)]);
}

#[test]
fn the_newer_of_two_connections_of_a_pilot_counts() {
    let mut fleet = Fleet::new();
    fleet.one_job(4, 10.0);
    let lead = fleet.lead();
    let mut old = lead.pilot("a.r0.i1");
    old.ask(4);
    let held = old.work().grants;
    let mut new = Pilot::join(lead.address, "a.r0.i1", &held);
    old.closed();
    let number = new.done(&held[0], 5);
    new.wait_acked(number);
}

#[test]
fn the_last_events_are_spread_over_the_pilots_that_ask() {
    let mut fleet = Fleet::with(|settings| settings.queue_s = 100.0);
    let lead = fleet.lead();
    let mut pilots: Vec<Pilot> = (0..4).map(|k| lead.pilot(&format!("p{k}.r0.i1"))).collect();
    fleet.one_job(2, 0.1);
    pilots[0].ask(1);
    let measured = pilots[0].work(); // all of it, so that the others wait
    pilots[0].done(&measured.grants[0], measured.grants[0].count * 100_000);
    for pilot in &mut pilots {
        pilot.ask(1);
    }
    fleet.work(|work| work.grants.push(grant(2, 1, 0, 80)));
    let work: Vec<Work> = pilots.iter_mut().map(Pilot::work).collect();
    for each in &work {
        let mine = each
            .grants
            .iter()
            .filter(|grant| grant.grant == 2)
            .map(|grant| grant.count)
            .sum::<u64>();
        assert!((1..=20).contains(&mine), "{mine} of 80 for one of four");
    }
}

#[test]
fn a_closed_fleet_ends_when_everything_is_done_and_the_pilots_have_left() {
    let mut fleet = Fleet::new();
    fleet.one_job(1, 1.0);
    fleet.work(|work| work.close = true);
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(1);
    let work = pilot.work();
    pilot.done(&work.grants[0], 5);
    assert_eq!(pilot.drained(), "drain");
    let number = pilot.record(ended("drain"));
    pilot.wait_acked(number);
    drop(pilot);
    assert_eq!(lead.exit(), Exit::Finished);
    assert!(matches!(fleet.records().last(), Some(Record::Ended(_))));
}

#[test]
fn a_stop_file_drains_and_a_draining_lead_hands_out_nothing() {
    let mut fleet = Fleet::new();
    let lead = fleet.lead();
    let mut pilot = lead.pilot("a.r0.i1");
    pilot.ask(1);
    std::fs::write(fleet.path().join("STOP"), "").unwrap();
    assert_eq!(pilot.drained(), "stop");
    fleet.one_job(5, 1.0);
    let mut late = lead.pilot("b.r0.i1");
    late.ask(1);
    assert_eq!(late.drained(), "stop");
    for mut each in [pilot, late] {
        let number = each.record(ended("stop"));
        each.wait_acked(number);
        assert!(each
            .seen
            .iter()
            .all(|message| !matches!(message, tidemill_wire::LeadMessage::Work(_))));
    }
    assert_eq!(lead.exit(), Exit::Finished);
}
