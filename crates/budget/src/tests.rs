//! For any sequence of wants, no window exceeds its bound and every waiter is served.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidemill_wire::{IoArea, Usage};

use crate::{Budget, Costs, Granted, Kind, OVER_MAX, SAVED_S, STARTS_MAX, WINDOW_US};

const SW: (&str, Kind) = ("sw", Kind::Ops);
const SW_BYTES: (&str, Kind) = ("sw", Kind::Bytes);

fn area(name: &str, ops_per_s: f64) -> IoArea {
    IoArea {
        name: name.into(),
        prefixes: vec![format!("/{name}")],
        ops_per_s: Some(ops_per_s),
        bytes_per_s: None,
    }
}

fn bytes_area(name: &str, bytes_per_s: f64) -> IoArea {
    IoArea {
        ops_per_s: None,
        bytes_per_s: Some(bytes_per_s),
        ..area(name, 0.0)
    }
}

type Map = BTreeMap<String, i64>;

/// What a start of a program costs.
#[derive(Clone, Debug, Default)]
struct Cost {
    ops: Map,
    bytes: Map,
}

fn map(of: &[(&str, i64)]) -> Map {
    of.iter().map(|&(name, cost)| (name.to_owned(), cost)).collect()
}

fn costs(ops: &[(&str, i64)]) -> Cost {
    both(ops, &[])
}

fn both(ops: &[(&str, i64)], bytes: &[(&str, i64)]) -> Cost {
    Cost {
        ops: map(ops),
        bytes: map(bytes),
    }
}

fn told<'a>(programs: &'a [Cost]) -> impl Fn(u64) -> Option<Costs<'a>> {
    |program| {
        let Cost { ops, bytes } = programs.get(program as usize)?;
        Some(Costs { ops, bytes })
    }
}

/// Grants from `now_us` on until no waiter is left or the time is over: (when, what).
fn run(budget: &mut Budget, programs: &[Cost], (mut now_us, end_us): (u64, u64)) -> Vec<(u64, Granted)> {
    let mut all = Vec::new();
    while now_us < end_us {
        let (granted, due_us) = budget.grant(told(programs), now_us);
        all.extend(granted.into_iter().map(|each| (now_us, each)));
        match due_us {
            Some(due_us) => now_us = due_us.max(now_us + 1),
            None => break,
        }
    }
    all
}

fn cost_of(each: &Granted, programs: &[Cost], (area, kind): (&str, Kind)) -> f64 {
    let cost = &programs[each.program as usize];
    let map = if kind == Kind::Ops { &cost.ops } else { &cost.bytes };
    each.starts as f64 * map.get(area).copied().unwrap_or(0) as f64
}

/// The most that any window of starts costs an area.
fn worst(all: &[(u64, Granted)], programs: &[Cost], what: (&str, Kind)) -> f64 {
    let mut worst: f64 = 0.0;
    for (first, (from_us, _)) in all.iter().enumerate() {
        let inside = all[first..]
            .iter()
            .take_while(|(at_us, _)| *at_us < from_us + WINDOW_US);
        worst = worst.max(inside.map(|(_, each)| cost_of(each, programs, what)).sum());
    }
    worst
}

#[test]
fn a_pilot_without_costs_never_waits_and_one_of_an_area_without_budget_waits_for_ever() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 0.0)], 0);
    let programs = [costs(&[]), costs(&[("sw", 5)]), costs(&[("elsewhere", 5)])];
    for program in 0..3 {
        budget.want(0, program, 2);
    }
    let (granted, due_us) = budget.grant(told(&programs), 0);
    assert_eq!(
        granted
            .iter()
            .map(|each| (each.program, each.starts))
            .collect::<Vec<_>>(),
        [(0, 2), (2, 2)]
    );
    assert_eq!(due_us, None);
    assert!(!budget.is_idle());
}

#[test]
fn starts_use_the_budget_and_are_spread_over_pilots_in_turn() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 2000.0)], 0);
    let programs = [costs(&[("sw", 300)])];
    for pilot in 0..4 {
        budget.want(pilot, 0, 75);
    }
    let all = run(&mut budget, &programs, (0, 3_600_000_000));
    let total: u64 = all.iter().map(|(_, each)| each.starts).sum();
    assert_eq!(total, 300);
    let last_s = all.last().unwrap().0 as f64 / 1e6;
    assert!((44.0..48.0).contains(&last_s), "{last_s}");
    assert!(worst(&all, &programs, SW) <= OVER_MAX * 20_000.0);
    let mut given = [0_i64; 4];
    for (_, each) in &all {
        given[each.waiter] += each.starts as i64;
        assert!(given.iter().max().unwrap() - given.iter().min().unwrap() <= 2);
    }
}

#[test]
fn an_area_that_was_left_alone_saves_up_little() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 100.0)], 0);
    let programs = [costs(&[("sw", 10)])];
    let later_us = 3_600_000_000;
    budget.want(0, 0, 1000);
    let (granted, _) = budget.grant(told(&programs), later_us);
    assert!(granted[0].starts as f64 * 10.0 <= SAVED_S * 100.0 + 10.0 + 10.0);
}

