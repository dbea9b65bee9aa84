//! What slots have answered, what is lost with them, and what they hold.

use std::collections::HashSet;

use tidemill_wire::intervals::Intervals;
use tidemill_wire::Withdrawn;

use super::{Action, Binding, Queued, SlotState, Ticket, SPARE_JOBS_MAX};
use crate::work::piece::WorkPiece;

impl Binding {
    /// Events that a slot has answered for; the piece that they belong to, None if they were not its to answer for.
    pub fn settle(&mut self, slot: u32, ticket: u64, first: u64, count: u64) -> Option<WorkPiece> {
        let known = self.tickets.get_mut(&ticket).filter(|known| known.slot == slot)?;
        let end = first.checked_add(count)?;
        if !known.left.holds(first, end) {
            return None;
        }
        known.left.remove(first, end);
        let piece = WorkPiece {
            first,
            count,
            ..known.piece.clone()
        };
        let at_hand_s = count as f64 * known.event_s;
        let ended = known.left.is_empty();
        if let Some(state) = self.slots.get_mut(&slot) {
            state.at_hand_s = (state.at_hand_s - at_hand_s).max(0.0);
            if ended {
                state.tickets.remove(&ticket);
            }
        }
        if ended {
            self.tickets.remove(&ticket);
        }
        Some(piece)
    }

    /// Learn from a measurement: the payload seconds that `events` events of a job took.
    pub fn measure(&mut self, job: u64, events: u64, wall_s: f64) {
        let program = self.jobs.get(&job).map(|def| def.program);
        let Some(known) = program.and_then(|program| self.programs.get_mut(&program)) else {
            return;
        };
        known.measure(events, wall_s);
    }

    /// A slot is gone: free its room and return the pieces without an answer, the oldest first.
    pub fn lose_slot(&mut self, slot: u32) -> Vec<WorkPiece> {
        let tickets = self
            .slots
            .get(&slot)
            .map(|state| state.tickets.clone())
            .unwrap_or_default();
        let mut lost = Vec::new();
        for ticket in tickets {
            if let Some(known) = self.tickets.remove(&ticket) {
                lost.extend(pieces_left(&known));
            }
        }
        self.remove_slot(slot);
        lost
    }

    pub(super) fn remove_slot(&mut self, slot: u32) {
        if let Some(state) = self.slots.remove(&slot) {
            self.room.give_back(state.share);
        }
    }

    /// Take all queued work out.
    pub fn drain_queue(&mut self) -> Vec<WorkPiece> {
        self.queued_events.clear();
        self.program_events.clear();
        std::mem::take(&mut self.queues)
            .into_values()
            .flatten()
            .map(|queued| queued.piece)
            .collect()
    }

    /// Take the queued work of a job out.
    pub fn take_queued(&mut self, job: u64) -> Vec<WorkPiece> {
        let mut taken = Vec::new();
        for (shape, queue) in &mut self.queues {
            for queued in std::mem::take(queue) {
                if queued.piece.job != job {
                    queue.push_back(queued);
                    continue;
                }
                for total in self
                    .queued_events
                    .get_mut(shape)
                    .into_iter()
                    .chain(self.program_events.get_mut(&queued.program))
                {
                    *total -= queued.piece.count;
                }
                taken.push(queued.piece);
            }
        }
        taken
    }

    /// Drop queued work of jobs, and return the slots that know one of them and must cancel and forget it. If the job
    /// comes back, they get its definition again, because its inputs may have changed.
    pub fn cancel(&mut self, jobs: &[u64]) -> Vec<(u32, u64)> {
        for (shape, queue) in &mut self.queues {
            queue.retain(|queued| {
                let keep = !jobs.contains(&queued.piece.job);
                if let Some(total) = self.program_events.get_mut(&queued.program).filter(|_| !keep) {
                    *total -= queued.piece.count;
                }
                keep
            });
            let left = queue.iter().map(|queued| queued.piece.count).sum();
            self.queued_events.insert(shape.clone(), left);
        }
        let mut told = Vec::new();
        for (&slot, state) in &mut self.slots {
            let known = jobs.iter().filter(|job| state.jobs.remove(job));
            told.extend(known.map(|&job| (slot, job)));
        }
        told
    }

    /// Drop queued events that were withdrawn, and return what slots have of them: slot, ticket, first event and number.
    pub fn withdraw(&mut self, parts: &[Withdrawn]) -> Vec<(u32, u64, u64, u64)> {
        let mut at_slots = Vec::new();
        for part in parts {
            let end = part.first.saturating_add(part.count);
            for (shape, queue) in &mut self.queues {
                for queued in std::mem::take(queue) {
                    let left = pieces_without(&queued.piece, part);
                    let gone = queued.piece.count - left.iter().map(|piece| piece.count).sum::<u64>();
                    for total in self
                        .queued_events
                        .get_mut(shape)
                        .into_iter()
                        .chain(self.program_events.get_mut(&queued.program))
                    {
                        *total -= gone;
                    }
                    queue.extend(left.into_iter().map(|piece| Queued { piece, ..queued }));
                }
            }
            for (&ticket, known) in &self.tickets {
                if known.piece.grant == part.grant {
                    let spans = known.left.within(part.first, end).into_iter();
                    at_slots.extend(spans.map(|(first, end)| (known.slot, ticket, first, end - first)));
                }
            }
        }
        at_slots
    }

