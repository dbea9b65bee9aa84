//! Files, directories and links of a squashfs, and the walk over all of them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::squashfs::{stored_bytes, u16_at, u32_at, u64_at, Cursor, Squashfs, NO_FRAGMENT};
use crate::ImageError;

/// linux/limits.h
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;
/// Data blocks of one file; 1 TiB at 128 KiB each.
const BLOCKS_MAX: u64 = 8 << 20;

/// What an inode is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory(Listing),
    File(Content),
    Link(Vec<u8>),
    /// a device, FIFO or socket
    Special,
}

/// Where a directory's entries are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listing {
    block: u32,
    at: u16,
    bytes: u32,
}

/// Where a file's bytes are.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub bytes: u64,
    start: u64,
    fragment: u32,
    fragment_at: u32,
    blocks: Vec<u32>,
}

/// Neighbouring blocks of a file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// where the first one is in the image
    place: u64,
    /// and in the file
    offset: u64,
    blocks: std::ops::Range<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub mode: u32,
    pub modified_s: u32,
    pub number: u32,
    pub kind: Kind,
}

/// What an image holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub entries: u64,
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    /// devices, FIFOs and sockets: nothing is made of them
    pub special: u64,
    /// sum of the files' sizes, a file with several names once
    pub bytes: u64,
    /// that its tree takes in a tmpfs: whole pages, holes not counted
    pub memory_bytes: u64,
}

/// Memory that a tmpfs takes for a name besides pages (inode and directory entry): an assumption on the safe side, about
/// 700 bytes for the inode and 200 for the entry on 64-bit kernels.
const INODE_BYTES: u64 = 1024;
const PAGE_BYTES: u64 = 4096;

/// Takes a part of a file: offset and bytes.
pub(crate) type Taker<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), ImageError>;

impl Content {
    /// Bytes of pages that the file takes in a tmpfs.
    pub fn memory_bytes(&self, block_bytes: u32) -> u64 {
        let full = self
            .blocks
            .iter()
            .filter(|&&size| stored_bytes(size) != 0)
            .count() as u64;
        let tail = if self.fragment == NO_FRAGMENT {
            0
        } else {
            self.bytes % u64::from(block_bytes)
        };
        let most = full * u64::from(block_bytes) + tail;
        most.min(self.bytes).div_ceil(PAGE_BYTES) * PAGE_BYTES
    }

    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Hands over the file's bytes, block by block: offset and content. Holes are left out.
    pub fn read(&self, image: &mut Squashfs, take: Taker<'_>) -> Result<(), ImageError> {
        let parts = self.parts(image.head.block_bytes, usize::MAX);
        parts
            .iter()
            .try_for_each(|part| self.read_part(image, part, take))
    }

    /// The file in parts of at most `blocks_max` blocks; an empty file has one part, too.
    pub fn parts(&self, block_bytes: u32, blocks_max: usize) -> Vec<Part> {
        let (mut place, mut first) = (self.start, 0);
        let mut parts = Vec::new();
        while first == 0 || first < self.blocks.len() {
            let end = first.saturating_add(blocks_max).min(self.blocks.len());
            parts.push(Part {
                place,
                offset: first as u64 * u64::from(block_bytes),
                blocks: first..end,
            });
            let stored = self.blocks[first..end]
                .iter()
                .map(|&size| u64::from(stored_bytes(size)));
            place = stored.fold(place, u64::saturating_add);
            first = end.max(1);
        }
        parts
    }

    /// As `read`, of one part.
    pub fn read_part(&self, image: &mut Squashfs, part: &Part, take: Taker<'_>) -> Result<(), ImageError> {
        let block_bytes = u64::from(image.head.block_bytes);
        let (mut place, mut offset) = (part.place, part.offset);
        for &size in &self.blocks[part.blocks.clone()] {
            let expected = (self.bytes - offset).min(block_bytes) as usize;
            if stored_bytes(size) != 0 {
                let content = image.block(place, size, expected)?;
                take(offset, &content[..expected])?;
                place = place.saturating_add(u64::from(stored_bytes(size)));
            }
            offset += expected as u64;
        }
        if part.blocks.end == self.blocks.len() && offset < self.bytes {
            let length = (self.bytes - offset) as usize; // less than a block, see `read_content`
            let content = image.tail(self.fragment, self.fragment_at as usize, length)?;
            take(offset, &content)?;
        }
        Ok(())
    }
}

