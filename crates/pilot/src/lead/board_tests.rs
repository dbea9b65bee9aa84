use super::*;

const SHA: &str = "ab";

fn seek(board: &mut Board, me: &str, avoid: &[&str], now_us: u64) -> Option<Vec<String>> {
    let message = PilotMessage::Seek(Seek {
        sha256: SHA.into(),
        bytes: 5,
        areas: std::collections::BTreeMap::new(),
        avoid: avoid.iter().map(|&each| each.into()).collect(),
        serves: Some(me.into()),
    });
    board.hear(&message, now_us);
    board.advance(now_us).pop().map(|source| source.peers)
}

fn hold(board: &mut Board, me: &str) {
    let message = PilotMessage::Holds(Holds {
        sha256: SHA.into(),
        held: true,
        serves: Some(me.into()),
    });
    board.hear(&message, 0);
}

fn names(fleet: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fleet.join("peers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_first_reads_the_others_come_to_it_and_to_each_other() {
    let fleet = tempfile::tempdir().unwrap();
    let board = |name: &str| Board::new(fleet.path(), name, "s");
    let (mut a, mut b, mut c) = (board("a"), board("b"), board("c"));
    assert_eq!(seek(&mut a, "a:1", &[], 0), Some(vec![]));
    assert_eq!(
        seek(&mut b, "b:1", &[], 0),
        Some(vec!["a:1".into()]),
        "while it reads"
    );
    hold(&mut a, "a:1");
    hold(&mut b, "b:1");
    let mut found = seek(&mut c, "c:1", &[], 0).unwrap();
    found.sort();
    assert_eq!(found, ["a:1", "b:1"]);
    assert_eq!(names(fleet.path()), ["ab", "ab.claim1"]);
}

#[test]
fn when_all_that_are_named_are_gone_one_reads_and_the_others_wait_for_it() {
    let fleet = tempfile::tempdir().unwrap();
    let board = |name: &str| Board::new(fleet.path(), name, "s");
    let (mut a, mut b, mut c) = (board("a"), board("b"), board("c"));
    seek(&mut a, "a:1", &[], 0);
    let before = read(&fleet.path().join("peers/ab"));
    assert_eq!(seek(&mut b, "b:1", &["a:1"], 0), Some(vec![]));
    assert_eq!(names(fleet.path()), ["ab", "ab.claim2"]);
    assert_eq!(seek(&mut c, "c:1", &["a:1"], 0), Some(vec!["b:1".into()]));
    // c had read before b wrote
    write(&fleet.path().join("peers/ab"), "x", &before).unwrap();
    assert_eq!(seek(&mut c, "c:1", &["a:1"], 0), None);
    assert_eq!(c.advance(0), []);
    write(
        &fleet.path().join("peers/ab"),
        "x",
        &before.joined("b:1", &[]).unwrap(),
    )
    .unwrap();
    let at_us = c.due_us().unwrap();
    assert!((1_000_000..1_500_000).contains(&at_us), "{at_us}");
    assert_eq!(c.advance(at_us)[0].peers, ["b:1"]);
    assert_eq!(c.due_us(), None);
}

#[test]
fn who_has_the_claim_and_dies_holds_nobody_up_for_ever() {
    let fleet = tempfile::tempdir().unwrap();
    let mut one = Board::new(fleet.path(), "a", "s");
    std::fs::create_dir(fleet.path().join("peers")).unwrap();
    std::fs::write(fleet.path().join("peers/ab.claim1"), "").unwrap();
    assert_eq!(seek(&mut one, "a:1", &[], 0), None);
    let mut looks = 0;
    let found = loop {
        looks += 1;
        let due_us = one.due_us().unwrap();
        if let Some(source) = one.advance(due_us).pop() {
            break source;
        }
    };
    assert_eq!((looks, found.peers.len()), (3, 0), "it reads for itself");
    hold(&mut one, "a:1");
    assert_eq!(read(&fleet.path().join("peers/ab")).holders, ["a:1"]);
}

#[test]
fn a_damaged_file_and_a_directory_that_cannot_be_written_to_cost_a_read() {
    let fleet = tempfile::tempdir().unwrap();
    std::fs::create_dir(fleet.path().join("peers")).unwrap();
    std::fs::write(fleet.path().join("peers/ab"), "{\"format\":1,").unwrap();
    let mut one = Board::new(fleet.path(), "a", "s");
    assert_eq!(seek(&mut one, "a:1", &[], 0), Some(vec![]));
    let mut nowhere = Board::new(&fleet.path().join("peers/ab"), "a", "s");
    assert_eq!(seek(&mut nowhere, "a:1", &[], 0), Some(vec![]));
    hold(&mut nowhere, "a:2");
}

#[test]
fn few_are_named_and_fewer_are_tried_not_the_same_by_all() {
    let holders = (0..HOLDERS_MAX).map(|k| format!("n{k}:1")).collect();
    let full = Peers {
        format: FORMAT,
        claims: 1,
        holders,
    };
    assert_eq!(full.joined("me:1", &[]), None);
    let joined = full.joined("me:1", &["n3:1".into()]).unwrap();
    assert_eq!(joined.holders.last().unwrap(), "me:1");
    assert!(!joined.holders.contains(&"n3:1".into()));
    let first = full.choose(&["n2:1".into()], 1);
    assert_eq!(first, ["n1:1", "n3:1", "n4:1", "n5:1"]);
    assert_ne!(first, full.choose(&[], 7));
}
