//! Which node holds which file, without a lead: recorded in small files in the fleet's directory.
//!
//! `FLEET/peers/SHA256` names nodes that have the file or are getting it. A pilot that needs the file reads this peers
//! file once. If it names no usable node, the pilot claims the file (`SHA256.claimN`, which only one pilot can create),
//! adds itself, and reads the shared file system. A pilot that loses the claim reads the peers file again a little
//! later, a few times. There is one peers file for each staged file, whatever the number of nodes. Peers files are
//! hints: pilots avoid a named node that is gone, and the next claim replaces it.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidemill_wire::{log, Holds, PilotMessage, Seek, Source};

use crate::error::LOG;
use crate::time::pause_after;

/// Most nodes that are named: each sends a file to 32 others at once.
const HOLDERS_MAX: usize = 16;
/// Nodes that are tried before the file is claimed.
const TRIED_MAX: usize = 4;
/// A peers file is smaller.
const BYTES_MAX: u64 = 64 << 10;
const FORMAT: u32 = 1;

/// FLEET/peers/SHA256.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Peers {
    format: u32,
    /// how often it was claimed: the next claim has the next number
    claims: u64,
    /// `ip:port`, the latest last
    holders: Vec<String>,
}

impl Peers {
    /// The nodes to ask: a few, rotated by `turn` so that pilots ask different ones, and none of `avoid`.
    fn choose(&self, avoid: &[String], turn: usize) -> Vec<String> {
        let mut able: Vec<String> = self.holders.clone();
        able.retain(|holder| !avoid.contains(holder));
        let turn = turn % able.len().max(1);
        able.rotate_left(turn);
        able.truncate(TRIED_MAX);
        able
    }

    /// The same with this node, and without the nodes that did not serve it; None if nothing changes.
    fn joined(&self, me: &str, avoid: &[String]) -> Option<Peers> {
        let mut holders = self.holders.clone();
        holders.retain(|holder| !avoid.contains(holder));
        if holders.iter().any(|holder| holder == me) || holders.len() >= HOLDERS_MAX {
            return None;
        }
        holders.push(me.to_owned());
        Some(Peers {
            format: FORMAT,
            holders,
            ..*self
        })
    }
}

/// What this pilot has published about one file.
#[derive(Debug, Default)]
struct Told {
    /// This pilot's address, as last written.
    named: Option<String>,
    avoid: Vec<String>,
    /// How often another pilot had the claim, and when to read the peers file again.
    looks: usize,
    look_at_us: Option<u64>,
}

/// The peers files of a fleet, as one pilot uses them.
#[derive(Debug)]
pub struct Board {
    /// FLEET/peers
    directory: PathBuf,
    pub pilot: String,
    pub secret: String,
    /// Makes pilots ask different nodes.
    turn: usize,
    serves: Option<String>,
    told: BTreeMap<String, Told>,
    ready: Vec<Source>,
}

impl Board {
    pub fn new(fleet: &Path, pilot: &str, secret: &str) -> Self {
        let turn = pilot.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        Board {
            directory: fleet.join("peers"),
            pilot: pilot.to_owned(),
            secret: secret.to_owned(),
            turn,
            serves: None,
            told: BTreeMap::new(),
            ready: Vec::new(),
        }
    }

    /// Take a message that would go to the lead if there were one; `advance` returns the answers.
    pub fn hear(&mut self, message: &PilotMessage, now_us: u64) {
        match message {
            PilotMessage::Seek(seek) => {
                let found = self.seek(seek, now_us);
                self.ready.extend(found);
            }
            PilotMessage::Holds(holds) => self.hold(holds),
            _ => {}
        }
    }

    /// The answers; reads peers files again where that is due.
    pub fn advance(&mut self, now_us: u64) -> Vec<Source> {
        let due = |told: &Told| told.look_at_us.is_some_and(|at_us| now_us >= at_us);
        let names: Vec<String> = self
            .told
            .iter()
            .filter(|(_, told)| due(told))
            .map(|(sha256, _)| sha256.clone())
            .collect();
        let mut answers = std::mem::take(&mut self.ready);
        answers.extend(names.iter().filter_map(|sha256| self.look(sha256, now_us)));
        answers
    }

