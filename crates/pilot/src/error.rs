//! Errors of this crate: what was attempted, on what; the exit code that goes with it. And the log they end up in.

use std::io;
use std::path::PathBuf;

use tidemill_wire::log::Log;

pub const LOG: Log = Log::new("pilot");

/// Why a pilot cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum PilotError {
    #[error("failed to {operation} `{}`", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to {operation}")]
    System {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("failed to read `{}` as {what}", path.display())]
    Json {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("`{}` has format {found}, this version reads {known}", path.display())]
    Format { path: PathBuf, found: u64, known: u64 },
    #[error("environment variable {name} is `{value}`, expected {expected}")]
    Variable {
        name: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("{message}")]
    Usage { message: String },
    #[error(transparent)]
    Wire(#[from] tidemill_wire::WireError),
    #[error("lost the lead: {message}")]
    Lead { message: String },
    #[error("failed to start a slot: {message}")]
    Slot { message: String },
    #[error("failed to take over output `{name}`: {message}")]
    Output { name: String, message: String },
}

impl PilotError {
    /// For `map_err` after an operation on a file.
    pub fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| PilotError::File {
            operation,
            path,
            source,
        }
    }

    /// For `map_err` after another system call.
    pub fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| PilotError::System { operation, source }
    }

    /// 2 usage or configuration, 3 site or network: the table of the command line.
    pub fn exit_code(&self) -> i32 {
        match self {
            PilotError::Usage { .. } | PilotError::Variable { .. } | PilotError::Format { .. } => 2,
            _ => 3,
        }
    }

    /// Whether it was met at an output in its slot, and not where outputs are kept.
    pub fn is_at_output(&self) -> bool {
        match self {
            PilotError::Output { .. } => true,
            PilotError::File { operation, .. } => {
                matches!(*operation, "open output" | "read output" | "stat output")
            }
            _ => false,
        }
    }

    /// Whether an output could not be read, or not be taken: its payload's fault. What the node lacks is not.
    pub fn is_of_output(&self) -> bool {
        self.is_at_output() && !matches!(self.os_error(), Some(number) if is_of_node(number))
    }

    /// Whether the file system is full or the quota is used up.
    pub fn is_full(&self) -> bool {
        matches!(self.os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
    }

    fn os_error(&self) -> Option<i32> {
        match self {
            PilotError::File { source, .. } | PilotError::System { source, .. } => source.raw_os_error(),
            PilotError::Wire(error) => error.os_error(),
            _ => None,
        }
    }
}

/// Whether an error number says that the node has no descriptors or memory left: that passes, and meets every output
/// alike. A disk that fails (EIO) stays so for one file: tried again, it would hold up all that waits behind it.
pub fn is_of_node(number: i32) -> bool {
    matches!(number, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}
