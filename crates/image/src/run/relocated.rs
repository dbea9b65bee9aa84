//! The process in between, without namespaces: a subreaper; the image is unpacked below /dev/shm.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::{file, own, security};

use super::offspring::{self, Outcome, Start};
use super::outside::Birth;
use super::report::Report;
use super::Order;
use crate::show::Shown;
use crate::{assemble, relocate, show, ImageError, Limits};

/// Unpacks the image, runs the command, reports.
pub(super) fn run(order: &Order, birth: &Birth, place: &Path) {
    match prepare(order, birth, place) {
        Ok(shown) => run_command(order, birth, shown),
        Err(ImageError::Stopped(_)) => {}
        Err(error) => birth.reporter.send(&Report::Failed(error.chain())),
    }
    offspring::end_all(&[]);
    let mut life = [Poll::new(birth.life.as_fd(), READABLE)];
    if fd::poll(&mut life, Some(0)).is_ok_and(|ready| ready > 0) {
        own::remove(place); // the process outside is gone and cannot
    }
}

fn prepare(order: &Order, birth: &Birth, place: &Path) -> Result<Shown, ImageError> {
    security::become_subreaper()?;
    let directory = file::open_dir(place)?;
    let space = file::space(directory.as_fd())?;
    let room = order.memory_bytes.min(space.block_bytes * space.blocks_free);
    let image = place.join("image");
    if order.image.file.bytes > room {
        return Err(ImageError::TooBig {
            path: image,
            what: "held",
            needed_mb: order.image.file.bytes.div_ceil(1 << 20),
            limit_mb: room >> 20,
        });
    }
    let mut go_on = || {
        let mut life = [Poll::new(birth.life.as_fd(), READABLE)];
        !fd::poll(&mut life, Some(0)).is_ok_and(|ready| ready > 0)
    };
    assemble(&order.image.name, &order.image.file, &image, &mut go_on)?;
    let root = place.join("root");
    DirBuilder::new()
        .mode(0o700)
        .create(&root)
        .map_err(ImageError::file("make directory", &root))?;
    let shown = show(
        &image,
        &root,
        "relocate",
        &Limits::memory(room - order.image.file.bytes),
    )?;
    let _ = std::fs::remove_file(&image); // its memory is for others
    Ok(shown)
}

fn run_command(order: &Order, birth: &Birth, mut shown: Shown) {
    let root = shown.root.to_string_lossy().into_owned();
    let moved = |text: OsString| {
        // what is not UTF-8 stays as it is
        match String::from_utf8(text.into_vec()) {
            Ok(text) => OsString::from(relocate(&root, &order.image.areas, &text)),
            Err(error) => OsString::from_vec(error.into_bytes()),
        }
    };
    let start = Start {
        argv: order.command.iter().cloned().map(moved).collect(),
        env: std::env::vars_os()
            .map(|(name, value)| (name, moved(value)))
            .collect(),
        directory: std::env::current_dir()
            .ok()
            .map(|directory| PathBuf::from(moved(directory.into_os_string()))),
    };
    let outcome = offspring::start(&start, &birth.reporter)
        .and_then(|command| offspring::watch(command, &birth.signals, &birth.life, &mut shown));
    match outcome {
        Ok(Outcome::Ended(exit)) => birth.reporter.send(&Report::Ended(exit)),
        Ok(Outcome::Lost(how)) => birth.reporter.send(&Report::Failed(how)),
        Ok(Outcome::Abandoned) => {}
        Err(error) => birth
            .reporter
            .send(&Report::Failed(ImageError::from(error).chain())),
    }
}
