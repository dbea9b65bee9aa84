//! What agent, lead and pilots write to each other: types, framed lines, journals, the handshake, line buffers; and
//! what a process and a child that works for it do (`worker`).
//!
//! The types come from `src/tidemill/wire/node.py`, where the protocol is described. This crate knows no kind of
//! process and no scheduling.

pub mod alive;
mod error;
pub mod file_systems;
pub mod frame;
#[rustfmt::skip]
mod generated;
pub mod handshake;
pub mod hex;
pub mod intervals;
pub mod journal;
pub mod lines;
pub mod log;
pub mod memory;
pub mod segments;
mod work;
pub mod worker;

pub use alive::{AliveFile, Silence};
pub use error::WireError;
pub use generated::*;
pub use journal::{JournalReader, JournalWriter};
pub use lines::{Fill, LineBuffer, OutBuffer};
pub use segments::SegmentLog;
pub use work::{one_line, WorkReader, WorkText};

/// The job of a number that a fleet uses. Forms of a job differ by multiples of `FORM_BASE`; numbers from `STEPS_FROM` on
/// are the site's own steps, which have one form.
pub const fn job_of(number: u64) -> u64 {
    if number >= STEPS_FROM {
        number
    } else {
        number % FORM_BASE
    }
}

/// A line (message, record) is never longer; a peer that sends a longer one is dropped.
pub const LINE_BYTES_MAX: usize = 16 << 20;
