//! Which cores and devices a slot gets, from what was granted only. Pure.
//!
//! A *unit* is what one core of a program gets: a CPU, or with `core` affinity all granted CPUs of a physical core.

use std::collections::BTreeMap;

/// A CPU that was granted, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    pub package: u32,
    pub core: u32,
    pub id: usize,
}

/// How slots are spread over CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Far from each other: alternate packages, physical cores before their second threads.
    Spread,
    /// Close to each other.
    Compact,
    /// A physical core for each core asked for.
    Core,
    /// Not pinned.
    None,
}

impl Affinity {
    /// From the manifest's word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "spread" => Some(Affinity::Spread),
            "compact" => Some(Affinity::Compact),
            "core" => Some(Affinity::Core),
            "none" => Some(Affinity::None),
            _ => None,
        }
    }
}

/// The granted CPUs with their places, from the text of /proc/cpuinfo (proc(5)); where it does not tell (not x86), each
/// CPU counts as a core of its own.
pub fn locate(granted: &[usize], cpuinfo: &str) -> Vec<Cpu> {
    let mut places: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
    let (mut id, mut package) = (None, 0u32);
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key.trim() {
            "processor" => (id, package) = (value.parse::<usize>().ok(), 0),
            "physical id" => package = value.parse().unwrap_or(0),
            "core id" => {
                if let (Some(id), Ok(core)) = (id, value.parse()) {
                    places.insert(id, (package, core));
                }
            }
            _ => {}
        }
    }
    let mut cpus: Vec<Cpu> = granted
        .iter()
        .map(|&id| {
            let (package, core) = places.get(&id).copied().unwrap_or((0, id as u32));
            Cpu { package, core, id }
        })
        .collect();
    cpus.sort_unstable();
    cpus
}

/// The units in the order in which slots take them; empty = nothing is pinned.
pub fn units(affinity: Affinity, cpus: &[Cpu]) -> Vec<Vec<usize>> {
    let mut cores: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for cpu in cpus {
        cores.entry((cpu.package, cpu.core)).or_default().push(cpu.id);
    }
    match affinity {
        Affinity::None => Vec::new(),
        Affinity::Core => cores.into_values().collect(),
        Affinity::Compact => cores.into_values().flatten().map(|id| vec![id]).collect(),
        Affinity::Spread => {
            let mut ranked = Vec::new();
            let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
            for ((package, _), threads) in cores {
                let position = seen.entry(package).or_insert(0);
                for (thread, id) in threads.into_iter().enumerate() {
                    ranked.push((thread, *position, package, id));
                }
                *position += 1;
            }
            ranked.sort_unstable();
            ranked.into_iter().map(|(_, _, _, id)| vec![id]).collect()
        }
    }
}

/// What a slot takes of a node. `memory_mb`: of its payloads and, where that is in memory, of its work directory.
/// `spill_mb`: of its work directory where that is elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    pub cores: u64,
    pub memory_mb: u64,
    pub spill_mb: u64,
    pub devices: &'a BTreeMap<String, i64>,
}

/// What of the node is free.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Room {
    units: Vec<Vec<usize>>,
    taken: Vec<bool>,
    cores: u64,
    memory_mb: u64,
    /// of the place for work directories besides memory; 0 where there is none
    spill_mb: u64,
    devices: BTreeMap<String, Vec<u32>>,
    whole: (u64, u64, BTreeMap<String, usize>),
}

/// What one slot holds of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub cores: u64,
    pub memory_mb: u64,
    pub spill_mb: u64,
    pub cpus: Vec<usize>,
    pub devices: Vec<(String, Vec<u32>)>,
    units: Vec<usize>,
}

impl Room {
    /// `cores` above the number of units means that nothing can be pinned.
    pub fn new(
        units: Vec<Vec<usize>>,
        cores: u64,
        memory_mb: u64,
        devices: BTreeMap<String, Vec<u32>>,
    ) -> Self {
        let units = if cores > units.len() as u64 {
            Vec::new()
        } else {
            units
        };
        let counts = devices
            .iter()
            .map(|(kind, list)| (kind.clone(), list.len()))
            .collect();
        Room {
            taken: vec![false; units.len()],
            units,
            cores,
            memory_mb,
            spill_mb: 0,
            devices,
            whole: (cores, memory_mb, counts),
        }
    }

