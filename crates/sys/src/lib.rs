//! System calls, thin and typed; the only `unsafe` of the node part. Knows nothing of slots, pilots and leads.

mod error;

pub use error::{Result, SysError};
