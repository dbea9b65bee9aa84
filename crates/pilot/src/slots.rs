//! Making slots, and what is remarked of them.

use std::collections::BTreeMap;

use tidemill_slot::{Isolated, SlotSpec, ToSlot};
use tidemill_sys::time::realtime_us;
use tidemill_wire::log;

use crate::error::{PilotError, LOG};
use crate::node::place::Share;
use crate::node::variables;
use crate::pilot::Pilot;
use crate::work::piece::Shape;

/// Different remarks about slots in a pilot's records.
pub(crate) const TOLD_MAX: usize = 100;

impl Pilot {
    pub(crate) fn create_slot(
        &mut self,
        slot: u32,
        shape: &Shape,
        share: Share,
        now_us: u64,
    ) -> Result<(), PilotError> {
        let settings = self.post.settings();
        let batch_commands = if shape.batch_commands {
            Vec::new()
        } else {
            settings.batch_commands.clone()
        };
        let images = shape.images.iter();
        let images = images.filter_map(|(sha256, areas)| self.node.for_slot(sha256, areas));
        let spec = SlotSpec {
            index: slot,
            images: images.collect(),
            spill: settings
                .spill
                .as_ref()
                .filter(|_| share.spill_mb > 0)
                .and_then(|named| variables::expand(named).ok())
                .map(Into::into),
            cpus: share.cpus,
            devices: share.devices,
            memory_mb: shape.memory_mb,
            scratch_mb: shape.scratch_mb,
            isolation: self.post.isolation,
            directory: settings.scratch.as_ref().map(Into::into),
            mask: settings.mask.iter().map(Into::into).collect(),
            stores: self.staging.directories.clone(),
            batch_commands,
        };
        match tidemill_slot::start(&spec) {
            Ok(started) => {
                if spec.stores.is_empty() {
                    self.staging.blind.insert(slot);
                }
                LOG.info(
                    "slot.started",
                    &[
                        ("slot", &slot),
                        ("pid", &started.pid()),
                        ("cores", &shape.cores),
                        ("cpus", &spec.cpus),
                    ],
                );
                let note = match started.isolation() {
                    (Isolated::Namespaces, note) => note.to_owned(),
                    _ => String::new(), // the first record says why
                };
                self.slots.insert(slot, started);
                self.tell_slot_made(&spec, note, now_us)?;
                self.tally.made_us.insert(slot, realtime_us());
                let deadline = ToSlot::Deadline {
                    monotonic_us: self.post.deadline_us,
                };
                self.tell(slot, &deadline, now_us)
            }
            Err(error) => self.lose_slot(slot, &log::cause(&error), now_us),
        }
    }

    /// How a slot is unlike others, told once for each way.
    fn tell_slot_made(&mut self, spec: &SlotSpec, note: String, now_us: u64) -> Result<(), PilotError> {
        let mut told = Vec::new();
        if let Some(base) = &spec.spill {
            let numbers = BTreeMap::from([
                ("scratch_mb".to_owned(), spec.scratch_mb as i64),
                ("memory_mb".to_owned(), spec.memory_mb as i64),
            ]);
            let message = format!(
                "a work directory of {} MB does not fit into memory: it is in `{}`",
                spec.scratch_mb,
                base.display()
            );
            told.push(("spill", "directory", message, numbers));
        }
        if !note.is_empty() && !spec.images.is_empty() {
            told.push(("image", "slot", note, BTreeMap::new()));
        }
        for (topic, mode, message, numbers) in told {
            if self.told.len() < TOLD_MAX && self.told.insert(message.clone()) {
                self.note((topic, mode, message), None, numbers, now_us)?;
            }
        }
        Ok(())
    }
}
