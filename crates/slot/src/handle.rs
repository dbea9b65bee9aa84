//! The pilot's side of a slot.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::framed::Framed;
use tidemill_sys::own::{self, OwnDirectory};
use tidemill_sys::process::{self, Fork, Namespaces};
use tidemill_sys::{child, file, proc, signal, socket, time, SysError};
use tidemill_wire::log::cause;

use crate::codec::{self, Downward, Upward};
use crate::init::{self, Birth};
use crate::{FromSlot, Isolated, Isolation, Network, SlotError, SlotSpec, ToSlot};

/// A slot that is not up after this time is given up.
const START_US: u64 = 60_000_000;
/// Interval at which signals to the pilot are checked during that wait.
const LOOK_US: u64 = 100_000;
/// Time for a slot without namespaces to kill its payloads.
const LEAVE_US: u64 = 5_000_000;
/// What payloads reach where the kernel gives no network namespace.
const NETWORK_NOTE: &str = "payloads reach the node's network and its abstract sockets";
/// Prefix of the names of scratch directories.
const WHAT: &str = "slot";

/// A running slot init. Dropping it kills the slot and everything in it.
pub struct Slot {
    index: u32,
    pid: i32,
    /// None once it is being killed
    socket: Option<Framed>,
    scratch: OwnedFd,
    /// scratch directory of a slot without namespaces, or outside of memory
    directory: Option<OwnDirectory>,
    isolated: Isolated,
    note: String,
    up: Option<FromSlot>,
}

/// Forks the slot's init and waits until it is up: a minute at most, since file systems may be slow, and no longer than
/// until TERM is pending, which a pilot has to obey within two seconds. Call only while single-threaded. With
/// `Isolation::Preferred` a slot whose namespaces are refused runs without them; the note says why.
pub fn start(spec: &SlotSpec) -> Result<Slot, SlotError> {
    let wrong = |source| SlotError::Start {
        index: spec.index,
        source,
    };
    let reason = match spec.isolation {
        _ if spec.directory.is_some() => "payloads span nodes: ranks run outside of the slot".to_owned(),
        Isolation::Off => "namespaces are switched off".to_owned(),
        isolation => match start_isolated(spec) {
            Ok(slot) => return Ok(slot),
            Err(error) if isolation == Isolation::Required || spec.network == Network::Closed => {
                return Err(error)
            }
            Err(SlotError::Refused { reason, .. }) => format!("no namespaces: {reason}"),
            Err(error) => format!("no namespaces: {}", cause(&error)),
        },
    };
    let directory = scratch_directory(spec).map_err(wrong)?;
    start_one(spec, Namespaces::NONE, Some(directory), reason)
}

/// A slot with namespaces: with a network of its own where that is asked for, else or where the kernel has none and the
/// spec allows it, with the node's.
fn start_isolated(spec: &SlotSpec) -> Result<Slot, SlotError> {
    let once = |network: bool, note: String| {
        let namespaces = Namespaces {
            network,
            ..Namespaces::ALL
        };
        let spilled = spec.spill.is_some().then(|| scratch_directory(spec));
        let spilled = spilled.transpose().map_err(|source| SlotError::Start {
            index: spec.index,
            source,
        })?;
        start_one(spec, namespaces, spilled, note)
    };
    if spec.network == Network::Open {
        return once(false, String::new());
    }
    let refused = match once(true, String::new()) {
        Ok(slot) => return Ok(slot),
        Err(SlotError::Refused { reason, .. }) => reason,
        Err(error) => cause(&error),
    };
    if spec.network == Network::Preferred {
        return once(false, format!("{NETWORK_NOTE}: {refused}; "));
    }
    Err(SlotError::Refused {
        index: spec.index,
        reason: format!("{refused} (`network = \"closed\"` needs network namespaces)"),
    })
}

/// Makes a private directory where the slot's specification says, else in memory, or else where temporary files go.
/// Removes the directories that killed pilots have left there.
fn scratch_directory(spec: &SlotSpec) -> tidemill_sys::Result<OwnDirectory> {
    let bases = match spec.directory.as_ref().or(spec.spill.as_ref()) {
        Some(directory) => vec![directory.clone()],
        None => vec![PathBuf::from("/dev/shm"), std::env::temp_dir()],
    };
    let mut last = None;
    for base in bases {
        if spec.directory.is_none() {
            own::clean(&base, WHAT); // a directory that all nodes see is not listed by each
        }
        match OwnDirectory::make(&base, WHAT) {
            Ok(directory) => return Ok(directory),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| SysError::new("make scratch directory", "", io::ErrorKind::NotFound.into())))
}

