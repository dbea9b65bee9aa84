//! A reader of squashfs 4.0 with zstd, bounded against images that lie.
//!
//! Layout: Linux fs/squashfs/squashfs_fs.h. Nothing that an image says is believed before it is compared with the length
//! of the file, the block size or a limit.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::ImageError;

const MAGIC: u32 = 0x7371_7368;
const HEAD_BYTES: usize = 96;
const ZSTD: u16 = 6;
/// Largest uncompressed metadata block.
const METADATA_BYTES: usize = 8192;
/// Metadata blocks that are kept uncompressed; 64 MiB.
const METADATA_KEPT: usize = 8192;
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// "There is none", as a table's place or a file's fragment.
const NOTHING: u64 = u64::MAX;
pub(crate) const NO_FRAGMENT: u32 = u32::MAX;
/// In a data block's size: not compressed.
const PLAIN_BLOCK: u32 = 1 << 24;
const PLAIN_METADATA: u16 = 1 << 15;

/// What the superblock says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub block_bytes: u32,
    pub fragments: u32,
    pub root: u64,
    pub bytes: u64,
    pub inode_table: u64,
    pub directory_table: u64,
    fragment_table: u64,
}

/// An open image.
pub(crate) struct Squashfs {
    file: File,
    path: PathBuf,
    pub head: Head,
    zstd: zstd::bulk::Decompressor<'static>,
    /// by place in the file: contents, and where the next block begins
    metadata: HashMap<u64, (Rc<Vec<u8>>, u64)>,
    /// the fragment block read last
    fragment: Option<(u64, Vec<u8>)>,
    raw: Vec<u8>,
    /// the data block read last; kept, since new memory for each costs as much as uncompressing it
    content: Vec<u8>,
}

/// Where one reads in a chain of metadata blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub block: u64,
    pub at: usize,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl Squashfs {
    /// Opens an image and checks its superblock.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(ImageError::file("open", path))?;
        let length = file.metadata().map_err(ImageError::file("stat", path))?.len();
        let damaged = |what: String| ImageError::Damaged {
            path: path.to_owned(),
            what,
        };
        let mut raw = [0; HEAD_BYTES];
        file.read_exact_at(&mut raw, 0)
            .map_err(|_| damaged(format!("{length} bytes are too short for a squashfs")))?;
        let head = read_head(&raw, length, path)?;
        let zstd = zstd::bulk::Decompressor::new().map_err(ImageError::file("prepare zstd for", path))?;
        Ok(Squashfs {
            file,
            path: path.to_owned(),
            head,
            zstd,
            metadata: HashMap::new(),
            fragment: None,
            raw: Vec::new(),
            content: Vec::with_capacity(head.block_bytes as usize),
        })
    }

    pub fn damaged(&self, what: impl Into<String>) -> ImageError {
        ImageError::Damaged {
            path: self.path.clone(),
            what: what.into(),
        }
    }

    /// `length` bytes at `at` of the file, into `self.raw`.
    fn fetch(&mut self, at: u64, length: usize) -> Result<(), ImageError> {
        let end = at
            .checked_add(length as u64)
            .filter(|&end| end <= self.head.bytes);
        if end.is_none() {
            return Err(self.damaged(format!(
                "{length} bytes at {at} are asked for, it has {}",
                self.head.bytes
            )));
        }
        self.raw.resize(length, 0);
        let read = self.file.read_exact_at(&mut self.raw, at);
        read.map_err(ImageError::file("read", &self.path))
    }

    /// `self.raw` uncompressed: at most the room of `out`, at least one byte.
    fn uncompress(&mut self, at: u64, out: &mut Vec<u8>) -> Result<(), ImageError> {
        match self.zstd.decompress_to_buffer(&self.raw, out) {
            Ok(0) => Err(self.damaged(format!("the block at {at} is empty"))),
            Ok(_) => Ok(()),
            Err(source) => Err(self.damaged(format!("the block at {at} cannot be uncompressed: {source}"))),
        }
    }

    /// A metadata block, and where the next one begins.
    fn metadata(&mut self, at: u64) -> Result<(Rc<Vec<u8>>, u64), ImageError> {
        if let Some(known) = self.metadata.get(&at) {
            return Ok(known.clone());
        }
        self.fetch(at, 2)?;
        let header = u16_at(&self.raw, 0);
        let length = usize::from(header & !PLAIN_METADATA);
        if length == 0 || length > METADATA_BYTES {
            return Err(self.damaged(format!("the metadata block at {at} has {length} bytes")));
        }
        self.fetch(at + 2, length)?;
        let content = if header & PLAIN_METADATA != 0 {
            self.raw.clone()
        } else {
            let mut content = Vec::with_capacity(METADATA_BYTES);
            self.uncompress(at, &mut content)?;
            content
        };
        if self.metadata.len() >= METADATA_KEPT {
            self.metadata.clear();
        }
        let known = (Rc::new(content), at + 2 + length as u64);
        self.metadata.insert(at, known.clone());
        Ok(known)
    }

    /// Reads on in metadata, across blocks. `length` is bounded by what a single structure can hold.
    pub fn take(&mut self, cursor: &mut Cursor, length: usize) -> Result<Vec<u8>, ImageError> {
        let mut out = Vec::with_capacity(length.min(2 * METADATA_BYTES));
        while out.len() < length {
            let (content, next) = self.metadata(cursor.block)?;
            if cursor.at > content.len() {
                return Err(self.damaged(format!("offset {} is beyond its metadata block", cursor.at)));
            }
            let step = (content.len() - cursor.at).min(length - out.len());
            out.extend_from_slice(&content[cursor.at..cursor.at + step]);
            cursor.at += step;
            if out.len() < length {
                *cursor = Cursor { block: next, at: 0 };
            }
        }
        Ok(out)
    }

    /// A data block: its size in the block list, how many bytes it holds when uncompressed.
    pub fn block(&mut self, at: u64, size: u32, expected: usize) -> Result<&[u8], ImageError> {
        let length = stored_bytes(size) as usize;
        if length == 0 || length > self.head.block_bytes as usize {
            return Err(self.damaged(format!("the data block at {at} has {length} bytes")));
        }
        self.fetch(at, length)?;
        let content = if size & PLAIN_BLOCK != 0 {
            &self.raw
        } else {
            let mut content = std::mem::take(&mut self.content);
            let uncompressed = self.uncompress(at, &mut content);
            self.content = content;
            uncompressed?;
            &self.content
        };
        if content.len() < expected {
            return Err(self.damaged(format!(
                "the data block at {at} holds {} bytes, not {expected}",
                content.len()
            )));
        }
        Ok(content)
    }

    /// The end of a file that shares its last block with others.
    pub fn tail(&mut self, fragment: u32, at: usize, length: usize) -> Result<Vec<u8>, ImageError> {
        if fragment >= self.head.fragments || self.head.fragment_table == NOTHING {
            return Err(self.damaged(format!("fragment {fragment} of {}", self.head.fragments)));
        }
        let entries = (METADATA_BYTES / 16) as u32;
        let index = u64::from(fragment / entries) * 8;
        self.fetch(self.head.fragment_table.saturating_add(index), 8)?;
        let mut cursor = Cursor {
            block: u64_at(&self.raw, 0),
            at: (fragment % entries) as usize * 16,
        };
        let entry = self.take(&mut cursor, 16)?;
        let (place, size) = (u64_at(&entry, 0), u32_at(&entry, 8));
        if self.fragment.as_ref().map(|(known, _)| *known) != Some(place) {
            self.fragment = Some((place, self.block(place, size, 1)?.to_vec()));
        }
        let content = self.fragment.as_ref().map_or(&[][..], |(_, content)| content);
        match at.checked_add(length).and_then(|end| content.get(at..end)) {
            Some(part) => Ok(part.to_vec()),
            None => Err(self.damaged(format!(
                "{length} bytes at {at} of a fragment of {}",
                content.len()
            ))),
        }
    }
}

