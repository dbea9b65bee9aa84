//! Where the CPUs of this machine are, from /sys below a given root: packages, memory domains, shared caches, cores.
//!
//! Sources: Linux, Documentation/admin-guide/cputopology.rst (`core_cpus_list` since Linux 5.3, before that
//! `thread_siblings_list`), Documentation/ABI/stable/sysfs-devices-node (`cpulist`, `distance`) and
//! Documentation/ABI/testing/sysfs-devices-system-cpu (`cache/indexN/{level,shared_cpu_list}`). These files are the same
//! on x86_64, aarch64 and POWER; /proc/cpuinfo names packages and cores on x86_64 only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// More than any machine has (NR_CPUS_RANGE_END of Linux, arch/x86/Kconfig: 8,192): a longer range is a broken file.
const CPUS_MAX: usize = 1 << 16;
/// Between domains whose distance is unknown: as remote as the ACPI SLIT puts another domain by default.
const REMOTE: u32 = 20;
/// Of a domain to itself (ACPI SLIT).
const LOCAL: u32 = 10;

/// A CPU (hardware thread) that was granted, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    pub package: u32,
    pub domain: u32,
    /// The lowest CPU that shares its last level of cache.
    pub cache: u32,
    /// The lowest CPU of its physical core.
    pub core: u32,
    pub id: usize,
}

/// The granted CPUs in the order of their places, and how far memory domains are from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub cpus: Vec<Cpu>,
    distances: BTreeMap<(u32, u32), u32>,
}

impl Topology {
    /// Read what /sys below `root` says of these CPUs. What it does not say is left out: a CPU without topology is a core
    /// of its own, and all are in domain 0. Costs about three small reads for each physical core.
    pub fn read(root: &Path, granted: &[usize]) -> Topology {
        let sys = Sys(root.join("sys/devices/system"));
        let domains = sys.domains();
        let domain_of: BTreeMap<usize, u32> = domains
            .iter()
            .flat_map(|(&domain, cpus)| cpus.iter().map(move |&cpu| (cpu, domain)))
            .collect();
        let mut known: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
        let mut caches: BTreeMap<usize, u32> = BTreeMap::new();
        let mut cpus = Vec::new();
        for &id in granted {
            let (package, core) = *known.entry(id).or_insert_with(|| (sys.package(id), id as u32));
            let core = if core == id as u32 {
                let siblings = sys.siblings(id);
                let first = siblings.first().map_or(core, |&first| first as u32);
                known.extend(siblings.into_iter().map(|each| (each, (package, first))));
                first
            } else {
                core
            };
            if !caches.contains_key(&id) {
                let shared = sys.last_cache(id);
                let first = shared.first().copied().unwrap_or(id) as u32;
                caches.extend(shared.into_iter().chain([id]).map(|each| (each, first)));
            }
            cpus.push(Cpu {
                package,
                domain: domain_of.get(&id).copied().unwrap_or(0),
                cache: caches.get(&id).copied().unwrap_or(core),
                core,
                id,
            });
        }
        cpus.sort_unstable();
        let distances = sys.distances(&domains);
        Topology { cpus, distances }
    }

    /// CPUs of which only the places are known.
    #[cfg(test)]
    pub fn of(cpus: Vec<Cpu>) -> Topology {
        Topology {
            cpus,
            distances: BTreeMap::new(),
        }
    }

    /// How far the memory of one domain is from the CPUs of another, in the units of the ACPI SLIT: 10 is local.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let unknown = if from == to { LOCAL } else { REMOTE };
        self.distances.get(&(from, to)).copied().unwrap_or(unknown)
    }
}

/// /sys/devices/system
struct Sys(PathBuf);

