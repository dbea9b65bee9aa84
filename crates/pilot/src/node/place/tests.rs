use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::node::gpus;
use crate::node::machines::{unpacked, DGX, GRACE, LAPTOP, MI250X, POWER9};

/// All CPUs, and the domains of all GPUs.
type Places = (Topology, Vec<Option<u32>>);

/// Of each machine: thousands of small files, laid out once.
static KNOWN: Mutex<BTreeMap<&'static str, Places>> = Mutex::new(BTreeMap::new());

/// The layout of a machine of `tests/machines` for these CPUs, with all its GPUs.
fn layout(machine: &'static str, granted: std::ops::Range<usize>, affinity: Affinity) -> Layout {
    let mut known = KNOWN.lock().unwrap();
    let (topology, gpus) = known.entry(machine).or_insert_with(|| {
        let root = unpacked(machine);
        let found = gpus::find(root.path(), |_| true);
        let gpus = gpus::allotted(&BTreeMap::new(), found, None, &mut Vec::new()).unwrap();
        let all: Vec<usize> = (0..256).collect();
        let domains = gpus.iter().map(|gpu| gpu.domain).collect();
        (Topology::read(root.path(), &all), domains)
    });
    let mut topology = topology.clone();
    topology.cpus.retain(|cpu| granted.contains(&cpu.id));
    Layout::new(topology, gpus.clone(), affinity)
}

/// What one slot got: CPUs, GPUs, and the domains of the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    cpus: Vec<usize>,
    gpus: Vec<usize>,
    domains: BTreeSet<u32>,
}

/// Slots of a shape until the node is full, at most `count`.
fn fill(layout: &Layout, free: &mut Free, ask: Ask, count: usize) -> Vec<Given> {
    let mut given = Vec::new();
    while given.len() < count {
        let Some(choice) = layout.choose(free, ask) else {
            break;
        };
        let percent = if ask.gpus > 0 { WHOLE } else { ask.gpu_percent };
        for &unit in &choice.units {
            assert!(
                std::mem::replace(&mut free.units[unit], false),
                "unit {unit} twice"
            );
        }
        for &gpu in &choice.gpus {
            free.gpus[gpu] = free.gpus[gpu].checked_sub(percent).unwrap();
        }
        let mut cpus: Vec<usize> = choice
            .units
            .iter()
            .flat_map(|&unit| layout.cpus(unit).to_vec())
            .collect();
        cpus.sort_unstable();
        given.push(Given {
            cpus,
            gpus: choice.gpus,
            domains: choice
                .units
                .iter()
                .map(|&unit| layout.units[unit].domain.1)
                .collect(),
        });
    }
    given
}

fn ask(cores: usize, gpus: usize) -> Ask {
    Ask {
        cores,
        gpus,
        gpu_percent: 0,
    }
}

fn first(layout: &Layout, ask: Ask, count: usize) -> Vec<Vec<usize>> {
    let slots = fill(layout, &mut layout.all_free(), ask, count);
    slots.into_iter().map(|slot| slot.cpus).collect()
}

#[test]
fn one_domain_is_filled_before_the_next_and_no_slot_is_split() {
    for affinity in [Affinity::Compact, Affinity::Core, Affinity::Spread] {
        for cores in [1, 2, 4, 8, 16] {
            let node = layout(DGX, 0..128, affinity);
            let slots = fill(&node, &mut node.all_free(), ask(cores, 0), usize::MAX);
            assert_eq!(slots.len(), 128 / cores);
            assert!(
                slots.iter().all(|slot| slot.domains.len() == 1),
                "{affinity:?}, {cores} cores"
            );
            let order: Vec<u32> = slots.iter().flat_map(|slot| slot.domains.clone()).collect();
            let mut rising = order.clone();
            rising.sort_by_key(|&domain| order.iter().position(|&each| each == domain));
            assert_eq!(
                order == rising,
                affinity != Affinity::Spread || cores == 16,
                "{affinity:?}, {cores} cores"
            );
        }
    }
}

#[test]
fn cores_are_beside_their_gpus() {
    let node = layout(DGX, 0..128, Affinity::Compact);
    for (cores, gpus) in [(1, 1), (4, 1), (8, 1), (8, 2), (16, 2)] {
        let slots = fill(&node, &mut node.all_free(), ask(cores, gpus), usize::MAX);
        assert_eq!(slots.len(), 8 / gpus);
        for slot in slots {
            let homes: BTreeSet<u32> = slot.gpus.iter().map(|&gpu| node.gpus[gpu].unwrap()).collect();
            assert_eq!(slot.domains, homes, "{cores} cores, {gpus} GPUs");
        }
    }
}

