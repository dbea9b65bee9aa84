//! What the pilot reports: records, numbered and kept until they are safe at the lead or in the pilot's own journal.
//!
//! Knows the lead only as a buffer for records, and does not know the parts that report.

mod canceled;
mod journal;
mod records;

use std::collections::{BTreeMap, HashSet};

use tidemill_sys::time::realtime_us;
use tidemill_wire::log::cause;
use tidemill_wire::{Done, Failed, Noted, Record, Returned, Settings};

use crate::error::{PilotError, LOG};
use crate::lead::link::OUT_BYTES_MAX;
use crate::lead::WorkSource;
use crate::time::seconds_us;
use crate::work::piece::WorkPiece;
use canceled::Canceled;
pub use records::Records;

/// Unsafe records, in bytes, above which slots get no new work.
const UNSAFE_BYTES_MAX: usize = 64 << 20;
/// Age at which records that no lead has acknowledged go to the pilot's own journal.
const AWAY_US: u64 = 10_000_000;
const SAVE_AGAIN_US: u64 = 1_000_000;
/// Bytes of unsafe records above which the pilot's own journal is written before it is due.
const JOURNAL_BYTES: usize = 4 << 20;
/// How long the pilot tolerates a failing journal where the fleet's manifest, of an older version, sets no time.
const PATIENCE_S: f64 = 300.0;
/// A journal that does not answer for this time hangs.
const HANG_US: u64 = 10_000_000;
/// Most different notes among those made only once each.
const NOTED_MAX: usize = 100;

/// A record that shows people how something is done on this node.
#[derive(Debug, Default)]
pub struct Note {
    topic: &'static str,
    mode: String,
    message: String,
    program: Option<u64>,
    job: Option<u64>,
    numbers: BTreeMap<String, i64>,
}

impl Note {
    pub fn new(topic: &'static str, mode: &str, message: impl Into<String>) -> Self {
        Note {
            topic,
            mode: mode.to_owned(),
            message: message.into(),
            ..Note::default()
        }
    }

    pub fn of(self, program: Option<u64>, job: Option<u64>) -> Self {
        Note { program, job, ..self }
    }

    /// With a number; the largest one where it does not fit.
    pub fn number(mut self, name: impl Into<String>, value: impl TryInto<i64>) -> Self {
        self.numbers
            .insert(name.into(), value.try_into().unwrap_or(i64::MAX));
        self
    }
}

/// The records of a pilot, and when they have to go.
pub struct Report {
    pub records: Records,
    noted: HashSet<String>,
    /// Work whose events need no record any more.
    pub canceled: Canceled,
    /// Longest wait of a record for others.
    flush_us: u64,
    /// When the oldest record that waits to be sent came.
    since_us: Option<u64>,
    /// This connection has not carried all that was recorded before it: no Ask before that, since the lead takes what
    /// we neither hold nor have recorded by then for lost.
    pub catching_up: bool,
    safe_us: u64,
    saved_us: u64,
    /// Since when the own journal, which is all there is, cannot be written, and why.
    unsafe_since: Option<(u64, String)>,
    patience_us: u64,
}

impl Report {
    /// `files`: there is no lead, so the own journal is all there is.
    pub fn new(records: Records, settings: &Settings, files: bool, now_us: u64) -> Self {
        let flush_us = if files {
            seconds_us(settings.output_flush_s).max(SAVE_AGAIN_US)
        } else {
            settings.record_flush_ms * 1000
        };
        Report {
            records,
            noted: HashSet::new(),
            canceled: Canceled::default(),
            flush_us,
            // That the pilot has started goes at once: until then its site says that it has not.
            since_us: Some(now_us.saturating_sub(flush_us)),
            catching_up: true,
            safe_us: now_us,
            saved_us: 0,
            unsafe_since: None,
            patience_us: seconds_us(settings.storage_patience_s.unwrap_or(PATIENCE_S)),
        }
    }

    pub fn add(&mut self, record: Record, now_us: u64) -> Result<(), PilotError> {
        self.since_us.get_or_insert(now_us);
        self.records.add(record)
    }

    /// Add a Done without outputs, which may be joined with its neighbours.
    pub fn add_open(&mut self, done: Done, now_us: u64) {
        self.since_us.get_or_insert(now_us);
        self.records.add_open(done);
    }