    /// A place for work directories besides memory, with so much room.
    pub fn with_spill(self, spill_mb: u64) -> Self {
        Room { spill_mb, ..self }
    }

    /// Whether cores and devices for a slot could be had if the node were empty.
    pub fn could_ever_hold(&self, cores: u64, devices: &BTreeMap<String, i64>) -> bool {
        let (all_cores, _, counts) = &self.whole;
        cores <= *all_cores
            && devices
                .iter()
                .all(|(kind, &n)| n <= counts.get(kind).copied().unwrap_or(0) as i64)
    }

    /// Keep memory for something that is no slot; false if there is not so much now.
    pub fn hold(&mut self, memory_mb: u64) -> bool {
        let fits = memory_mb <= self.memory_mb;
        if fits {
            self.memory_mb -= memory_mb;
        }
        fits
    }

    pub fn release(&mut self, memory_mb: u64) {
        self.memory_mb += memory_mb;
    }

    /// Take room for a slot, None if it does not fit now.
    pub fn take(&mut self, need: Need<'_>) -> Option<Share> {
        let Need {
            cores,
            memory_mb,
            spill_mb,
            devices,
        } = need;
        let fits = cores <= self.cores
            && memory_mb <= self.memory_mb
            && spill_mb <= self.spill_mb
            && devices
                .iter()
                .all(|(kind, &n)| n <= self.devices.get(kind).map_or(0, Vec::len) as i64);
        if !fits {
            return None;
        }
        self.cores -= cores;
        self.memory_mb -= memory_mb;
        self.spill_mb -= spill_mb;
        let units: Vec<usize> = (0..self.units.len())
            .filter(|&unit| !self.taken[unit])
            .take(cores as usize)
            .collect();
        let mut cpus = Vec::new();
        for &unit in &units {
            self.taken[unit] = true;
            cpus.extend_from_slice(&self.units[unit]);
        }
        cpus.sort_unstable();
        let mut given = Vec::new();
        for (kind, &n) in devices {
            if let Some(free) = self.devices.get_mut(kind).filter(|_| n > 0) {
                given.push((kind.clone(), free.drain(..n as usize).collect()));
            }
        }
        Some(Share {
            cores,
            memory_mb,
            spill_mb,
            cpus,
            devices: given,
            units,
        })
    }

    /// Put a slot's room back.
    pub fn give_back(&mut self, share: Share) {
        self.cores += share.cores;
        self.memory_mb += share.memory_mb;
        self.spill_mb += share.spill_mb;
        for unit in share.units {
            self.taken[unit] = false;
        }
        for (kind, list) in share.devices {
            let free = self.devices.entry(kind).or_default();
            free.extend(list);
            free.sort_unstable();
        }
    }

    /// Cores, memory and devices of the whole node.
    pub fn whole(&self) -> &(u64, u64, BTreeMap<String, usize>) {
        &self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two packages with two cores of two threads each, numbered as Linux does on common servers.
    const CPUINFO: &str = "processor\t: 0\nphysical id\t: 0\ncore id\t\t: 0\n\nprocessor\t: 1\nphysical id\t: 0\ncore id\t\t: 1\n\n\
        processor\t: 2\nphysical id\t: 1\ncore id\t\t: 0\n\nprocessor\t: 3\nphysical id\t: 1\ncore id\t\t: 1\n\n\
        processor\t: 4\nphysical id\t: 0\ncore id\t\t: 0\n\nprocessor\t: 5\nphysical id\t: 0\ncore id\t\t: 1\n\n\
        processor\t: 6\nphysical id\t: 1\ncore id\t\t: 0\n\nprocessor\t: 7\nphysical id\t: 1\ncore id\t\t: 1\n";

    fn order(affinity: Affinity, granted: &[usize]) -> Vec<Vec<usize>> {
        units(affinity, &locate(granted, CPUINFO))
    }

    fn need(cores: u64, memory_mb: u64, devices: &BTreeMap<String, i64>) -> Need<'_> {
        Need {
            cores,
            memory_mb,
            spill_mb: 0,
            devices,
        }
    }

