//! `tidemill-node run`: the pilot of one node.
//!
//! It asks the fleet's lead for work, binds it to slots, copies outputs into its bundle, records what happened, and
//! returns all unfinished work when it has to leave. It does not start payloads itself (the slots' inits do) and does
//! not know the agent: it sees only the fleet directory and the lead.

mod cache;
mod context;
mod error;
mod images;
mod keep;
mod lead;
mod life;
pub mod monitor;
mod node;
mod options;
mod permits;
mod pilot;
mod report;
pub mod setup;
mod slots;
mod stage;
mod start;
mod supply;
mod time;
mod work;

use std::ffi::{CStr, OsString};
use std::io::Write;

use tidemill_wire::log;

/// The name in /proc/PID/comm of children that call the shared file system.
const FILES: &CStr = c"tidemill-files";

/// Print the GPUs that a pilot would use here, as JSON: `[{"vendor": "nvidia", "name": "GPU-...", "domain": 3}]`; the exit
/// code. No arguments.
pub fn gpus(mut args: impl Iterator<Item = OsString>) -> i32 {
    if args.next().is_some() {
        log::plain("error: `tidemill-node gpus` takes no arguments\n");
        return 2;
    }
    match node::list_gpus(&options::machine_root()) {
        Ok(text) => {
            // a closed stdout needs no message
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        Err(error) => {
            log::plain(&format!("error: {error}\n"));
            error.exit_code()
        }
    }
}

/// Run a pilot with the arguments that follow `tidemill-node run`; the exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    match options::parse(args) {
        Ok(options) if options.help => {
            // a closed stdout needs no message
            let _ = std::io::stdout().write_all(options::USAGE.as_bytes());
            0
        }
        Ok(options) => {
            match start::start(&options).and_then(|pilot| pilot.map_or(Ok(0), pilot::Pilot::run)) {
                Ok(code) => code,
                Err(error) => {
                    error::LOG.error("pilot.failed", &[("cause", &log::cause(&error))]);
                    error.exit_code()
                }
            }
        }
        Err(error) => {
            let _ = write!(
                std::io::stderr(),
                "error: {error}\nhint: `tidemill-node run --help` lists the options\n"
            );
            error.exit_code()
        }
    }
}