/// A directory that was made for a slot that does not come up is removed.
fn start_one(
    spec: &SlotSpec,
    namespaces: Namespaces,
    directory: Option<OwnDirectory>,
    note: String,
) -> Result<Slot, SlotError> {
    let path = directory.as_ref().map(|own| own.path().to_owned());
    let started = start_in(spec, (namespaces, directory), note);
    if let (Err(_), Some(path)) = (&started, path) {
        own::remove(&path);
    }
    started
}

fn start_in(
    spec: &SlotSpec,
    (namespaces, directory): (Namespaces, Option<OwnDirectory>),
    note: String,
) -> Result<Slot, SlotError> {
    let wrong = |source| SlotError::Start {
        index: spec.index,
        source,
    };
    let (ours, theirs) = socket::stream_pair().map_err(wrong)?;
    let old_root = file::open_dir(Path::new("/")).map_err(wrong)?;
    let identity = process::user_and_group();
    let pid = match process::fork(namespaces).map_err(wrong)? {
        Fork::Parent { child } => child,
        Fork::Child => init::run(Birth {
            spec: spec.clone(),
            socket: theirs,
            old_root,
            identity,
            isolated: if namespaces == Namespaces::NONE {
                Isolated::Subreaper
            } else {
                Isolated::Namespaces
            },
            directory: directory.as_ref().map(|own| own.path().to_owned()),
            closed: namespaces.network,
            note,
        }),
    };
    drop(theirs);
    let mut ours = Framed::new(ours);
    let up = wait_until_up(spec, pid, &mut ours);
    if up.is_err() {
        child::end(pid); // no other code waits for it
    }
    let (scratch, isolated, note) = up?;
    let up = FromSlot::Up {
        isolated,
        note: note.clone(),
        pid: pid as u32,
    };
    Ok(Slot {
        index: spec.index,
        pid,
        socket: Some(ours),
        scratch,
        directory,
        isolated,
        note,
        up: Some(up),
    })
}

type Started = (OwnedFd, Isolated, String);

/// The scratch descriptor and the first message.
fn wait_until_up(spec: &SlotSpec, pid: i32, ours: &mut Framed) -> Result<Started, SlotError> {
    let index = spec.index;
    let refused = |reason: String| SlotError::Refused { index, reason };
    let limit_us = time::monotonic_us() + START_US;
    let wait = |ours: &Framed| -> Result<(), SlotError> {
        loop {
            let left_us = limit_us.saturating_sub(time::monotonic_us());
            if left_us == 0 {
                return Err(refused(format!("not up after {} s", START_US / 1_000_000)));
            }
            if fd::poll(&mut [Poll::new(ours.fd(), READABLE)], Some(left_us.min(LOOK_US)))? > 0 {
                return Ok(());
            }
            if signal::is_pending(signal::TERM) {
                return Err(refused("not up when its pilot had to leave".to_owned()));
            }
        }
    };
    wait(ours)?;
    let scratch = socket::receive_descriptor(ours.fd())?;
    loop {
        match ours.next(codec::get) {
            Err(garbled) => {
                return Err(SlotError::Garbled {
                    index,
                    pid,
                    what: garbled.to_string(),
                })
            }
            Ok(Some(Upward::Refused(reason))) => return Err(refused(reason)),
            Ok(Some(Upward::Slot(FromSlot::Up { isolated, note, .. }))) => {
                let scratch = scratch.ok_or_else(|| refused("it sent no scratch directory".to_owned()))?;
                return Ok((scratch, isolated, note));
            }
            Ok(Some(_)) => return Err(refused("its first message was another one".to_owned())),
            Ok(None) => {}
        }
        wait(ours)?;
        if !ours
            .receive()
            .map_err(|source| talk_error("hear", index, pid, source))?
        {
            return Err(refused("it ended before it was up".to_owned()));
        }
    }
}

fn talk_error(operation: &'static str, index: u32, pid: i32, source: io::Error) -> SlotError {
    SlotError::Talk {
        operation,
        index,
        pid,
        source,
    }
}

