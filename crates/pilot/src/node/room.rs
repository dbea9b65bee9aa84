//! What is free on the node, and what each slot holds of it. Pure.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::node::facts::{GPU, GPU_PERCENT};
use crate::node::gpus::Gpu;
use crate::node::place::{Ask, Free, Layout, WHOLE};

/// What a slot takes of a node. `memory_mb`: of its payloads and, where that is in memory, of its work directory.
/// `spill_mb`: of its work directory where that is elsewhere. `devices`: whole GPUs (`gpu`), or a share of one
/// (`gpu_percent`).
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
    layout: Rc<Layout>,
    gpus: Rc<[Gpu]>,
    free: Free,
    cores: u64,
    memory_mb: u64,
    /// of the place for work directories besides memory; 0 where there is none
    spill_mb: u64,
    whole: (u64, u64, BTreeMap<String, usize>),
}

/// What one slot holds of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub cores: u64,
    pub memory_mb: u64,
    pub spill_mb: u64,
    pub cpus: Vec<usize>,
    /// numbers of GPUs, as `Room::gpus` has them
    pub gpus: Vec<usize>,
    units: Vec<usize>,
    /// of each GPU
    percent: u32,
}

impl Room {
    /// `layout` has the domains of `gpus`. `cores` above the number of its units means that nothing can be pinned.
    pub fn new(layout: Layout, cores: u64, memory_mb: u64, gpus: Vec<Gpu>) -> Self {
        let layout = if cores > layout.units() as u64 {
            layout.without_units()
        } else {
            layout
        };
        let counts = match gpus.len() {
            0 => BTreeMap::new(),
            // the lead compares what a program asks for with these
            count => BTreeMap::from([(GPU.to_owned(), count), (GPU_PERCENT.to_owned(), WHOLE as usize)]),
        };
        Room {
            free: layout.all_free(),
            layout: Rc::new(layout),
            gpus: gpus.into(),
            cores,
            memory_mb,
            spill_mb: 0,
            whole: (cores, memory_mb, counts),
        }
    }

    /// The same with a place for work directories outside memory, of `spill_mb`.
    pub fn with_spill(self, spill_mb: u64) -> Self {
        Room { spill_mb, ..self }
    }

    /// All GPUs of the node that slots may have.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Whether the empty node would have the cores and devices for a slot.
    pub fn could_ever_hold(&self, cores: u64, devices: &BTreeMap<String, i64>) -> bool {
        let has = |ask: Ask| {
            let shared = ask.gpu_percent > 0;
            ask.gpus.max(usize::from(shared)) <= self.gpus.len() && !(shared && ask.gpus > 0)
        };
        cores <= self.whole.0 && ask(cores, devices).is_some_and(has)
    }

    /// Reserve memory for something other than a slot; false if not enough is free now.
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

    /// Take room for a slot; None if it does not fit now.
    pub fn take(&mut self, need: Need<'_>) -> Option<Share> {
        let Need {
            cores,
            memory_mb,
            spill_mb,
            devices,
        } = need;
        if cores > self.cores || memory_mb > self.memory_mb || spill_mb > self.spill_mb {
            return None;
        }
        let ask = ask(cores, devices)?;
        let choice = self.layout.choose(&self.free, ask)?;
        self.cores -= cores;
        self.memory_mb -= memory_mb;
        self.spill_mb -= spill_mb;
        let percent = if ask.gpus > 0 { WHOLE } else { ask.gpu_percent };
        let mut cpus = Vec::new();
        for &unit in &choice.units {
            self.free.units[unit] = false;
            cpus.extend_from_slice(self.layout.cpus(unit));
        }
        for &gpu in &choice.gpus {
            self.free.gpus[gpu] -= percent;
        }
        cpus.sort_unstable();
        Some(Share {
            cores,
            memory_mb,
            spill_mb,
            cpus,
            gpus: choice.gpus,
            units: choice.units,
            percent,
        })
    }

    /// Put a slot's room back.
    pub fn give_back(&mut self, share: Share) {
        self.cores += share.cores;
        self.memory_mb += share.memory_mb;
        self.spill_mb += share.spill_mb;
        for unit in share.units {
            self.free.units[unit] = true;
        }
        for gpu in share.gpus {
            self.free.gpus[gpu] += share.percent;
        }
    }

    /// Cores, memory and devices of the whole node.
    pub fn whole(&self) -> &(u64, u64, BTreeMap<String, usize>) {
        &self.whole
    }
}

