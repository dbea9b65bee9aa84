//! One image: read from the shared file system, then shown.

use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidemill_image::{assemble, Limits};
use tidemill_sys::fd::Poll;
use tidemill_sys::time::monotonic_us;
use tidemill_sys::{file, mount, own};
use tidemill_wire::log::cause;
use tidemill_wire::worker::{Served, Worker};
use tidemill_wire::ImageUse;

use super::{paths, Event, Shown, GONE};
use crate::error::LOG;

/// In /proc/PID/comm.
pub const NAME: &std::ffi::CStr = c"tidemill-image";

/// What a child says of its image.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Fetched,
    /// `served`: by squashfuse, which can die
    Shown {
        way: String,
        note: String,
        bytes: u64,
        served: bool,
    },
    Failed(String),
    Died(String),
}

/// Where it is.
enum Stage {
    /// its file is on the way
    Fetching(Worker<Told>),
    /// it is being made a directory
    Showing(Worker<Told>),
    /// slots use it; the child watches squashfuse, where there is one
    Shown(Option<Worker<Told>>),
    Over,
}

/// An image on its way to slots.
pub struct Image {
    sha256: String,
    name: String,
    home: PathBuf,
    file: PathBuf,
    at: PathBuf,
    want: &'static str,
    /// why it is wanted in another way than the site's
    note: String,
    bytes: u64,
    limit_bytes: u64,
    since_us: u64,
    fetch_ms: u64,
    stage: Stage,
}

impl Image {
    /// Begin to bring it into `home`; at most `limit_mb` in all.
    pub fn begin(
        home: &Path,
        image: &ImageUse,
        (want, note): (&'static str, String),
        limit_mb: u64,
    ) -> Result<Self, String> {
        let (file, at) = paths(home, &image.file.sha256);
        std::fs::create_dir_all(&at)
            .map_err(|error| format!("failed to make `{}`: {error}", at.display()))?;
        let mut begun = Image {
            sha256: image.file.sha256.clone(),
            name: image.name.clone(),
            home: home.to_owned(),
            file,
            at,
            want,
            note,
            bytes: image.file.bytes,
            limit_bytes: (limit_mb << 20).saturating_sub(image.file.bytes),
            since_us: monotonic_us(),
            fetch_ms: 0,
            stage: Stage::Over,
        };
        if begun.file.exists() {
            begun.show()?;
        } else {
            begun.fetch(image)?;
        }
        Ok(begun)
    }

    /// Read the shared file system: what nodes that cannot get it from others do.
    fn fetch(&mut self, image: &ImageUse) -> Result<(), String> {
        let partial = part(&self.file);
        let _ = std::fs::remove_file(&partial); // of an attempt that was broken off
        let (name, staged, file, home) = (&self.name, &image.file, &self.file, &self.home);
        let child = Worker::start(NAME, &[], |mut pilot| {
            finish_removals(home);
            let fetched = assemble(name, staged, &partial, &mut || true).map_err(|error| error.chain());
            let kept = fetched.and_then(|()| {
                std::fs::rename(&partial, file)
                    .map_err(|error| format!("failed to rename `{}`: {error}", partial.display()))
            });
            pilot.answer(&kept.map_or_else(Told::Failed, |()| Told::Fetched));
        });
        self.stage = Stage::Fetching(child.map_err(|error| cause(&error))?);
        Ok(())
    }

    fn show(&mut self) -> Result<(), String> {
        let now_us = monotonic_us();
        self.fetch_ms = now_us.saturating_sub(self.since_us) / 1000;
        self.since_us = now_us;
        let (file, at, want, limits) = (&self.file, &self.at, self.want, Limits::memory(self.limit_bytes));
        let home = &self.home;
        let child = Worker::start(NAME, &[], |pilot| {
            finish_removals(home);
            keep_shown(file, at, want, &limits, pilot);
        });
        self.stage = Stage::Showing(child.map_err(|error| cause(&error))?);
        Ok(())
    }

    /// Readable when there is something to `hear`.
    pub fn poll(&self) -> Option<Poll> {
        match &self.stage {
            Stage::Fetching(child) | Stage::Showing(child) | Stage::Shown(Some(child)) => Some(child.poll()),
            Stage::Shown(None) | Stage::Over => None,
        }
    }

    /// The tree, once slots can use it.
    pub fn root(&self) -> Option<PathBuf> {
        matches!(self.stage, Stage::Shown(_)).then(|| self.at.clone())
    }

    /// What is new.
    pub fn hear(&mut self) -> Option<Event> {
        let child = match &mut self.stage {
            Stage::Fetching(child) | Stage::Showing(child) | Stage::Shown(Some(child)) => child,
            Stage::Shown(None) | Stage::Over => return None,
        };
        let told = match child.hear() {
            Ok(told) => told.into_iter().next()?, // at most its end comes with it, which is heard again
            Err(how) => {
                let was_shown = matches!(self.stage, Stage::Shown(_));
                return Some(self.over(was_shown, &how));
            }
        };
        match told {
            Told::Fetched => self.show().err().map(|cause| self.over(false, &cause)),
            Told::Shown {
                way,
                note,
                bytes,
                served,
            } => Some(Event::Shown(self.shown(way, (&note, bytes), served))),
            Told::Failed(cause) => Some(self.over(false, &cause)),
            Told::Died(cause) => Some(self.over(true, &cause)),
        }
    }

    fn over(&mut self, died: bool, cause: &str) -> Event {
        self.stage = Stage::Over;
        let (sha256, cause) = (self.sha256.clone(), format!("image `{}`: {cause}", self.name));
        if died {
            Event::Died { sha256, cause }
        } else {
            Event::Failed { sha256, cause }
        }
    }

    fn shown(&mut self, way: String, (note, bytes): (&str, u64), served: bool) -> Shown {
        let mut notes = vec![self.note.as_str(), note];
        notes.retain(|note| !note.is_empty());
        let note = notes.join("; ");
        let child = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Showing(child) if served => Some(child),
            _ => None,
        };
        self.stage = Stage::Shown(child);
        Shown {
            sha256: self.sha256.clone(),
            way,
            note,
            held_mb: (self.bytes + bytes).div_ceil(1 << 20),
            bytes: self.bytes,
            fetch_ms: self.fetch_ms,
            show_ms: monotonic_us().saturating_sub(self.since_us) / 1000,
        }
    }

