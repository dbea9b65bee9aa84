//! Several nodes in one process, each with its own store, served as a pilot serves them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tidemill_wire::worker::Served;
use tidemill_wire::{Piece, StagedFile};

use crate::control::{FailureKind, Order, Report};
use crate::entry::BLOCK_BYTES;
use crate::peer::{self, Answer, Frame, Greeting, Wish};
use tidemill_wire::hex;

const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

/// A stage as its pilot sees it.
struct Stage {
    /// frames are the same in both directions
    socket: Served,
    store: tempfile::TempDir,
    address: String,
}

impl Stage {
    fn start(secret: &str, bytes_max: u64) -> Stage {
        Stage::start_in(tempfile::tempdir().unwrap(), secret, bytes_max)
    }

    /// With what an earlier one left there.
    fn start_in(store: tempfile::TempDir, secret: &str, bytes_max: u64) -> Stage {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || crate::serve(theirs));
        ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut stage = Stage {
            socket: Served::new(ours),
            address: String::new(),
            store,
        };
        stage.order(&Order::Start {
            secret: secret.to_owned(),
            name: String::from("a.r0.i1"),
            directory: stage.store.path().display().to_string(),
            bytes_max,
            fast: None,
            host: Some(String::from("127.0.0.1")),
        });
        let Report::Listens { address, .. } = stage.report() else {
            panic!("it does not listen");
        };
        stage.address = address.unwrap();
        stage
    }

    fn order(&mut self, order: &Order) {
        assert!(self.socket.answer(order));
    }

    fn report(&mut self) -> Report {
        self.socket.request().unwrap().unwrap().0
    }

    fn fetch(&mut self, file: &StagedFile, peers: &[&str]) {
        self.order(&Order::Fetch {
            file: file.clone(),
            peers: peers.iter().map(|&peer| peer.to_owned()).collect(),
            fast: false,
        });
    }

    fn fetched(&mut self, file: &StagedFile, peers: &[&str]) -> Report {
        self.fetch(file, peers);
        self.report()
    }

    fn part(&self, file: &StagedFile) -> PathBuf {
        self.store.path().join(format!(".{}.part", file.sha256))
    }
}

fn content(blocks: u64, rest: u64) -> Vec<u8> {
    let bytes = (blocks * BLOCK_BYTES + rest) as usize;
    (0..bytes).map(|k| (k ^ (k >> 8) ^ (k >> 16)) as u8).collect()
}

/// The content in three pieces of two packs, with other bytes around them.
fn packed(directory: &Path, content: &[u8]) -> StagedFile {
    let (a, b) = (content.len() / 3, content.len() / 2);
    let (one, two) = (directory.join("one.pack"), directory.join("two.pack"));
    std::fs::write(&one, [b"xx", &content[..a], b"yyy", &content[b..]].concat()).unwrap();
    std::fs::write(&two, [b"z", &content[a..b]].concat()).unwrap();
    let piece = |path: &Path, offset: usize, length: usize| Piece {
        path: path.display().to_string(),
        offset: offset as u64,
        length: length as u64,
    };
    StagedFile {
        sha256: hex::text(&Sha256::digest(content)),
        bytes: content.len() as u64,
        pieces: vec![
            piece(&one, 2, a),
            piece(&two, 1, b - a),
            piece(&one, 2 + a + 3, content.len() - b),
        ],
    }
}

/// A reader that has the first blocks and cannot get the rest.
fn stuck(directory: &Path, file: &StagedFile) -> (Stage, StagedFile) {
    let mut short = file.clone();
    short.pieces[2].path = directory.join("missing").display().to_string();
    let mut reader = Stage::start(SECRET, 1 << 30);
    let report = reader.fetched(&short, &[]);
    assert!(
        matches!(&report, Report::Failed { kind: FailureKind::Shared, message, .. } if message.contains("missing")),
        "{report:?}"
    );
    (reader, short)
}

