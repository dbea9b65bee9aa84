//! The seccomp filter: stops at the calls of the table, lets everything else pass. Pure.

use tidemill_sys::bpf::{
    answer, argument_at, at_least, equal, has_bits, load, Instruction, ARCHITECTURE_AT, NUMBER_AT,
};

use crate::calls::{When, CALLS, FOREIGN, SILENT, X32};

// linux/seccomp.h
pub const ALLOW: u32 = 0x7fff_0000;
pub const TRACE: u32 = 0x7ff0_0000;

/// SECCOMP_RET_DATA of a stop at a call that has another architecture's number.
pub const FOREIGN_DATA: i32 = 1;
const TRACE_FOREIGN: u32 = TRACE | FOREIGN_DATA as u32;

/// linux/audit.h
pub const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xC000_00B7
} else {
    0xC000_003E
};

const AT_EMPTY_PATH: u32 = 0x1000;

/// Up to this many calls are compared one by one.
const LEAF_CALLS: usize = 3;

/// The filter; `also` are the names of `--also`.
pub fn program(also: &[String]) -> Vec<Instruction> {
    let mut rules: Vec<(u32, Vec<Instruction>)> = Vec::new();
    let asked = |name: &str| also.iter().any(|each| each == name);
    for call in CALLS.iter().filter(|call| call.number() >= 0) {
        let rule = match call.when {
            When::Also(name) if !asked(name) => continue,
            When::Path(flags) if !asked("fstat") => vec![
                load(argument_at(flags)),
                has_bits(AT_EMPTY_PATH, 0, 1),
                answer(ALLOW),
                answer(TRACE),
            ],
            _ => vec![answer(TRACE)],
        };
        rules.push((call.number() as u32, rule));
    }
    for call in SILENT.iter().filter(|call| call.number() >= 0) {
        let rule = match call.only {
            Some((index, [first, second])) => vec![
                load(argument_at(index)),
                equal(first, 2, 0),
                equal(second, 1, 0),
                answer(ALLOW),
                answer(TRACE),
            ],
            None => vec![answer(TRACE)],
        };
        rules.push((call.number() as u32, rule));
    }
    rules.sort_unstable_by_key(|&(number, _)| number);
    let others = foreign();
    let mut whole = vec![load(ARCHITECTURE_AT), equal(ARCHITECTURE, others.len(), 0)];
    whole.extend(others);
    whole.push(load(NUMBER_AT));
    whole.extend(tree(&rules));
    whole.pop(); // the last return of the tree: only larger numbers come to it
    whole.extend([at_least(X32 as u32, 0, 1), answer(TRACE_FOREIGN), answer(ALLOW)]);
    whole
}

/// Stops at the calls of the other architecture that ask for metadata: the tracer does not count them, and notes that.
fn foreign() -> Vec<Instruction> {
    let mut whole = vec![load(NUMBER_AT)];
    for &(first, last) in FOREIGN {
        if first == last {
            whole.extend([equal(first, 0, 1), answer(TRACE_FOREIGN)]);
        } else {
            whole.extend([
                at_least(first, 0, 2),
                at_least(last + 1, 1, 0),
                answer(TRACE_FOREIGN),
            ]);
        }
    }
    whole.push(answer(ALLOW));
    whole
}

/// A search tree: every system call passes the filter, read and write too, so that its depth counts.
fn tree(rules: &[(u32, Vec<Instruction>)]) -> Vec<Instruction> {
    let (left, right) = rules.split_at(rules.len() / 2);
    let lower = if rules.len() > LEAF_CALLS {
        tree(left)
    } else {
        Vec::new()
    };
    match lower.len() {
        skip @ 1..256 => {
            let mut whole = vec![at_least(right[0].0, skip, 0)];
            whole.extend(lower);
            whole.extend(tree(right));
            whole
        }
        _ => {
            let mut whole = Vec::new();
            for (number, rule) in rules {
                whole.push(equal(*number, 0, rule.len()));
                whole.extend_from_slice(rule);
            }
            whole.push(answer(ALLOW));
            whole
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidemill_sys::bpf::{ANSWER, AT_LEAST, EQUAL, HAS_BITS, LOAD};

    use super::*;
    use crate::calls::is_foreign;

    /// What the kernel would do.
    fn run(program: &[Instruction], number: u32, architecture: u32, arguments: [u32; 6]) -> u32 {
        let (mut at, mut value) = (0, 0);
        for _ in 0..1000 {
            let it = program[at];
            at += 1;
            let holds = match it.code {
                LOAD => {
                    value = match it.k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        offset => arguments[((offset - argument_at(0)) / 8) as usize],
                    };
                    continue;
                }
                ANSWER => return it.k,
                EQUAL => value == it.k,
                AT_LEAST => value >= it.k,
                HAS_BITS => value & it.k != 0,
                other => panic!("code {other}"),
            };
            at += usize::from(if holds { it.yes } else { it.no });
        }
        panic!("no end");
    }

    fn expected(number: u32, arguments: [u32; 6], also: &[String]) -> u32 {
        let asked = |name: &str| also.iter().any(|each| each == name);
        let of_table = CALLS.iter().any(|call| {
            call.number() == number as i32
                && match call.when {
                    When::Always => true,
                    When::Also(name) => asked(name),
                    When::Path(flags) => asked("fstat") || arguments[flags] & AT_EMPTY_PATH == 0,
                }
        });
        let silent = SILENT.iter().any(|call| {
            call.number() == number as i32
                && call
                    .only
                    .is_none_or(|(index, values)| values.contains(&arguments[index]))
        });
        if of_table || silent {
            TRACE
        } else {
            ALLOW
        }
    }

    proptest! {
        #[test]
        fn the_filter_stops_at_the_calls_of_the_table_and_at_nothing_else(
            number in 0u32..520,
            flags in prop_oneof![Just(0u32), Just(0x1000), Just(0x1100), Just(1030), any::<u32>()],
            also in proptest::sample::subsequence(vec!["close", "fstat", "getcwd"], 0..=3),
        ) {
            let also: Vec<String> = also.into_iter().map(str::to_owned).collect();
            let program = program(&also);
            let arguments = [flags; 6];
            prop_assert_eq!(run(&program, number, ARCHITECTURE, arguments), expected(number, arguments, &also));
            let other = if is_foreign(i64::from(number)) { TRACE_FOREIGN } else { ALLOW };
            prop_assert_eq!(run(&program, number, 0x4000_0003, arguments), other);
            prop_assert_eq!(run(&program, X32 as u32 + number, ARCHITECTURE, arguments), TRACE_FOREIGN);
        }
    }

    #[test]
    fn a_call_that_is_not_traced_is_known_after_few_comparisons() {
        let program = program(&[]);
        assert!(program.len() < 250, "{}", program.len());
        let mut depth = 0;
        for number in 0..500 {
            let (mut at, mut steps) = (usize::from(program[1].yes) + 3, 0);
            while program[at].code != ANSWER && program[at].code != LOAD {
                let it = program[at];
                let holds = if it.code == EQUAL {
                    number == it.k
                } else {
                    number >= it.k
                };
                at += 1 + usize::from(if holds { it.yes } else { it.no });
                steps += 1;
            }
            depth = depth.max(steps);
        }
        assert!(depth <= 9, "{depth}");
    }
}
