//! Which work runs on which slot. Pure: takes events, returns actions; starts nothing itself.
//!
//! Work is queued by shape (what a slot must offer). Slots of a shape share its queue; each has just enough work at
//! hand that it never waits for the pilot, so that all slots end together. `answers` handles what slots answer. Knows
//! slots, images and inputs only as numbers and names; other modules own them.

mod answers;
mod images;
mod inputs;
pub mod piece;
mod room;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use tidemill_wire::intervals::Intervals;
use tidemill_wire::{JobDef, Program, Work};

use crate::node::room::{Room, Share};
use crate::work::piece::{KnownProgram, Shape, WorkPiece};
pub(crate) use answers::pieces_without;
use images::Images;

/// Work that a slot has at hand: at least this many seconds, or two runs.
const AT_HAND_S: f64 = 0.25;
const RUNS_MAX: usize = 512;
/// Jobs without work that a slot may know before it must forget them.
const SPARE_JOBS_MAX: usize = 128;
/// Waiting time after which the oldest piece of work gets room before younger ones of other shapes.
const STARVED_US: u64 = 10_000_000;

struct Queued {
    piece: WorkPiece,
    program: u64,
    since_us: u64,
}

/// What the pilot has to do, in this order.
#[derive(Debug)]
pub enum Action {
    Create {
        slot: u32,
        shape: Shape,
        share: Share,
    },
    Destroy {
        slot: u32,
    },
    TellProgram {
        slot: u32,
        program: u64,
    },
    TellJob {
        slot: u32,
        job: u64,
    },
    Run {
        slot: u32,
        ticket: u64,
        piece: WorkPiece,
    },
    Forget {
        slot: u32,
        job: u64,
    },
    /// Show an image on this node, in at most `limit_mb` of memory.
    Bring {
        sha256: String,
        limit_mb: u64,
        by_files: bool,
    },
    /// Remove an unused image to make room.
    Drop {
        sha256: String,
    },
    /// Remove an unused staged input to make room.
    DropInput {
        sha256: String,
    },
    /// Report an image that can never be shown here.
    FailImage {
        sha256: String,
        message: String,
    },
}

struct SlotState {
    shape: Shape,
    share: Share,
    tickets: BTreeSet<u64>,
    at_hand_s: f64,
    programs: HashSet<u64>,
    jobs: HashSet<u64>,
}

struct Ticket {
    slot: u32,
    piece: WorkPiece,
    event_s: f64,
    /// Events that the slot has not answered for.
    left: Intervals,
}

/// Work that was not queued.
#[derive(Debug, Default)]
pub struct Refused {
    /// Work that this node can never run, with the reason.
    pub no_fit: Vec<(WorkPiece, String)>,
    /// Work whose image failed a moment ago and is not retried yet.
    pub no_image: Vec<WorkPiece>,
    /// Work of jobs whose definition has not arrived.
    pub unknown: Vec<WorkPiece>,
}

/// Queue, slots and work at slots.
#[derive(Default)]
pub struct Binding {
    programs: HashMap<u64, KnownProgram>,
    jobs: HashMap<u64, JobDef>,
    queues: BTreeMap<Shape, VecDeque<Queued>>,
    queued_events: BTreeMap<Shape, u64>,
    program_events: HashMap<u64, u64>,
    slots: BTreeMap<u32, SlotState>,
    tickets: HashMap<u64, Ticket>,
    room: Room,
    images: Images,
    /// Memory that staged inputs take, by digest; 0 = they are in the fast tier.
    inputs: BTreeMap<String, u64>,
    /// Free room of the place for work directories besides memory, and what is to be said of it.
    spill: (u64, String),
    /// Events done per job that is not over here, to know when its definition can go.
    done: HashMap<u64, u64>,
    next_ticket: u64,
    next_slot: u32,
    /// Work with outputs stays in the queue (the bundle's disk is full).
    pub hold_outputs: bool,
    /// Idle slots that stay: they have outputs that are not in the bundle yet.
    pub keeping: BTreeSet<u32>,
    /// Work of these jobs stays in the queue: its inputs are on their way.
    pub hold_jobs: HashSet<u64>,
    /// The lead gives no more although we asked, or cannot be asked: what is queued has to do for all slots.
    pub short: bool,
}

impl Binding {
    pub fn new(room: Room) -> Self {
        Binding {
            spill: (0, String::from("the site has no `fast_dir`")),
            room,
            next_ticket: 1,
            ..Binding::default()
        }
    }

    pub fn room(&self) -> &Room {
        &self.room
    }

