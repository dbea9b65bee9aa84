//! A slot: the cores, memory and devices on which one payload runs, and its init, which is the spawn loop.
//!
//! `start` forks the init (PID 1 of the slot's namespaces); the pilot sends it `ToSlot` and reads `FromSlot`, and never
//! starts anything per event. This crate knows no lead, no fleet directory and no record numbers.
//!
//! What a payload gets: `argv[0]` is `Program.executable`, followed by `JobDef.argv` with its templates filled; an
//! environment made of the program's, the job's and TIDEMILL_*; an empty work directory as current directory, with
//! the inputs by name unless `Program.inputs_apart`; a /tmp and /dev/shm of its own (`init/place.rs` describes how); no capabilities.

mod capture;
mod codec;
mod devices;
mod error;
mod field;
mod handle;
#[cfg(test)]
mod hostile;
mod init;
mod line;
mod message;
mod protocol;
mod queue;
mod template;

pub use error::SlotError;
pub use handle::{start, Slot};
pub use message::{
    Done, Failed, FromSlot, Isolated, Isolation, Network, PayloadLog, SlotDevice, SlotImage, SlotOutput,
    SlotSpec, ToSlot, Vendor,
};
