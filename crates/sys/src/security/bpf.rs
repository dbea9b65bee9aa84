//! Programs of classic BPF as a seccomp filter runs them (linux/filter.h, linux/seccomp.h). Pure.

/// One instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    /// how many instructions to skip where the comparison holds
    pub yes: u8,
    pub no: u8,
    pub k: u32,
}

// codes
pub const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub const MASK: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub const HAS_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
pub const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

// struct seccomp_data: number, architecture, instruction pointer, six arguments of 8 bytes, of which filters here read the
// low words (little endian)
pub const NUMBER_AT: u32 = 0;
pub const ARCHITECTURE_AT: u32 = 4;

pub const fn argument_at(index: usize) -> u32 {
    16 + 8 * index as u32
}

/// Reads a word of the call.
pub const fn load(at: u32) -> Instruction {
    jump(LOAD, at, 0, 0)
}

/// Keeps these bits of the word.
pub const fn mask(bits: u32) -> Instruction {
    jump(MASK, bits, 0, 0)
}

/// Skips `yes` instructions where the word is this one, else `no`.
pub const fn equal(k: u32, yes: usize, no: usize) -> Instruction {
    jump(EQUAL, k, yes, no)
}

pub const fn at_least(k: u32, yes: usize, no: usize) -> Instruction {
    jump(AT_LEAST, k, yes, no)
}

/// Whether the word has any of these bits.
pub const fn has_bits(k: u32, yes: usize, no: usize) -> Instruction {
    jump(HAS_BITS, k, yes, no)
}

/// Ends the program with SECCOMP_RET_*.
pub const fn answer(k: u32) -> Instruction {
    jump(ANSWER, k, 0, 0)
}

const fn jump(code: u16, k: u32, yes: usize, no: usize) -> Instruction {
    // these programs are short: their tests run every path
    let (yes, no) = (yes as u8, no as u8);
    Instruction { code, yes, no, k }
}
