//! Work without a lead: this allocation's share and orders come from work files, polled at most once in `top_up_s`.
//!
//! Operations on the fleet's file system per poll: one open for the next work file (which usually does not exist), one
//! for the agent's sign of life, one for each STOP file. A start adds one listing, whatever the number of files: the
//! `--work-from` file holds the first share of this allocation, and the agent writes further shares and orders only
//! after it has seen the pilot's first record, hence into files that come after those listed.
//!
//! A restart of the same allocation takes nothing from files that existed before it: the agent takes back what the
//! predecessor was given.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidemill_wire::{
    log, AliveFile, Cancel, Deadline, Drain, Grant, JobDef, LeadMessage, Program, Settings, Work, WorkReader,
    WorkText,
};

use super::link::LinkEvent;
use crate::error::{PilotError, LOG};
use crate::time::seconds_us;

/// Most work files read in one poll; the next turn reads more.
const FILES_PER_LOOK: usize = 64;
const LATER_US: u64 = 1_000_000;

/// The work files of a fleet, as one allocation sees them.
pub struct Mailbox {
    allocation: String,
    reader: WorkReader,
    stop_paths: Vec<PathBuf>,
    top_up_us: u64,
    look_at_us: u64,
    alive: AliveFile,
    agent_lives: bool,
    stopped: bool,
    /// No more work follows: leave when there is none left.
    pub closed: bool,
    /// After the first file, skip to this one: the last that existed at the start.
    skip_to: Option<u64>,
    /// Time until the second poll, so that allocations that start together do not poll together.
    first_wait_us: Option<u64>,
    problem: String,
}

impl Mailbox {
    /// `first` is the number of the file with the first share; None: take nothing from existing files.
    pub fn open(
        fleet: &Path,
        allocation: &str,
        settings: &Settings,
        first: Option<u64>,
        now_us: u64,
    ) -> Result<Self, PilotError> {
        let listed = WorkReader::new(fleet).last()?;
        let top_up_us = seconds_us(settings.top_up_s).max(1);
        let spread = allocation
            .bytes()
            .fold(now_us, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut mailbox = Mailbox {
            reader: WorkReader::from(fleet, first.unwrap_or(listed).max(1)),
            stop_paths: std::iter::once(fleet.join("STOP"))
                .chain(settings.stop_files.iter().map(PathBuf::from))
                .collect(),
            top_up_us,
            look_at_us: now_us,
            alive: AliveFile::every(fleet, seconds_us(settings.dead_after_s), top_up_us, now_us),
            allocation: allocation.to_owned(),
            agent_lives: true,
            stopped: false,
            closed: false,
            skip_to: first.map(|_| listed),
            first_wait_us: Some(top_up_us / 2 + spread % (top_up_us / 2 + 1)),
            problem: String::new(),
        };
        if first.is_none() {
            // the last file shows whether the fleet drains or is closed: the agent repeats that, but no grants
            mailbox.skip_given(listed);
        }
        Ok(mailbox)
    }

    fn skip_given(&mut self, listed: u64) {
        if let Ok(Some(work)) = self.reader.read_next() {
            self.closed = work.close;
            self.stopped = work.drain;
        }
        self.reader.skip_to(listed + 1);
    }

    pub fn agent_lives(&self) -> bool {
        self.agent_lives
    }

    pub fn due_us(&self) -> u64 {
        self.look_at_us.min(self.alive.due_us())
    }

    /// Check what is due.
    pub fn advance(&mut self, now_us: u64) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        self.agent_lives = self.alive.look(now_us);
        if now_us < self.look_at_us {
            return events;
        }
        self.look_at_us = now_us + self.first_wait_us.take().unwrap_or(self.top_up_us);
        if let Some(path) = self.stop_paths.iter().find(|path| path.exists()) {
            events.push(drain("stop"));
            log_stop(path);
        } else if std::mem::take(&mut self.stopped) {
            events.push(drain("drain"));
        }
        for count in 0.. {
            match self.reader.read_next() {
                Ok(Some(work)) => {
                    self.read(work, &mut events);
                    self.reader.skip_to(self.skip_to.take().unwrap_or(0));
                }
                Ok(None) => break,
                Err(error) => {
                    self.tell_problem(&log::cause(&error));
                    self.look_at_us = now_us + LATER_US.max(self.top_up_us);
                    break;
                }
            }
            if count >= FILES_PER_LOOK {
                self.look_at_us = now_us;
                break;
            }
        }
        events
    }

