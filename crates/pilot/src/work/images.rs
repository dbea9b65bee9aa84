//! Images that shapes need: which are brought, when there is memory for them, and which have to make room. Pure.

use std::collections::BTreeMap;

use tidemill_wire::memory::image_mb;
use tidemill_wire::{ImageUse, Program};

use super::{Action, Binding};
use crate::node::room::Room;
use crate::work::piece::{Shape, WorkPiece};

/// A node on which an image could not be had does not try again sooner: others may do better in the meantime.
const TRY_AGAIN_US: u64 = 30_000_000;

#[derive(Debug)]
enum State {
    Absent,
    /// on its way; its memory is held
    Coming,
    Ready,
    Failed {
        until_us: u64,
    },
}

#[derive(Debug)]
struct Known {
    image: ImageUse,
    state: State,
    held_mb: u64,
    /// squashfuse has died here: it is unpacked from now on
    by_files: bool,
}

/// All images that programs here have named.
#[derive(Debug, Default)]
pub(super) struct Images {
    known: BTreeMap<String, Known>,
    /// with what staged inputs take
    pub(super) held_mb: u64,
    /// what images and staged inputs may take in all
    pub(super) store_mb: u64,
    /// payloads span nodes: they run from the shared file system
    off: bool,
}

impl Known {
    /// Memory with which it can be shown in any way that is left.
    fn full_mb(&self) -> u64 {
        let file_mb = self.image.file.bytes.div_ceil(1 << 20);
        // an unpacked tree takes whole pages and inodes: an eighth more, and no less than squashfuse
        let tree_mb = self.image.unpacked_bytes.div_ceil(1 << 20);
        (file_mb + tree_mb + tree_mb / 8 + 1).max(image_mb(&self.image))
    }

    fn least_mb(&self) -> u64 {
        if self.by_files {
            self.full_mb()
        } else {
            image_mb(&self.image)
        }
    }
}

impl Binding {
    /// What images may take of this node's memory; 0 = half of it.
    pub fn set_store(&mut self, store_mb: u64, off: bool) {
        let half_mb = self.room.whole().1 / 2;
        self.images.store_mb = if store_mb == 0 { half_mb } else { store_mb };
        self.images.off = off;
    }

    pub fn store_mb(&self) -> u64 {
        self.images.store_mb
    }

    /// Images of a program that are shown to its payloads.
    pub(super) fn shape_of(&mut self, program: &Program) -> Shape {
        if self.images.off {
            return Shape::of(program, &[]);
        }
        for image in &program.images {
            let known = self.images.known.entry(image.file.sha256.clone());
            known.or_insert_with(|| Known {
                image: image.clone(),
                state: State::Absent,
                held_mb: 0,
                by_files: false,
            });
        }
        Shape::of(program, &program.images)
    }

    pub fn image(&self, sha256: &str) -> Option<&ImageUse> {
        self.images.known.get(sha256).map(|known| &known.image)
    }

    /// The least memory that a shape's images take.
    pub(super) fn images_mb(&self, shape: &Shape) -> u64 {
        let known = shape.digests().filter_map(|sha256| self.images.known.get(sha256));
        known.map(Known::least_mb).sum()
    }

    /// Whether an image of the shape could not be had, and is not tried again yet.
    pub(super) fn image_rests(&self, shape: &Shape, now_us: u64) -> bool {
        let mut known = shape.digests().filter_map(|sha256| self.images.known.get(sha256));
        known.any(|known| matches!(known.state, State::Failed { until_us } if now_us < until_us))
    }

    /// Whether an image of the shape is on its way.
    pub(super) fn waits_for_image(&self, shape: &Shape) -> bool {
        let mut known = shape.digests().filter_map(|sha256| self.images.known.get(sha256));
        known.any(|known| matches!(known.state, State::Coming))
    }

    /// Have the shape's images brought; whether all are there.
    pub(super) fn bring_images(
        &mut self,
        shape: &Shape,
        starved: bool,
        now_us: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        let mut ready = true;
        for sha256 in shape.digests() {
            let Some(known) = self.images.known.get(sha256) else {
                continue;
            };
            match &known.state {
                State::Ready => continue,
                State::Coming => {}
                State::Failed { until_us } if now_us < *until_us => {}
                State::Absent | State::Failed { .. } => self.bring(shape, sha256, starved, actions),
            }
            ready = false;
        }
        ready
    }

    fn bring(&mut self, shape: &Shape, sha256: &str, starved: bool, actions: &mut Vec<Action>) {
        let Some(known) = self.images.known.get(sha256) else {
            return;
        };
        let (full_mb, least_mb, by_files) = (known.full_mb(), known.least_mb(), known.by_files);
        let left_mb = self.images.store_mb.saturating_sub(self.images.held_mb);
        if least_mb > self.images.store_mb {
            let message = format!(
                "image `{}` takes {least_mb} MB of memory at least, images of a node may take {} MB: a larger \
                 `store` of the site, or a smaller image",
                known.image.name, self.images.store_mb
            );
            actions.push(Action::FailImage {
                sha256: sha256.to_owned(),
                message,
            });
            return;
        }
        let held_mb = if full_mb <= left_mb && self.room.hold(full_mb) {
            full_mb
        } else if least_mb <= left_mb && self.make_room(shape, starved, &|room| room.hold(least_mb), actions)
        {
            self.room.hold(least_mb);
            least_mb
        } else if least_mb > left_mb
            && (self.drop_inputs((starved, false), actions)
                || self.evict(shape, starved, actions)
                || self.end_idle(shape, starved, actions))
        {
            return self.bring(shape, sha256, starved, actions);
        } else {
            return;
        };
        self.images.held_mb += held_mb;
        if let Some(known) = self.images.known.get_mut(sha256) {
            known.held_mb = held_mb;
            known.state = State::Coming;
        }
        actions.push(Action::Bring {
            sha256: sha256.to_owned(),
            limit_mb: held_mb,
            by_files,
        });
    }

