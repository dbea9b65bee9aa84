//! Why a stage cannot start, and why a source did not serve.

use std::io;
use std::path::PathBuf;

use tidemill_sys::{errno, SysError};
use tidemill_wire::WireError;

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("{0}")]
    Usage(String),
    #[error("the pilot was not understood: {message}")]
    Control { message: String },
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// Why one source did not give the whole file.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("failed to {operation} `{peer}`")]
    Peer {
        operation: &'static str,
        peer: String,
        #[source]
        source: io::Error,
    },
    #[error("`{peer}` {message}")]
    Refused { peer: String, message: String },
    #[error("block {block} from `{peer}` has checksum {found:08x}, expected {expected:08x}")]
    Damaged {
        peer: String,
        block: u64,
        found: u32,
        expected: u32,
    },
    #[error("failed to read {length} bytes at {offset} of `{path}`")]
    Shared {
        path: String,
        offset: u64,
        length: u64,
        #[source]
        source: io::Error,
    },
    #[error("its pieces on the shared file system have {found} bytes together, expected {expected}")]
    Pieces { found: u64, expected: u64 },
    #[error("what came from {from} has digest sha256:{found}, expected sha256:{expected}")]
    Digest {
        from: String,
        found: String,
        expected: String,
    },
    #[error("failed to keep it in the node's store `{}`", path.display())]
    Store {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no room in the node's store `{}`: it has {bytes} bytes, and {used} of {max} are taken", path.display())]
    Full {
        path: PathBuf,
        bytes: u64,
        used: u64,
        max: u64,
    },
    #[error("it is no longer wanted")]
    Dropped,
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl FetchError {
    /// Whether this node has no room for it.
    pub fn is_full(&self) -> bool {
        match self {
            FetchError::Full { .. } => true,
            FetchError::Store { source, .. } => {
                matches!(
                    source.raw_os_error(),
                    Some(errno::ENOSPC | errno::EDQUOT | errno::ENOMEM)
                )
            }
            _ => false,
        }
    }
}
