//! The loop around traced processes: handles one event after the other, each at once.
//!
//! A new process may be seen before its parent's event shows what the two share; it then waits for that event.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;

use tidemill_sys::process::Exit;
use tidemill_sys::ptrace::{self, Event, Resume, Stop};
use tidemill_sys::{proc, Result, SysError};

use crate::beside::Beside;
use crate::calls::{CLONE, CLONE3, VFORK};
use crate::counts::{Counts, Gap, Operation};
use crate::launch;
use crate::operation::{Reader, Table};
use crate::task::{Diversion, Pending, Task, CLONE_VFORK, CLONE_VM};

/// What to do, and what was counted.
pub struct Tracer {
    pub(crate) tasks: HashMap<i32, Task>,
    /// new processes whose parent's event has not come yet
    early: HashSet<i32>,
    pub(crate) counts: Counts,
    pub(crate) table: Table,
    pub(crate) reader: Reader,
    /// bumped when directories may have got other names
    pub(crate) epoch: u64,
    pub(crate) begun_us: u64,
    pub(crate) divert: bool,
    /// traffic of connections is counted
    pub(crate) watches: bool,
    /// `close` is an operation that counts
    pub(crate) closes_count: bool,
    main: i32,
    /// when the command itself has ended, the rest is not waited for
    end_with_command: bool,
    pub(crate) notes: Notes,
    pub(crate) beside: Beside,
    /// the last thread is about to end
    last_ends: bool,
}

/// When the tracer's caller may read the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// `Setup::tick_us` have gone by
    Ticked,
    /// The last thread ends, nothing more will be counted. What is done now costs no time as long as the kernel takes
    /// down the program's memory. May be missing, where the last thread is killed.
    LastEnds,
}

/// What a person should know; each is said once.
#[derive(Debug, Default)]
pub struct Notes {
    pub said: Vec<&'static str>,
}

impl Notes {
    pub fn say(&mut self, what: &'static str, about: &str) {
        if !self.said.contains(&what) {
            self.said.push(what);
            tidemill_wire::log::plain(&format!("tidemill-node trace: {what}{about}\n"));
        }
    }
}

/// How a tracer is set up.
pub struct Setup {
    pub main: i32,
    pub begun_us: u64,
    /// results without a second stop, where the architecture allows it
    pub divert: bool,
    /// `--also close`
    pub closes_count: bool,
    pub end_with_command: bool,
    /// the tracer may share a CPU with what it traces
    pub beside: bool,
    /// as passed to `ptrace::tick`; 0: no ticks
    pub tick_us: u64,
}

impl Tracer {
    /// A tracer of `setup.main`, which it has seized and which has not yet executed its program.
    pub fn new(setup: &Setup, counts: Counts) -> Self {
        Tracer {
            tasks: HashMap::from([(setup.main, Task::default())]),
            early: HashSet::new(),
            counts,
            table: Table::new(),
            reader: Reader::default(),
            epoch: 0,
            begun_us: setup.begun_us,
            divert: setup.divert && ptrace::DIVERTS,
            watches: setup.divert && ptrace::DIVERTS,
            closes_count: setup.closes_count,
            main: setup.main,
            end_with_command: setup.end_with_command,
            notes: Notes::default(),
            beside: Beside::new(setup.beside, setup.tick_us),
            last_ends: false,
        }
    }

    /// Traces until all have ended; how the command ended, and what was counted. `look` gets what was counted so far,
    /// at least as often as `Setup::tick_us` says.
    pub fn run(mut self, look: &mut dyn FnMut(&Counts, Moment)) -> Result<(Exit, Counts)> {
        let mut ended = Exit::Signal(tidemill_sys::signal::KILL);
        loop {
            if ptrace::ticked() {
                self.beside.tick();
                look(&self.counts, Moment::Ticked);
            }
            match ptrace::wait()? {
                Event::NoChildren => break,
                Event::Interrupted => {}
                Event::Ended(pid, exit) => {
                    self.forget(pid);
                    if pid == self.main {
                        ended = exit;
                        if self.end_with_command {
                            break;
                        }
                        launch::forward_no_more();
                        self.beside.restart();
                    }
                }
                Event::Stopped(pid, stop) => gone_is_fine(self.stopped(pid, stop))?,
            }
            if std::mem::take(&mut self.last_ends) {
                look(&self.counts, Moment::LastEnds);
            }
        }
        self.beside.release();
        Ok((ended, self.counts))
    }

