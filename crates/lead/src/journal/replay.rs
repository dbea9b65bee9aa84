//! The journals of the fleet: those of earlier leads, and what pilots wrote themselves when no lead answered.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidemill_wire::log::{cause, Log};
use tidemill_wire::{JournalReader, JournalWriter, WireError};

use crate::ledger::record::{Kind, RecordHead};
use crate::ledger::{Ledger, Number, PilotKey};

/// So long a network file system may show a page of a journal later than those behind it.
const GAP_TIME: Duration = Duration::from_secs(60);

/// Reads every journal but our own.
pub struct Journals {
    directory: PathBuf,
    leads: Vec<(PathBuf, JournalReader)>,
    pilots: HashMap<String, JournalReader>,
    /// Highest record number of each pilot that was read, hence is on disk, since `take_safe`.
    safe: HashMap<PilotKey, u64>,
    log: Log,
}

impl Journals {
    /// Read all journals of the fleet into the ledger; create our own, numbered above all others.
    pub fn replay(
        fleet: &Path,
        ledger: &mut Ledger,
        log: Log,
    ) -> Result<(Self, u64, JournalWriter), WireError> {
        let directory = fleet.join("journal");
        let (mut leads, mut pilots) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&directory).map_err(WireError::file("list", &directory))? {
            let name = entry.map_err(WireError::file("list", &directory))?.file_name();
            let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".log")) else {
                continue;
            };
            match stem
                .strip_prefix("lead-")
                .and_then(|number| number.parse::<u64>().ok())
            {
                Some(number) => leads.push(number),
                None => pilots.push(stem.to_owned()),
            }
        }
        leads.sort_unstable();
        let (incarnation, writer) = create(&directory, leads.last().copied().unwrap_or(0) + 1)?;
        let mut journals = Journals {
            directory,
            leads: Vec::new(),
            pilots: HashMap::new(),
            safe: HashMap::new(),
            log,
        };
        for number in leads {
            let path = journals.directory.join(format!("lead-{number}.log"));
            journals
                .leads
                .push((path.clone(), JournalReader::patient(&path, GAP_TIME)));
        }
        journals.catch_up_leads(ledger, 0)?;
        for pilot in pilots {
            journals.catch_up_pilot(ledger, &pilot, 0)?;
        }
        Ok((journals, incarnation, writer))
    }

    /// Read what other leads have written since: one that was taken for dead may have acknowledged more.
    pub fn catch_up_leads(&mut self, ledger: &mut Ledger, now: u64) -> Result<(), WireError> {
        for (path, reader) in &mut self.leads {
            read(path, reader, ledger, (now, &mut self.safe, self.log))?;
        }
        Ok(())
    }

    /// Read what a pilot has written itself.
    pub fn catch_up_pilot(&mut self, ledger: &mut Ledger, pilot: &str, now: u64) -> Result<(), WireError> {
        let path = self.directory.join(format!("{pilot}.log"));
        let reader = self
            .pilots
            .entry(pilot.to_owned())
            .or_insert_with(|| JournalReader::patient(&path, GAP_TIME));
        read(&path, reader, ledger, (now, &mut self.safe, self.log))
    }

    /// Read again what could not be read while whole records followed; whether there was any such place.
    pub fn catch_up_gaps(&mut self, ledger: &mut Ledger, now: u64) -> Result<bool, WireError> {
        let mut any = false;
        for (path, reader) in self.leads.iter_mut().filter(|(_, reader)| reader.gaps() > 0) {
            read(path, reader, ledger, (now, &mut self.safe, self.log))?;
            any = true;
        }
        for (pilot, reader) in self.pilots.iter_mut().filter(|(_, reader)| reader.gaps() > 0) {
            let path = self.directory.join(format!("{pilot}.log"));
            read(&path, reader, ledger, (now, &mut self.safe, self.log))?;
            any = true;
        }
        Ok(any)
    }

    /// The records that other journals are known to hold.
    pub fn take_safe(&mut self) -> HashMap<PilotKey, u64> {
        std::mem::take(&mut self.safe)
    }
}

/// Creates a journal with the first free number at or above `from`. The lead that creates the file owns the number.
fn create(directory: &Path, from: u64) -> Result<(u64, JournalWriter), WireError> {
    let mut number = from;
    loop {
        let path = directory.join(format!("lead-{number}.log"));
        match JournalWriter::create(&path) {
            Ok(writer) => {
                tidemill_sys::file::sync_directory(directory)
                    .map_err(|error| WireError::file("fsync", directory)(error.source))?;
                return Ok((number, writer));
            }
            Err(error) if error.os_error() == Some(tidemill_sys::errno::EEXIST) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn read(
    path: &Path,
    reader: &mut JournalReader,
    ledger: &mut Ledger,
    (now, safe, log): (u64, &mut HashMap<PilotKey, u64>, Log),
) -> Result<(), WireError> {
    let (before, gaps) = (reader.offset(), reader.gaps());
    let mut take = |json: &[u8]| match serde_json::from_slice(json) {
        Ok(head) => apply(&head, ledger, safe, now),
        Err(error) => {
            log.error(
                "journal.unreadable",
                &[("path", &path.display().to_string()), ("error", &cause(&error))],
            );
        }
    };
    while reader.read(&mut take)? > 0 {}
    if reader.gaps() > gaps {
        let hint = "its file system may show them later: they are read again for a minute";
        log.warning(
            "journal.gap",
            &[
                ("path", &path.display().to_string()),
                ("places", &reader.gaps()),
                ("hint", &hint),
            ],
        );
    }
    for place in reader.take_damage() {
        let hint = "the file system damaged it: what stood there counts as lost, and runs again";
        log.error(
            "journal.damaged",
            &[
                ("path", &path.display().to_string()),
                ("from", &place.start),
                ("to", &place.end),
                ("hint", &hint),
            ],
        );
    }
    if reader.offset() > before {
        // its writer may have died before its own fsync, and we are about to build on it
        File::open(path)
            .and_then(|file| file.sync_data())
            .map_err(WireError::file("fsync", path))?;
    }
    Ok(())
}

fn apply(head: &RecordHead<'_>, ledger: &mut Ledger, safe: &mut HashMap<PilotKey, u64>, now: u64) {
    let key = ledger.key_of(&head.p);
    let number = safe.entry(key).or_default();
    *number = head.s.max(*number);
    // files are read one after the other, so numbers may come out of order: results count whenever they come
    let known = matches!(ledger.number(key, head.s), Number::Duplicate);
    if !known || matches!(head.kind(), Kind::Done | Kind::Failed) {
        ledger.record(key, head, now);
    }
}
