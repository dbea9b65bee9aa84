//! An image's tree as files of one's own, usually in a tmpfs.

use std::collections::HashMap;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tidemill_sys::file::set_modified;

use crate::inode::{Kind, Node, Survey};
use crate::squashfs::Squashfs;
use crate::write::{write_files, NewFile};
use crate::{ImageError, Limits, ALIAS};

/// Where links lead that name a path from the root on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// as they are: the tree is going to be shown at its old paths
    Keep,
    /// into the tree where it holds what they name, and from stubs to the real files
    Relocate,
}

/// Unpacks an image into `to`, an existing empty directory; returns what it holds. Modes (without set-user-id bits),
/// modification times, hard links, holes and empty directories come back; owners become us; devices, FIFOs and sockets are
/// left out. Refuses, before it writes anything, what would take more memory than the limit. Some threads write files.
pub fn unpack(image: &Path, to: &Path, links: Links, limits: &Limits) -> Result<Survey, ImageError> {
    let mut squashfs = Squashfs::open(image)?;
    let survey = squashfs.survey(limits.entries)?;
    let mb = |bytes: u64| bytes.div_ceil(1 << 20);
    if survey.memory_bytes > limits.memory_bytes {
        return Err(ImageError::TooBig {
            path: image.to_owned(),
            what: "unpacked",
            needed_mb: mb(survey.memory_bytes),
            limit_mb: limits.memory_bytes >> 20,
        });
    }
    let mut unpacker = Unpacker {
        image,
        block_bytes: squashfs.head.block_bytes,
        to,
        directories: Vec::new(),
        files: Vec::new(),
        blocks: 0,
        names: Vec::new(),
        links: Vec::new(),
        known: HashMap::new(),
    };
    squashfs.walk(limits.entries, &mut |_, path, node| unpacker.make(path, node))?;
    unpacker.write()?;
    unpacker.finish(links)?;
    Ok(survey)
}

/// Data blocks of files that wait to be written: 4 MiB of lists, 128 GiB of files with usual blocks.
const BLOCKS_HELD: usize = 1 << 20;

struct Unpacker<'a> {
    image: &'a Path,
    block_bytes: u32,
    to: &'a Path,
    /// get mode and time at the end, the innermost first
    directories: Vec<(PathBuf, u32, i64)>,
    /// wait to be written
    files: Vec<NewFile>,
    blocks: usize,
    /// further names of files: the first one, and the name
    names: Vec<(PathBuf, PathBuf)>,
    /// are made at the end, so that nothing is ever written through one
    links: Vec<(PathBuf, Vec<u8>, i64)>,
    /// first path of each file, by inode number
    known: HashMap<u32, PathBuf>,
}

impl Unpacker<'_> {
    fn make(&mut self, path: &Path, node: &Node) -> Result<(), ImageError> {
        let at = self.to.join(path);
        let time = i64::from(node.modified_s);
        match &node.kind {
            Kind::Directory(_) => {
                if !path.as_os_str().is_empty() {
                    let made = DirBuilder::new().mode(0o700).create(&at);
                    made.map_err(ImageError::file("make directory", &at))?;
                }
                self.directories.push((at, node.mode & 0o1777, time));
            }
            Kind::Link(target) => self.links.push((at, target.clone(), time)),
            Kind::Special => {}
            Kind::File(content) => {
                if let Some(first) = self.known.get(&node.number) {
                    self.names.push((first.clone(), at));
                    return Ok(());
                }
                self.known.insert(node.number, at.clone());
                self.blocks += content.blocks();
                self.files.push(NewFile {
                    at,
                    content: content.clone(),
                    mode: node.mode & 0o777,
                    modified_s: time,
                });
                if self.blocks > BLOCKS_HELD {
                    self.write()?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ImageError> {
        self.blocks = 0;
        write_files(self.image, self.block_bytes, &std::mem::take(&mut self.files))
    }

    fn finish(self, links: Links) -> Result<(), ImageError> {
        for (first, at) in &self.names {
            std::fs::hard_link(first, at).map_err(ImageError::file("link", at))?;
        }
        for (at, target, time) in &self.links {
            let target = Path::new(std::ffi::OsStr::from_bytes(target));
            let target = match links {
                Links::Keep => target.to_owned(),
                Links::Relocate => self.relocated(target),
            };
            symlink(&target, at).map_err(ImageError::file("link", at))?;
            set_modified(at, *time)?;
        }
        for (at, mode, time) in self.directories.iter().rev() {
            set_mode(at, *mode)?;
            set_modified(at, *time)?;
        }
        Ok(())
    }

    /// The target of a link in a tree that lies elsewhere.
    fn relocated(&self, target: &Path) -> PathBuf {
        if let Ok(real) = target.strip_prefix(ALIAS) {
            return Path::new("/").join(real);
        }
        let Ok(below) = target.strip_prefix("/") else {
            return target.to_owned();
        };
        let inside = self.to.join(below);
        let is_link = || self.links.iter().any(|(at, ..)| *at == inside);
        if inside.symlink_metadata().is_ok() || is_link() {
            inside
        } else {
            target.to_owned()
        }
    }
}

fn set_mode(at: &Path, mode: u32) -> Result<(), ImageError> {
    std::fs::set_permissions(at, Permissions::from_mode(mode)).map_err(ImageError::file("set mode of", at))
}

/// Reads every byte of an image: what it holds, or what is wrong with it.
pub fn check(image: &Path, limits: &Limits) -> Result<Survey, ImageError> {
    let mut squashfs = Squashfs::open(image)?;
    let survey = squashfs.survey(limits.entries)?;
    squashfs.walk(limits.entries, &mut |image, _, node| match &node.kind {
        Kind::File(content) => content.read(image, &mut |_, _| Ok(())),
        _ => Ok(()),
    })?;
    Ok(survey)
}
