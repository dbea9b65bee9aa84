//! `tidemill-node trace`: counts a command's metadata operations, exactly through forks, threads, static programs and
//! changes of directory, adds them up in memory, and writes one profile with their cost.
//!
//! An unprivileged ptrace; a seccomp filter stops the traced threads at calls that ask for metadata and at no others.
//! Knows no slot, no pilot and no fleet.

mod areas;
mod beside;
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
mod sockets;
mod task;
mod tracer;
mod watch;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tidemill_sys::process::Exit;
use tidemill_sys::{fd, machine, ptrace, time, SysError};
use tidemill_wire::log::{cause, plain};

use areas::{mounts, Finder};
use calls::CALLS;
use counts::Counts;
pub use error::TraceError;
use options::{Options, Output, Wanted};
use profile::{profile, Profile, Run, Sizes};
use tracer::{Moment, Setup, Tracer};

/// The first snapshot is taken then, each later one after twice the time.
const SNAPSHOT_US: u64 = 500_000;

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
    let program = launch::find_program(&options.command[0], std::env::var_os("PATH").as_deref())?;
    let mut sink = Sink::open(&options.output)?;
    let filter = filter::program(&options.also);
    let pid = match launch::launch(&program, &options.command, &filter) {
        Ok(pid) => pid,
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
    sink.keep_alone()?;
    let clocks = (begun_us, started_us);
    let mut sizes = Sizes::default();
    let (exit, profile) = follow(options, pid, (&mut sink, &mut sizes), clocks)?;
    match sink.write(&profile) {
        Err(error) if exit == Exit::Status(0) && !options.best_effort => return Err(error),
        Err(error) => plain(&format!("tidemill-node trace: {}\n", cause(&error))),
        Ok(()) => {}
    }
    Ok(launch::end_as(exit))
}

fn describe(options: &Options, over: bool, (begun_us, started_us): (u64, u64)) -> Run {
    Run {
        command: options.command.clone(),
        wall_us: time::monotonic_us() - begun_us,
        started_us,
        over,
        cwd: std::env::current_dir()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        env: profile::search_paths(std::env::vars_os()),
        host: machine::host(),
        prefixes: options.areas.clone(),
        mounts: mounts(&std::fs::read_to_string(MOUNTS).unwrap_or_default()),
    }
}

fn follow(
    options: &Options,
    pid: i32,
    (sink, sizes): (&mut Sink, &mut Sizes),
    clocks: (u64, u64),
) -> Result<(Exit, Profile), TraceError> {
    let points = mounts(&std::fs::read_to_string(MOUNTS).unwrap_or_default()).into_iter();
    let areas = points
        .map(|mount| mount.point)
        .chain(options.areas.iter().cloned());
    let counts = Counts::new(options.paths_max, Finder::new(areas.collect()));
    let setup = Setup {
        main: pid,
        begun_us: clocks.0,
        divert: !options.plain,
        closes_count: options.also.iter().any(|name| name == "close"),
        end_with_command: options.end_with_command,
        beside: !options.plain,
        tick_us: if options.snapshots { SNAPSHOT_US } else { 0 },
    };
    if options.snapshots {
        ptrace::tick(SNAPSHOT_US)?;
    }
    let mut next_us = clocks.0 + SNAPSHOT_US;
    let mut prepared = None;
    let result = Tracer::new(&setup, counts).run(&mut |counts, moment| {
        let now_us = time::monotonic_us();
        if moment == Moment::LastEnds {
            let profile = profile(describe(options, true, clocks), counts, sizes);
            prepared = Some((counts.operations, profile));
        } else if options.snapshots && now_us >= next_us {
            next_us = now_us + (now_us - clocks.0);
            // a failure does no harm: the next snapshot, or the end, writes the profile anew
            let _ = sink.rewrite(&profile(describe(options, false, clocks), counts, sizes));
        }
    });
    launch::stop_forwarding();
    let (exit, counts) = result?;
    let mut whole = match prepared {
        Some((operations, profile)) if operations == counts.operations => profile,
        _ => profile(describe(options, true, clocks), &counts, sizes),
    };
    whole.end(exit, time::monotonic_us() - clocks.0);
    Ok((exit, whole))
}

