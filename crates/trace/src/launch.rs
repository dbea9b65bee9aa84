//! Starting a command under trace, and ending as it ended.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidemill_sys::bpf::Instruction;
use tidemill_sys::process::{self, Exit, Fork, Namespaces};
use tidemill_sys::security;
use tidemill_sys::trial::{self, Tracing};
use tidemill_sys::{fd, machine, ptrace, signal, spawn, SysError};

use crate::error::TraceError;

/// HUP INT QUIT USR1 USR2 ALRM TERM: what people and batch systems send.
const FORWARDED: [i32; 7] = [1, 2, 3, 10, 12, 14, 15];

/// Since this kernel a filter's stop comes after that at the begin of the call (ptrace(2)), so that the next one is at the
/// call's end. Older ones show in a trial what they do.
const ORDERED_SINCE: (u32, u32) = (4, 8);

/// INT QUIT TERM: who sends them wants the end.
const ENDING: [i32; 3] = [2, 3, 15];

/// A child that is to become the command.
struct Launched {
    report: std::fs::File,
}

/// Where the program of a command is, as execvp(3) looks for it. What is not there or not executable is an error.
pub fn find_program(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, TraceError> {
    let default = OsString::from("/bin:/usr/bin");
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else {
        let search = path.unwrap_or(&default).as_bytes().split(|&byte| byte == b':');
        search
            .map(|directory| {
                let directory = if directory.is_empty() { b"." } else { directory };
                Path::new(OsStr::from_bytes(directory)).join(name)
            })
            .collect()
    };
    if let Some(found) = spawn::first_program(candidates.iter().cloned()) {
        return Ok(found);
    }
    let status = if candidates.iter().any(|candidate| candidate.exists()) {
        126
    } else {
        127
    };
    let what = if status == 126 {
        "may not be executed"
    } else {
        "is not there"
    };
    Err(TraceError::NotFound {
        message: format!("`{}` {what}", name.to_string_lossy()),
        status,
    })
}

/// Forks, seizes the child, and lets it install the filter and execute the command. `Refused` where that is not
/// possible; nothing of the command has run then. Gives the command's process.
pub fn launch(program: &Path, command: &[OsString], filter: &[Instruction]) -> Result<i32, TraceError> {
    if machine::kernel_is_before(ORDERED_SINCE) {
        trial::trace(Tracing::Both).map_err(|source| TraceError::Refused {
            command: program.display().to_string(),
            source,
        })?;
    }
    let (go_out, go_in) = fd::pipe()?;
    let (report_out, report_in) = fd::pipe()?;
    match process::fork(Namespaces::NONE)? {
        Fork::Child => {
            drop((go_in, report_out));
            begin(program, command, filter, (go_out, report_in))
        }
        Fork::Parent { child } => {
            drop((go_out, report_in));
            let mut launched = Launched {
                report: report_out.into(),
            };
            let started = ptrace::seize(child).and_then(|()| {
                tell(go_in, b"t")?;
                launched.installed()
            });
            if let Err(source) = started {
                let _ = signal::kill(child, signal::KILL);
                let _ = process::wait(child, true);
                let command = program.display().to_string();
                return Err(TraceError::Refused { command, source });
            }
            ptrace::stops_without_signal()?;
            ptrace::forward_signals(&FORWARDED, child)?;
            Ok(child)
        }
    }
}

fn tell(to: OwnedFd, what: &[u8]) -> Result<(), SysError> {
    std::fs::File::from(to)
        .write_all(what)
        .map_err(|source| SysError::new("start", "the command", source))
}

/// The child: waits until it is traced, filters itself, becomes the command.
fn begin(
    program: &Path,
    command: &[OsString],
    filter: &[Instruction],
    (go, report): (OwnedFd, OwnedFd),
) -> ! {
    let mut report = std::fs::File::from(report);
    let mut byte = [0];
    if !matches!(std::fs::File::from(go).read(&mut byte), Ok(1)) {
        process::exit_now(1);
    }
    if let Err(error) = security::install_filter(filter) {
        let _ = report.write_all(&error.os_error().to_le_bytes());
        process::exit_now(1);
    }
    let _ = report.write_all(&0_i32.to_le_bytes());
    let error = Command::new(program).arg0(&command[0]).args(&command[1..]).exec();
    let name = command[0].to_string_lossy();
    tidemill_wire::log::plain(&format!(
        "tidemill-node trace: failed to execute `{name}`: {error}\n"
    ));
    let missing = error.raw_os_error() == Some(libc::ENOENT);
    process::exit_now(if missing { 127 } else { 126 })
}

impl Launched {
    /// The child says whether it could install the filter.
    fn installed(&mut self) -> Result<(), SysError> {
        let mut errno = [0; 4];
        let failed = |source| SysError::new("install", "seccomp filter", source);
        self.report.read_exact(&mut errno).map_err(failed)?;
        match i32::from_le_bytes(errno) {
            0 => Ok(()),
            errno => Err(failed(std::io::Error::from_raw_os_error(errno))),
        }
    }
}

/// Becomes the command, untraced. Returns only where that fails.
pub fn run_untraced(program: &Path, command: &[OsString]) -> i32 {
    let error = Command::new(program).arg0(&command[0]).args(&command[1..]).exec();
    let name = command[0].to_string_lossy();
    tidemill_wire::log::plain(&format!(
        "tidemill-node trace: failed to execute `{name}`: {error}\n"
    ));
    126
}

/// Ends as the command ended: with its exit status, or by its signal.
pub fn end_as(exit: Exit) -> i32 {
    match exit {
        Exit::Status(status) => status,
        Exit::Signal(number) => {
            ptrace::die_of(number);
            128 + number
        }
    }
}

/// The command has ended, and the processes that it left are waited for: a signal that is to end them now ends this
/// process, and all of them with it.
pub fn forward_no_more() {
    stop_forwarding();
    let _ = signal::reset(&ENDING);
}

/// Stops forwarding signals: no process is left to receive them.
pub fn stop_forwarding() {
    let _ = ptrace::forward_signals(&FORWARDED, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let sh = find_program(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).unwrap();
        assert_eq!(sh, Path::new("/bin/sh"));
        let status = |name: &str| {
            find_program(OsStr::new(name), Some(OsStr::new("/bin")))
                .unwrap_err()
                .exit_code()
        };
        assert_eq!(status("no-such-program"), 127);
        assert_eq!(status("/etc/passwd"), 126);
        assert_eq!(status("/"), 126);
    }
}
