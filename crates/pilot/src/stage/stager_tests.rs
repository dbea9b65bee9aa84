use super::*;

const SHA: &str = "f1";
const JOB: User = User::Job(7);

fn file() -> StagedFile {
    StagedFile {
        sha256: SHA.into(),
        bytes: 5,
        pieces: vec![],
    }
}

fn asked(avoid: &[&str]) -> Step {
    Step::Tell(PilotMessage::Seek(Seek {
        sha256: SHA.into(),
        bytes: 5,
        areas: BTreeMap::new(),
        avoid: avoid.iter().map(|&each| each.into()).collect(),
        serves: None,
    }))
}

fn ordered(peers: &[&str]) -> Step {
    Step::Order(Order::Fetch {
        file: file(),
        peers: peers.iter().map(|&each| each.into()).collect(),
        fast: false,
    })
}

fn source(peers: &[&str]) -> Source {
    Source {
        sha256: SHA.into(),
        peers: peers.iter().map(|&each| each.into()).collect(),
    }
}

fn failure(kind: FailureKind, avoid: &[&str]) -> Report {
    Report::Failed {
        sha256: SHA.into(),
        kind,
        message: "no".into(),
        avoid: avoid.iter().map(|&each| each.into()).collect(),
    }
}

fn held() -> Report {
    Report::Held {
        sha256: SHA.into(),
        path: "/s/f1".into(),
        bytes: 5,
        ms: 1,
        shared_bytes: 5,
        from: vec![],
    }
}

fn holds(sha256: &str) -> Step {
    Stager::default().holds(sha256)
}

fn listens(address: Option<&str>) -> Report {
    Report::Listens {
        address: address.map(Into::into),
        message: String::new(),
    }
}

fn listening() -> Stager {
    listening_with(true)
}

fn listening_with(lead: bool) -> Stager {
    let mut stager = Stager::new(lead, &[]);
    assert_eq!(stager.heard(listens(None), 0), []);
    stager
}

#[test]
fn the_lead_is_asked_when_others_can_be_sent_to_us() {
    let mut stager = Stager::new(true, &[]);
    assert_eq!(stager.want(&file(), false, JOB, 0), []);
    let [Step::Tell(PilotMessage::Seek(seek))] = &stager.heard(listens(Some("me:1")), 1)[..] else {
        panic!("it does not ask");
    };
    assert_eq!(seek.serves.as_deref(), Some("me:1"));
}

#[test]
fn a_file_is_sought_fetched_and_told_and_work_waits_for_it() {
    let mut stager = listening();
    assert_eq!(stager.want(&file(), false, JOB, 0), [asked(&[])]);
    assert_eq!(stager.want(&file(), false, User::Job(8), 0), []);
    assert_eq!(stager.waiting().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(stager.told(source(&["a:1"])), [ordered(&["a:1"])]);
    assert_eq!(stager.told(source(&["b:1"])), [], "answered already");
    let steps = stager.heard(held(), 1);
    assert_eq!(steps[0], holds(SHA));
    assert!(matches!(&steps[1], Step::Ready { users, .. } if users.len() == 2));
    assert_eq!(stager.waiting().count(), 0);
    let mut job = JobDef::default();
    job.inputs.push(tidemill_wire::InputDef {
        kind: "shared".into(),
        sha256: Some(SHA.into()),
        path: Some("/shared/x".into()),
        ..Default::default()
    });
    assert_eq!(stager.with_held(job).inputs[0].path.as_deref(), Some("/s/f1"));
}

#[test]
fn a_peer_that_fails_is_avoided_and_reading_is_tried_twice() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&["a:1"]));
    assert_eq!(
        stager.heard(failure(FailureKind::Peer, &["a:1"]), 1),
        [asked(&["a:1"])]
    );
    stager.told(source(&[]));
    assert_eq!(
        stager.heard(failure(FailureKind::Shared, &[]), 1),
        [asked(&["a:1"])]
    );
    stager.told(source(&[]));
    let steps = stager.heard(failure(FailureKind::Shared, &[]), 1);
    assert_eq!(steps[..2], [not_held(SHA), drop_order(SHA)]);
    assert!(matches!(&steps[2], Step::Failed { message, .. } if message == "no; no; no"));
    assert_eq!(
        stager.want(&file(), false, JOB, 2),
        [asked(&[])],
        "new work tries anew"
    );
}

