//! An image's areas at their original paths, and the real tree beside them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tidemill_sys::{attribute, file, mount, overlay};

use crate::ImageError;

/// An area: what lies there really, and what the image has for it.
struct Layer {
    target: PathBuf,
    original: OwnedFd,
    lower: OwnedFd,
    inside: PathBuf,
}

/// Lays the image's tree (`root`) over the original paths, in the caller's own mount namespace and before it gives up
/// its rights. What is written there goes to directories made below `scratch` (on a tmpfs, for this caller only). The
/// real tree is bound below `real`: area /sw/a at `real`/sw/a. Returns why areas cannot be written to, or "".
///
/// An area that does not exist on this node is left out: there is nothing to be asked there.
pub fn cover(root: &Path, areas: &[String], scratch: &Path, real: &Path) -> Result<String, ImageError> {
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
        layers.push(Layer {
            original: file::open_dir(&target)?,
            lower: file::open_dir(&inside)?,
            target,
            inside,
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
    for (at, layer) in layers.iter().enumerate() {
        lay(layer, &scratch.join(at.to_string()), &mut note)?;
    }
    Ok(note)
}

fn lay(layer: &Layer, scratch: &Path, note: &mut String) -> Result<(), ImageError> {
    let (upper, work) = (scratch.join("upper"), scratch.join("work"));
    make_directories(&upper)?;
    make_directories(&work)?;
    // the directory on top of all layers is what one sees of the area itself
    let status = std::fs::metadata(&layer.inside).map_err(ImageError::file("stat", &layer.inside))?;
    let permissions = std::fs::Permissions::from_mode(status.mode() & 0o1777);
    std::fs::set_permissions(&upper, permissions).map_err(ImageError::file("set mode of", &upper))?;
    let upper_dir = file::open_dir(&upper);
    attribute::set_modified(&upper, status.mtime())?;
    let work_dir = file::open_dir(&work)?;
    let laid = overlay::overlay(
        layer.lower.as_fd(),
        upper_dir?.as_fd(),
        work_dir.as_fd(),
        &layer.target,
    );
    let Err(error) = laid else { return Ok(()) };
    // kernels before 5.11 let only real root mount an overlay
    mount::bind_descriptor(layer.lower.as_fd(), &layer.target)?;
    mount::set_read_only(&layer.target, true)?;
    if note.is_empty() {
        *note = format!("areas are read-only: {}", tidemill_wire::log::cause(&error));
    }
    Ok(())
}

fn make_directories(path: &Path) -> Result<(), ImageError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(ImageError::file("make directory", path))
}
