//! A thread has stopped at a call of the table, or at its end: read what it asks, count what it got.

use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;

use tidemill_sys::ptrace::{self, Registers, Resume};
use tidemill_sys::{time, Result};

use crate::calls::{is_foreign, mode_at, Effect, Names, Silent, CALLS, CLOSE, SILENT, STATX_BUFFER, X32};
use crate::counts::{Facts, Gap, Operation, PathId};
use crate::diversion::{Slot, SLOT_BYTES};
use crate::filter::FOREIGN_DATA;
use crate::paths::join;
use crate::task::{CurrentDirectory, Files, Pending, Task, CLONE_FILES, CLONE_FS, DESCRIPTORS_MAX};
use crate::tracer::Tracer;

/// A call by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    No,
    Counted(u8),
    Silent(Silent),
}

/// Calls by number.
pub struct Table(Vec<Known>);

const NUMBERS: usize = 512;

impl Table {
    pub fn new() -> Self {
        let mut table = vec![Known::No; NUMBERS];
        for (index, call) in CALLS.iter().enumerate().filter(|(_, call)| call.number() >= 0) {
            table[call.number() as usize] = Known::Counted(index as u8);
        }
        for call in SILENT.iter().filter(|call| call.number() >= 0) {
            table[call.number() as usize] = Known::Silent(call.does);
        }
        Table(table)
    }

    fn find(&self, number: i64) -> Known {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        self.0.get(index).copied().unwrap_or(Known::No)
    }
}

/// Bytes of a path that the first read takes: most are shorter.
const FIRST_BYTES: usize = 256;
/// PATH_MAX of Linux
const PATH_BYTES_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;

/// Reads a slot and a path of a traced thread with as few calls as can be.
pub struct Reader {
    buffer: [u8; SLOT_BYTES + PATH_BYTES_MAX],
    path_bytes: usize,
    joined: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Reader {
            buffer: [0; SLOT_BYTES + PATH_BYTES_MAX],
            path_bytes: 0,
            joined: Vec::new(),
        }
    }
}

/// What was read: the slot's value; whether the path was.
struct Found {
    slot: Option<Slot>,
    path: bool,
}

impl Reader {
    /// `slot` and `path` are addresses.
    fn read(&mut self, pid: i32, slot: Option<u64>, path: Option<u64>) -> Found {
        let mut parts = [(0, 0); ptrace::PARTS_MAX];
        let mut count = 0;
        if let Some(address) = slot {
            parts[0] = (address, SLOT_BYTES);
            count = 1;
        }
        let skip = count * SLOT_BYTES;
        if let Some(address) = path {
            let to_page_end = (PAGE_BYTES - address % PAGE_BYTES) as usize;
            let first = to_page_end.min(FIRST_BYTES);
            parts[count] = (address, first);
            count += 1;
            if first < FIRST_BYTES {
                parts[count] = (address + first as u64, FIRST_BYTES - first);
                count += 1;
            }
        }
        if count == 0 {
            return Found {
                slot: None,
                path: false,
            };
        }
        let room = skip + if path.is_some() { FIRST_BYTES } else { 0 };
        let got = ptrace::read_memory(pid, &parts[..count], &mut self.buffer[..room]);
        let value = (slot.is_some() && got >= SLOT_BYTES).then(|| Slot::read(&self.buffer));
        let path = path.is_some_and(|address| {
            // the path stands at a fixed place, whether or not there was a slot
            if skip == 0 {
                self.buffer.copy_within(..got, SLOT_BYTES);
            }
            self.read_to_end(pid, address, got.saturating_sub(skip))
        });
        Found { slot: value, path }
    }

