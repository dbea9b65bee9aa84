use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MB: u64 = 1 << 20;
const FILE: &str = "f";

fn address(pilot: PilotKey) -> String {
    format!("10.0.0.{pilot}:1")
}

fn with(pilots: usize) -> Sources {
    let mut sources = Sources::new(true, 1);
    for pilot in 0..pilots {
        sources.serves(pilot, Some(address(pilot)));
    }
    sources
}

fn seek(
    sources: &mut Sources,
    pilot: PilotKey,
    avoid: &[PilotKey],
    now: u64,
) -> Vec<(PilotKey, Vec<String>)> {
    let avoid = avoid.iter().copied().map(address).collect();
    pairs(sources.seek(pilot, wish(), avoid, now))
}

fn wish() -> Wish {
    Wish {
        sha256: FILE.into(),
        bytes: MB,
        areas: [("sw".to_owned(), 9)].into(),
    }
}

fn pairs(answers: Vec<Answer>) -> Vec<(PilotKey, Vec<String>)> {
    let pair = |each: Answer| {
        let read = each.reads.get("sw").copied().unwrap_or(0);
        assert_eq!(read, if each.peers.is_empty() { 9 } else { 0 });
        (each.pilot, each.peers)
    };
    answers.into_iter().map(pair).collect()
}

#[test]
fn the_first_reads_and_the_others_form_a_flat_tree() {
    let mut sources = with(15);
    assert_eq!(seek(&mut sources, 0, &[], 0), [(0, vec![])]);
    let parents: Vec<PilotKey> = (1..15)
        .map(|pilot| {
            let told = seek(&mut sources, pilot, &[], 0);
            let parent = (0..15).find(|&key| told == [(pilot, vec![address(key)])]);
            parent.unwrap()
        })
        .collect();
    assert_eq!(parents, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
}

#[test]
fn who_holds_it_serves_next() {
    let mut sources = with(4);
    seek(&mut sources, 0, &[], 0);
    seek(&mut sources, 1, &[], 0);
    seek(&mut sources, 2, &[], 0);
    assert_eq!(sources.holds(1, FILE, true, 1), []);
    assert_eq!(seek(&mut sources, 3, &[], 1), [(3, vec![address(0)])]);
}

#[test]
fn an_orphan_gets_another_parent_that_does_not_hang_on_it() {
    let mut sources = with(4);
    seek(&mut sources, 0, &[], 0);
    seek(&mut sources, 1, &[], 0); // of 0
    seek(&mut sources, 2, &[], 0); // of 0
    seek(&mut sources, 3, &[], 0); // of 1
    assert_eq!(seek(&mut sources, 1, &[0], 1), [(1, vec![address(2)])]);
}

#[test]
fn a_reader_that_leaves_is_followed_by_another() {
    let mut sources = with(2);
    sources.serves(0, None);
    seek(&mut sources, 0, &[], 0);
    assert_eq!(
        seek(&mut sources, 1, &[], 0),
        [],
        "the reader serves nobody: it waits"
    );
    assert_eq!(pairs(sources.leave(0, 1)), [(1, vec![])]);
}

#[test]
fn a_silent_reader_is_not_waited_for() {
    let mut sources = with(2);
    sources.serves(0, None);
    seek(&mut sources, 0, &[], 0);
    seek(&mut sources, 1, &[], 0);
    assert_eq!(sources.tick(PATIENCE_US), []);
    let late = PATIENCE_US + MB / SLOW_BYTES_PER_US;
    assert_eq!(pairs(sources.tick(late)), [(1, vec![])]);
}

#[test]
fn where_nodes_do_not_serve_each_other_they_read_in_turns() {
    let mut sources = Sources::new(false, 2);
    let told: Vec<usize> = (0..5)
        .map(|pilot| seek(&mut sources, pilot, &[], 0).len())
        .collect();
    assert_eq!(told, [1, 1, 0, 0, 0]);
    assert_eq!(pairs(sources.holds(0, FILE, true, 1)), [(2, vec![])]);
    assert_eq!(pairs(sources.holds(1, FILE, false, 1)), [(3, vec![])]);
}

#[test]
fn who_could_use_no_parent_reads_when_it_is_its_turn() {
    let mut sources = with(6);
    seek(&mut sources, 0, &[], 0);
    for pilot in 1..5 {
        seek(&mut sources, pilot, &[], 0);
    }
    assert_eq!(seek(&mut sources, 5, &[0, 1, 2], 0), []);
    assert_eq!(pairs(sources.holds(0, FILE, true, 1)), [(5, vec![])]);
}

#[test]
fn a_parent_that_two_complain_about_gets_no_more_children() {
    let mut sources = with(5);
    seek(&mut sources, 0, &[], 0);
    seek(&mut sources, 1, &[], 0);
    seek(&mut sources, 2, &[], 0);
    seek(&mut sources, 1, &[0], 1);
    seek(&mut sources, 2, &[0], 1);
    let told = seek(&mut sources, 3, &[], 1);
    assert!(!told.contains(&(3, vec![address(0)])), "{told:?}");
}

#[test]
fn thousands_of_nodes_are_served_in_a_moment() {
    let mut sources = with(8000);
    let since = std::time::Instant::now();
    for pilot in 0..8000 {
        assert_eq!(seek(&mut sources, pilot, &[], 0).len(), 1);
    }
    let deepest = (0..8000).filter_map(|pilot| sources.files[FILE].depth_of(pilot, usize::MAX));
    assert_eq!(deepest.max(), Some(12));
    for pilot in 0..8000 {
        sources.holds(pilot, FILE, true, 1);
    }
    assert!(since.elapsed().as_secs() < 5, "{:?}", since.elapsed());
}

/// What a pilot of the model is doing.
#[derive(Debug, Clone, PartialEq)]
enum Doing {
    Away,
    Nothing,
    Waits,
    Reads,
    Takes(PilotKey),
    Holds,
}

#[derive(Debug, Clone)]
enum Event {
    Seeks(usize),
    /// What it does comes to its end if it can.
    Advances(usize),
    /// Its source fails it.
    Fails(usize),
    Leaves(usize),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..12_usize).prop_map(Event::Seeks),
        3 => (0..12_usize).prop_map(Event::Advances),
        2 => (0..12_usize).prop_map(Event::Fails),
        1 => (0..12_usize).prop_map(Event::Leaves),
        1 => (1..100_u64).prop_map(|s| Event::Passes(s * 1_000_000)),
    ]
}