    fn stopped(&mut self, pid: i32, stop: Stop) -> Result<()> {
        if !self.tasks.contains_key(&pid) {
            if stop == Stop::Event(ptrace::EVENT_STOP) {
                self.early.insert(pid);
                return Ok(());
            }
            self.tasks.insert(pid, Task::default());
        }
        let how = match stop {
            Stop::Event(ptrace::EVENT_SECCOMP) => {
                self.beside.at_operation(pid);
                return self.at_call(pid);
            }
            Stop::Call => return self.at_call_end(pid),
            Stop::Group => Resume::Listen,
            Stop::Signal(signal) => {
                self.settle_before_signal(pid)?;
                self.onward(pid, signal)
            }
            Stop::Event(event) => {
                match event {
                    ptrace::EVENT_FORK | ptrace::EVENT_VFORK | ptrace::EVENT_CLONE => {
                        self.born(pid, event)?
                    }
                    ptrace::EVENT_EXEC => self.executed(pid)?,
                    ptrace::EVENT_EXIT => {
                        self.settle_before_exit(pid)?;
                        self.last_ends = self.tasks.len() == 1 && self.early.is_empty();
                        if self.last_ends {
                            self.beside.release(); // a CPU for its end, a CPU for us
                        }
                    }
                    _ => {}
                }
                self.onward(pid, 0)
            }
        };
        ptrace::resume(pid, how)
    }

    /// On to the next event: the end of its call where that is waited for.
    fn onward(&self, pid: i32, signal: i32) -> Resume {
        match self.tasks.get(&pid).map(|task| &task.pending) {
            Some(
                Pending::CallEnd(_)
                | Pending::Mapping { .. }
                | Pending::Watching { .. }
                | Pending::Receiving(_)
                | Pending::Uncounted(_),
            ) => Resume::ToCallEnd(signal),
            _ => Resume::On(signal),
        }
    }

    fn born(&mut self, parent: i32, event: i32) -> Result<()> {
        let child = ptrace::event_message(parent)?;
        self.beside.born(child, Some(parent));
        let flags = self.clone_flags(parent, event)?;
        let Some(task) = self.tasks.get(&parent).map(|task| task.child(flags)) else {
            return Ok(());
        };
        self.tasks.entry(child).or_insert(task);
        if self.early.remove(&child) {
            ptrace::resume(child, Resume::On(0))?;
        }
        Ok(())
    }

    fn clone_flags(&mut self, parent: i32, event: i32) -> Result<u64> {
        let Some(registers) = ptrace::registers(parent)? else {
            return Ok(0);
        };
        Ok(match registers.call() {
            CLONE => registers.argument(0),
            CLONE3 => {
                let mut flags = [0; 8];
                ptrace::read_memory(parent, &[(registers.argument(0), 8)], &mut flags);
                u64::from_ne_bytes(flags)
            }
            VFORK => CLONE_VM | CLONE_VFORK,
            _ if event == ptrace::EVENT_VFORK => CLONE_VM | CLONE_VFORK,
            _ => 0,
        })
    }

    /// Lets new processes go on whose parent died before its event, as if nothing were shared. With `all`, also those
    /// whose parent lives.
    fn release_early(&mut self, all: bool) -> Result<()> {
        for pid in self.early.iter().copied().collect::<Vec<_>>() {
            if all || !self.tasks.contains_key(&maker(pid)) {
                self.early.remove(&pid);
                self.beside.born(pid, None);
                self.tasks.insert(pid, Task::default());
                gone_is_fine(ptrace::resume(pid, Resume::On(0)))?;
            }
        }
        Ok(())
    }

