//! The lead of a wide allocation: a child of the rank 0 pilot, which restarts it when it dies.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidemill_sys::signal;

use crate::error::LOG;

const RESTART_US_MIN: u64 = 200_000;
const RESTART_US_MAX: u64 = 10_000_000;
/// How often its end is looked for.
pub const WATCH_US: u64 = 500_000;

/// The supervised lead.
pub struct LeadProcess {
    fleet: PathBuf,
    child: Option<Child>,
    start_at_us: u64,
    wait_us: u64,
    ended_well: bool,
}

impl LeadProcess {
    pub fn new(fleet: &Path, now_us: u64) -> Self {
        LeadProcess {
            fleet: fleet.to_owned(),
            child: None,
            start_at_us: now_us,
            wait_us: RESTART_US_MIN,
            ended_well: false,
        }
    }

    /// Start it if it should run and does not; true while it has not ended by itself with success.
    pub fn watch(&mut self, now_us: u64) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) if status.success() => self.ended_well = true,
                Ok(Some(status)) => LOG.warning("lead.died", &[("status", &status.to_string())]),
                Err(error) => LOG.warning("lead.unknown", &[("cause", &error.to_string())]),
            }
            self.child = None;
            self.start_at_us = now_us + self.wait_us;
            self.wait_us = (self.wait_us * 2).min(RESTART_US_MAX);
        }
        if !self.ended_well && now_us >= self.start_at_us {
            self.start();
        }
        !self.ended_well
    }

    fn start(&mut self) {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("lead")
            .arg("--fleet")
            .arg(&self.fleet)
            .stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                LOG.info("lead.started", &[("pid", &child.id())]);
                self.child = Some(child);
            }
            Err(error) => {
                LOG.error("lead.start_failed", &[("cause", &error.to_string())]);
                self.start_at_us += self.wait_us;
            }
        }
    }

    /// Ask it to leave, because the allocation ends.
    pub fn stop(&mut self) {
        if let Some(pid) = self
            .child
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok())
        {
            // an error means that it has ended already
            let _ = signal::kill(pid, signal::TERM);
        }
    }
}
