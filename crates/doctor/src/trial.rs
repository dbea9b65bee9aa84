//! What can only be known by trying it: each in a child process, within a time limit.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::overlay::{self, FuseUser};
use tidemill_sys::process::{self, Fork, Namespaces};
use tidemill_sys::trial::{self, Tracing};
use tidemill_sys::{child, file, machine, mount, security, signal, time, Result, SysError};

use crate::facts::{
    Tried, FUSE, FUSE_DEVICE, MOUNT, NESTED, OVERLAY, PROC, PTRACE, SECCOMP, TCP, TMPFS, TRACE, USER,
};

/// A child that has not answered by then is given up.
const ANSWER_US: u64 = 5_000_000;
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// A directory that every node has, covered in the child's own mount namespace only.
const POINT: &str = "/tmp";

/// One answer: its name, and what came back.
type Answer = (&'static str, Result<()>);
type Tell<'a> = &'a mut dyn FnMut(Answer);

pub fn all() -> BTreeMap<String, Tried> {
    let mut found = BTreeMap::new();
    for (what, names) in [
        (tracing as fn(Tell<'_>), &[PTRACE, SECCOMP, TRACE][..]),
        (
            namespaces,
            &[USER, MOUNT, TMPFS, OVERLAY, FUSE_DEVICE, FUSE, PROC, NESTED],
        ),
        (network, &[TCP]),
    ] {
        let told = in_child(what);
        for &name in names {
            let told_of = told.get(name).cloned();
            found.insert(name.to_owned(), told_of.unwrap_or_else(|| missing(name, &told)));
        }
    }
    found
}

/// Why something was not tried: what it needs failed, or the child did not answer.
fn missing(name: &str, told: &BTreeMap<String, Tried>) -> Tried {
    // only FUSE needs the device
    let needed = |other: &str| other != FUSE_DEVICE || name == FUSE;
    let why = match told.iter().find(|(other, tried)| !tried.ok && needed(other)) {
        Some((other, _)) => format!("needs {other}"),
        None => format!("no answer within {} s", ANSWER_US / 1_000_000),
    };
    Tried { ok: false, why }
}

/// Runs `what` in a child and collects its answers until it ends or its time is over.
fn in_child(what: fn(Tell<'_>)) -> BTreeMap<String, Tried> {
    let failed = |error: &SysError| BTreeMap::from([("fork".to_owned(), tried(&Err(copy(error))))]);
    let (ours, theirs) = match fd::pipe() {
        Ok(pipe) => pipe,
        Err(error) => return failed(&error),
    };
    let pid = match process::fork(Namespaces::NONE) {
        Ok(Fork::Parent { child }) => child,
        Ok(Fork::Child) => {
            let mut tell = |(name, result): Answer| {
                let each = tried(&result);
                let why = each.why.replace(['\n', '\t'], " ");
                let line = format!("{name}\t{}\t{why}\n", u8::from(each.ok));
                let _ = fd::write(theirs.as_fd(), line.as_bytes());
            };
            let _ = security::set_parent_death_signal(signal::KILL);
            what(&mut tell);
            process::exit_now(0)
        }
        Err(error) => return failed(&error),
    };
    drop(theirs);
    let text = listen(&ours, ANSWER_US);
    child::end(pid);
    parse(&text)
}

fn listen(from: &std::os::fd::OwnedFd, limit_us: u64) -> String {
    let end_us = time::monotonic_us() + limit_us;
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    while text.len() < ANSWER_BYTES_MAX {
        let left_us = end_us.saturating_sub(time::monotonic_us());
        let mut polls = [Poll::new(from.as_fd(), READABLE)];
        match fd::poll(&mut polls, Some(left_us)) {
            Ok(1) => match fd::read(from.as_fd(), &mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(got) => text.extend_from_slice(&buffer[..got]),
            },
            Ok(_) if left_us > 0 => {}
            _ => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn parse(text: &str) -> BTreeMap<String, Tried> {
    let each = |line: &str| {
        let mut fields = line.splitn(3, '\t');
        let (name, ok, why) = (fields.next()?, fields.next()?, fields.next()?);
        let tried = Tried {
            ok: ok == "1",
            why: why.to_owned(),
        };
        Some((name.to_owned(), tried))
    };
    text.lines().filter_map(each).collect()
}

fn tried(result: &Result<()>) -> Tried {
    match result {
        Ok(()) => Tried {
            ok: true,
            why: String::new(),
        },
        Err(error) => Tried {
            ok: false,
            why: format!("{error}: {}", error.source),
        },
    }
}

fn copy(error: &SysError) -> SysError {
    let source = std::io::Error::other(error.source.to_string());
    SysError::new(error.operation, error.subject.clone(), source)
}

// ---- what is tried -------------------------------------------------------------------------------------------------

fn tracing(tell: Tell<'_>) {
    tell((PTRACE, trial::trace(Tracing::Ptrace)));
    tell((SECCOMP, trial::trace(Tracing::Seccomp)));
    tell((TRACE, trial::trace(Tracing::Both)));
}

/// The order of a slot: user namespace, mount namespace, tmpfs, overlay, FUSE; then a container's own namespaces.
fn namespaces(tell: Tell<'_>) {
    let identity = process::user_and_group();
    // only where it can be opened: a device that belongs to root is of no use to us
    let opened = overlay::open_fuse().map(drop);
    let has_device = opened.is_ok();
    tell((FUSE_DEVICE, opened));
    let made = own_user(identity);
    let user = made.is_ok();
    tell((USER, made));
    if !user {
        return;
    }
    let made = own_mounts();
    let mounts = made.is_ok();
    tell((MOUNT, made));
    if !mounts {
        return;
    }
    let point = Path::new(POINT);
    let made = mount::tmpfs(point, 1 << 20, 0o700);
    let tmpfs = made.is_ok();
    tell((TMPFS, made));
    if !tmpfs {
        return;
    }
    tell((OVERLAY, overlaid(point)));
    if has_device {
        tell((FUSE, fuse(point, identity)));
    }
    contained(tell, identity);
}

fn own_user((uid, gid): (u32, u32)) -> Result<()> {
    process::unshare(Namespaces {
        user: true,
        ..Namespaces::NONE
    })?;
    process::map_user((uid, gid), (uid, gid))?;
    if process::user_and_group() == (uid, gid) {
        return Ok(());
    }
    let source = std::io::Error::other("the user or group is another one inside");
    Err(SysError::new("keep", "user", source))
}

fn own_mounts() -> Result<()> {
    process::unshare(Namespaces {
        mount: true,
        ..Namespaces::NONE
    })?;
    mount::make_all_private()
}

/// A file, a deletion and a rename of a directory must work in it.
fn overlaid(at: &Path) -> Result<()> {
    for name in ["l", "u", "w", "m", "l/d"] {
        make_dir(&at.join(name))?;
    }
    write_path(&at.join("l/lower"), "x")?;
    let on = at.join("m");
    let [lower, upper, work] = ["l", "u", "w"].map(|name| file::open_dir(&at.join(name)));
    overlay::overlay(lower?.as_fd(), upper?.as_fd(), work?.as_fd(), &on)?;
    let said = |operation, result: std::io::Result<()>| {
        result.map_err(|source| SysError::new(operation, "a file of the overlay", source))
    };
    write_path(&on.join("new"), "x")?;
    said("remove", std::fs::remove_file(on.join("lower")))?;
    said("read", std::fs::read_dir(&on).map(|_| ()))?;
    mount::detach(&on)
}

/// The device is opened in the user namespace that mounts it: the kernel refuses others (fs/fuse/inode.c).
fn fuse(at: &Path, (uid, gid): (u32, u32)) -> Result<()> {
    let device = overlay::open_fuse()?;
    let on = at.join("f");
    make_dir(&on)?;
    let everybody = false;
    overlay::mount_fuse(device.as_fd(), FuseUser { uid, gid, everybody }, &on)?;
    mount::detach(&on)
}

/// Tries what a slot's init and a rootless container runtime do: a PID namespace with its own /proc, and a nested user
/// namespace with mounts.
fn contained(tell: Tell<'_>, (uid, gid): (u32, u32)) {
    let namespaces = Namespaces {
        pid: true,
        mount: true,
        ..Namespaces::NONE
    };
    tell((PROC, grandchild(namespaces, || mount::proc(Path::new("/proc")))));
    tell((
        NESTED,
        grandchild(Namespaces::NONE, || {
            own_user((uid, gid))?;
            own_mounts()?;
            mount::tmpfs(Path::new(POINT), 1 << 20, 0o700)
        }),
    ));
}

/// Runs it in a child in these namespaces; its exit status is the error number.
fn grandchild(namespaces: Namespaces, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let child = match process::fork(namespaces)? {
        Fork::Child => {
            let _ = security::set_parent_death_signal(signal::KILL);
            let status = match what() {
                Ok(()) => 0,
                Err(error) => error.os_error().clamp(1, 255),
            };
            process::exit_now(status)
        }
        Fork::Parent { child } => child,
    };
    match process::wait(child, true)? {
        process::Waited::Ended {
            exit: process::Exit::Status(0),
            ..
        } => Ok(()),
        process::Waited::Ended {
            exit: process::Exit::Status(errno),
            ..
        } => Err(SysError::new(
            "make",
            "it",
            std::io::Error::from_raw_os_error(errno),
        )),
        other => Err(SysError::new(
            "make",
            "it",
            std::io::Error::other(format!("{other:?}")),
        )),
    }
}

/// Tries to connect to this node at the address that it would announce to others.
fn network(tell: Tell<'_>) {
    let said = |operation: &'static str| {
        move |source: std::io::Error| SysError::new(operation, "an address of this node", source)
    };
    let try_it = || -> Result<()> {
        let none = || std::io::Error::other("no route leads out");
        let address = machine::outbound_address().ok_or_else(|| said("find")(none()))?;
        let listener = TcpListener::bind((address, 0)).map_err(said("listen at"))?;
        let place = listener.local_addr().map_err(said("listen at"))?;
        let timeout = Duration::from_micros(ANSWER_US / 2);
        let client = TcpStream::connect_timeout(&place, timeout).map_err(said("connect to"))?;
        drop(client);
        let (mut server, _) = listener.accept().map_err(said("accept at"))?;
        server.read(&mut [0_u8; 1]).map(drop).map_err(said("read at"))
    };
    tell((TCP, try_it()));
}

fn write_path(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| SysError::new("write", path.to_string_lossy(), source))
}

fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir(path).map_err(|source| SysError::new("make", path.to_string_lossy(), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_did_not_say_has_a_reason() {
        let told = parse("user_namespace\t0\tfailed to unshare: Operation not permitted\nnonsense\n");
        assert_eq!(told.len(), 1);
        assert_eq!(missing(OVERLAY, &told).why, "needs user_namespace");
        assert!(missing(OVERLAY, &BTreeMap::new()).why.starts_with("no answer"));
    }
}