fn is_held(report: &Report, content: &[u8]) -> (u64, Vec<String>) {
    let Report::Held {
        path,
        shared_bytes,
        from,
        ..
    } = report
    else {
        panic!("{report:?}");
    };
    assert!(std::fs::read(path).unwrap() == content, "other bytes");
    (*shared_bytes, from.clone())
}

#[test]
fn a_file_is_read_once_and_handed_on_while_it_comes() {
    let shared = tempfile::tempdir().unwrap();
    let content = content(7, 12_345);
    let file = packed(shared.path(), &content);
    let mut nodes: Vec<Stage> = (0..4).map(|_| Stage::start(SECRET, 1 << 30)).collect();
    let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    for child in (1..4).rev() {
        nodes[child].fetch(&file, &[&addresses[(child - 1) / 2]]); // before the parents have begun
    }
    nodes[0].fetch(&file, &[]);
    assert_eq!(is_held(&nodes[0].report(), &content), (file.bytes, vec![]));
    std::fs::remove_file(shared.path().join("one.pack")).unwrap();
    for child in 1..4 {
        let came = is_held(&nodes[child].report(), &content);
        assert_eq!(came, (0, vec![addresses[(child - 1) / 2].clone()]));
    }
}

#[test]
fn a_small_and_an_empty_file_are_files_too() {
    let shared = tempfile::tempdir().unwrap();
    let mut node = Stage::start(SECRET, 100);
    let report = node.fetched(&packed(shared.path(), b"abcdef"), &[]);
    assert_eq!(is_held(&report, b"abcdef").0, 6);
    let empty = StagedFile {
        sha256: hex::text(&Sha256::digest(b"")),
        bytes: 0,
        pieces: vec![],
    };
    assert_eq!(is_held(&node.fetched(&empty, &[]), b"").0, 0);
}

#[test]
fn a_spoilt_block_is_noticed_at_once_and_what_was_right_is_kept() {
    let shared = tempfile::tempdir().unwrap();
    let content = content(6, 1);
    let file = packed(shared.path(), &content);
    let mut bad = Stage::start(SECRET, 1 << 30);
    is_held(&bad.fetched(&file, &[]), &content);
    let path = bad.store.path().join(&file.sha256);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let spoilt = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    spoilt.write_all_at(b"?", 4 * BLOCK_BYTES + 7).unwrap();
    let mut child = Stage::start(SECRET, 1 << 30);
    let Report::Failed {
        kind, message, avoid, ..
    } = child.fetched(&file, &[&bad.address])
    else {
        panic!("it was shown");
    };
    assert_eq!((kind, &avoid), (FailureKind::Peer, &vec![bad.address.clone()]));
    assert!(
        message.contains("block 4 from") && message.contains("checksum"),
        "{message}"
    );
    assert!(!child.store.path().join(&file.sha256).exists());
    let (shared_bytes, _) = is_held(&child.fetched(&file, &[]), &content);
    assert_eq!(shared_bytes, 2 * BLOCK_BYTES + 1);
}

#[test]
fn a_file_that_is_not_what_its_name_says_is_never_shown() {
    let shared = tempfile::tempdir().unwrap();
    let mut file = packed(shared.path(), &content(1, 5));
    file.sha256 = hex::text(&Sha256::digest(b"another"));
    let mut node = Stage::start(SECRET, 1 << 30);
    let Report::Failed { kind, message, .. } = node.fetched(&file, &[]) else {
        panic!("it was shown");
    };
    assert_eq!(kind, FailureKind::Shared);
    assert!(message.contains("digest"), "{message}");
    assert!(!node.store.path().join(&file.sha256).exists());
    file.sha256 = String::from("../../etc/passwd");
    assert!(matches!(
        node.fetched(&file, &[]),
        Report::Failed {
            kind: FailureKind::Shared,
            ..
        }
    ));
}