    #[test]
    fn spread_alternates_packages_and_leaves_second_threads_for_last() {
        assert_eq!(
            order(Affinity::Spread, &[0, 1, 2, 3, 4, 5, 6, 7]).concat(),
            [0, 2, 1, 3, 4, 6, 5, 7]
        );
    }

    #[test]
    fn compact_fills_core_by_core() {
        assert_eq!(
            order(Affinity::Compact, &[0, 1, 2, 3, 4, 5, 6, 7]).concat(),
            [0, 4, 1, 5, 2, 6, 3, 7]
        );
    }

    #[test]
    fn core_gives_whole_physical_cores_of_what_was_granted() {
        assert_eq!(order(Affinity::Core, &[0, 1, 4]), [vec![0, 4], vec![1]]);
        assert!(order(Affinity::None, &[0, 1]).is_empty());
    }

    #[test]
    fn without_topology_each_cpu_is_a_core() {
        assert_eq!(units(Affinity::Core, &locate(&[3, 9], "")), [vec![3], vec![9]]);
    }

    #[test]
    fn more_cores_than_granted_pins_nothing() {
        let mut room = Room::new(vec![vec![0]], 4, 100, BTreeMap::new());
        assert!(room.take(need(2, 1, &BTreeMap::new())).unwrap().cpus.is_empty());
    }

    #[test]
    fn devices_are_never_given_twice() {
        let mut room = Room::new(vec![], 8, 8, BTreeMap::from([("gpu".to_owned(), vec![2, 3])]));
        let one = BTreeMap::from([("gpu".to_owned(), 1)]);
        let first = room.take(need(1, 1, &one)).unwrap();
        assert_eq!(first.devices, [("gpu".to_owned(), vec![2])]);
        assert_eq!(
            room.take(need(1, 1, &one)).unwrap().devices,
            [("gpu".to_owned(), vec![3])]
        );
        assert!(room.take(need(1, 1, &one)).is_none());
        assert!(!room.could_ever_hold(1, &BTreeMap::from([("gpu".to_owned(), 3)])));
        room.give_back(first);
        assert_eq!(
            room.take(need(1, 1, &one)).unwrap().devices,
            [("gpu".to_owned(), vec![2])]
        );
    }

    #[test]
    fn what_is_held_is_no_slots() {
        let mut room = Room::new(vec![], 2, 100, BTreeMap::new()).with_spill(50);
        assert!(room.hold(60) && !room.hold(41));
        assert!(room.take(need(1, 41, &BTreeMap::new())).is_none());
        room.release(60);
        let none = BTreeMap::new();
        let spilled = Need {
            spill_mb: 50,
            ..need(1, 41, &none)
        };
        let share = room.take(spilled).unwrap();
        assert!(room.take(spilled).is_none(), "its place is taken");
        room.give_back(share);
        assert!(room.take(spilled).is_some());
    }

    proptest! {
        #[test]
        fn what_is_taken_is_disjoint_and_comes_back(asks in proptest::collection::vec((1u64..4, 0u64..40), 1..12)) {
            let cpus: Vec<Vec<usize>> = (0..8).map(|id| vec![id]).collect();
            let mut room = Room::new(cpus, 8, 100, BTreeMap::new());
            let whole = room.clone();
            let shares: Vec<Share> = asks.iter().filter_map(|&(c, m)| room.take(need(c, m, &BTreeMap::new()))).collect();
            let mut all: Vec<usize> = shares.iter().flat_map(|share| share.cpus.clone()).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            prop_assert_eq!(count as u64, shares.iter().map(|share| share.cores).sum::<u64>());
            for share in shares {
                room.give_back(share);
            }
            prop_assert_eq!(room, whole);
        }
    }
}
