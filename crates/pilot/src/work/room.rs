//! What slots take of the node, and what is removed so that others fit. Pure.

use tidemill_wire::memory::{work_directory, WorkDirectory};

use super::{Action, Binding, SlotState};
use crate::node::room::{Need, Room};
use crate::work::piece::Shape;

impl Binding {
    /// Set the free space for work directories that do not fit into memory, or 0 and the reason.
    pub fn set_spill(&mut self, free_mb: u64, told: String) {
        self.spill = (free_mb, told);
        self.room = self.room.clone().with_spill(free_mb);
    }

    /// Memory of the largest slot that queued work needs, including its images.
    pub fn largest_mb(&self) -> u64 {
        let queued = self.queues.iter().filter(|(_, queue)| !queue.is_empty());
        let needs = queued.filter_map(|(shape, _)| {
            let need = self.need(shape).ok()?;
            Some(need.memory_mb + self.images_mb(shape))
        });
        needs.max().unwrap_or(0)
    }

    /// Reserve memory for something that is neither slot, image nor input; false if not enough is free now.
    pub fn hold_memory(&mut self, memory_mb: u64) -> bool {
        self.room.hold(memory_mb)
    }

    pub fn release_memory(&mut self, memory_mb: u64) {
        self.room.release(memory_mb);
    }

    /// What a slot of this shape takes, or why this node can never have one.
    pub(super) fn need<'a>(&self, shape: &'a Shape) -> Result<Need<'a>, String> {
        let (cores, memory_mb, _) = self.room.whole();
        if !self.room.could_ever_hold(shape.cores, &shape.devices) {
            return Err(format!(
                "a slot of {} cores and devices {:?} is asked for, this node has {cores} cores and devices {:?}",
                shape.cores,
                shape.devices,
                self.room.whole().2
            ));
        }
        let images_mb = self.images_mb(shape);
        let spills = shape.scratch_mb <= self.spill.0;
        let slot = (shape.memory_mb, shape.scratch_mb);
        let (memory_mb, spill_mb) = match work_directory(slot, (*memory_mb, images_mb), spills) {
            Some(WorkDirectory::InMemory) => (shape.memory_mb + shape.scratch_mb, 0),
            Some(WorkDirectory::Spilled) => (shape.memory_mb, shape.scratch_mb),
            None => {
                return Err(format!(
                    "a slot needs {} MB of memory and {} MB for its work directory, images take {images_mb} MB, and \
                     this node has {memory_mb} MB: lower `resources.memory_mb` or `resources.scratch_mb`; work \
                     directories can be elsewhere where the site names a `fast_dir` ({})",
                    shape.memory_mb, shape.scratch_mb, self.spill.1
                ))
            }
        };
        Ok(Need {
            cores: shape.cores,
            memory_mb,
            spill_mb,
            devices: &shape.devices,
        })
    }

    /// Destroy idle slots of shapes without work (of any shape if this one is starved), and then unused staged inputs
    /// and images, if that makes the wanted slot fit.
    pub(super) fn make_room(
        &mut self,
        shape: &Shape,
        starved: bool,
        fits: &dyn Fn(&mut Room) -> bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        if fits(&mut self.room.clone()) {
            return true;
        }
        let victims = self.idle_slots(shape, starved);
        let mut trial = self.room.clone();
        for (count, slot) in victims.iter().enumerate() {
            trial.give_back(self.slots[slot].share.clone());
            if fits(&mut trial.clone()) {
                self.destroy(&victims[..=count], actions);
                return true;
            }
        }
        self.with_images_gone(shape, starved, &victims, &mut trial);
        trial.release(self.unused_mb(starved));
        if !fits(&mut trial) {
            return false;
        }
        self.destroy(&victims, actions);
        if !fits(&mut self.room.clone()) {
            self.drop_inputs((starved, false), actions);
        }
        while !fits(&mut self.room.clone()) && self.evict(shape, starved, actions) {}
        fits(&mut self.room.clone())
    }

    /// Slots of other shapes that have nothing to do, keep no outputs, and (unless for one that is starved) will have nothing.
    pub(super) fn idle_slots(&self, shape: &Shape, starved: bool) -> Vec<u32> {
        let queued = |slot: &SlotState| self.queued_events.get(&slot.shape).copied().unwrap_or(0);
        let idle = |slot: &SlotState| {
            slot.shape != *shape && slot.tickets.is_empty() && (starved || queued(slot) == 0)
        };
        let slots = self.slots.iter().filter(|(_, slot)| idle(slot));
        let free = slots.filter(|(slot, _)| !self.keeping.contains(slot));
        free.map(|(&slot, _)| slot).collect()
    }

    pub(super) fn destroy(&mut self, slots: &[u32], actions: &mut Vec<Action>) {
        for &slot in slots {
            actions.push(Action::Destroy { slot });
            self.remove_slot(slot);
        }
    }
}