#[test]
fn a_node_whose_source_ends_goes_on_with_another_one() {
    let shared = tempfile::tempdir().unwrap();
    let content = content(6, 9);
    let file = packed(shared.path(), &content);
    let (mut reader, _) = stuck(shared.path(), &file);
    let have = std::fs::metadata(reader.part(&file)).unwrap().len();
    let mut child = Stage::start(SECRET, 1 << 30);
    child.fetch(&file, &[&reader.address]);
    while !std::fs::metadata(child.part(&file)).is_ok_and(|part| part.len() == have) {
        std::thread::yield_now();
    }
    reader.order(&Order::Drop {
        sha256: file.sha256.clone(),
    });
    let report = child.report();
    assert!(
        matches!(&report, Report::Failed { message, avoid, .. }
            if message.contains("cannot provide this file") && *avoid == [reader.address.clone()]),
        "{report:?}"
    );
    let (shared_bytes, from) = is_held(&child.fetched(&file, &[]), &content);
    assert_eq!(
        (shared_bytes, from),
        (file.bytes - have, vec![reader.address.clone()])
    );
}

#[test]
fn who_does_not_know_the_secret_gets_and_gives_nothing() {
    let shared = tempfile::tempdir().unwrap();
    let file = packed(shared.path(), b"secret");
    let mut node = Stage::start(SECRET, 1 << 30);
    is_held(&node.fetched(&file, &[]), b"secret");
    let mut stranger = Stage::start(&SECRET.replace('5', "6"), 1 << 30);
    let report = stranger.fetched(&file, &[&node.address]);
    assert!(
        matches!(
            report,
            Report::Failed {
                kind: FailureKind::Peer,
                ..
            }
        ),
        "{report:?}"
    );
    assert!(!stranger.part(&file).metadata().is_ok_and(|part| part.len() > 0));
    let mut rude = TcpStream::connect(&node.address).unwrap();
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n\n").unwrap();
    let mut answer = Vec::new();
    let _ = rude.read_to_end(&mut answer);
    assert_eq!(
        answer.iter().filter(|&&byte| byte == b'\n').count(),
        1,
        "the greeting alone"
    );
}

#[test]
fn a_full_store_is_named_and_has_room_again_when_a_file_goes() {
    let shared = tempfile::tempdir().unwrap();
    let (first, second) = (tempfile::tempdir().unwrap(), shared);
    let mut node = Stage::start(SECRET, 10);
    let one = packed(first.path(), b"1234567");
    let two = packed(second.path(), b"abcdefg");
    is_held(&node.fetched(&one, &[]), b"1234567");
    let Report::Failed { kind, message, .. } = node.fetched(&two, &[]) else {
        panic!("it had room");
    };
    assert_eq!(kind, FailureKind::Full);
    assert!(
        message.contains("no room") && message.contains("7 of 10 are taken"),
        "{message}"
    );
    node.order(&Order::Drop {
        sha256: one.sha256.clone(),
    });
    is_held(&node.fetched(&two, &[]), b"abcdefg");
    assert!(!node.store.path().join(&one.sha256).exists());
}

#[test]
fn a_closed_port_fails_soon_and_names_it() {
    let shared = tempfile::tempdir().unwrap();
    let file = packed(shared.path(), b"abc");
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut node = Stage::start(SECRET, 100);
    let report = node.fetched(&file, &[&port.to_string()]);
    assert!(
        matches!(&report, Report::Failed { kind: FailureKind::Peer, message, .. } if message.contains("connect")),
        "{report:?}"
    );
    is_held(&node.fetched(&file, &[]), b"abc");
}

