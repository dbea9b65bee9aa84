//! The stage's life: started when the first file is wanted, started again when it dies, ended with the pilot.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tidemill_stage::Order;
use tidemill_sys::fd::{Poll, READABLE, WRITABLE};
use tidemill_sys::own::{self, OwnDirectory};
use tidemill_wire::log;

use crate::error::{PilotError, LOG};
use crate::node::variables;
use crate::pilot::Pilot;
use crate::stage::process::StageProcess;
use crate::stage::Staging;
use crate::time::pause_after;

/// A stage that has lived for so long did not die of what its predecessors died of.
const STEADY_US: u64 = 600_000_000;
/// What directories in the fast tier are named after.
const FAST: &str = "stage";

/// The process, and what became of earlier ones.
#[derive(Default)]
pub enum Stage {
    /// Nothing was wanted yet.
    #[default]
    None,
    Runs {
        process: StageProcess,
        since_us: u64,
    },
    /// It died, and the next one starts then.
    Rests {
        until_us: u64,
    },
    /// It cannot be started, or dies again and again: slots read inputs by themselves.
    Refused,
}

impl Stage {
    pub fn process(&mut self) -> Option<&mut StageProcess> {
        match self {
            Stage::Runs { process, .. } => Some(process),
            _ => None,
        }
    }
}

impl Staging {
    /// What to wait for.
    pub fn poll(&self) -> Option<Poll> {
        let Stage::Runs { process, .. } = &self.stage else {
            return None;
        };
        let writes = if process.wants_write() { WRITABLE } else { 0 };
        Some(Poll::new(process.fd(), READABLE | writes))
    }

    /// When the next stage is to be started.
    pub fn rests_until_us(&self) -> Option<u64> {
        match self.stage {
            Stage::Rests { until_us } => Some(until_us),
            _ => None,
        }
    }

    /// Tell the stage; what it cannot remove is removed here.
    pub fn order(&mut self, order: &Order) {
        let told = self.stage.process().map(|process| process.order(order));
        if let Some(Err(error)) = &told {
            LOG.warning("stage.deaf", &[("cause", &log::cause(error))]); // its end is heard next
        }
        if let (None, Order::Drop { sha256 }) = (told, order) {
            for directory in &self.directories {
                let _ = std::fs::remove_file(directory.join(sha256)); // it is in one of them
            }
        }
    }

    /// Files of a stage that died, but for those that are whole and wanted.
    fn sweep(&self) {
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
}

impl Pilot {
    /// Whether there is a stage, or will be soon: started where it was not; what cannot be is told once.
    pub(crate) fn has_stage(&mut self, now_us: u64) -> Result<bool, PilotError> {
        if matches!(self.staging.stage, Stage::None) {
            self.start_stage_or_refuse(now_us)?;
        }
        Ok(!matches!(self.staging.stage, Stage::Refused))
    }

    fn start_stage_or_refuse(&mut self, now_us: u64) -> Result<(), PilotError> {
        self.staging.stage = match self.start_stage() {
            Ok(process) => {
                LOG.info("stage.started", &[("failures", &self.staging.failures)]);
                Stage::Runs {
                    process,
                    since_us: now_us,
                }
            }
            Err(cause) => {
                let message = format!("slots read inputs by themselves: {cause}");
                self.note(("stage", "direct", message), None, BTreeMap::new(), now_us)?;
                let steps = self.staging.stager.without_stage(&cause);
                self.staging.stage = Stage::Refused;
                return self.act_stage(steps, now_us);
            }
        };
        Ok(())
    }

    /// The stage has died: another one follows after a pause, or none.
    pub(crate) fn lose_stage(&mut self, cause: &str, now_us: u64) -> Result<(), PilotError> {
        let lived = match self.staging.stage {
            Stage::Runs { since_us, .. } => now_us.saturating_sub(since_us),
            _ => 0,
        };
        if lived >= STEADY_US {
            self.staging.failures = 0;
        }
        self.staging.failures += 1;
        let failures = self.staging.failures;
        let (pause_us, next) = pause_after(failures, u64::MAX);
        let message = format!("{cause} ({next})");
        LOG.warning("stage.lost", &[("cause", &message)]);
        let mut steps = self.staging.stager.lost_stage(now_us);
        let mode = match pause_us {
            Some(pause_us) => {
                self.staging.stage = Stage::Rests {
                    until_us: now_us + pause_us,
                };
                "again"
            }
            None => {
                self.staging.stage = Stage::Refused;
                steps.extend(self.staging.stager.without_stage(&message));
                "direct"
            }
        };
        self.note(("stage", mode, message), None, BTreeMap::new(), now_us)?;
        self.act_stage(steps, now_us)
    }

    /// Start the next stage when it is time.
    pub(crate) fn revive_stage(&mut self, now_us: u64) -> Result<(), PilotError> {
        if self.staging.rests_until_us().is_some_and(|at_us| now_us >= at_us) {
            self.staging.sweep();
            self.start_stage_or_refuse(now_us)?;
        }
        Ok(())
    }

    fn start_stage(&mut self) -> Result<StageProcess, String> {
        let store_mb = self.binding.store_mb();
        let home = self.node.enter(store_mb)?.join("files");
        let fast = self.fast_directory().map(Path::to_owned);
        self.staging.directories = std::iter::once(home.clone()).chain(fast.clone()).collect();
        let peers = self.post.settings().peers;
        let (name, secret, host) = match self.source.as_peer() {
            Some((pilot, secret, address)) => {
                let host = address.filter(|_| peers).map(|address| address.to_string());
                (pilot.to_owned(), secret.to_owned(), host)
            }
            None => (String::new(), String::new(), None),
        };
        let order = Order::Start {
            secret,
            name,
            directory: home.display().to_string(),
            bytes_max: store_mb << 20,
            fast: fast.map(|path| path.display().to_string()),
            host,
        };
        StageProcess::start(&order).map_err(|error| log::cause(&error))
    }

    /// A directory of ours in the fast tier, which nobody else has made; a stage after the first one finds the same. None
    /// where there is none, or it cannot be used (said in the log).
    fn fast_directory(&mut self) -> Option<&Path> {
        if self.staging.fast.is_none() {
            let wanted = self.post.settings().fast_dir.as_deref()?;
            let made = variables::expand(wanted).and_then(|base| {
                let made = std::fs::DirBuilder::new()
                    .mode(0o700)
                    .recursive(true)
                    .create(&base);
                made.map_err(|error| format!("failed to make `{base}`: {error}"))?;
                OwnDirectory::make(Path::new(&base), FAST).map_err(|error| log::cause(&error))
            });
            match made {
                Ok(own) => self.staging.fast = Some(own),
                Err(cause) => LOG.warning("stage.no_fast_dir", &[("cause", &cause)]),
            }
        }
        self.staging.fast.as_ref().map(OwnDirectory::path)
    }

    /// End the stage, and all that it held; the child that still removes it.
    pub(crate) fn leave_stage(&mut self) -> Option<i32> {
        self.staging.stage = Stage::None;
        let fast = self.staging.fast.take()?;
        own::remove_aside(fast.path())
    }
}
