//! The node and its resources: facts from its environment, resources that were granted, and signals.
//!
//! Does not know work, slots or the lead.

pub mod cgroups;
pub mod counters;
pub mod facts;
pub mod gpus;
pub mod kernel_texts;
#[cfg(test)]
pub mod machines;
pub mod place;
pub mod room;
pub mod signals;
pub mod spill;
pub mod topology;
pub mod variables;

use std::path::Path;

use tidemill_sys::{file, machine, process, security};

use crate::error::PilotError;
use crate::options::Options;
use facts::{Environ, Facts};
use kernel_texts::KernelTexts;
use place::{Affinity, Layout};
use room::Room;
use topology::Topology;

/// Prevent other processes of this user from tracing this one or reading its memory, which holds the fleet's secret.
/// The kernel's counters, opened before that, remain readable.
pub fn close_to_tracers() -> Result<KernelTexts, PilotError> {
    let kernel = KernelTexts::open();
    security::set_dumpable(false).map_err(system("become non-dumpable"))?;
    Ok(kernel)
}

/// The environment as text; variables that are not UTF-8 are left out, because the pilot reads none of them.
pub fn environ() -> Environ {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// This machine's name.
pub fn host() -> String {
    match machine::host() {
        none if none.is_empty() => String::from("unknown"),
        host => host,
    }
}

/// The GPUs that the allocation grants on the machine below `root`; those that cannot be used are noted. `expected`:
/// as returned by `gpus::allotted`.
pub fn add_gpus(facts: &mut Facts, root: &Path, expected: Option<u64>) -> Result<(), PilotError> {
    let found = gpus::find(root, file::may_open);
    facts.gpus = gpus::allotted(&environ(), found, expected, &mut facts.notes)?;
    Ok(())
}

/// The GPUs that a pilot would use on the machine below `root`, as JSON.
pub fn list_gpus(root: &Path) -> Result<String, PilotError> {
    let mut facts = Facts::default();
    add_gpus(&mut facts, root, None)?;
    let list: Vec<_> = facts.gpus.iter().map(gpus::Gpu::described).collect();
    Ok(format!("{}\n", serde_json::Value::Array(list)))
}

/// The room for slots: what was granted, bounded by what was asked for on the command line.
pub fn room(options: &Options, facts: &Facts, affinity: Affinity) -> Result<Room, PilotError> {
    let granted = process::affinity().map_err(system("get CPU affinity"))?;
    let topology = match affinity {
        Affinity::None => Topology::default(),
        _ => Topology::read(&options.machine_root, &granted),
    };
    let domains = facts.gpus.iter().map(|gpu| gpu.domain).collect();
    let layout = Layout::new(topology, domains, affinity);
    let usable = if affinity == Affinity::None {
        granted.len()
    } else {
        layout.units()
    } as u64;
    let granted_by_batch = match affinity {
        Affinity::Core => usable, // the batch system counts CPUs, we count physical cores
        _ => facts.cores.map_or(usable, |count| count.clamp(1, usable.max(1))),
    };
    let cores = options.cores.unwrap_or(granted_by_batch).max(1);
    let memory_mb = options.memory_mb.unwrap_or_else(|| memory_mb(facts));
    Ok(Room::new(layout, cores, memory_mb, facts.gpus.clone()))
}

fn memory_mb(facts: &Facts) -> u64 {
    let mb = |bytes: Option<u64>| bytes.map(|bytes| bytes >> 20);
    let machine = [
        mb(machine::memory().total_bytes),
        mb(machine::memory_limit_bytes()),
    ];
    let known = machine.into_iter().chain([facts.memory_mb]).flatten();
    known.min().unwrap_or(1024)
}

fn system(operation: &'static str) -> impl FnOnce(tidemill_sys::SysError) -> PilotError {
    move |error| PilotError::System {
        operation,
        source: error.source,
    }
}