    /// Whether there is more to read before anything may be started.
    pub fn is_behind(&self, now_us: u64) -> bool {
        self.look_at_us <= now_us
    }

    fn tell_problem(&mut self, problem: &str) {
        if self.problem != problem {
            LOG.error("work.unreadable", &[("error", &problem)]);
            problem.clone_into(&mut self.problem);
        }
    }

    /// Translate a work file into events, in the order in which the lead would have sent them.
    fn read(&mut self, work: WorkText, events: &mut Vec<LinkEvent>) {
        self.problem.clear();
        let number = work.number;
        if !work.cancel_jobs.is_empty() || work.withdrawn.is_some() {
            let (jobs, withdrawn) = (work.cancel_jobs.clone(), work.withdrawn.clone());
            let cancel = Cancel {
                jobs,
                events: withdrawn,
            };
            events.push(LinkEvent::Message(LeadMessage::Cancel(cancel)));
        }
        if work.ended.contains(&self.allocation) {
            events.push(LinkEvent::Revoked);
        }
        for end in work.ends.iter().filter(|end| end.allocation == self.allocation) {
            let deadline = Deadline { at_us: end.at_us };
            events.push(LinkEvent::Message(LeadMessage::Deadline(deadline)));
        }
        self.closed |= work.close;
        let leaves = work.drain || work.leave.contains(&self.allocation);
        match self.share(work) {
            Ok(None) => {}
            Ok(Some(share)) => events.push(LinkEvent::Message(LeadMessage::Work(share))),
            Err(error) => {
                let error = log::cause(&error);
                LOG.error("work.unusable", &[("number", &number), ("error", &error)]);
            }
        }
        if leaves {
            events.push(drain("drain"));
        }
    }

    /// Our part of a file, with the programs and jobs that it needs.
    fn share(&self, work: WorkText) -> Result<Option<Work>, serde_json::Error> {
        let mut grants: Vec<Grant> = Vec::new();
        for share in work
            .shares
            .iter()
            .filter(|share| share.allocation == self.allocation)
        {
            let given = |&place: &u64| work.grants.get(usize::try_from(place).ok()?).cloned();
            grants.extend(share.grants.iter().filter_map(given));
        }
        if grants.is_empty() {
            return Ok(None);
        }
        let needed: HashSet<u64> = grants.iter().map(|grant| grant.job).collect();
        let mut jobs: Vec<JobDef> = Vec::new();
        for text in &work.jobs {
            let head: JobHead = serde_json::from_str(text.get())?;
            if needed.contains(&head.job) {
                jobs.push(serde_json::from_str(text.get())?);
            }
        }
        let needed: HashSet<u64> = jobs.iter().map(|job| job.program).collect();
        let programs = programs_of(&work.programs, &needed)?;
        Ok(Some(Work {
            programs,
            jobs,
            grants,
        }))
    }
}

#[derive(Deserialize)]
struct JobHead {
    job: u64,
}

fn programs_of(texts: &[Box<RawValue>], needed: &HashSet<u64>) -> Result<Vec<Program>, serde_json::Error> {
    let mut programs: HashMap<u64, Program> = HashMap::new();
    for text in texts {
        let program: Program = serde_json::from_str(text.get())?;
        if needed.contains(&program.program) {
            programs.insert(program.program, program);
        }
    }
    Ok(programs.into_values().collect())
}

fn drain(reason: &str) -> LinkEvent {
    let reason = reason.to_owned();
    LinkEvent::Message(LeadMessage::Drain(Drain { reason }))
}

fn log_stop(path: &Path) {
    let path = path.display().to_string();
    LOG.warning("pilot.stop_file", &[("file", &path)]);
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
