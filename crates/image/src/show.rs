//! An image as a directory.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::choose::choose;
use crate::fuse::Daemon;
use crate::squashfs::Squashfs;
use crate::unpack::{unpack, Links};
use crate::{ImageError, Limits, Way};

/// Memory of a squashfuse with its cache of blocks. Measured: 3.4 MB resident (0.1.105) after 50 imports of a
/// scientific stack; later versions have more threads. The kernel reclaims its page cache when memory is short.
const FUSE_BYTES: u64 = 16 << 20;

/// An image that is shown. Dropping it (in the process that made it) ends its squashfuse; an unpacked tree stays.
#[derive(Debug)]
pub struct Shown {
    /// directory with the image's tree: area /sw/a is `root`/sw/a
    pub root: PathBuf,
    pub way: Way,
    /// why not a better way; empty where there is none
    pub note: String,
    /// memory that it takes besides the image file
    pub bytes: u64,
    daemon: Option<Daemon>,
}

impl Shown {
    /// Readable once squashfuse has said something or ended; then ask `ended`. None where there is no squashfuse.
    pub fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(Daemon::watch)
    }

    /// The squashfuse process, for callers that wait for any child and then call `gone`.
    pub fn pid(&self) -> Option<i32> {
        self.daemon.as_ref().and_then(Daemon::pid)
    }

    /// Records how squashfuse ended, where the caller has waited for its process.
    pub fn gone(&mut self, exit: tidemill_sys::process::Exit) {
        if let Some(daemon) = &mut self.daemon {
            daemon.gone(exit);
        }
    }

    /// Why nothing can be read any more: "squashfuse ended with ...". None while all is well. Never waits.
    pub fn ended(&mut self) -> Option<String> {
        self.daemon.as_mut().and_then(Daemon::ended)
    }
}

/// Shows the (complete, checked) image file at `at`, an empty directory in memory. `want` is auto, fuse, unpack or
/// relocate; only `auto` falls back, from squashfuse to unpacking and the other way round, never to `relocate`, which
/// only callers without namespaces want. squashfuse needs a mount namespace of the caller's own, and a caller without
/// threads.
pub fn show(image: &Path, at: &Path, want: &str, limits: &Limits) -> Result<Shown, ImageError> {
    match want {
        "fuse" => by_fuse(image, at, limits, String::new()),
        "unpack" => by_unpacking(image, at, Way::Unpack, String::new(), limits),
        "relocate" => by_unpacking(image, at, Way::Relocate, String::new(), limits),
        "auto" => by_best(image, at, limits),
        other => Err(ImageError::NoWay(other.to_owned())),
    }
}

fn by_best(image: &Path, at: &Path, limits: &Limits) -> Result<Shown, ImageError> {
    let survey = Squashfs::open(image)?.survey(limits.entries)?;
    if choose(survey.memory_bytes, limits.memory_bytes) == Way::Unpack {
        return by_unpacking(image, at, Way::Unpack, String::new(), limits);
    }
    match by_fuse(image, at, limits, String::new()) {
        Err(error @ (ImageError::Fuse(_) | ImageError::Sys(_))) => {
            by_unpacking(image, at, Way::Unpack, error.chain(), limits)
        }
        shown => shown,
    }
}

fn by_fuse(image: &Path, at: &Path, limits: &Limits, note: String) -> Result<Shown, ImageError> {
    let daemon = Daemon::start(image, at, limits)?;
    let note = [note, daemon.note().to_owned()].concat();
    Ok(Shown {
        root: at.to_owned(),
        way: Way::Fuse,
        note,
        bytes: FUSE_BYTES,
        daemon: Some(daemon),
    })
}

fn by_unpacking(
    image: &Path,
    at: &Path,
    way: Way,
    note: String,
    limits: &Limits,
) -> Result<Shown, ImageError> {
    let links = if way == Way::Relocate {
        Links::Relocate
    } else {
        Links::Keep
    };
    let unpacked = unpack(image, at, links, limits);
    let survey = unpacked.map_err(|error| match error {
        // both ways failed: the first reason is part of the evidence
        error if note.is_empty() => error,
        error => ImageError::Fuse(format!("{note}; then unpacking failed: {}", error.chain())),
    })?;
    Ok(Shown {
        root: at.to_owned(),
        way,
        note,
        bytes: survey.memory_bytes,
        daemon: None,
    })
}
