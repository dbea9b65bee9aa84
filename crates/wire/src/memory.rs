//! Memory that programs take on a node: the same answer in lead and pilot, and in `src/tidemill/site/applications/memory.py`.
//!
//! A slot takes what its payloads may use and what its work directory may grow to, since both are memory. Images are
//! there once for all slots. A node without room for a work directory may have a place for it elsewhere (`spill`).

use crate::generated::{ImageUse, Program};

/// Of a squashfuse with its cache of blocks; an image that is unpacked instead takes more, where there is more.
pub const IMAGE_SERVER_MB: u64 = 64;

/// Memory that an image takes at least, once it is shown.
pub fn image_mb(image: &ImageUse) -> u64 {
    image.file.bytes.div_ceil(1 << 20) + IMAGE_SERVER_MB
}

/// Of all images that a program needs, each counted once.
pub fn images_mb(images: &[ImageUse]) -> u64 {
    let mut seen: Vec<&str> = Vec::new();
    let mut sum_mb = 0;
    for image in images {
        if !seen.contains(&image.file.sha256.as_str()) {
            seen.push(&image.file.sha256);
            sum_mb += image_mb(image);
        }
    }
    sum_mb
}

/// How a slot gets its work directory on a node of `memory_mb`; None = it does not fit at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDirectory {
    InMemory,
    Spilled,
}

/// Where one slot's work directory goes on a node that is otherwise empty. `spills`: there is a place besides memory.
pub fn work_directory(
    (slot_mb, scratch_mb): (u64, u64),
    (memory_mb, images_mb): (u64, u64),
    spills: bool,
) -> Option<WorkDirectory> {
    let free_mb = memory_mb.checked_sub(images_mb)?;
    if slot_mb.saturating_add(scratch_mb) <= free_mb {
        return Some(WorkDirectory::InMemory);
    }
    (spills && slot_mb <= free_mb).then_some(WorkDirectory::Spilled)
}

/// Whether a node of `memory_mb` that is otherwise empty has room for a slot of the program.
pub fn has_room(program: &Program, memory_mb: u64, spills: bool) -> bool {
    let slot = (program.memory_mb, program.scratch_mb);
    work_directory(slot, (memory_mb, images_mb(&program.images)), spills).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::StagedFile;

    fn image(sha256: &str, bytes: u64) -> ImageUse {
        ImageUse {
            name: "sw".into(),
            file: StagedFile {
                sha256: sha256.into(),
                bytes,
                pieces: vec![],
            },
            areas: vec!["/sw".into()],
            unpacked_bytes: 4 * bytes,
        }
    }

    #[test]
    fn a_work_directory_counts_like_the_memory_of_its_payloads() {
        let at = |memory_mb, spills| work_directory((1000, 500), (memory_mb, 0), spills);
        assert_eq!(at(1500, false), Some(WorkDirectory::InMemory));
        assert_eq!(
            (at(1499, false), at(1499, true)),
            (None, Some(WorkDirectory::Spilled))
        );
        assert_eq!(at(999, true), None);
    }

    #[test]
    fn an_image_counts_once_however_often_it_is_named() {
        let images = [image("a", 10 << 20), image("b", 1), image("a", 10 << 20)];
        assert_eq!(images_mb(&images), 10 + 1 + 2 * IMAGE_SERVER_MB);
        let program = Program {
            memory_mb: 100,
            scratch_mb: 25,
            images: images.to_vec(),
            ..Program::default()
        };
        assert!(has_room(&program, 264, false) && !has_room(&program, 263, false));
        assert!(has_room(&program, 239, true) && !has_room(&program, 238, true));
    }
}