    pub fn program(&self, program: u64) -> Option<&Program> {
        self.programs.get(&program).map(|known| &known.program)
    }

    pub fn job(&self, job: u64) -> Option<&JobDef> {
        self.jobs.get(&job)
    }

    /// Queue work. Definitions that come again (over another connection) replace earlier ones. Returns the work that
    /// was not queued.
    pub fn take_work(&mut self, work: Work, now_us: u64) -> Refused {
        for program in work.programs {
            let number = program.program;
            let shape = self.shape_of(&program);
            let known = KnownProgram::new(program, shape, self.programs.get(&number));
            self.programs.insert(number, known);
        }
        for job in work.jobs {
            self.jobs.insert(job.job, job);
        }
        let mut refused = Refused::default();
        for piece in work.grants {
            let Some((program, shape)) = self.needs(piece.job) else {
                refused.unknown.push(piece);
                continue;
            };
            if let Err(why) = self.need(&shape) {
                refused.no_fit.push((piece, why));
                continue;
            }
            if self.image_rests(&shape, now_us) {
                refused.no_image.push(piece);
                continue;
            }
            self.count(&shape, program, piece.count);
            self.queues.entry(shape).or_default().push_back(Queued {
                piece,
                program,
                since_us: now_us,
            });
        }
        refused
    }

    /// Put a piece back as the next to run; returns it if its job is unknown.
    pub fn requeue(&mut self, piece: WorkPiece, now_us: u64) -> Option<WorkPiece> {
        let Some((program, shape)) = self.needs(piece.job) else {
            return Some(piece);
        };
        self.count(&shape, program, piece.count);
        self.queues.entry(shape).or_default().push_front(Queued {
            piece,
            program,
            since_us: now_us,
        });
        None
    }

    fn needs(&self, job: u64) -> Option<(u64, Shape)> {
        let program = self.jobs.get(&job)?.program;
        Some((program, self.programs.get(&program)?.shape.clone()))
    }

    fn count(&mut self, shape: &Shape, program: u64, events: u64) {
        *self.queued_events.entry(shape.clone()).or_default() += events;
        *self.program_events.entry(program).or_default() += events;
    }

    /// The actions that are due now. Call after each change.
    pub fn decide(&mut self, now_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let starved = self.starved(now_us);
        let shapes: Vec<Shape> = self.queues.keys().cloned().collect();
        for shape in &shapes {
            if starved.as_ref().is_none_or(|first| first == shape) && self.has_open_work(shape) {
                let is_first = starved.is_some();
                if self.bring_images(shape, is_first, now_us, &mut actions) {
                    self.make_slots(shape, is_first, &mut actions);
                }
            }
        }
        for shape in &shapes {
            if starved.as_ref().is_none_or(|first| first == shape) {
                self.feed(shape, &mut actions);
            }
        }
        actions
    }

    /// The shape whose oldest work has waited too long for room, if any.
    fn starved(&self, now_us: u64) -> Option<Shape> {
        self.queues
            .iter()
            .filter(|(shape, _)| {
                !self.slots.values().any(|slot| slot.shape == **shape)
                    && self.has_open_work(shape)
                    && !self.waits_for_image(shape)
            })
            .filter_map(|(shape, queue)| Some((queue.front()?.since_us, shape)))
            .filter(|(since_us, _)| now_us.saturating_sub(*since_us) > STARVED_US)
            .min_by_key(|(since_us, _)| *since_us)
            .map(|(_, shape)| shape.clone())
    }

    fn is_held(&self, queued: &Queued) -> bool {
        self.hold_jobs.contains(&queued.piece.job)
            || self.hold_outputs
                && self
                    .programs
                    .get(&queued.program)
                    .is_some_and(KnownProgram::keeps_outputs)
    }

    fn has_open_work(&self, shape: &Shape) -> bool {
        self.queues
            .get(shape)
            .is_some_and(|queue| queue.iter().any(|queued| !self.is_held(queued)))
    }

