//! The stage of this node: the process that holds files in its memory and exchanges them with other nodes' stages.
//!
//! Started when the first file is wanted, started again when it dies, ended with the pilot. What is wanted, and from
//! where it comes, is in `stager`. Knows no job and no image: those who want files do.

pub mod stager;

use std::path::{Path, PathBuf};

use tidemill_stage::{Order, Report};
use tidemill_sys::fd::Poll;
use tidemill_sys::own::{self, OwnDirectory};
use tidemill_wire::worker::Worker;
use tidemill_wire::{log, IoArea};

use crate::error::LOG;
use crate::node::variables;
use crate::time::pause_after;
use stager::{Stager, Step};

/// Age at which a stage counts as healthy: its death has another cause than its predecessors'.
const STEADY_US: u64 = 600_000_000;
/// What directories in the fast tier are named after.
const FAST: &str = "stage";

/// The process, and what became of earlier ones.
#[derive(Default)]
enum State {
    /// Nothing was wanted yet.
    #[default]
    None,
    Runs {
        process: Worker<Report>,
        since_us: u64,
    },
    /// It died, and the next one starts then.
    Rests {
        until_us: u64,
    },
    /// It cannot be started, or keeps dying: slots read inputs by themselves.
    Refused,
}

/// Files that come to this node.
#[derive(Default)]
pub struct Stage {
    pub stager: Stager,
    state: State,
    /// Stages that died in a row.
    failures: usize,
    /// Where files are held: in memory, and in the fast tier where there is one.
    directories: Vec<PathBuf>,
    /// The one in the fast tier.
    fast: Option<OwnDirectory>,
}

impl Stage {
    /// `asks`: a lead or peers files can name nodes that have a file.
    pub fn new(asks: bool, areas: &[IoArea]) -> Self {
        Stage {
            stager: Stager::new(asks, areas),
            ..Stage::default()
        }
    }

    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// What to wait for.
    pub fn poll(&self) -> Option<Poll> {
        match &self.state {
            State::Runs { process, .. } => Some(process.poll()),
            _ => None,
        }
    }

    /// When the next stage is to be started, or files are sought without an answer; `answers`: the lead or peers files answer at present.
    pub fn due_us(&self, answers: bool) -> Option<u64> {
        let rests_us = match self.state {
            State::Rests { until_us } => Some(until_us),
            _ => None,
        };
        let alone_us = self.stager.due_us().filter(|_| !answers);
        rests_us.into_iter().chain(alone_us).min()
    }

    /// Whether a process is to be started now: the first, as it is `wanted`, or the next.
    pub fn starts(&self, wanted: bool, now_us: u64) -> bool {
        match self.state {
            State::None => wanted,
            State::Rests { until_us } => now_us >= until_us,
            _ => false,
        }
    }

    /// There is none, and will be none.
    pub fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    /// Hold files in this directory of the node's memory, and in a new one in the fast tier (a stage after the first one
    /// finds the same). The latter, if there is one that can be used.
    pub fn hold_in(&mut self, memory: PathBuf, fast_dir: Option<&str>) -> Option<&Path> {
        if let (None, Some(wanted)) = (&self.fast, fast_dir) {
            match fast_directory(wanted) {
                Ok(own) => self.fast = Some(own),
                Err(cause) => LOG.warning("stage.no_fast_dir", &[("cause", &cause)]),
            }
        }
        let fast = self.fast.as_ref().map(OwnDirectory::path);
        self.directories = std::iter::once(memory).chain(fast.map(Path::to_owned)).collect();
        fast
    }

    /// Start a process with its first order.
    pub fn start(&mut self, first: &Order, now_us: u64) -> Result<(), String> {
        let started = Worker::execute("stage").and_then(|mut stage| {
            stage.send(first, &[])?;
            Ok(stage)
        });
        let process = started.map_err(|error| log::cause(&error))?;
        LOG.info("stage.started", &[("failures", &self.failures)]);
        self.state = State::Runs {
            process,
            since_us: now_us,
        };
        Ok(())
    }

    /// It cannot be started: what follows for files that are wanted.
    pub fn refuse(&mut self, cause: &str) -> Vec<Step> {
        self.state = State::Refused;
        self.stager.without_stage(cause)
    }

    /// It has died: what to say of that, and what follows. Another one starts after a pause, or none (`is_refused`).
    pub fn lose(&mut self, cause: &str, now_us: u64) -> (String, Vec<Step>) {
        let steady = |since_us: u64| now_us.saturating_sub(since_us) >= STEADY_US;
        if matches!(self.state, State::Runs { since_us, .. } if steady(since_us)) {
            self.failures = 0;
        }
        self.failures += 1;
        let (pause_us, next) = pause_after(self.failures, u64::MAX);
        let message = format!("{cause} ({next})");
        LOG.warning("stage.lost", &[("cause", &message)]);
        let mut steps = self.stager.lost_stage(now_us);
        match pause_us {
            Some(pause_us) => {
                let until_us = now_us + pause_us;
                self.state = State::Rests { until_us };
            }
            None => steps.extend(self.refuse(&message)),
        }
        (message, steps)
    }

    /// What it has reported since; None: there is none. Err: it has died, and why.
    pub fn hear(&mut self) -> Option<Result<Vec<Report>, String>> {
        match &mut self.state {
            State::Runs { process, .. } => Some(process.hear()),
            _ => None,
        }
    }

    /// Give it an order; what it cannot remove is removed here.
    pub fn order(&mut self, order: &Order) {
        if let State::Runs { process, .. } = &mut self.state {
            if let Err(error) = process.send(order, &[]) {
                LOG.warning("stage.deaf", &[("cause", &log::cause(&error))]); // its end is heard next
            }
        } else if let Order::Drop { sha256 } = order {
            for directory in &self.directories {
                let _ = std::fs::remove_file(directory.join(sha256)); // it is in one of them
            }
        }
    }

    /// Remove files of a stage that died, but for those that are whole and wanted.
    pub fn sweep(&self) {
        let files = self
            .directories
            .iter()
            .flat_map(std::fs::read_dir)
            .flatten()
            .flatten();
        for file in files {
            if !self.stager.is_held(&file.file_name().to_string_lossy()) {
                let _ = std::fs::remove_file(file.path()); // what stays takes room only
            }
        }
    }

    /// End the process, and all that it held; the child that still removes it.
    pub fn leave(&mut self) -> Option<i32> {
        self.state = State::None;
        let fast = self.fast.take()?;
        own::remove_aside(fast.path())
    }
}

fn fast_directory(wanted: &str) -> Result<OwnDirectory, String> {
    let base = variables::expand(wanted)?;
    variables::make(&base)?;
    OwnDirectory::make(Path::new(&base), FAST).map_err(|error| log::cause(&error))
}
