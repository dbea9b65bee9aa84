//! Landlock: what a process and all that it starts may still do, by rules that cannot be withdrawn (landlock(7)).
//!
//! Scopes bind a slot's init once, and so what it starts. Rules for files cannot, since the init mounts: they are made once
//! and applied to each payload between fork and exec, by one system call. Numbers are those of linux/landlock.h of Linux
//! 6.12; what the running kernel does not know is left out.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{check, Result};
use crate::fd::high;

const VERSION: u32 = 1;
const BENEATH: i32 = 1;

const WRITE_FILE: u64 = 1 << 1;
/// Remove directories and files, make all kinds of files: bits 4 to 12.
const CHANGE_DIRECTORIES: u64 = 0b1_1111_1111 << 4;
/// Rename and link from one directory to another: ABI 2. Kernels with ABI 1 refuse that whatever a rule says.
const REFER: u64 = 1 << 13;
/// ABI 3.
const TRUNCATE: u64 = 1 << 14;

const SCOPE_ABSTRACT_SOCKETS: u64 = 1;
const SCOPE_SIGNALS: u64 = 1 << 1;
/// Since when a kernel has scopes.
pub const SCOPES_ABI: u32 = 6;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Handled {
    files: u64,
    net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// The version of the kernel's interface; 0 = it has no Landlock, or it is switched off.
pub fn abi() -> u32 {
    // SAFETY: without a structure and with this flag the call only answers a number.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Handled>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(answer).unwrap_or(0)
}

/// Abstract Unix sockets and processes of others are out of reach from now on, for this process and all that it starts.
/// It must have given up new privileges, or rule its user namespace. False: this kernel has no scopes.
pub fn scope() -> Result<bool> {
    if abi() < SCOPES_ABI {
        return Ok(false);
    }
    let made = make(&Handled {
        files: 0,
        net: 0,
        scoped: SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS,
    })?;
    apply(made.as_fd())?;
    Ok(true)
}

/// Rules for programs to come: files change below these directories and at these files only, and nothing can be mounted.
/// None: this kernel has nothing of it.
pub fn bound_files(writable: &[BorrowedFd<'_>]) -> Result<Option<OwnedFd>> {
    let files = match abi() {
        0 | 1 => return Ok(None), // with ABI 1 no file could be moved from one directory to another
        2 => WRITE_FILE | CHANGE_DIRECTORIES | REFER,
        _ => WRITE_FILE | CHANGE_DIRECTORIES | REFER | TRUNCATE,
    };
    let made = make(&Handled {
        files,
        net: 0,
        scoped: 0,
    })?;
    for place in writable {
        allow(&made, *place, files)?;
    }
    Ok(Some(made))
}

fn make(handled: &Handled) -> Result<OwnedFd> {
    let known = if handled.scoped == 0 {
        std::mem::size_of::<u64>() // all that the first kernels know
    } else {
        std::mem::size_of::<Handled>()
    };
    // SAFETY: `handled` is laid out as struct landlock_ruleset_attr and lives during the call, which copies `known` bytes
    // of it.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const *handled, known, 0) };
    let made = check(made, "make", "Landlock rules")?;
    // SAFETY: the kernel has just given us this descriptor (close-on-exec), and nothing else owns it.
    high(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

fn apply(rules: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: one system call on a descriptor that lives.
    let applied = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    check(applied, "apply", "Landlock rules").map(drop)
}

fn allow(rules: &OwnedFd, place: BorrowedFd<'_>, files: u64) -> Result<()> {
    let add = |allowed: u64| {
        let rule = Beneath {
            allowed,
            parent: place.as_raw_fd(),
        };
        // SAFETY: `rule` is laid out as struct landlock_path_beneath_attr (packed) and lives during the call.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                rules.as_raw_fd(),
                BENEATH,
                &raw const rule,
                0,
            )
        };
        check(added, "add", "Landlock rule")
    };
    match add(files) {
        // a file takes no rights of directories
        Err(error) if error.os_error() == libc::EINVAL => add(files & (WRITE_FILE | TRUNCATE)).map(drop),
        added => added.map(drop),
    }
}

/// Why there are no scopes here, to be said where they are missed.
pub fn without_scopes() -> Option<String> {
    let abi = abi();
    (abi < SCOPES_ABI).then(|| {
        let has = if abi == 0 {
            "no Landlock".to_owned()
        } else {
            format!("Landlock {abi}, scopes came with {SCOPES_ABI}")
        };
        format!("abstract Unix sockets of this host are open to payloads: the kernel has {has}")
    })
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    /// What a thread does that keeps to the rules: they bind the thread that applies them.
    fn under<T: Send + 'static>(rules: Option<OwnedFd>, what: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            crate::security::forbid_new_privileges().unwrap();
            match rules {
                Some(rules) => apply(rules.as_fd()).unwrap(),
                None => assert!(scope().unwrap()),
            }
            what()
        });
        thread.join().unwrap()
    }

    #[test]
    fn files_change_only_where_the_rules_say() {
        if abi() < 3 {
            return; // nothing to be tried on this kernel
        }
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().to_owned();
        let path = move |name: &str| whole.join(name);
        for name in ["open", "open/a", "open/b", "shut"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("shut/old"), "old").unwrap();
        let open = crate::file::open_dir(&path("open")).unwrap();
        let rules = bound_files(&[open.as_fd()]).unwrap();
        let found = under(rules, move || {
            let refused = |result: std::io::Result<()>| {
                result.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
            };
            let moved = std::fs::write(path("open/a/x"), "x")
                .and_then(|()| std::fs::rename(path("open/a/x"), path("open/b/x")));
            [
                moved.is_ok(),
                refused(std::fs::write(path("shut/new"), "x")),
                refused(std::fs::write(path("shut/old"), "x")),
                refused(std::fs::remove_file(path("shut/old"))),
                std::fs::rename(path("shut"), path("open/shut")).is_err(),
                std::fs::read(path("shut/old")).is_ok(),
            ]
        });
        assert_eq!(found, [true; 6]);
    }

    #[test]
    fn abstract_sockets_of_others_are_out_of_reach() {
        if without_scopes().is_some() {
            assert!(!scope().unwrap());
            return;
        }
        let name = format!("tidemill-landlock-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        assert!(UnixStream::connect_addr(&address).is_ok());
        assert!(under(None, move || UnixStream::connect_addr(&address).is_err()));
    }
}