#[test]
fn a_gpu_without_cores_left_beside_it_gets_the_nearest() {
    let node = layout(DGX, 0..128, Affinity::Compact);
    let slots = fill(&node, &mut node.all_free(), ask(16, 1), 8);
    assert_eq!(slots.len(), 8);
    let far = slots.iter().map(|slot| {
        let home = node.gpus[slot.gpus[0]].unwrap();
        slot.domains
            .iter()
            .map(|&domain| node.topology.distance(home, domain))
            .max()
            .unwrap()
    });
    assert_eq!(
        far.collect::<Vec<_>>(),
        [10, 10, 10, 10, 12, 12, 12, 12],
        "never across sockets"
    );
}

#[test]
fn slots_without_gpus_leave_the_cores_beside_gpus_for_last() {
    let node = layout(DGX, 0..128, Affinity::Compact);
    let slots = fill(&node, &mut node.all_free(), ask(16, 0), 8);
    let order: Vec<u32> = slots.iter().flat_map(|slot| slot.domains.clone()).collect();
    assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7]);
}

#[test]
fn a_slot_keeps_to_one_cache_where_it_can() {
    let node = layout(DGX, 0..128, Affinity::Compact);
    let slots = first(&node, ask(3, 0), 4);
    assert_eq!(slots, [[0, 1, 2], [4, 5, 6], [8, 9, 10], [12, 13, 14]]);
    assert_eq!(first(&node, ask(1, 0), 5).concat(), [0, 1, 2, 3, 4]);
}

