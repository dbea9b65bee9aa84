//! The result of a call without a second stop.
//!
//! ptrace tells a result by stopping the thread once more when the call ends, which costs as much as the first stop. On
//! x86_64 the call can instead be made to return to three instructions that store rax to memory and jump to where the
//! program goes on: a system call loses rcx and r11 anyway (System V ABI, AMD64 supplement, A.2.1), so that these carry
//! the place to store to and the place to go to. The value is read at the thread's next stop, with the next path. A
//! thread that is interrupted in between (a signal, its end) is first put to where it would have been.
//!
//! It takes two private pages in the program, mapped by the program itself in place of a call that is then done anew: one
//! for results, one for the instructions, never writable and executable at once. Where that is refused, and for threads
//! beyond those that fit, each call has its second stop.

use tidemill_sys::ptrace::{self, Registers, Resume};
use tidemill_sys::Result;

use crate::counts::Operation;
use crate::task::{Diversion, Pending};
use crate::tracer::Tracer;

/// `syscall` (two bytes, for a call that the kernel does again), `mov [rcx], rax`, `jmp r11`.
const CODE: [u8; 8] = [0x0f, 0x05, 0x48, 0x89, 0x01, 0x41, 0xff, 0xe3];
/// where a call returns to
const AFTER: u64 = 2;
/// where the result has been stored
const STORED: u64 = 5;

const PAGE_BYTES: u64 = 4096;
const SLOT_BYTES: u64 = 8;
/// mmap's number on x86_64
const MMAP: i64 = 9;
/// After so many calls of a program the pages have paid for themselves: mapping them costs four stops.
const CALLS_MIN: u32 = 12;
/// ERESTARTSYS of the kernel: the call is done again
const AGAIN: i64 = -512;
const AGAIN_LAST: i64 = -516;

impl Tracer {
    /// Address of the result that a thread has left, if any.
    pub(crate) fn slot_of_result(&self, pid: i32) -> Option<u64> {
        let task = self.tasks.get(&pid)?;
        match (&task.pending, task.memory.borrow().diversion, task.slot) {
            (Pending::Diverted { .. }, Diversion::Ready { slots, .. }, Some(slot)) => {
                Some(slots + SLOT_BYTES * u64::from(slot))
            }
            _ => None,
        }
    }