/// As a question of places; None for a kind of device that no node has, and for a share of more than one GPU.
fn ask(cores: u64, devices: &BTreeMap<String, i64>) -> Option<Ask> {
    let mut ask = Ask {
        cores: usize::try_from(cores).ok()?,
        ..Ask::default()
    };
    for (kind, &number) in devices.iter().filter(|(_, &number)| number > 0) {
        match kind.as_str() {
            GPU => ask.gpus = usize::try_from(number).ok()?,
            GPU_PERCENT => {
                ask.gpu_percent = u32::try_from(number).ok().filter(|&percent| percent <= WHOLE)?;
            }
            _ => return None,
        }
    }
    Some(ask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::place::Affinity;
    use crate::node::topology::{Cpu, Topology};

    fn flat(cpus: usize) -> Layout {
        let cpu = |id: usize| Cpu {
            package: 0,
            domain: 0,
            cache: id as u32,
            core: id as u32,
            id,
        };
        let topology = Topology::of((0..cpus).map(cpu).collect());
        Layout::new(topology, Vec::new(), Affinity::Compact)
    }

    fn with_gpus(names: &[&str]) -> Room {
        let gpus: Vec<Gpu> = names.iter().map(|name| Gpu::named(name)).collect();
        let domains = gpus.iter().map(|gpu| gpu.domain).collect();
        let layout = Layout::new(Topology::default(), domains, Affinity::None);
        Room::new(layout, 8, 100, gpus)
    }

    fn need(cores: u64, memory_mb: u64, devices: &BTreeMap<String, i64>) -> Need<'_> {
        Need {
            cores,
            memory_mb,
            spill_mb: 0,
            devices,
        }
    }

    fn devices(kind: &str, number: i64) -> BTreeMap<String, i64> {
        BTreeMap::from([(kind.to_owned(), number)])
    }

    #[test]
    fn more_cores_than_granted_pins_nothing() {
        let mut room = Room::new(flat(1), 4, 100, Vec::new());
        assert!(room.take(need(2, 1, &BTreeMap::new())).unwrap().cpus.is_empty());
    }

    #[test]
    fn devices_are_never_given_twice() {
        let mut room = with_gpus(&["2", "3"]);
        let one = devices(GPU, 1);
        let first = room.take(need(1, 1, &one)).unwrap();
        assert_eq!(first.gpus, [0]);
        assert_eq!(room.take(need(1, 1, &one)).unwrap().gpus, [1]);
        assert!(room.take(need(1, 1, &one)).is_none());
        assert!(!room.could_ever_hold(1, &devices(GPU, 3)));
        room.give_back(first);
        assert_eq!(room.take(need(1, 1, &one)).unwrap().gpus, [0]);
    }

    #[test]
    fn a_gpu_is_shared_by_those_who_ask_for_a_share_and_never_with_one_who_asks_for_all_of_it() {
        let mut room = with_gpus(&["0", "1"]);
        let whole = room.clone();
        let quarter = devices(GPU_PERCENT, 25);
        let shares: Vec<Share> = (0..5).map(|_| room.take(need(1, 1, &quarter)).unwrap()).collect();
        let given: Vec<usize> = shares.iter().map(|share| share.gpus[0]).collect();
        assert_eq!(given, [0, 0, 0, 0, 1]);
        assert!(room.take(need(1, 1, &devices(GPU, 1))).is_none());
        assert!(room.take(need(1, 1, &devices(GPU_PERCENT, 80))).is_none());
        for share in shares {
            room.give_back(share);
        }
        assert_eq!(room, whole);
    }

    #[test]
    fn what_no_node_has_is_never_held() {
        let room = with_gpus(&["0", "1"]);
        assert!(room.could_ever_hold(8, &devices(GPU_PERCENT, 100)));
        assert_eq!(
            room.whole().2.get(GPU_PERCENT),
            Some(&100),
            "leads compare by kind"
        );
        for (kind, number) in [(GPU_PERCENT, 101), ("fpga", 1), (GPU, i64::MAX)] {
            assert!(!room.could_ever_hold(1, &devices(kind, number)), "{kind}");
        }
        assert!(room.could_ever_hold(1, &devices("fpga", 0)));
        let both = BTreeMap::from([(GPU.to_owned(), 1), (GPU_PERCENT.to_owned(), 5)]);
        assert!(!room.could_ever_hold(1, &both));
        let none = Room::new(flat(2), 2, 9, Vec::new());
        assert!(!none.could_ever_hold(1, &devices(GPU_PERCENT, 5)));
    }

    #[test]
    fn what_is_held_is_no_slots() {
        let mut room = Room::new(flat(2), 2, 100, Vec::new()).with_spill(50);
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

    proptest::proptest! {
        #[test]
        fn what_is_taken_is_disjoint_and_comes_back(asks in proptest::collection::vec((1u64..4, 0u64..40), 1..12)) {
            let mut room = Room::new(flat(8), 8, 100, Vec::new());
            let whole = room.clone();
            let none = BTreeMap::new();
            let shares: Vec<Share> = asks.iter().filter_map(|&(c, m)| room.take(need(c, m, &none))).collect();
            let mut all: Vec<usize> = shares.iter().flat_map(|share| share.cpus.clone()).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            proptest::prop_assert_eq!(all.len(), count);
            proptest::prop_assert_eq!(count as u64, shares.iter().map(|share| share.cores).sum::<u64>());
            for share in shares {
                room.give_back(share);
            }
            proptest::prop_assert_eq!(room, whole);
        }
    }
}
