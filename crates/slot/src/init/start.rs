//! What is started next.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tidemill_sys::spawn::{Command, ShellLimits, Strings};
use tidemill_sys::{fd, file, signal, time, SysError};
use tidemill_wire::log::cause;

use super::cover::NO_BATCH;
use super::inputs::InputError;
use super::job::Job;
use super::payload::{Kind, Payload, Start};
use super::place::SlotPlace;
use super::range_protocol::Talk;
use super::{Init, WAITING_MAX};
use crate::queue::{Bounds, Events};
use crate::{Failed, Isolated};

/// Descriptors at which a persistent payload finds the protocol.
const PAYLOAD_IN: RawFd = 3;
const PAYLOAD_OUT: RawFd = 4;
/// Room in the protocol's pipes; the default of 64 KiB makes both sides sleep more often.
const PIPE_BYTES: i32 = 256 << 10;

/// Why a payload could not be started: its failure class and message. `all`: it would be the same for every event.
pub(super) struct NotStarted {
    failure: &'static str,
    message: String,
    all: bool,
}

impl NotStarted {
    fn all(failure: &'static str, message: String) -> Self {
        NotStarted {
            failure,
            message,
            all: true,
        }
    }
}

impl From<InputError> for NotStarted {
    fn from(error: InputError) -> Self {
        NotStarted {
            failure: error.failure,
            message: error.message,
            all: false,
        }
    }
}

impl From<SysError> for NotStarted {
    fn from(error: SysError) -> Self {
        NotStarted::all("payload_setup", cause(&error))
    }
}

impl Init {
    /// Starts payloads and hands out ranges as far as that goes now.
    pub(super) fn advance(&mut self) {
        while self.payload.is_none()
            && self.fatal.is_none()
            && !self.taken.pauses(time::monotonic_us())
            && self.scratch.waiting < WAITING_MAX
            && !self.control.overfull()
            && self.control.inbox.is_empty()
        {
            let Some(job) = self.queue.front_job() else {
                break;
            };
            if !self.is_permitted(job) {
                break;
            }
            self.start(job);
        }
        if self
            .payload
            .as_ref()
            .is_some_and(|payload| payload.recalled.is_none())
        {
            self.hand_out();
        }
    }

    /// Events for the next chunk or range of a job: 0 when none fits before the deadline. `ahead`: events that are
    /// worked on before.
    pub(super) fn size(&self, job: &Job, ahead: u64) -> u64 {
        let left_us = self.deadline_us.map(|deadline_us| {
            let ahead_us = job.pace.expected_us(ahead) / job.program.cores.max(1);
            deadline_us.saturating_sub(time::monotonic_us() + ahead_us)
        });
        let program_max = job.program.chunk_max.max(1);
        let run_max = self.queue.of_job(job.def.job).and_then(|run| run.chunk_max);
        let chunk_max = run_max.unwrap_or(program_max).min(program_max);
        job.pace.size(&Bounds {
            range_s: job.program.range_s,
            chunk_max,
            left_us,
        })
    }

    /// Gives the oldest run of a job back.
    pub(super) fn return_run(&mut self, job: u64, reason: &str) {
        if let Some(events) = self.queue.take(job, u64::MAX) {
            self.give_back(events, reason);
        }
    }

    /// Where the scratch had no room for inputs, say how much room there is.
    fn explain(&self, mut why: NotStarted) -> NotStarted {
        if why.failure == "disk" {
            why.message = format!("{}; {}", why.message, self.shortage());
        }
        why
    }