    pub fn note(&mut self, note: Note, now_us: u64) -> Result<(), PilotError> {
        LOG.info(
            "node.noted",
            &[
                ("topic", &note.topic),
                ("mode", &note.mode),
                ("message", &note.message),
            ],
        );
        let noted = Noted {
            topic: note.topic.to_owned(),
            program: note.program,
            job: note.job,
            mode: note.mode,
            message: note.message,
            numbers: note.numbers,
            at_us: realtime_us(),
            ..Noted::default()
        };
        self.add(Record::Noted(noted), now_us)
    }

    /// Note it unless the same message was noted before.
    pub fn note_once(&mut self, note: Note, now_us: u64) -> Result<(), PilotError> {
        if self.noted.len() < NOTED_MAX && self.noted.insert(note.message.clone()) {
            self.note(note, now_us)?;
        }
        Ok(())
    }

    /// Record that events go back to the lead.
    pub fn give_back(&mut self, piece: &WorkPiece, reason: &str, now_us: u64) -> Result<(), PilotError> {
        if self.canceled.has(piece) {
            return Ok(());
        }
        let returned = Returned {
            grant: piece.grant,
            job: piece.job,
            first: piece.first,
            count: piece.count,
            reason: reason.to_owned(),
            ..Returned::default()
        };
        self.add(Record::Returned(returned), now_us)
    }

    /// Record a failure that no payload reported; what was canceled does not fail.
    pub fn fail(
        &mut self,
        piece: &WorkPiece,
        slot: u32,
        (failure, message): (&str, &str),
        now_us: u64,
    ) -> Result<(), PilotError> {
        if self.canceled.has(piece) {
            return Ok(());
        }
        let failed = Failed {
            grant: piece.grant,
            job: piece.job,
            first: piece.first,
            count: piece.count,
            failure: failure.to_owned(),
            message: message.to_owned(),
            slot: slot.into(),
            at_us: realtime_us(),
            ..Failed::default()
        };
        self.add(Record::Failed(failed), now_us)
    }

    /// A new connection to a lead that has what it acknowledges, and nothing else.
    pub fn connected(&mut self, acked: u64, now_us: u64) {
        self.catching_up = true;
        self.safe_us = now_us;
        self.records.reconnected(acked);
    }

    pub fn acknowledge(&mut self, acked: u64, now_us: u64) {
        self.records.acknowledge(acked);
        self.safe_us = now_us;
    }

    /// Whether too much is unsafe for anything to start.
    pub fn is_full(&self) -> bool {
        self.records.unsafe_bytes() >= UNSAFE_BYTES_MAX
    }

    /// When `step` has something to do at the latest.
    pub fn due_us(&self, lead: &WorkSource) -> Option<u64> {
        let earliest_us = if lead.is_files() {
            self.saved_us + SAVE_AGAIN_US
        } else {
            0
        };
        let flush = self
            .since_us
            .map(|since_us| (since_us + self.flush_us).max(earliest_us));
        let unsafe_us = (self.safe_us + AWAY_US).max(self.saved_us + SAVE_AGAIN_US);
        let save = (!self.records.all_safe() && !lead.is_files()).then_some(unsafe_us);
        flush.into_iter().chain(save).min()
    }

    fn is_due(&self, now_us: u64) -> bool {
        self.since_us
            .is_some_and(|since_us| now_us >= since_us + self.flush_us)
    }

    /// Records to the lead, or to the own journal where there is none or it is silent; `idle`: nothing else is to do.
    pub fn step(&mut self, lead: &mut WorkSource, idle: bool, now_us: u64) -> Result<(), PilotError> {
        self.hear(now_us);
        let due = self.is_due(now_us) || (idle && self.since_us.is_some());
        if lead.is_files() {
            let full = self.records.unsafe_bytes() > JOURNAL_BYTES;
            if (due || full) && now_us >= self.saved_us + SAVE_AGAIN_US {
                self.saved_us = now_us;
                self.save(now_us)?;
            }
            if self.records.all_safe() {
                self.since_us = None;
                self.unsafe_since = None;
            } else if now_us >= self.safe_us.max(self.since_us.unwrap_or(now_us)) + HANG_US {
                let path = self.records.journal_path().display();
                let why = format!("`{path}` has not answered for 10 s");
                self.unsafe_since.get_or_insert((now_us, why));
            }
            return Ok(());
        }
        if due {
            self.records.seal()?;
            self.since_us = None;
        }
        if (self.since_us.is_none() || self.catching_up) && self.records.has_unsent() {
            self.carry(lead, now_us);
        }
        if self.records.all_safe() {
            self.safe_us = now_us;
        } else if now_us >= self.safe_us + AWAY_US && now_us >= self.saved_us + SAVE_AGAIN_US {
            self.saved_us = now_us;
            self.save(now_us)?;
        }
        self.catching_up &= !lead.has_lead() || self.records.has_unsent();
        Ok(())
    }

