//! Images: brings and notes them, and fails the work that cannot have them.

use super::Supply;
use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::images::{Event, Shown};
use crate::report::Note;

/// A payload that lost its image is dead a moment before we hear of the image.
const SETTLE_US: u64 = 200_000;
/// What programs say (strerror of ENOTCONN, ECONNABORTED, EIO) whose file system's server has died.
const LOST_MESSAGES: [&[u8]; 3] = [
    b"Transport endpoint is not connected",
    b"Software caused connection abort",
    b"Input/output error",
];

impl Supply {
    /// Begin to show an image.
    pub(super) fn bring_image(
        &mut self,
        cx: &mut Context,
        sha256: &str,
        limit_mb: u64,
        by_files: bool,
    ) -> Result<(), PilotError> {
        let Some(image) = cx.work.image(sha256).cloned() else {
            return Ok(());
        };
        if self.seek_image(cx, &image, limit_mb, by_files)? {
            return Ok(()); // it comes back here when its file is held
        }
        let memory = (limit_mb, cx.work.store_mb());
        match self.images.bring(&image, memory, by_files) {
            Ok(()) => Ok(()),
            Err(cause) => self.fail_image(cx, sha256, &format!("image `{}`: {cause}", image.name)),
        }
    }

    /// Fail the work that needs an image that is unavailable here; the site may try it elsewhere. Work that arrives
    /// before the next try of the image is returned: it would fail for the same cause, and one bad node would use up
    /// all retries of a job.
    pub(super) fn fail_image(
        &mut self,
        cx: &mut Context,
        sha256: &str,
        message: &str,
    ) -> Result<(), PilotError> {
        LOG.warning("image.failed", &[("sha256", &sha256), ("cause", &message)]);
        cx.note(Note::new("image", "failed", message))?;
        for piece in cx.work.image_failed(sha256, cx.now_us) {
            if !cx.report.canceled.has(&piece) {
                cx.fail(&piece, 0, ("image", message))?;
            }
        }
        Ok(())
    }

    /// What became of images.
    pub(super) fn hear_images(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        for event in self.images.poll() {
            match event {
                Event::Shown(shown) => note_shown(cx, &shown)?,
                Event::Failed { sha256, cause } => {
                    self.forget_image_file(cx, &sha256)?;
                    self.fail_image(cx, &sha256, &cause)?;
                }
                Event::Died { sha256, cause } => {
                    self.forget_image_file(cx, &sha256)?;
                    lose_image(cx, &sha256, &cause)?;
                }
            }
        }
        Ok(())
    }

    /// Before a failure counts against a payload, check whether the process that serves its slot's image has died. True
    /// if the slot has been ended with its image.
    pub fn lost_its_image(
        &mut self,
        cx: &mut Context,
        slot: u32,
        (signal, stderr): (Option<i32>, &[u8]),
    ) -> Result<bool, PilotError> {
        let says = |message: &[u8]| stderr.windows(message.len()).any(|window| window == message);
        let is_suspect = signal == Some(libc::SIGBUS) || LOST_MESSAGES.iter().any(|message| says(message));
        let mut images = cx.work.images_of(slot).into_iter();
        let served = images.any(|sha256| self.images.is_served(&sha256));
        if !is_suspect || !served || !self.images.settle(SETTLE_US) {
            return Ok(false);
        }
        self.hear_images(cx)?;
        Ok(cx.slots.get(slot).is_none())
    }
}

fn note_shown(cx: &mut Context, shown: &Shown) -> Result<(), PilotError> {
    cx.work.image_shown(&shown.sha256, shown.held_mb);
    let image = cx.work.image(&shown.sha256);
    let name = image.map_or("", |image| image.name.as_str());
    let message = if shown.note.is_empty() {
        format!("image `{name}`")
    } else {
        format!("image `{name}`: {}", shown.note)
    };
    let note = Note::new("image", &shown.way, message)
        .number("bytes", shown.bytes)
        .number("unpacked_bytes", image.map_or(0, |image| image.unpacked_bytes))
        .number("memory_mb", shown.held_mb)
        .number("fetch_ms", shown.fetch_ms)
        .number("show_ms", shown.show_ms);
    cx.note(note)
}

/// An image that slots run from has gone: what their payloads were at fails, the rest runs again from the image as it is
/// shown next.
fn lose_image(cx: &mut Context, sha256: &str, cause: &str) -> Result<(), PilotError> {
    LOG.warning("image.died", &[("sha256", &sha256), ("cause", &cause)]);
    cx.note(Note::new("image", "died", cause))?;
    for slot in cx.work.image_died(sha256) {
        let running = cx.work.lose_slot(slot);
        cx.slots.end(slot);
        for (place, piece) in running.into_iter().enumerate() {
            if place == 0 {
                cx.fail(&piece, slot, ("image", cause))?;
            } else {
                cx.run_again(piece)?;
            }
        }
    }
    Ok(())
}
