//! A pilot's records: numbered, kept until they are safe at the lead or in the pilot's own journal.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use tidemill_sys::fd::Poll;
use tidemill_wire::{frame, Done, Ended, Failed, JournalWriter, Noted, Record, Returned, Started};

use super::journal::Journal;
use crate::error::PilotError;

/// Bytes of records, safe in the pilot's own journal, that are still sent to a lead that comes back.
const RESEND_BYTES_MAX: usize = 16 << 20;

/// Bytes kept of each text of a failure, so that a journal of a million failures stays readable.
const TEXT_BYTES_MAX: usize = 4096;

struct Framed {
    number: u64,
    bytes: Vec<u8>,
}

/// All unacknowledged records, and the pilot's own journal.
#[derive(Default)]
pub struct Records {
    pilot: String,
    journal_path: PathBuf,
    journal: Option<Journal>,
    last: u64,
    /// Done without outputs that may still grow, by (grant, slot).
    open: Vec<Done>,
    open_places: HashMap<(u64, u64), usize>,
    framed: VecDeque<Framed>,
    bytes: usize,
    sent: u64,
    acked: u64,
    /// Up to here records are in the own journal, fsynced.
    journaled: u64,
    /// Up to here the journal's writer has them, fsynced or not.
    taken: u64,
    /// Bytes of records that stay here although they are in the own journal.
    resend_bytes_max: usize,
}

impl Records {
    pub fn new(pilot: &str, journal_directory: &Path) -> Self {
        Records {
            pilot: pilot.to_owned(),
            journal_path: journal_directory.join(format!("{pilot}.log")),
            resend_bytes_max: RESEND_BYTES_MAX,
            ..Records::default()
        }
    }

    /// Without a lead, records go only to the pilot's own journal.
    pub fn without_lead(mut self) -> Self {
        self.resend_bytes_max = 0;
        self
    }

    /// Add a record; `p` and `s` are filled in here.
    pub fn add(&mut self, mut record: Record) -> Result<(), PilotError> {
        let number = self.last + 1;
        if let Record::Failed(failed) = &mut record {
            cut(&mut failed.message);
            cut_to_tail(&mut failed.stderr_tail);
        }
        let (p, s) = match &mut record {
            Record::Started(Started { p, s, .. })
            | Record::Done(Done { p, s, .. })
            | Record::Failed(Failed { p, s, .. })
            | Record::Returned(Returned { p, s, .. })
            | Record::Ended(Ended { p, s, .. })
            | Record::Noted(Noted { p, s, .. }) => (p, s),
        };
        p.clone_from(&self.pilot);
        *s = number;
        let mut bytes = Vec::with_capacity(512);
        frame::encode(&record, &mut bytes)?;
        self.last = number;
        self.bytes += bytes.len();
        self.framed.push_back(Framed { number, bytes });
        Ok(())
    }

    /// Add a Done without outputs; it may be joined with its neighbours until the next `seal`.
    pub fn add_open(&mut self, done: Done) {
        debug_assert!(done.outputs.is_empty());
        let key = (done.grant, done.slot);
        if let Some(&place) = self.open_places.get(&key) {
            if join(&mut self.open[place], &done) {
                return;
            }
        }
        self.open_places.insert(key, self.open.len());
        self.open.push(done);
    }

    /// Number everything that was open.
    pub fn seal(&mut self) -> Result<(), PilotError> {
        self.open_places.clear();
        for done in std::mem::take(&mut self.open) {
            self.add(Record::Done(done))?;
        }
        Ok(())
    }

    /// Append numbered records that this connection has not carried yet, up to about `limit` bytes.
    pub fn write_unsent(&mut self, out: &mut Vec<u8>, limit: usize) {
        let Some(first) = self.framed.front().map(|framed| framed.number) else {
            return;
        };
        let start = (self.sent + 1).saturating_sub(first) as usize;
        for framed in self.framed.iter().skip(start) {
            if out.len() >= limit {
                break;
            }
            out.extend_from_slice(&framed.bytes);
            self.sent = framed.number;
        }
    }

    /// Whether there are numbered records that this connection has not carried.
    pub fn has_unsent(&self) -> bool {
        self.last > self.sent && !self.framed.is_empty()
    }

    /// A lead has acknowledged up to a number, on this or (at its Welcome) an earlier connection.
    pub fn acknowledge(&mut self, number: u64) {
        self.acked = self.acked.max(number.min(self.last));
        while self
            .framed
            .front()
            .is_some_and(|framed| framed.number <= self.acked)
        {
            self.drop_first();
        }
    }

    /// A new connection carries everything that is not acknowledged.
    pub fn reconnected(&mut self, acked: u64) {
        self.acknowledge(acked);
        self.sent = self.acked;
    }