    fn start(&mut self, id: u64) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return match self.wrong_jobs.get(&id).cloned() {
                Some(what) => self.not_started(id, u64::MAX, NotStarted::all("dispatch", what)),
                None => self.return_run(id, "slot"),
            };
        };
        let size = self.size(&job, 0);
        let started = match (size, job.persistent()) {
            (0, _) => {
                self.return_run(id, "walltime");
                Ok(())
            }
            (_, true) => self.start_persistent(&mut job),
            (_, false) => self.start_command(&mut job, size),
        };
        self.jobs.insert(id, job);
        if let Err(not_started) = started {
            let why = self.explain(not_started);
            self.not_started(id, size, why);
        }
    }

    fn not_started(&mut self, job: u64, count: u64, why: NotStarted) {
        let count = if why.all { u64::MAX } else { count };
        let Some(events) = self.queue.take(job, count) else {
            return;
        };
        if why.failure == "preempted" {
            return self.give_back(events, "yield");
        }
        self.fail(Failed {
            ticket: events.ticket,
            job,
            first: events.first,
            count: events.count,
            failure: why.failure.to_owned(),
            message: why.message,
            at_us: time::realtime_us(),
            ..Failed::default()
        });
    }

    fn start_command(&mut self, job: &mut Job, size: u64) -> Result<(), NotStarted> {
        let Some(run) = self.queue.of_job(job.def.job) else {
            return Ok(());
        };
        let count = size.min(run.end - run.next);
        let events = Events {
            ticket: run.ticket,
            job: run.job,
            first: run.next,
            count,
        };
        if !job.def.inputs.is_empty() {
            let (place, control) = (&self.scratch.place, &mut self.control);
            job.inputs
                .copy_shared(place, &job.def, &mut || !control.urgent())?;
            job.inputs.read_urls(place, &job.def, &mut || !control.urgent())?;
            job.inputs
                .copy_each(place, &job.def, (events.first, count), &mut || !control.urgent())?;
        }
        let place = &self.scratch.place;
        let wrong = |what: String| NotStarted {
            failure: "payload_setup",
            message: what,
            all: false,
        };
        let argv = job.arguments(place, events).map_err(wrong)?;
        let outputs = job.outputs(place, events).map_err(wrong)?;
        self.prepare(job, events)?;
        job.set_environment(&self.scratch.place, Some(events))?;
        let start = self.start_now();
        let (pid, traced) = self.spawn(job, argv, &[])?;
        let events = self.queue.take(job.def.job, count).unwrap_or(events);
        let kind = Kind::Command { events, outputs };
        let mut payload = Payload::new(pid, job.def.job, kind, start);
        payload.traced = traced;
        self.payload = Some(payload);
        Ok(())
    }

    fn start_persistent(&mut self, job: &mut Job) -> Result<(), NotStarted> {
        let (place, control) = (&self.scratch.place, &mut self.control);
        job.inputs
            .copy_shared(place, &job.def, &mut || !control.urgent())?;
        job.inputs.read_urls(place, &job.def, &mut || !control.urgent())?;
        let wrong = |what: String| NotStarted::all("payload_setup", what);
        let nothing = Events {
            job: job.def.job,
            count: 1,
            ..Events::default()
        };
        let argv = job.arguments(place, nothing).map_err(wrong)?;
        self.prepare(job, nothing)?;
        job.set_environment(&self.scratch.place, None)?;
        let (payload_in, to) = fd::pipe()?;
        let (from, payload_out) = fd::pipe()?;
        fd::set_nonblocking(to.as_fd(), true)?;
        fd::set_nonblocking(from.as_fd(), true)?;
        fd::set_pipe_size(to.as_fd(), PIPE_BYTES);
        fd::set_pipe_size(from.as_fd(), PIPE_BYTES);
        let descriptors = [
            (payload_in.as_raw_fd(), PAYLOAD_IN),
            (payload_out.as_raw_fd(), PAYLOAD_OUT),
        ];
        let start = self.start_now();
        let (pid, traced) = self.spawn(job, argv, &descriptors)?;
        let talk = Talk::new(to, from, job.program.cores <= 1, start.now_us);
        let mut payload = Payload::new(pid, job.def.job, Kind::Range(Box::new(talk)), start);
        payload.traced = traced;
        self.payload = Some(payload);
        Ok(())
    }

    fn start_now(&self) -> Start {
        Start {
            now_us: time::monotonic_us(),
            at_us: time::realtime_us(),
            shared_kb: self.scratch.shared_kb_outside(),
        }
    }

    /// Starts a payload, under trace if it is its turn: its pid, and the file for its profile.
    fn spawn(
        &mut self,
        job: &Job,
        argv: Strings,
        descriptors: &[(RawFd, RawFd)],
    ) -> Result<(i32, Option<File>), NotStarted> {
        let place = &self.scratch.place;
        let (isolated, rules) = (place.isolated, place.rules.as_ref().map(AsFd::as_fd));
        self.approved.check(&job.files).map_err(|(failure, what)| {
            let mut missing = job.files.iter().filter(|file| !Path::new(&file.path).exists());
            let hidden = missing.find_map(|file| hidden(place, Path::new(&file.path)));
            let hint = hidden.map_or_else(String::new, |path| hidden_hint(&path));
            NotStarted::all(failure, format!("{what}{hint}"))
        })?;
        let program = Path::new(OsStr::from_bytes(job.path.to_bytes()));
        if place.covers.forbids(program) {
            let message = format!("`{}` {NO_BATCH}", program.display());
            return Err(NotStarted::all("payload_setup", message));
        }
        // a launcher starts ranks on other nodes: they are not children of any process here
        let alone = self.spec.directory.is_none();
        let instead = alone
            .then(|| self.sampler.instead(&job.program, &job.path, &argv))
            .flatten();
        let Some(instead) = instead else {
            let pid = spawn(
                &mut self.spawner,
                &job.path,
                (&argv, job.env(), &job.limits),
                descriptors,
                (isolated, rules),
            )
            .map_err(|error| not_executed(&error, &self.scratch.place, &job.path))?;
            return Ok((pid, None));
        };
        let mut placed = descriptors.to_vec();
        placed.push(instead.descriptor());
        let words = (&instead.argv, job.env(), &job.limits);
        let pid = spawn(
            &mut self.spawner,
            &instead.path,
            words,
            &placed,
            (isolated, rules),
        )?;
        Ok((pid, Some(instead.profile)))
    }

    /// Inputs by name in the work directory, if it shows them, streams empty, the state of the scratch remembered.
    fn prepare(&mut self, job: &Job, events: Events) -> Result<(), NotStarted> {
        let links = job.links(&self.scratch.place, events);
        self.scratch.lay_out(links)?;
        self.scratch.remember()?;
        let limit = usize::try_from(job.program.log_bytes_max)
            .unwrap_or(usize::MAX)
            .min(256 << 20);
        let keep_whole = job.program.stdout_output && !job.persistent();
        self.streams.reset(limit, keep_whole);
        let note = self.permits.take_note();
        if !note.is_empty() {
            self.streams.note(&format!("tidemill: {note}\n"));
        }
        Ok(())
    }
}

