//! Staged inputs: what they take, and which ones have to make room. Pure.

use std::collections::HashSet;

use super::{Action, Binding};

impl Binding {
    /// Reserve memory for a job's input, counted once (0: it is in the fast tier); false if slots must read it
    /// directly. Inputs that no work here uses make room for it.
    pub fn hold_input(&mut self, job: u64, sha256: &str, memory_mb: u64, actions: &mut Vec<Action>) -> bool {
        if self.inputs.contains_key(sha256) {
            return true;
        }
        if memory_mb > 0 {
            if self.keeps_out(job, memory_mb) {
                return false;
            }
            if !self.take_for_input(memory_mb) {
                self.drop_inputs((false, false), actions);
                if !self.take_for_input(memory_mb) {
                    return false;
                }
            }
        }
        self.inputs.insert(sha256.to_owned(), memory_mb);
        true
    }

    fn take_for_input(&mut self, memory_mb: u64) -> bool {
        let left_mb = self.images.store_mb.saturating_sub(self.images.held_mb);
        let holds = memory_mb <= left_mb && self.room.hold(memory_mb);
        if holds {
            self.images.held_mb += memory_mb;
        }
        holds
    }

    /// Whether an input of `memory_mb` would leave no room for the job's own slot or its images.
    fn keeps_out(&self, job: u64, memory_mb: u64) -> bool {
        let Some((_, shape)) = self.needs(job) else {
            return true;
        };
        let unused = self.unused_inputs((false, false));
        let used = self.inputs.iter().filter(|(sha256, _)| !unused.contains(sha256));
        let held_mb: u64 = self.images_mb(&shape) + used.map(|(_, mb)| mb).sum::<u64>() + memory_mb;
        let slot_mb = self.need(&shape).map_or(u64::MAX, |need| need.memory_mb);
        held_mb > self.images.store_mb || slot_mb.saturating_add(held_mb) > self.room.whole().1
    }

    /// Whether it is an input of a job that is not finished here.
    pub fn names_input(&self, sha256: &str) -> bool {
        let mut inputs = self.jobs.values().flat_map(|def| &def.inputs);
        inputs.any(|input| input.sha256.as_deref() == Some(sha256))
    }

    /// It is not held, or not any more.
    pub fn release_input(&mut self, sha256: &str) {
        if let Some(memory_mb) = self.inputs.remove(sha256) {
            self.images.held_mb -= memory_mb;
            self.room.release(memory_mb);
        }
    }

    /// Inputs, in memory or in the fast tier, of which no slot has work and (unless for a shape that is starved) none is
    /// queued.
    fn unused_inputs(&self, (starved, fast): (bool, bool)) -> Vec<String> {
        if self.inputs.is_empty() {
            return Vec::new();
        }
        let mut jobs: HashSet<u64> = self.tickets.values().map(|known| known.piece.job).collect();
        if !starved {
            jobs.extend(self.queues.values().flatten().map(|queued| queued.piece.job));
        }
        let defs = jobs.iter().filter_map(|job| self.jobs.get(job));
        let used: HashSet<&String> = defs
            .flat_map(|def| &def.inputs)
            .filter_map(|input| input.sha256.as_ref())
            .collect();
        let held = self.inputs.iter();
        held.filter(|(sha256, &memory_mb)| (memory_mb == 0) == fast && !used.contains(sha256))
            .map(|(sha256, _)| sha256.clone())
            .collect()
    }

    /// What `drop_inputs` would free in memory.
    pub(super) fn unused_mb(&self, starved: bool) -> u64 {
        let unused = self.unused_inputs((starved, false));
        unused.iter().filter_map(|sha256| self.inputs.get(sha256)).sum()
    }

    /// Drop the inputs that `unused_inputs` returns; false if there are none. Slots get the definitions of their jobs
    /// again if more work of these comes.
    pub(crate) fn drop_inputs(&mut self, which: (bool, bool), actions: &mut Vec<Action>) -> bool {
        let unused = self.unused_inputs(which);
        for sha256 in &unused {
            self.release_input(sha256);
            let jobs = &self.jobs;
            let has = |job: &u64| {
                let inputs = jobs.get(job).into_iter().flat_map(|def| &def.inputs);
                inputs
                    .into_iter()
                    .any(|input| input.sha256.as_ref() == Some(sha256))
            };
            for (&slot, state) in &mut self.slots {
                let known: Vec<u64> = state.jobs.iter().copied().filter(|job| has(job)).collect();
                for job in known {
                    state.jobs.remove(&job);
                    actions.push(Action::Forget { slot, job });
                }
            }
            actions.push(Action::DropInput {
                sha256: sha256.clone(),
            });
        }
        !unused.is_empty()
    }

    /// Drop unused files to make room for a file that found none; true if there were any.
    pub fn drop_beside(&mut self, sha256: &str, actions: &mut Vec<Action>) -> bool {
        let fast = self.inputs.get(sha256) == Some(&0);
        self.drop_inputs((false, fast), actions)
    }
}
