//! A seccomp filter for this process and all that it will start.

use crate::error::{check, Result};

/// One instruction of classic BPF (linux/filter.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    /// how many instructions to skip where the comparison holds
    pub yes: u8,
    pub no: u8,
    pub k: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// Filters every system call of this thread from now on, and of its children and of programs that they execute. A user
/// without CAP_SYS_ADMIN gives up new privileges for it: set-user-id bits of programs have no effect any more.
pub fn install(instructions: &[Instruction]) -> Result<()> {
    let program = Program {
        length: u16::try_from(instructions.len()).unwrap_or(u16::MAX),
        instructions: instructions.as_ptr(),
    };
    let set = || {
        // SAFETY: `program` is laid out as struct sock_fprog, its pointer is valid for its length, and the kernel copies
        // it; the kernel checks the program itself.
        let result = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
        };
        check(result, "install", "seccomp filter")
    };
    match set() {
        Err(error) if error.os_error() == libc::EACCES => {
            crate::security::forbid_new_privileges()?;
            set()?;
        }
        result => drop(result?),
    }
    Ok(())
}