    /// Counts the diverted call before this stop at the next one.
    pub(crate) fn settle(&mut self, pid: i32, slot: Option<i64>, registers: &mut Registers) -> Result<()> {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return Ok(());
        };
        let Pending::Diverted { operation, back } = task.pending else {
            return Ok(());
        };
        task.pending = Pending::Nothing;
        let diversion = task.memory.borrow().diversion;
        let code = match diversion {
            Diversion::Ready { code, .. } => code,
            _ => 0,
        };
        if registers.next_instruction() == code + AFTER {
            // the kernel does the interrupted call again, from the instruction before
            registers.undivert(back);
            ptrace::set_registers(pid, registers)?;
            self.complete(pid, operation, AGAIN);
        } else if let Some(value) = slot {
            self.complete(pid, operation, value);
        } else {
            // the program has made its memory unreadable
            task.memory.borrow_mut().diversion = Diversion::Refused;
            let task = &self.tasks[&pid];
            self.unmark(task, operation);
            self.counts.truncated = true;
        }
        Ok(())
    }

    /// Before a signal: a handler may run and make calls of its own.
    pub(crate) fn settle_before_signal(&mut self, pid: i32) -> Result<()> {
        self.settle_midway(pid, false)
    }

    /// Before the end: memory is still there.
    pub(crate) fn settle_before_exit(&mut self, pid: i32) -> Result<()> {
        self.settle_midway(pid, true)
    }

    fn settle_midway(&mut self, pid: i32, at_exit: bool) -> Result<()> {
        let Some(at) = self.slot_of_result(pid) else {
            return Ok(());
        };
        let Some(task) = self.tasks.get_mut(&pid) else {
            return Ok(());
        };
        let (Pending::Diverted { operation, back }, Diversion::Ready { code, .. }) =
            (&task.pending, task.memory.borrow().diversion)
        else {
            return Ok(());
        };
        let (operation, back) = (*operation, *back);
        let Some(mut registers) = ptrace::registers(pid)? else {
            return Ok(());
        };
        let next = registers.next_instruction();
        let returned = next == code + AFTER;
        task.pending = Pending::Nothing;
        if returned || next == code + STORED {
            registers.undivert(back);
            ptrace::set_registers(pid, &registers)?;
        }
        let interrupted = (AGAIN_LAST..=AGAIN).contains(&registers.result());
        if returned && at_exit && (interrupted || registers.result() == -i64::from(libc::EINTR)) {
            // killed in the midst of the call
            let task = &self.tasks[&pid];
            self.unmark(task, operation);
        } else if returned {
            self.complete(pid, operation, registers.result());
        } else {
            let mut value = [0; SLOT_BYTES as usize];
            if ptrace::read_memory(pid, &[(at, value.len())], &mut value) == value.len() {
                self.complete(pid, operation, i64::from_ne_bytes(value));
            } else {
                let task = &self.tasks[&pid];
                self.unmark(task, operation);
                self.counts.truncated = true;
            }
        }
        Ok(())
    }

    /// Lets a call return by way of the three instructions. False where that is not possible.
    pub(crate) fn divert(
        &mut self,
        pid: i32,
        operation: Operation,
        registers: &mut Registers,
    ) -> Result<bool> {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return Ok(false);
        };
        let Diversion::Ready { slots, code } = task.memory.borrow().diversion else {
            return Ok(false);
        };
        if task.slot.is_none() {
            task.slot = task.memory.borrow_mut().take_slot();
        }
        let Some(slot) = task.slot else {
            return Ok(false);
        };
        let back = registers.divert(code + AFTER, slots + SLOT_BYTES * u64::from(slot));
        ptrace::set_registers(pid, registers)?;
        task.pending = Pending::Diverted { operation, back };
        Ok(true)
    }

    /// Has the thread map one of the two pages where that is due; true if it goes on to that instead of its call.
    pub(crate) fn map_pages(&mut self, pid: i32, registers: &Registers) -> Result<bool> {
        if !self.divert {
            return Ok(false);
        }
        let Some(task) = self.tasks.get_mut(&pid) else {
            return Ok(false);
        };
        let mut memory = task.memory.borrow_mut();
        memory.calls = memory.calls.saturating_add(1);
        if let Diversion::Inherited { slots, code } = memory.diversion {
            memory.diversion = look(pid, slots, code);
        }
        let protection = match memory.diversion {
            Diversion::Absent if memory.calls >= CALLS_MIN => libc::PROT_READ | libc::PROT_WRITE,
            Diversion::Half { .. } => libc::PROT_READ | libc::PROT_EXEC,
            _ => return Ok(false),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut instead = *registers;
        instead.replace_call(
            MMAP,
            [0, PAGE_BYTES, protection as u64, flags as u64, u64::MAX, 0],
        );
        ptrace::set_registers(pid, &instead)?;
        let half = match memory.diversion {
            Diversion::Half { slots } => Some(slots),
            _ => None,
        };
        memory.diversion = Diversion::Busy;
        drop(memory);
        task.pending = Pending::Mapping {
            before: Box::new(*registers),
            slots: half,
        };
        ptrace::resume(pid, Resume::ToCallEnd(0))?;
        Ok(true)
    }

    /// The thread has mapped a page, or could not; now it does its own call.
    pub(crate) fn mapped(&mut self, pid: i32, mut before: Registers, slots: Option<u64>) -> Result<()> {
        let Some(now) = ptrace::registers(pid)? else {
            return Ok(());
        };
        let failed = (-4095..0).contains(&now.result());
        let page = now.result() as u64;
        let diversion = match slots {
            _ if failed => Diversion::Refused,
            None => Diversion::Half { slots: page },
            Some(slots) => match ptrace::poke(pid, page, u64::from_ne_bytes(CODE)) {
                Ok(()) => look(pid, slots, page),
                Err(_) => Diversion::Refused,
            },
        };
        if let Some(task) = self.tasks.get(&pid) {
            task.memory.borrow_mut().diversion = match diversion {
                Diversion::Absent => Diversion::Refused,
                other => other,
            };
        }
        before.call_again();
        ptrace::set_registers(pid, &before)
    }
}

/// Ready if both pages can be read and the instructions are ours.
fn look(pid: i32, slots: u64, code: u64) -> Diversion {
    let mut bytes = [0; 16];
    let got = ptrace::read_memory(pid, &[(code, 8), (slots, 8)], &mut bytes);
    if got == bytes.len() && bytes[..8] == CODE {
        Diversion::Ready { slots, code }
    } else {
        Diversion::Absent
    }
}
