//! Files of an image, written by several threads: uncompressing takes longer than all else.
//!
//! Threads end before anything here returns, for callers fork afterwards.

use std::fs::{File, OpenOptions, Permissions};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tidemill_sys::file::set_modified;

use crate::inode::{Content, Part};
use crate::squashfs::Squashfs;
use crate::ImageError;

/// One thread decompresses and writes 0.6 GB/s (measured); a node's memory bears eight beside payloads (assumed).
const THREADS_MAX: usize = 8;
/// The largest piece of a file that one thread writes; threads share larger files.
const PART_BYTES: u32 = 4 << 20;

/// A file that is to be.
pub(crate) struct NewFile {
    pub at: PathBuf,
    pub content: Content,
    pub mode: u32,
    pub modified_s: i64,
}

/// What a thread does at a time.
struct Step<'a> {
    file: &'a NewFile,
    part: Part,
    /// the file has no other part
    whole: bool,
}

/// Writes all files; their directories exist, they do not. The first error ends all threads.
pub(crate) fn write_files(image: &Path, block_bytes: u32, files: &[NewFile]) -> Result<(), ImageError> {
    let blocks_max = (PART_BYTES / block_bytes).max(1) as usize;
    let mut steps = Vec::new();
    let mut shared = Vec::new();
    for file in files {
        let parts = file.content.parts(block_bytes, blocks_max);
        let whole = parts.len() == 1;
        if !whole {
            create(&file.at)?;
            shared.push(file);
        }
        steps.extend(parts.into_iter().map(|part| Step { file, part, whole }));
    }
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let others = cores.min(THREADS_MAX).min(steps.len()).saturating_sub(1);
    std::thread::scope(|scope| {
        let work = || take_steps(image, &steps, &next);
        let started: Vec<_> = (0..others)
            // where no thread is to be had, fewer do
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mine = work();
        started.into_iter().fold(mine, |result, thread| {
            result.and(
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        })
    })?;
    shared.into_iter().try_for_each(|file| {
        let opened = File::open(&file.at).map_err(ImageError::file("open", &file.at))?;
        finish(file, &opened)
    })
}

fn take_steps(image: &Path, steps: &[Step<'_>], next: &AtomicUsize) -> Result<(), ImageError> {
    let mut image = Squashfs::open(image)?;
    while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
        let done = write_part(&mut image, step);
        if done.is_err() {
            next.store(steps.len(), Ordering::Relaxed);
            return done;
        }
    }
    Ok(())
}

fn write_part(image: &mut Squashfs, step: &Step<'_>) -> Result<(), ImageError> {
    let at = &step.file.at;
    let file = if step.whole {
        create(at)?
    } else {
        let opened = OpenOptions::new().write(true).open(at);
        opened.map_err(ImageError::file("open", at))?
    };
    step.file
        .content
        .read_part(image, &step.part, &mut |offset, bytes| {
            file.write_all_at(bytes, offset)
                .map_err(ImageError::file("write", at))
        })?;
    if step.whole {
        finish(step.file, &file)?;
    }
    Ok(())
}

fn create(at: &Path) -> Result<File, ImageError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(at);
    created.map_err(ImageError::file("create", at))
}

/// Length (a file may end in a hole), mode and time.
fn finish(file: &NewFile, opened: &File) -> Result<(), ImageError> {
    let at = &file.at;
    let status = opened.metadata().map_err(ImageError::file("stat", at))?;
    if status.len() < file.content.bytes {
        let writable = OpenOptions::new().write(true).open(at);
        let set = writable.and_then(|writable| writable.set_len(file.content.bytes));
        set.map_err(ImageError::file("write", at))?;
    }
    let mode = Permissions::from_mode(file.mode);
    opened
        .set_permissions(mode)
        .map_err(ImageError::file("set mode of", at))?;
    Ok(set_modified(at, file.modified_s)?)
}