#[test]
fn a_costly_start_is_not_overtaken_for_ever_and_has_a_window_for_itself() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 100.0)], 0);
    let programs = [costs(&[("sw", 1)]), costs(&[("sw", 5000)])];
    budget.want(0, 0, 100_000);
    budget.want(1, 1, 1);
    let all = run(&mut budget, &programs, (0, 60_000_000));
    let (at_us, _) = all.iter().find(|(_, each)| each.program == 1).unwrap();
    assert!(*at_us <= 2 * WINDOW_US, "{at_us}");
}

#[test]
fn who_leaves_holds_nothing_and_a_new_want_replaces_the_old() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 10.0)], 0);
    let programs = [costs(&[("sw", 10)])];
    budget.want(0, 0, 50);
    budget.want(1, 0, 50);
    budget.want(1, 0, 2);
    budget.leave(0);
    let all = run(&mut budget, &programs, (0, 60_000_000));
    assert_eq!(all.iter().map(|(_, each)| each.starts).sum::<u64>(), 2);
    assert!(all.iter().all(|(_, each)| each.waiter == 1));
    assert!(budget.is_idle());
}

#[test]
fn what_is_observed_makes_starts_dearer_within_bounds_and_tells_what_is_over() {
    let mut budget = Budget::default();
    budget.set(&[area("sw", 100.0)], 0);
    let programs = [costs(&[("sw", 10)])];
    let usage = |ops: i64, starts: i64| Usage {
        over_us: 10_000_000,
        ops: [("sw".to_owned(), ops)].into(),
        bytes: Default::default(),
        starts: [("0".to_owned(), starts)].into(),
    };
    let known = || told(&programs);
    budget.observe(&usage(30, 1), known(), 0, 0);
    assert_eq!(budget.factor("sw", Kind::Ops), 1.0); // one start says nothing
    budget.observe(&usage(270, 9), known(), 0, 1);
    assert!((budget.factor("sw", Kind::Ops) - 3.0).abs() < 0.01);
    assert!(budget.over(1).is_empty());
    budget.observe(&usage(90_000, 10), known(), 1, 2);
    assert_eq!(budget.factor("sw", Kind::Ops), 8.0);
    assert_eq!(budget.over(2).ops["sw"], 90_270);
    budget.observe(&usage(1, 100_000), known(), 1, 3);
    assert_eq!(budget.factor("sw", Kind::Ops), 0.25);
    assert!(budget.over(60_000_000).is_empty()); // long ago
}

#[test]
fn bytes_are_paced_as_operations_are_and_the_slower_of_both_decides() {
    for (bytes, expected_s) in [(10_000_000, 97.0..104.0), (100_000, 14.0..16.0)] {
        let mut budget = Budget::default();
        let bounds = IoArea {
            bytes_per_s: Some(10e6),
            ..area("sw", 1000.0)
        };
        budget.set(&[bounds], 0);
        let programs = [both(&[("sw", 150)], &[("sw", bytes)])];
        budget.want(0, 0, 100);
        let all = run(&mut budget, &programs, (0, 3_600_000_000));
        let last_s = all.last().unwrap().0 as f64 / 1e6;
        assert!(expected_s.contains(&last_s), "{last_s}");
        assert!(worst(&all, &programs, SW) <= OVER_MAX * 10_000.0);
        assert!(worst(&all, &programs, SW_BYTES) <= OVER_MAX * 100e6);
    }
}

#[test]
fn what_waits_for_bytes_does_not_hold_up_what_costs_operations_only() {
    let mut budget = Budget::default();
    let bounds = IoArea {
        bytes_per_s: Some(1.0),
        ..area("sw", 1000.0)
    };
    budget.set(&[bounds], 0);
    let programs = [both(&[], &[("sw", 1_000_000)]), costs(&[("sw", 1)])];
    budget.want(0, 0, 2);
    budget.want(1, 1, 2);
    let (granted, _) = budget.grant(told(&programs), 1_000_000);
    let started: Vec<(u64, u64)> = granted.iter().map(|each| (each.program, each.starts)).collect();
    assert_eq!(started, [(0, 1), (1, 2)]);
}

#[test]
fn observed_bytes_correct_later_starts_but_not_the_first_of_a_node() {
    let mut budget = Budget::default();
    budget.set(&[bytes_area("sw", 10e6)], 0);
    let programs = [both(&[], &[("sw", 10_000_000)])];
    let usage = |bytes: i64| Usage {
        over_us: 10_000_000,
        ops: BTreeMap::new(),
        bytes: map(&[("sw", bytes)]),
        starts: map(&[("0", 10)]),
    };
    budget.observe(&usage(10_000_000), told(&programs), 0, 0); // their page caches had nearly all
    assert_eq!(budget.factor("sw", Kind::Bytes), 0.1);
    assert_eq!(budget.factor("sw", Kind::Ops), 1.0);
    budget.want(0, 0, 101);
    let all = run(&mut budget, &programs, (0, 3_600_000_000));
    let at_s: Vec<f64> = all.iter().map(|(at_us, _)| *at_us as f64 / 1e6).collect();
    let count = |until_s: f64| at_s.iter().filter(|&&at_s| at_s < until_s).count();
    assert_eq!(count(1.0), 1); // the first one read all, a second of the whole rate
    assert!((9..12).contains(&count(2.0)), "{at_s:?}");
    assert!((10.5..12.0).contains(at_s.last().unwrap()), "{at_s:?}");
    budget.leave(0);
    budget.want(0, 0, 2);
    let all = run(&mut budget, &programs, (60_000_000, 3_600_000_000));
    assert!(all[1].0 - all[0].0 >= 800_000);
    budget.observe(&usage(800_000_000), told(&programs), 0, 3);
    assert_eq!(budget.over(3).bytes["sw"], 8000);
    assert!(budget.over(3).ops.is_empty());
}

