//! The command line of `tidemill-node image`.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::*;

pub(super) const USAGE: &str = "\
usage: tidemill-node image run --recipe RECIPE.json [--mode MODE] [--memory-mb M] -- COMMAND [ARGUMENT]...
       tidemill-node image unpack --recipe RECIPE.json --to DIR [--memory-mb M]
       tidemill-node image check FILE | --recipe RECIPE.json

  run      runs COMMAND with the image's software in memory at its original paths; everything is gone when it ends
  unpack   puts the image's tree into DIR, a new or empty directory
  check    reads every byte of an image file, or of a recipe's packs, and says what it holds, as JSON

  --recipe FILE     recipe of an image, from `tidemill image build`
  --mode MODE       auto, fuse (squashfuse), unpack (into memory), relocate (as without user namespaces); default: auto
  --memory-mb M     memory that image and changes may take (default: three quarters of what is available)
  --to DIR          where to

`run` exits as COMMAND does: with its status, or by its signal; with 3 where the image could not be had.
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Auto,
    Fuse,
    Unpack,
    Relocate,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Fuse => "fuse",
            Mode::Unpack => "unpack",
            Mode::Relocate => "relocate",
        }
    }
}

#[derive(Debug, PartialEq)]
pub(super) enum Verb {
    Run {
        mode: Mode,
        command: Vec<OsString>,
    },
    Unpack {
        to: PathBuf,
    },
    /// of this image file; None: of the recipe
    Check {
        file: Option<PathBuf>,
    },
    Help,
}

/// What was typed.
#[derive(Debug, PartialEq)]
pub(super) struct Options {
    pub verb: Verb,
    pub recipe: Option<PathBuf>,
    pub memory_mb: Option<u64>,
}

/// Reads the command line; an error is one line for people.
pub(super) fn parse(args: impl Iterator<Item = OsString>) -> Result<Options, String> {
    let mut args = args.peekable();
    let Some(name) = args.next() else {
        return Err("run, unpack or check?".into());
    };
    let name = name.to_string_lossy().into_owned();
    let mut typed = Typed::default();
    let help = ["--help", "-h", "help"].contains(&name.as_str());
    if !help {
        if !["run", "unpack", "check"].contains(&name.as_str()) {
            return Err(format!("unknown command: `{name}`"));
        }
        typed.read(lexopt::Parser::from_args(args), name == "run")?;
    }
    let verb = match name.as_str() {
        _ if help || typed.help => Verb::Help,
        "run" if typed.free.is_empty() => return Err("which command? (after `--`)".into()),
        "run" => Verb::Run {
            mode: typed.mode.unwrap_or(Mode::Auto),
            command: typed.free,
        },
        "unpack" => Verb::Unpack {
            to: typed.to.ok_or("unpack where to? (`--to DIR`)")?,
        },
        _ => Verb::Check {
            file: typed.free.pop().map(PathBuf::from),
        },
    };
    let needs_recipe = !matches!(verb, Verb::Help | Verb::Check { file: Some(_) });
    if needs_recipe && typed.recipe.is_none() {
        return Err("which image? (`--recipe RECIPE.json`)".into());
    }
    Ok(Options {
        verb,
        recipe: typed.recipe,
        memory_mb: typed.memory_mb,
    })
}

#[derive(Default)]
struct Typed {
    recipe: Option<PathBuf>,
    memory_mb: Option<u64>,
    mode: Option<Mode>,
    to: Option<PathBuf>,
    free: Vec<OsString>,
    help: bool,
}

impl Typed {
    fn read(&mut self, mut parser: lexopt::Parser, command: bool) -> Result<(), String> {
        let wrong = |error: lexopt::Error| error.to_string();
        while let Some(argument) = parser.next().map_err(wrong)? {
            match argument {
                Long("recipe") => self.recipe = Some(parser.value().map_err(wrong)?.into()),
                Long("to") => self.to = Some(parser.value().map_err(wrong)?.into()),
                Long("memory-mb") => {
                    let value = parser.value().and_then(|value| value.parse::<u64>());
                    self.memory_mb = Some(value.map_err(wrong)?);
                }
                Long("mode") => {
                    let value = parser.value().map_err(wrong)?;
                    let modes = [Mode::Auto, Mode::Fuse, Mode::Unpack, Mode::Relocate];
                    let mode = modes.into_iter().find(|mode| value == mode.name());
                    self.mode = Some(mode.ok_or_else(|| {
                        format!(
                            "`{}` is not a mode; the modes are auto, fuse, unpack and relocate",
                            value.to_string_lossy()
                        )
                    })?);
                }
                Long("help") | Short('h') => self.help = true,
                Value(first) => {
                    self.free.push(first);
                    if command {
                        // the rest is the command's own, options too
                        self.free.extend(parser.raw_args().map_err(wrong)?);
                        return Ok(());
                    }
                }
                other => return Err(wrong(other.unexpected())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, String> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_commands_options_are_its_own() {
        let options = parsed("run --recipe r.json --mode unpack -- ls -l --mode x").unwrap();
        let Verb::Run { mode, command } = options.verb else {
            panic!("not run");
        };
        assert_eq!(mode, Mode::Unpack);
        assert_eq!(command, ["ls", "-l", "--mode", "x"]);
    }

    #[test]
    fn what_lacks_is_told() {
        for (text, part) in [
            ("", "run, unpack or check"),
            ("walk", "unknown command"),
            ("run -- ls", "--recipe"),
            ("run --recipe r", "which command"),
            ("unpack --recipe r", "--to"),
            ("run --mode best --recipe r -- ls", "`best` is not a mode"),
            ("check", "--recipe"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
