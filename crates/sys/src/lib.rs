//! System calls, thin and typed; the only `unsafe` of the node part. Knows nothing of slots, pilots and leads.
//!
//! Every error names the operation and its object. Nothing here panics, and nothing starts a thread.

pub mod attribute;
pub mod child;
mod error;
pub mod fd;
pub mod file;
pub mod mount;
pub mod mountinfo;
pub mod overlay;
pub mod own;
pub mod process;
pub mod ptrace;
pub mod seccomp;
pub mod security;
pub mod sendfile;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod time;
pub mod trial;
pub mod writeback;

pub use error::{Result, SysError};