impl Sys {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(path)).ok()
    }

    /// The CPUs of each domain; a domain of memory alone has none.
    fn domains(&self) -> BTreeMap<u32, Vec<usize>> {
        let Ok(entries) = std::fs::read_dir(self.0.join("node")) else {
            return BTreeMap::new();
        };
        let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
        let found = entries
            .flatten()
            .filter_map(|entry| number(&entry.file_name().to_string_lossy()));
        found
            .map(|domain| {
                let text = self.text(&format!("node/node{domain}/cpulist"));
                (domain, cpu_list(&text.unwrap_or_default()))
            })
            .collect()
    }

    /// A line of `distance` has a number for each domain that is online, in rising order.
    fn distances(&self, domains: &BTreeMap<u32, Vec<usize>>) -> BTreeMap<(u32, u32), u32> {
        let mut found = BTreeMap::new();
        for &from in domains.keys() {
            let line = self
                .text(&format!("node/node{from}/distance"))
                .unwrap_or_default();
            let numbers: Vec<u32> = line
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            if numbers.len() == domains.len() {
                found.extend(domains.keys().zip(numbers).map(|(&to, far)| ((from, to), far)));
            }
        }
        found
    }

    /// -1 (or nothing) on machines whose firmware does not say, such as virtual ones: package 0.
    fn package(&self, cpu: usize) -> u32 {
        let text = self.text(&format!("cpu/cpu{cpu}/topology/physical_package_id"));
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn siblings(&self, cpu: usize) -> Vec<usize> {
        ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| self.text(&format!("cpu/cpu{cpu}/topology/{name}")))
            .map(|text| cpu_list(&text))
            .unwrap_or_default()
    }

    /// The CPUs that share the last level of cache with this one.
    fn last_cache(&self, cpu: usize) -> Vec<usize> {
        let directory = format!("cpu/cpu{cpu}/cache");
        let mut last: Option<(u32, u32)> = None;
        // index0 to index3 nearly everywhere; a level may have two (data and instructions)
        for index in 0..8 {
            let Some(text) = self.text(&format!("{directory}/index{index}/level")) else {
                continue;
            };
            if let Ok(level) = text.trim().parse::<u32>() {
                last = last.max(Some((level, index)));
            }
        }
        last.and_then(|(_, index)| self.text(&format!("{directory}/index{index}/shared_cpu_list")))
            .map(|text| cpu_list(&text))
            .unwrap_or_default()
    }
}

/// A list of CPUs as the kernel writes it, `0-3,8,10-11` (bitmap_parselist of Linux), sorted; empty where it is broken.
pub fn cpu_list(text: &str) -> Vec<usize> {
    let mut found = BTreeSet::new();
    for piece in text.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>()) else {
            return Vec::new();
        };
        if first > last || last >= CPUS_MAX {
            return Vec::new();
        }
        found.extend(first..=last);
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::machines::{unpacked, DGX, GRACE, LAPTOP, POWER9};

    fn read(machine: &str, granted: &[usize]) -> Topology {
        Topology::read(unpacked(machine).path(), granted)
    }

    fn domains(topology: &Topology) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for cpu in &topology.cpus {
            *counts.entry(cpu.domain).or_default() += 1;
        }
        counts
    }

    #[test]
    fn two_sockets_of_four_domains_are_read_with_caches_and_siblings() {
        let all: Vec<usize> = (0..256).collect();
        let topology = read(DGX, &all);
        assert_eq!(domains(&topology), (0..8).map(|domain| (domain, 32)).collect());
        let find = |id: usize| *topology.cpus.iter().find(|cpu| cpu.id == id).unwrap();
        assert_eq!(
            find(213),
            Cpu {
                package: 1,
                domain: 5,
                cache: 84,
                core: 85,
                id: 213
            }
        );
        assert_eq!(
            [
                topology.distance(0, 0),
                topology.distance(0, 3),
                topology.distance(0, 4)
            ],
            [10, 12, 32]
        );
    }

    #[test]
    fn aarch64_and_power_have_their_topology_in_sys_too() {
        let grace = read(GRACE, &(0..144).collect::<Vec<_>>());
        assert_eq!(domains(&grace), BTreeMap::from([(0, 72), (1, 72)]));
        assert_eq!(
            grace
                .cpus
                .iter()
                .map(|cpu| cpu.core)
                .collect::<BTreeSet<_>>()
                .len(),
            144
        );
        let power = read(POWER9, &(0..176).collect::<Vec<_>>());
        assert_eq!(domains(&power), BTreeMap::from([(0, 88), (8, 88)]));
        assert_eq!(
            power
                .cpus
                .iter()
                .map(|cpu| cpu.core)
                .collect::<BTreeSet<_>>()
                .len(),
            44
        );
        assert_eq!(power.distance(0, 8), 40);
    }

    #[test]
    fn a_laptop_has_cores_with_two_threads_and_cores_with_one() {
        let laptop = read(LAPTOP, &(0..16).collect::<Vec<_>>());
        let mut threads: BTreeMap<u32, usize> = BTreeMap::new();
        for cpu in &laptop.cpus {
            *threads.entry(cpu.core).or_default() += 1;
        }
        assert_eq!(threads.values().filter(|&&count| count == 2).count(), 4);
        assert_eq!(threads.values().filter(|&&count| count == 1).count(), 8);
    }

    #[test]
    fn what_sys_does_not_say_leaves_each_cpu_a_core_of_domain_0() {
        let empty = tempfile::tempdir().unwrap();
        let topology = Topology::read(empty.path(), &[9, 3]);
        assert_eq!(
            topology.cpus,
            [3, 9].map(|id| Cpu {
                package: 0,
                domain: 0,
                cache: id as u32,
                core: id as u32,
                id
            })
        );
        assert_eq!((topology.distance(0, 0), topology.distance(0, 1)), (10, 20));
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
        for broken in ["", "\n", "a", "3-1", "0-99999999999", "1-", "0,x"] {
            assert_eq!(cpu_list(broken), [0usize; 0], "{broken}");
        }
    }
}
