//! Why a lead cannot start or go on.

use std::io;

use tidemill_sys::SysError;
use tidemill_wire::WireError;

#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error("failed to {operation} `{address}`")]
    Socket {
        operation: &'static str,
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to use {what} `{value}`: {reason}")]
    Config {
        what: &'static str,
        value: String,
        reason: String,
    },
}

impl LeadError {
    /// 2: usage or configuration; 3: file system or network.
    pub fn exit_code(&self) -> i32 {
        match self {
            LeadError::Usage(_) | LeadError::Config { .. } => 2,
            LeadError::Wire(WireError::Json { .. }) => 2,
            LeadError::Wire(_) | LeadError::Sys(_) | LeadError::Socket { .. } => 3,
        }
    }
}
