//! What the ledger takes from work files: programs, jobs, grants, and orders that withdraw work.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidemill_wire::{End, Grant, Program, Withdrawn};

use crate::ledger::pace::Pace;
use crate::ledger::{GrantState, JobState, Ledger, ProgramState};
use tidemill_wire::intervals::Intervals;
use tidemill_wire::{one_line, WorkText};

/// What a work file orders besides work.
#[derive(Debug, Default, PartialEq)]
pub struct Orders {
    pub cancelled: Vec<u64>,
    pub withdrawn: Vec<Withdrawn>,
    /// Jobs that were defined again with another text; they must be sent to pilots again too.
    pub redefined: Vec<u64>,
    /// Limits of allocations, and allocations whose pilots are to leave.
    pub ends: Vec<End>,
    pub leave: Vec<String>,
    /// Grants and jobs that could not be used, one sentence each.
    pub problems: Vec<String>,
}

#[derive(Deserialize)]
struct JobHead {
    job: u64,
    program: u64,
    #[serde(default)]
    at_once: Option<u64>,
}

impl Ledger {
    /// Take the content of a work file. What it cancels is what earlier files granted.
    pub fn load(&mut self, work: WorkText) -> Orders {
        let mut orders = Orders::default();
        self.cancel(&work.cancel_jobs);
        orders.cancelled = work.cancel_jobs;
        orders.withdrawn = work.withdrawn.unwrap_or_default();
        self.withdraw(&orders.withdrawn);
        for text in work.programs {
            if let Err(problem) = self.load_program(one_line(text)) {
                orders.problems.push(problem);
            }
        }
        for text in work.jobs {
            match self.load_job(one_line(text)) {
                Ok(redefined) => orders.redefined.extend(redefined),
                Err(problem) => orders.problems.push(problem),
            }
        }
        for grant in work.grants {
            if let Err(problem) = self.load_grant(&grant) {
                orders.problems.push(problem);
            }
        }
        for allocation in work.ended {
            self.end_allocation(allocation);
        }
        for end in &work.ends {
            self.ends.insert(end.allocation.clone(), end.at_us);
        }
        self.leaving.extend(work.leave.iter().cloned());
        (orders.ends, orders.leave) = (work.ends, work.leave);
        self.draining |= work.drain;
        self.closed |= work.close;
        orders
    }

    fn load_program(&mut self, text: Box<RawValue>) -> Result<(), String> {
        let program: Program =
            serde_json::from_str(text.get()).map_err(|error| format!("failed to read a program: {error}"))?;
        let pace = Pace::estimated(program.event_s);
        let state = ProgramState {
            text,
            pace,
            free_events: 0,
            queue: BTreeMap::new(),
            program,
        };
        self.programs.entry(state.program.program).or_insert(state);
        Ok(())
    }

    /// Returns the job if it was known with another text.
    fn load_job(&mut self, text: Box<RawValue>) -> Result<Option<u64>, String> {
        let head: JobHead =
            serde_json::from_str(text.get()).map_err(|error| format!("failed to read a job: {error}"))?;
        let Some(program) = self.programs.get_mut(&head.program) else {
            return Err(format!(
                "job {} names program {}, which no work file defines",
                head.job, head.program
            ));
        };
        if let Some(known) = self.jobs.get_mut(&head.job) {
            // the job's grants wait in the queue of its program
            if known.program != head.program && self.grants.values().any(|grant| grant.job == head.job) {
                return Err(format!(
                    "job {} is defined again with program {} instead of {}",
                    head.job, head.program, known.program
                ));
            }
            let changed = known.text.get() != text.get();
            known.program = head.program;
            known.text = text;
            known.at_once = head.at_once;
            return Ok(changed.then_some(head.job));
        }
        let pace = self.replayed_pace.get(&head.job).copied();
        if let Some(pace) = pace {
            program.pace.learn((pace.event_s() * 1e6) as u64, 1);
        }
        let state = JobState {
            program: head.program,
            text,
            pace,
            at_once: head.at_once,
            out: 0,
        };
        self.jobs.insert(head.job, state);
        Ok(None)
    }

    fn load_grant(&mut self, grant: &Grant) -> Result<(), String> {
        let Some(job) = self.jobs.get(&grant.job) else {
            return Err(format!(
                "grant {} names job {}, which no work file defines",
                grant.grant, grant.job
            ));
        };
        if self.grants.contains_key(&grant.grant) {
            return Err(format!("grant {} is defined twice", grant.grant));
        }
        let mut open = Intervals::of(grant.first, grant.count);
        for &(first, end) in self.replayed.get(&grant.grant).map_or(&[][..], Intervals::spans) {
            open.remove(first, end);
        }
        self.cancelled.remove(&grant.job);
        if open.is_empty() {
            return Ok(());
        }
        self.orders += 1;
        let state = GrantState {
            job: grant.job,
            order: self.orders,
            chunk_max: grant.chunk_max,
            free: open.clone(),
            open,
        };
        if let Some(program) = self.programs.get_mut(&job.program) {
            program.queue.insert(state.order, grant.grant);
            program.free_events += state.free.len();
        }
        self.grants.insert(grant.grant, state);
        self.changed = true;
        Ok(())
    }

    fn cancel(&mut self, jobs: &[u64]) {
        if jobs.is_empty() {
            return;
        }
        self.cancelled.extend(jobs);
        let (dropped, kept) = std::mem::take(&mut self.grants)
            .into_iter()
            .partition(|(_, grant): &(u64, GrantState)| self.cancelled.contains(&grant.job));
        let dropped: HashMap<u64, GrantState> = dropped;
        self.grants = kept;
        for grant in dropped.values() {
            let program = self.jobs.get_mut(&grant.job).map(|job| {
                job.out = 0;
                job.program
            });
            if let Some(program) = program.and_then(|program| self.programs.get_mut(&program)) {
                program.queue.remove(&grant.order);
                program.free_events -= grant.free.len();
            }
        }
        for pilot in &mut self.pilots {
            pilot.outstanding.retain(|grant, _| !dropped.contains_key(grant));
            pilot.limbo.retain(|grant, _| !dropped.contains_key(grant));
        }
    }

    /// These events are not to run any more.
    fn withdraw(&mut self, parts: &[Withdrawn]) {
        for part in parts {
            let span = (part.first, part.first.saturating_add(part.count));
            self.withdrawn.entry(part.grant).or_default().add(span.0, span.1);
            for pilot in &mut self.pilots {
                pilot.drop_work(part.grant, span);
            }
            self.close(part.grant, span);
        }
    }

    /// What was withdrawn of these grants.
    pub fn withdrawn_of(&self, grants: &[Grant]) -> Vec<Withdrawn> {
        let mut found = Vec::new();
        for grant in grants {
            let end = grant.first.saturating_add(grant.count);
            let spans = self.withdrawn.get(&grant.grant);
            let spans = spans.map_or_else(Vec::new, |spans| spans.within(grant.first, end));
            found.extend(spans.into_iter().map(|(first, end)| Withdrawn {
                grant: grant.grant,
                job: grant.job,
                first,
                count: end - first,
            }));
        }
        found
    }

    /// Those of the jobs that are cancelled.
    pub fn cancelled_of(&self, grants: &[Grant]) -> Vec<u64> {
        let jobs: HashSet<u64> = grants.iter().map(|grant| grant.job).collect();
        jobs.into_iter()
            .filter(|job| self.cancelled.contains(job))
            .collect()
    }

    fn end_allocation(&mut self, allocation: String) {
        for key in self.pilots_of(&allocation).to_vec() {
            self.give_up(key);
        }
        self.ended.insert(allocation);
    }
}