impl Squashfs {
    /// Follows a reference of the superblock or of a directory entry.
    pub fn node(&mut self, reference: u64) -> Result<Node, ImageError> {
        let block = self.head.inode_table + (reference >> 16);
        if block >= self.head.directory_table {
            return Err(self.damaged(format!(
                "inode reference {reference:#x} leads behind the inode table"
            )));
        }
        let mut cursor = Cursor {
            block,
            at: (reference & 0xffff) as usize,
        };
        let head = self.take(&mut cursor, 16)?;
        let kind = u16_at(&head, 0);
        Ok(Node {
            mode: u32::from(u16_at(&head, 2)) & 0o7777,
            modified_s: u32_at(&head, 8),
            number: u32_at(&head, 12),
            kind: self.read_kind(kind, cursor)?,
        })
    }

    fn read_kind(&mut self, kind: u16, mut cursor: Cursor) -> Result<Kind, ImageError> {
        match kind {
            1 => {
                let raw = self.take(&mut cursor, 16)?;
                Ok(Kind::Directory(Listing {
                    block: u32_at(&raw, 0),
                    bytes: u32::from(u16_at(&raw, 8)),
                    at: u16_at(&raw, 10),
                }))
            }
            8 => {
                let raw = self.take(&mut cursor, 24)?;
                Ok(Kind::Directory(Listing {
                    bytes: u32_at(&raw, 4),
                    block: u32_at(&raw, 8),
                    at: u16_at(&raw, 18),
                }))
            }
            2 => {
                let raw = self.take(&mut cursor, 16)?;
                let fields = (u64::from(u32_at(&raw, 0)), u64::from(u32_at(&raw, 12)));
                self.read_content(cursor, fields, u32_at(&raw, 4), u32_at(&raw, 8))
            }
            9 => {
                let raw = self.take(&mut cursor, 40)?;
                let fields = (u64_at(&raw, 0), u64_at(&raw, 8));
                self.read_content(cursor, fields, u32_at(&raw, 28), u32_at(&raw, 32))
            }
            3 | 10 => {
                let raw = self.take(&mut cursor, 8)?;
                let length = u32_at(&raw, 4) as usize;
                if length == 0 || length >= PATH_MAX {
                    return Err(self.damaged(format!("a link of {length} bytes")));
                }
                let target = self.take(&mut cursor, length)?;
                if target.contains(&0) {
                    return Err(self.damaged("a link with a NUL in it"));
                }
                Ok(Kind::Link(target))
            }
            4..=7 | 11..=14 => Ok(Kind::Special),
            other => Err(self.damaged(format!("an inode of type {other}"))),
        }
    }

    fn read_content(
        &mut self,
        mut cursor: Cursor,
        (start, bytes): (u64, u64),
        fragment: u32,
        fragment_at: u32,
    ) -> Result<Kind, ImageError> {
        let block_bytes = u64::from(self.head.block_bytes);
        let count = if fragment == NO_FRAGMENT {
            bytes.div_ceil(block_bytes)
        } else {
            bytes / block_bytes
        };
        if count > BLOCKS_MAX {
            return Err(self.damaged(format!("a file of {bytes} bytes")));
        }
        let raw = self.take(&mut cursor, count as usize * 4)?;
        Ok(Kind::File(Content {
            bytes,
            start,
            fragment,
            fragment_at,
            blocks: raw.chunks_exact(4).map(|size| u32_at(size, 0)).collect(),
        }))
    }