#[test]
fn without_a_lead_and_when_it_is_away_for_long_we_read_ourselves() {
    let mut alone = listening_with(false);
    assert_eq!(alone.want(&file(), false, JOB, 0), [ordered(&[])]);
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    assert_eq!(stager.tick(true, ALONE_US), [], "it may be our turn later");
    assert_eq!(stager.tick(false, ALONE_US - 1), []);
    assert_eq!(stager.tick(false, ALONE_US), [ordered(&[])]);
}

#[test]
fn a_full_store_and_a_lost_stage_mean_that_slots_read_directly() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&[]));
    let steps = stager.heard(failure(FailureKind::Full, &[]), 1);
    assert!(matches!(&steps[1], Step::Direct { message, .. } if message == "no"));
    assert_eq!(stager.waiting().count(), 0);
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    assert!(matches!(&stager.without_stage("dead")[1], Step::Direct { .. }));
    assert_eq!(stager.waiting().count(), 0);
}

#[test]
fn a_new_stage_gets_what_the_last_one_held_and_seeks_what_it_was_at() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&["a:1"]));
    assert_eq!(stager.lost_stage(1), [not_held(SHA)]);
    assert_eq!(stager.told(source(&["b:1"])), [], "nobody is there to fetch it");
    assert_eq!(stager.connected(2), []);
    assert_eq!(stager.tick(false, ALONE_US + 9), []);
    assert_eq!(stager.heard(listens(None), 3), [asked(&[])]);
    stager.told(source(&[]));
    stager.heard(held(), 4);
    assert_eq!(stager.lost_stage(5), [not_held(SHA)]);
    assert!(stager.is_held(SHA) && stager.waiting().count() == 0);
    let adopt = Step::Order(Order::Adopt {
        sha256: SHA.into(),
        bytes: 5,
        fast: false,
    });
    let Step::Tell(PilotMessage::Holds(told)) = holds(SHA) else {
        panic!("it does not tell");
    };
    let told = Holds {
        serves: Some("me:2".into()),
        ..told
    };
    assert_eq!(
        stager.heard(listens(Some("me:2")), 6),
        [adopt, Step::Tell(PilotMessage::Holds(told))]
    );
    assert_eq!(stager.heard(held(), 7), [], "nobody was waiting for it");
    assert_eq!(
        stager.heard(failure(FailureKind::Shared, &[]), 8).len(),
        1,
        "what was spoilt is sought"
    );
}

#[test]
fn a_new_lead_hears_what_is_held_and_sought() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    assert_eq!(stager.connected(5), [asked(&[])]);
    stager.told(source(&[]));
    stager.heard(held(), 6);
    assert_eq!(stager.connected(7), [holds(SHA)]);
}

#[test]
fn what_nobody_needs_any_more_is_dropped() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    assert_eq!(stager.release(&|_, _| true), [], "it is on its way");
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&[]));
    stager.heard(held(), 1);
    assert_eq!(stager.release(&|_, user| *user != JOB), []);
    assert_eq!(stager.release(&|_, _| true), [not_held(SHA), drop_order(SHA)]);
    assert_eq!(stager.want(&file(), false, JOB, 0), [asked(&[])]);
}

#[test]
fn what_is_held_is_ready_for_those_who_did_not_know() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&[]));
    stager.heard(held(), 1);
    assert_eq!(stager.want(&file(), false, JOB, 2), []);
    let steps = stager.want(&file(), false, User::Job(8), 2);
    assert!(matches!(&steps[..], [Step::Ready { users, .. }] if users[..] == [User::Job(8)]));
}

#[test]
fn a_file_that_found_no_room_is_sought_again_and_one_that_nobody_wants_is_let_go() {
    let mut stager = listening();
    stager.want(&file(), false, JOB, 0);
    stager.told(source(&[]));
    assert_eq!(stager.again(SHA, 1), [asked(&[])]);
    stager.told(source(&[]));
    stager.release(&|_, _| true);
    assert_eq!(stager.heard(held(), 2), [not_held(SHA), drop_order(SHA)]);
    assert!(!stager.is_held(SHA));
}
