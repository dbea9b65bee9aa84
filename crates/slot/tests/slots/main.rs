//! Real slots, real payloads. One thread (see Cargo.toml). As root all tests run a second time as an ordinary user.

// a test may panic: that is how it fails
#![allow(clippy::unwrap_used)]

mod areas;
mod bench;
mod bench_like;
mod command;
mod doors;
mod isolation;
mod limits;
mod range;
mod stop;
mod support;
mod taken;
mod walls;
mod wide;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A test and its name.
pub type Test = (&'static str, fn());

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(mode) = args.first().filter(|mode| mode.starts_with("--as-")) {
        return stop::play(mode, &args[1..]);
    }
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let groups = [
        areas::TESTS,
        command::TESTS,
        doors::TESTS,
        isolation::TESTS,
        limits::TESTS,
        range::TESTS,
        stop::TESTS,
        bench_like::TESTS,
        taken::TESTS,
        walls::TESTS,
        wide::TESTS,
    ];
    let chosen = groups.concat().into_iter().filter(|(name, _)| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    });
    let mut count = 0;
    for (name, test) in chosen {
        eprintln!("test {name} ...");
        test();
        count += 1;
    }
    eprintln!("test result: ok. {count} passed as user {}", support::user());
    if support::user() == 0 {
        again_as_ordinary_user(&args);
    }
}

fn again_as_ordinary_user(args: &[String]) {
    let directory = tempfile::Builder::new()
        .prefix("tidemill-slots-")
        .tempdir()
        .unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let binary = directory.path().join("slots");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let status = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
        ])
        .arg(&binary)
        .args(args)
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success(), "as user 65534: {status}");
}
