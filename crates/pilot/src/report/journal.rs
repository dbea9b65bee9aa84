//! The child that writes the pilot's own journal: it alone calls the file system that may hang.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_wire::log::cause;
use tidemill_wire::worker::{Served, Worker};
use tidemill_wire::{JournalWriter, WireError};

use crate::error::PilotError;
use crate::FILES;

/// Make the framed lines of the body safe, with all that were sent before.
#[derive(Debug, Serialize, Deserialize)]
struct Save {
    number: u64,
}

/// Up to this record all are safe, or why they are not.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    number: u64,
    error: Option<String>,
}

/// The pilot's side.
pub(super) struct Journal {
    worker: Worker<Saved>,
    is_awaited: bool,
}

impl Journal {
    /// Forks: call while single-threaded.
    pub fn start(path: &Path) -> Result<Self, PilotError> {
        let path = path.to_owned();
        Ok(Journal {
            worker: Worker::start(FILES, &[], |served| serve(&path, served))?,
            is_awaited: false,
        })
    }

    /// Whether it can be asked for something now.
    pub fn is_free(&self) -> bool {
        !self.is_awaited
    }

    /// Save these lines, up to the record of this number.
    pub fn save(&mut self, number: u64, lines: &[u8]) -> Result<(), PilotError> {
        self.is_awaited = true;
        Ok(self.worker.send(&Save { number }, lines)?)
    }

    /// The last record that is known to be safe now, where that is news, and why others are not. Err: the child is gone.
    pub fn hear(&mut self) -> Result<(Option<u64>, Option<String>), String> {
        let (mut safe, mut failed) = (None, None);
        for answer in self.worker.hear()? {
            self.is_awaited = false;
            match answer.error {
                None => (safe, failed) = (Some(answer.number), None),
                error => failed = error,
            }
        }
        Ok((safe, failed))
    }

    pub fn poll(&self) -> tidemill_sys::fd::Poll {
        self.worker.poll()
    }
}

fn serve(path: &Path, mut served: Served) {
    let mut unsafe_lines = Vec::new();
    let mut writer = None;
    served.answer_all(|Save { number }, lines| {
        let fresh = lines.len();
        unsafe_lines.extend(lines);
        let error = match save(path, &mut writer, (&unsafe_lines, fresh)) {
            Ok(()) => {
                unsafe_lines.clear();
                None
            }
            Err(error) => {
                writer = None; // its handle may be stale for good; what it wrote all the same, readers see twice and drop
                Some(cause(&error))
            }
        };
        Saved { number, error }
    });
}

/// Append the last `fresh` bytes of the lines, or all where the file is opened for it, and fsync.
fn save(
    path: &Path,
    writer: &mut Option<JournalWriter>,
    (lines, fresh): (&[u8], usize),
) -> Result<(), WireError> {
    let (journal, from) = match writer.take() {
        Some(journal) => (journal, lines.len() - fresh),
        None => (JournalWriter::open(path)?, 0),
    };
    let journal = writer.insert(journal);
    let whole = lines[from..].split(|&byte| byte == b'\n');
    whole
        .filter(|line| !line.is_empty())
        .for_each(|line| journal.append_line(line));
    journal.sync()
}
