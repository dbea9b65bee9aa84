//! What to give to a pilot that asks: pure.
//!
//! In order of age over grants that fit the pilot. As much as fills its queue (`queue_s` seconds per core) at the
//! measured pace, at least what its idle cores need; little of what was never measured, and at most half of its share
//! when work runs short, so that the last events are spread over all pilots.
//!
//! Of a job with `at_once`, one event at a time for a core that is idle, while fewer are outstanding: what a pilot queued
//! would count and not run.
//!
//! A program whose payloads take many events gets two payloads' worth for each core where that is more: hand-outs
//! of less would keep its chunks short for ever, and their time per event that of starting a process.

use std::collections::HashMap;

use tidemill_wire::memory::has_room;
use tidemill_wire::{Ask, Grant, Program};

use crate::ledger::pace::Pace;
use crate::ledger::{Ledger, PilotKey, ProgramState};

/// Grants in one message at most.
const GRANTS_MAX: usize = 4096;
/// Bytes of job texts in one message, about.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Events in one hand-out at most.
const EVENTS_MAX: u64 = 1 << 20;
/// Grants that one hand-out passes over at most (refused ones, those too long for the time left).
const SKIP_MAX: usize = 4096;
/// Events per core of a job that was never measured.
const UNMEASURED_PER_CORE: u64 = 2;
/// Part of its share of all free work that a pilot gets at once.
const SHARE: f64 = 0.5;
/// Seconds of work per core that are not divided further when the work of large payloads runs short.
const CRUMB_S: f64 = 0.25;
/// Payloads' worth of events that a core gets.
const PAYLOADS: f64 = 2.0;

/// What is left to give during one hand-out.
struct Room {
    cores: f64,
    remaining_s: f64,
    queued_s: f64,
    /// Core-seconds that fill the queue, and all that is free over all cores, for these.
    queue: f64,
    share: f64,
    alone: bool,
    /// Core-seconds given.
    given: f64,
    /// Core-seconds that fit the time left.
    time: f64,
    idle_cores: u64,
    /// Outstanding events of programs and jobs that were never measured.
    program_events: HashMap<u64, u64>,
    job_events: HashMap<u64, u64>,
    text_bytes: usize,
}

impl Ledger {
    /// The work for a pilot that asks, None if there is none now. What is given is outstanding, the ask is answered.
    pub fn hand_out(&mut self, key: PilotKey, queue_s: f64, now: u64) -> Option<Vec<Grant>> {
        let mut ask = self.pilots[key].ask.clone()?;
        let stood_s = now.saturating_sub(self.pilots[key].asked_at) as f64 / 1e6;
        ask.remaining_s = ask
            .remaining_s
            .map(|remaining_s| (remaining_s - stood_s).max(0.0));
        if !self.serves(key) || self.is_holding(now) {
            return None;
        }
        let mut cursors: Vec<(u64, u64)> = self
            .programs
            .iter()
            .filter(|(_, state)| state.free_events > 0 && fits(&state.program, &ask))
            .map(|(&program, _)| (program, 0))
            .collect();
        if cursors.is_empty() {
            return None;
        }
        let mut room = self.room(key, &ask, queue_s);
        let mut given = Vec::new();
        let mut skipped = 0;
        while given.len() < GRANTS_MAX && skipped < SKIP_MAX && room.text_bytes < TEXT_BYTES_MAX {
            let Some((program, grant)) = self.oldest(&mut cursors) else {
                break;
            };
            match self.size(key, (program, grant), &room, now) {
                0 if self.budget(program, &room) <= 0.0 && room.idle_cores == 0 => {
                    cursors.retain(|cursor| cursor.0 != program);
                }
                0 => skipped += 1,
                count => self.give(key, (program, grant), count, (&mut room, &mut given)),
            }
        }
        if given.is_empty() {
            return None;
        }
        self.pilots[key].ask = None;
        Some(given)
    }

    fn room(&self, key: PilotKey, ask: &Ask, queue_s: f64) -> Room {
        let cores = ask.cores as f64;
        let mut room = Room {
            cores,
            remaining_s: ask.remaining_s.unwrap_or(f64::INFINITY),
            queued_s: ask.queued_s.max(0.0),
            queue: (queue_s - ask.queued_s.max(0.0)).max(0.0) * cores,
            share: 0.0,
            alone: self.cores_connected <= ask.cores,
            given: 0.0,
            time: 0.0,
            idle_cores: 0,
            program_events: HashMap::new(),
            job_events: HashMap::new(),
            text_bytes: 0,
        };
        room.time = (room.remaining_s - room.queued_s).max(0.0) * cores;
        let mut busy = 0;
        for (grant, events) in &self.pilots[key].outstanding {
            let Some(state) = self.grants.get(grant) else {
                continue;
            };
            let Some(job) = self.jobs.get(&state.job) else {
                continue;
            };
            let Some(program) = self.programs.get(&job.program) else {
                continue;
            };
            let count = events.len();
            busy += count.saturating_mul(program.program.cores.max(1));
            if !program.pace.is_measured() {
                *room.program_events.entry(job.program).or_default() += count;
            }
            if job.pace.is_none() {
                *room.job_events.entry(state.job).or_default() += count;
            }
        }
        let unsaid = ask.cores.saturating_sub(busy); // too few while outputs of what has run are not durable
        room.idle_cores = ask.idle_cores.map_or(unsaid, |idle| idle.min(ask.cores));
        let core_s = |state: &ProgramState| {
            state.free_events as f64 * state.pace.event_s() * state.program.cores.max(1) as f64
        };
        let free_core_s: f64 = self.programs.values().map(core_s).sum();
        room.share = free_core_s * cores / self.cores_connected.max(ask.cores).max(1) as f64 * SHARE;
        room
    }