impl Slot {
    /// Poll it for reading (and for writing while `wants_write`).
    pub fn fd(&self) -> BorrowedFd<'_> {
        // only `end` takes the socket, and the slot with it; the scratch is never ready for reading in a way that matters
        self.socket
            .as_ref()
            .map_or(self.scratch.as_fd(), |socket| socket.fd())
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Process id of the init, as the pilot sees it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Messages wait to be written: poll for writing and call `flush`.
    pub fn wants_write(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.pending() > 0)
    }

    /// What the slot got, and a note that says why not more.
    pub fn isolation(&self) -> (Isolated, &str) {
        (self.isolated, &self.note)
    }

    /// Queues a message and writes what the socket takes; never blocks. A slot that has ended accepts everything;
    /// `receive` reports its end.
    pub fn send(&mut self, message: &ToSlot) -> Result<(), SlotError> {
        self.put(&Downward::Pilot(message.clone()));
        self.flush()
    }

    fn put(&self, message: &Downward) {
        if let Some(socket) = &self.socket {
            codec::put(&mut socket.output(), message);
        }
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), SlotError> {
        self.flush_output()
    }

    fn flush_output(&self) -> Result<(), SlotError> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        match socket.flush() {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                socket.forget_output();
                Ok(())
            }
            result => result.map_err(|error| talk_error("tell", self.index, self.pid, error)),
        }
    }

    /// Appends what the slot has sent since the last call; returns false when the slot has ended. Never blocks.
    pub fn receive(&mut self, into: &mut Vec<FromSlot>) -> Result<bool, SlotError> {
        into.extend(self.up.take());
        let (index, pid) = (self.index, self.pid);
        let Some(socket) = &mut self.socket else {
            return Ok(false);
        };
        let alive = socket
            .receive()
            .map_err(|source| talk_error("hear", index, pid, source))?;
        let what = loop {
            match socket.next(codec::get) {
                Ok(None) => return Ok(alive),
                Ok(Some(Upward::Slot(message))) => into.push(message),
                Ok(Some(Upward::Refused(reason))) => return Err(SlotError::Ended { index, pid, reason }),
                Err(garbled) => break garbled.to_string(),
            }
        };
        Err(SlotError::Garbled { index, pid, what })
    }

    /// The directory below which outputs of Done messages are: who opens one there follows no links (`open_beneath`).
    pub fn scratch(&self) -> BorrowedFd<'_> {
        self.scratch.as_fd()
    }

    /// Opens an output of a Done message for reading: a regular file below the scratch directory, no links.
    pub fn open_output(&self, relative: &str) -> Result<File, SlotError> {
        file::open_beneath(self.scratch.as_fd(), relative)
            .map_err(|source| self.output_error("open", relative, source))
    }

    /// Removes an output that is kept. The slot holds its next payload back while too many wait.
    pub fn remove_output(&self, relative: &str) -> Result<(), SlotError> {
        let wrong = |source| self.output_error("remove", relative, source);
        let directory = relative.rsplit_once('/').map(|(directory, _)| directory);
        let Some(directory) =
            directory.filter(|directory| directory.starts_with("out/") && !directory.contains(".."))
        else {
            return Err(wrong(SysError::new(
                "remove",
                relative,
                io::ErrorKind::InvalidInput.into(),
            )));
        };
        self.remove_one(relative).map_err(wrong)?;
        // fails while other outputs of the same payload are still there
        if file::remove_at(self.scratch.as_fd(), directory, true).is_ok() {
            self.put(&Downward::Collected(1));
            self.flush_output()?;
        }
        Ok(())
    }

    /// A payload that runs on may put a directory in the place of what it reported.
    fn remove_one(&self, relative: &str) -> tidemill_sys::Result<()> {
        let scratch = self.scratch.as_fd();
        match file::remove_at(scratch, relative, false) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.source.kind() == io::ErrorKind::IsADirectory => {
                file::empty(file::open_dir_at(scratch, relative)?.as_fd(), &[])?;
                file::remove_at(scratch, relative, true)
            }
            removed => removed,
        }
    }

    fn output_error(&self, operation: &'static str, path: &str, source: SysError) -> SlotError {
        SlotError::Output {
            operation,
            path: path.to_owned(),
            index: self.index,
            source,
        }
    }

    /// Kills the init and with it everything in the slot, and removes its directory. Children that are still at that
    /// after a moment (the kernel may hold a payload that hangs in a file system, and its init with it; a large tree takes
    /// long) are returned: the caller waits for them when they have ended.
    pub fn kill(mut self) -> Vec<i32> {
        self.end()
    }

    fn end(&mut self) -> Vec<i32> {
        let mut left = Vec::new();
        if self.socket.take().is_none() {
            return left;
        }
        if self.isolated == Isolated::Subreaper {
            self.wait_until_left();
        }
        if !child::end(self.pid) {
            left.push(self.pid);
        }
        if let Some(directory) = &self.directory {
            let scratch = &self.scratch;
            let remove = || {
                let _ = file::empty(scratch.as_fd(), &[]); // the path may be covered by now
                own::remove(directory.path());
            };
            match child::aside(&[scratch.as_raw_fd()], remove) {
                Ok(busy) => left.extend(busy),
                Err(_) => remove(),
            }
        }
        left
    }

    /// Without a PID namespace only the init itself can end its payloads: it does when its socket closes.
    fn wait_until_left(&self) {
        let limit_us = time::monotonic_us() + LEAVE_US;
        while time::monotonic_us() < limit_us {
            // the init's end shows in its /proc entry: gone, or a zombie
            if proc::stat(self.pid).is_none_or(|stat| stat.is_zombie) {
                return;
            }
            let _ = fd::poll(&mut [], Some(2000));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.end();
    }
}
