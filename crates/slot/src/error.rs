//! Errors of this crate.

use std::io;

use tidemill_sys::SysError;

/// A slot could not be started, or talked to.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error("failed to start slot {index}")]
    Start {
        index: u32,
        #[source]
        source: SysError,
    },
    #[error("slot {index} refused to start: {reason}")]
    Refused { index: u32, reason: String },
    #[error("failed to {operation} slot {index} (pid {pid})")]
    Talk {
        operation: &'static str,
        index: u32,
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("slot {index} (pid {pid}) ended: {reason}")]
    Ended { index: u32, pid: i32, reason: String },
    #[error("slot {index} (pid {pid}) sent what cannot be read: {what}")]
    Garbled { index: u32, pid: i32, what: String },
    #[error("failed to {operation} output `{path}` of slot {index}")]
    Output {
        operation: &'static str,
        path: String,
        index: u32,
        #[source]
        source: SysError,
    },
    #[error(transparent)]
    Sys(#[from] SysError),
}
