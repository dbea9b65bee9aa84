//! Memory of our own on the node.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidemill_slot::own::{self, OwnDirectory};
use tidemill_sys::process::{self, Namespaces};
use tidemill_sys::{mount, security, Result, SysError};
use tidemill_wire::log::cause;

use crate::pilot::LOG;

/// Where memory is on every Linux; mounting over it needs no directory of ours that could be left behind. Our slots get
/// their own /dev/shm anyway.
const SHARED_MEMORY: &str = "/dev/shm";
const WHAT: &str = "node";

/// The place.
pub struct Home {
    path: PathBuf,
    /// a tmpfs in a mount namespace of our own
    private: bool,
    /// on a file system that others see too
    own: Option<OwnDirectory>,
}

impl Home {
    /// Enters namespaces of our own where slots have some, and mounts memory of `size_mb` there.
    pub fn enter(isolated: bool, size_mb: u64) -> std::result::Result<Self, String> {
        clean();
        let home = if isolated {
            match enter_namespaces(size_mb) {
                Ok(path) => Home {
                    path,
                    private: true,
                    own: None,
                },
                Err(error) => {
                    LOG.warning("node.shared", &[("cause", &cause(&error))]);
                    Home::shared()?
                }
            }
        } else {
            Home::shared()?
        };
        for name in ["files", "images"] {
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

    /// What the kernel does not remove with us.
    pub fn leave(self) {
        if let Some(own) = self.own {
            own::remove(own.path());
        }
    }
}

/// Directories of pilots of ours that were killed.
fn clean() {
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

/// As real root a mount namespace is enough; others get theirs with a user namespace in which they stay who they are.
fn enter_namespaces(size_mb: u64) -> Result<PathBuf> {
    let target = Path::new(SHARED_MEMORY);
    if !target.is_dir() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(SysError::new("mount memory on", SHARED_MEMORY, source));
    }
    let (uid, gid) = process::user_and_group();
    let only_mounts = Namespaces {
        mount: true,
        ..Namespaces::NONE
    };
    if process::unshare(only_mounts).is_err() {
        process::unshare(Namespaces {
            user: true,
            ..only_mounts
        })?;
        // files in /proc of a process that is not dumpable are root's
        security::set_dumpable(true)?;
        let mapped = write("/proc/self/setgroups", "deny")
            .and_then(|()| write("/proc/self/uid_map", &format!("{uid} {uid} 1")))
            .and_then(|()| write("/proc/self/gid_map", &format!("{gid} {gid} 1")));
        security::set_dumpable(false)?;
        mapped?;
    }
    mount::make_all_private()?;
    mount::tmpfs(target, size_mb.max(1) << 20, 0o700)?;
    Ok(target.to_owned())
}

fn write(path: &str, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| SysError::new("write", path, source))
}
