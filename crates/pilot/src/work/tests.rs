//! Behaviour of the binding, driven as the pilot drives it, with slots that are only numbers.

use proptest::prelude::*;

use super::*;
use crate::node::place::Layout;

pub(super) fn program(number: u64, cores: u64, event_s: f64) -> Program {
    Program {
        program: number,
        app: "app".into(),
        version: "1".into(),
        executable: "/bin/true".into(),
        mode: "command".into(),
        cores,
        memory_mb: 10,
        scratch_mb: 10,
        event_s,
        chunk_max: 1,
        range_s: 60.0,
        ready_timeout_s: 60.0,
        log_bytes_max: 1000,
        ..Program::default()
    }
}

pub(super) fn job(number: u64, program: u64) -> JobDef {
    JobDef {
        job: number,
        program,
        params: "{}".into(),
        events: 1_000_000,
        ..JobDef::default()
    }
}

pub(super) fn work(programs: Vec<Program>, jobs: Vec<JobDef>, grants: &[(u64, u64, u64)]) -> Work {
    let grant = |(k, &(job, first, count)): (usize, &(u64, u64, u64))| WorkPiece {
        grant: k as u64 + 1,
        job,
        first,
        count,
        chunk_max: None,
    };
    Work {
        programs,
        jobs,
        grants: grants.iter().enumerate().map(grant).collect(),
    }
}

pub(super) fn binding(cores: u64) -> Binding {
    Binding::new(Room::new(Layout::default(), cores, 1000, Vec::new()))
}

/// Runs among the actions: slot, ticket, piece.
pub(super) fn runs(actions: &[Action]) -> Vec<(u32, u64, WorkPiece)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Run { slot, ticket, piece } => Some((*slot, *ticket, piece.clone())),
            _ => None,
        })
        .collect()
}

pub(super) fn made(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|action| matches!(action, Action::Create { .. }))
        .count()
}

#[test]
fn a_hand_out_is_split_evenly_between_slots() {
    let mut binding = binding(2);
    binding.take_work(work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, 0, 4)]), 0);
    let actions = binding.decide(0);
    assert_eq!(made(&actions), 2);
    let mut per_slot = BTreeMap::new();
    for (slot, _, piece) in runs(&actions) {
        *per_slot.entry(slot).or_insert(0) += piece.count;
    }
    // one runs, one waits behind it where there is enough for all; the last ones wait here for the first that is free
    assert!(
        per_slot.values().all(|&count| count >= 1) && per_slot[&0] == per_slot[&1],
        "{per_slot:?}"
    );
}

#[test]
fn definitions_come_before_the_first_run_and_once() {
    let mut binding = binding(1);
    binding.take_work(
        work(
            vec![program(1, 1, 1.0)],
            vec![job(1, 1), job(2, 1)],
            &[(1, 0, 2), (2, 0, 2)],
        ),
        0,
    );
    let mut told = Vec::new();
    loop {
        let actions = binding.decide(0);
        if actions.is_empty() {
            break;
        }
        for (slot, ticket, piece) in runs(&actions) {
            assert!(binding.settle(slot, ticket, piece.first, piece.count).is_some());
        }
        told.extend(actions.into_iter().filter_map(|action| match action {
            Action::TellProgram { program, .. } => Some(format!("program {program}")),
            Action::TellJob { job, .. } => Some(format!("job {job}")),
            Action::Run { piece, .. } => Some(format!("run {}", piece.job)),
            _ => None,
        }));
    }
    told.dedup();
    assert_eq!(told, ["program 1", "job 1", "run 1", "job 2", "run 2"]);
}

#[test]
fn short_events_are_given_in_runs_of_a_quarter_second() {
    let mut binding = binding(1);
    binding.take_work(
        work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, 0, 100_000)]),
        0,
    );
    for (slot, ticket, piece) in runs(&binding.decide(0)) {
        binding.settle(slot, ticket, piece.first, piece.count);
        binding.measure(1, piece.count, 0.0005 * piece.count as f64);
    }
    let given = runs(&binding.decide(0));
    assert_eq!(given.len(), 2);
    assert!(
        given
            .iter()
            .all(|(_, _, piece)| (500..=501).contains(&piece.count)),
        "{given:?}"
    );
    assert!((binding.queued_s() - 50.0).abs() < 1.0, "{}", binding.queued_s());
}

#[test]
fn what_can_never_run_here_comes_back_at_once() {
    let mut binding = binding(2);
    let given = work(vec![program(1, 3, 1.0)], vec![job(1, 1)], &[(1, 0, 4), (9, 0, 1)]);
    let refused = binding.take_work(given, 0);
    assert_eq!((refused.no_fit[0].0.job, refused.unknown[0].job), (1, 9));
    assert!(binding.decide(0).is_empty());
}