    fn read_to_end(&mut self, pid: i32, address: u64, mut got: usize) -> bool {
        let mut searched = 0;
        loop {
            let path = &self.buffer[SLOT_BYTES..];
            if let Some(end) = path[searched..got].iter().position(|&byte| byte == 0) {
                self.path_bytes = searched + end;
                return true;
            }
            searched = got;
            let from = address + got as u64;
            let length = ((PAGE_BYTES - from % PAGE_BYTES) as usize).min(PATH_BYTES_MAX - got);
            let into = &mut self.buffer[SLOT_BYTES + got..SLOT_BYTES + got + length];
            let more = if length > 0 {
                ptrace::read_memory(pid, &[(from, length)], into)
            } else {
                0
            };
            if more == 0 {
                return false;
            }
            got += more;
        }
    }

    fn path(&self) -> &[u8] {
        &self.buffer[SLOT_BYTES..SLOT_BYTES + self.path_bytes]
    }
}

impl Tracer {
    /// A thread is about to do a call.
    pub(crate) fn at_call(&mut self, pid: i32) -> Result<()> {
        let Some(mut registers) = ptrace::registers(pid)? else {
            self.counts.gaps.insert(Gap::Architecture); // a 32-bit program: its start was noted
            return ptrace::resume(pid, Resume::On(0));
        };
        let known = self.table.find(registers.call());
        let names = match known {
            Known::Counted(call) => CALLS[usize::from(call)].names,
            _ => Names::Nothing,
        };
        let path_at = match names {
            Names::Path(path) | Names::At(_, path) => Some(registers.argument(path)).filter(|&at| at != 0),
            _ => None,
        };
        let slot_at = self.slot_of_result(pid);
        let found = self.reader.read(pid, slot_at, path_at);
        self.settle(pid, found.slot, &mut registers)?;
        let number = registers.call();
        if number >= X32 || (is_foreign(number) && ptrace::event_message(pid)? == FOREIGN_DATA) {
            return self.at_uncounted(pid, Gap::Architecture);
        }
        if self.at_traffic(pid, &registers) {
            return ptrace::resume(pid, Resume::ToCallEnd(0));
        }
        match known {
            Known::No => ptrace::resume(pid, Resume::On(0)),
            Known::Counted(_) if registers.call() == CLOSE && !self.closes_count => {
                ptrace::resume(pid, Resume::On(0)) // of a connection
            }
            Known::Silent(Silent::Connects) => {
                if self.at_connect(pid, &registers)? {
                    return Ok(());
                }
                ptrace::resume(pid, Resume::On(0))
            }
            Known::Silent(Silent::Ring) => self.at_uncounted(pid, Gap::IoUring),
            Known::Silent(silent) => {
                self.silent(pid, silent, &registers);
                ptrace::resume(pid, Resume::On(0))
            }
            Known::Counted(call) => {
                if self.map_pages(pid, &registers)? {
                    return Ok(());
                }
                let path = match (path_at, found.path) {
                    (Some(_), false) => PathId::Unread,
                    _ => self.locate(pid, names, &registers, found.path),
                };
                self.begin(pid, call, path, &mut registers)
            }
        }
    }

