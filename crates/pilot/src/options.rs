//! The command line of `tidemill-node run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::prelude::*;

use crate::error::PilotError;

pub const USAGE: &str = "\
usage: tidemill-node run --fleet DIR --allocation NAME [OPTIONS]

Runs the pilot of one node: asks the fleet's lead for work and runs it in slots.

  --fleet DIR          fleet directory, made by the site agent
  --allocation NAME    name of the allocation in the batch system
  --rank R             number of this node in the allocation (default: from Slurm, PMI, Open MPI, PALS, ALPS, TIDEMILL_RANK)
  --cores N            cores to use (default: those granted)
  --memory-mb M        memory to use (default: limit of the cgroup, else of the node)
  --wall-s S           seconds until the allocation ends
  --ends-at EPOCH_S    the same as a time, seconds since 1970 (default: SLURM_JOB_END_TIME)
  --start-by EPOCH_S   leave at once when started later than this, seconds since 1970
  --work-from N        without a lead: the work file with this allocation's first share (default: 1)
  --incarnation I      number of this start (default: the first that is free)
";

/// What was typed.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    pub fleet: PathBuf,
    pub allocation: String,
    pub rank: Option<u64>,
    pub cores: Option<u64>,
    pub memory_mb: Option<u64>,
    pub wall_s: Option<f64>,
    pub ends_at_s: Option<f64>,
    pub start_by_s: Option<f64>,
    pub work_from: Option<u64>,
    pub incarnation: Option<u64>,
    /// as of `machine_root`
    pub machine_root: PathBuf,
    pub help: bool,
}

/// Below it are /sys, /proc/driver and /dev of the machine: `/`, unless a test lays out another one.
pub fn machine_root() -> PathBuf {
    std::env::var_os("TIDEMILL_MACHINE_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// The options of a command line without program and verb.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Options, PilotError> {
    let mut options = Options {
        machine_root: machine_root(),
        ..Options::default()
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(argument) = parser.next().map_err(wrong)? {
        match argument {
            Long("fleet") => options.fleet = parser.value().map_err(wrong)?.into(),
            Long("allocation") => {
                options.allocation = parser.value().and_then(|v| v.string()).map_err(wrong)?
            }
            Long("rank") => options.rank = number(&mut parser)?,
            Long("cores") => options.cores = number(&mut parser)?,
            Long("memory-mb") => options.memory_mb = number(&mut parser)?,
            Long("wall-s") => options.wall_s = number(&mut parser)?,
            Long("ends-at") => options.ends_at_s = number(&mut parser)?,
            Long("start-by") => options.start_by_s = number(&mut parser)?,
            Long("work-from") => options.work_from = number(&mut parser)?,
            Long("incarnation") => options.incarnation = number(&mut parser)?,
            Long("help") | Short('h') => options.help = true,
            _ => return Err(wrong(argument.unexpected())),
        }
    }
    if options.help {
        return Ok(options);
    }
    check(&options)?;
    Ok(options)
}

fn wrong(error: lexopt::Error) -> PilotError {
    PilotError::Usage {
        message: error.to_string(),
    }
}

fn number<T: FromStr>(parser: &mut lexopt::Parser) -> Result<Option<T>, PilotError>
where
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    parser
        .value()
        .and_then(|value| value.parse())
        .map(Some)
        .map_err(wrong)
}

fn check(options: &Options) -> Result<(), PilotError> {
    let usage = |message: &str| {
        Err(PilotError::Usage {
            message: message.to_owned(),
        })
    };
    if options.fleet.as_os_str().is_empty() {
        return usage("`--fleet DIR` is missing");
    }
    if options.allocation.is_empty() {
        return usage("`--allocation NAME` is missing");
    }
    // the name becomes part of file names
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    if options.allocation.starts_with('.')
        || !options.allocation.chars().all(plain)
        || options.allocation.len() > 200
    {
        return Err(PilotError::Usage {
            message: format!(
                "allocation name `{}` has characters other than letters, digits and `-_.+`",
                options.allocation
            ),
        });
    }
    if options.cores == Some(0) {
        return usage("`--cores` must be at least 1");
    }
    if options.memory_mb == Some(0) {
        return usage("`--memory-mb` must be at least 1");
    }
    if options.wall_s.is_some() && options.ends_at_s.is_some() {
        return usage("`--wall-s` and `--ends-at` say the same: give one");
    }
    if [options.wall_s, options.ends_at_s, options.start_by_s]
        .iter()
        .flatten()
        .any(|&value| !value.is_finite() || value < 0.0)
    {
        return usage("a time must be a number of seconds, not negative");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, PilotError> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_full_command_line_is_read() {
        let options =
            read("--fleet /f --allocation tm-x-e1-7 --rank 3 --cores=4 --memory-mb 100 --wall-s 90.5 --incarnation 2").unwrap();
        assert_eq!(options.fleet, PathBuf::from("/f"));
        assert_eq!(
            (options.rank, options.cores, options.memory_mb),
            (Some(3), Some(4), Some(100))
        );
        assert_eq!((options.wall_s, options.incarnation), (Some(90.5), Some(2)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("--allocation a", "--fleet"),
            ("--fleet /f", "--allocation"),
            ("--fleet /f --allocation a/b", "a/b"),
            ("--fleet /f --allocation a --cores 0", "--cores"),
            ("--fleet /f --allocation a --cores x", "x"),
            ("--fleet /f --allocation a --wall-s 1 --ends-at 2", "give one"),
            ("--fleet /f --allocation a --wall-s -1", "negative"),
            ("--fleet /f --allocation a --start-by -1", "negative"),
            ("--fleet /f --allocation a --work-from x", "x"),
            ("--fleet /f --allocation a --colour blue", "--colour"),
            ("--fleet /f --allocation a b", "b"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