#[test]
fn an_idle_slot_of_another_shape_makes_room() {
    let mut binding = binding(2);
    binding.take_work(work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, 0, 2)]), 0);
    let first = runs(&binding.decide(0));
    binding.take_work(work(vec![program(2, 2, 1.0)], vec![job(2, 2)], &[(2, 0, 1)]), 0);
    assert!(binding.decide(0).is_empty(), "both cores are busy");
    for (slot, ticket, piece) in first {
        binding.settle(slot, ticket, piece.first, piece.count);
    }
    let actions = binding.decide(0);
    assert_eq!(
        actions
            .iter()
            .filter(|action| matches!(action, Action::Destroy { .. }))
            .count(),
        2
    );
    assert_eq!(runs(&actions)[0].2.job, 2);
}

#[test]
fn a_wide_program_is_not_starved_by_narrow_ones() {
    let mut binding = binding(2);
    binding.take_work(
        work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, 0, 1000)]),
        0,
    );
    let mut running = runs(&binding.decide(0));
    binding.take_work(work(vec![program(2, 2, 1.0)], vec![job(2, 2)], &[(2, 0, 1)]), 0);
    let later = STARVED_US + 1;
    for _ in 0..100 {
        for (slot, ticket, piece) in running {
            binding.settle(slot, ticket, piece.first, piece.count);
        }
        running = runs(&binding.decide(later));
        if running.iter().any(|(_, _, piece)| piece.job == 2) {
            return;
        }
    }
    panic!("the wide program never ran");
}

#[test]
fn a_lost_slot_gives_back_what_it_had_not_answered_for_and_its_room() {
    let mut binding = binding(1);
    binding.take_work(
        work(vec![program(1, 1, 0.01)], vec![job(1, 1)], &[(1, 0, 1000)]),
        0,
    );
    let (slot, ticket, piece) = runs(&binding.decide(0)).remove(0);
    assert!(piece.count > 3);
    assert!(binding.settle(slot, ticket, 1, 2).is_some());
    assert!(binding.settle(slot, ticket, 2, 1).is_none(), "answered for twice");
    let lost = binding.lose_slot(slot);
    assert_eq!((lost[0].first, lost[0].count, lost[1].first), (0, 1, 3));
    assert_eq!(made(&binding.decide(0)), 1);
}

#[test]
fn work_with_outputs_can_be_held_back_alone() {
    let mut binding = binding(2);
    let with = Program {
        stdout_output: true,
        ..program(1, 1, 1.0)
    };
    binding.take_work(
        work(
            vec![with, program(2, 1, 1.0)],
            vec![job(1, 1), job(2, 2)],
            &[(1, 0, 1), (2, 0, 1)],
        ),
        0,
    );
    binding.hold_outputs = true;
    assert_eq!(
        runs(&binding.decide(0))
            .iter()
            .map(|(_, _, piece)| piece.job)
            .collect::<Vec<_>>(),
        [2]
    );
    binding.hold_outputs = false;
    assert_eq!(
        runs(&binding.decide(0))
            .iter()
            .map(|(_, _, piece)| piece.job)
            .collect::<Vec<_>>(),
        [1]
    );
}

#[test]
fn an_idle_slot_whose_outputs_are_not_kept_yet_makes_no_room_for_others() {
    let mut binding = binding(2);
    binding.take_work(work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, 0, 2)]), 0);
    let first = runs(&binding.decide(0));
    binding.take_work(work(vec![program(2, 2, 1.0)], vec![job(2, 2)], &[(2, 0, 1)]), 0);
    for (slot, ticket, piece) in first {
        binding.settle(slot, ticket, piece.first, piece.count);
        binding.keeping.insert(slot);
    }
    assert!(binding.decide(0).is_empty());
    binding.keeping.clear();
    assert_eq!(runs(&binding.decide(0)).len(), 1);
}