    /// exec has succeeded. If a thread called it, that thread has the number of the process now.
    fn executed(&mut self, pid: i32) -> Result<()> {
        let former = ptrace::event_message(pid)?;
        self.beside.gone(former); // a program that we do not see may be next
        if former != pid {
            if let Some(task) = self.tasks.remove(&former) {
                self.forget(pid);
                self.tasks.insert(pid, task);
            }
        }
        if let Some(task) = self.tasks.get_mut(&pid) {
            let pending = std::mem::take(&mut task.pending);
            task.executed();
            match pending {
                Pending::CallEnd(operation) => self.counts.add(operation, 0),
                Pending::Uncounted(gap) => self.uncounted(gap, 0),
                _ => {}
            }
        }
        // no event comes from the threads that it ended either
        self.release_early(true)?;
        self.look_at_program(pid)
    }

    fn look_at_program(&mut self, pid: i32) -> Result<()> {
        let path = format!("/proc/{pid}/exe");
        if ptrace::registers(pid)?.is_none() {
            self.counts.gaps.insert(Gap::Architecture);
            let name = std::fs::read_link(&path).unwrap_or_default();
            let about = format!(" `{}`", name.display());
            self.notes
                .say("operations of 32-bit programs are not counted:", &about);
            return Ok(());
        }
        const SET_USER_OR_GROUP: u32 = 0o6000;
        let Ok(status) = std::fs::metadata(&path) else {
            return Ok(());
        };
        let (user, group) = tidemill_sys::process::user_and_group();
        let changes = (status.mode() & 0o4000 != 0 && status.uid() != user)
            || (status.mode() & 0o2000 != 0 && status.gid() != group);
        if status.mode() & SET_USER_OR_GROUP != 0 && changes && user != 0 {
            let name = std::fs::read_link(&path).unwrap_or_default();
            let about = format!(
                " `{}`\nhint: run what needs it outside of the trace",
                name.display()
            );
            self.notes.say(
                "a set-user-id program was started, which gains no rights while it is traced:",
                &about,
            );
        }
        Ok(())
    }

    /// A thread is no more. What it had begun and did not end is not counted.
    fn forget(&mut self, pid: i32) {
        self.beside.gone(pid);
        self.early.remove(&pid);
        if let Some(mut task) = self.tasks.remove(&pid) {
            match std::mem::take(&mut task.pending) {
                Pending::CallEnd(operation) | Pending::Diverted { operation, .. } => {
                    self.unmark(&task, operation);
                }
                Pending::Mapping { .. } => task.memory.borrow_mut().diversion = Diversion::Refused,
                Pending::Watching { step, .. } => step.end(&mut task.memory.borrow_mut()),
                Pending::Nothing | Pending::Receiving(_) | Pending::Uncounted(_) => {}
            }
            task.give_slot();
        }
        // a child that it was creating no longer waits for its event
        let _ = self.release_early(false);
    }

    /// An operation is over, whatever came of it: descriptors and directories may be remembered again.
    pub(crate) fn unmark(&self, task: &Task, operation: Operation) {
        use crate::calls::{Effect, CALLS};
        match CALLS[usize::from(operation.call)].effect {
            Effect::Opens(_) => {
                let mut files = task.files.borrow_mut();
                files.opening = files.opening.saturating_sub(1);
            }
            Effect::Changes => {
                let mut place = task.place.borrow_mut();
                place.changing = place.changing.saturating_sub(1);
                place.directory = None;
            }
            _ => {}
        }
    }
}

/// The process that made this one: its own where it is a thread.
fn maker(pid: i32) -> i32 {
    let number = |field: &str| -> Option<i32> { proc::status(pid, field)?.parse().ok() };
    match number("Tgid") {
        Some(group) if group != pid => group,
        _ => number("PPid").unwrap_or(0),
    }
}

/// A process may be killed at any moment. A request that no longer reaches it is not an error: its end will be
/// reported.
pub(crate) fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if SysError::os_error(&error) == libc::ESRCH => Ok(()),
        result => result,
    }
}
