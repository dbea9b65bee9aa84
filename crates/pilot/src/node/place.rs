//! Which CPUs and GPUs a slot gets. Pure: from the layout and what is taken, it makes a choice.
//!
//! A *unit* is what one core of a program gets: a CPU, or with `core` affinity all granted CPUs of a physical core. A
//! slot lies in one memory domain where one has room for it, else in one package, else where it fits; in a domain it
//! keeps to one shared cache by the same rule. Its GPUs come first: those of one domain, and cores of that domain.
//!
//! `compact` (and `core`) fill one domain before the next, and a slot takes whole physical cores, so that the threads
//! of a core belong to one slot; a slot that is smaller than a core prefers an unused core. `spread` takes the domain
//! with the most room, and there one thread of each physical core before second threads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::node::topology::{Cpu, Topology};

/// How slots are laid over domains and cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// The emptiest domain first, physical cores before their second threads.
    Spread,
    /// One domain before the next.
    #[default]
    Compact,
    /// As `Compact`, with a physical core for each core asked for.
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

/// A memory domain within a package.
type Domain = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    domain: Domain,
    cache: u32,
    core: u32,
    /// its number among the units of its core
    thread: usize,
    cpus: Vec<usize>,
}

/// The places of a node: units, and the domain of each GPU where it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    units: Vec<Unit>,
    gpus: Vec<Option<u32>>,
    topology: Topology,
    spread: bool,
}

/// What is free: whether each unit is, and how much of each GPU, in percent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub units: Vec<bool>,
    pub gpus: Vec<u32>,
}

/// What a slot asks for: a number of units, and a number of whole GPUs or a share of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub cores: usize,
    pub gpus: usize,
    pub gpu_percent: u32,
}

/// What it gets: numbers of units and of GPUs, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub units: Vec<usize>,
    pub gpus: Vec<usize>,
}

/// A whole GPU.
pub const WHOLE: u32 = 100;

impl Layout {
    /// `gpus`: the domain of each, None where it is unknown. With `Affinity::None` there are no units.
    pub fn new(topology: Topology, gpus: Vec<Option<u32>>, affinity: Affinity) -> Layout {
        let mut cores: BTreeMap<(Domain, u32, u32), Vec<usize>> = BTreeMap::new();
        for cpu in &topology.cpus {
            cores.entry(key(cpu)).or_default().push(cpu.id);
        }
        let mut units = Vec::new();
        for ((domain, cache, core), cpus) in cores {
            let shares: Vec<Vec<usize>> = match affinity {
                Affinity::None => Vec::new(),
                Affinity::Core => vec![cpus],
                _ => cpus.into_iter().map(|id| vec![id]).collect(),
            };
            units.extend(shares.into_iter().enumerate().map(|(thread, cpus)| Unit {
                domain,
                cache,
                core,
                thread,
                cpus,
            }));
        }
        Layout {
            units,
            gpus,
            topology,
            spread: affinity == Affinity::Spread,
        }
    }

    /// The same GPUs, and nothing to pin slots to.
    pub fn without_units(self) -> Layout {
        Layout {
            units: Vec::new(),
            ..self
        }
    }

    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The CPUs of a unit.
    pub fn cpus(&self, unit: usize) -> &[usize] {
        &self.units[unit].cpus
    }

    /// All of it.
    pub fn all_free(&self) -> Free {
        Free {
            units: vec![true; self.units.len()],
            gpus: vec![WHOLE; self.gpus.len()],
        }
    }

    /// What a slot gets of what is free; None if that is too little. The same arguments give the same choice. A layout
    /// without units yields GPUs alone.
    pub fn choose(&self, free: &Free, ask: Ask) -> Option<Choice> {
        let search = Search::new(self, free, ask)?;
        let gpus = search.gpus()?;
        let units = search.units(&gpus);
        let sorted = |mut list: Vec<usize>| {
            list.sort_unstable();
            list
        };
        Some(Choice {
            units: sorted(units),
            gpus: sorted(gpus),
        })
    }
}

fn key(cpu: &Cpu) -> (Domain, u32, u32) {
    ((cpu.package, cpu.domain), cpu.cache, cpu.core)
}