#[test]
fn what_is_read_for_no_start_makes_later_starts_wait_and_is_no_surprise() {
    let mut budget = Budget::default();
    budget.set(&[bytes_area("sw", 10e6)], 0);
    let programs = [both(&[], &[("sw", 10_000_000)])];
    budget.charge(&map(&[("sw", 97_000_000), ("elsewhere", 5)]), 0);
    budget.want(0, 0, 1);
    let (granted, due_us) = budget.grant(told(&programs), 0);
    assert!(granted.is_empty());
    let due_s = due_us.unwrap() as f64 / 1e6;
    assert!((9.5..10.1).contains(&due_s), "{due_s}");
    let usage = Usage {
        over_us: 10_000_000,
        ops: BTreeMap::new(),
        bytes: map(&[("sw", 127_000_000)]),
        starts: map(&[("0", 3)]),
    };
    budget.observe(&usage, told(&programs), 0, 1);
    assert!((budget.factor("sw", Kind::Bytes) - 1.0).abs() < 1e-6);
}

proptest! {
    #[test]
    fn no_window_is_over_the_bound_of_operations_or_of_bytes_and_all_are_served(
        rates in (50.0..5000.0_f64, 50.0..5000.0_f64, 50.0..5000.0_f64),
        shapes in prop::collection::vec((0..900_i64, 0..900_i64, 0..900_i64), 1..4),
        wants in prop::collection::vec((0..5_usize, 0..4_usize, 1..40_u64, 0..20_000_000_u64), 1..30),
    ) {
        let mut budget = Budget::default();
        let first = IoArea { bytes_per_s: Some(rates.1 * 1e6), ..area("a", rates.0) };
        budget.set(&[first, area("b", rates.2)], 0);
        let shape = |&(a, bytes, b): &(i64, i64, i64)| both(&[("a", a), ("b", b)], &[("a", bytes * 1_000_000)]);
        let programs: Vec<Cost> = shapes.iter().map(shape).collect();
        let mut wants = wants;
        wants.sort_by_key(|want| want.3);
        let mut all = Vec::new();
        let mut now_us = 0;
        let mut standing = std::collections::HashMap::new();
        for (pilot, program, starts, at_us) in wants {
            let program = (program % programs.len()) as u64;
            for (at, each) in run(&mut budget, &programs, (now_us, at_us)) {
                *standing.get_mut(&(each.waiter, each.program)).unwrap() -= each.starts;
                all.push((at, each));
            }
            now_us = at_us;
            let left = standing.entry((pilot, program)).or_insert(0_u64);
            *left += starts;
            budget.want(pilot, program, *left);
        }
        let left: u64 = standing.values().sum();
        let rest = run(&mut budget, &programs, (now_us, u64::MAX / 4));
        prop_assert_eq!(rest.iter().map(|(_, each)| each.starts).sum::<u64>(), left);
        prop_assert!(budget.is_idle());
        all.extend(rest);
        let mut slowest_s = 0.0;
        for (what, rate) in [
            (("a", Kind::Ops), rates.0),
            (("a", Kind::Bytes), rates.1 * 1e6),
            (("b", Kind::Ops), rates.2),
        ] {
            let each = || all.iter().map(|(_, each)| cost_of(each, &programs, what) / each.starts as f64);
            let bound = (OVER_MAX * rate * 10.0).max(each().fold(0.0, f64::max));
            prop_assert!(worst(&all, &programs, what) <= bound * (1.0 + 1e-9) + 1e-6);
            // in time: where two starts are a little too much for a window, it has room for one, half of the rate
            slowest_s += 2.1 * all.iter().map(|(_, each)| cost_of(each, &programs, what)).sum::<f64>() / rate;
        }
        let end_s = all.last().map_or(0.0, |(at_us, _)| *at_us as f64 / 1e6);
        prop_assert!(end_s <= 20.0 + slowest_s + 20.0, "{} {}", end_s, slowest_s);
    }
}

#[test]
fn who_wants_more_than_anybody_can_start_does_not_hold_up_the_lead() {
    let mut budget = Budget::default();
    let programs = [costs(&[("sw", 1)])];
    budget.want(0, 0, u64::MAX); // nothing bounds the area
    let all = run(&mut budget, &programs, (0, 1));
    assert_eq!(all.iter().map(|(_, each)| each.starts).sum::<u64>(), STARTS_MAX);
}
