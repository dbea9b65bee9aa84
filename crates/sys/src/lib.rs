//! System calls, thin and typed; the only `unsafe` of the node part. Knows nothing of slots, pilots and leads.
//!
//! Most are rustix's. By hand is what rustix lacks (fork, vfork, ptrace, seccomp filters, signals) and what it does through
//! the auxiliary vector (clocks, page size), which a process that is not dumpable cannot read. Every error names the
//! operation and its object. Nothing here panics, and nothing starts a thread.

pub mod calls;
pub mod child;
mod error;
pub mod fd;
pub mod file;
pub mod landlock;
pub mod machine;
pub mod mount;
pub mod mountinfo;
pub mod overlay;
pub mod own;
pub mod process;
pub mod ptrace;
pub mod security;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod time;
pub mod trial;

pub use error::{Result, SysError};
pub use process::proc;
pub use security::bpf;
pub use socket::framed;

/// Numbers of errors, by their names in errno(3).
pub mod errno {
    pub use libc::{EDQUOT, EEXIST, ENOENT, ENOMEM, ENOSPC};
}