    fn begin(&mut self, pid: i32, call: u8, path: PathId, registers: &mut Registers) -> Result<()> {
        let effect = CALLS[usize::from(call)].effect;
        let opened = match effect {
            Effect::Opens(Some(flags)) => Facts::of_open(Some(registers.argument(flags) as i32)),
            Effect::Opens(None) if CALLS[usize::from(call)].name == "creat" => Facts::OPENED,
            Effect::Opens(None) => Facts::of_open(None),
            _ => Facts::default(),
        };
        let operation = Operation {
            call,
            opened,
            second: (time::monotonic_us().saturating_sub(self.begun_us) / 1_000_000) as u32,
            path,
        };
        if let Some(task) = self.tasks.get(&pid) {
            match effect {
                Effect::Opens(_) => task.files.borrow_mut().opening += 1,
                Effect::Changes => {
                    let mut place = task.place.borrow_mut();
                    place.changing += 1;
                    place.directory = None;
                }
                Effect::Renames => self.epoch += 1,
                _ => {}
            }
        }
        // a call that changes the meaning of later paths is handled when it ends
        let soon = matches!(effect, Effect::Executes | Effect::Changes | Effect::Renames);
        if !soon && self.divert(pid, operation, registers)? {
            return ptrace::resume(pid, Resume::On(0));
        }
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.pending = Pending::CallEnd(operation);
        }
        ptrace::resume(pid, Resume::ToCallEnd(0))
    }

    /// A thread has done a call.
    pub(crate) fn at_call_end(&mut self, pid: i32) -> Result<()> {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return ptrace::resume(pid, Resume::On(0));
        };
        match std::mem::take(&mut task.pending) {
            Pending::CallEnd(operation) => {
                if let Some(registers) = ptrace::registers(pid)? {
                    self.complete(pid, operation, registers.result());
                    self.ask_mode(pid, operation, &registers);
                }
            }
            Pending::Uncounted(gap) => {
                if let Some(registers) = ptrace::registers(pid)? {
                    self.uncounted(gap, registers.result());
                }
            }
            Pending::Mapping { before, slots } => self.mapped(pid, *before, slots)?,
            Pending::Watching { before, step } => self.watching(pid, *before, step)?,
            Pending::Receiving(descriptor) => {
                if let Some(registers) = ptrace::registers(pid)? {
                    self.received(pid, descriptor, registers.result());
                }
            }
            other => task.pending = other,
        }
        ptrace::resume(pid, Resume::On(0))
    }

    /// Reads what a stat gave of a path of which nothing is known yet.
    fn ask_mode(&mut self, pid: i32, operation: Operation, registers: &Registers) {
        let Effect::Stats(buffer) = CALLS[usize::from(operation.call)].effect else {
            return;
        };
        if registers.result() != 0 || !self.counts.wants_mode(operation.path) {
            return;
        }
        let bytes = if buffer == STATX_BUFFER { 2 } else { 4 };
        let at = registers.argument(buffer) + mode_at(buffer) as u64;
        let mut mode = [0; 4]; // little endian: the upper half of a short one stays 0
        if ptrace::read_memory(pid, &[(at, bytes)], &mut mode) == bytes {
            self.counts.tell_mode(operation.path, u32::from_le_bytes(mode));
        }
    }

    /// An operation has this result.
    pub(crate) fn complete(&mut self, pid: i32, operation: Operation, result: i64) {
        self.counts.add(operation, result);
        let Some(task) = self.tasks.get(&pid) else {
            return;
        };
        self.unmark(task, operation);
        match CALLS[usize::from(operation.call)].effect {
            Effect::Opens(_) if result >= 0 => {
                // not from the connections: this result may arrive long after the descriptor was closed and became one
                task.files.borrow_mut().paths.remove(&(result as i32));
            }
            Effect::Renames => self.epoch += 1,
            _ => {}
        }
    }

    /// A thread enters a call that is not counted. The end of the call shows whether it succeeds.
    fn at_uncounted(&mut self, pid: i32, gap: Gap) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.pending = Pending::Uncounted(gap);
        }
        ptrace::resume(pid, Resume::ToCallEnd(0))
    }

    /// A call that is not counted has ended with this result. Programs may only probe io_uring, and a kernel may lack the
    /// calls of other architectures: such failures leave no gap.
    pub(crate) fn uncounted(&mut self, gap: Gap, result: i64) {
        let what = match gap {
            Gap::IoUring if result >= 0 => {
                "operations through io_uring are not counted, and the program uses it"
            }
            Gap::Architecture if result != -i64::from(libc::ENOSYS) => {
                "calls by another architecture's numbers (`int $0x80`) are not counted, and the program makes them"
            }
            _ => return,
        };
        self.counts.gaps.insert(gap);
        self.notes.say(what, "");
    }

    fn silent(&mut self, pid: i32, silent: Silent, registers: &Registers) {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return;
        };
        match silent {
            Silent::Duplicates => task.files.borrow_mut().paths.clear(),
            Silent::Replaces => {
                let mut files = task.files.borrow_mut();
                files.paths.remove(&(registers.argument(1) as i32));
                files.sockets.remove(&(registers.argument(1) as i32));
            }
            Silent::Unshares => {
                let flags = registers.argument(0);
                if flags & CLONE_FS != 0 {
                    task.place = Rc::default();
                }
                if flags & CLONE_FILES != 0 {
                    task.files = Rc::default();
                }
            }
            Silent::Connects | Silent::Ring => {} // see `at_call`
            Silent::ClosesRange => {
                let [first, last] = [0, 1].map(|index| registers.argument(index) as u32);
                if registers.argument(2) & u64::from(libc::CLOSE_RANGE_CLOEXEC) == 0 {
                    let mut files = task.files.borrow_mut();
                    files
                        .sockets
                        .retain(|&descriptor, _| !(first..=last).contains(&(descriptor as u32)));
                }
            }
            Silent::Enters => self.epoch += 1,
            Silent::Cpus => self.beside.before_question(),
        }
    }

    /// The path that a call names.
    fn locate(&mut self, pid: i32, names: Names, registers: &Registers, read: bool) -> PathId {
        let here = |at: usize| registers.argument(at) as i32;
        let directory = match names {
            Names::Nothing => return PathId::Unnamed,
            Names::Path(_) => libc::AT_FDCWD,
            Names::At(directory, _) => here(directory),
            Names::Descriptor(descriptor) => here(descriptor),
        };
        let path = if read { self.reader.path() } else { b"" };
        if path.starts_with(b"/proc/") && path.ends_with(b"/status") {
            self.beside.before_question(); // it lists the CPUs
        }
        if path.first() == Some(&b'/') {
            return self.counts.path_id(path);
        }
        if path.is_empty() && directory == libc::AT_FDCWD {
            return PathId::Unnamed;
        }
        let Some(task) = self.tasks.get(&pid) else {
            return PathId::Unread;
        };
        let base = if directory == libc::AT_FDCWD {
            current_directory(pid, task, self.epoch)
        } else {
            descriptor(pid, task, directory, self.epoch)
        };
        match base {
            None => PathId::Unnamed,
            Some(base) if path.is_empty() => self.counts.path_id(&base),
            Some(base) => {
                let mut joined = std::mem::take(&mut self.reader.joined);
                join(&base, self.reader.path(), &mut joined);
                let id = self.counts.path_id(&joined);
                self.reader.joined = joined;
                id
            }
        }
    }
}

