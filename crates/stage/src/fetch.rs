//! Fetches one file: tries its sources in turn, verifies the whole, and reports to the pilot.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidemill_wire::log::{cause, Log};
use tidemill_wire::StagedFile;

use crate::control::{FailureKind, Report};
use crate::entry::{Entry, Phase};
use crate::error::FetchError;
use crate::{shared, take, Node};

const LOG: Log = Log::new("stage");
/// Files that come at the same time; more wait.
const FETCHES_MAX: usize = 4;
/// Files that wait; a node holds fewer.
const QUEUED_MAX: usize = 10_000;

/// What is to be done for one file.
#[derive(Debug)]
enum Work {
    Fetch {
        file: StagedFile,
        fast: bool,
        peers: Vec<String>,
    },
    /// look again at all of what an earlier stage left
    Adopt(Result<Arc<Entry>, FetchError>),
}

/// Files that come or wait for it. Threads take what waits until nothing does.
#[derive(Debug, Default)]
pub struct Fetches(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<(String, Work)>,
    /// waiting or coming
    known: HashSet<String>,
    threads: usize,
}

/// Begin to fetch; the pilot gets a report at the end.
pub fn start(node: &Arc<Node>, (file, fast): (StagedFile, bool), peers: Vec<String>) {
    begin(node, file.sha256.clone(), Work::Fetch { file, fast, peers });
}

/// Begin to hold what an earlier stage held; the pilot gets a report at the end. Other nodes may ask for it at once.
pub fn adopt(node: &Arc<Node>, sha256: String, bytes: u64, fast: bool) {
    let known = node.store.adopt(&sha256, bytes, fast);
    begin(node, sha256, Work::Adopt(known));
}

fn begin(node: &Arc<Node>, sha256: String, work: Work) {
    let mut waiting = node.fetches.locked();
    if !waiting.known.insert(sha256.clone()) {
        return; // the answer to the first order is the answer to this one
    }
    if waiting.queue.len() >= QUEUED_MAX {
        waiting.known.remove(&sha256);
        drop(waiting);
        let message = format!("{QUEUED_MAX} files wait already");
        return node.pilot.tell(&not_now(&sha256, message));
    }
    waiting.queue.push_back((sha256, work));
    if waiting.threads == FETCHES_MAX {
        return;
    }
    waiting.threads += 1;
    drop(waiting);
    let worker = Arc::clone(node);
    if let Err(error) = std::thread::Builder::new().spawn(move || work_off(&worker)) {
        give_up(node, &error);
    }
}

/// A thread's life.
fn work_off(node: &Node) {
    loop {
        let mut waiting = node.fetches.locked();
        let Some((sha256, work)) = waiting.queue.pop_front() else {
            waiting.threads -= 1;
            return;
        };
        drop(waiting);
        let report = match work {
            Work::Fetch { file, fast, peers } => fetch(node, (&file, fast), &peers),
            Work::Adopt(entry) => read_again(node, &sha256, entry),
        };
        node.fetches.locked().known.remove(&sha256);
        node.pilot.tell(&report);
    }
}

/// A thread could not be started: what waits is done by the others, or not at all.
fn give_up(node: &Node, error: &io::Error) {
    let mut waiting = node.fetches.locked();
    waiting.threads -= 1;
    if waiting.threads > 0 {
        return;
    }
    let left = std::mem::take(&mut waiting.queue);
    for (sha256, _) in &left {
        waiting.known.remove(sha256);
    }
    drop(waiting);
    for (sha256, work) in &left {
        if matches!(work, Work::Adopt(_)) {
            node.store.remove(sha256);
        }
        let message = format!("failed to start a thread: {error}");
        node.pilot.tell(&not_now(sha256, message));
    }
}

fn not_now(sha256: &str, message: String) -> Report {
    Report::Failed {
        sha256: sha256.to_owned(),
        kind: FailureKind::Shared,
        message,
        avoid: Vec::new(),
    }
}

impl Fetches {
    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_again(node: &Node, sha256: &str, entry: Result<Arc<Entry>, FetchError>) -> Report {
    let since = Instant::now();
    let result = entry.and_then(|entry| {
        entry.read_again()?;
        let came = entry.finish()?;
        Ok((entry, came))
    });
    match result {
        Ok((entry, came)) => held(&entry, since, came),
        Err(error) => {
            LOG.warning(
                "file.not_adopted",
                &[("sha256", &sha256), ("cause", &cause(&error))],
            );
            node.store.remove(sha256);
            not_now(sha256, cause(&error))
        }
    }
}

fn fetch(node: &Node, (file, fast): (&StagedFile, bool), peers: &[String]) -> Report {
    let since = Instant::now();
    let failed = |kind, message: String, avoid| Report::Failed {
        sha256: file.sha256.clone(),
        kind,
        message,
        avoid,
    };
    if !is_digest(&file.sha256) {
        let message = format!("`{}` is not a SHA-256 digest", file.sha256);
        return failed(FailureKind::Shared, message, Vec::new());
    }
    let entry = match node.store.have(&file.sha256, file.bytes, fast) {
        Ok(entry) => entry,
        Err(error) => return failed(kind_of(&error, false), cause(&error), Vec::new()),
    };
    if entry.phase() == Phase::Held {
        return held(&entry, since, (Vec::new(), 0));
    }
    let (mut said, mut avoid) = (Vec::new(), Vec::new());
    let mut kind = FailureKind::Peer;
    let sources = peers.iter().map(Some).chain(peers.is_empty().then_some(None));
    for peer in sources {
        let result = match peer {
            Some(address) => take::take(node, &entry, address),
            None => shared::read(file, &entry),
        };
        match result.and_then(|()| entry.finish()) {
            Ok(came) => return held(&entry, since, came),
            Err(error) => {
                LOG.warning(
                    "source.failed",
                    &[
                        ("sha256", &file.sha256),
                        ("peer", &peer),
                        ("blocks", &entry.here()),
                        ("cause", &cause(&error)),
                    ],
                );
                avoid.extend(peer.cloned());
                if matches!(error, FetchError::Digest { .. }) {
                    avoid.extend(entry.take_blamed());
                }
                kind = kind_of(&error, !avoid.is_empty());
                said.push(cause(&error));
                if kind == FailureKind::Full {
                    node.store.remove(&file.sha256); // what is here of it takes room
                    break;
                }
            }
        }
    }
    avoid.sort();
    avoid.dedup();
    failed(kind, said.join("; "), avoid)
}

/// The kind of a failure; the flag says whether another node contributed to it.
fn kind_of(error: &FetchError, blames: bool) -> FailureKind {
    if error.is_full() {
        FailureKind::Full
    } else if blames {
        FailureKind::Peer
    } else {
        FailureKind::Shared
    }
}

fn held(entry: &Entry, since: Instant, (from, shared_bytes): (Vec<String>, u64)) -> Report {
    Report::Held {
        sha256: entry.sha256.clone(),
        path: entry.path().display().to_string(),
        bytes: entry.bytes,
        ms: since.elapsed().as_millis() as u64,
        shared_bytes,
        from,
    }
}

/// Its name becomes a file name.
fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
