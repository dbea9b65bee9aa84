//! Decides which pilot gets a file from which. Pure: takes what pilots report and `now`, returns the answers to send.
//!
//! The first pilot that asks for a file reads it from the shared file system. Every other pilot gets a parent that has
//! the file or is receiving it, so that each node serves at most `FAN_OUT` others and the tree is as flat as that
//! allows; a parent passes on what it has while the rest arrives. A pilot that lost its parent asks again and names
//! those that it wants to avoid; it keeps what it has. Where nodes cannot reach each other, they read the shared file
//! system in turns.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::PilotKey;

/// Children of a node: each costs it the whole file once more through its link, and two make the tree flat enough.
/// docs/decisions/evidence/staging.md has the measurements and the model.
pub const FAN_OUT: usize = 2;
/// A pilot that could not use this many parents has no route to other nodes; it reads the file itself when its turn
/// comes.
const PARENTS_TRIED_MAX: usize = 3;
/// A parent about which this many pilots have complained gets no more children.
const COMPLAINTS_MAX: usize = 2;
/// A silent reader is waited for during this time, plus the time that the file takes at the slow rate.
const PATIENCE_US: u64 = 60_000_000;
const SLOW_BYTES_PER_US: u64 = 20;
/// Files that are remembered; beyond that, the one that was requested longest ago is forgotten.
const FILES_MAX: usize = 4096;

/// What one pilot has to do with one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It reads the shared file system, since then.
    Reads { since: u64 },
    /// It was given this parent.
    Takes { parent: PilotKey },
    /// It asked and has no answer yet; its place in the line.
    Waits { place: u64 },
    /// It has it all.
    Holds,
}

#[derive(Debug)]
struct Member {
    part: Part,
    children: usize,
    /// Steps to the source when it got its parent: the nearest are given first.
    depth: usize,
    avoid: Vec<String>,
}

#[derive(Debug, Default)]
struct File {
    bytes: u64,
    /// of them in areas with a budget
    areas: BTreeMap<String, i64>,
    asked_at: u64,
    members: BTreeMap<PilotKey, Member>,
    /// Who reads the shared file system, since when.
    readers: BTreeMap<PilotKey, u64>,
    /// By depth: who could take another child.
    open: BTreeSet<(usize, PilotKey)>,
    line: BTreeMap<u64, PilotKey>,
    next_place: u64,
    complaints: BTreeMap<PilotKey, BTreeSet<PilotKey>>,
}

/// The answer to a pilot: where to get a file from; no peer means from the shared file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub pilot: PilotKey,
    pub sha256: String,
    pub peers: Vec<String>,
    /// What is read now, per area with a budget.
    pub reads: BTreeMap<String, i64>,
}

/// A file that a pilot asks for.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    pub sha256: String,
    pub bytes: u64,
    /// Of them in areas with a budget.
    pub areas: BTreeMap<String, i64>,
}

/// Everything that is known of files and nodes.
#[derive(Debug)]
pub struct Sources {
    /// Nodes give files to each other.
    peers: bool,
    /// Pilots that read the same file from the shared file system at the same time.
    readers_max: usize,
    addresses: BTreeMap<PilotKey, String>,
    files: BTreeMap<String, File>,
}

