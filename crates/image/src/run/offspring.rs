//! The command: started, watched, given signals, and ended with all that it started.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tidemill_sys::errno::ENOENT;
use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::process::{self, Exit, Fork, Namespaces, Waited};
use tidemill_sys::spawn::{self, Strings};
use tidemill_sys::{security, signal, time, SysError};

use super::report::{Report, Reporter};
use crate::show::Shown;

/// Signals that are passed on: HUP INT QUIT USR1 USR2 ALRM TERM WINCH.
pub(super) const PASSED_ON: [i32; 8] = [1, 2, 3, 10, 12, 14, 15, 28];
/// All that the command left is dead by then, or cannot die.
const END_US: u64 = 5_000_000;
const LOOK_US: u64 = 10_000;
/// As shells have it.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// What a process that watches over another one blocks, to take it from a descriptor.
pub(super) fn watched_signals() -> Result<OwnedFd, SysError> {
    let signals: Vec<i32> = PASSED_ON.into_iter().chain([signal::CHILD]).collect();
    signal::block_only(&signals)?;
    signal::descriptor(&signals)
}

/// What to start.
pub(super) struct Start {
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub directory: Option<PathBuf>,
}

/// Forks and executes; what goes wrong in the child is in its exit status and in the report.
pub(super) fn start(start: &Start, reporter: &Reporter) -> Result<i32, SysError> {
    let owner = process::id();
    match process::fork(Namespaces::NONE)? {
        Fork::Parent { child } => Ok(child),
        Fork::Child => {
            let (status, what) = become_command(start, owner);
            reporter.send(&Report::NotStarted(status, what));
            process::exit_now(status)
        }
    }
}

/// Returns only what went wrong.
fn become_command(start: &Start, owner: i32) -> (i32, String) {
    let failed = |error: SysError| {
        let status = if error.os_error() == ENOENT {
            NOT_FOUND
        } else {
            NOT_EXECUTABLE
        };
        (status, tidemill_wire::log::cause(&error))
    };
    let prepared = || -> Result<(CString, Strings, Strings), SysError> {
        if let Some(directory) = &start.directory {
            // a directory that is gone: the command starts where we are, as a shell would do
            let _ = std::env::set_current_dir(directory);
        }
        let (mut argv, mut env) = (Strings::new(), Strings::new());
        for word in &start.argv {
            argv.push(word.as_bytes())?;
        }
        for (name, value) in &start.env {
            env.push([name.as_bytes(), b"=", value.as_bytes()].concat())?;
        }
        let path = find(start)?;
        signal::reset_handled()?;
        security::set_parent_death_signal(signal::KILL)?;
        if process::parent_id() != owner {
            return Err(SysError::new(
                "start",
                "the command",
                std::io::Error::other("who started it has ended"),
            ));
        }
        Ok((path, argv, env))
    };
    match prepared() {
        Ok((path, argv, env)) => failed(spawn::replace(&path, &argv, &env)),
        Err(error) => failed(error),
    }
}

/// The program, by PATH where its name has no `/`.
fn find(start: &Start) -> Result<CString, SysError> {
    let empty = OsString::new();
    let name = start.argv.first().unwrap_or(&empty);
    let c = |path: &Path| {
        CString::new(path.as_os_str().as_bytes())
            .map_err(|source| SysError::new("use as path", path.to_string_lossy(), source.into()))
    };
    if name.as_bytes().contains(&b'/') {
        return c(Path::new(name));
    }
    let path = start.env.iter().find(|(key, _)| key == "PATH");
    let path = path.map_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"), |(_, path)| path);
    let found = spawn::find_program(name, std::env::split_paths(path));
    let source = std::io::Error::from_raw_os_error(ENOENT);
    c(&found.ok_or_else(|| SysError::new("find on PATH", name.to_string_lossy(), source))?)
}

/// How the command's time ended.
pub(super) enum Outcome {
    Ended(Exit),
    /// squashfuse ended before it; the command was killed
    Lost(String),
    /// the process outside is gone
    Abandoned,
}

/// Passes signals on and waits. `life` hangs up when the process outside has ended.
pub(super) fn watch(
    command: i32,
    signals: &OwnedFd,
    life: &OwnedFd,
    shown: &mut Shown,
) -> Result<Outcome, SysError> {
    loop {
        let watched = shown.watch().map_or(-1, |fd| fd.as_raw_fd());
        let mut polls = [
            Poll::new(signals.as_fd(), READABLE),
            Poll::new(life.as_fd(), READABLE),
            Poll::raw(watched, READABLE),
        ];
        fd::poll(&mut polls, None)?;
        if polls[1].readable() {
            return Ok(Outcome::Abandoned);
        }
        while let Some((number, from_process)) = signal::take_with_origin(signals.as_fd()) {
            // what the terminal sends, it sends to the command as well
            if number != signal::CHILD && from_process {
                let _ = signal::kill(command, number); // it may have ended just now
            }
        }
        while let Waited::Ended { pid, exit, .. } = process::wait(0, false)? {
            if Some(pid) == shown.pid() {
                shown.gone(exit);
            } else if pid == command {
                return Ok(Outcome::Ended(exit));
            }
        }
        if let Some(how) = shown.ended() {
            let _ = signal::kill(command, signal::KILL);
            return Ok(Outcome::Lost(how));
        }
    }
}

/// Children of this process.
pub(super) fn children() -> Vec<i32> {
    let own = process::id();
    let text = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Kills all that is left below a subreaper, generation by generation, except these children.
pub(super) fn end_all(except: &[i32]) {
    let end_us = time::monotonic_us() + END_US;
    while time::monotonic_us() < end_us {
        let left: Vec<i32> = children()
            .into_iter()
            .filter(|pid| !except.contains(pid))
            .collect();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = signal::kill(pid, signal::KILL); // it may have ended just now
            let _ = process::wait(pid, false);
        }
        let _ = fd::poll(&mut [], Some(LOOK_US));
    }
}
