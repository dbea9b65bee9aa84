//! The pilot's own memory on its node, which holds images and staged files, and the processes that show the images.
//!
//! The pilot sets it up when the first image is needed. With user namespaces it is a tmpfs in the pilot's own mount
//! namespace: no other process sees it, and it disappears however the pilot ends. Slots are forked from the pilot and
//! inherit it. Without namespaces it is a directory in /dev/shm; if the pilot cannot remove it, the next pilot does
//! (`tidemill_sys::own`).
//!
//! Reading and showing an image take long, and squashfuse needs supervision: each runs in a separate process
//! that reports to the pilot's loop. Callers decide which images are needed, and in how much memory.

pub mod home;
mod image;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidemill_image::{choose, Way};
use tidemill_slot::SlotImage;
use tidemill_sys::fd::{self, Poll};
use tidemill_wire::{ImageUse, Settings};

use home::Home;
use image::Image;

/// What became of an image.
#[derive(Debug)]
pub enum Event {
    Shown(Shown),
    /// It cannot be had: what was attempted, and what came back.
    Failed {
        sha256: String,
        cause: String,
    },
    /// It was shown, and nothing can be read of it any more.
    Died {
        sha256: String,
        cause: String,
    },
}

/// An image that slots can use now.
#[derive(Debug)]
pub struct Shown {
    pub sha256: String,
    /// `fuse`, `unpack` or `relocate`
    pub way: String,
    /// why not a better way; empty where there is none
    pub note: String,
    /// memory that it takes, its file included
    pub held_mb: u64,
    pub bytes: u64,
    pub fetch_ms: u64,
    pub show_ms: u64,
}

/// The place, and the images in it.
pub struct Images {
    want: String,
    /// slots have mount namespaces: images can be laid over the original paths
    isolated: bool,
    home: Option<Home>,
    images: BTreeMap<String, Image>,
    /// children that still remove what is not wanted any more
    removals: Vec<i32>,
}

impl Images {
    /// `isolated`: slots get namespaces.
    pub fn new(settings: &Settings, isolated: bool) -> Self {
        Images {
            want: settings.images.clone(),
            isolated,
            home: None,
            images: BTreeMap::new(),
            removals: Vec::new(),
        }
    }

    /// The directory in memory, entered where that has not happened yet. `size_mb`: what it may hold at most.
    pub fn enter(&mut self, size_mb: u64) -> Result<&Path, String> {
        if self.home.is_none() {
            self.removals.extend(home::clean());
            self.home = Some(Home::enter(self.isolated, size_mb)?);
        }
        match &self.home {
            Some(home) => Ok(home.path()),
            None => Err(String::from("the node's own place could not be entered")),
        }
    }

    /// Bring an image. `limit_mb`: memory that it may take in all; `by_files`: squashfuse has failed here. `size_mb`: of
    /// the whole place.
    pub fn bring(
        &mut self,
        image: &ImageUse,
        (limit_mb, size_mb): (u64, u64),
        by_files: bool,
    ) -> Result<(), String> {
        self.enter(size_mb)?;
        let Some(home) = &self.home else { return Ok(()) };
        let (mut want, note) = way(&self.want, (self.isolated, home.is_private()), by_files);
        let (tree_bytes, file_bytes) = (image.unpacked_bytes + image.unpacked_bytes / 8, image.file.bytes);
        let fits = tree_bytes + file_bytes <= limit_mb << 20;
        if want == "auto" && fits && choose(image.unpacked_bytes, size_mb << 20) == Way::Unpack {
            want = "unpack";
        }
        let sha256 = image.file.sha256.clone();
        let begun = Image::begin(home.path(), image, (want, note), limit_mb)?;
        self.images.insert(sha256, begun);
        Ok(())
    }

    /// Remove an image that is no longer in use.
    pub fn drop_image(&mut self, sha256: &str) {
        if let Some(mut image) = self.images.remove(sha256) {
            self.removals.extend(image.remove());
        }
    }

    /// Descriptors to poll: one becomes readable when `poll` has events.
    pub fn polls(&self) -> impl Iterator<Item = Poll> + '_ {
        self.images.values().filter_map(Image::poll)
    }

    /// The events since the last call; never blocks.
    pub fn poll(&mut self) -> Vec<Event> {
        self.removals.retain(|&pid| tidemill_sys::child::still_runs(pid));
        let events: Vec<Event> = self.images.values_mut().filter_map(Image::hear).collect();
        for event in &events {
            if let Event::Failed { sha256, .. } | Event::Died { sha256, .. } = event {
                self.drop_image(sha256);
            }
        }
        events
    }

    /// The description of a shown image that is sent to slots.
    pub fn for_slot(&self, sha256: &str, areas: &[String]) -> Option<SlotImage> {
        let image = self.images.get(sha256)?;
        Some(SlotImage {
            root: image.root()?,
            areas: areas.to_vec(),
        })
    }

    /// Wait at most `wait_us` for news; true if there is some.
    pub fn settle(&self, wait_us: u64) -> bool {
        let mut polls: Vec<Poll> = self.polls().collect();
        fd::poll(&mut polls, Some(wait_us)).is_ok_and(|ready| ready > 0)
    }

    /// Whether squashfuse, a process that can die, serves the image.
    pub fn is_served(&self, sha256: &str) -> bool {
        self.images
            .get(sha256)
            .is_some_and(|image| image.poll().is_some())
    }

    /// End everything and remove what the kernel would not remove by itself; the child that is still at that.
    pub fn leave(&mut self) -> Option<i32> {
        for image in self.images.values_mut() {
            image.end();
        }
        self.images.clear();
        self.home.take().and_then(Home::leave)
    }
}

/// The way to ask for, and why it is another one than the site asked for. `private`: mounts are possible.
fn way(want: &str, (isolated, private): (bool, bool), by_files: bool) -> (&'static str, String) {
    match (want, isolated, private) {
        (_, false, _) => ("relocate", "slots have no namespaces here".to_owned()),
        ("relocate", true, _) => (
            "unpack",
            "slots have namespaces: nothing needs to be relocated".to_owned(),
        ),
        (_, true, false) => (
            "unpack",
            "the pilot could not get a mount namespace of its own".to_owned(),
        ),
        _ if by_files => ("unpack", "squashfuse has died here before".to_owned()),
        ("fuse", ..) => ("fuse", String::new()),
        ("unpack", ..) => ("unpack", String::new()),
        _ => ("auto", String::new()),
    }
}

/// Directory of the place for what is being removed.
const GONE: &str = "gone";

/// Where files lie in the place: `files/SHA256`, `images/SHA256/`.
fn paths(home: &Path, sha256: &str) -> (PathBuf, PathBuf) {
    (home.join("files").join(sha256), home.join("images").join(sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_accidents_decide_the_way_and_say_why() {
        assert_eq!(way("auto", (true, true), false), ("auto", String::new()));
        assert_eq!(way("fuse", (true, true), false).0, "fuse");
        for (want, isolated, private, by_files, way_taken) in [
            ("fuse", false, false, false, "relocate"),
            ("auto", false, true, false, "relocate"),
            ("relocate", true, true, false, "unpack"),
            ("fuse", true, false, false, "unpack"),
            ("fuse", true, true, true, "unpack"),
        ] {
            let (taken, note) = way(want, (isolated, private), by_files);
            assert_eq!(taken, way_taken);
            assert!(!note.is_empty());
        }
    }
}