    /// End what shows it.
    pub fn end(&mut self) {
        self.stage = Stage::Over; // with its squashfuse
        while mount::detach(&self.at).is_ok() {}
    }

    /// End what shows it, and remove tree and file: out of the way at once, since the same image may come again. The
    /// child that is still at it, where there is much.
    pub fn remove(&mut self) -> Option<i32> {
        self.end();
        let gone = self.home.join(GONE).join(monotonic_us().to_string());
        let failed = |error: std::io::Error| {
            let path = self.at.display().to_string();
            LOG.warning("image.stays", &[("path", &path), ("cause", &error.to_string())]);
        };
        let put_away = || -> std::io::Result<()> {
            std::fs::create_dir(&gone)?;
            for file in [part(&self.file), self.file.clone()] {
                let name = file.file_name().unwrap_or_default();
                if let Err(error) = std::fs::rename(&file, gone.join(name)) {
                    // it was never there, or the stage has removed it
                    if error.kind() != std::io::ErrorKind::NotFound {
                        return Err(error);
                    }
                }
            }
            // a directory goes elsewhere only if it can be written to, and that of an image often cannot
            std::fs::set_permissions(&self.at, Permissions::from_mode(0o700))?;
            std::fs::rename(&self.at, gone.join("tree"))
        };
        put_away().unwrap_or_else(failed);
        own::remove_aside(&gone)
    }
}

/// Where the file is until it is whole.
fn part(file: &Path) -> PathBuf {
    file.with_extension("part")
}

/// What is still being removed makes room before anything new comes.
fn finish_removals(home: &Path) {
    if let Ok(gone) = file::open_dir(&home.join(GONE)) {
        let _ = file::empty(gone.as_fd(), &[]); // what stays takes room only
    }
}

/// The life of the child that shows an image: as long as its squashfuse, or until the tree is unpacked.
fn keep_shown(file: &Path, at: &Path, want: &str, limits: &Limits, mut pilot: Served) {
    let mut shown = match tidemill_image::show(file, at, want, limits) {
        Ok(shown) => shown,
        Err(error) => {
            pilot.answer(&Told::Failed(error.chain()));
            return;
        }
    };
    let served = shown.watch().is_some();
    pilot.answer(&Told::Shown {
        way: shown.way.name().to_owned(),
        note: shown.note.clone(),
        bytes: shown.bytes,
        served,
    });
    if !served {
        return;
    }
    loop {
        if let Some(how) = shown.ended() {
            pilot.answer(&Told::Died(how));
            return;
        }
        if !shown.watch().is_some_and(|watched| pilot.wait(watched)) {
            return;
        }
    }
}
