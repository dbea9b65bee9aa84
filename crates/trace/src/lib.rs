//! `tidemill-node trace`: a command's metadata operations, exact through forks, threads, static programs and changes of
//! directory, added up in memory, and what they cost told in one profile.
//!
//! An unprivileged ptrace; a seccomp filter stops the traced threads at calls that ask for metadata and at no others.
//! Knows no slot, no pilot and no fleet.

mod areas;
mod calls;
mod counts;
mod diversion;
mod error;
mod filter;
mod launch;
mod operation;
mod options;
mod paths;
mod profile;
mod task;
mod tracer;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidemill_sys::process::Exit;
use tidemill_sys::{ptrace, time};
use tidemill_wire::log::{cause, plain};

use areas::{mounts, Finder};
use calls::CALLS;
use counts::Counts;
pub use error::TraceError;
use options::{Options, Output, Wanted};
use profile::{profile, Profile, Run};
use tracer::{Setup, Tracer};

const MOUNTS: &str = "/proc/self/mountinfo";

/// Runs the verb; gives the exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    let result = match options::parse(args) {
        Ok(Wanted::Help) => return say(options::USAGE),
        Ok(Wanted::Calls) => {
            let lines = CALLS
                .iter()
                .filter(|call| call.when_unasked() && call.number() >= 0);
            return say(&lines.map(|call| format!("{}\n", call.name)).collect::<String>());
        }
        Ok(Wanted::Trace(options)) => trace(&options),
        Err(error) => Err(error),
    };
    result.unwrap_or_else(|error| {
        plain(&format!(
            "tidemill-node trace: {}\nhint: {}\n",
            cause(&error),
            error.hint()
        ));
        error.exit_code()
    })
}

fn say(text: &str) -> i32 {
    let _ = io::stdout().write_all(text.as_bytes()); // a closed pipe is the reader's choice
    0
}

/// A place for the profile, made sure of before the command runs.
enum Sink {
    File {
        path: PathBuf,
        temporary: PathBuf,
        file: File,
    },
    Descriptor(File),
}

fn trace(options: &Options) -> Result<i32, TraceError> {
    let started_us = time::realtime_us();
    let begun_us = time::monotonic_us();
    let sink = Sink::open(&options.output)?;
    let program = launch::find_program(&options.command[0], std::env::var_os("PATH").as_deref())
        .inspect_err(|_| sink.drop_temporary())?;
    let cwd = std::env::current_dir().unwrap_or_default();
    let filter = filter::program(&options.also);
    let launched = match launch::launch(&program, &options.command, &filter) {
        Ok(launched) => launched,
        Err(error) => {
            sink.drop_temporary();
            if !options.best_effort {
                return Err(error);
            }
            plain(&format!(
                "tidemill-node trace: {}; the command runs untraced, there will be no profile\n",
                cause(&error)
            ));
            return Ok(launch::run_untraced(&program, &options.command));
        }
    };
    let (exit, counts) = follow(options, launched.pid, begun_us)?;
    let wall_us = time::monotonic_us() - begun_us;
    let run = Run {
        command: options.command.clone(),
        wall_us,
        started_us,
        exit,
        cwd: cwd.to_string_lossy().into_owned(),
        env: profile::search_paths(std::env::vars_os()),
        host: host(),
        prefixes: options.areas.clone(),
        mounts: mounts(&std::fs::read_to_string(MOUNTS).unwrap_or_default()),
    };
    match sink.write(&profile(run, &counts)) {
        Err(error) if exit == Exit::Status(0) && !options.best_effort => return Err(error),
        Err(error) => plain(&format!("tidemill-node trace: {}\n", cause(&error))),
        Ok(()) => {}
    }
    Ok(launch::end_as(exit))
}

fn follow(options: &Options, pid: i32, begun_us: u64) -> Result<(Exit, Counts), TraceError> {
    let points = mounts(&std::fs::read_to_string(MOUNTS).unwrap_or_default()).into_iter();
    let areas = points
        .map(|mount| mount.point)
        .chain(options.areas.iter().cloned());
    let counts = Counts::new(options.paths_max, Finder::new(areas.collect()));
    let setup = Setup {
        main: pid,
        begun_us,
        divert: !options.plain,
        end_with_command: options.end_with_command,
    };
    let result = Tracer::new(&setup, counts).run();
    launch::stop_forwarding();
    Ok(result?)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

impl Sink {
    fn open(output: &Output) -> Result<Sink, TraceError> {
        match output {
            Output::File(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let mut temporary = path.clone().into_os_string();
                temporary.push(format!(".{}.part", tidemill_sys::process::id()));
                let temporary = PathBuf::from(temporary);
                let file = File::create(&temporary).map_err(|source| failed(&temporary, source))?;
                Ok(Sink::File {
                    path,
                    temporary,
                    file,
                })
            }
            Output::Descriptor(number) => Ok(Sink::Descriptor(ptrace::inherited(*number)?)),
        }
    }

    fn drop_temporary(&self) {
        if let Sink::File { temporary, .. } = self {
            let _ = std::fs::remove_file(temporary); // an empty file is left at worst
        }
    }

    fn write(self, profile: &Profile) -> Result<(), TraceError> {
        let mut text =
            serde_json::to_vec(profile).map_err(|error| failed(Path::new("JSON"), error.into()))?;
        text.push(b'\n');
        match self {
            Sink::Descriptor(mut file) => file
                .write_all(&text)
                .map_err(|source| failed(Path::new("--fd"), source)),
            Sink::File {
                path,
                temporary,
                mut file,
            } => file
                .write_all(&text)
                .and_then(|()| file.sync_all())
                .and_then(|()| std::fs::rename(&temporary, &path))
                .map_err(|source| {
                    let _ = std::fs::remove_file(&temporary);
                    failed(&path, source)
                }),
        }
    }
}

fn failed(to: &Path, source: io::Error) -> TraceError {
    TraceError::Write {
        to: to.display().to_string(),
        source,
    }
}
