//! What this node is and gives: facts from its environment, resources that were granted, and signals.
//!
//! Knows no work, no slot and no lead.

pub mod facts;
pub mod place;
pub mod signals;
pub mod spill;
pub mod variables;

use tidemill_sys::{machine, process, security};

use crate::error::PilotError;
use crate::options::Options;
use facts::{Environ, Facts};
use place::{Affinity, Room};

/// Nobody of the same user may trace this process or read its memory: it knows the fleet's secret.
pub fn close_to_tracers() -> Result<(), PilotError> {
    security::set_dumpable(false).map_err(system("become non-dumpable"))
}

/// The environment as text; what is no UTF-8 names nothing that we read.
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

/// The room for slots: what was granted, bounded by what was asked for on the command line.
pub fn room(options: &Options, facts: &Facts, affinity: Affinity) -> Result<Room, PilotError> {
    let granted = process::affinity().map_err(system("get CPU affinity"))?;
    let cpus = if affinity == Affinity::None {
        Vec::new()
    } else {
        place::locate(
            &granted,
            &std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default(),
        )
    };
    let units = place::units(affinity, &cpus);
    let usable = if affinity == Affinity::None {
        granted.len()
    } else {
        units.len()
    } as u64;
    let granted_by_batch = match affinity {
        Affinity::Core => usable, // the batch system counts CPUs, we count physical cores
        _ => facts.cores.map_or(usable, |count| count.clamp(1, usable.max(1))),
    };
    let cores = options.cores.unwrap_or(granted_by_batch).max(1);
    let memory_mb = options.memory_mb.unwrap_or_else(|| memory_mb(facts));
    Ok(Room::new(units, cores, memory_mb, facts.devices.clone()))
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
