//! Records by which the pilot tells people how something is done on this node.

use std::collections::BTreeMap;

use tidemill_sys::time::realtime_us;
use tidemill_wire::{Noted, Record};

use crate::error::{PilotError, LOG};
use crate::pilot::Pilot;

impl Pilot {
    /// Note something of a topic, of one program or of none.
    pub(crate) fn note(
        &mut self,
        told: (&str, &str, String),
        program: Option<u64>,
        numbers: BTreeMap<String, i64>,
        now_us: u64,
    ) -> Result<(), PilotError> {
        self.note_work(told, (program, None), numbers, now_us)
    }

    /// Note something (topic, mode, message) of a program's job.
    pub(crate) fn note_work(
        &mut self,
        (topic, mode, message): (&str, &str, String),
        (program, job): (Option<u64>, Option<u64>),
        numbers: BTreeMap<String, i64>,
        now_us: u64,
    ) -> Result<(), PilotError> {
        LOG.info(
            "node.noted",
            &[("topic", &topic), ("mode", &mode), ("message", &message)],
        );
        self.add(
            Record::Noted(Noted {
                p: String::new(),
                s: 0,
                topic: topic.to_owned(),
                program,
                job,
                mode: mode.to_owned(),
                message,
                numbers,
                at_us: realtime_us(),
            }),
            now_us,
        )
    }
}
