//! Pieces of work, and the programs that run them.

use std::collections::BTreeMap;

use tidemill_wire::{Grant, Program};

/// The newest measurement counts so much in the estimate of seconds per event.
const RATE_WEIGHT: f64 = 0.3;
const EVENT_S_MIN: f64 = 1e-6;

/// What a slot must offer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub cores: u64,
    pub memory_mb: u64,
    pub devices: BTreeMap<String, i64>,
    pub scratch_mb: u64,
    pub batch_commands: bool,
}

impl Shape {
    fn of(program: &Program) -> Self {
        Shape {
            cores: program.cores.max(1),
            memory_mb: program.memory_mb,
            devices: program
                .devices
                .iter()
                .filter(|(_, &n)| n > 0)
                .map(|(kind, &n)| (kind.clone(), n))
                .collect(),
            scratch_mb: program.scratch_mb,
            batch_commands: program.batch_commands,
        }
    }
}

/// Consecutive events of one grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub chunk_max: Option<u64>,
}

impl Piece {
    pub fn grant(&self) -> Grant {
        Grant {
            grant: self.grant,
            job: self.job,
            first: self.first,
            count: self.count,
            chunk_max: self.chunk_max,
        }
    }
}

/// A program, what it needs, and how long its events take.
pub struct KnownProgram {
    pub program: Program,
    pub shape: Shape,
    pub event_s: f64,
    measured: bool,
}

impl KnownProgram {
    /// `before`: the same program as told before, whose measurement stays.
    pub fn new(program: Program, before: Option<&KnownProgram>) -> Self {
        let (event_s, measured) = before
            .filter(|known| known.measured)
            .map_or((program.event_s.max(EVENT_S_MIN), false), |known| {
                (known.event_s, true)
            });
        KnownProgram {
            shape: Shape::of(&program),
            event_s,
            measured,
            program,
        }
    }

    /// Learn from payload seconds of so many events.
    pub fn measure(&mut self, events: u64, wall_s: f64) {
        if events == 0 {
            return;
        }
        let event_s = (wall_s / events as f64).max(EVENT_S_MIN);
        let step = if self.measured { RATE_WEIGHT } else { 1.0 };
        self.event_s += step * (event_s - self.event_s);
        self.measured = true;
    }

    /// Events of one payload or range, as the slot will cut them.
    pub fn per_payload(&self, chunk_max: Option<u64>) -> u64 {
        let limit = chunk_max.unwrap_or(self.program.chunk_max).max(1);
        ((self.program.range_s / self.event_s) as u64).clamp(1, limit)
    }

    /// Whether a Done of it has outputs.
    pub fn keeps_outputs(&self) -> bool {
        self.program.stdout_output || !self.program.outputs.is_empty()
    }
}
