//! Traffic of network connections, watched from their connect on.
//!
//! No filter knows beforehand which descriptors will be connections, and one that stops at every read would make a program
//! that reads files several times slower. So a thread that connects is made to install one more filter, for that
//! descriptor, before its own call: by seccomp(2), with the filter in a page that it was made to map. A filter stays
//! for good, also in the programs that this one starts: there, a call on a file with the same descriptor number is
//! stopped in vain.

use tidemill_sys::ptrace::{self, Registers, Resume};
use tidemill_sys::{time, Result};

use crate::sockets::{filter, traffic, Peer, Traffic};
use crate::task::{Memory, Pending};
use crate::tracer::Tracer;

/// Filters of one process: each costs all of its calls a few nanoseconds.
const FILTERS_MAX: usize = 64;
/// A `struct sockaddr` that matters is never longer (ipv6(7)).
const ADDRESS_BYTES: usize = 28;
const PAGE_BYTES: u64 = 4096;
/// Numbers on x86_64.
const MMAP: i64 = 9;
const SECCOMP: i64 = 317;
/// `struct sock_fprog`: a length, and the address of the instructions.
const HEAD_BYTES: u64 = 16;
const INSTRUCTION_BYTES: usize = 8;
/// Threads that connect at the same time each have a part of the page: a bit of `Memory::parts_used`.
const PART_BYTES: u64 = PAGE_BYTES / u16::BITS as u64;

/// The page of a process for its filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    #[default]
    Absent,
    At(u64),
    Refused,
}

/// What a thread does for us in place of its connect.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Maps,
    Filters { descriptor: i32, part: u32 },
}

impl Step {
    /// It is over: another thread may have the part of the page.
    pub fn end(self, memory: &mut Memory) {
        if let Step::Filters { part, .. } = self {
            memory.parts_used &= !(1 << part);
        }
    }
}

impl Tracer {
    /// A thread is about to connect; true if it goes on to something else before.
    pub(crate) fn at_connect(&mut self, pid: i32, registers: &Registers) -> Result<bool> {
        if !self.watches {
            return Ok(false);
        }
        let length = (registers.argument(2) as usize).min(ADDRESS_BYTES);
        let mut address = [0; ADDRESS_BYTES];
        let got = ptrace::read_memory(pid, &[(registers.argument(1), length)], &mut address);
        let Some(peer) = Peer::parse(&address[..got]) else {
            return Ok(false);
        };
        let descriptor = registers.argument(0) as i32;
        let Some(task) = self.tasks.get(&pid) else {
            return Ok(false);
        };
        let watched = task.watched.borrow();
        if watched.contains(&descriptor) {
            drop(watched);
            let socket = self.counts.network.connect(peer);
            let files = self.tasks[&pid].files.clone();
            files.borrow_mut().sockets.insert(descriptor, socket);
            return Ok(false);
        }
        let is_full = watched.len() >= FILTERS_MAX;
        drop(watched);
        let (page, part) = {
            let memory = task.memory.borrow();
            (memory.page, memory.parts_used.trailing_ones())
        };
        match page {
            _ if is_full || part >= u16::BITS => self.miss(),
            Page::Refused => self.miss(),
            Page::Absent => {
                let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
                let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
                let arguments = [0, PAGE_BYTES, protection, flags, u64::MAX, 0];
                return self.instead(pid, registers, (MMAP, arguments), Step::Maps);
            }
            Page::At(page) => {
                let at = page + PART_BYTES * u64::from(part);
                if write_filter(pid, at, descriptor).is_ok() {
                    task.memory.borrow_mut().parts_used |= 1 << part;
                    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
                    let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
                    let arguments = [mode, flags, at, 0, 0, 0];
                    return self.instead(
                        pid,
                        registers,
                        (SECCOMP, arguments),
                        Step::Filters { descriptor, part },
                    );
                }
                self.refuse(pid);
                self.miss();
            }
        }
        Ok(false)
    }

