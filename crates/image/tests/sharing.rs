//! One image shown once, and covered by 16 slots at once: each in namespaces of its own, as an ordinary user.
//!
//! A program without threads, since showing an image forks; so it is its own test harness.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tidemill_image::{cover, show, Limits, Way};
use tidemill_sys::process::{self, Exit, Fork, Namespaces, Waited};
use tidemill_sys::{mount, signal};

const SLOTS: usize = 16;
const USER: u32 = 65534;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|word| word == "--inside") {
        return inside(Path::new(&arguments[2]));
    }
    if let Some(lacking) = lacking() {
        assert!(std::env::var_os("CI").is_none(), "{lacking}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), readable).unwrap();
    let own = dir.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &own).unwrap();
    make_image(dir.path());
    let script =
        "mount --make-rprivate / && mknod -m 666 $0/fuse c 10 229 && mount --bind $0/fuse /dev/fuse && \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups $0/program --inside $0";
    let status = Command::new("unshare")
        .args(["-mpf", "--kill-child", "--mount-proc", "sh", "-c", script])
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

fn lacking() -> Option<&'static str> {
    if process::user_and_group().0 != 0 {
        return Some("only root can make a device node");
    }
    let found = |program: &str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    (!found("mksquashfs") || !found("squashfuse_ll")).then_some("no squashfs-tools or squashfuse")
}

/// sw is the area: `packed` differs from the real one, `other` is a stub.
fn make_image(dir: &Path) {
    let area = dir.join("sw");
    std::fs::create_dir(&area).unwrap();
    std::fs::write(area.join("packed"), "real").unwrap();
    std::fs::write(area.join("other"), "untraced").unwrap();
    let staged = dir.join("stage").join(area.strip_prefix("/").unwrap());
    std::fs::create_dir_all(&staged).unwrap();
    std::fs::write(staged.join("packed"), "image").unwrap();
    let stub = Path::new("/tmp/.tidemill/real").join(area.strip_prefix("/").unwrap());
    std::os::unix::fs::symlink(stub.join("other"), staged.join("other")).unwrap();
    let made = Command::new("mksquashfs")
        .args([dir.join("stage"), dir.join("image")])
        .args([
            "-comp",
            "zstd",
            "-no-fragments",
            "-all-root",
            "-quiet",
            "-no-progress",
        ])
        .stdout(Stdio::null())
        .status();
    assert!(made.unwrap().success());
}

/// A fork into namespaces whose identity stays.
fn enter(pid: bool) -> i32 {
    let namespaces = Namespaces {
        user: true,
        mount: true,
        pid,
        ..Namespaces::NONE
    };
    match process::fork(namespaces).unwrap() {
        Fork::Parent { child } => child,
        Fork::Child => {
            process::map_user((USER, USER), (USER, USER)).unwrap();
            mount::make_all_private().unwrap();
            0
        }
    }
}

fn wait(pid: i32) -> Exit {
    match process::wait(pid, true).unwrap() {
        Waited::Ended { exit, .. } => exit,
        other => panic!("{other:?}"),
    }
}

/// The pilot's part, for each way.
fn inside(dir: &Path) {
    for way in [Way::Fuse, Way::Unpack] {
        let pilot = enter(false);
        if pilot != 0 {
            assert_eq!(wait(pilot), Exit::Status(0));
            continue;
        }
        pilot_of(dir, way);
        process::exit_now(0);
    }
}

fn pilot_of(dir: &Path, way: Way) {
    // a slot's own /tmp comes later: the area lies below it
    let store = Path::new("/mnt");
    mount::tmpfs(store, 64 << 20, 0o755).unwrap();
    let at = store.join("image");
    std::fs::create_dir(&at).unwrap();
    let mut shown = show(&dir.join("image"), &at, way.name(), &Limits::memory(32 << 20)).unwrap();
    assert_eq!(shown.way, way);
    assert_eq!(shown.note, "");
    let slots: Vec<i32> = (0..SLOTS)
        .map(|index| match enter(true) {
            0 => {
                slot_of(dir, &shown.root, index);
                process::exit_now(0)
            }
            slot => slot,
        })
        .collect();
    for slot in slots {
        assert_eq!(wait(slot), Exit::Status(0), "{way:?}");
    }
    assert_eq!(shown.ended(), None);
    if let Some(squashfuse) = shown.pid() {
        signal::kill(squashfuse, signal::KILL).unwrap();
        let end_us = tidemill_sys::time::monotonic_us() + 10_000_000;
        while shown.ended().is_none() && tidemill_sys::time::monotonic_us() < end_us {
            let watched = tidemill_sys::fd::Poll::new(shown.watch().unwrap(), tidemill_sys::fd::READABLE);
            tidemill_sys::fd::poll(&mut [watched], Some(100_000)).unwrap();
        }
        let how = shown.ended().unwrap();
        assert!(how.contains("squashfuse ended with signal 9"), "{how}");
    }
}

/// A slot: a tmpfs for what is written, its own covers, and checks of what it sees.
fn slot_of(dir: &Path, root: &Path, index: usize) {
    let area = dir.join("sw");
    let scratch = Path::new("/opt");
    mount::tmpfs(scratch, 8 << 20, 0o755).unwrap();
    std::fs::create_dir(scratch.join("over")).unwrap();
    let real = scratch.join("real");
    let areas = [area.to_string_lossy().into_owned()];
    let mut covering = cover(root, &areas, &scratch.join("over"), &real).unwrap();
    assert_eq!(covering.note, "");
    let read = |name: &str| std::fs::read_to_string(area.join(name)).unwrap();
    assert_eq!(read("packed"), "image");
    let shown = real.join(area.strip_prefix("/").unwrap());
    assert_eq!(std::fs::read_to_string(shown.join("other")).unwrap(), "untraced");
    assert_eq!(std::fs::read_to_string(shown.join("packed")).unwrap(), "real");
    assert!(area.join("other").symlink_metadata().unwrap().is_symlink());
    assert!(!area.join("none").exists());
    // what a slot writes is invisible to the others
    let mine = format!("slot {index}");
    std::fs::write(area.join("packed"), &mine).unwrap();
    std::fs::write(area.join(&mine), "new").unwrap();
    tidemill_sys::fd::poll(&mut [], Some(50_000)).unwrap();
    assert_eq!(read("packed"), mine);
    let entries = std::fs::read_dir(&area).unwrap().count();
    assert_eq!(entries, 3);
    // and it can be discarded
    assert!(covering.is_changed(true).unwrap());
    covering.renew().unwrap();
    assert!(!covering.is_changed(true).unwrap() && !covering.is_changed(false).unwrap());
    assert_eq!(read("packed"), "image");
    assert_eq!(std::fs::read_dir(&area).unwrap().count(), 2);
}
