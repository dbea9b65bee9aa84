//! Errors of this crate: each names the path or the line.

use std::io;
use std::path::PathBuf;

/// Something could not be read from or written to a file or peer.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("failed to {operation} `{}`", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a line of more than {limit} bytes")]
    LineTooLong { limit: usize },
    #[error("a line without a valid checksum: `{quoted}`")]
    Checksum { quoted: String },
    #[error("failed to read `{quoted}` as {what}")]
    Json {
        what: &'static str,
        quoted: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("failed to {operation} the process `{name}`")]
    Process {
        operation: &'static str,
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to get random bytes")]
    Random(#[source] io::Error),
}

impl WireError {
    /// For `map_err` after an operation on a file.
    pub fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| WireError::File {
            operation,
            path,
            source,
        }
    }

    /// The operating system's error number, where there is one.
    pub fn os_error(&self) -> Option<i32> {
        match self {
            WireError::File { source, .. } | WireError::Random(source) => source.raw_os_error(),
            _ => None,
        }
    }
}

/// At most 120 bytes of a line, fit for a message.
pub fn quote(line: &[u8]) -> String {
    let cut = &line[..line.len().min(120)];
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if line.len() > cut.len() {
        text.push_str("...");
    }
    text
}

/// An error and its causes in one line: `a: b: c`.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(each) = cause {
        text.push_str(": ");
        text.push_str(&each.to_string());
        cause = each.source();
    }
    text
}
