//! What a keeper decides while its writer does not answer; nothing is written here.

use std::cell::Cell;

use tidemill_slot::SlotOutput;
use tidemill_sys::time::monotonic_us;

use super::*;

const PATIENCE_US: u64 = 300_000_000;

fn keeper() -> Keeper {
    keeper_of(1_000_000)
}

fn keeper_of(flush_us: u64) -> Keeper {
    let place = BundleTarget {
        origin: Origin {
            directory: "/fleet/bundle".into(),
            pilot: String::from("a"),
            bytes_max: 1 << 30,
        },
        area: String::from("nfs4 at /fleet"),
        output_bytes_max: 1 << 30,
    };
    Keeper::alone(place, (flush_us, PATIENCE_US))
}

fn piece(job: u64) -> WorkPiece {
    WorkPiece {
        grant: job,
        job,
        first: 0,
        count: 1,
        chunk_max: None,
    }
}

fn waiting(job: u64) -> Waiting {
    Waiting {
        number: job,
        slot: 0,
        done: SlotDone::default(),
        piece: piece(job),
        dropped: false,
    }
}

#[test]
fn a_node_whose_log_hangs_is_given_up_as_one_whose_outputs_do() {
    let mut keeper = keeper();
    keeper.trouble.failed(String::from("EIO"), 5);
    assert_eq!(keeper.hopeless(5 + PATIENCE_US), None);
    keeper.logging = true; // and there is no answer
    assert!(keeper.holds() && keeper.held().is_empty());
    assert_eq!(keeper.due_us(5), Some(5 + PATIENCE_US));
    assert_eq!(keeper.hopeless(4 + PATIENCE_US), None);
    assert!(keeper
        .hopeless(5 + PATIENCE_US)
        .unwrap()
        .contains("EIO (nfs4 at /fleet)"));
}

#[test]
fn the_first_outputs_are_safe_soon_and_the_later_ones_at_the_interval_of_the_settings() {
    for (flush_s, expected) in [(30, vec![2, 4, 8, 16, 30, 30]), (1, vec![1, 1])] {
        let mut keeper = keeper_of(flush_s * 1_000_000);
        for pause_s in expected {
            let due_us = 5 + pause_s * 1_000_000;
            keeper.dirty_since_us = Some(5);
            assert_eq!(keeper.due_us(5), Some(due_us));
            assert!(!keeper.sync_is_due(false, due_us - 1) && keeper.sync_is_due(false, due_us));
            keeper.safe(&|_| None);
        }
    }
}

#[test]
fn what_has_been_hopeless_for_a_while_wakes_nobody() {
    let mut keeper = keeper();
    (keeper.copying, keeper.number) = (true, 1);
    keeper.sent.push_back(waiting(1));
    keeper.trouble.failed(String::from("EIO"), 0);
    assert_eq!(keeper.due_us(PATIENCE_US - 1), Some(PATIENCE_US));
    assert!(keeper.hopeless(PATIENCE_US).is_some());
    assert_eq!(keeper.due_us(PATIENCE_US), None);
}

#[test]
fn outputs_that_find_no_room_leave_their_slot() {
    let mut keeper = keeper();
    let done = |bytes: usize| SlotDone {
        outputs: vec![SlotOutput {
            name: String::from("x"),
            path: String::new(),
            inline: Some(vec![0; bytes]),
        }],
        ..SlotDone::default()
    };
    let asked = Cell::new(None);
    let slot_of = |slot: u32| {
        asked.set(Some(slot));
        None
    };
    let kept = keeper.take(3, (done(HELD_BYTES_MAX), piece(1)), &slot_of);
    assert!(kept.is_none() && asked.get().is_none());
    let kept = keeper.take(4, (done(1), piece(2)), &slot_of);
    assert!(matches!(kept, Some(Kept::Orphaned { piece }) if piece.job == 2));
    assert_eq!(asked.get(), Some(4));
}

#[test]
fn outputs_that_went_with_their_slot_are_no_fault_of_their_payload() {
    let mut keeper = keeper();
    let mut files = waiting(1);
    files.done.outputs.push(SlotOutput::default());
    let mut inline = waiting(2);
    inline.done.outputs.push(SlotOutput {
        inline: Some(vec![0; 10]),
        ..SlotOutput::default()
    });
    keeper.sent.extend([files, inline]);
    assert_eq!(keeper.slots(), BTreeSet::from([0]));
    let cause = Cause {
        of_output: true,
        text: String::from("it is not there"),
    };
    let mut refused = |number| keeper.refused(number, cause.clone(), &|_| None, 5);
    assert!(matches!(refused(1)[..], [Kept::Orphaned { .. }]));
    assert!(matches!(refused(2)[..], [Kept::Lost { .. }]));
}

#[test]
fn a_copy_of_a_canceled_job_that_the_storage_refuses_is_not_tried_again() {
    let mut keeper = keeper();
    let dropped = Waiting {
        dropped: true,
        ..waiting(1)
    };
    keeper.sent.push_back(dropped);
    let cause = Cause {
        of_output: false,
        text: String::from("EIO"),
    };
    assert!(keeper.refused(1, cause, &|_| None, 5).is_empty());
    assert!(!keeper.is_busy());
}

#[test]
fn where_no_child_writes_a_pilot_that_leaves_waits_all_the_same() {
    let begun_us = monotonic_us();
    keeper().wait(30_000).unwrap();
    assert!(monotonic_us() >= begun_us + 30_000);
}

#[test]
fn a_node_without_work_makes_logs_safe_at_once() {
    let mut keeper = keeper();
    keeper.dirty_since_us = Some(5);
    assert!(keeper.sync_is_due(true, 5), "a user may read them now");
    assert!(
        !keeper.sync_is_due(false, 5),
        "at work, one fsync is for many logs"
    );
    assert!(keeper.sync_is_due(false, 5 + 1_000_000));
}
