//! What a process may do: prctl and capabilities.

use crate::error::{check, Result};

fn prctl(option: libc::c_int, arguments: [libc::c_ulong; 4], subject: &'static str) -> Result<()> {
    let [a, b, c, d] = arguments;
    // SAFETY: all options used here take numbers, no pointers.
    check(unsafe { libc::prctl(option, a, b, c, d) }, "prctl", subject)?;
    Ok(())
}

/// Not dumpable: processes of the same user can neither trace this one nor read its /proc entries.
pub fn set_dumpable(dumpable: bool) -> Result<()> {
    prctl(
        libc::PR_SET_DUMPABLE,
        [libc::c_ulong::from(dumpable), 0, 0, 0],
        "PR_SET_DUMPABLE",
    )
}

pub fn is_dumpable() -> Result<bool> {
    // SAFETY: takes numbers, no pointers.
    let answer = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    Ok(check(answer, "prctl", "PR_GET_DUMPABLE")? == 1)
}

/// This process gets the signal when its parent ends. The caller then checks that the parent still lives.
pub fn set_parent_death_signal(signal: i32) -> Result<()> {
    prctl(
        libc::PR_SET_PDEATHSIG,
        [signal as libc::c_ulong, 0, 0, 0],
        "PR_SET_PDEATHSIG",
    )
}

/// Orphaned descendants become children of this process.
pub fn become_subreaper() -> Result<()> {
    prctl(
        libc::PR_SET_CHILD_SUBREAPER,
        [1, 0, 0, 0],
        "PR_SET_CHILD_SUBREAPER",
    )
}

/// Programs started from here on gain nothing by set-user-id bits or file capabilities.
pub fn forbid_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0, 0, 0], "PR_SET_NO_NEW_PRIVS")
}

// linux/securebits.h: NOROOT, NO_SETUID_FIXUP left alone, NO_CAP_AMBIENT_RAISE, each with its lock bit
const NOROOT_LOCKED: libc::c_ulong = 0b11;
const NO_AMBIENT_LOCKED: libc::c_ulong = 0b1100_0000;

/// Programs started from here on have no capabilities, not even as user 0; this process keeps those it has.
/// Needs CAP_SETPCAP (in its user namespace).
pub fn start_programs_without_capabilities() -> Result<()> {
    for capability in 0..64 {
        // SAFETY: takes numbers, no pointers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability as libc::c_ulong, 0, 0, 0) } < 0 {
            break;
        }
        prctl(libc::PR_CAPBSET_DROP, [capability, 0, 0, 0], "PR_CAPBSET_DROP")?;
    }
    prctl(
        libc::PR_CAP_AMBIENT,
        [libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0],
        "PR_CAP_AMBIENT_CLEAR_ALL",
    )?;
    clear_inheritable()?;
    prctl(
        libc::PR_SET_SECUREBITS,
        [NOROOT_LOCKED | NO_AMBIENT_LOCKED, 0, 0, 0],
        "PR_SET_SECUREBITS",
    )
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3, capget(2)
const CAP_VERSION: u32 = 0x2008_0522;

fn clear_inheritable() -> Result<()> {
    let mut header = CapHeader {
        version: CAP_VERSION,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 uses two data structures; both are valid for reads and writes.
    let result = unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) };
    check(result, "get", "capabilities")?;
    for each in &mut data {
        each.inheritable = 0;
    }
    // SAFETY: as above.
    let result = unsafe { libc::syscall(libc::SYS_capset, &mut header, data.as_ptr()) };
    check(result, "set", "capabilities")?;
    Ok(())
}
