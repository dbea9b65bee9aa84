//! The pilot's own memory on the node.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidemill_sys::fd;
use tidemill_sys::own::{self, OwnDirectory};
use tidemill_sys::process::{self, Namespaces};
use tidemill_sys::{child, mount, Result, SysError};
use tidemill_wire::log::cause;
use tidemill_wire::worker::Worker;

use super::image::NAME;
use super::GONE;
use crate::error::LOG;

/// The memory file system of every Linux machine. Mounting over it needs no directory that could be left behind, and
/// slots get their own /dev/shm anyway.
const SHARED_MEMORY: &str = "/dev/shm";
const WHAT: &str = "node";
/// Namespaces and a mount take milliseconds.
const TRIAL_US: u64 = 2_000_000;

/// The directory in memory.
pub struct Home {
    path: PathBuf,
    /// a tmpfs in the pilot's own mount namespace
    private: bool,
    /// on a file system that other processes see too
    own: Option<OwnDirectory>,
}

impl Home {
    /// Enters namespaces of our own where slots have some, and mounts memory of `size_mb` there.
    pub fn enter(isolated: bool, size_mb: u64) -> std::result::Result<Self, String> {
        let entered = |()| enter_namespaces(size_mb).map_err(|error| cause(&error));
        let home = if isolated {
            match try_namespaces(size_mb).and_then(entered) {
                Ok(path) => Home {
                    path,
                    private: true,
                    own: None,
                },
                Err(cause) => {
                    LOG.warning("node.shared", &[("cause", &cause)]);
                    Home::shared()?
                }
            }
        } else {
            Home::shared()?
        };
        for name in ["files", "images", GONE] {
            let path = home.path.join(name);
            let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
            made.map_err(|error| format!("failed to make `{}`: {error}", path.display()))?;
        }
        LOG.info(
            "node.entered",
            &[
                ("path", &home.path.display().to_string()),
                ("private", &home.private),
                ("size_mb", &size_mb),
            ],
        );
        Ok(home)
    }

    fn shared() -> std::result::Result<Self, String> {
        let base = if Path::new(SHARED_MEMORY).is_dir() {
            PathBuf::from(SHARED_MEMORY)
        } else {
            std::env::temp_dir()
        };
        let own = OwnDirectory::make(&base, WHAT).map_err(|error| cause(&error))?;
        Ok(Home {
            path: own.path().to_owned(),
            private: false,
            own: Some(own),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Remove what the kernel does not remove with the pilot; returns the child if it still works on that.
    pub fn leave(self) -> Option<i32> {
        let own = self.own?;
        own::remove_aside(own.path())
    }
}

/// Remove directories of this user's killed pilots; returns the child if it still works on that.
pub fn clean() -> Option<i32> {
    child::aside(&[], remove_left).unwrap_or(None)
}

fn remove_left() {
    for base in [PathBuf::from(SHARED_MEMORY), std::env::temp_dir()] {
        let removed = own::clean(&base, WHAT);
        if removed > 0 {
            LOG.info(
                "node.cleaned",
                &[("base", &base.display().to_string()), ("removed", &removed)],
            );
        }
    }
}

/// Whether `enter_namespaces` would succeed, found out by a child: there is no way back out of half of it.
fn try_namespaces(size_mb: u64) -> std::result::Result<(), String> {
    type Tried = std::result::Result<(), String>;
    let trial = Worker::<Tried>::start(NAME, &[], |mut pilot| {
        let tried = enter_namespaces(size_mb).map_err(|error| cause(&error));
        pilot.answer(&tried.map(drop));
    });
    let mut trial = trial.map_err(|error| cause(&error))?;
    fd::poll(&mut [trial.poll()], Some(TRIAL_US)).map_err(|error| cause(&error))?;
    let answered = trial.hear()?.into_iter().next();
    answered.unwrap_or_else(|| Err(String::from("a child that tried namespaces did not answer")))
}

/// As real root a mount namespace is enough; others get theirs with a user namespace in which they stay who they are.
pub fn enter_namespaces(size_mb: u64) -> Result<PathBuf> {
    let target = Path::new(SHARED_MEMORY);
    if !target.is_dir() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(SysError::new("mount memory on", SHARED_MEMORY, source));
    }
    let identity = process::user_and_group();
    let only_mounts = Namespaces {
        mount: true,
        ..Namespaces::NONE
    };
    if process::unshare(only_mounts).is_err() {
        process::unshare(Namespaces {
            user: true,
            ..only_mounts
        })?;
        process::map_user(identity, identity)?;
    }
    mount::make_all_private()?;
    mount::tmpfs(target, size_mb.max(1) << 20, 0o700)?;
    Ok(target.to_owned())
}