#[test]
fn what_an_earlier_stage_held_is_held_again_and_served_and_what_is_spoilt_is_not() {
    let shared = tempfile::tempdir().unwrap();
    let content = content(2, 77);
    let file = packed(shared.path(), &content);
    let left = |content: &[u8]| {
        let store = tempfile::tempdir().unwrap();
        std::fs::write(store.path().join(&file.sha256), content).unwrap();
        let mut stage = Stage::start_in(store, SECRET, 1 << 30);
        stage.order(&Order::Adopt {
            sha256: file.sha256.clone(),
            bytes: file.bytes,
            fast: false,
        });
        stage
    };
    let mut node = left(&content);
    assert_eq!(is_held(&node.report(), &content), (0, vec![]));
    let mut other = Stage::start(SECRET, 1 << 30);
    let address = node.address.clone();
    let came = is_held(&other.fetched(&file, &[&address]), &content);
    assert_eq!(came, (0, vec![address]));
    let mut spoilt = content.clone();
    spoilt[BLOCK_BYTES as usize] ^= 1;
    for (found, said) in [
        (&spoilt[..], "an earlier stage of this node has digest"),
        (&content[..9], "store"),
    ] {
        let mut node = left(found);
        let Report::Failed { message, .. } = node.report() else {
            panic!("it holds {} bytes", found.len());
        };
        assert!(message.contains(said), "{message}");
        assert!(!node.store.path().join(&file.sha256).exists());
        assert_eq!(is_held(&node.fetched(&file, &[]), &content).0, file.bytes);
    }
}

#[test]
fn more_files_than_come_at_once_come_one_after_the_other_and_each_is_answered_once() {
    let shared: Vec<_> = (0..20).map(|_| tempfile::tempdir().unwrap()).collect();
    let content = |k: usize| format!("file {k}").into_bytes();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = Stage::start(SECRET, 1 << 30);
    let mark = packed(shared[0].path(), b"mark");
    is_held(&node.fetched(&mark, &[]), b"mark");
    let file = |k: usize| packed(shared[k].path(), &content(k));
    let files: Vec<StagedFile> = (0..20).map(file).collect();
    for file in &files[..4] {
        node.fetch(file, &[&silent.local_addr().unwrap().to_string()]);
    }
    for file in files[4..].iter().chain(&files[4..]) {
        node.fetch(file, &[]); // twice, while all wait
    }
    let marked = node.store.path().join(&mark.sha256);
    node.order(&Order::Drop { sha256: mark.sha256 });
    while marked.exists() {
        std::thread::yield_now(); // until all orders are read
    }
    let stuck: Vec<TcpStream> = (0..4).map(|_| silent.accept().unwrap().0).collect();
    drop(stuck);
    let mut seen = Vec::new();
    for _ in 0..20 {
        seen.push(match node.report() {
            Report::Held { sha256, .. } | Report::Failed { sha256, .. } => sha256,
            other @ Report::Listens { .. } => panic!("{other:?}"),
        });
    }
    let mut expected: Vec<String> = files.iter().map(|file| file.sha256.clone()).collect();
    expected.sort();
    seen.sort();
    assert_eq!(seen, expected);
    // the next answer is to the next order
    let last = packed(shared[0].path(), b"last");
    is_held(&node.fetched(&last, &[]), b"last");
}

#[test]
fn a_giver_that_spoils_the_file_again_and_again_is_left() {
    let shared = tempfile::tempdir().unwrap();
    let file = packed(shared.path(), b"abc");
    let giver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = giver.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut stream = giver.accept().unwrap().0;
        let nonce = tidemill_wire::handshake::nonce().unwrap();
        let greeting = Greeting {
            nonce: nonce.clone(),
            block_bytes: BLOCK_BYTES,
        };
        stream.write_all(&peer::line(&greeting).unwrap()).unwrap();
        let soon = std::time::Instant::now() + Duration::from_secs(60);
        let wish: Wish = peer::read_line(&mut stream, soon).unwrap();
        let proof = tidemill_wire::handshake::giver_proof(SECRET, &nonce, &wish.nonce, &wish.sha256);
        let refusal = String::new();
        stream
            .write_all(&peer::line(&Answer { proof, refusal }).unwrap())
            .unwrap();
        while stream.write_all(&Frame::Spoiled.bytes()).is_ok() {}
    });
    let mut node = Stage::start(SECRET, 1 << 30);
    let report = node.fetched(&file, &[&address]);
    assert!(
        matches!(&report, Report::Failed { kind: FailureKind::Peer, message, .. } if message.contains("corrupt data")),
        "{report:?}"
    );
    is_held(&node.fetched(&file, &[]), b"abc");
}
