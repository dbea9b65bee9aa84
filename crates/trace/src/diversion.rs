//! The result of a call without a second stop.
//!
//! ptrace reports a result by stopping the thread once more when the call ends, which costs as much as the first stop.
//! On x86_64 the call can instead return to a few instructions that store rax to memory and jump to where the program
//! continues: a system call clobbers rcx and r11 anyway (System V ABI, AMD64 supplement, A.2.1), so these carry the
//! store address and the jump target. The tracer reads the value at the thread's next stop, with the next path. It
//! first moves a thread that is interrupted in between (by a signal or its end) to where it would have been.
//!
//! This takes two private pages in the program, which the program itself maps in place of a call that is then repeated:
//! one for results, one for the instructions, never writable and executable at once. Where the mapping is refused, and
//! for threads beyond those that fit, each call has its second stop.

use tidemill_sys::ptrace::{self, Registers, Resume};
use tidemill_sys::Result;

use crate::calls::{mode_at, Effect, CALLS, STATX_BUFFER};
use crate::counts::{Gap, Operation};
use crate::task::{Diversion, Pending};
use crate::tracer::Tracer;

/// Each way begins with `syscall` (two bytes, for a call that the kernel does again); a call returns to behind it.
const AFTER: u64 = 2;

/// `mov [rcx], rax`, `jmp r11`.
const PLAIN: [u8; 8] = [0x0f, 0x05, 0x48, 0x89, 0x01, 0x41, 0xff, 0xe3];

/// After a stat that succeeded also the mode of the file, which the kernel has just written to the caller's buffer.
/// No flag is touched: `mov [rcx], rax`, `xchg rax, rcx`, `jrcxz` over the next two, `xchg rax, rcx`, `jmp r11`; then
/// `mov ecx, MODE`, `mov [rax+8], ecx`, `mov eax, 0`, `jmp r11`.
const fn with_mode(mode: [u8; 5]) -> [u8; 30] {
    let [a, b, c, d, e] = mode;
    [
        0x0f, 0x05, 0x48, 0x89, 0x01, 0x48, 0x91, 0xe3, 0x05, 0x48, 0x91, 0x41, 0xff, 0xe3, // failed
        a, b, c, d, e, 0x89, 0x48, 0x08, 0xb8, 0, 0, 0, 0, 0x41, 0xff, 0xe3,
    ]
}

/// `mov ecx, [rsi+24]` (and two bytes that do nothing), for stat and lstat.
const STAT: [u8; 30] = with_mode([0x8b, 0x4e, mode_at(1) as u8, 0x66, 0x90]);
/// `mov ecx, [rdx+24]`, for newfstatat.
const STATAT: [u8; 30] = with_mode([0x8b, 0x4a, mode_at(2) as u8, 0x66, 0x90]);
/// `movzx ecx, word [r8+28]`, for statx.
const STATX: [u8; 30] = with_mode([0x41, 0x0f, 0xb7, 0x48, mode_at(STATX_BUFFER) as u8]);

/// Where the ways begin.
const WAY_BYTES: u64 = 32;
const CODE_BYTES: usize = 4 * WAY_BYTES as usize;

/// All ways, one after the other.
const CODE: [u8; CODE_BYTES] = {
    let mut code = [0; CODE_BYTES];
    let mut at = 0;
    while at < 30 {
        if at < PLAIN.len() {
            code[at] = PLAIN[at];
        }
        code[WAY_BYTES as usize + at] = STAT[at];
        code[2 * WAY_BYTES as usize + at] = STATAT[at];
        code[3 * WAY_BYTES as usize + at] = STATX[at];
        at += 1;
    }
    code
};

/// The way for a call, as an offset into the code.
const fn way(effect: Effect) -> u64 {
    match effect {
        Effect::Stats(1) => WAY_BYTES,
        Effect::Stats(2) => 2 * WAY_BYTES,
        Effect::Stats(STATX_BUFFER) => 3 * WAY_BYTES,
        _ => 0,
    }
}

/// What a thread has left in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub result: i64,
    /// of a stat that succeeded
    mode: u32,
}

pub const SLOT_BYTES: usize = 16;