fn current_directory(pid: i32, task: &Task, epoch: u64) -> Option<Rc<[u8]>> {
    let mut place = task.place.borrow_mut();
    let CurrentDirectory {
        directory,
        changing,
        epoch: of,
    } = &mut *place;
    if let Some(known) = directory.as_ref().filter(|_| *of == epoch) {
        return Some(Rc::clone(known));
    }
    let found = read_link(&format!("/proc/{pid}/cwd"))?;
    if *changing == 0 {
        *directory = Some(Rc::clone(&found));
        *of = epoch;
    }
    Some(found)
}

/// The path of an open directory; None where the descriptor does not refer to a file.
fn descriptor(pid: i32, task: &Task, number: i32, epoch: u64) -> Option<Rc<[u8]>> {
    let mut files = task.files.borrow_mut();
    let Files {
        paths,
        opening,
        epoch: of,
        sockets: _,
    } = &mut *files;
    if *of != epoch {
        paths.clear();
        *of = epoch;
    }
    if *opening == 0 {
        if let Some(known) = paths.get(&number) {
            return Some(Rc::clone(known));
        }
    }
    let found = read_link(&format!("/proc/{pid}/fd/{number}"))?;
    if *opening == 0 {
        if paths.len() >= DESCRIPTORS_MAX {
            paths.clear();
        }
        paths.insert(number, Rc::clone(&found));
    }
    Some(found)
}

fn read_link(path: &str) -> Option<Rc<[u8]>> {
    let found = std::fs::read_link(path).ok()?.into_os_string().into_vec();
    (found.first() == Some(&b'/')).then(|| found.into())
}
