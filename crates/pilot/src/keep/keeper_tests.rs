//! What a keeper decides while its writer does not answer; nothing is written here.

use super::*;

const PATIENCE_US: u64 = 300_000_000;

fn keeper() -> Keeper {
    let place = Place {
        origin: Origin {
            directory: "/fleet/bundle".into(),
            pilot: String::from("a"),
            bytes_max: 1 << 30,
        },
        area: String::from("nfs4 at /fleet"),
        output_bytes_max: 1 << 30,
    };
    Keeper::alone(place, (1_000_000, PATIENCE_US))
}

fn piece(job: u64) -> Piece {
    Piece {
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
    assert!(keeper.hopeless(5 + PATIENCE_US).unwrap().contains("EIO (nfs4 at /fleet)"));
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
