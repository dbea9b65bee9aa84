//! An image's tree as files of one's own, usually in a tmpfs.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tidemill_sys::attribute::set_modified;

use crate::inode::{Content, Kind, Node, Survey};
use crate::squashfs::Squashfs;
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
/// left out. Refuses, before it writes anything, what would take more memory than the limit.
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
        to,
        directories: Vec::new(),
        links: Vec::new(),
        names: HashMap::new(),
    };
    squashfs.walk(limits.entries, &mut |image, path, node| {
        unpacker.make(image, path, node)
    })?;
    unpacker.finish(links)?;
    Ok(survey)
}

struct Unpacker<'a> {
    to: &'a Path,
    /// get mode and time at the end, the innermost first
    directories: Vec<(PathBuf, u32, i64)>,
    /// are made at the end, so that nothing is ever written through one
    links: Vec<(PathBuf, Vec<u8>, i64)>,
    /// first path of each file, by inode number
    names: HashMap<u32, PathBuf>,
}

impl Unpacker<'_> {
    fn make(&mut self, image: &mut Squashfs, path: &Path, node: &Node) -> Result<(), ImageError> {
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
                if let Some(first) = self.names.get(&node.number) {
                    return std::fs::hard_link(first, &at).map_err(ImageError::file("link", &at));
                }
                write_file(image, content, &at)?;
                set_mode(&at, node.mode & 0o777)?;
                set_modified(&at, time)?;
                self.names.insert(node.number, at);
            }
        }
        Ok(())
    }

    fn finish(self, links: Links) -> Result<(), ImageError> {
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

fn write_file(image: &mut Squashfs, content: &Content, at: &Path) -> Result<(), ImageError> {
    let file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(at)
        .map_err(ImageError::file("create", at))?;
    let mut end = 0;
    content.read(image, &mut |offset, bytes| {
        end = offset + bytes.len() as u64;
        file.write_all_at(bytes, offset)
            .map_err(ImageError::file("write", at))
    })?;
    if end < content.bytes {
        file.set_len(content.bytes)
            .map_err(ImageError::file("write", at))?;
    }
    Ok(())
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