    /// Give the connection what it takes of the records that it has not carried.
    pub fn carry(&mut self, lead: &mut WorkSource, now_us: u64) {
        if let Some(buffer) = lead.records_buffer(now_us) {
            self.records.write_unsent(buffer, OUT_BYTES_MAX);
        }
    }

    /// Let what is not safe go to the own journal; whether everything is safe. A failure is logged, and tried again by a
    /// later call.
    pub fn save(&mut self, now_us: u64) -> Result<bool, PilotError> {
        self.records.seal()?;
        self.hear(now_us);
        if let Err(error) = self.records.save() {
            self.failed(cause(&error), now_us);
        }
        Ok(self.records.all_safe())
    }

    /// Whether everything is safe now, by what the own journal has answered since.
    pub fn is_saved(&mut self, now_us: u64) -> bool {
        self.hear(now_us);
        self.records.all_safe()
    }

    fn hear(&mut self, now_us: u64) {
        match self.records.hear() {
            Ok(false) => {}
            Ok(true) => {
                self.safe_us = now_us;
                self.unsafe_since = None;
                let journal = self.records.journal_path().display().to_string();
                LOG.info("records.saved", &[("journal", &journal)]);
            }
            Err(why) => self.failed(why, now_us),
        }
    }

    fn failed(&mut self, why: String, now_us: u64) {
        LOG.warning("records.unsafe", &[("cause", &why)]);
        let since_us = self.unsafe_since.take().map_or(now_us, |(since_us, _)| since_us);
        self.unsafe_since = Some((since_us, why));
    }

    /// Why the pilot must give up this node: there is no lead, and its own journal fails, so its work goes unreported.
    pub fn hopeless(&self, lead: &WorkSource, now_us: u64) -> Option<String> {
        let (since_us, why) = self.unsafe_since.as_ref()?;
        let over = lead.is_files() && now_us >= since_us + self.patience_us;
        over.then(|| format!("records cannot be kept: {why}"))
    }

    /// Wait at most `limit_us` for the pilot's own journal.
    pub fn wait(&self, limit_us: u64) -> Result<(), PilotError> {
        let mut polls: Vec<_> = self.records.poll().into_iter().collect();
        tidemill_sys::fd::poll(&mut polls, Some(limit_us))
            .map_err(|error| PilotError::system("poll")(error.source))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_pilot_has_started_is_recorded_at_once_and_later_records_wait_for_others() {
        let directory = tempfile::tempdir().unwrap();
        for files in [true, false] {
            let settings = Settings {
                output_flush_s: 30.0,
                record_flush_ms: 100,
                ..Settings::default()
            };
            let records = Records::new("a.r0.i1", directory.path());
            let mut report = Report::new(records, &settings, files, 90_000_000);
            assert!(report.is_due(90_000_000));
            report.since_us = None;
            report.add_open(Done::default(), 90_000_000);
            assert!(!report.is_due(90_099_999));
            assert_eq!(report.is_due(90_100_000), !files);
            assert!(report.is_due(120_000_000));
        }
    }

    #[test]
    fn what_was_canceled_neither_fails_nor_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new("a.r0.i1", directory.path());
        let mut report = Report::new(records, &Settings::default(), false, 0);
        let piece = |job: u64| WorkPiece {
            grant: job,
            job,
            first: 0,
            count: 1,
            chunk_max: None,
        };
        report.canceled.add(&[5], 0);
        report
            .fail(&piece(5), 0, ("payload", "it is too large"), 0)
            .unwrap();
        report.give_back(&piece(5), "drain", 0).unwrap();
        assert!(!report.records.has_unsent());
        report
            .fail(&piece(6), 0, ("payload", "it is too large"), 0)
            .unwrap();
        assert!(report.records.has_unsent());
    }
}
