//! Errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

use tidemill_sys::SysError;

/// An image could not be had, or not be shown. The message is evidence of a failure of class `image`.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("failed to {operation} `{}`{}", path.display(), full(source))]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("image `{}` is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("image `{}` cannot be read here: {what}", path.display())]
    Unsupported { path: PathBuf, what: String },
    #[error("image `{name}` has sha256 {found} after {bytes} bytes, its recipe says {expected} and {expected_bytes} bytes: a pack is truncated or was changed")]
    Digest {
        name: String,
        expected: String,
        expected_bytes: u64,
        found: String,
        bytes: u64,
    },
    #[error("image `{}` needs {needed_mb} MB of memory to be {what}, {limit_mb} MB are left", path.display())]
    TooBig {
        path: PathBuf,
        what: &'static str,
        needed_mb: u64,
        limit_mb: u64,
    },
    #[error("recipe `{}`: {what}", path.display())]
    Recipe { path: PathBuf, what: String },
    /// squashfuse did not come up, or ended
    #[error("{0}")]
    Fuse(String),
    #[error("image has no directory `{}` to show at `{area}`", path.display())]
    NoArea { area: String, path: PathBuf },
    #[error("`{0}` is not a way to show an image; the ways are auto, fuse, unpack and relocate")]
    NoWay(String),
    /// the caller has to go
    #[error("stopped while {0}")]
    Stopped(&'static str),
    #[error(transparent)]
    Sys(#[from] SysError),
}

impl ImageError {
    pub(crate) fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
        let path = path.to_owned();
        move |source| ImageError::File {
            operation,
            path,
            source,
        }
    }

    /// With its causes, for people.
    pub fn chain(&self) -> String {
        tidemill_wire::log::cause(self)
    }
}

/// ENOSPC of a file system in memory means something that people can mend.
fn full(source: &io::Error) -> &'static str {
    if source.raw_os_error() == Some(tidemill_sys::errno::ENOSPC) {
        " (the memory given to images is full)"
    } else {
        ""
    }
}