fn spawn(
    spawner: &mut tidemill_sys::spawn::Spawner,
    path: &CStr,
    (argv, env, limits): (&Strings, &Strings, &ShellLimits),
    descriptors: &[(RawFd, RawFd)],
    (isolated, rules): (Isolated, Option<BorrowedFd<'_>>),
) -> tidemill_sys::Result<i32> {
    // in a PID namespace the kernel kills payloads with their init anyway
    let parent_death_signal = if isolated == Isolated::Subreaper {
        signal::KILL
    } else {
        0
    };
    spawner.spawn(&Command {
        path,
        argv,
        env,
        descriptors,
        parent_death_signal,
        rules,
        limits,
    })
}

fn not_executed(error: &SysError, place: &SlotPlace, path: &CStr) -> NotStarted {
    let seen = || hidden(place, Path::new(&*path.to_string_lossy()));
    let hint = match error.os_error() {
        2 => seen().map_or_else(
            || " (no such file, or its interpreter or loader is missing)".to_owned(),
            |path| hidden_hint(&path),
        ),
        8 => " (neither a program for this machine nor a script that begins with `#!`)".to_owned(),
        13 => " (is it executable, and may you reach its directory?)".to_owned(),
        _ => String::new(),
    };
    NotStarted::all("payload_setup", format!("{}{hint}", cause(error)))
}

fn hidden_hint(path: &Path) -> String {
    let path = path.display();
    format!(
        " (`{path}` is hidden from payloads at this site: its operator can show it with `show = [\"{path}\"]` in \
         site.toml, or the application's file with its own `show`)"
    )
}

/// Links and interpreters that are followed.
const STEPS_MAX: usize = 40;

/// What is missing in the slot and there on the node: an executable, what its link leads to, its interpreter or loader.
fn hidden(place: &SlotPlace, executable: &Path) -> Option<PathBuf> {
    let mut at = executable.to_owned();
    for _ in 0..STEPS_MAX {
        match std::fs::symlink_metadata(&at) {
            Ok(status) if status.is_symlink() => {
                let target = std::fs::read_link(&at).ok()?;
                at = at.parent()?.join(target);
            }
            Ok(_) => at = interpreter(&at)?,
            Err(_) => {
                let is_there = file::open_in_root(place.old_root.as_fd(), at.to_str()?).is_ok();
                return (is_there || place.covers.hides(&at)).then_some(at);
            }
        }
    }
    None
}

/// What the kernel starts a file with: the interpreter of a script (execve(2)), the loader of a program.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(4096).read_to_end(&mut start).ok()?;
    let name = match start.strip_prefix(b"#!") {
        Some(rest) => {
            let line = rest.split(|&byte| byte == b'\n').next()?;
            let line = line.trim_ascii_start();
            line.split(|byte| byte.is_ascii_whitespace()).next()?
        }
        None => loader(&start)?,
    };
    let name = Path::new(OsStr::from_bytes(name));
    name.is_absolute().then(|| name.to_owned())
}

/// Of the begin of a 64-bit program for a little-endian machine (elf(5)): the text of its PT_INTERP header.
fn loader(start: &[u8]) -> Option<&[u8]> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| {
        let field = start.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        )
    };
    start.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, each, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    let headers = (0..count).filter_map(|header| usize::try_from(table.checked_add(header * each)?).ok());
    let header = { headers }.find(|&header| number(header, 4) == Some(PT_INTERP))?;
    let from = usize::try_from(number(header + 8, 8)?).ok()?;
    start.get(from..)?.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_programs_name_what_starts_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        let of = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            interpreter(&path)
        };
        assert_eq!(of(b"#! /opt/python -s\nprint()"), Some("/opt/python".into()));
        assert_eq!(of(b"#!python\n"), None);
        assert_eq!(of(b"text"), None);
        assert_eq!(of(b"\x7fELF\x02\x01short"), None);
        let shell = interpreter(&std::fs::canonicalize("/bin/sh").unwrap());
        assert!(
            shell.is_none_or(|loader| loader.exists()),
            "a static shell has none"
        );
    }
}
