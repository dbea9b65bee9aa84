//! The child that measures: it alone waits for a program that asks GPUs, and for the file system that its file is on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_wire::worker::Served;
use tidemill_wire::{frame, Sampled, SegmentLog};

use super::gpu_use::GpuUse;
use super::reading::Reading;
use crate::node::kernel_texts::KernelTexts;

/// Of a pilot's own file; half a day at 30 s.
const SEGMENT_BYTES_MAX: u64 = 512 << 10;

/// Measure now.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measure {}

/// What was measured, unless it was the first reading or went to a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub sampled: Option<Sampled>,
}

/// Where samples go without a lead: below the fleet's directory, as this pilot.
pub struct OwnFile {
    pub directory: PathBuf,
    pub pilot: String,
}

/// Readings of a node, one after the other.
pub struct Sampler {
    kernel: KernelTexts,
    gpus: GpuUse,
    node: String,
    last: Reading,
}

impl Sampler {
    /// Begins with a reading.
    pub fn new(kernel: KernelTexts, node: &str) -> Self {
        let mut gpus = GpuUse::default();
        Sampler {
            last: Reading::take(&kernel, &mut gpus),
            node: node.to_owned(),
            kernel,
            gpus,
        }
    }

    /// What happened since the last call.
    pub fn sample(&mut self) -> Sampled {
        let now = Reading::take(&self.kernel, &mut self.gpus);
        let sampled = now.since(&self.last, &self.node);
        self.last = now;
        sampled
    }
}

/// Measure whenever the pilot asks for it, until it is gone.
pub fn serve(mut served: Served, (kernel, node): (KernelTexts, &str), file: Option<OwnFile>) {
    let mut sampler = Sampler::new(kernel, node);
    let log = |own: &OwnFile| SegmentLog::new(&own.directory, &own.pilot, SEGMENT_BYTES_MAX);
    let mut own = file.map(|own| (log(&own), own.pilot));
    served.answer_all(|Measure {}, _| {
        let mut sampled = Some(sampler.sample());
        if let Some((log, pilot)) = &mut own {
            if let Some(mut sampled) = sampled.take() {
                sampled.p.clone_from(pilot);
                let mut line = Vec::new();
                if frame::encode(&sampled, &mut line).is_ok() {
                    let _ = log.append(&line); // a sample that is lost does no harm
                }
            }
        }
        Measured { sampled }
    });
}
