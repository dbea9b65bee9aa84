//! `tidemill-node doctor`: finds by trial what this node permits, and which ways that leaves.
//!
//! Every trial runs in a child process with namespaces of its own; nothing on the node changes.

mod facts;
mod look;
mod trial;
mod ways;

use std::ffi::OsString;
use std::io::Write;

pub use facts::{CGroups, DataDirectory, Facts, Limits, Memory, Tried};
pub use ways::{table, ways, Way, Ways};

/// What `--help` says.
pub const USAGE: &str = "\
Usage: tidemill-node doctor [--json | --table]

Says what this node can do: tracing, namespaces, overlay, FUSE, control groups, limits, memory. It changes nothing.

  --json    one JSON object on one line
  --table   the ways that images, isolation and tracing take, by what a node lacks (Markdown; inspects no node)
";

#[derive(PartialEq)]
enum Wanted {
    Words,
    Json,
    Table,
    Help,
}

/// Prints what was found and returns the exit code. Call while single-threaded.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    match parse(args) {
        Ok(Wanted::Help) => say(USAGE),
        Ok(Wanted::Table) => say(&table()),
        Ok(wanted) => tell(&look(), wanted == Wanted::Json),
        Err(error) => {
            tidemill_wire::log::plain(&format!(
                "tidemill-node doctor: {error}\nhint: tidemill-node doctor --help\n"
            ));
            2
        }
    }
}

/// All facts about this node. Takes up to some seconds where the kernel does not answer. Call while single-threaded.
pub fn look() -> Facts {
    let mut facts = look::facts();
    facts.tried = trial::all();
    facts
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Wanted, lexopt::Error> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_args(args);
    let mut wanted = Wanted::Words;
    while let Some(option) = parser.next()? {
        wanted = match option {
            Long("json") => Wanted::Json,
            Long("table") => Wanted::Table,
            Long("help") | Short('h') => Wanted::Help,
            other => return Err(other.unexpected()),
        }
    }
    Ok(wanted)
}

fn tell(facts: &Facts, as_json: bool) -> i32 {
    let ways = ways(facts);
    let told = serde_json::to_value(facts).and_then(|mut object| {
        object["ways"] = serde_json::to_value(&ways)?;
        Ok(object)
    });
    match told {
        Ok(object) if as_json => say(&format!("{object}\n")),
        Ok(_) => say(&words(facts, &ways)),
        Err(error) => {
            tidemill_wire::log::plain(&format!("tidemill-node doctor: {error}\n"));
            70
        }
    }
}

/// For people who are on the node; `tidemill doctor` says more.
fn words(facts: &Facts, ways: &Ways) -> String {
    let mut text = format!("{}: Linux {}, {}\n", facts.host, facts.kernel, facts.machine);
    for (name, tried) in &facts.tried {
        let state = if tried.ok { "yes" } else { "no" };
        text += &format!("{name:<16} {state:<4} {}\n", tried.why);
    }
    for (what, way) in ways.all() {
        text += &format!("{what:<16} {}: {}\n", way.way, way.why);
    }
    text
}

fn say(text: &str) -> i32 {
    // a closed pipe is the reader's choice
    let _ = std::io::stdout().write_all(text.as_bytes());
    0
}
