//! The few fields of a record that the lead looks at; the rest is stored unread.

use std::borrow::Cow;

use serde::Deserialize;

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
    #[serde(default)]
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

/// What a record tells.
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