    /// Create slots while there is work for another one and room, taking the room of idle slots of other shapes.
    fn make_slots(&mut self, shape: &Shape, starved: bool, actions: &mut Vec<Action>) {
        let Ok(need) = self.need(shape) else {
            return; // what cannot fit is not queued
        };
        loop {
            let queued = self.queued_events.get(shape).copied().unwrap_or(0);
            let idle = self
                .slots
                .values()
                .filter(|slot| slot.shape == *shape && slot.tickets.is_empty())
                .count() as u64;
            if queued <= idle {
                return;
            }
            if let Some(share) = self.room.take(need) {
                let slot = self.next_slot;
                self.next_slot += 1;
                actions.push(Action::Create {
                    slot,
                    shape: shape.clone(),
                    share: share.clone(),
                });
                self.slots.insert(
                    slot,
                    SlotState {
                        shape: shape.clone(),
                        share,
                        tickets: BTreeSet::new(),
                        at_hand_s: 0.0,
                        programs: HashSet::new(),
                        jobs: HashSet::new(),
                    },
                );
            } else if !self.make_room(shape, starved, &|room| room.take(need).is_some(), actions) {
                return;
            }
        }
    }

    /// Give queued work to the slots of a shape, the one with the least at hand first.
    fn feed(&mut self, shape: &Shape, actions: &mut Vec<Action>) {
        loop {
            let Some(position) = self.queues.get(shape).and_then(|queue| {
                if self.hold_outputs || !self.hold_jobs.is_empty() {
                    queue.iter().position(|q| !self.is_held(q))
                } else {
                    (!queue.is_empty()).then_some(0)
                }
            }) else {
                return;
            };
            let mine = self.slots.iter().filter(|(_, slot)| slot.shape == *shape);
            let count = mine.clone().count() as u64;
            let idle = mine.clone().filter(|(_, slot)| slot.tickets.is_empty()).count() as u64;
            let least = mine.min_by(|(_, a), (_, b)| {
                (!a.tickets.is_empty(), a.at_hand_s)
                    .partial_cmp(&(!b.tickets.is_empty(), b.at_hand_s))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
            let Some((&slot, state)) = least else { return };
            let queued = self.queued_events.get(shape).copied().unwrap_or(0);
            let wants = state.tickets.is_empty()
                || (state.tickets.len() < RUNS_MAX && state.at_hand_s < AT_HAND_S)
                || (state.tickets.len() < 2 && queued > count);
            if !wants {
                return;
            }
            self.give(shape, position, slot, (queued, count.max(1), idle), actions);
        }
    }

    /// Move events of the queue's piece at `position` to a slot. `share`: as of `fair`.
    fn give(
        &mut self,
        shape: &Shape,
        position: usize,
        slot: u32,
        share: (u64, u64, u64),
        actions: &mut Vec<Action>,
    ) {
        let Some(queue) = self.queues.get_mut(shape) else {
            return;
        };
        let Some(queued) = queue.get_mut(position) else {
            return;
        };
        let Some(known) = self.programs.get(&queued.program) else {
            return;
        };
        let at_hand = (AT_HAND_S / known.event_s).ceil() as u64;
        let per_payload = known.per_payload(queued.piece.chunk_max);
        let fair = fair(self.short, per_payload, share);
        let count = per_payload.max(at_hand).min(fair.max(1)).min(queued.piece.count);
        let piece = WorkPiece {
            count,
            ..queued.piece.clone()
        };
        queued.piece.first += count;
        queued.piece.count -= count;
        let program = queued.program;
        if queued.piece.count == 0 {
            queue.remove(position);
        }
        for total in self
            .queued_events
            .get_mut(shape)
            .into_iter()
            .chain(self.program_events.get_mut(&program))
        {
            *total -= count;
        }
        let Some(state) = self.slots.get_mut(&slot) else {
            return;
        };
        if state.programs.insert(program) {
            actions.push(Action::TellProgram { slot, program });
        }
        if state.jobs.insert(piece.job) {
            actions.push(Action::TellJob { slot, job: piece.job });
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        state.tickets.insert(ticket);
        state.at_hand_s += count as f64 * known.event_s;
        let left = Intervals::of(piece.first, count);
        self.tickets.insert(
            ticket,
            Ticket {
                slot,
                piece: piece.clone(),
                event_s: known.event_s,
                left,
            },
        );
        actions.push(Action::Run { slot, ticket, piece });
    }
}

/// Events that one of `slots` may have of what is queued for all of them; `idle` of them have nothing.
///
/// Half of a share, so that the last ones wait for the slot that is free first; but no large payload is cut to less than
/// its half while there is more to come and no slot waits: the lead itself gives less at the end.
fn fair(short: bool, per_payload: u64, (queued, slots, idle): (u64, u64, u64)) -> u64 {
    if short || per_payload <= 1 {
        return queued.div_ceil(2 * slots);
    }
    match idle {
        0 => queued.div_ceil(slots).max(per_payload.div_ceil(2)),
        _ => queued.div_ceil(idle),
    }
}

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod input_tests;
#[cfg(test)]
mod tests;
