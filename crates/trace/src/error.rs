//! What can go wrong around a trace.

use tidemill_sys::SysError;

/// Why there is no trace, or no profile.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{message}")]
    Usage { message: String },
    #[error("{message}")]
    NotFound { message: String, status: i32 },
    #[error("this system does not let `{command}` be traced")]
    Refused {
        command: String,
        #[source]
        source: SysError,
    },
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error("failed to write profile to `{to}`")]
    Write {
        to: String,
        #[source]
        source: std::io::Error,
    },
}

impl TraceError {
    /// 2 usage, 3 this node; where the command is at fault, what a shell would say.
    pub fn exit_code(&self) -> i32 {
        match self {
            TraceError::Usage { .. } => 2,
            TraceError::NotFound { status, .. } => *status,
            _ => 3,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            TraceError::Usage { .. } => "tidemill-node trace --help",
            TraceError::NotFound { .. } => "give the command's path",
            TraceError::Refused { .. } => {
                "the kernel may be older than 4.8; ptrace may be switched off (/proc/sys/kernel/yama/ptrace_scope of 2 or 3), forbidden in this container, \
                 or in use by another tracer; `--best-effort` runs the command untraced"
            }
            TraceError::Sys(_) => "trace again; `--plain` puts nothing into the traced programs",
            TraceError::Write { .. } => "give another place with `-o`",
        }
    }
}