    /// Destroy idle slots that alone keep images from making room; false if there are none.
    fn end_idle(&mut self, shape: &Shape, starved: bool, actions: &mut Vec<Action>) -> bool {
        let mut idle = self.idle_slots(shape, starved);
        idle.retain(|slot| {
            self.slots
                .get(slot)
                .is_some_and(|state| !state.shape.images.is_empty())
        });
        self.destroy(&idle, actions);
        !idle.is_empty()
    }

    /// Take one image away that no slot and (unless for one that starved) no queued work uses; false if there is none.
    pub(super) fn evict(&mut self, shape: &Shape, starved: bool, actions: &mut Vec<Action>) -> bool {
        let Some(sha256) = self.evictable(shape, starved, &[]).next().cloned() else {
            return false;
        };
        self.free_image(&sha256);
        actions.push(Action::Drop { sha256 });
        true
    }

    fn evictable<'a>(
        &'a self,
        shape: &'a Shape,
        starved: bool,
        gone: &'a [u32],
    ) -> impl Iterator<Item = &'a String> {
        let used = move |sha256: &str| {
            let has = |other: &Shape| other.digests().any(|each| each == sha256);
            let queued = |(other, &events): (&Shape, &u64)| events > 0 && has(other);
            has(shape)
                || self
                    .slots
                    .iter()
                    .any(|(slot, state)| has(&state.shape) && !gone.contains(slot))
                || (!starved && self.queued_events.iter().any(queued))
        };
        let ready = self
            .images
            .known
            .iter()
            .filter(|(_, known)| matches!(known.state, State::Ready));
        ready
            .map(|(sha256, _)| sha256)
            .filter(move |sha256| !used(sha256))
    }

    /// Give back what images that could go, were these slots gone, would free.
    pub(super) fn with_images_gone(&self, shape: &Shape, starved: bool, gone: &[u32], room: &mut Room) {
        for sha256 in self.evictable(shape, starved, gone) {
            room.release(self.images.known.get(sha256).map_or(0, |known| known.held_mb));
        }
    }

    fn free_image(&mut self, sha256: &str) {
        if let Some(known) = self.images.known.get_mut(sha256) {
            self.room.release(known.held_mb);
            self.images.held_mb -= known.held_mb;
            known.held_mb = 0;
            known.state = State::Absent;
        }
    }

    /// Slots can use the image, which takes `held_mb` of memory.
    pub fn image_shown(&mut self, sha256: &str, held_mb: u64) {
        let Some(known) = self.images.known.get_mut(sha256) else {
            return;
        };
        known.state = State::Ready;
        let less_mb = known.held_mb.saturating_sub(held_mb);
        known.held_mb -= less_mb;
        self.images.held_mb -= less_mb;
        self.room.release(less_mb);
    }

    /// The image is unavailable: returns the queued work that needs it.
    pub fn image_failed(&mut self, sha256: &str, now_us: u64) -> Vec<WorkPiece> {
        self.free_image(sha256);
        if let Some(known) = self.images.known.get_mut(sha256) {
            known.state = State::Failed {
                until_us: now_us + TRY_AGAIN_US,
            };
        }
        let shapes: Vec<Shape> = self.queues.keys().cloned().collect();
        let mut pieces = Vec::new();
        for shape in shapes
            .iter()
            .filter(|shape| shape.digests().any(|each| each == sha256))
        {
            self.queued_events.insert(shape.clone(), 0);
            for queued in self.queues.remove(shape).into_iter().flatten() {
                if let Some(total) = self.program_events.get_mut(&queued.program) {
                    *total -= queued.piece.count;
                }
                pieces.push(queued.piece);
            }
        }
        pieces
    }

    /// Nothing can be read of the image any more: the slots that run from it.
    pub fn image_died(&mut self, sha256: &str) -> Vec<u32> {
        self.free_image(sha256);
        if let Some(known) = self.images.known.get_mut(sha256) {
            known.by_files = true;
        }
        self.slots_with(sha256)
    }

    fn slots_with(&self, sha256: &str) -> Vec<u32> {
        let with = |(_, slot): &(&u32, &super::SlotState)| slot.shape.digests().any(|each| each == sha256);
        self.slots.iter().filter(with).map(|(&slot, _)| slot).collect()
    }

    /// Digests of the images that a slot runs from.
    pub fn images_of(&self, slot: u32) -> Vec<String> {
        let shape = self.slots.get(&slot).map(|state| &state.shape);
        shape
            .into_iter()
            .flat_map(Shape::digests)
            .map(str::to_owned)
            .collect()
    }
}
