//! `tidemill-node lead`: hands the fleet's work to the pilots that ask, and keeps its journal.

mod address;
mod error;
mod journal;
mod ledger;
mod server;
mod sources;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use tidemill_sys::{process, signal};
use tidemill_wire::log::{cause, Log};

pub use error::LeadError;
pub use server::{Exit, Lead};

/// Longest wait in one turn of the loop.
const WAIT_US: u64 = 1_000_000;

/// What `--help` says.
pub const USAGE: &str = "\
Usage: tidemill-node lead --fleet DIR

Hands out the work of the fleet directory DIR to the pilots that join, and keeps its journal.
Leaves when the fleet is closed and all pilots have left, or on SIGTERM.
";

/// Run a lead until it may leave; returns the exit code. Call while single-threaded.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    let log = Log::new("lead");
    match options(args).and_then(|fleet| fleet.map_or_else(help, |fleet| lead(&fleet, log))) {
        Ok(()) => 0,
        Err(LeadError::Usage(text)) => {
            tidemill_wire::log::plain(&format!(
                "tidemill-node lead: {text}\nhint: tidemill-node lead --fleet DIR\n"
            ));
            2
        }
        Err(error) => {
            log.error("lead.failed", &[("error", &cause(&error))]);
            error.exit_code()
        }
    }
}

fn lead(fleet: &std::path::Path, log: Log) -> Result<(), LeadError> {
    signal::block_only(&[signal::TERM, signal::INT])?;
    let signals = signal::descriptor(&[signal::TERM, signal::INT])?;
    process::raise_open_files()?;
    let mut lead = Lead::start(fleet, log)?;
    lead.leave_on(signals);
    loop {
        if let Some(exit) = lead.turn(WAIT_US)? {
            return lead.leave(exit);
        }
    }
}

fn help() -> Result<(), LeadError> {
    let _ = std::io::stdout().write_all(USAGE.as_bytes()); // a closed pipe is the reader's choice
    Ok(())
}

/// The fleet's directory; None: help was asked for.
fn options(args: impl Iterator<Item = OsString>) -> Result<Option<PathBuf>, LeadError> {
    use lexopt::prelude::*;
    let usage = |error: lexopt::Error| LeadError::Usage(error.to_string());
    let mut parser = lexopt::Parser::from_args(args);
    let mut fleet = None;
    while let Some(option) = parser.next().map_err(usage)? {
        match option {
            Long("fleet") => fleet = Some(PathBuf::from(parser.value().map_err(usage)?)),
            Long("help") | Short('h') => return Ok(None),
            other => return Err(usage(other.unexpected())),
        }
    }
    fleet
        .map(Some)
        .ok_or_else(|| LeadError::Usage(String::from("missing option `--fleet`")))
}
