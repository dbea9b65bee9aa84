//! One file: sources in turn, the whole verified, the pilot told.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

/// Fetches that run, and when the file was first asked for.
#[derive(Debug, Default)]
pub struct Fetches {
    running: Mutex<HashMap<String, ()>>,
    ended: Condvar,
}

impl Fetches {
    /// Wait for a place; false where this file is being fetched already.
    fn enter(&self, sha256: &str) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = self
            .ended
            .wait_while(running, |running| {
                running.len() >= FETCHES_MAX && !running.contains_key(sha256)
            })
            .unwrap_or_else(PoisonError::into_inner);
        running.insert(sha256.to_owned(), ()).is_none()
    }

    fn leave(&self, sha256: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(sha256);
        drop(running);
        self.ended.notify_all();
    }
}

/// Begin to fetch; the pilot hears of it.
pub fn start(node: &Arc<Node>, (file, fast): (StagedFile, bool), peers: Vec<String>) {
    let node = Arc::clone(node);
    std::thread::spawn(move || {
        if !node.fetches.enter(&file.sha256) {
            return; // the answer to the first order is the answer to this one
        }
        let report = fetch(&node, (&file, fast), &peers);
        node.fetches.leave(&file.sha256);
        node.pilot.tell(&report);
    });
}

/// Begin to hold what an earlier stage held; the pilot hears of it. Others may ask for it at once.
pub fn adopt(node: &Arc<Node>, sha256: String, bytes: u64, fast: bool) {
    let known = node.store.adopt(&sha256, bytes, fast);
    let node = Arc::clone(node);
    std::thread::spawn(move || {
        let since = Instant::now();
        node.fetches.enter(&sha256); // nobody fetches what is held
        let result = known.and_then(|entry| {
            entry.read_again()?;
            let came = entry.finish()?;
            Ok((entry, came))
        });
        let report = match result {
            Ok((entry, came)) => held(&entry, since, came),
            Err(error) => {
                LOG.warning(
                    "file.not_adopted",
                    &[("sha256", &sha256), ("cause", &cause(&error))],
                );
                node.store.remove(&sha256);
                Report::Failed {
                    sha256: sha256.clone(),
                    kind: FailureKind::Shared,
                    message: cause(&error),
                    avoid: Vec::new(),
                }
            }
        };
        node.fetches.leave(&sha256);
        node.pilot.tell(&report);
    });
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
        let message = format!("`{}` is no SHA-256 digest", file.sha256);
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

/// `blames`: another node had its part in it.
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
