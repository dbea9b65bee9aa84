//! The process in between, with namespaces: PID 1 of a PID namespace, with mounts that are invisible outside.
//!
//! ```text
//! T            a tmpfs over /tmp/.tidemill, as large as the image and all changes may be
//! T/files/     the image file
//! T/images/    its tree
//! T/over/N/    what the command writes into areas
//! T/see/       what the command sees as /tmp/.tidemill: real/, the real tree of each area
//! ```

use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::{mount, process, SysError};

use super::alias::{Alias, BASE};
use super::offspring::{self, Outcome, Start};
use super::outside::Birth;
use super::report::Report;
use super::Order;
use crate::show::Shown;
use crate::{assemble, cover, show, ImageError, Limits};

/// Shows the image, runs the command, reports. Everything here ends with this process.
pub(super) fn run(order: &Order, birth: &Birth, alias: &Alias) {
    if let Err(error) = enter(order, birth) {
        birth
            .reporter
            .send(&Report::Refused(ImageError::from(error).chain()));
        return;
    }
    // where we are is looked up again: it may lie in an area
    let directory = std::env::current_dir().ok();
    match prepare(order, birth) {
        Ok(shown) => run_command(order, birth, shown, directory, alias),
        Err(ImageError::Stopped(_)) => leave(alias),
        Err(error) => birth.reporter.send(&Report::Failed(error.chain())),
    }
}

/// Identity, private mounts and T.
fn enter(order: &Order, birth: &Birth) -> Result<(), SysError> {
    if birth.user_namespace {
        process::map_user(birth.identity, birth.identity)?;
    }
    mount::make_all_private()?;
    mount::tmpfs(Path::new(BASE), order.memory_bytes, 0o755)
}

fn prepare(order: &Order, birth: &Birth) -> Result<Shown, ImageError> {
    let base = Path::new(BASE);
    for name in ["files", "images", "over", "see", "see/real"] {
        let path = base.join(name);
        let made = DirBuilder::new().mode(0o755).create(&path);
        made.map_err(ImageError::file("make directory", &path))?;
    }
    let digest = &order.image.file.sha256;
    let file = base.join("files").join(digest);
    if order.image.file.bytes > order.memory_bytes {
        return Err(ImageError::TooBig {
            path: file,
            what: "held",
            needed_mb: order.image.file.bytes.div_ceil(1 << 20),
            limit_mb: order.memory_bytes >> 20,
        });
    }
    let mut go_on = || !hung_up(birth);
    assemble(&order.image.name, &order.image.file, &file, &mut go_on)?;
    let at = base.join("images").join(digest);
    DirBuilder::new()
        .mode(0o755)
        .create(&at)
        .map_err(ImageError::file("make directory", &at))?;
    let left = order.memory_bytes - order.image.file.bytes;
    let shown = show(&file, &at, order.mode.name(), &Limits::memory(left))?;
    if !shown.note.is_empty() {
        let way = shown.way.name();
        let note = format!("image `{}` shown by {way}: {}", order.image.name, shown.note);
        birth.reporter.send(&Report::Note(note));
    }
    if shown.watch().is_none() {
        let _ = std::fs::remove_file(&file); // unpacked: its memory is for others
    }
    let real = base.join("see/real");
    let note = cover(&shown.root, &order.image.areas, &base.join("over"), &real)?.note;
    if !note.is_empty() {
        birth.reporter.send(&Report::Note(note));
    }
    mount::bind(&base.join("see"), base)?;
    // where mounts of /proc are forbidden (in some containers) the old one shows other numbers; programs still run
    let _ = mount::proc(Path::new("/proc"));
    Ok(shown)
}

fn hung_up(birth: &Birth) -> bool {
    let mut life = [Poll::new(birth.life.as_fd(), READABLE)];
    fd::poll(&mut life, Some(0)).is_ok_and(|ready| ready > 0)
}

fn run_command(
    order: &Order,
    birth: &Birth,
    mut shown: Shown,
    directory: Option<std::path::PathBuf>,
    alias: &Alias,
) {
    let start = Start {
        argv: order.command.clone(),
        env: std::env::vars_os().collect(),
        directory,
    };
    let outcome = offspring::start(&start, &birth.reporter)
        .and_then(|command| offspring::watch(command, &birth.signals, &birth.life, &mut shown));
    match outcome {
        Ok(Outcome::Ended(exit)) => birth.reporter.send(&Report::Ended(exit)),
        Ok(Outcome::Lost(how)) => birth
            .reporter
            .send(&Report::Failed(format!("{how} while the command ran"))),
        Ok(Outcome::Abandoned) => leave(alias),
        Err(error) => birth
            .reporter
            .send(&Report::Failed(ImageError::from(error).chain())),
    }
}

/// The process outside was killed: does its part of the cleanup.
fn leave(alias: &Alias) {
    tidemill_sys::signal::kill_namespace();
    while mount::detach(Path::new(BASE)).is_ok() {}
    alias.give_back();
}
