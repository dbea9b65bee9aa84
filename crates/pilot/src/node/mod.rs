//! What this node is and gives: facts from its environment, resources that were granted, and signals.
//!
//! Knows no work, no slot and no lead.

pub mod facts;
pub mod place;
pub mod signals;
pub mod spill;
pub mod variables;

use tidemill_sys::{process, security};

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
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::from("unknown"), |t| t.trim().to_owned())
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
    let node = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_mb(&text));
    let group = std::fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| cgroup_limit_mb(&text, read_limit));
    [facts.memory_mb, node, group]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(1024)
}

fn read_limit(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// `MemTotal` of /proc/meminfo, proc(5).
fn meminfo_mb(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// The smallest memory limit on the way up from this process's cgroup (Linux Documentation/admin-guide/cgroup-v2.rst;
/// cgroup-v1/memory.rst, where "no limit" is a number near 2^63).
fn cgroup_limit_mb(text: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    const DEPTH_MAX: usize = 16;
    let mut least: Option<u64> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|each| each == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        for _ in 0..DEPTH_MAX {
            let limit =
                read(&format!("{root}{path}/{file}")).and_then(|value| value.trim().parse::<u64>().ok());
            if let Some(bytes) = limit.filter(|&bytes| bytes < 1 << 60) {
                least = Some(least.map_or(bytes, |old| old.min(bytes)));
            }
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => break,
            }
        }
    }
    least.map(|bytes| bytes >> 20)
}

fn system(operation: &'static str) -> impl FnOnce(tidemill_sys::SysError) -> PilotError {
    move |error| PilotError::System {
        operation,
        source: error.source,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn memory_of_the_node_is_its_total() {
        assert_eq!(
            meminfo_mb("MemTotal:       50331648 kB\nMemFree: 1 kB\n"),
            Some(49152)
        );
        assert_eq!(meminfo_mb("nothing"), None);
    }

    #[test]
    fn the_smallest_limit_up_the_tree_counts() {
        let limits = BTreeMap::from([
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
        ]);
        let read = |path: &str| limits.get(path).map(|text| (*text).to_owned());
        assert_eq!(cgroup_limit_mb("0::/a/b\n", read), Some(2048));
        assert_eq!(cgroup_limit_mb("0::/\n", read), None);
        let old = |path: &str| {
            (path == "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes")
                .then(|| "1073741824\n".to_owned())
        };
        assert_eq!(
            cgroup_limit_mb("9:cpu:/x\n5:memory:/slurm/job_7\n", old),
            Some(1024)
        );
        assert_eq!(
            cgroup_limit_mb("5:memory:/\n", |_| Some("9223372036854771712".to_owned())),
            None
        );
    }
}