    /// Jobs that slots may forget: those without work anywhere here, of slots that know many or are idle.
    pub fn forget(&mut self, idle_only: bool) -> Vec<Action> {
        let is_due = |state: &SlotState| {
            if idle_only {
                state.tickets.is_empty() && !state.jobs.is_empty()
            } else {
                state.jobs.len() > 2 * state.tickets.len() + SPARE_JOBS_MAX
            }
        };
        if !self.slots.values().any(is_due) {
            return Vec::new();
        }
        let busy: HashSet<(u32, u64)> = self
            .tickets
            .values()
            .map(|known| (known.slot, known.piece.job))
            .collect();
        let queued: HashSet<u64> = self
            .queues
            .values()
            .flatten()
            .map(|queued| queued.piece.job)
            .collect();
        let mut actions = Vec::new();
        for (&slot, state) in self.slots.iter_mut().filter(|(_, state)| is_due(state)) {
            state.jobs.retain(|job| {
                let keep = busy.contains(&(slot, *job)) || queued.contains(job);
                if !keep {
                    actions.push(Action::Forget { slot, job: *job });
                }
                keep
            });
        }
        actions
    }

    /// Forget a job's definition once all its events are done, unless there is work of it: the events are granted again
    /// only over a new connection. Slots that know it keep it until `forget`.
    pub fn forget_done(&mut self, job: u64, events: u64) {
        let done = self.done.entry(job).or_insert(0);
        *done += events;
        if *done < self.jobs.get(&job).map_or(0, |def| def.events) {
            return;
        }
        self.done.remove(&job);
        let mut queued = self.queues.values().flatten();
        let at_slots = self.tickets.values().any(|known| known.piece.job == job);
        if !at_slots && !queued.any(|queued| queued.piece.job == job) {
            self.jobs.remove(&job);
        }
    }

    /// Whether anything is queued or at a slot.
    pub fn work_left(&self) -> bool {
        !self.tickets.is_empty() || self.queued_events.values().any(|&count| count > 0)
    }

    /// Whether slots still have to answer.
    pub fn at_slots(&self) -> bool {
        !self.tickets.is_empty()
    }

    /// Whether no slot has work.
    pub fn is_waiting(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Whether a core has nothing to do and nothing is queued that could take it.
    pub fn has_idle_core(&self) -> bool {
        self.idle_cores() > 0 && self.program_events.values().all(|&events| events == 0)
    }

    /// Cores that no payload uses, and that what is queued leaves unused.
    pub fn idle_cores(&self) -> u64 {
        let at_slots = |slot: &SlotState| slot.shape.cores * u64::from(!slot.tickets.is_empty());
        let at_work: u64 = self.slots.values().map(at_slots).sum();
        let queued = self.program_events.iter().filter_map(|(program, &events)| {
            Some(events.saturating_mul(self.programs.get(program)?.shape.cores))
        });
        let spoken_for = queued.fold(at_work, u64::saturating_add);
        self.room.whole().0.saturating_sub(spoken_for)
    }

    /// Seconds of work per core of the node, queued and at slots.
    pub fn queued_s(&self) -> f64 {
        let cores = self.room.whole().0.max(1) as f64;
        let waiting: f64 = self
            .program_events
            .iter()
            .filter_map(|(program, &events)| {
                let known = self.programs.get(program)?;
                Some(events as f64 * known.event_s * known.shape.cores as f64)
            })
            .sum();
        let at_slots: f64 = self
            .slots
            .values()
            .map(|slot| slot.at_hand_s * slot.shape.cores as f64)
            .sum();
        (waiting + at_slots) / cores
    }

    /// Seconds of work below which more should be asked for, where payloads that take many events are to stay large.
    pub fn payload_s(&self) -> f64 {
        let works = |(program, &events): (&u64, &u64)| {
            let known = self.programs.get(program)?;
            let runs = |slot: &SlotState| !slot.tickets.is_empty() && slot.programs.contains(program);
            let at_work = events > 0 || self.slots.values().any(runs);
            at_work.then(|| known.payload_s())
        };
        self.program_events.iter().filter_map(works).fold(0.0, f64::max)
    }

    /// All work that has no record yet, as grants: queued and at slots.
    pub fn held(&self) -> Vec<WorkPiece> {
        let waiting = self.queues.values().flatten().map(|queued| queued.piece.clone());
        let at_slots = self.tickets.values().flat_map(pieces_left);
        let mut held: Vec<WorkPiece> = waiting.chain(at_slots).collect();
        held.sort_by_key(|grant| (grant.grant, grant.first));
        held
    }

    pub fn slot_ids(&self) -> Vec<u32> {
        self.slots.keys().copied().collect()
    }
}

/// A piece without what was withdrawn of its grant.
pub(crate) fn pieces_without(piece: &WorkPiece, part: &Withdrawn) -> Vec<WorkPiece> {
    let mut left = Intervals::of(piece.first, piece.count);
    if piece.grant == part.grant {
        left.remove(part.first, part.first.saturating_add(part.count));
    }
    let of = |&(first, end): &(u64, u64)| WorkPiece {
        first,
        count: end - first,
        ..piece.clone()
    };
    left.spans().iter().map(of).collect()
}

fn pieces_left(ticket: &Ticket) -> Vec<WorkPiece> {
    let piece = |&(first, end): &(u64, u64)| WorkPiece {
        first,
        count: end - first,
        ..ticket.piece.clone()
    };
    ticket.left.spans().iter().map(piece).collect()
}
