//! What the pilot does about images: has them brought, tells how, gives work back that cannot have its image.

use std::collections::BTreeMap;

use super::{Event, Shown};
use crate::error::{PilotError, LOG};
use crate::pilot::Pilot;

/// A payload that lost its image is dead a moment before we hear of the image.
const SETTLE_US: u64 = 200_000;
/// What programs say (strerror of ENOTCONN, ECONNABORTED, EIO) whose file system's server has died.
const LOST_MESSAGES: [&[u8]; 3] = [
    b"Transport endpoint is not connected",
    b"Software caused connection abort",
    b"Input/output error",
];
const SIGBUS: i64 = 7;

impl Pilot {
    /// Begin to show an image.
    pub(crate) fn bring_image(
        &mut self,
        sha256: &str,
        (limit_mb, by_files): (u64, bool),
        now_us: u64,
    ) -> Result<(), PilotError> {
        let Some(image) = self.binding.image(sha256).cloned() else {
            return Ok(());
        };
        if self.seek_image(&image, (limit_mb, by_files), now_us)? {
            return Ok(()); // it comes back here when its file is held
        }
        let memory = (limit_mb, self.binding.store_mb());
        match self.node.bring(&image, memory, by_files) {
            Ok(()) => Ok(()),
            Err(cause) => self.fail_image(sha256, &format!("image `{}`: {cause}", image.name), now_us),
        }
    }

    /// Work that needs an image that cannot be had here fails; the site may try elsewhere. What comes before it is tried
    /// again is given back: it would fail of the same cause, and one bad node would use up all tries of a job.
    pub(crate) fn fail_image(&mut self, sha256: &str, message: &str, now_us: u64) -> Result<(), PilotError> {
        LOG.warning("image.failed", &[("sha256", &sha256), ("cause", &message)]);
        self.note(
            ("image", "failed", message.to_owned()),
            None,
            BTreeMap::new(),
            now_us,
        )?;
        for piece in self.binding.image_failed(sha256, now_us) {
            self.fail_without_slot(&piece, message, now_us)?;
        }
        Ok(())
    }

    /// What became of images.
    pub(crate) fn hear_node(&mut self, now_us: u64) -> Result<(), PilotError> {
        for event in self.node.poll() {
            match event {
                Event::Shown(shown) => self.tell_shown(shown, now_us)?,
                Event::Failed { sha256, cause } => {
                    self.forget_image_file(&sha256, now_us)?;
                    self.fail_image(&sha256, &cause, now_us)?;
                }
                Event::Died { sha256, cause } => {
                    self.forget_image_file(&sha256, now_us)?;
                    self.lose_image(&sha256, &cause, now_us)?;
                }
            }
        }
        Ok(())
    }

    fn tell_shown(&mut self, shown: Shown, now_us: u64) -> Result<(), PilotError> {
        self.binding.image_shown(&shown.sha256, shown.held_mb);
        let name = self.binding.image(&shown.sha256).map(|image| image.name.clone());
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let unpacked = self
            .binding
            .image(&shown.sha256)
            .map_or(0, |image| image.unpacked_bytes);
        let numbers = [
            ("bytes", number(shown.bytes)),
            ("unpacked_bytes", number(unpacked)),
            ("memory_mb", number(shown.held_mb)),
            ("fetch_ms", number(shown.fetch_ms)),
            ("show_ms", number(shown.show_ms)),
        ];
        let numbers = numbers
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let name = name.unwrap_or_default();
        let message = if shown.note.is_empty() {
            format!("image `{name}`")
        } else {
            format!("image `{name}`: {}", shown.note)
        };
        self.note(("image", &shown.way, message), None, numbers, now_us)
    }

    /// An image that slots run from has gone: what their payloads were at fails, the rest runs again from the image as
    /// it is shown next.
    fn lose_image(&mut self, sha256: &str, cause: &str, now_us: u64) -> Result<(), PilotError> {
        LOG.warning("image.died", &[("sha256", &sha256), ("cause", &cause)]);
        self.note(("image", "died", cause.to_owned()), None, BTreeMap::new(), now_us)?;
        for slot in self.binding.image_died(sha256) {
            let running = self.binding.lose_slot(slot);
            self.end_slot(slot);
            for (place, piece) in running.into_iter().enumerate() {
                if place == 0 {
                    self.fail_in_slot(&piece, slot, ("image", cause), now_us)?;
                } else {
                    self.run_again(piece, now_us)?;
                }
            }
        }
        Ok(())
    }

    /// Before a payload of a slot whose image is served by a process is blamed: has that process died? True when the slot
    /// has been ended with its image.
    pub(crate) fn lost_its_image(
        &mut self,
        slot: u32,
        (signal, stderr): (Option<i32>, &[u8]),
        now_us: u64,
    ) -> Result<bool, PilotError> {
        let says = |message: &[u8]| stderr.windows(message.len()).any(|window| window == message);
        let is_suspect =
            signal.map(i64::from) == Some(SIGBUS) || LOST_MESSAGES.iter().any(|message| says(message));
        let served = self
            .binding
            .images_of(slot)
            .iter()
            .any(|sha256| self.node.is_served(sha256));
        if !is_suspect || !served || !self.node.settle(SETTLE_US) {
            return Ok(false);
        }
        self.hear_node(now_us)?;
        Ok(!self.slots.contains_key(&slot))
    }
}
