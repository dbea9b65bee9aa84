//! Which way an image is shown, where several are possible.

use crate::Way;

/// The largest image that is unpacked: at 500 MB/s and more (one thread, several) unpacking takes no longer than
/// squashfuse adds to the first import of a scientific stack (0.1 to 0.3 s; images-on-nodes.md of the extension `images`).
const SMALL_BYTES: u64 = 128 << 20;
/// An unpacked image takes at most 1/SHARE of the memory that images may take.
const SHARE: u64 = 4;

/// The way that `auto` tries first. `unpacked_bytes` is what the tree takes in a tmpfs, `room_bytes` what it may take.
///
/// squashfuse is ready at once and needs little memory, but the first access to each file goes through its process. An
/// unpacked tree, once written, is as fast as memory and depends on no process, but it takes its whole size.
pub fn choose(unpacked_bytes: u64, room_bytes: u64) -> Way {
    if unpacked_bytes <= SMALL_BYTES && unpacked_bytes <= room_bytes / SHARE {
        Way::Unpack
    } else {
        Way::Fuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_trees_are_unpacked_where_memory_is_plenty() {
        assert_eq!(choose(100 << 20, 1 << 30), Way::Unpack);
        assert_eq!(choose(100 << 20, 300 << 20), Way::Fuse);
        assert_eq!(choose(200 << 20, 1 << 40), Way::Fuse);
    }
}
