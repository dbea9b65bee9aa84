//! Work files: FLEET/work/NNNNNN.json, read in order. Job and program texts are kept as they are, to be sent on.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidemill_wire::{End, Grant, WireError, FORMAT};

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
    pub ended: Vec<String>,
    /// Files of earlier versions do not tell these two.
    #[serde(default)]
    pub ends: Vec<End>,
    #[serde(default)]
    pub leave: Vec<String>,
    pub drain: bool,
    pub close: bool,
}

/// Gives the work files one after the other.
#[derive(Debug)]
pub struct WorkReader {
    directory: PathBuf,
    next: u64,
}

impl WorkReader {
    pub fn new(fleet: &Path) -> Self {
        WorkReader {
            directory: fleet.join("work"),
            next: 1,
        }
    }

    /// The next work file, None while it is not there. One open by name, nothing else.
    pub fn next(&mut self) -> Result<Option<WorkText>, WireError> {
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
        assert!(reader.next().unwrap().is_none());
        write(fleet.path(), 2, &format!(r#"{{"format":1,"number":2,{EMPTY}"#));
        assert!(reader.next().unwrap().is_none());
        write(
            fleet.path(),
            1,
            &format!(r#"{{"format":1,"number":1,"new_field":[],{EMPTY}"#),
        );
        let work = reader.next().unwrap().unwrap();
        assert_eq!(work.number, 1);
        let line = one_line(work.jobs.into_iter().next().unwrap());
        assert!(!line.get().contains('\n'));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(line.get()).unwrap()["x"],
            "a\nb"
        );
        assert_eq!(reader.next().unwrap().unwrap().number, 2);
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
            let error = reader.next().unwrap_err();
            assert!(error.to_string().contains("000001.json"), "{error}");
        }
        write(fleet.path(), 1, &format!(r#"{{"format":1,"number":1,{EMPTY}"#));
        assert!(reader.next().unwrap().is_some());
    }
}
