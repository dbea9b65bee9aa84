//! The few fields of a record that the lead reads; the rest is stored unread.

use std::borrow::Cow;

use serde::Deserialize;

/// No honest record has a larger number of events or microseconds (`AMOUNT_MAX` of src/tidemill/node/journal.py).
const AMOUNT_MAX: u64 = 1 << 53;

/// Fields that a kind does not have are 0 or empty.
#[derive(Debug, Deserialize)]
pub struct RecordHead<'a> {
    #[serde(borrow)]
    k: Cow<'a, str>,
    #[serde(borrow)]
    pub p: Cow<'a, str>,
    pub s: u64,
    #[serde(default)]
    pub grant: u64,
    #[serde(default, deserialize_with = "null_is_0")]
    pub job: u64,
    #[serde(default)]
    pub first: u64,
    #[serde(default)]
    pub count: u64,
    #[serde(default)]
    pub wall_us: u64,
    #[serde(default)]
    pub setup_us: u64,
    #[serde(default, borrow)]
    pub reason: Cow<'a, str>,
}

/// Notes belong to a job or to none.
fn null_is_0<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(0))
}

/// What a record reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Started,
    Done,
    Failed,
    Returned,
    Ended,
    /// Of a newer version: kept, not understood.
    Other,
}

impl RecordHead<'_> {
    /// Whether its numbers are within what a pilot writes.
    pub fn is_in_range(&self) -> bool {
        [self.s, self.first, self.count, self.wall_us, self.setup_us]
            .iter()
            .all(|&amount| amount < AMOUNT_MAX)
    }

    pub fn kind(&self) -> Kind {
        match self.k.as_ref() {
            "done" => Kind::Done,
            "failed" => Kind::Failed,
            "returned" => Kind::Returned,
            "started" => Kind::Started,
            "ended" => Kind::Ended,
            _ => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_no_job_is_read_and_not_understood() {
        let note: RecordHead =
            serde_json::from_str(r#"{"k":"noted","p":"a.r0.i1","s":2,"job":null}"#).unwrap();
        assert_eq!((note.kind(), note.s, note.job), (Kind::Other, 2, 0));
    }
}