    fn miss(&mut self) {
        self.counts.network.missed += 1;
    }

    fn refuse(&mut self, pid: i32) {
        if let Some(task) = self.tasks.get(&pid) {
            task.memory.borrow_mut().page = Page::Refused;
        }
    }

    fn instead(
        &mut self,
        pid: i32,
        registers: &Registers,
        (number, arguments): (i64, [u64; 6]),
        step: Step,
    ) -> Result<bool> {
        let mut other = *registers;
        other.replace_call(number, arguments);
        ptrace::set_registers(pid, &other)?;
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.pending = Pending::Watching {
                before: Box::new(*registers),
                step,
            };
        }
        ptrace::resume(pid, Resume::ToCallEnd(0))?;
        Ok(true)
    }

    /// The thread has done what it was made to do, or could not; now it connects, and stops at that once more.
    pub(crate) fn watching(&mut self, pid: i32, mut before: Registers, step: Step) -> Result<()> {
        let Some(now) = ptrace::registers(pid)? else {
            return Ok(());
        };
        if let Some(task) = self.tasks.get(&pid) {
            let result = now.result();
            step.end(&mut task.memory.borrow_mut());
            let mut memory = task.memory.borrow_mut();
            match step {
                Step::Maps if (-4095..0).contains(&result) => memory.page = Page::Refused,
                Step::Maps => memory.page = Page::At(result as u64),
                Step::Filters { descriptor, .. } if result == 0 => {
                    task.watched.borrow_mut().insert(descriptor);
                }
                // a thread has filters of its own: they cannot all be given the same
                Step::Filters { .. } => memory.page = Page::Refused,
            }
        }
        before.call_again();
        ptrace::set_registers(pid, &before)
    }

    /// A thread is about to do something with a descriptor that is watched; true if its end matters.
    pub(crate) fn at_traffic(&mut self, pid: i32, registers: &Registers) -> bool {
        let Some(kind) = traffic(registers.call()).filter(|_| self.watches) else {
            return false;
        };
        let descriptor = registers.argument(0) as i32;
        let Some(task) = self.tasks.get_mut(&pid) else {
            return false;
        };
        let mut files = task.files.borrow_mut();
        let Some(socket) = files.sockets.get_mut(&descriptor) else {
            return false;
        };
        match kind {
            Traffic::Receives(flags) => {
                let peeks = flags.is_some_and(|flags| registers.argument(flags) & libc::MSG_PEEK as u64 != 0);
                if !peeks {
                    drop(files);
                    task.pending = Pending::Receiving(descriptor);
                }
                !peeks
            }
            Traffic::Sends => {
                socket.sent_us = Some(time::monotonic_us());
                false
            }
            Traffic::Closes => {
                files.sockets.remove(&descriptor);
                false
            }
        }
    }

    /// A call on a connection has ended.
    pub(crate) fn received(&mut self, pid: i32, descriptor: i32, result: i64) {
        let Some(task) = self.tasks.get(&pid).filter(|_| result > 0) else {
            return;
        };
        if let Some(socket) = task.files.borrow_mut().sockets.get_mut(&descriptor) {
            self.counts
                .network
                .receive(socket, result as u64, time::monotonic_us());
        }
    }
}

/// A `struct sock_fprog` and its instructions.
fn write_filter(pid: i32, page: u64, descriptor: i32) -> Result<()> {
    let program = filter(descriptor);
    let mut words = vec![program.len() as u64, page + HEAD_BYTES];
    for it in &program {
        let mut bytes = [0; INSTRUCTION_BYTES];
        bytes[..2].copy_from_slice(&it.code.to_ne_bytes());
        bytes[2] = it.yes;
        bytes[3] = it.no;
        bytes[4..].copy_from_slice(&it.k.to_ne_bytes());
        words.push(u64::from_ne_bytes(bytes));
    }
    for (address, word) in (page..).step_by(8).zip(words) {
        ptrace::poke(pid, address, word)?;
    }
    Ok(())
}
