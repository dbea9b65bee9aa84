//! The command line of `tidemill-node trace`.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::*;

use crate::calls::ALSO;
use crate::error::TraceError;

pub const USAGE: &str = "\
usage: tidemill-node trace (-o FILE | --fd N) [OPTIONS] -- COMMAND [ARGUMENT]...

Runs a command and writes a profile of its metadata operations. Ends as the command ends.

  -o, --output FILE     write the profile there, whole or not at all
  --fd N                write it to this open descriptor instead
  --area PREFIX         report operations below this directory by themselves; may be repeated
  --also NAMES          count these too, with commas between: close, fstat, getcwd
  --paths-max N         count at most N paths one by one (default: 1000000)
  --best-effort         where tracing is not possible, run the command without
  --end-with-command    kill what the command leaves behind instead of waiting for it
  --calls               say which system calls are counted, one per line, and end
  --snapshots           with --fd to a file: also write the profile so far, after 0.5 s, 1 s, 2 s and so on
  --plain               stop each traced thread twice per operation; nothing is put into its memory, and it is
                        never confined to the tracer's CPU

A program with the set-user-id bit gains no rights while it is traced, unless root traces.
Exit codes: those of the command; 2 usage, 3 not possible here, 126 or 127 the command cannot be started
";

/// Memory of about 200 bytes each.
const PATHS_MAX: usize = 1_000_000;

/// Where the profile goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    File(PathBuf),
    Descriptor(i32),
}

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub output: Output,
    pub areas: Vec<String>,
    pub also: Vec<String>,
    pub paths_max: usize,
    pub best_effort: bool,
    pub end_with_command: bool,
    pub plain: bool,
    pub snapshots: bool,
    /// not empty
    pub command: Vec<OsString>,
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Help,
    Calls,
    Trace(Options),
}

/// The options of a command line without program and verb.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Wanted, TraceError> {
    let wrong = |error: lexopt::Error| usage(&error.to_string());
    let mut output = None;
    let mut options = Options {
        output: Output::Descriptor(-1),
        areas: Vec::new(),
        also: Vec::new(),
        paths_max: PATHS_MAX,
        best_effort: false,
        end_with_command: false,
        plain: false,
        snapshots: false,
        command: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(argument) = parser.next().map_err(wrong)? {
        match argument {
            Short('o') | Long("output") => output = Some(Output::File(parser.value().map_err(wrong)?.into())),
            Long("fd") => {
                let number = parser.value().and_then(|v| v.parse()).map_err(wrong)?;
                output = Some(descriptor(number)?);
            }
            Long("area") => {
                let prefix = parser.value().and_then(|v| v.string()).map_err(wrong)?;
                options.areas.push(area(prefix)?);
            }
            Long("also") => {
                let names = parser.value().and_then(|v| v.string()).map_err(wrong)?;
                options.also.extend(names.split(',').map(str::to_owned));
            }
            Long("paths-max") => options.paths_max = parser.value().and_then(|v| v.parse()).map_err(wrong)?,
            Long("best-effort") => options.best_effort = true,
            Long("end-with-command") => options.end_with_command = true,
            Long("plain") => options.plain = true,
            Long("snapshots") => options.snapshots = true,
            Long("calls") => return Ok(Wanted::Calls),
            Long("help") | Short('h') => return Ok(Wanted::Help),
            Value(program) => {
                options.command.push(program);
                options.command.extend(parser.raw_args().map_err(wrong)?);
            }
            _ => return Err(wrong(argument.unexpected())),
        }
    }
    options.output = output.ok_or_else(|| usage("where to? give `-o FILE` or `--fd N`"))?;
    check(&options)?;
    Ok(Wanted::Trace(options))
}

fn check(options: &Options) -> Result<(), TraceError> {
    if let Some(name) = options.also.iter().find(|name| !ALSO.contains(&name.as_str())) {
        return Err(usage(&format!("`--also {name}`: known are {}", ALSO.join(", "))));
    }
    if options.command.is_empty() {
        return Err(usage("which command?"));
    }
    if u32::try_from(options.paths_max).is_err() {
        return Err(usage("`--paths-max` is too large"));
    }
    Ok(())
}

/// The first three are the command's.
fn descriptor(number: i32) -> Result<Output, TraceError> {
    if number < 3 {
        return Err(usage(&format!("`--fd {number}` is not above 2")));
    }
    Ok(Output::Descriptor(number))
}

fn area(prefix: String) -> Result<String, TraceError> {
    if !prefix.starts_with('/') {
        return Err(usage(&format!("`--area {prefix}` is not an absolute path")));
    }
    let trimmed = prefix.trim_end_matches('/');
    Ok(if trimmed.is_empty() { "/" } else { trimmed }.to_owned())
}

fn usage(message: &str) -> TraceError {
    TraceError::Usage {
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Result<Options, TraceError> {
        match parse(text.split(' ').map(OsString::from))? {
            Wanted::Trace(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_after_the_command_is_the_commands() {
        let options = typed("-o p.json --area /sw/ --also close,getcwd -- find -o x --fd").unwrap();
        assert_eq!(options.output, Output::File("p.json".into()));
        assert_eq!(options.areas, ["/sw"]);
        assert_eq!(options.also, ["close", "getcwd"]);
        assert_eq!(options.command, ["find", "-o", "x", "--fd"]);
        let bare = typed("--fd 5 cmd --fd 6").unwrap();
        assert_eq!((bare.output, bare.command.len()), (Output::Descriptor(5), 3));
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let message = |text: &str| typed(text).unwrap_err().to_string();
        assert!(message("-o p").contains("which command"));
        assert!(message("true").contains("--fd N"));
        assert!(message("-o p --also stat true").contains("close, fstat, getcwd"));
        assert!(message("-o p --area sw true").contains("absolute"));
        assert!(message("--fd 1 true").contains("not above 2"));
        assert_eq!(parse(["--help".into()].into_iter()).unwrap(), Wanted::Help);
    }
}