impl Sink {
    fn open(output: &Output) -> Result<Sink, TraceError> {
        match output {
            Output::File(path) => {
                let path = path.clone();
                // write to a device or a pipe itself: a rename would replace it, /dev/null for all users
                if std::fs::metadata(&path).is_ok_and(|status| !status.is_file()) {
                    let file = File::options().write(true).open(&path);
                    return Ok(Sink::Descriptor(file.map_err(|source| failed(&path, source))?));
                }
                let mut temporary = path.clone().into_os_string();
                temporary.push(format!(".{}.part", tidemill_sys::process::id()));
                let temporary = PathBuf::from(temporary);
                let mut options = File::options();
                options.write(true).create(true).truncate(true).mode(0o644); // whatever the umask
                let file = options
                    .open(&temporary)
                    .map_err(|source| failed(&temporary, source))?;
                Ok(Sink::File {
                    path,
                    temporary,
                    file,
                })
            }
            Output::Descriptor(number) => Ok(Sink::Descriptor(ptrace::inherited(*number)?)),
        }
    }

    /// From here on we hold no descriptor that is the command's: who reads or writes at its other end must see that
    /// the command has closed it. Stderr stays, for notes.
    fn keep_alone(&self) -> Result<(), TraceError> {
        let file = match self {
            Sink::File { file, .. } | Sink::Descriptor(file) => file,
        };
        fd::close_from(3, &[file.as_raw_fd()])?;
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(|source| SysError::new("open", "/dev/null", source))?;
        for number in [0, 1] {
            fd::place(null.as_fd(), number)?;
        }
        Ok(())
    }

    fn drop_temporary(&self) {
        if let Sink::File { temporary, .. } = self {
            let _ = std::fs::remove_file(temporary); // an empty file is left at worst
        }
    }

    fn write(mut self, profile: &Profile) -> Result<(), TraceError> {
        if let Sink::Descriptor(_) = self {
            return self.rewrite(profile);
        }
        let text = text(profile)?;
        let written = match &mut self {
            Sink::Descriptor(_) => Ok(()),
            Sink::File {
                path,
                temporary,
                file,
            } => file
                .write_all(&text)
                // not synced, which would cost as much as tracing a short command: a measurement can be repeated, and
                // a cut profile is known by its form
                .and_then(|()| std::fs::rename(&temporary, &path))
                .map_err(|source| failed(path, source)),
        };
        if written.is_err() {
            self.drop_temporary();
        }
        written
    }

    /// Writes to a descriptor; what stood in its file before is gone.
    fn rewrite(&mut self, profile: &Profile) -> Result<(), TraceError> {
        let Sink::Descriptor(file) = self else {
            return Ok(());
        };
        let text = text(profile)?;
        // a pipe cannot be cut or rewound, and has no need of it
        let _ = file.set_len(0);
        let _ = file.rewind();
        file.write_all(&text)
            .map_err(|source| failed(Path::new("--fd"), source))
    }
}

fn text(profile: &Profile) -> Result<Vec<u8>, TraceError> {
    let mut text = serde_json::to_vec(profile).map_err(|error| failed(Path::new("JSON"), error.into()))?;
    text.push(b'\n');
    Ok(text)
}

fn failed(to: &Path, source: io::Error) -> TraceError {
    TraceError::Write {
        to: to.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn a_device_is_written_to_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        // a link of our own: without the check it is the link that is replaced, and no device
        let path = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let sink = Sink::open(&Output::File(path.clone())).unwrap();
        assert!(matches!(sink, Sink::Descriptor(_)));
        assert!(std::fs::metadata(&path).unwrap().file_type().is_char_device());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