    /// Whether every numbered record is at the lead or in the own journal, fsynced.
    pub fn all_safe(&self) -> bool {
        self.open.is_empty() && self.all_numbered_safe()
    }

    fn all_numbered_safe(&self) -> bool {
        self.acked.max(self.journaled) >= self.last
    }

    /// Whether every record is at the lead, which the lead needs for its own counts.
    pub fn all_acked(&self) -> bool {
        self.open.is_empty() && self.acked >= self.last
    }

    /// Highest numbers that a lead has acknowledged, and that are in the own journal.
    pub fn safe(&self) -> (u64, u64) {
        (self.acked, self.journaled)
    }

    /// Bytes of records that are neither acknowledged nor in the own journal.
    pub fn unsafe_bytes(&self) -> usize {
        if self.journaled >= self.last {
            0
        } else {
            self.bytes
        }
    }

    /// Append unsafe records to the pilot's own journal, unless an append is under way; `hear` reports the result.
    pub fn save(&mut self) -> Result<(), PilotError> {
        if self.all_numbered_safe() {
            return Ok(());
        }
        if self.journal.is_none() {
            self.journal = Some(Journal::start(&self.journal_path)?);
        }
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_free()) else {
            return Ok(());
        };
        let from = self.acked.max(self.taken);
        let mut lines = Vec::new();
        for framed in self.framed.iter().filter(|framed| framed.number > from) {
            lines.extend_from_slice(&framed.bytes);
        }
        self.taken = self.last;
        journal.save(self.taken, &lines)
    }

    /// Take note of what was saved; whether it was anything. Err: why it was not, and it is tried again by `save`.
    pub fn hear(&mut self) -> Result<bool, String> {
        let Some(journal) = &mut self.journal else {
            return Ok(false);
        };
        let (safe, failed) = match journal.hear() {
            Ok(heard) => heard,
            Err(how) => {
                self.journal = None;
                self.taken = self.journaled;
                return Err(how);
            }
        };
        if let Some(number) = safe {
            self.saved(number);
        }
        failed.map_or(Ok(safe.is_some()), Err)
    }

    /// Readable when there is something to `hear`.
    pub fn poll(&self) -> Option<Poll> {
        self.journal.as_ref().map(Journal::poll)
    }

    /// As `save`, at once and here: for a pilot that has nothing else to do.
    pub fn save_here(&mut self) -> Result<(), PilotError> {
        let from = self.acked.max(self.journaled);
        let mut journal = JournalWriter::open(&self.journal_path)?;
        for framed in self.framed.iter().filter(|framed| framed.number > from) {
            journal.append_line(&framed.bytes[..framed.bytes.len() - 1]);
        }
        journal.sync()?;
        self.saved(self.last);
        Ok(())
    }

    fn saved(&mut self, number: u64) {
        self.journaled = number;
        while self.bytes > self.resend_bytes_max
            && self
                .framed
                .front()
                .is_some_and(|framed| framed.number <= self.journaled)
        {
            self.drop_first();
        }
    }

    pub fn journal_path(&self) -> &Path {
        &self.journal_path
    }

    fn drop_first(&mut self) {
        if let Some(framed) = self.framed.pop_front() {
            self.bytes -= framed.bytes.len();
        }
    }
}

/// Keep the begin of a text, and say that there was more.
fn cut(text: &mut String) {
    const MORE: &str = " ...";
    if text.len() > TEXT_BYTES_MAX {
        let mut at = TEXT_BYTES_MAX - MORE.len();
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        text.push_str(MORE);
    }
}

