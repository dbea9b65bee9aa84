//! The lead's knowledge of work and pilots: a pure state, updated from work files, records and connections.
//!
//! Uses no sockets and no files. Times are microseconds of a monotonic clock, passed by the caller. An event of a grant
//! is *open* until a record settles it (done or failed), and an open event is *free* or outstanding at a pilot. Losing
//! track costs a second execution, never an event: every open event that is not outstanding is free.

mod allocations;
pub mod grants;
mod handout;
mod pace;
pub mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::value::RawValue;
use tidemill_wire::{Ask, Grant, Program};

use crate::ledger::pace::Pace;
use crate::ledger::record::{Kind, RecordHead};
use tidemill_wire::intervals::Intervals;

/// Time for which a pilot that returned work (its slot broke, its time is short) is not given that grant again.
const REFUSAL_US: u64 = 30_000_000;
/// Time after a reconnect until events that the pilot neither holds nor records are given to other pilots.
const LIMBO_US: u64 = 2_000_000;

/// Number of a pilot in the ledger.
pub type PilotKey = usize;

pub(crate) struct ProgramState {
    pub program: Program,
    pub text: Box<RawValue>,
    pub pace: Pace,
    pub free_events: u64,
    /// Grants with free events, by age.
    pub queue: BTreeMap<u64, u64>,
}

pub(crate) struct JobState {
    pub program: u64,
    pub text: Box<RawValue>,
    /// Measured seconds per event of this job.
    pub pace: Option<Pace>,
    /// So many of its events are outstanding at most.
    pub at_once: Option<u64>,
    /// Its events that are outstanding, or in limbo.
    pub out: u64,
}

impl JobState {
    /// Events that may be handed out now; `u64::MAX` without a limit.
    pub fn left(&self) -> u64 {
        self.at_once
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.out))
    }
}

pub(crate) struct GrantState {
    pub job: u64,
    pub order: u64,
    pub chunk_max: Option<u64>,
    pub free: Intervals,
    pub open: Intervals,
}

/// One start of a pilot.
#[derive(Default)]
pub struct Pilot {
    pub id: String,
    pub allocation: String,
    /// Highest record number received.
    pub received: u64,
    /// It may come back: it has not reported its end, has not been given up, and its allocation continues.
    pub alive: bool,
    /// It has reported its end.
    ended: bool,
    pub connected: bool,
    pub(crate) ask: Option<Ask>,
    pub(crate) asked_at: u64,
    pub(crate) cores: u64,
    pub(crate) outstanding: HashMap<u64, Intervals>,
    /// Was outstanding before a reconnect, is not held: recorded soon, or lost on the way to the pilot.
    pub(crate) limbo: HashMap<u64, Intervals>,
    limbo_until: Option<u64>,
    /// Grants that it returned, and until when it is not offered them again.
    pub(crate) refused: HashMap<u64, u64>,
    pub(crate) lost_at: Option<u64>,
}

/// What a record's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    New,
    Duplicate,
    /// Records between this number and the given one are missing.
    Gap {
        expected: u64,
    },
}

#[derive(Default)]
pub struct Ledger {
    pub(crate) programs: HashMap<u64, ProgramState>,
    pub(crate) jobs: HashMap<u64, JobState>,
    pub(crate) grants: HashMap<u64, GrantState>,
    pub(crate) pilots: Vec<Pilot>,
    keys: HashMap<String, PilotKey>,
    pub(crate) of_allocation: HashMap<String, Vec<PilotKey>>,
    pub(crate) cancelled: HashSet<u64>,
    /// Parts of grants that work files have withdrawn, for pilots that may still have them when they connect.
    pub(crate) withdrawn: HashMap<u64, Intervals>,
    pub(crate) ended: HashSet<String>,
    pub(crate) leaving: HashSet<String>,
    /// When allocations end, in microseconds since 1970, where work files say so.
    pub(crate) ends: HashMap<String, u64>,
    pub(crate) orders: u64,
    /// Settled events and measurements of journals that were read before the work files.
    pub(crate) replayed: HashMap<u64, Intervals>,
    pub(crate) replayed_pace: HashMap<u64, Pace>,
    live: bool,
    pub(crate) hold_until: Option<u64>,
    pub(crate) cores_connected: u64,
    pub(crate) draining: bool,
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    /// Something became free: standing asks should be tried.
    pub(crate) changed: bool,
    /// Hand-outs that ends of events of jobs at their limit have made possible.
    opened: u64,
}