impl Slot {
    /// From the first bytes of `bytes`, of which there are at least SLOT_BYTES.
    pub fn read(bytes: &[u8]) -> Slot {
        let (mut result, mut mode) = ([0; 8], [0; 4]);
        result.copy_from_slice(&bytes[..8]);
        mode.copy_from_slice(&bytes[8..12]);
        Slot {
            result: i64::from_le_bytes(result),
            mode: u32::from_le_bytes(mode),
        }
    }
}

const PAGE_BYTES: u64 = 4096;
/// mmap's number on x86_64
const MMAP: i64 = 9;
/// Calls of a program after which the pages have paid for themselves: mapping them costs four stops.
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
                Some(slots + SLOT_BYTES as u64 * u64::from(slot))
            }
            _ => None,
        }
    }

    /// Counts the diverted call before this stop at the next one.
    pub(crate) fn settle(&mut self, pid: i32, slot: Option<Slot>, registers: &mut Registers) -> Result<()> {
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
        if returned(registers.next_instruction(), code) {
            // the kernel does the interrupted call again, from the instruction before
            registers.undivert(back, registers.result());
            ptrace::set_registers(pid, registers)?;
            self.complete(pid, operation, AGAIN);
        } else if let Some(value) = slot {
            self.complete(pid, operation, value.result);
            self.tell_mode(operation, value);
        } else {
            // the program has made its memory unreadable
            task.memory.borrow_mut().diversion = Diversion::Refused;
            let task = &self.tasks[&pid];
            self.unmark(task, operation);
            self.counts.gaps.insert(Gap::Unread);
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
        let returned = returned(next, code);
        task.pending = Pending::Nothing;
        let mut bytes = [0; SLOT_BYTES];
        let slot = (ptrace::read_memory(pid, &[(at, SLOT_BYTES)], &mut bytes) == SLOT_BYTES)
            .then(|| Slot::read(&bytes));
        let midway = !returned && (code..code + CODE_BYTES as u64).contains(&next);
        let result = if returned {
            Some(registers.result())
        } else {
            slot.map(|slot| slot.result)
        };
        if let (true, Some(result)) = (returned || midway, result) {
            registers.undivert(back, result);
            ptrace::set_registers(pid, &registers)?;
        }
        let interrupted = (AGAIN_LAST..=AGAIN).contains(&registers.result());
        let killed_within =
            returned && at_exit && (interrupted || registers.result() == -i64::from(libc::EINTR));
        match result {
            Some(result) if !killed_within => {
                self.complete(pid, operation, result);
                if let (false, false, Some(slot)) = (returned, midway, slot) {
                    self.tell_mode(operation, slot);
                }
            }
            _ => {
                let task = &self.tasks[&pid];
                self.unmark(task, operation);
                if result.is_none() {
                    self.counts.gaps.insert(Gap::Unread);
                }
            }
        }
        Ok(())
    }

    fn tell_mode(&mut self, operation: Operation, slot: Slot) {
        let stats = matches!(CALLS[usize::from(operation.call)].effect, Effect::Stats(_));
        if stats && slot.result == 0 {
            self.counts.tell_mode(operation.path, slot.mode);
        }
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
        let way = code + way(CALLS[usize::from(operation.call)].effect);
        let back = registers.divert(way + AFTER, slots + SLOT_BYTES as u64 * u64::from(slot));
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
            Some(slots) => write_code(pid, page).map_or(Diversion::Refused, |()| look(pid, slots, page)),
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

fn write_code(pid: i32, page: u64) -> Result<()> {
    for (address, word) in (page..).step_by(8).zip(CODE.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        ptrace::poke(pid, address, u64::from_le_bytes(bytes))?;
    }
    Ok(())
}

/// Whether a call has just returned to one of the ways.
fn returned(next: u64, code: u64) -> bool {
    let offset = next.wrapping_sub(code);
    code != 0 && offset < CODE_BYTES as u64 && offset % WAY_BYTES == AFTER
}

/// Ready if both pages can be read and the instructions are the expected ones.
fn look(pid: i32, slots: u64, code: u64) -> Diversion {
    let mut bytes = [0; CODE_BYTES + 8];
    let got = ptrace::read_memory(pid, &[(code, CODE_BYTES), (slots, 8)], &mut bytes);
    if got == bytes.len() && bytes[..CODE_BYTES] == CODE {
        Diversion::Ready { slots, code }
    } else {
        Diversion::Absent
    }
}
