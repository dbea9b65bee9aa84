//! What a process may do: prctl, capabilities, keyrings, and a seccomp filter for it and all that it will start.

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};

use crate::error::{check, Named, Result};

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

/// AUDIT_ARCH_* of <linux/audit.h>, with the numbers there of add_key, request_key and keyctl.
const KEY_CALLS: [(u32, [u32; 3]); 4] = [
    (0xc000_003e, [248, 249, 250]), // x86_64
    (0x4000_0003, [286, 287, 288]), // i386, which x86_64 runs too
    (0xc000_00b7, [217, 218, 219]), // aarch64
    (0x4000_0028, [309, 310, 311]), // arm, which aarch64 runs too
];
/// Of system calls of x32 programs, which count as x86_64.
const X32_BIT: u32 = 0x4000_0000;

/// From now on this process and its children find a kernel without keyrings (ENOSYS). Keys of the same user could else be
/// reached in spite of a session keyring of one's own: by number, and through the user's keyring, which the kernel lets
/// all processes of a user link to their own (security/keys/process_keys.c, user_keyring_perm). New privileges must have
/// been given up.
pub fn hide_keyrings() -> Result<()> {
    let filter = key_filter();
    // without this flag (Linux 4.17), kernels before 5.16 slow filtered programs down: they guard them against each other
    match set_filter(&filter, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) {
        Err(error) if error.os_error() == libc::EINVAL => set_filter(&filter, 0),
        result => result,
    }
}

/// Offsets in struct seccomp_data: number of the call, architecture.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

fn key_filter() -> Vec<Instruction> {
    let one = |code, yes, no, k| Instruction {
        code: code as u16,
        yes,
        no,
        k,
    };
    let load = |at| one(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |k, yes, no| one(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, k);
    let finish = |k| one(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let allow = libc::SECCOMP_RET_ALLOW;
    let missing = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut filter = vec![load(ARCHITECTURE_AT)];
    for (architecture, [add, request, control]) in KEY_CALLS {
        filter.extend([
            equal(architecture, 0, 7),
            load(NUMBER_AT),
            one(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !X32_BIT),
            equal(add, 2, 0),
            equal(request, 1, 0),
            equal(control, 0, 1),
            finish(missing),
            finish(allow),
        ]);
    }
    filter.push(finish(allow));
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter says of a system call: runs the few instructions that these filters are made of.
    fn run(filter: &[Instruction], architecture: u32, number: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, yes, no, k } = filter[at];
            at += 1;
            match u32::from(code) {
                0x20 => value = if k == NUMBER_AT { number } else { architecture },
                0x54 => value &= k,
                0x15 => at += usize::from(if value == k { yes } else { no }),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn calls_on_keys_are_missing_on_each_architecture_and_all_others_are_allowed() {
        let filter = key_filter();
        let missing = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        for (architecture, numbers) in KEY_CALLS {
            for number in 0..500 {
                let expected = if numbers.contains(&number) {
                    missing
                } else {
                    libc::SECCOMP_RET_ALLOW
                };
                assert_eq!(
                    run(&filter, architecture, number),
                    expected,
                    "{architecture:#x} {number}"
                );
            }
        }
        assert_eq!(run(&filter, KEY_CALLS[0].0, 250 | X32_BIT), missing);
        assert_eq!(run(&filter, 0xc000_00f3, 219), libc::SECCOMP_RET_ALLOW);
    }
}
