//! Samples of this node, measured at a fixed interval and sent to the lead: best effort, at the lowest priority.
//!
//! A child measures, so that neither a driver nor a file system that hangs holds up the pilot. The figures cover the
//! whole node, including other users' processes. Does not know work.

pub mod command;
mod gpu_use;
mod proc;
mod reading;
mod sampler;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;

use tidemill_sys::fd::Poll;
use tidemill_wire::worker::Worker;
use tidemill_wire::{PilotMessage, Sampled, Settings};

use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::node::kernel_texts::KernelTexts;
use crate::time::seconds_us;
use sampler::{Measure, Measured, OwnFile};

/// Samples that wait for a lead that is unreachable or behind; older ones are dropped.
const KEPT_MAX: usize = 4;
/// Bytes waiting to be sent to the lead, above which samples wait.
const OUT_BYTES_MAX: usize = 64 << 10;
/// Pause before waiting samples are sent again.
const AGAIN_US: u64 = 1_000_000;
const INTERVAL_US_MIN: u64 = 100_000;

/// The pilot's part.
#[derive(Default)]
pub struct Monitor {
    worker: Option<Worker<Measured>>,
    interval_us: u64,
    next_us: u64,
    /// one measurement is under way
    is_awaited: bool,
    kept: VecDeque<Sampled>,
}

impl Monitor {
    /// Start to measure, unless the fleet does not want it. `files`: there is no lead, so the child writes a file. Forks:
    /// call while single-threaded.
    pub fn start(
        settings: &Settings,
        (node, pilot): (&str, &str),
        fleet: &Path,
        (kernel, files, now_us): (&KernelTexts, bool, u64),
    ) -> Result<Self, PilotError> {
        let interval_us = seconds_us(settings.monitor_interval_s.unwrap_or(0.0));
        if interval_us == 0 {
            return Ok(Monitor::default());
        }
        let file = files.then(|| OwnFile {
            directory: fleet.join("monitor"),
            pilot: pilot.to_owned(),
        });
        let (node, kernel) = (node.to_owned(), kernel.clone());
        let interval_us = interval_us.max(INTERVAL_US_MIN);
        let kept: Vec<RawFd> = kernel.descriptor().into_iter().collect();
        Ok(Monitor {
            worker: Some(Worker::start(c"tidemill-sample", &kept, move |served| {
                sampler::serve(served, (kernel, &node), file);
            })?),
            interval_us,
            next_us: now_us + interval_us,
            ..Monitor::default()
        })
    }

    pub fn poll(&self) -> Option<Poll> {
        self.worker.as_ref().map(Worker::poll)
    }

    /// When `step` has something to do at the latest.
    pub fn due_us(&self, now_us: u64) -> Option<u64> {
        self.worker.as_ref()?;
        let next_us = (!self.is_awaited).then_some(self.next_us);
        let again_us = (!self.kept.is_empty()).then_some(now_us + AGAIN_US);
        next_us.into_iter().chain(again_us).min()
    }

    /// Ask for a measurement when it is time, and hand over what was measured where the lead has nothing else to hear.
    pub fn step(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        self.hear();
        if !self.is_awaited && cx.now_us >= self.next_us {
            self.ask(cx.now_us)?;
        }
        while cx.lead.is_quiet(OUT_BYTES_MAX) {
            let Some(sampled) = self.kept.pop_front() else {
                break;
            };
            cx.send(&PilotMessage::Sampled(sampled))?;
        }
        Ok(())
    }

    fn ask(&mut self, now_us: u64) -> Result<(), PilotError> {
        if let Some(worker) = &mut self.worker {
            worker.send(&Measure {}, &[])?;
            self.is_awaited = true;
            // one that took long leaves out those that it missed
            let late_us = now_us - self.next_us;
            self.next_us += (late_us / self.interval_us + 1) * self.interval_us;
        }
        Ok(())
    }

    fn hear(&mut self) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        match worker.hear() {
            Ok(answers) => {
                for answer in answers {
                    self.is_awaited = false;
                    self.kept.extend(answer.sampled);
                }
                while self.kept.len() > KEPT_MAX {
                    self.kept.pop_front();
                }
            }
            Err(why) => {
                LOG.warning("monitor.gone", &[("cause", &why)]);
                self.worker = None;
            }
        }
    }
}