/// Bytes that a data block takes in the image; 0 for a hole.
pub(crate) fn stored_bytes(size: u32) -> u32 {
    size & (PLAIN_BLOCK - 1)
}

fn read_head(raw: &[u8; HEAD_BYTES], length: u64, path: &Path) -> Result<Head, ImageError> {
    let damaged = |what: String| ImageError::Damaged {
        path: path.to_owned(),
        what,
    };
    let unsupported = |what: String| ImageError::Unsupported {
        path: path.to_owned(),
        what,
    };
    if u32_at(raw, 0) != MAGIC {
        return Err(damaged("it is not a squashfs".into()));
    }
    let (major, minor, compression) = (u16_at(raw, 28), u16_at(raw, 30), u16_at(raw, 20));
    if (major, minor) != (4, 0) {
        return Err(unsupported(format!("squashfs {major}.{minor}, not 4.0")));
    }
    if compression != ZSTD {
        let name = ["?", "gzip", "lzma", "lzo", "xz", "lz4"].get(usize::from(compression));
        return Err(unsupported(format!(
            "it is compressed with {}, not zstd",
            name.unwrap_or(&"something unknown")
        )));
    }
    let head = Head {
        block_bytes: u32_at(raw, 12),
        fragments: u32_at(raw, 16),
        root: u64_at(raw, 32),
        bytes: u64_at(raw, 40),
        inode_table: u64_at(raw, 64),
        directory_table: u64_at(raw, 72),
        fragment_table: u64_at(raw, 80),
    };
    if !head.block_bytes.is_power_of_two() || !(4096..=BLOCK_BYTES_MAX).contains(&head.block_bytes) {
        return Err(damaged(format!("blocks of {} bytes", head.block_bytes)));
    }
    if head.bytes > length {
        return Err(damaged(format!(
            "it says that it has {} bytes, the file has {length}",
            head.bytes
        )));
    }
    for (name, place) in [("inode", head.inode_table), ("directory", head.directory_table)] {
        if place >= head.bytes {
            return Err(damaged(format!(
                "its {name} table begins at {place}, behind its end"
            )));
        }
    }
    Ok(head)
}
