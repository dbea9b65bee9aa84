//! Unexpected inputs for tests of parsers: a kept corpus (`corpus/NAME/*`) and mutations of it. Only tests depend on
//! this crate.
//!
//! Each parser is tried with the same inputs, few enough that all parsers together take seconds.
//! `TIDEMILL_FUZZ_SECONDS` sets how long each parser is tried instead. `TIDEMILL_FUZZ_SEED` selects other inputs
//! (default: 1). With `TIDEMILL_FUZZ_KEEP`, an input that makes a parser panic is added to the corpus.

mod mutation;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use mutation::{mutate, Random};

/// One input, of at most 128 kB, takes milliseconds. On a machine that is busy with other tests it may take longer.
const INPUT_S_MAX: u64 = 20;
const SHRINK_S: f64 = 3.0;
/// Mutations that a parser is tried with, where no time is named, and at least where one is.
const INPUTS: u64 = 300;

/// Let a parser read its corpus, then mutations of it. Panics where the parser does, or takes too long, and says of what.
pub fn hunt(name: &str, mut parse: impl FnMut(&[u8])) {
    let corpus = corpus(name);
    for (path, input) in &corpus {
        look(&path.display().to_string(), input, &mut parse, name);
    }
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let mut random = Random::new(number("TIDEMILL_FUZZ_SEED", 1.0) as u64);
    let until = Instant::now() + Duration::from_secs_f64(number("TIDEMILL_FUZZ_SECONDS", 0.0));
    let mut tried = 0_u64;
    while tried < INPUTS || Instant::now() < until {
        let one = &inputs[random.below(inputs.len())];
        let input = mutate(&mut random, one, &inputs);
        look("a mutation", &input, &mut parse, name);
        tried += 1;
    }
}

/// The kept inputs of a parser. Panics where there is none.
pub fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| {
            entry
                .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
                .path()
        })
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    let read = |path: PathBuf| {
        let input = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, input)
    };
    paths.into_iter().map(read).collect()
}

fn look(what: &str, input: &[u8], parse: &mut impl FnMut(&[u8]), name: &str) {
    let began = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| parse(input))).is_err();
    assert!(
        began.elapsed().as_secs() < INPUT_S_MAX,
        "{name}: {what} took {:?}: {}",
        began.elapsed(),
        input.escape_ascii()
    );
    if !panicked {
        return;
    }
    let small = shrunk(input.to_vec(), parse);
    if std::env::var_os("TIDEMILL_FUZZ_KEEP").is_some() {
        let sum = small.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
        });
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{name}/crash-{sum:016x}"));
        std::fs::write(&path, &small).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    panic!("{name}: {what} made it panic: b\"{}\"", small.escape_ascii());
}

/// A smaller input of which the same is true, found by leaving out pieces.
fn shrunk(mut input: Vec<u8>, parse: &mut impl FnMut(&[u8])) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs_f64(SHRINK_S);
    let mut size = input.len() / 2;
    while size > 0 && Instant::now() < until {
        let mut start = 0;
        while start < input.len() && Instant::now() < until {
            let mut smaller = input.clone();
            smaller.drain(start..(start + size).min(input.len()));
            if catch_unwind(AssertUnwindSafe(|| parse(&smaller))).is_err() {
                input = smaller;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    input
}

fn number(variable: &str, usual: f64) -> f64 {
    let told = std::env::var(variable).ok();
    told.map_or(usual, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, expected a number"))
    })
}
