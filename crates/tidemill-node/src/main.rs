//! `tidemill-node`: the node part of Tidemill, one static binary.

mod floor;
mod frames;

use std::ffi::OsString;
use std::io::Write;
use std::process::exit;

const USAGE: &str = "\
Usage: tidemill-node COMMAND [OPTION]...

Commands:
  run      a pilot: runs payloads on this node
  lead     hands out a fleet's work to its pilots and keeps its journal
  doctor   says what this node can do: tracing, namespaces, images
  gpus     lists the GPUs that a pilot would use here, as JSON
  image    runs a command with its software in memory; unpacks and checks images
  trace    runs a command and reports its metadata operations

Options:
  --help      say this; `tidemill-node COMMAND --help` says more
  --version   say the version

Exit codes: 0 done, 1 the job failed, 2 usage or configuration, 3 site or network (try again), 70 a bug
";

/// Exit code of a wrong command line.
const USAGE_ERROR: i32 = 2;
const BUG: i32 = 70;

fn main() {
    std::panic::set_hook(Box::new(|info| {
        tidemill_wire::log::plain(&format!("tidemill-node: a bug, please report it: {info}\n"));
        exit(BUG);
    }));
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    exit(dispatch(&command.to_string_lossy(), args));
}

fn dispatch(command: &str, args: impl Iterator<Item = OsString>) -> i32 {
    match command {
        "run" => tidemill_pilot::run(args),
        "lead" => tidemill_lead::run(args),
        "gpus" => tidemill_pilot::gpus(args),
        "doctor" => tidemill_doctor::run(args),
        "image" => tidemill_image::command(args),
        "trace" => tidemill_trace::run(args),
        "stage" => tidemill_stage::run(args),
        "setup" => tidemill_pilot::setup::run(args),
        "monitor" => tidemill_pilot::monitor::command::run(args),
        "floor" => floor::run(args),
        "frames" => frames::run(args),
        "--help" | "-h" | "help" => say(USAGE),
        "--version" | "-V" => say(concat!("tidemill-node ", env!("CARGO_PKG_VERSION"), "\n")),
        "" => refuse("which command?"),
        other => refuse(&format!("unknown command: `{other}`")),
    }
}

fn say(text: &str) -> i32 {
    // a closed pipe is the reader's choice
    let _ = std::io::stdout().write_all(text.as_bytes());
    0
}

fn refuse(what: &str) -> i32 {
    tidemill_wire::log::plain(&format!("tidemill-node: {what}\nhint: tidemill-node --help\n"));
    USAGE_ERROR
}