    /// Core-seconds of a program that may still be given.
    fn budget(&self, program: u64, room: &Room) -> f64 {
        let payload_s = self.programs.get(&program).map_or(0.0, payload_s);
        let large = (PAYLOADS * payload_s - room.queued_s).max(0.0) * room.cores;
        let most = if payload_s > 0.0 {
            // also of a pilot alone: its slots take whole payloads, so what is last must come in small hand-outs
            room.queue.max(large).min(room.share.max(CRUMB_S * room.cores))
        } else if room.alone {
            room.queue
        } else {
            room.queue.min(room.share)
        };
        most - room.given
    }

    /// The oldest grant with free events behind the cursors; moves its program's cursor past it.
    fn oldest(&self, cursors: &mut [(u64, u64)]) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64, usize)> = None;
        for (k, &(program, from)) in cursors.iter().enumerate() {
            let Some((&order, &grant)) = self.programs.get(&program)?.queue.range(from..).next() else {
                continue;
            };
            if best.is_none_or(|(oldest, _, _)| order < oldest) {
                best = Some((order, grant, k));
            }
        }
        let (order, grant, k) = best?;
        cursors[k].1 = order + 1;
        Some((cursors[k].0, grant))
    }

    /// How many events of a grant to give.
    fn size(&self, key: PilotKey, (program, grant): (u64, u64), room: &Room, now: u64) -> u64 {
        let refused = self.pilots[key]
            .refused
            .get(&grant)
            .is_some_and(|&until| now < until);
        let (Some(state), Some(program_state)) = (self.grants.get(&grant), self.programs.get(&program))
        else {
            return 0;
        };
        let job = self.jobs.get(&state.job);
        let job_pace = job.and_then(|job| job.pace);
        let event_s = job_pace
            .as_ref()
            .map_or(program_state.pace.event_s(), Pace::event_s);
        if refused || event_s > room.remaining_s {
            return 0;
        }
        let event_cores = program_state.program.cores.max(1);
        let event_core_s = event_s * event_cores as f64;
        let idle = room.idle_cores / event_cores;
        if let Some(job) = job.filter(|job| job.at_once.is_some()) {
            return u64::from(idle > 0 && job.left() > 0);
        }
        let budget = self.budget(program, room);
        let wanted = (budget / event_core_s) as u64;
        let mut count = wanted
            .max(u64::from(budget > 0.0))
            .min((room.time / event_core_s) as u64)
            .max(idle);
        let unmeasured_max = (UNMEASURED_PER_CORE * room.cores as u64 / event_cores).max(1);
        if job_pace.is_none() {
            let out = room.job_events.get(&state.job).copied().unwrap_or(0);
            count = count.min(unmeasured_max.saturating_sub(out));
        }
        if !program_state.pace.is_measured() {
            let out = room.program_events.get(&program).copied().unwrap_or(0);
            count = count.min(unmeasured_max.saturating_sub(out));
        }
        count.min(EVENTS_MAX)
    }

    fn give(
        &mut self,
        key: PilotKey,
        (program, grant): (u64, u64),
        count: u64,
        (room, given): (&mut Room, &mut Vec<Grant>),
    ) {
        let (Some(state), Some(program_state)) =
            (self.grants.get_mut(&grant), self.programs.get_mut(&program))
        else {
            return;
        };
        let mine = self.pilots[key].outstanding.entry(grant).or_default();
        let mut job = self.jobs.get_mut(&state.job);
        let is_limited = job.as_ref().is_some_and(|job| job.at_once.is_some());
        let mut left = count;
        while let Some((first, taken)) = state.free.take_front(left) {
            mine.add(first, first + taken);
            given.push(Grant {
                grant,
                job: state.job,
                first,
                count: taken,
                chunk_max: if is_limited { Some(1) } else { state.chunk_max },
            });
            left -= taken;
        }
        let taken = count - left;
        if let Some(job) = &mut job {
            job.out += taken;
        }
        program_state.free_events -= taken;
        if state.free.is_empty() {
            program_state.queue.remove(&state.order);
        }
        let event_cores = program_state.program.cores.max(1);
        let pace = job
            .as_ref()
            .and_then(|job| job.pace)
            .unwrap_or(program_state.pace);
        let core_s = taken as f64 * pace.event_s() * event_cores as f64;
        room.given += core_s;
        room.time -= core_s;
        room.idle_cores = room.idle_cores.saturating_sub(taken.saturating_mul(event_cores));
        room.text_bytes += job.map_or(0, |job| job.text.get().len());
        *room.program_events.entry(program).or_default() += taken;
        *room.job_events.entry(state.job).or_default() += taken;
    }
}

/// Aimed length of a payload or range that takes many events, as the slots will cut them; 0 for one event at a time.
fn payload_s(state: &ProgramState) -> f64 {
    let program = &state.program;
    if program.chunk_max <= 1 {
        return 0.0;
    }
    (program.chunk_max as f64 * state.pace.event_s()).min(program.range_s)
}

/// Whether the program fits the free resources of an ask. Only the pilot knows whether it has a place for work
/// directories besides memory; if not, it returns the work with the reason `no_fit`.
fn fits(program: &Program, ask: &Ask) -> bool {
    program.cores <= ask.cores
        && has_room(program, ask.memory_mb, true)
        && program
            .devices
            .iter()
            .all(|(name, &count)| count <= ask.devices.get(name).copied().unwrap_or(0))
}