impl Sources {
    pub fn new(peers: bool, readers_max: usize) -> Self {
        Sources {
            peers,
            readers_max: readers_max.max(1),
            addresses: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// A pilot has come, or says anew where it serves others.
    pub fn serves(&mut self, pilot: PilotKey, address: Option<String>) {
        match address {
            Some(address) => drop(self.addresses.insert(pilot, address)),
            None => drop(self.addresses.remove(&pilot)),
        }
    }

    /// The pilot is gone, for now or for good: when it comes back it says what it has and what it seeks.
    pub fn leave(&mut self, pilot: PilotKey, now: u64) -> Vec<Answer> {
        self.addresses.remove(&pilot);
        let mut touched = Vec::new();
        for (sha256, file) in &mut self.files {
            if file.take_out(pilot).is_some() {
                touched.push(sha256.clone());
            }
        }
        let answers = touched.iter().flat_map(|sha256| self.answer(sha256, now));
        answers.collect()
    }

    /// A pilot asks for a file. The answer may come later, to it and to others.
    pub fn seek(&mut self, pilot: PilotKey, wish: Wish, avoid: Vec<String>, now: u64) -> Vec<Answer> {
        let sha256 = &wish.sha256;
        self.make_room(sha256);
        let file = self.files.entry(sha256.clone()).or_default();
        (file.bytes, file.areas, file.asked_at) = (wish.bytes, wish.areas, now);
        let before = file.take_out(pilot);
        if let Some(Part::Takes { parent }) = before.as_ref().map(|member| member.part) {
            if self.addresses.get(&parent).is_some_and(|its| avoid.contains(its)) {
                file.complaints.entry(parent).or_default().insert(pilot);
            }
        }
        let place = file.next_place;
        file.next_place += 1;
        file.line.insert(place, pilot);
        let member = Member {
            part: Part::Waits { place },
            children: before.map_or(0, |member| member.children),
            depth: 0,
            avoid,
        };
        file.members.insert(pilot, member);
        self.answer(sha256, now)
    }

    /// A pilot has the whole file, or will never have it.
    pub fn holds(&mut self, pilot: PilotKey, sha256: &str, held: bool, now: u64) -> Vec<Answer> {
        self.make_room(sha256);
        let peers = self.peers;
        let file = self.files.entry(sha256.to_owned()).or_default();
        file.asked_at = now;
        let before = file.take_out(pilot);
        file.complaints.remove(&pilot);
        if held {
            let children = before.map_or(0, |member| member.children);
            file.join(pilot, (Part::Holds, 0, children), peers);
        }
        self.answer(sha256, now)
    }

    /// Time has passed: readers that are silent for too long are no longer waited for.
    pub fn tick(&mut self, now: u64) -> Vec<Answer> {
        let waiting = self.files.iter().filter(|(_, file)| !file.line.is_empty());
        let names: Vec<String> = waiting.map(|(name, _)| name.clone()).collect();
        names.iter().flat_map(|sha256| self.answer(sha256, now)).collect()
    }

    /// Answers each pilot in the line that can get the file now.
    fn answer(&mut self, sha256: &str, now: u64) -> Vec<Answer> {
        let Some(file) = self.files.get_mut(sha256) else {
            return Vec::new();
        };
        let mut answers = Vec::new();
        let mut next = 0;
        while let Some((&place, &pilot)) = file.line.range(next..).next() {
            next = place + 1;
            let turn = file.readers_at(now) < self.readers_max;
            if !turn && file.open.is_empty() {
                break;
            }
            let parent = file.parent_for(pilot, &self.addresses);
            let (part, depth) = match parent {
                Some((parent, depth)) => (Part::Takes { parent }, depth + 1),
                None if turn => (Part::Reads { since: now }, 0),
                None => continue,
            };
            let before = file.take_out(pilot);
            let children = before.map_or(0, |member| member.children);
            file.join(pilot, (part, depth, children), self.peers);
            let address = parent.and_then(|(parent, _)| self.addresses.get(&parent));
            answers.push(Answer {
                pilot,
                sha256: sha256.to_owned(),
                peers: address.cloned().into_iter().collect(),
                reads: if parent.is_none() {
                    file.areas.clone()
                } else {
                    BTreeMap::new()
                },
            });
        }
        answers
    }

    fn make_room(&mut self, sha256: &str) {
        if self.files.len() < FILES_MAX || self.files.contains_key(sha256) {
            return;
        }
        let oldest = self
            .files
            .iter()
            .filter(|(_, file)| file.line.is_empty()) // else a waiting pilot would never get an answer
            .min_by_key(|(_, file)| file.asked_at)
            .map(|(name, _)| name.clone());
        if let Some(oldest) = oldest {
            self.files.remove(&oldest);
        }
    }
}

impl File {
    /// Take a pilot's part away.
    fn take_out(&mut self, pilot: PilotKey) -> Option<Member> {
        let member = self.members.remove(&pilot)?;
        self.open.remove(&(member.depth, pilot));
        match member.part {
            Part::Reads { .. } => drop(self.readers.remove(&pilot)),
            Part::Waits { place } => drop(self.line.remove(&place)),
            Part::Holds => {}
            Part::Takes { parent } => {
                if let Some(its) = self.members.get_mut(&parent) {
                    its.children = its.children.saturating_sub(1);
                    if !matches!(its.part, Part::Waits { .. }) {
                        self.open.insert((its.depth, parent));
                    }
                }
            }
        }
        Some(member)
    }

    /// Give a pilot its part; where nodes serve each other it can be a parent from now on.
    fn join(&mut self, pilot: PilotKey, (part, depth, children): (Part, usize, usize), peers: bool) {
        match part {
            Part::Reads { since } => drop(self.readers.insert(pilot, since)),
            Part::Takes { parent } => {
                if let Some(its) = self.members.get_mut(&parent) {
                    its.children += 1;
                    if its.children >= FAN_OUT {
                        self.open.remove(&(its.depth, parent));
                    }
                }
            }
            Part::Holds | Part::Waits { .. } => {}
        }
        let member = Member {
            part,
            children,
            depth,
            avoid: Vec::new(),
        };
        self.members.insert(pilot, member);
        if peers && children < FAN_OUT {
            self.open.insert((depth, pilot));
        }
    }

    /// Readers that are still waited for.
    fn readers_at(&self, now: u64) -> usize {
        let patience = PATIENCE_US + self.bytes / SLOW_BYTES_PER_US;
        let waited_for = |since: &&u64| now < **since + patience;
        self.readers.values().filter(waited_for).count()
    }

    /// Steps from this pilot to one that has or reads the file; None: there is no such way now, or it leads through
    /// `without`, who would wait for itself.
    fn depth_of(&self, pilot: PilotKey, without: PilotKey) -> Option<usize> {
        let mut at = pilot;
        for depth in 0..=self.members.len() {
            if at == without {
                return None;
            }
            match self.members.get(&at)?.part {
                Part::Holds | Part::Reads { .. } => return Some(depth),
                Part::Takes { parent } => at = parent,
                Part::Waits { .. } => return None,
            }
        }
        None
    }

    /// The parent with room for one more child that is nearest to the source, and how near.
    fn parent_for(
        &self,
        pilot: PilotKey,
        addresses: &BTreeMap<PilotKey, String>,
    ) -> Option<(PilotKey, usize)> {
        let avoid = &self.members.get(&pilot)?.avoid;
        if avoid.len() >= PARENTS_TRIED_MAX {
            return None;
        }
        let complaints = |key| self.complaints.get(key).map_or(0, BTreeSet::len);
        self.open.iter().find_map(|(_, key)| {
            let serves = addresses.get(key).is_some_and(|its| !avoid.contains(its));
            let fit = serves && complaints(key) < COMPLAINTS_MAX;
            let depth = fit.then(|| self.depth_of(*key, pilot)).flatten()?;
            Some((*key, depth))
        })
    }
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
