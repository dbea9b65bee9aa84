//! Profiles of traced payloads: into the bundle, and a word about each into the journal.

use std::collections::BTreeMap;

use tidemill_slot::PayloadLog;

use crate::bundle::Member;
use crate::error::PilotError;
use crate::pilot::Pilot;

impl Pilot {
    /// Keep the profile of a traced payload as logs are kept, and note what it counted.
    pub(crate) fn take_trace(
        &mut self,
        program: u64,
        (ops, failed): (u64, u64),
        log: &PayloadLog,
        now_us: u64,
    ) -> Result<(), PilotError> {
        let member = Member {
            kind: "profile",
            name: "profile",
            job: log.job,
            first: log.first,
            count: log.count,
            truncated: false,
        };
        self.keeper.take_log(&member, &log.stdout, now_us);
        let traced = !log.stdout.is_empty();
        let count = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let numbers = [
            ("ops", count(ops)),
            ("failed", count(failed)),
            ("profile_bytes", log.stdout.len() as i64),
        ];
        let mode = if traced { "ptrace" } else { "none" };
        let message = String::from_utf8_lossy(&log.stderr).into_owned();
        let numbers = BTreeMap::from(numbers.map(|(name, value)| (name.to_owned(), value)));
        let whose = (Some(program), Some(log.job));
        self.note_work(("trace", mode, message), whose, numbers, now_us)
    }
}
