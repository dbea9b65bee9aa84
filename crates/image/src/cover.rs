//! An image's areas at their original paths, and the real tree beside them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tidemill_sys::file::Status;
use tidemill_sys::{file, mount, overlay, SysError};

use crate::ImageError;

/// An area: what lies there really, what the image has for it, and what is written to it.
struct Layer {
    target: PathBuf,
    original: OwnedFd,
    lower: OwnedFd,
    /// of the area's own directory: permission bits, and seconds since 1970
    mode: u32,
    modified_s: i64,
    /// holds the directories of the overlay: what is written, and the kernel's own
    scratch: PathBuf,
    /// None where the area is read-only
    upper: Option<Upper>,
}

/// What is written below an area.
struct Upper {
    dir: OwnedFd,
    /// of `dir`, before anything was written
    fresh: Status,
}

/// An image over its areas.
pub struct Covering {
    /// an area comes before those below it
    layers: Vec<Layer>,
    /// why areas cannot be written to, or ""
    pub note: String,
}

impl Covering {
    /// Where the image lies.
    pub fn areas(&self) -> impl Iterator<Item = &Path> {
        self.layers.iter().map(|layer| layer.target.as_path())
    }

    /// Whether anything was written below an area. Any write adds an entry to the directory on top or changes that
    /// directory, and no program can set a change time. But two changes within one tick of the kernel's clock have the
    /// same change time. Then the directory's size decides, which a tmpfs derives from its entries (`sized`), or else a
    /// listing of the directory.
    pub fn is_changed(&self, sized: bool) -> Result<bool, ImageError> {
        for upper in self.layers.iter().filter_map(|layer| layer.upper.as_ref()) {
            let dir = upper.dir.as_fd();
            if file::status(dir)? != upper.fresh || !sized && !file::entries(dir)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Discards everything that was written below the areas. No other process may use them meanwhile. Anything else
    /// that was mounted there is unmounted. The overlays are made anew: one whose directories change underneath it has
    /// undefined content (Documentation/filesystems/overlayfs.rst, "Changes to underlying filesystems").
    pub fn renew(&mut self) -> Result<(), ImageError> {
        for layer in self.layers.iter().rev() {
            mount::detach(&layer.target)?;
        }
        for layer in &mut self.layers {
            let was_writable = layer.upper.take().is_some();
            file::empty(file::open_dir(&layer.scratch)?.as_fd(), &[])?;
            match layer.lay()? {
                Some(error) if was_writable => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Lays the image's tree (`root`) over the original paths, in the caller's own mount namespace and before it gives up
/// its rights. What is written there goes to directories made below `scratch` (on a tmpfs, for this caller only). The
/// real tree is bound below `real`: area /sw/a at `real`/sw/a.
///
/// An area that does not exist on this node is left out: there is nothing to be asked there.
pub fn cover(root: &Path, areas: &[String], scratch: &Path, real: &Path) -> Result<Covering, ImageError> {
    let mut areas: Vec<&str> = areas.iter().map(|area| area.trim_end_matches('/')).collect();
    areas.sort_unstable(); // an area comes before those below it
    areas.dedup();
    let mut layers = Vec::new();
    for area in areas.into_iter().filter(|area| area.starts_with('/')) {
        let target = PathBuf::from(area);
        if !target.is_dir() {
            continue;
        }
        let inside = root.join(&area[1..]);
        if !inside.is_dir() {
            return Err(ImageError::NoArea {
                area: area.to_owned(),
                path: inside,
            });
        }
        // the directory on top of all layers is what one sees of the area itself
        let status = std::fs::metadata(&inside).map_err(ImageError::file("stat", &inside))?;
        layers.push(Layer {
            original: file::open_dir(&target)?,
            lower: file::open_dir(&inside)?,
            target,
            mode: status.mode() & 0o1777,
            modified_s: status.mtime(),
            scratch: scratch.join(layers.len().to_string()),
            upper: None,
        });
    }
    // before anything is covered: an area may lie below another one
    for (at, layer) in layers.iter().enumerate() {
        let inner = layers[..at]
            .iter()
            .any(|outer| layer.target.starts_with(&outer.target));
        if !inner {
            let point = real.join(layer.target.strip_prefix("/").unwrap_or(&layer.target));
            make_directories(&point)?;
            mount::bind_descriptor(layer.original.as_fd(), &point)?;
        }
    }
    let mut note = String::new();
    for layer in &mut layers {
        if let (Some(error), true) = (layer.lay()?, note.is_empty()) {
            note = format!("areas are read-only: {}", tidemill_wire::log::cause(&error));
        }
    }
    Ok(Covering { layers, note })
}

impl Layer {
    /// The image over the area, nothing written yet. Why the area is read-only, if it is.
    fn lay(&mut self) -> Result<Option<SysError>, ImageError> {
        let (upper, work) = (self.scratch.join("upper"), self.scratch.join("work"));
        make_directories(&upper)?;
        make_directories(&work)?;
        let permissions = std::fs::Permissions::from_mode(self.mode);
        std::fs::set_permissions(&upper, permissions).map_err(ImageError::file("set mode of", &upper))?;
        file::set_modified(&upper, self.modified_s)?;
        let (dir, work) = (file::open_dir(&upper)?, file::open_dir(&work)?);
        let (lower, target) = (self.lower.as_fd(), &self.target);
        if let Err(error) = overlay::overlay(lower, dir.as_fd(), work.as_fd(), target) {
            // kernels before 5.11 let only real root mount an overlay
            mount::bind_descriptor(lower, target)?;
            mount::set_read_only(target, true)?;
            return Ok(Some(error));
        }
        let fresh = file::status(dir.as_fd())?;
        self.upper = Some(Upper { dir, fresh });
        Ok(None)
    }
}

fn make_directories(path: &Path) -> Result<(), ImageError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(ImageError::file("make directory", path))
}
