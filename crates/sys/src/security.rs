//! What a process may do: prctl, capabilities, keyrings, and seccomp filters for it and all that it will start.

pub mod bpf;
pub mod walls;

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};

use crate::error::{check, Named, Result};
use bpf::Instruction;

/// Not dumpable: processes of the same user can neither trace this one nor read its /proc entries.
pub fn set_dumpable(dumpable: bool) -> Result<()> {
    let wanted = if dumpable {
        DumpableBehavior::Dumpable
    } else {
        DumpableBehavior::NotDumpable
    };
    rustix::process::set_dumpable_behavior(wanted).named("prctl", "PR_SET_DUMPABLE")
}

pub fn is_dumpable() -> Result<bool> {
    let found = rustix::process::dumpable_behavior().named("prctl", "PR_GET_DUMPABLE")?;
    Ok(found == DumpableBehavior::Dumpable)
}

/// This process gets the signal when its parent ends. The caller then checks that the parent still lives.
pub fn set_parent_death_signal(signal: i32) -> Result<()> {
    let signal = rustix::process::Signal::from_named_raw(signal);
    rustix::process::set_parent_process_death_signal(signal).named("prctl", "PR_SET_PDEATHSIG")
}

/// Orphaned descendants become children of this process.
pub fn become_subreaper() -> Result<()> {
    let us = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(us)).named("prctl", "PR_SET_CHILD_SUBREAPER")
}

/// Programs started from here on gain nothing by set-user-id bits or file capabilities.
pub fn forbid_new_privileges() -> Result<()> {
    rustix::thread::set_no_new_privs(true).named("prctl", "PR_SET_NO_NEW_PRIVS")
}

/// Programs started from here on have no capabilities, not even as user 0; this process keeps those it has.
/// Needs CAP_SETPCAP (in its user namespace).
pub fn start_programs_without_capabilities() -> Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if rustix::thread::capability_is_in_bounding_set(capability).is_err() {
            break; // the kernel has no more
        }
        rustix::thread::remove_capability_from_bounding_set(capability).named("prctl", "PR_CAPBSET_DROP")?;
    }
    rustix::thread::clear_ambient_capability_set().named("prctl", "PR_CAP_AMBIENT_CLEAR_ALL")?;
    let mut sets = rustix::thread::capabilities(None).named("get", "capabilities")?;
    sets.inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets).named("set", "capabilities")?;
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits).named("prctl", "PR_SET_SECUREBITS")
}

#[repr(C)]
struct FilterProgram {
    length: u16,
    instructions: *const Instruction,
}

/// Filters every system call of this thread from now on, and of its children and of programs that they execute. A user
/// without CAP_SYS_ADMIN gives up new privileges for it: set-user-id bits of programs have no effect any more.
pub fn install_filter(instructions: &[Instruction]) -> Result<()> {
    match set_filter(instructions, 0) {
        Err(error) if error.os_error() == libc::EACCES => {
            forbid_new_privileges()?;
            set_filter(instructions, 0)
        }
        result => result,
    }
}

/// seccomp(2) with these flags.
fn set_filter(instructions: &[Instruction], flags: libc::c_ulong) -> Result<()> {
    let program = FilterProgram {
        length: u16::try_from(instructions.len()).unwrap_or(u16::MAX),
        instructions: instructions.as_ptr(),
    };
    // SAFETY: `program` is laid out as struct sock_fprog, its pointer is valid for its length, and the kernel copies it;
    // the kernel checks the program itself.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    check(result, "install", "seccomp filter").map(drop)
}

/// keyctl(2), KEYCTL_JOIN_SESSION_KEYRING.
const JOIN_SESSION_KEYRING: libc::c_int = 1;

/// A new, empty session keyring for this process and its children, in place of the one it was started with.
pub fn leave_session_keyring() -> Result<()> {
    // SAFETY: plain call; a null name asks for an anonymous keyring.
    let result = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    check(result, "leave", "session keyring").map(drop)
}
