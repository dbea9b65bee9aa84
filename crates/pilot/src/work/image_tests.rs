//! Behaviour of the binding with images: who waits for them, what they take, what has to make room.

use tidemill_wire::{ImageUse, StagedFile};

use super::tests::{binding, job, made, program, runs, work};
use super::*;

fn image(name: &str, file_mb: u64) -> ImageUse {
    ImageUse {
        name: name.into(),
        file: StagedFile {
            sha256: name.into(),
            bytes: file_mb << 20,
            pieces: vec![],
        },
        areas: vec!["/sw".into()],
        unpacked_bytes: (3 * file_mb) << 20,
    }
}

/// A program whose payloads run from these images.
fn imaged(number: u64, images: &[ImageUse]) -> Program {
    Program {
        images: images.to_vec(),
        ..program(number, 1, 1.0)
    }
}

fn brought(actions: &[Action]) -> Vec<(String, u64)> {
    let brought = actions.iter().filter_map(|action| match action {
        Action::Bring { sha256, limit_mb, .. } => Some((sha256.clone(), *limit_mb)),
        _ => None,
    });
    brought.collect()
}

#[test]
fn slots_begin_when_their_image_is_there_and_the_image_takes_memory_from_them() {
    let mut binding = binding(100); // 1000 MB, slots of 20
    binding.set_store(0, false);
    let work = work(
        vec![
            imaged(1, &[image("a", 100)]),
            imaged(2, &[image("a", 100)]),
            program(3, 1, 1.0),
        ],
        vec![job(1, 1), job(2, 2), job(3, 3)],
        &[(1, 0, 100), (2, 0, 100), (3, 0, 5)],
    );
    binding.take_work(work, 0);
    let actions = binding.decide(0);
    assert_eq!(
        brought(&actions),
        [("a".to_owned(), 438)],
        "once for both programs, with room to unpack"
    );
    assert_eq!(made(&actions), 5, "others need not wait");
    assert!(brought(&binding.decide(1)).is_empty());
    binding.image_shown("a", 164);
    assert_eq!(made(&binding.decide(2)), (1000 - 164 - 5 * 20) / 20);
}

#[test]
fn other_images_are_other_slots() {
    let mut binding = binding(2);
    binding.set_store(0, false);
    let work = work(
        vec![imaged(1, &[image("a", 1)]), imaged(2, &[image("b", 1)])],
        vec![job(1, 1), job(2, 2)],
        &[(1, 0, 1), (2, 0, 1)],
    );
    binding.take_work(work, 0);
    assert_eq!(brought(&binding.decide(0)).len(), 2);
    binding.image_shown("a", 65);
    binding.image_shown("b", 65);
    let actions = binding.decide(0);
    let slots: std::collections::BTreeSet<u32> = runs(&actions).iter().map(|run| run.0).collect();
    assert_eq!((made(&actions), slots.len()), (2, 2));
}

#[test]
fn an_image_that_nobody_uses_makes_room() {
    let mut binding = binding(4);
    binding.set_store(500, false);
    let first = work(vec![imaged(1, &[image("a", 200)])], vec![job(1, 1)], &[(1, 0, 1)]);
    binding.take_work(first, 0);
    assert_eq!(
        brought(&binding.decide(0)),
        [("a".to_owned(), 264)],
        "to unpack it would take too much"
    );
    binding.image_shown("a", 264);
    let (slot, ticket, _) = runs(&binding.decide(0)).remove(0);
    let second = work(vec![imaged(2, &[image("b", 300)])], vec![job(2, 2)], &[(2, 0, 1)]);
    binding.take_work(second, 0);
    assert!(binding.decide(0).is_empty(), "a slot runs from the other one");
    binding.settle(slot, ticket, 0, 1);
    let actions = binding.decide(1);
    assert!(
        matches!(&actions[..], [Action::Destroy { .. }, Action::Drop { sha256 }, Action::Bring { .. }] if sha256 == "a"),
        "{actions:?}"
    );
    assert_eq!(brought(&actions), [("b".to_owned(), 364)]);
}

#[test]
fn work_whose_image_cannot_be_had_comes_back_and_is_tried_again_later() {
    let mut binding = binding(2);
    binding.set_store(0, false);
    let some = |first| {
        work(
            vec![imaged(1, &[image("a", 1)])],
            vec![job(1, 1)],
            &[(1, first, 3)],
        )
    };
    binding.take_work(some(0), 0);
    binding.decide(0);
    let failed = binding.image_failed("a", 10);
    assert_eq!((failed.len(), failed[0].count), (1, 3));
    assert!(!binding.work_left() && binding.decide(11).is_empty());
    let refused = binding.take_work(some(3), 20);
    assert_eq!(
        refused.no_image.len(),
        1,
        "it goes back: only the try itself fails work"
    );
    assert!(binding.take_work(some(6), 60_000_000).no_image.is_empty());
    assert_eq!(brought(&binding.decide(60_000_000)).len(), 1);
}

#[test]
fn an_image_that_died_is_unpacked_next_and_its_slots_are_told() {
    let mut binding = binding(1);
    binding.set_store(0, false);
    binding.take_work(
        work(vec![imaged(1, &[image("a", 10)])], vec![job(1, 1)], &[(1, 0, 9)]),
        0,
    );
    binding.decide(0);
    binding.image_shown("a", 74);
    let (slot, _, piece) = runs(&binding.decide(0)).remove(0);
    assert_eq!(binding.image_died("a"), [slot]);
    for piece in binding.lose_slot(slot) {
        assert_eq!(binding.requeue(piece, 0), None);
    }
    let actions = binding.decide(0);
    assert!(
        matches!(
            &actions[..],
            [Action::Bring {
                by_files: true,
                limit_mb: 74,
                ..
            }]
        ),
        "{actions:?} {piece:?}"
    );
}

#[test]
fn what_can_never_fit_is_told_with_its_numbers() {
    let mut binding = binding(1);
    binding.set_store(0, false);
    let large = |memory_mb, scratch_mb, images: &[ImageUse]| Program {
        memory_mb,
        scratch_mb,
        ..imaged(1, images)
    };
    let mut no_fit = |program: Program| {
        let mut refused = binding.take_work(work(vec![program], vec![job(1, 1)], &[(1, 0, 1)]), 0);
        refused.no_fit.pop().map(|(_, why)| why)
    };
    assert_eq!(no_fit(large(600, 400, &[])), None);
    let why = no_fit(large(600, 401, &[])).unwrap();
    for part in ["600 MB", "401 MB", "1000 MB", "resources.scratch_mb", "fast_dir"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(no_fit(large(600, 300, &[image("a", 37)]))
        .unwrap()
        .contains("images take 101 MB"));
    binding.set_spill(5000, "there".into());
    binding.take_work(
        work(vec![large(600, 4000, &[])], vec![job(1, 1)], &[(1, 0, 1)]),
        0,
    );
    binding.drain_queue();
    binding.take_work(
        work(vec![large(600, 4000, &[])], vec![job(1, 1)], &[(1, 0, 1)]),
        0,
    );
    let actions = binding.decide(0);
    assert!(
        matches!(&actions[0], Action::Create { share, .. } if (share.memory_mb, share.spill_mb) == (600, 4000)),
        "{actions:?}"
    );
}
