//! Any sequence of wants: no window over the bound, everybody is served.

use proptest::prelude::*;
use tidemill_wire::{IoArea, Usage};

use crate::budget::{Budget, Costs, Granted, OVER_MAX, SAVED_S, WINDOW_US};

fn area(name: &str, ops_per_s: f64) -> IoArea {
    IoArea {
        name: name.into(),
        prefixes: vec![format!("/{name}")],
        ops_per_s: Some(ops_per_s),
        bytes_per_s: None,
    }
}

fn costs(of: &[(&str, i64)]) -> Costs {
    of.iter().map(|&(name, cost)| (name.to_owned(), cost)).collect()
}

/// Grants from `now_us` on until nobody waits or the time is over: (when, what).
fn run(budget: &mut Budget, programs: &[Costs], (mut now_us, end_us): (u64, u64)) -> Vec<(u64, Granted)> {
    let mut all = Vec::new();
    while now_us < end_us {
        let (granted, due_us) = budget.grant(|program| programs.get(program as usize), now_us);
        all.extend(granted.into_iter().map(|each| (now_us, each)));
        match due_us {
            Some(due_us) => now_us = due_us.max(now_us + 1),
            None => break,
        }
    }
    all
}

/// The most that any window of starts costs an area.
fn worst(all: &[(u64, Granted)], programs: &[Costs], area: &str) -> f64 {
    let cost = |each: &Granted| {
        each.starts as f64 * programs[each.program as usize].get(area).copied().unwrap_or(0) as f64
    };
    let mut worst: f64 = 0.0;
    for (first, (from_us, _)) in all.iter().enumerate() {
        let inside = all[first..]
            .iter()
            .take_while(|(at_us, _)| *at_us < from_us + WINDOW_US);
        worst = worst.max(inside.map(|(_, each)| cost(each)).sum());
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
    let (granted, due_us) = budget.grant(|program| programs.get(program as usize), 0);
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
    assert!(worst(&all, &programs, "sw") <= OVER_MAX * 20_000.0);
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
    let (granted, _) = budget.grant(|program| programs.get(program as usize), later_us);
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
    let known = |program: u64| programs.get(program as usize);
    budget.observe(&usage(30, 1), known, (0, 0));
    assert_eq!(budget.factor("sw"), 1.0); // one start says nothing
    budget.observe(&usage(270, 9), known, (0, 1));
    assert!((budget.factor("sw") - 3.0).abs() < 0.01);
    assert!(budget.over(1).is_empty());
    budget.observe(&usage(90_000, 10), known, (1, 2));
    assert_eq!(budget.factor("sw"), 8.0);
    assert_eq!(budget.over(2)["sw"], 90_270);
    budget.observe(&usage(1, 100_000), known, (1, 3));
    assert_eq!(budget.factor("sw"), 0.25);
    assert!(budget.over(60_000_000).is_empty()); // long ago
}

proptest! {
    #[test]
    fn no_window_is_over_the_bound_and_all_are_served(
        rates in (50.0..5000.0_f64, 50.0..5000.0_f64),
        shapes in prop::collection::vec((0..900_i64, 0..900_i64), 1..4),
        wants in prop::collection::vec((0..5_usize, 0..4_usize, 1..40_u64, 0..20_000_000_u64), 1..30),
    ) {
        let mut budget = Budget::default();
        budget.set(&[area("a", rates.0), area("b", rates.1)], 0);
        let programs: Vec<Costs> = shapes.iter().map(|&(a, b)| costs(&[("a", a), ("b", b)])).collect();
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
        for (name, rate) in [("a", rates.0), ("b", rates.1)] {
            let cost_of = |each: &Granted| programs[each.program as usize][name] as f64;
            let dearest = all.iter().map(|(_, each)| cost_of(each)).fold(0.0, f64::max);
            let bound = (OVER_MAX * rate * 10.0).max(dearest);
            prop_assert!(worst(&all, &programs, name) <= bound + 1e-6);
        }
        // in time: where two starts are a little too much for a window, it has room for one, half of the rate
        let spend_s = |name: &str, rate: f64| {
            let spent = all.iter().map(|(_, each)| each.starts as f64 * programs[each.program as usize][name] as f64);
            spent.sum::<f64>() / rate
        };
        let slowest_s = 2.1 * (spend_s("a", rates.0) + spend_s("b", rates.1));
        let end_s = all.last().map_or(0.0, |(at_us, _)| *at_us as f64 / 1e6);
        prop_assert!(end_s <= 20.0 + slowest_s + 20.0, "{} {}", end_s, slowest_s);
    }
}
