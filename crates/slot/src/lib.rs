//! A slot: the cores, memory and devices on which one payload runs, and its init, which is the spawn loop.
//!
//! `start` forks the init (PID 1 of the slot's namespaces); the pilot sends it `ToSlot` and reads `FromSlot`, and never
//! starts anything per event. This crate knows no lead, no fleet directory and no record numbers.
//!
//! What a payload gets: `argv[0]` is `Program.executable`, followed by `JobDef.argv` with its templates filled.

mod error;
mod handle;
mod message;

pub use error::SlotError;
pub use handle::{start, Slot};
pub use message::{Done, Failed, FromSlot, Isolated, Isolation, PayloadLog, SlotOutput, SlotSpec, ToSlot};