/// Keep the end of a text: replacements of bytes that are not UTF-8 take three times their place.
fn cut_to_tail(text: &mut String) {
    let mut from = text.len().saturating_sub(TEXT_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.drain(..from);
}

/// Make `done` part of `into` if it continues it on either side.
fn join(into: &mut Done, done: &Done) -> bool {
    if into.job != done.job {
        return false;
    }
    if into.first + into.count != done.first && done.first + done.count != into.first {
        return false;
    }
    into.first = into.first.min(done.first);
    into.count += done.count;
    into.payloads += done.payloads;
    into.started_us = into.started_us.min(done.started_us);
    into.ended_us = into.ended_us.max(done.ended_us);
    into.wall_us += done.wall_us;
    into.setup_us += done.setup_us;
    into.user_us += done.user_us;
    into.system_us += done.system_us;
    into.rss_kb = into.rss_kb.max(done.rss_kb);
    into.read_bytes = sum(into.read_bytes, done.read_bytes);
    into.write_bytes = sum(into.write_bytes, done.write_bytes);
    true
}

/// What was not measured adds nothing.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(x), Some(y)) => Some(x + y),
        (x, y) => x.or(y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_wire::JournalReader;

    pub fn done(grant: u64, slot: u64, first: u64, count: u64) -> Done {
        Done {
            grant,
            job: 1,
            first,
            count,
            payloads: count,
            slot,
            started_us: 100 + first,
            ended_us: 200 + first,
            wall_us: count,
            rss_kb: first,
            write_bytes: Some(count),
            ..Done::default()
        }
    }

    fn returned(first: u64) -> Record {
        Record::Returned(Returned {
            grant: 1,
            job: 1,
            first,
            count: 1,
            reason: "drain".into(),
            ..Returned::default()
        })
    }

    fn carried(records: &mut Records) -> Vec<Record> {
        let mut out = Vec::new();
        records.write_unsent(&mut out, usize::MAX);
        frame::Frames::new(&out)
            .map(|json| serde_json::from_slice(json).unwrap())
            .collect()
    }

    fn journaled(path: &Path) -> Vec<u64> {
        let mut numbers = Vec::new();
        JournalReader::new(path)
            .read(|json| {
                let value: serde_json::Value = serde_json::from_slice(json).unwrap();
                numbers.push(value["s"].as_u64().unwrap());
            })
            .unwrap();
        numbers
    }

    #[test]
    fn consecutive_done_of_a_grant_and_slot_become_one_record() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::new("a.r0.i1", directory.path());
        for each in [
            done(1, 1, 0, 2),
            done(1, 2, 50, 1),
            done(1, 1, 2, 3),
            done(2, 1, 5, 1),
            done(1, 1, 9, 1),
        ] {
            records.add_open(each);
        }
        assert!(!records.all_safe());
        records.seal().unwrap();
        let got: Vec<(u64, u64, u64, u64)> = carried(&mut records)
            .into_iter()
            .map(|record| match record {
                Record::Done(d) => (d.s, d.grant, d.first, d.count),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(got, [(1, 1, 0, 5), (2, 1, 50, 1), (3, 2, 5, 1), (4, 1, 9, 1)]);
    }

    #[test]
    fn what_is_not_acknowledged_is_carried_again_by_the_next_connection() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::new("a.r0.i1", directory.path());
        for first in 0..5 {
            records.add(returned(first)).unwrap();
        }
        assert_eq!(carried(&mut records).len(), 5);
        assert!(carried(&mut records).is_empty());
        records.acknowledge(2);
        records.reconnected(3);
        assert_eq!(carried(&mut records).len(), 2);
        records.acknowledge(5);
        assert!(records.all_acked());
        assert_eq!(records.unsafe_bytes(), 0);
    }

    #[test]
    fn the_own_journal_gets_only_what_the_lead_has_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::new("a.r0.i1", directory.path());
        for first in 0..5 {
            records.add(returned(first)).unwrap();
        }
        records.acknowledge(2);
        records.save_here().unwrap();
        assert!(records.all_safe() && !records.all_acked());
        records.add(returned(9)).unwrap();
        assert!(!records.all_safe());
        records.save_here().unwrap();
        assert_eq!(journaled(records.journal_path()), [3, 4, 5, 6]);
        records.reconnected(2);
        assert_eq!(carried(&mut records).len(), 4);
    }

    #[test]
    fn texts_of_a_failure_are_bounded_whatever_a_payload_says() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::new("a.r0.i1", directory.path());
        let failed = |message: &str, tail: &str| {
            Record::Failed(Failed {
                message: message.to_owned(),
                stderr_tail: tail.to_owned(),
                ..Failed::default()
            })
        };
        records
            .add(failed(
                &"é".repeat(30_000),
                &format!("{}end", "\u{fffd}".repeat(4096)),
            ))
            .unwrap();
        records.add(failed("short", "tail")).unwrap();
        let texts: Vec<(String, String)> = carried(&mut records)
            .into_iter()
            .map(|record| match record {
                Record::Failed(failed) => (failed.message, failed.stderr_tail),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(texts[0].0.len() <= 4096 && texts[0].0.starts_with("éé") && texts[0].0.ends_with("é ..."));
        assert!(texts[0].1.len() <= 4096 && texts[0].1.ends_with("end"));
        assert_eq!(texts[1], ("short".to_owned(), "tail".to_owned()));
    }

    #[test]
    fn a_journal_that_cannot_be_written_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("journal");
        let mut records = Records::new("a.r0.i1", &missing);
        records.add(returned(0)).unwrap();
        assert!(records.save_here().is_err());
        assert!(!records.all_safe());
        std::fs::create_dir(&missing).unwrap();
        records.save_here().unwrap();
        assert_eq!(journaled(records.journal_path()), [1]);
    }
}
