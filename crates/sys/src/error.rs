//! The one error of this crate.

use std::io;

/// A system call failed: which operation, on what (a path, a pid), and the cause.
#[derive(Debug, thiserror::Error)]
#[error("failed to {operation}{}", on(subject))]
pub struct SysError {
    pub operation: &'static str,
    /// empty where the operation has no object
    pub subject: String,
    #[source]
    pub source: io::Error,
}

fn on(subject: &str) -> String {
    if subject.is_empty() {
        String::new()
    } else {
        format!(" `{subject}`")
    }
}

impl SysError {
    /// The error of the system call that just failed.
    pub fn last(operation: &'static str, subject: impl Into<String>) -> Self {
        SysError::new(operation, subject, io::Error::last_os_error())
    }

    pub fn new(operation: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        SysError {
            operation,
            subject: subject.into(),
            source,
        }
    }

    /// The operating system's error number; 0 where there is none.
    pub fn os_error(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

/// Result of a system call.
pub type Result<T> = std::result::Result<T, SysError>;

/// Gives a failed call its operation and object; a result that is good costs nothing.
pub(crate) trait Named<T> {
    fn named(self, operation: &'static str, subject: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Named<T> for std::result::Result<T, E> {
    fn named(self, operation: &'static str, subject: impl Into<String>) -> Result<T> {
        self.map_err(|source| SysError::new(operation, subject, source.into()))
    }
}

/// -1 means that errno says what happened.
pub(crate) fn check(
    result: impl Into<i64>,
    operation: &'static str,
    subject: impl Into<String>,
) -> Result<i64> {
    let result = result.into();
    if result == -1 {
        return Err(SysError::last(operation, subject));
    }
    Ok(result)
}