struct Model {
    sources: Sources,
    pilots: Vec<Doing>,
    avoid: Vec<Vec<String>>,
    serves: Vec<bool>,
    read_since: BTreeMap<usize, u64>,
    now: u64,
}

impl Model {
    fn hear(&mut self, answers: Vec<Answer>) {
        for answer in answers {
            let pilot = answer.pilot;
            assert_eq!(
                self.pilots[pilot],
                Doing::Waits,
                "an answer that nobody waits for"
            );
            assert!(answer.peers.len() <= 1);
            self.pilots[pilot] = match answer.peers.first() {
                None => {
                    self.read_since.insert(pilot, self.now);
                    Doing::Reads
                }
                Some(peer) => {
                    assert!(!self.avoid[pilot].contains(peer));
                    let parent = (0..self.pilots.len()).find(|&key| address(key) == *peer).unwrap();
                    assert!(self.serves[parent] && self.pilots[parent] != Doing::Away);
                    Doing::Takes(parent)
                }
            };
        }
        self.check();
    }

    fn check(&self) {
        for pilot in 0..self.pilots.len() {
            let (mut at, mut steps) = (pilot, 0);
            while let Doing::Takes(parent) = self.pilots[at] {
                (at, steps) = (parent, steps + 1);
                assert!(steps <= self.pilots.len(), "{pilot} waits for itself");
            }
        }
        let patience = PATIENCE_US + MB / SLOW_BYTES_PER_US;
        let reads = |(pilot, since): &(&usize, &u64)| {
            self.pilots[**pilot] == Doing::Reads && self.now < **since + patience
        };
        assert!(self.read_since.iter().filter(reads).count() <= 1, "two readers");
    }

    fn seek(&mut self, pilot: usize) {
        self.sources
            .serves(pilot, self.serves[pilot].then(|| address(pilot)));
        self.pilots[pilot] = Doing::Waits;
        let answers = self
            .sources
            .seek(pilot, wish(), self.avoid[pilot].clone(), self.now);
        self.hear(answers);
    }

    fn fail(&mut self, pilot: usize) {
        match self.pilots[pilot] {
            Doing::Takes(parent) => {
                self.avoid[pilot].push(address(parent));
                self.seek(pilot);
            }
            Doing::Reads => self.seek(pilot),
            _ => {}
        }
    }

    fn advance(&mut self, pilot: usize) {
        let ends = match self.pilots[pilot] {
            Doing::Reads => true,
            Doing::Takes(parent) => self.pilots[parent] == Doing::Holds,
            _ => false,
        };
        if ends {
            self.pilots[pilot] = Doing::Holds;
            self.avoid[pilot].clear();
            let answers = self.sources.holds(pilot, FILE, true, self.now);
            self.hear(answers);
        } else if let Doing::Takes(parent) = self.pilots[pilot] {
            if matches!(self.pilots[parent], Doing::Away | Doing::Nothing) {
                self.fail(pilot);
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Seeks(pilot) if matches!(self.pilots[pilot], Doing::Away | Doing::Nothing) => {
                self.seek(pilot);
            }
            Event::Seeks(_) => {}
            Event::Advances(pilot) => self.advance(pilot),
            Event::Fails(pilot) => self.fail(pilot),
            Event::Leaves(pilot) => {
                self.pilots[pilot] = Doing::Away;
                self.avoid[pilot].clear();
                let answers = self.sources.leave(pilot, self.now);
                self.hear(answers);
            }
            Event::Passes(us) => {
                self.now += us;
                let answers = self.sources.tick(self.now);
                self.hear(answers);
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_everybody_ends_with_the_file(
        events in proptest::collection::vec(event(), 0..120),
        serves in proptest::collection::vec(proptest::bool::weighted(0.8), 12),
        peers: bool,
    ) {
        let mut model = Model {
            sources: Sources::new(peers, 1),
            pilots: vec![Doing::Nothing; 12],
            avoid: vec![Vec::new(); 12],
            serves,
            read_since: BTreeMap::new(),
            now: 0,
        };
        for event in &events {
            model.happen(event);
        }
        let wanted = |doing: &Doing| matches!(doing, Doing::Waits | Doing::Reads | Doing::Takes(_));
        for _ in 0..200 {
            for pilot in 0..12 {
                model.advance(pilot);
            }
        }
        prop_assert!(!model.pilots.iter().any(wanted), "{:?}", model.pilots);
    }
}