#[test]
fn threads_of_a_core_belong_to_one_slot_unless_the_slot_is_smaller() {
    let node = layout(DGX, 0..256, Affinity::Compact);
    assert_eq!(first(&node, ask(4, 0), 2), [[0, 1, 128, 129], [2, 3, 130, 131]]);
    assert_eq!(first(&node, ask(1, 0), 6).concat(), [0, 1, 2, 3, 128, 129]);
    let power = layout(POWER9, 0..176, Affinity::Compact);
    assert_eq!(first(&power, ask(4, 0), 2), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(first(&power, ask(2, 0), 3), [[0, 1], [4, 5], [2, 3]]);
    assert_eq!(
        first(&power, ask(6, 0), 2),
        [[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12, 13]]
    );
    let core = layout(POWER9, 0..176, Affinity::Core);
    assert_eq!(first(&core, ask(1, 0), 2), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(core.units(), 44);
}

#[test]
fn spread_takes_the_emptiest_domain_and_physical_cores_first() {
    let node = layout(DGX, 0..256, Affinity::Spread);
    let slots = fill(&node, &mut node.all_free(), ask(2, 0), 9);
    let domains: Vec<u32> = slots.iter().flat_map(|slot| slot.domains.clone()).collect();
    assert_eq!(domains, [0, 2, 4, 6, 1, 3, 5, 7, 0], "those without GPUs first");
    assert_eq!([&slots[0].cpus, &slots[8].cpus], [&vec![0, 1], &vec![2, 3]]);
}

#[test]
fn a_slot_larger_than_a_domain_stays_in_its_socket() {
    let node = layout(DGX, 0..128, Affinity::Compact);
    let slots = fill(&node, &mut node.all_free(), ask(40, 0), 9);
    assert_eq!(slots.len(), 3);
    for slot in &slots[..2] {
        assert_eq!(
            slot.domains
                .iter()
                .map(|domain| domain / 4)
                .collect::<BTreeSet<_>>()
                .len(),
            1
        );
    }
    let grace = layout(GRACE, 0..144, Affinity::Compact);
    let slots = fill(&grace, &mut grace.all_free(), ask(36, 0), 9);
    assert_eq!(slots.len(), 4);
    assert!(slots.iter().all(|slot| slot.domains.len() == 1));
}

#[test]
fn a_laptop_gives_whole_performance_cores_first() {
    let laptop = layout(LAPTOP, 0..16, Affinity::Compact);
    assert_eq!(
        first(&laptop, ask(2, 0), 5),
        [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    );
    assert_eq!(first(&laptop, ask(1, 0), 16).concat().len(), 16);
}

#[test]
fn a_share_of_a_gpu_fills_one_before_the_next_and_lies_beside_it() {
    let node = layout(MI250X, 0..64, Affinity::Compact);
    let quarter = Ask {
        cores: 1,
        gpus: 0,
        gpu_percent: 25,
    };
    let slots = fill(&node, &mut node.all_free(), quarter, 40);
    assert_eq!(slots.len(), 32);
    assert_eq!(
        slots.iter().take(5).map(|slot| slot.gpus[0]).collect::<Vec<_>>(),
        [4, 4, 4, 4, 5]
    );
    assert!(slots
        .iter()
        .all(|slot| slot.domains == BTreeSet::from([node.gpus[slot.gpus[0]].unwrap()])));
}

#[test]
fn without_units_only_gpus_are_chosen_and_unknown_domains_are_near_nothing() {
    let node = layout(DGX, 0..128, Affinity::None);
    assert_eq!(fill(&node, &mut node.all_free(), ask(4, 3), 9).len(), 2);
    let topology = Topology::default();
    let bare = Layout::new(topology, vec![None; 3], Affinity::None);
    let slots = fill(&bare, &mut bare.all_free(), ask(1, 1), 9);
    assert_eq!(
        slots.into_iter().map(|slot| slot.gpus).collect::<Vec<_>>(),
        [[0], [1], [2]]
    );
}

fn any_machine() -> impl Strategy<Value = (&'static str, usize)> {
    proptest::sample::select(vec![
        (DGX, 256),
        (POWER9, 176),
        (LAPTOP, 16),
        (MI250X, 128),
        (GRACE, 144),
    ])
}

fn any_affinity() -> impl Strategy<Value = Affinity> {
    proptest::sample::select(vec![Affinity::Compact, Affinity::Spread, Affinity::Core])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No core twice (`fill` asserts it), as many as were asked for, in one domain where one has room, and the same again.
    #[test]
    fn a_choice_fits_is_near_and_is_made_again(
        (machine, cpus) in any_machine(),
        affinity in any_affinity(),
        asks in proptest::collection::vec((1usize..40, 0usize..4, 0u32..3), 1..30),
    ) {
        let node = layout(machine, 0..cpus, affinity);
        let mut free = node.all_free();
        for (cores, gpus, share) in asks {
            let ask = Ask { cores, gpus, gpu_percent: if gpus > 0 { 0 } else { share * 30 } };
            let before = free.clone();
            let room = |domain: Domain| {
                let units = node.units.iter().enumerate();
                units.filter(|(number, unit)| unit.domain == domain && before.units[*number]).count()
            };
            let all: BTreeSet<Domain> = node.units.iter().map(|unit| unit.domain).collect();
            let [slot] = &fill(&node, &mut free, ask, 1)[..] else {
                let fits = before.units.iter().filter(|free| **free).count() >= cores;
                let wanted = if gpus > 0 { WHOLE } else { ask.gpu_percent.max(1) };
                let there = before.gpus.iter().filter(|free| **free >= wanted).count();
                prop_assert!(!fits || there < gpus.max(usize::from(ask.gpu_percent > 0)), "refused what fits");
                continue;
            };
            let again = node.choose(&before, ask).unwrap();
            prop_assert_eq!(again.gpus, slot.gpus.clone());
            let wanted_gpus = gpus.max(usize::from(ask.gpu_percent > 0));
            prop_assert_eq!(slot.gpus.len(), wanted_gpus);
            prop_assert_eq!(again.units.len(), cores);
            if wanted_gpus == 0 && all.iter().any(|&domain| room(domain) >= cores) {
                prop_assert_eq!(slot.domains.len(), 1);
            }
        }
    }
}

/// `0-3,8`
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// A row for each shape: how many slots fit, and where the first four are.
fn table() -> String {
    let node = layout(DGX, 0..128, Affinity::Compact);
    let mut text = String::from(
        "| cores | GPUs | slots | first | second | third | fourth |\n|---|---|---|---|---|---|---|\n",
    );
    for gpus in 0..3 {
        for cores in [1, 2, 4, 8, 16] {
            let slots = fill(&node, &mut node.all_free(), ask(cores, gpus), usize::MAX);
            let cell = |slot: &Given| {
                let domains: Vec<usize> = slot.domains.iter().map(|&domain| domain as usize).collect();
                let given = match slot.gpus.len() {
                    0 => String::new(),
                    _ => format!(" + GPU {}", ranges(&slot.gpus)),
                };
                format!("{}{given} (D{})", ranges(&slot.cpus), ranges(&domains))
            };
            let cells: Vec<String> = slots.iter().take(4).map(cell).collect();
            text += &format!("| {cores} | {gpus} | {} | {} |\n", slots.len(), cells.join(" | "));
        }
    }
    text
}

/// `TIDEMILL_WRITE_DOCS=1 cargo test -p tidemill-pilot the_table_in_the_documentation` writes it.
#[test]
fn the_table_in_the_documentation_is_what_slots_get() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nodes.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (head, rest) = text.split_once("<!-- placement -->\n").unwrap();
    let (found, tail) = rest.split_once("<!-- end of placement -->\n").unwrap();
    if std::env::var_os("TIDEMILL_WRITE_DOCS").is_some() {
        let new = format!(
            "{head}<!-- placement -->\n{}<!-- end of placement -->\n{tail}",
            table()
        );
        std::fs::write(&page, new).unwrap();
        return;
    }
    assert_eq!(
        found,
        table(),
        "docs/nodes.md is stale: run this test with TIDEMILL_WRITE_DOCS=1"
    );
}
