//! Software images on a node: read, shown as a directory, and laid over the paths of the original.
//!
//! `show` makes an image's tree a directory, once per node; `cover` lays it over the original paths, in each slot's own
//! mount namespace; `relocate` rewrites paths where there are no namespaces. `command` is `tidemill-node image`. Knows
//! nothing of pilots and slots.
//!
//! ```text
//! assemble(recipe's pieces) -> image file, digest compared
//! show(image, S/images/SHA, "auto", &limits) -> Shown { root, way, note, bytes }   keep it: dropping it ends squashfuse
//! cover(&shown.root, &areas, S/over, real) -> Covering { note }   in the slot, before it gives up its rights
//! covering.is_changed() says whether something was written below an area; covering.renew() takes it back
//! shown.watch() is readable once squashfuse has ended; shown.ended() then says how
//! ```

mod assemble;
mod choose;
mod cover;
mod error;
mod fuse;
mod inode;
mod relocate;
mod run;
mod show;
mod squashfs;
mod unpack;
mod write;

pub use assemble::{assemble, digest};
pub use choose::choose;
pub use cover::{cover, Covering};
pub use error::ImageError;
pub use fuse::PROGRAM_PLACES;
pub use inode::Survey;
pub use relocate::relocate;
pub use run::command;
pub use show::{show, Shown};
pub use unpack::{check, unpack, Links};

/// Where payloads see the real tree: stubs of an image lead there.
pub const ALIAS: &str = "/tmp/.tidemill/real";

/// How an image is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// by squashfuse
    Fuse,
    /// as files in memory
    Unpack,
    /// as files in memory at another path, which programs get in their arguments and environment
    Relocate,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Fuse => "fuse",
            Way::Unpack => "unpack",
            Way::Relocate => "relocate",
        }
    }
}

/// Bounds of showing an image.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// memory that it may take besides the image file
    pub memory_bytes: u64,
    /// files, directories and links
    pub entries: u64,
    /// squashfuse answers by then or is given up
    pub answer_s: f64,
}

impl Limits {
    /// With the defaults for what is not memory: 4 million entries, 20 s.
    pub fn memory(memory_bytes: u64) -> Self {
        Limits {
            memory_bytes,
            entries: 4 << 20,
            answer_s: 20.0,
        }
    }
}