/// One question: what is free of each domain.
struct Search<'a> {
    layout: &'a Layout,
    free: &'a Free,
    ask: Ask,
    /// units asked for, 0 where nothing is pinned
    cores: usize,
    units: BTreeMap<Domain, Vec<usize>>,
    /// GPUs that have what is asked for
    gpus: BTreeMap<Domain, Vec<usize>>,
    /// such GPUs whose domain is unknown, or has no granted CPU
    homeless: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(layout: &'a Layout, free: &'a Free, ask: Ask) -> Option<Self> {
        let mut units: BTreeMap<Domain, Vec<usize>> = BTreeMap::new();
        let mut packages: BTreeMap<u32, Domain> = BTreeMap::new();
        for (number, unit) in layout.units.iter().enumerate() {
            let known = units.entry(unit.domain).or_default();
            packages.entry(unit.domain.1).or_insert(unit.domain);
            if free.units[number] {
                known.push(number);
            }
        }
        let mut gpus: BTreeMap<Domain, Vec<usize>> = BTreeMap::new();
        let mut homeless = Vec::new();
        let wanted = if ask.gpus > 0 {
            WHOLE
        } else {
            ask.gpu_percent.max(1)
        };
        for (number, domain) in layout.gpus.iter().enumerate() {
            if free.gpus[number] < wanted {
                continue;
            }
            match domain.and_then(|domain| packages.get(&domain)) {
                Some(home) => gpus.entry(*home).or_default().push(number),
                None => homeless.push(number),
            }
        }
        let cores = if layout.units.is_empty() { 0 } else { ask.cores };
        let enough = units.values().map(Vec::len).sum::<usize>() >= cores;
        enough.then_some(Search {
            layout,
            free,
            ask,
            cores,
            units,
            gpus,
            homeless,
        })
    }

    fn count(&self) -> usize {
        match (self.ask.gpus, self.ask.gpu_percent) {
            (0, 0) => 0,
            (0, _) => 1,
            (count, _) => count,
        }
    }

    fn free_units(&self, domain: Domain) -> usize {
        self.units.get(&domain).map_or(0, Vec::len)
    }

    fn free_gpus(&self, domain: Domain) -> &[usize] {
        self.gpus.get(&domain).map_or(&[], Vec::as_slice)
    }

    /// The domains, one by one, then by packages, then all together.
    fn levels(&self) -> [Vec<Vec<Domain>>; 3] {
        let single = self.units.keys().map(|&domain| vec![domain]).collect();
        let mut packages: BTreeMap<u32, Vec<Domain>> = BTreeMap::new();
        for &domain in self.units.keys() {
            packages.entry(domain.0).or_default().push(domain);
        }
        let all = self.units.keys().copied().collect();
        [single, packages.into_values().collect(), vec![all]]
    }

    /// The smallest group of domains in which the slot fits, with its GPUs where it asks for some.
    fn group(&self) -> Option<Vec<Domain>> {
        let count = self.count();
        for level in self.levels() {
            let fitting = level.into_iter().filter(|group| {
                group.iter().map(|&d| self.free_units(d)).sum::<usize>() >= self.cores
                    && group.iter().map(|&d| self.free_gpus(d).len()).sum::<usize>() >= count
            });
            if let Some(best) = fitting.min_by_key(|group| self.rank(group)) {
                return Some(best);
            }
        }
        None
    }

    /// The first group is taken: where the least is left over, or with `spread` the most; GPUs stay free for those that
    /// ask for some.
    fn rank(&self, group: &[Domain]) -> (usize, usize) {
        let units: usize = group.iter().map(|&domain| self.free_units(domain)).sum();
        let gpus = group.iter().flat_map(|&domain| self.free_gpus(domain));
        let spare = match self.ask.gpu_percent {
            // the GPU that is shared most
            1.. if self.ask.gpus == 0 => gpus.map(|&gpu| self.free.gpus[gpu] as usize).min().unwrap_or(0),
            _ => gpus.count(),
        };
        match (self.layout.spread, self.count()) {
            (false, _) => (spare, units),
            (true, 0) => (usize::MAX - units, spare),
            (true, _) if self.ask.gpus == 0 => (spare, usize::MAX - units),
            (true, _) => (usize::MAX - spare, usize::MAX - units),
        }
    }

    fn gpus(&self) -> Option<Vec<usize>> {
        let count = self.count();
        if count == 0 {
            return Some(Vec::new());
        }
        let all = || self.gpus.keys().copied().collect();
        let group: Vec<Domain> = self.group().unwrap_or_else(all);
        let mut chosen = Vec::new();
        let mut rest: BTreeSet<Domain> = group.into_iter().collect();
        let mut first = None;
        // few domains, near each other, where there are cores
        while let Some(&next) = rest.iter().min_by_key(|&&domain| {
            let few = self.free_units(domain) < self.cores.min(1);
            let gpus = self.free_gpus(domain).len().min(count - chosen.len());
            let far = first.map(|from: Domain| self.distance(from, domain));
            (few, Reverse(gpus), far, domain)
        }) {
            rest.remove(&next);
            first.get_or_insert(next);
            let mut here = self.free_gpus(next).to_vec();
            here.sort_by_key(|&gpu| (self.free.gpus[gpu], gpu));
            chosen.extend(here.into_iter().take(count - chosen.len()));
            if chosen.len() == count {
                return Some(chosen);
            }
        }
        let mut homeless = self.homeless.clone();
        homeless.sort_by_key(|&gpu| (self.free.gpus[gpu], gpu));
        chosen.extend(homeless.into_iter().take(count - chosen.len()));
        (chosen.len() == count).then_some(chosen)
    }

    fn units(&self, gpus: &[usize]) -> Vec<usize> {
        if self.cores == 0 {
            return Vec::new();
        }
        let homes: Vec<Domain> = self
            .gpus
            .iter()
            .filter(|(_, here)| here.iter().any(|gpu| gpus.contains(gpu)))
            .map(|(&domain, _)| domain)
            .collect();
        let fitting = homes.iter().filter(|&&home| self.free_units(home) >= self.cores);
        if let Some(&home) = fitting.min_by_key(|&&home| (self.free_units(home), home)) {
            return self.take(&[home]);
        }
        if !homes.is_empty() {
            return self.take(&self.nearest(homes));
        }
        let group = self.group_of_cores();
        let start = group
            .iter()
            .copied()
            .min_by_key(|&domain| (Reverse(self.free_units(domain)), domain));
        let mut order = self.nearest(start.into_iter().collect());
        order.sort_by_key(|domain| !group.contains(domain)); // stable
        self.take(&order)
    }

    /// As `group`, for cores alone: GPUs whose domain is unknown lie nowhere.
    fn group_of_cores(&self) -> Vec<Domain> {
        let cores_alone = Search {
            layout: self.layout,
            free: self.free,
            ask: Ask {
                cores: self.ask.cores,
                ..Ask::default()
            },
            cores: self.cores,
            units: self.units.clone(),
            gpus: self.gpus.clone(),
            homeless: Vec::new(),
        };
        cores_alone.group().unwrap_or_default()
    }

    /// These domains, and then all others, the nearest and emptiest first.
    fn nearest(&self, mut homes: Vec<Domain>) -> Vec<Domain> {
        homes.sort_by_key(|&home| (Reverse(self.free_units(home)), home));
        let mut others: Vec<Domain> = self
            .units
            .keys()
            .copied()
            .filter(|each| !homes.contains(each))
            .collect();
        let far = |domain: Domain| homes.iter().map(|&home| self.distance(home, domain)).min();
        others.sort_by_key(|&domain| (far(domain), Reverse(self.free_units(domain)), domain));
        homes.extend(others);
        homes
    }

    fn distance(&self, from: Domain, to: Domain) -> (u32, bool) {
        (self.layout.topology.distance(from.1, to.1), from.0 != to.0)
    }

    /// Units of these domains in this order.
    fn take(&self, domains: &[Domain]) -> Vec<usize> {
        let mut taken = Vec::new();
        for domain in domains {
            let left = self.cores - taken.len();
            let free = self.units.get(domain).cloned().unwrap_or_default();
            taken.extend(self.within(free, left));
        }
        taken
    }

    /// At most `count` of the free units of one domain.
    fn within(&self, free: Vec<usize>, count: usize) -> Vec<usize> {
        if free.len() <= count {
            return free;
        }
        let unit = |number: usize| &self.layout.units[number];
        if self.layout.spread {
            let mut ranked = free;
            ranked.sort_by_key(|&number| (unit(number).thread, number));
            ranked.truncate(count);
            return ranked;
        }
        let mut caches: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for number in free {
            caches.entry(unit(number).cache).or_default().push(number);
        }
        let mut taken = Vec::new();
        while taken.len() < count {
            let left = count - taken.len();
            // the fullest with room for all that is left, else the emptiest
            let best = caches.iter().min_by_key(|(&cache, here)| match here.len() {
                enough if enough >= left => (false, enough, cache),
                few => (true, usize::MAX - few, cache),
            });
            let Some(cache) = best.map(|(&cache, _)| cache) else {
                break;
            };
            taken.extend(self.whole_cores(caches.remove(&cache).unwrap_or_default(), left));
        }
        taken
    }

    /// At most `count` of the free units of one cache: whole physical cores, and threads of one more for the rest.
    fn whole_cores(&self, free: Vec<usize>, count: usize) -> Vec<usize> {
        let mut cores: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for number in free {
            cores
                .entry(self.layout.units[number].core)
                .or_default()
                .push(number);
        }
        let mut taken = Vec::new();
        while taken.len() < count {
            let left = count - taken.len();
            let is_small = self.cores < cores.values().map(Vec::len).max().unwrap_or(1);
            let best = cores.iter().min_by_key(|(&core, here)| match here.len() {
                // a slot smaller than a core: an unused core
                threads if is_small && threads >= left => (0, usize::MAX - threads, core),
                // the largest core that is taken whole, then the fullest one with room for the rest
                threads if threads <= left => (1, usize::MAX - threads, core),
                threads => (2, threads, core),
            });
            let Some(core) = best.map(|(&core, _)| core) else {
                break;
            };
            taken.extend(cores.remove(&core).unwrap_or_default().into_iter().take(left));
        }
        taken
    }
}

#[cfg(test)]
mod tests;
