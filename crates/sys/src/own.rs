//! Directories that we make outside of our own memory, and those that our dead processes have left.
//!
//! A kill -9 leaves no process to clean up, so the next pilot does. Process numbers mean nothing across PID namespaces
//! and nodes; a lock does: each directory is held by a lock that ends with the process that made it. Directories on
//! file systems that several nodes see carry the host's name, and only those of this host are examined.

use std::fs::{DirBuilder, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{child, file, machine, process, time, Result, SysError};

/// Lustre without `-o flock`, NFS without a lock server.
const NO_LOCKS: [i32; 3] = [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK];
/// How often a new directory may be taken away before we have locked it.
const TRIES: usize = 3;
/// Most entries that one search for left directories examines.
const ENTRIES_MAX: usize = 10_000;

/// A directory (0700) that belongs to this process while this lives. It is not removed by itself.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    /// None where the file system has no locks: then the directory never counts as left behind
    _lock: Option<File>,
}

impl OwnDirectory {
    /// Makes `base/tidemill-WHAT-UID-PID-TIME-HOST` and locks it.
    pub fn make(base: &Path, what: &str) -> Result<Self> {
        let mut last = None;
        for _ in 0..TRIES {
            let name = format!(
                "{}{}-{}-{}",
                prefix(what),
                process::id(),
                time::monotonic_us(),
                host()
            );
            let path = base.join(name);
            let failed = |source| SysError::new("make directory", path.to_string_lossy(), source);
            DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
            match lock(&path) {
                Ok(Some(held)) => {
                    return Ok(OwnDirectory {
                        path,
                        _lock: Some(held),
                    })
                }
                Ok(None) => {}
                Err(error) if NO_LOCKS.contains(&error.os_error()) => {
                    return Ok(OwnDirectory { path, _lock: None })
                }
                Err(error) => last = Some(error),
            }
        }
        let taken = || {
            SysError::new(
                "lock",
                base.to_string_lossy(),
                std::io::ErrorKind::WouldBlock.into(),
            )
        };
        Err(last.unwrap_or_else(taken))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes directories below `base` that our processes made on this host and left behind; returns how many. Those of
/// live processes are locked; what cannot be removed stays.
pub fn clean(base: &Path, what: &str) -> usize {
    let (prefix, end, (uid, _)) = (prefix(what), format!("-{}", host()), process::user_and_group());
    let Ok(entries) = std::fs::read_dir(base) else {
        return 0;
    };
    let mut removed = 0;
    for entry in entries.flatten().take(ENTRIES_MAX) {
        let name = entry.file_name();
        let named = name
            .to_str()
            .is_some_and(|name| name.starts_with(&prefix) && name.ends_with(&end));
        let path = entry.path();
        let ours = || std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
        if !named || !ours() {
            continue;
        }
        if let Ok(Some(_held)) = lock(&path) {
            removed += usize::from(remove(&path));
        }
    }
    removed
}

/// Removes such a directory with everything in it.
pub fn remove(path: &Path) -> bool {
    if let Ok(dir) = file::open_dir(path) {
        let _ = file::empty(dir.as_fd(), &[]); // what is left makes the next line fail
    }
    std::fs::remove_dir(path).is_ok()
}

/// As `remove`, in a child; the child, where there is so much that it is still at it after a moment.
pub fn remove_aside(path: &Path) -> Option<i32> {
    let work = || {
        remove(path);
    };
    child::aside(&[], work).unwrap_or_else(|_| {
        work(); // there are no more processes: then here
        None
    })
}

fn prefix(what: &str) -> String {
    format!("tidemill-{what}-{}-", process::user_and_group().0)
}

fn host() -> String {
    machine::host().replace('/', "_")
}

/// Locks a directory; None if another process holds the lock, or the directory is gone by now.
fn lock(path: &Path) -> Result<Option<File>> {
    let dir = File::from(file::open_dir(path)?);
    if !file::lock(dir.as_fd(), true)? {
        return Ok(None);
    }
    let same = dir.metadata().is_ok_and(|held| {
        std::fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (held.dev(), held.ino()))
    });
    Ok(same.then_some(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let base = tempfile::tempdir().unwrap();
        let living = OwnDirectory::make(base.path(), "slot").unwrap();
        let dead = OwnDirectory::make(base.path(), "slot").unwrap();
        let other = OwnDirectory::make(base.path(), "node").unwrap();
        std::fs::create_dir(dead.path().join("tmp")).unwrap();
        std::fs::write(dead.path().join("tmp/x"), "x").unwrap();
        std::fs::create_dir(base.path().join("mine")).unwrap();
        std::fs::write(base.path().join("mine/x"), "x").unwrap();
        // as another user might make it, so that we empty a directory that belongs to us
        let planted = format!("{}1-1-{}", prefix("slot"), host());
        std::os::unix::fs::symlink("mine", base.path().join(&planted)).unwrap();
        let (dead_path, other_path) = (dead.path().to_owned(), other.path().to_owned());
        drop((dead, other));
        assert_eq!(clean(base.path(), "slot"), 1);
        assert!(living.path().exists() && other_path.exists());
        assert!(base.path().join(planted).join("x").exists());
        assert!(!dead_path.exists());
        assert_eq!(clean(&base.path().join("none"), "slot"), 0);
    }
}
