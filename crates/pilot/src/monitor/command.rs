//! `tidemill-node monitor`: what a sample of this node is, and what it costs. For tests and benchmarks.

use std::ffi::OsString;
use std::io::Write;

use lexopt::prelude::*;
use tidemill_sys::fd;
use tidemill_sys::time::own_cpu_us;
use tidemill_wire::{frame, log, Sampled, FIGURES};

use super::sampler::Sampler;
use crate::error::PilotError;
use crate::node::kernel_texts::KernelTexts;

const USAGE: &str = "\
usage: tidemill-node monitor [--once] [--rounds N] [--pause-s S] [--interval-s S] [--json]

Measures this node N times (default: 100) and prints the last sample and the CPU time of one.

  --once           the same as --rounds 1
  --pause-s S      wait S seconds before each sample (default: 0.01)
  --interval-s S   pilots measure every S seconds: `monitor_core_share` is the CPU time of a sample over S (default: 30)
  --json           print JSON
";
const ROUNDS_MAX: u64 = 1_000_000;

struct Asked {
    rounds: u64,
    pause_s: f64,
    interval_s: f64,
    json: bool,
}

/// Run with the arguments behind `tidemill-node monitor`; the exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    match parse(args) {
        Ok(Some(asked)) => {
            let text = measure(&asked);
            let _ = std::io::stdout().write_all(text.as_bytes()); // a closed stdout needs no message
            0
        }
        Ok(None) => {
            let _ = std::io::stdout().write_all(USAGE.as_bytes());
            0
        }
        Err(error) => {
            log::plain(&format!("error: {error}\nhint: tidemill-node monitor --help\n"));
            error.exit_code()
        }
    }
}

fn number(parser: &mut lexopt::Parser) -> Result<f64, PilotError> {
    let value = parser.value().and_then(|value| value.parse());
    value.map_err(wrong)
}

fn wrong(error: lexopt::Error) -> PilotError {
    PilotError::Usage {
        message: error.to_string(),
    }
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Option<Asked>, PilotError> {
    let mut asked = Asked {
        rounds: 100,
        pause_s: 0.01,
        interval_s: 30.0,
        json: false,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(argument) = parser.next().map_err(wrong)? {
        match argument {
            Long("once") => asked.rounds = 1,
            Long("rounds") => asked.rounds = number(&mut parser)? as u64,
            Long("pause-s") => asked.pause_s = number(&mut parser)?,
            Long("interval-s") => asked.interval_s = number(&mut parser)?,
            Long("json") => asked.json = true,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(wrong(argument.unexpected())),
        }
    }
    let is_time = |value: f64| (0.0..1e6).contains(&value);
    if !(1..=ROUNDS_MAX).contains(&asked.rounds) || !is_time(asked.pause_s) || asked.interval_s < 0.1 {
        return Err(PilotError::Usage {
            message: String::from("expected 1 to 1,000,000 rounds, and times in seconds"),
        });
    }
    Ok(Some(asked))
}

fn measure(asked: &Asked) -> String {
    let mut sampler = Sampler::new(KernelTexts::open(), &crate::node::host());
    let (mut line, mut last) = (Vec::new(), Sampled::default());
    let mut cpu_us = 0;
    for _ in 0..asked.rounds {
        let _ = fd::poll(&mut [], Some((asked.pause_s * 1e6) as u64));
        let began_us = own_cpu_us();
        last = sampler.sample();
        line.clear();
        let _ = frame::encode(&last, &mut line); // a sample has nothing that JSON does not
        cpu_us += own_cpu_us() - began_us;
    }
    let cpu_s = cpu_us as f64 / 1e6 / asked.rounds as f64;
    let share = cpu_s / asked.interval_s;
    if !asked.json {
        let told = FIGURES
            .iter()
            .zip(&last.figures)
            .filter_map(|(name, value)| Some((name, (*value)?)));
        let rows: String = told.map(|(name, value)| format!("{name:20} {value}\n")).collect();
        return format!(
            "{rows}{:20} {}\n{:20} {}\nCPU time of a sample {:.0} us, {:.4} % of a core every {} s\n",
            "busy cores",
            last.cores,
            "bytes",
            line.len(),
            cpu_s * 1e6,
            share * 100.0,
            asked.interval_s
        );
    }
    let figures: serde_json::Map<_, _> = FIGURES
        .iter()
        .zip(&last.figures)
        .map(|(name, value)| ((*name).to_owned(), serde_json::json!(value)))
        .collect();
    let told = serde_json::json!({
        "rounds": asked.rounds, "cpu_s": cpu_s, "interval_s": asked.interval_s, "monitor_core_share": share,
        "bytes": line.len(), "figures": figures, "cores": last.cores, "mounts": last.mounts, "over_us": last.over_us,
    });
    format!("{told}\n")
}