    /// Names and inode references of a directory, in the image's order.
    fn list(&mut self, listing: Listing, entries_max: u64) -> Result<Vec<(Vec<u8>, u64)>, ImageError> {
        let mut found = Vec::new();
        // the size counts `.` and `..` as three bytes that are not there
        let mut left = listing.bytes.saturating_sub(3) as usize;
        let mut cursor = Cursor {
            block: self.head.directory_table + u64::from(listing.block),
            at: usize::from(listing.at),
        };
        while left > 0 {
            let raw = self.take(&mut cursor, 12)?;
            let (count, block) = (u32_at(&raw, 0), u32_at(&raw, 4));
            left = self.less(left, 12)?;
            if count >= 256 {
                return Err(self.damaged(format!("{count} entries in one run of a directory")));
            }
            for _ in 0..=count {
                let raw = self.take(&mut cursor, 8)?;
                let length = usize::from(u16_at(&raw, 6)) + 1;
                left = self.less(left, 8 + length.min(NAME_MAX + 1))?;
                if length > NAME_MAX {
                    return Err(self.damaged(format!("a name of {length} bytes")));
                }
                let name = self.take(&mut cursor, length)?;
                if name == b"." || name == b".." || name.iter().any(|&byte| byte == b'/' || byte == 0) {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    return Err(self.damaged(format!("a file named `{name}`")));
                }
                if found.len() as u64 >= entries_max {
                    return Err(self.damaged(format!("a directory of more than {entries_max} entries")));
                }
                found.push((name, u64::from(block) << 16 | u64::from(u16_at(&raw, 0))));
            }
        }
        Ok(found)
    }

    fn less(&self, left: usize, taken: usize) -> Result<usize, ImageError> {
        left.checked_sub(taken)
            .ok_or_else(|| self.damaged("a directory ends in the middle of an entry"))
    }

    /// Visits everything, directories before what is in them: path below the root (empty for the root itself) and inode.
    /// More than `entries_max` entries, and directories that hold themselves, are errors.
    pub fn walk(
        &mut self,
        entries_max: u64,
        visit: &mut dyn FnMut(&mut Squashfs, &Path, &Node) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let mut waiting = vec![(PathBuf::new(), self.head.root)];
        let mut directories = HashSet::new();
        let mut entries = 0;
        while let Some((path, reference)) = waiting.pop() {
            entries += 1;
            if entries > entries_max {
                return Err(self.damaged(format!("it has more than {entries_max} entries")));
            }
            let node = self.node(reference)?;
            visit(self, &path, &node)?;
            match node.kind {
                Kind::Directory(listing) => {
                    if !directories.insert(reference) {
                        return Err(self.damaged(format!("directory `{}` is there twice", path.display())));
                    }
                    if path.as_os_str().len() + NAME_MAX > PATH_MAX {
                        return Err(self.damaged("a path of more than 4096 bytes"));
                    }
                    let below = self.list(listing, entries_max)?;
                    // what waits takes memory long before it is visited
                    if entries + (waiting.len() + below.len()) as u64 > entries_max {
                        return Err(self.damaged(format!("it has more than {entries_max} entries")));
                    }
                    let below = below.into_iter().rev();
                    waiting.extend(below.map(|(name, at)| (path.join(OsStr::from_bytes(&name)), at)));
                }
                _ if path.as_os_str().is_empty() => {
                    return Err(self.damaged("its root is not a directory"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts everything.
    pub fn survey(&mut self, entries_max: u64) -> Result<Survey, ImageError> {
        let mut survey = Survey::default();
        let mut numbers = HashSet::new();
        self.walk(entries_max, &mut |image, _, node| {
            survey.entries += 1;
            survey.memory_bytes = survey.memory_bytes.saturating_add(INODE_BYTES);
            match &node.kind {
                Kind::Directory(_) => survey.directories += 1,
                Kind::Link(_) => survey.links += 1,
                Kind::Special => survey.special += 1,
                Kind::File(content) => {
                    survey.files += 1;
                    if numbers.insert(node.number) {
                        survey.bytes = survey.bytes.saturating_add(content.bytes);
                        let memory_bytes = content.memory_bytes(image.head.block_bytes);
                        survey.memory_bytes = survey.memory_bytes.saturating_add(memory_bytes);
                    }
                }
            }
            Ok(())
        })?;
        Ok(survey)
    }
}