impl Ledger {
    /// Starts after journals and work files have been read. Pilots that seem alive have until `hold_until` to come back
    /// and report what they hold; nothing is handed out before.
    pub fn start(&mut self, hold_until: u64) {
        self.live = true;
        self.replayed = HashMap::new();
        self.replayed_pace = HashMap::new();
        let awaited = self.pilots.iter().any(|pilot| pilot.alive);
        self.hold_until = awaited.then_some(hold_until);
    }

    pub fn pilot(&self, key: PilotKey) -> &Pilot {
        &self.pilots[key]
    }

    pub fn pilots(&self) -> &[Pilot] {
        &self.pilots
    }

    pub fn is_draining(&self) -> bool {
        self.draining
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Hand out nothing more.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Every event of every grant is settled.
    pub fn is_settled(&self) -> bool {
        self.grants.is_empty()
    }

    /// Events of grants that are not settled.
    pub fn open_events(&self) -> u64 {
        self.grants.values().map(|grant| grant.open.len()).sum()
    }

    /// The numbers of jobs that run, as far as the lead can see: of what a pilot has, the oldest fills its cores. A job
    /// of which events have ended counts as running while a pilot has more of it.
    pub fn at_work(&self) -> Intervals {
        let mut jobs = Vec::new();
        for pilot in &self.pilots {
            let mut held: Vec<_> = pilot
                .outstanding
                .iter()
                .filter_map(|(grant, events)| self.grants.get(grant).map(|state| (state, events)))
                .collect();
            held.sort_unstable_by_key(|(state, _)| state.order);
            let mut used = 0u64;
            for (state, events) in held {
                let Some(job) = self.jobs.get(&state.job) else {
                    continue;
                };
                if !pilot.connected || used < pilot.cores || job.pace.is_some() {
                    jobs.push(state.job);
                }
                let program = self.programs.get(&job.program);
                let cores = program.map_or(1, |program| program.program.cores.max(1));
                used = used.saturating_add(events.len().saturating_mul(cores));
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        let mut found = Intervals::default();
        for job in jobs {
            found.add(job, job.saturating_add(1));
        }
        found
    }

    /// Events that could be handed out.
    pub fn free_events(&self) -> u64 {
        self.programs.values().map(|program| program.free_events).sum()
    }

    /// A job's program, its own text and its program's.
    pub fn texts(&self, job: u64) -> Option<(u64, &RawValue, &RawValue)> {
        let job = self.jobs.get(&job)?;
        Some((job.program, &*job.text, &*self.programs.get(&job.program)?.text))
    }

    /// Standing asks should be tried again: what kept them may have passed.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Whether something became free since `take_changed`.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// How many of the standing asks are worth a try since the last call: all where something became free, else as many
    /// as events of jobs at their limit have ended, as thousands of pilots may wait for such a job.
    pub fn take_changed(&mut self) -> u64 {
        let opened = std::mem::take(&mut self.opened);
        if std::mem::take(&mut self.changed) {
            u64::MAX
        } else {
            opened
        }
    }

    /// Whether a connection whose work may be given away later could still come back.
    pub fn awaits_pilots(&self) -> bool {
        self.pilots.iter().any(|pilot| pilot.lost_at.is_some())
    }

    /// The pilot of this name, known from now on.
    pub fn key_of(&mut self, id: &str) -> PilotKey {
        if let Some(&key) = self.keys.get(id) {
            return key;
        }
        // `pilot_id`: ALLOCATION.rRANK.iINCARNATION
        let allocation = id.rsplitn(3, '.').last().unwrap_or(id);
        self.pilots.push(Pilot {
            id: id.to_owned(),
            allocation: allocation.to_owned(),
            ..Pilot::default()
        });
        let key = self.pilots.len() - 1;
        self.keys.insert(id.to_owned(), key);
        self.of_allocation
            .entry(allocation.to_owned())
            .or_default()
            .push(key);
        key
    }

    /// A pilot is connected (again) and holds this work.
    pub fn connect(&mut self, key: PilotKey, held: &[Grant], now: u64) {
        let mut holds: HashMap<u64, Intervals> = HashMap::new();
        for grant in held {
            let end = grant.first.saturating_add(grant.count);
            let Some(state) = self.grants.get_mut(&grant.grant) else {
                continue;
            };
            let open = state.open.within(grant.first, end);
            let taken = state.free.remove(grant.first, end);
            let job = self.jobs.get_mut(&state.job);
            if let Some(program) = job.and_then(|job| {
                job.out += taken;
                self.programs.get_mut(&job.program)
            }) {
                program.free_events -= taken;
                if state.free.is_empty() {
                    program.queue.remove(&state.order);
                }
            }
            let mine = holds.entry(grant.grant).or_default();
            for (first, end) in open {
                mine.add(first, end);
            }
        }
        let pilot = &mut self.pilots[key];
        let before = std::mem::take(&mut pilot.outstanding);
        for (grant, mut events) in before {
            for &(first, end) in holds.get(&grant).map_or(&[][..], Intervals::spans) {
                events.remove(first, end);
            }
            let limbo = pilot.limbo.entry(grant).or_default();
            for &(first, end) in events.spans() {
                limbo.add(first, end);
            }
        }
        holds.retain(|_, events| !events.is_empty());
        pilot.outstanding = holds;
        (pilot.connected, pilot.alive, pilot.lost_at, pilot.ask) = (true, true, None, None);
        pilot.limbo_until = Some(now + LIMBO_US);
        // a pilot that connects is alive, whatever was reported about its allocation: the batch system may have started
        // it again
        self.ended.remove(&self.pilots[key].allocation);
    }

    /// The pilot's connection is gone.
    pub fn disconnect(&mut self, key: PilotKey, now: u64) {
        let pilot = &mut self.pilots[key];
        if std::mem::take(&mut pilot.connected) {
            self.cores_connected -= std::mem::take(&mut pilot.cores);
            pilot.ask = None;
            pilot.limbo_until = None;
            pilot.lost_at = (pilot.alive || !pilot.outstanding.is_empty()).then_some(now);
        }
    }

    /// The pilot can take work; it has reported all that it knew when its connection began.
    pub fn ask(&mut self, key: PilotKey, ask: Ask, now: u64) {
        let pilot = &mut self.pilots[key];
        self.cores_connected = self.cores_connected - pilot.cores + ask.cores;
        pilot.cores = ask.cores;
        pilot.ask = Some(ask);
        pilot.asked_at = now;
        self.release_limbo(key);
        self.end_holding(now);
    }

    /// Judge the number of a record; only `New` ones may be given to `record`.
    pub fn number(&self, key: PilotKey, number: u64) -> Number {
        let expected = self.pilots[key].received + 1;
        match number.cmp(&expected) {
            std::cmp::Ordering::Less => Number::Duplicate,
            std::cmp::Ordering::Equal => Number::New,
            std::cmp::Ordering::Greater => Number::Gap { expected },
        }
    }

    /// Applies a record. Returns whether the pilot has reported its end.
    pub fn record(&mut self, key: PilotKey, head: &RecordHead<'_>, now: u64) -> bool {
        let ended = self.has_ended(key);
        let pilot = &mut self.pilots[key];
        pilot.received = pilot.received.max(head.s);
        pilot.ended |= head.kind() == Kind::Ended;
        pilot.alive = !pilot.ended && !ended;
        let end = head.first.saturating_add(head.count);
        match head.kind() {
            Kind::Done => {
                // events that the pilot was not given do not show how long events take; in a replay, that is not known
                if self.settle(key, head.grant, (head.first, end)) || !self.live {
                    self.learn(head);
                }
            }
            Kind::Failed => {
                self.settle(key, head.grant, (head.first, end));
            }
            Kind::Returned => {
                self.refuse(key, head, now);
                let spans = self.pilots[key].drop_work(head.grant, (head.first, end));
                self.free(head.grant, &spans);
            }
            Kind::Ended => {
                self.pilots[key].ask = None;
                self.give_away(key);
                return true;
            }
            Kind::Started | Kind::Other => {}
        }
        false
    }

    fn learn(&mut self, head: &RecordHead<'_>) {
        let wall_us = head.wall_us.saturating_sub(head.setup_us);
        let measured = |pace: &mut Pace| pace.learn(wall_us, head.count);
        let Some(job) = self.jobs.get_mut(&head.job) else {
            if !self.live {
                measured(
                    self.replayed_pace
                        .entry(head.job)
                        .or_insert_with(|| Pace::estimated(0.0)),
                );
            }
            return;
        };
        self.changed |= job.pace.is_none();
        measured(job.pace.get_or_insert_with(|| Pace::estimated(0.0)));
        if let Some(program) = self.programs.get_mut(&job.program) {
            measured(&mut program.pace);
        }
    }

    /// These events are over; whether the pilot had any of them.
    fn settle(&mut self, key: PilotKey, grant: u64, span: (u64, u64)) -> bool {
        let held = !self.pilots[key].drop_work(grant, span).is_empty();
        self.close(grant, span);
        held
    }

    /// These events are not open any more.
    pub(crate) fn close(&mut self, grant: u64, (first, end): (u64, u64)) {
        let Some(state) = self.grants.get_mut(&grant) else {
            if !self.live {
                self.replayed.entry(grant).or_default().add(first, end);
            }
            return;
        };
        let taken = state.free.remove(first, end);
        let over = state.open.remove(first, end) - taken;
        if let Some(job) = self.jobs.get_mut(&state.job) {
            if job.left() == 0 && !state.open.is_empty() {
                self.opened += over;
            }
            job.out -= over;
        }
        if taken > 0 {
            if let Some(program) = self
                .jobs
                .get(&state.job)
                .and_then(|job| self.programs.get_mut(&job.program))
            {
                program.free_events -= taken;
                if state.free.is_empty() {
                    program.queue.remove(&state.order);
                }
            }
        }
        if state.open.is_empty() {
            self.grants.remove(&grant);
        }
    }

    fn refuse(&mut self, key: PilotKey, head: &RecordHead<'_>, now: u64) {
        let pilot = &mut self.pilots[key];
        match head.reason.as_ref() {
            "no_fit" => pilot.refused.insert(head.grant, u64::MAX),
            "slot" | "walltime" => pilot.refused.insert(head.grant, now + REFUSAL_US),
            "yield" | "drain" => {
                pilot.ask = None; // it leaves
                None
            }
            _ => None,
        };
    }

    /// Make open events free again.
    fn free(&mut self, grant: u64, spans: &[(u64, u64)]) {
        let Some(state) = self.grants.get_mut(&grant) else {
            return;
        };
        let mut added = 0;
        for &(first, end) in spans {
            for (first, end) in state.open.within(first, end) {
                added += state.free.add(first, end);
            }
        }
        if added == 0 {
            return;
        }
        let job = self.jobs.get_mut(&state.job);
        if let Some(program) = job.and_then(|job| {
            job.out -= added;
            self.programs.get_mut(&job.program)
        }) {
            program.free_events += added;
            program.queue.insert(state.order, grant);
        }
        self.changed = true;
    }

    /// Everything that a pilot has becomes free.
    pub(crate) fn give_away(&mut self, key: PilotKey) {
        let pilot = &mut self.pilots[key];
        pilot.lost_at = None;
        let work: Vec<(u64, Intervals)> = pilot.outstanding.drain().chain(pilot.limbo.drain()).collect();
        for (grant, events) in work {
            self.free(grant, events.spans());
        }
    }

    fn release_limbo(&mut self, key: PilotKey) {
        self.pilots[key].limbo_until = None;
        let limbo: Vec<(u64, Intervals)> = self.pilots[key].limbo.drain().collect();
        for (grant, events) in limbo {
            self.free(grant, events.spans());
        }
    }

    /// Time passes: give away the work of pilots that have been gone for `grace_us`; returns them.
    pub fn tick(&mut self, now: u64, grace_us: u64) -> Vec<PilotKey> {
        let mut lost = Vec::new();
        for key in 0..self.pilots.len() {
            if self.pilots[key].limbo_until.is_some_and(|until| now >= until) {
                self.release_limbo(key);
            }
            if self.pilots[key]
                .lost_at
                .is_some_and(|at| now >= at.saturating_add(grace_us))
            {
                self.pilots[key].alive = false;
                self.give_away(key);
                lost.push(key);
            }
        }
        self.end_holding(now);
        lost
    }

    fn end_holding(&mut self, now: u64) {
        if self.hold_until.is_some() && !self.is_holding(now) {
            self.hold_until = None;
            self.changed = true;
        }
    }

    /// Whether hand-outs are on hold: after a restart, until every live pilot has reported what it holds, or
    /// `hold_until`.
    pub(crate) fn is_holding(&self, now: u64) -> bool {
        let unheard = |pilot: &Pilot| pilot.alive && (!pilot.connected || pilot.limbo_until.is_some());
        self.hold_until.is_some_and(|until| now < until) && self.pilots.iter().any(unheard)
    }
}

impl Pilot {
    /// Forget that it has these events of a grant; returns those that it had.
    pub(crate) fn drop_work(&mut self, grant: u64, (first, end): (u64, u64)) -> Vec<(u64, u64)> {
        let mut had = Vec::new();
        for work in [&mut self.outstanding, &mut self.limbo] {
            if let Some(events) = work.get_mut(&grant) {
                had.extend(events.within(first, end));
                events.remove(first, end);
                if events.is_empty() {
                    work.remove(&grant);
                }
            }
        }
        had
    }

    /// Whether it waits for work.
    pub fn asks(&self) -> bool {
        self.ask.is_some()
    }
}
