//! Pieces of work, and the programs that run them.

use std::collections::BTreeMap;

use tidemill_slot::Network;
use tidemill_wire::{ImageUse, Program};

/// Weight of the newest measurement in the estimate of seconds per event.
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
    pub network: Network,
    /// Most processes and threads; 0 = by its cores.
    pub tasks_max: u64,
    /// Digest and areas of the images that its payloads run from: programs with other images get slots of their own.
    pub images: Vec<(String, Vec<String>)>,
    /// What its application names and others do not see: read-only, and writable.
    pub named: (Vec<String>, Vec<String>),
    pub may_mount: bool,
}

impl Shape {
    pub fn of(program: &Program, images: &[ImageUse]) -> Self {
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
            network: crate::slots::network(program.network.as_deref()),
            tasks_max: program.processes_max.unwrap_or(0),
            images: images
                .iter()
                .map(|image| (image.file.sha256.clone(), image.areas.clone()))
                .collect(),
            named: named(program),
            may_mount: program.named.as_ref().is_some_and(|named| named.may_mount),
        }
    }

    /// Digests of its images.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        self.images.iter().map(|(sha256, _)| sha256.as_str())
    }
}

/// An agent of an older version names nothing: then it is the program's approved files.
fn named(program: &Program) -> (Vec<String>, Vec<String>) {
    match &program.named {
        Some(named) => (named.show.clone(), named.write.clone()),
        None => (
            program.files.iter().map(|file| file.path.clone()).collect(),
            Vec::new(),
        ),
    }
}

/// Consecutive events of one grant.
pub use tidemill_wire::Grant as WorkPiece;

/// A program, what it needs, and how long its events take.
pub struct KnownProgram {
    pub program: Program,
    pub shape: Shape,
    pub event_s: f64,
    /// Seconds and events of an average recent measurement: a chunk weighs by its events.
    average: Option<(f64, f64)>,
}

impl KnownProgram {
    /// `before`: the program's earlier definition, whose measurement stays.
    pub fn new(program: Program, shape: Shape, before: Option<&KnownProgram>) -> Self {
        let average = before.and_then(|known| known.average);
        let event_s = before
            .filter(|_| average.is_some())
            .map_or(program.event_s.max(EVENT_S_MIN), |known| known.event_s);
        KnownProgram {
            shape,
            event_s,
            average,
            program,
        }
    }

    /// Learn from the payload seconds that `events` events took.
    pub fn measure(&mut self, events: u64, wall_s: f64) {
        if events == 0 {
            return;
        }
        let events = events as f64;
        let (mean_s, mean_events) = self.average.unwrap_or((wall_s, events));
        let mean_s = mean_s + RATE_WEIGHT * (wall_s - mean_s);
        let mean_events = mean_events + RATE_WEIGHT * (events - mean_events);
        self.average = Some((mean_s, mean_events));
        self.event_s = (mean_s / mean_events).max(EVENT_S_MIN);
    }

    /// Events of one payload or range, as the slot will split them.
    pub fn per_payload(&self, chunk_max: Option<u64>) -> u64 {
        let limit = chunk_max.unwrap_or(self.program.chunk_max).max(1);
        ((self.program.range_s / self.event_s) as u64).clamp(1, limit)
    }

    /// Aimed length of a payload or range that takes many events; 0 for one event at a time.
    pub fn payload_s(&self) -> f64 {
        if self.program.chunk_max <= 1 {
            return 0.0;
        }
        (self.program.chunk_max as f64 * self.event_s).min(self.program.range_s)
    }

    /// Whether a Done of it has outputs.
    pub fn keeps_outputs(&self) -> bool {
        self.program.stdout_output || !self.program.outputs.is_empty()
    }
}
