//! /tmp/.tidemill as a mount point: an empty directory of the node, which its last user removes.
//!
//! Removing a directory removes the mounts on it in every namespace (Linux 3.19, rmdir(2)), so each user of it holds a
//! shared lock, and only a process that gets the exclusive lock removes it.

use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use tidemill_sys::file;

use crate::ImageError;

/// The directory.
pub(super) const BASE: &str = "/tmp/.tidemill";
/// Tries to make and lock the directory: another process may remove it in between.
const TRIES_MAX: usize = 100;

/// A hold on the directory; it ends with the last process that has it.
#[derive(Debug)]
pub(super) struct Alias {
    directory: OwnedFd,
}

impl Alias {
    pub fn take() -> Result<Alias, ImageError> {
        let base = Path::new(BASE);
        let wrong = |what: &str| ImageError::File {
            operation: "use",
            path: base.to_owned(),
            source: std::io::Error::other(what.to_owned()),
        };
        for _ in 0..TRIES_MAX {
            match DirBuilder::new().mode(0o755).create(base) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(ImageError::file("make directory", base)(error));
                }
                _ => {}
            }
            let Ok(status) = base.symlink_metadata() else {
                continue;
            };
            if !status.is_dir() {
                return Err(wrong("it is not a directory"));
            }
            let Ok(directory) = file::open_dir(base) else {
                continue;
            };
            let held = file::lock(directory.as_fd(), false)?;
            let same = |seen: std::fs::Metadata| seen.ino() == status.ino() && seen.dev() == status.dev();
            // the lock counts only if what we locked is still the directory of that name
            if held && base.symlink_metadata().is_ok_and(same) {
                return Ok(Alias { directory });
            }
        }
        Err(wrong("others kept making and removing it"))
    }

    /// Removes the directory if no other process needs it and this user owns it. Call it where nothing is mounted on
    /// the directory.
    pub fn give_back(&self) {
        if file::lock(self.directory.as_fd(), true).unwrap_or(false) {
            let _ = std::fs::remove_dir(BASE); // another user's, or not empty: it stays
        }
    }
}
