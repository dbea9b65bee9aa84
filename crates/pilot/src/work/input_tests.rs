//! Behaviour of the binding with staged inputs: what they take, and who they make room for.

use tidemill_wire::InputDef;

use super::tests::{binding, job, made, program, work};
use super::*;

fn with_input(number: u64, program: u64, sha256: &str) -> JobDef {
    JobDef {
        inputs: vec![InputDef {
            sha256: Some(sha256.into()),
            ..InputDef::default()
        }],
        ..job(number, program)
    }
}

/// Of a whole node of 1000 MB, work directory included.
fn whole(number: u64) -> Program {
    Program {
        memory_mb: 990,
        ..program(number, 1, 1.0)
    }
}

fn dropped(actions: &[Action]) -> Vec<&str> {
    let dropped = actions.iter().filter_map(|action| match action {
        Action::DropInput { sha256 } => Some(sha256.as_str()),
        _ => None,
    });
    dropped.collect()
}

#[test]
fn an_input_that_would_keep_its_own_slot_out_is_read_directly() {
    let mut binding = binding(1);
    binding.set_store(0, false);
    let mut actions = Vec::new();
    binding.take_work(work(vec![whole(1)], vec![with_input(1, 1, "a")], &[(1, 0, 1)]), 0);
    assert!(!binding.hold_input(1, "a", 2, &mut actions));
    assert!(
        binding.hold_input(1, "a", 0, &mut actions),
        "the fast tier is no memory"
    );
    assert_eq!((actions.len(), made(&binding.decide(0))), (0, 1));
}

#[test]
fn an_input_whose_job_has_no_work_here_makes_room_for_a_slot_and_its_job_is_told_anew() {
    let mut binding = binding(2);
    binding.set_store(0, false);
    binding.take_work(
        work(
            vec![program(1, 1, 1.0)],
            vec![with_input(1, 1, "a")],
            &[(1, 0, 1)],
        ),
        0,
    );
    assert!(binding.hold_input(1, "a", 400, &mut Vec::new()));
    let actions = binding.decide(0);
    let run = super::tests::runs(&actions).remove(0);
    binding.take_work(work(vec![program(2, 1, 1.0)], vec![job(2, 2)], &[(2, 0, 9)]), 0);
    assert_eq!(
        dropped(&binding.decide(0)),
        [""; 0],
        "it is used, and there is room"
    );
    let big = Program {
        memory_mb: 900,
        ..program(3, 1, 1.0)
    };
    binding.drain_queue();
    binding.take_work(work(vec![big], vec![job(3, 3)], &[(3, 0, 1)]), 0);
    assert_eq!(dropped(&binding.decide(0)), [""; 0], "its job runs");
    binding.settle(run.0, run.1, 0, 1);
    for slot in binding.slot_ids().into_iter().filter(|&slot| slot != run.0) {
        binding.lose_slot(slot);
    }
    let actions = binding.decide(0);
    assert_eq!((dropped(&actions), made(&actions)), (vec!["a"], 1));
    assert!(binding.work_left());
}

#[test]
fn queued_jobs_keep_their_inputs_but_not_from_a_shape_that_has_waited_too_long() {
    let mut binding = binding(1);
    binding.set_store(0, false);
    binding.hold_jobs.insert(1); // another input is on its way
    binding.take_work(
        work(
            vec![program(1, 1, 1.0), whole(2)],
            vec![with_input(1, 1, "a"), job(2, 2)],
            &[(1, 0, 1), (2, 0, 1)],
        ),
        0,
    );
    assert!(binding.hold_input(1, "a", 400, &mut Vec::new()));
    assert_eq!(made(&binding.decide(1)), 0);
    let actions = binding.decide(STARVED_US + 1);
    assert_eq!((dropped(&actions), made(&actions)), (vec!["a"], 1));
}

#[test]
fn the_store_makes_room_for_the_next_input_in_memory_and_in_the_fast_tier() {
    let mut binding = binding(1);
    binding.set_store(0, false);
    let jobs = vec![
        with_input(1, 1, "a"),
        with_input(2, 1, "b"),
        with_input(3, 1, "c"),
    ];
    binding.take_work(work(vec![program(1, 1, 1.0)], jobs, &[(1, 0, 1), (2, 0, 1)]), 0);
    let mut actions = Vec::new();
    assert!(binding.hold_input(1, "a", 300, &mut actions));
    assert!(binding.hold_input(3, "c", 0, &mut actions));
    assert!(
        !binding.hold_input(2, "b", 300, &mut actions),
        "half of the node is full"
    );
    binding.take_queued(1);
    assert!(binding.hold_input(2, "b", 300, &mut actions));
    assert_eq!(dropped(&actions), ["a"]);
    assert!(!binding.drop_beside("b", &mut actions));
    assert!(binding.drop_beside("c", &mut actions), "of the fast tier");
}