#[test]
fn canceled_work_leaves_the_queue_and_the_slots_that_know_it_are_named() {
    let mut binding = binding(1);
    binding.take_work(
        work(
            vec![program(1, 1, 1.0)],
            vec![job(1, 1), job(2, 1)],
            &[(1, 0, 100), (2, 0, 1)],
        ),
        0,
    );
    binding.decide(0);
    assert_eq!(binding.cancel(&[1]), [(0, 1)]);
    assert!(binding
        .held()
        .iter()
        .all(|grant| grant.job == 2 || grant.count < 100));
    assert_eq!(
        binding
            .drain_queue()
            .iter()
            .map(|piece| piece.job)
            .collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn withdrawn_events_leave_the_queue_and_those_at_slots_are_named() {
    let mut binding = binding(1);
    binding.take_work(
        work(
            vec![program(1, 1, 1.0)],
            vec![job(1, 1), job(2, 1)],
            &[(1, 0, 100), (2, 0, 3)],
        ),
        0,
    );
    let given = runs(&binding.decide(0));
    let at_hand: u64 = given.iter().map(|(_, _, piece)| piece.count).sum();
    let (slot, ticket, piece) = given.last().unwrap();
    let part = |grant: u64, first: u64, count: u64| tidemill_wire::Withdrawn {
        grant,
        job: 1,
        first,
        count,
    };
    let end = piece.first + piece.count;
    let at_slots = binding.withdraw(&[part(piece.grant, end - 1, 51)]);
    assert_eq!(at_slots, [(*slot, *ticket, end - 1, 1)]);
    let left: u64 = binding.drain_queue().iter().map(|piece| piece.count).sum();
    assert_eq!(left, 100 - at_hand - 50 + 3, "those of the other job, too");
}

/// Whether the definition goes to the slot before the next event runs, which is done at once.
fn tells(binding: &mut Binding) -> bool {
    let actions = binding.decide(0);
    let given = runs(&actions);
    assert_eq!(given.len(), 1);
    for (slot, ticket, piece) in given {
        binding.settle(slot, ticket, piece.first, piece.count);
    }
    actions
        .iter()
        .any(|action| matches!(action, Action::TellJob { .. }))
}

#[test]
fn slots_learn_a_canceled_job_again_when_it_comes_back() {
    let mut binding = binding(1);
    let mut tells_with = |event: u64, cancels: bool| {
        if cancels {
            binding.cancel(&[1]);
        }
        binding.take_work(
            work(vec![program(1, 1, 1.0)], vec![job(1, 1)], &[(1, event, 1)]),
            0,
        );
        tells(&mut binding)
    };
    assert!(tells_with(0, false));
    assert!(!tells_with(1, false), "as on another connection");
    assert!(tells_with(2, true), "its files may be others");
    assert!(!tells_with(3, false), "once");
}

proptest! {
    /// Whatever happens, every event is queued, at a slot or answered for, exactly once.
    #[test]
    fn no_event_is_lost_or_given_twice(
        cores in 1u64..5, grants in proptest::collection::vec((1u64..4, 1u64..60), 1..12), steps in proptest::collection::vec((0u8..10, 0usize..50), 1..120)
    ) {
        let mut binding = binding(cores);
        let programs = vec![program(1, 1, 0.02), program(2, cores, 1.0), program(3, 1, 10.0)];
        let spans: Vec<(u64, u64, u64)> = grants.iter().enumerate().map(|(k, &(j, n))| (j, 1000 * k as u64, n)).collect();
        let total: u64 = spans.iter().map(|span| span.2).sum();
        binding.take_work(work(programs, vec![job(1, 1), job(2, 2), job(3, 3)], &spans), 0);
        let mut out: Vec<(u32, u64, WorkPiece)> = Vec::new();
        let mut answered = 0;
        for (now_us, (kind, pick)) in steps.into_iter().enumerate() {
            out.extend(runs(&binding.decide(now_us as u64 * 1_000_000)));
            if kind == 0 {
                let ids = binding.slot_ids();
                if let Some(&slot) = ids.get(pick % ids.len().max(1)) {
                    answered += binding.lose_slot(slot).iter().map(|piece| piece.count).sum::<u64>();
                    out.retain(|run| run.0 != slot);
                }
            } else if !out.is_empty() {
                let at = pick % out.len();
                let (slot, ticket, piece) = out[at].clone();
                let part = piece.count.div_ceil(2);
                prop_assert!(binding.settle(slot, ticket, piece.first, part).is_some());
                answered += part;
                out[at].2.first += part;
                out[at].2.count -= part;
                out.retain(|run| run.2.count > 0);
            }
            let held: u64 = binding.held().iter().map(|grant| grant.count).sum();
            prop_assert_eq!(held + answered, total);
        }
        let mut held = binding.held();
        held.sort_by_key(|grant| grant.first);
        prop_assert!(held.windows(2).all(|pair| pair[0].first + pair[0].count <= pair[1].first));
    }
}

#[test]
fn large_payloads_stay_whole_while_there_is_more_to_come_and_are_shared_when_there_is_not() {
    let chunked = Program {
        chunk_max: 500,
        range_s: 5.0,
        ..program(1, 1, 0.001)
    };
    let counts = |short: bool| -> Vec<u64> {
        let mut binding = binding(2);
        binding.short = short;
        binding.take_work(work(vec![chunked.clone()], vec![job(1, 1)], &[(1, 0, 2_000)]), 0);
        runs(&binding.decide(0))
            .iter()
            .map(|(_, _, piece)| piece.count)
            .collect()
    };
    assert_eq!(counts(false), [500, 500, 500, 250]);
    assert_eq!(counts(true)[..2], [500, 375]);
    let mut binding = binding(2);
    assert!(binding.payload_s() <= 0.0);
    binding.take_work(work(vec![chunked.clone()], vec![job(1, 1)], &[(1, 0, 2_000)]), 0);
    assert!((binding.payload_s() - 0.5).abs() < 1e-9, "500 events of 1 ms");
}

#[test]
fn a_chunk_weighs_by_its_events_against_short_ones() {
    let mut known = KnownProgram::new(program(1, 1, 1.0), Shape::of(&program(1, 1, 1.0), &[]), None);
    known.measure(1, 0.1005);
    known.measure(500, 0.35);
    known.measure(1, 0.1005);
    assert!(known.event_s < 0.005, "{}", known.event_s);
}
