//! A log that is kept in part: segments of a bounded size, of which the last two are there. Nothing is synced.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::WireError;

/// Appends to DIRECTORY/STEM.K.log; K counts from 1.
#[derive(Debug)]
pub struct SegmentLog {
    directory: PathBuf,
    stem: String,
    bytes_max: u64,
    number: u64,
    bytes: u64,
    file: Option<File>,
}

impl SegmentLog {
    /// `bytes_max`: of a segment. Nothing is made before the first line.
    pub fn new(directory: &Path, stem: &str, bytes_max: u64) -> Self {
        SegmentLog {
            directory: directory.to_owned(),
            stem: stem.to_owned(),
            bytes_max,
            number: 0,
            bytes: 0,
            file: None,
        }
    }

    /// Append framed lines at once. After an error the next call begins a new segment.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), WireError> {
        if self.file.is_none() || self.bytes + lines.len() as u64 > self.bytes_max {
            self.turn()?;
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if let Err(error) = file.write_all(lines) {
            self.file = None;
            return Err(WireError::file("write to", self.path(self.number))(error));
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn turn(&mut self) -> Result<(), WireError> {
        // whatever the umask: others must not be able to write here
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.directory);
        made.map_err(WireError::file("make", &self.directory))?;
        self.file = None;
        self.number += 1;
        self.bytes = 0;
        let path = self.path(self.number);
        let opened = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o644)
            .open(&path);
        self.file = Some(opened.map_err(WireError::file("create", &path))?);
        if self.number > 2 {
            let _ = fs::remove_file(self.path(self.number - 2)); // it may be gone
        }
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}.{number}.log", self.stem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_last_two_segments_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("monitor");
        let mut log = SegmentLog::new(&directory, "lead-1", 10);
        for line in ["aaaa\n", "bbbb\n", "cccc\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert_eq!(names(&directory), ["lead-1.1.log", "lead-1.2.log"]);
        assert_eq!(fs::read(directory.join("lead-1.1.log")).unwrap(), b"aaaa\nbbbb\n");
        for _ in 0..9 {
            log.append(b"longer than a segment\n").unwrap();
        }
        assert_eq!(names(&directory), ["lead-1.10.log", "lead-1.11.log"]);
    }

    #[test]
    fn a_directory_that_is_gone_comes_back_with_the_next_segment() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("monitor");
        let mut log = SegmentLog::new(&directory, "x", 4);
        log.append(b"a\n").unwrap();
        fs::remove_dir_all(&directory).unwrap();
        log.append(b"bbbb\n").unwrap();
        assert_eq!(names(&directory), ["x.2.log"]);
    }
}