    pub fn due_us(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(0);
        }
        self.told.values().filter_map(|told| told.look_at_us).min()
    }

    fn seek(&mut self, seek: &Seek, now_us: u64) -> Option<Source> {
        self.serves.clone_from(&seek.serves);
        let told = self.told.entry(seek.sha256.clone()).or_default();
        (told.avoid, told.looks) = (seek.avoid.clone(), 0);
        self.look(&seek.sha256, now_us)
    }

    /// The nodes that have the file, or none (read the shared file system) with the claim or after too many tries.
    fn look(&mut self, sha256: &str, now_us: u64) -> Option<Source> {
        let told = self.told.get_mut(sha256)?;
        told.look_at_us = None;
        let path = self.directory.join(sha256);
        let found = read(&path);
        let mut avoid = told.avoid.clone();
        avoid.extend(self.serves.clone());
        let peers = found.choose(&avoid, self.turn);
        if peers.is_empty() {
            match claim(&self.directory, sha256, found.claims) {
                Ok(true) => {
                    let claimed = Peers {
                        format: FORMAT,
                        claims: found.claims + 1,
                        holders: self.serves.iter().cloned().collect(),
                    };
                    tell_failure(&path, write(&path, &self.pilot, &claimed));
                    told.named.clone_from(&self.serves);
                }
                Ok(false) => {
                    told.looks += 1;
                    if let (Some(pause_us), _) = pause_after(told.looks, u64::MAX) {
                        // not all at once
                        told.look_at_us = Some(now_us + pause_us + (self.turn as u64 % pause_us) / 2);
                        return None;
                    }
                }
                Err(error) => tell_failure(&path, Err(error)),
            }
        }
        Some(Source {
            sha256: sha256.to_owned(),
            peers,
        })
    }

    /// This pilot has the file, or will not have it: publish its address, or stop doing so.
    fn hold(&mut self, holds: &Holds) {
        if !holds.held {
            self.told.remove(&holds.sha256); // a node that still asks here is refused
            return;
        }
        let told = self.told.entry(holds.sha256.clone()).or_default();
        let Some(me) = holds.serves.clone().filter(|me| told.named.as_ref() != Some(me)) else {
            return;
        };
        let mut avoid = std::mem::take(&mut told.avoid);
        avoid.extend(told.named.take()); // where our last stage was
        let path = self.directory.join(&holds.sha256);
        if let Some(joined) = read(&path).joined(&me, &avoid) {
            tell_failure(&path, write(&path, &self.pilot, &joined));
        }
        told.named = Some(me);
    }
}

/// The contents of a peers file; empty if it cannot be read.
fn read(path: &Path) -> Peers {
    use std::io::Read;
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
    let peers: Option<Peers> = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
    peers.filter(|peers| peers.format == FORMAT).unwrap_or_default()
}

/// Make the claim that follows `claims` earlier ones; true if this pilot has it.
fn claim(directory: &Path, sha256: &str, claims: u64) -> std::io::Result<bool> {
    let path = |number: u64| directory.join(format!("{sha256}.claim{number}"));
    let make = || {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path(claims + 1))
    };
    let made = make().or_else(|error| {
        if error.kind() != ErrorKind::NotFound {
            return Err(error);
        }
        let made = std::fs::DirBuilder::new().mode(0o700).create(directory);
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => make(),
        }
    });
    match made {
        Ok(_) => {
            if claims > 0 {
                let _ = std::fs::remove_file(path(claims)); // the earlier claim is obsolete
            }
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Temporary file and rename; not fsynced, since a hint that is lost costs one read.
fn write(path: &Path, pilot: &str, peers: &Peers) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("{pilot}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(&temporary)
        .and_then(|mut file| file.write_all(&serde_json::to_vec(peers)?))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary); // it may not be there
    }
    written
}

fn tell_failure(path: &Path, result: std::io::Result<()>) {
    if let Err(error) = result {
        let path = path.display().to_string();
        LOG.warning("peers.untold", &[("path", &path), ("cause", &log::cause(&error))]);
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
