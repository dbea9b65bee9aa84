//! Work files: FLEET/work/NNNNNN.json, read in order. Job and program texts are kept as they are: most are sent on, or
//! of no use to the reader.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::WireError;
use crate::generated::{End, Grant, IoArea, Share, Withdrawn, FORMAT};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A larger file is refused: the agent writes at most 64 MiB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A work file whose programs and jobs are still text.
#[derive(Debug, Deserialize)]
pub struct WorkText {
    pub format: u64,
    pub number: u64,
    pub programs: Vec<Box<RawValue>>,
    pub jobs: Vec<Box<RawValue>>,
    pub grants: Vec<Grant>,
    pub cancel_jobs: Vec<u64>,
    /// Files of earlier versions lack this, `ends` and `leave`.
    #[serde(default)]
    pub shares: Vec<Share>,
    pub ended: Vec<String>,
    #[serde(default)]
    pub ends: Vec<End>,
    #[serde(default)]
    pub io: Option<Vec<IoArea>>,
    #[serde(default)]
    pub leave: Vec<String>,
    pub drain: bool,
    pub close: bool,
    #[serde(default)]
    pub withdrawn: Option<Vec<Withdrawn>>,
}

/// Gives the work files one after the other.
#[derive(Debug)]
pub struct WorkReader {
    directory: PathBuf,
    next: u64,
}

impl WorkReader {
    pub fn new(fleet: &Path) -> Self {
        WorkReader::from(fleet, 1)
    }

    /// Starts with the file of this number.
    pub fn from(fleet: &Path, number: u64) -> Self {
        WorkReader {
            directory: fleet.join("work"),
            next: number,
        }
    }

    /// The highest number of a file that is there now, 0 where there is none: one listing.
    pub fn last(&self) -> Result<u64, WireError> {
        let failed = |error| WireError::file("list", &self.directory)(error);
        let mut last = 0;
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".json"));
            let number = stem.and_then(|stem| stem.parse::<u64>().ok());
            last = last.max(number.unwrap_or(0));
        }
        Ok(last)
    }

    /// Go on with the file of this number, if that is further on.
    pub fn skip_to(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// The next work file, None while it is not there. One open by name, nothing else.
    pub fn read_next(&mut self) -> Result<Option<WorkText>, WireError> {
        let path = self.directory.join(format!("{:06}.json", self.next));
        let mut text = Vec::new();
        match File::open(&path) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        }
        .map_err(WireError::file("read the work file", &path))?;
        let work: WorkText = serde_json::from_slice(&text).map_err(|source| WireError::Json {
            what: "a work file",
            quoted: path.display().to_string(),
            source,
        })?;
        if work.format != FORMAT || work.number != self.next {
            let message = format!(
                "it has format {} and number {}, expected {FORMAT} and {}",
                work.format, work.number, self.next
            );
            return Err(WireError::file("use the work file", &path)(
                std::io::Error::other(message),
            ));
        }
        self.next += 1;
        Ok(Some(work))
    }
}

/// JSON text without the newlines that would end a line of the protocol.
pub fn one_line(text: Box<RawValue>) -> Box<RawValue> {
    if !text.get().contains('\n') {
        return text;
    }
    // inside JSON strings a newline is always escaped: the bare ones are white space
    RawValue::from_string(text.get().replace(['\n', '\r'], " ")).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, number: u64, text: &str) {
        std::fs::create_dir_all(directory.join("work")).unwrap();
        std::fs::write(directory.join(format!("work/{number:06}.json")), text).unwrap();
    }

    const EMPTY: &str = r#""programs":[],"jobs":[{"job":1,
        "x": "a\nb"}],"grants":[],"cancel_jobs":[],"ended":[],"drain":false,"close":false}"#;

    #[test]
    fn files_come_in_order_and_a_missing_one_is_none() {
        let fleet = tempfile::tempdir().unwrap();
        let mut reader = WorkReader::new(fleet.path());
        assert!(reader.read_next().unwrap().is_none());
        write(fleet.path(), 2, &format!(r#"{{"format":1,"number":2,{EMPTY}"#));
        assert!(reader.read_next().unwrap().is_none());
        write(
            fleet.path(),
            1,
            &format!(r#"{{"format":1,"number":1,"new_field":[],{EMPTY}"#),
        );
        let work = reader.read_next().unwrap().unwrap();
        assert_eq!(work.number, 1);
        let line = one_line(work.jobs.into_iter().next().unwrap());
        assert!(!line.get().contains('\n'));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(line.get()).unwrap()["x"],
            "a\nb"
        );
        assert_eq!(reader.read_next().unwrap().unwrap().number, 2);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_with_its_path_and_is_read_again() {
        let fleet = tempfile::tempdir().unwrap();
        let mut reader = WorkReader::new(fleet.path());
        for text in [
            "{",
            &format!(r#"{{"format":9,"number":1,{EMPTY}"#),
            &format!(r#"{{"format":1,"number":3,{EMPTY}"#),
        ] {
            write(fleet.path(), 1, text);
            let error = reader.read_next().unwrap_err();
            assert!(error.to_string().contains("000001.json"), "{error}");
        }
        write(fleet.path(), 1, &format!(r#"{{"format":1,"number":1,{EMPTY}"#));
        assert!(reader.read_next().unwrap().is_some());
    }
}
