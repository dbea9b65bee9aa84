//! The pilot's append-only output bundle: a plain tar archive and an index of framed lines.
//!
//! Single writer. A member counts only after `sync`; what a failed write left behind is cut off. Knows no slot and no
//! record.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tidemill_sys::file;
use tidemill_wire::{hex, IndexEntry, JournalWriter, OutputRef};

use super::tar;
use crate::error::PilotError;

const COPY_BYTES: usize = 1 << 20;
/// Written bytes are pushed to the storage in steps of this size, so that the fsync at a yield finds little left.
const PUSH_BYTES: u64 = 8 << 20;
/// Not more than this is ever on its way to the storage, also while one large member is copied.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// How often a copy asks whether it should stop.
const ASK_BYTES: u64 = 16 << 20;

/// What a member is.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// `output` or `log`
    pub kind: &'static str,
    pub name: &'a str,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub truncated: bool,
}

impl Member<'_> {
    /// `JOB/NAME/FIRST-LAST`; logs `JOB/NAME.log/FIRST-LAST`, so that they never meet an output's name.
    fn path(&self) -> String {
        let suffix = if self.kind == "log" { ".log" } else { "" };
        format!(
            "{}/{}{suffix}/{}-{}",
            self.job,
            self.name,
            self.first,
            self.first + self.count.max(1) - 1
        )
    }
}

/// An end of the archive to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    end: u64,
    entries: usize,
}

/// FLEET/bundle/PILOT.tar and .idx, then PILOT.2.tar and so on.
pub struct Bundle {
    directory: PathBuf,
    pilot: String,
    /// of the file that is open, from 1
    number: u64,
    bytes_max: u64,
    name: String,
    path: PathBuf,
    file: File,
    index: JournalWriter,
    /// Entries of members after the last sync.
    entries: Vec<IndexEntry>,
    /// Where the next member starts.
    end: u64,
    synced: u64,
    pushed: u64,
    /// Up to here the data (not the index) is safe.
    data_synced: u64,
    /// An fsync failed: nothing that was not safe then is ever trusted.
    broken: bool,
    copy: Vec<u8>,
}

impl Bundle {
    /// Make the first file, which must not exist: that makes the pilot's name unique. None if it exists.
    pub fn create(directory: &Path, pilot: &str, bytes_max: u64) -> Result<Option<Self>, PilotError> {
        let name = format!("{pilot}.tar");
        let path = directory.join(&name);
        let file = match create_new(&path) {
            Err(PilotError::File { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                return Ok(None)
            }
            other => other?,
        };
        let index = JournalWriter::create(&path.with_extension("idx"))?;
        Ok(Some(Bundle {
            directory: directory.to_owned(),
            pilot: pilot.to_owned(),
            number: 1,
            bytes_max,
            name,
            path,
            file,
            index,
            entries: Vec::new(),
            end: 0,
            synced: 0,
            pushed: 0,
            data_synced: 0,
            broken: false,
            copy: Vec::new(),
        }))
    }

    /// Bytes that a crash of the node would lose.
    pub fn dirty_bytes(&self) -> u64 {
        self.end - self.synced
    }

    /// Append a member from an open file; it is not safe before `sync`. After an error the bundle is as before.
    pub fn append(&mut self, member: &Member<'_>, source: &mut dyn Source) -> Result<OutputRef, PilotError> {
        let mark = self.mark();
        let result = self.write_member(member, source);
        if result.is_err() {
            self.roll_back(mark);
        }
        result
    }

    /// Where the archive ends now.
    pub fn mark(&self) -> Mark {
        Mark {
            end: self.end,
            entries: self.entries.len(),
        }
    }

    /// Forget the members since a mark; none of them may have been synced.
    pub fn roll_back(&mut self, mark: Mark) {
        debug_assert!(mark.end >= self.synced);
        self.end = mark.end;
        self.pushed = self.pushed.min(mark.end);
        self.data_synced = self.data_synced.min(mark.end);
        self.entries.truncate(mark.entries);
        // what is behind `end` is overwritten by the next member; cutting it off gives the space back
        let _ = self.file.set_len(mark.end);
    }

    fn write_member(
        &mut self,
        member: &Member<'_>,
        source: &mut dyn Source,
    ) -> Result<OutputRef, PilotError> {
        let length = source
            .length()
            .map_err(PilotError::file("stat output", member.name))?;
        let head = tar::header(&member.path(), length, tidemill_wire::log::now_us() / 1_000_000);
        self.put(&head)?;
        let offset = self.end;
        let mut digest = Sha256::new();
        let mut copy = std::mem::take(&mut self.copy);
        copy.resize(COPY_BYTES, 0);
        let mut left = length;
        while left > 0 {
            let wanted = left.min(COPY_BYTES as u64) as usize;
            let count = source
                .read(&mut copy[..wanted])
                .map_err(PilotError::file("read output", member.name))?;
            if count == 0 {
                let source = std::io::Error::other(format!("it shrank by {left} bytes while it was copied"));
                return Err(PilotError::file("read output", member.name)(source));
            }
            digest.update(&copy[..count]);
            self.put(&copy[..count])?;
            left -= count as u64;
        }
        self.copy = copy;
        self.put(&[0u8; tar::BLOCK as usize][..tar::padding(length) as usize])?;
        let sha256 = hex::text(&digest.finalize());
        self.entries.push(IndexEntry {
            kind: member.kind.to_owned(),
            job: member.job,
            first: member.first,
            count: member.count,
            name: member.name.to_owned(),
            offset,
            length,
            sha256: sha256.clone(),
            truncated: member.truncated,
        });
        Ok(OutputRef {
            name: member.name.to_owned(),
            bundle: self.name.clone(),
            offset,
            length,
            sha256,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), PilotError> {
        self.file
            .write_all_at(bytes, self.end)
            .map_err(PilotError::file("write", &self.path))?;
        self.end += bytes.len() as u64;
        if self.end - self.pushed >= PUSH_BYTES {
            // advice only: an error shows up again at fdatasync
            let _ = file::start_writing_out(self.file.as_fd(), self.pushed, self.end - self.pushed);
            self.pushed = self.end;
        }
        if self.end - self.data_synced >= DIRTY_BYTES_MAX {
            self.sync_file()?;
        }
        Ok(())
    }

    fn sync_file(&mut self) -> Result<(), PilotError> {
        if let Err(error) = self.file.sync_data() {
            self.broken = true;
            return Err(PilotError::file("fsync", &self.path)(error));
        }
        self.data_synced = self.end;
        self.pushed = self.end;
        Ok(())
    }

    /// Make every member so far survive a crash of the node. After an error none since the last success is safe.
    pub fn sync(&mut self) -> Result<(), PilotError> {
        if self.broken {
            let source = std::io::Error::other("an earlier fsync of it failed");
            return Err(PilotError::file("fsync", &self.path)(source));
        }
        if self.end > self.data_synced {
            self.sync_file()?;
        }
        for entry in self.entries.drain(..) {
            self.index.append(&entry)?;
        }
        self.index.sync()?;
        self.synced = self.end;
        Ok(())
    }

    /// Whether a next file should be started (before the next member, after a sync).
    pub fn is_large(&self) -> bool {
        self.end >= self.bytes_max
    }

    /// Start the next file; call after `sync`, or after a sync that failed: then the old file is never trusted again.
    pub fn start_next(&mut self) -> Result<(), PilotError> {
        let number = self.number + 1;
        let name = format!("{}.{number}.tar", self.pilot);
        let path = self.directory.join(&name);
        let file = create_new(&path)?;
        let index = JournalWriter::create(&path.with_extension("idx"))?;
        self.finish();
        self.entries.clear();
        (self.number, self.name, self.path, self.file, self.index) = (number, name, path, file, index);
        (self.end, self.synced, self.pushed, self.data_synced, self.broken) = (0, 0, 0, 0, false);
        Ok(())
    }

    /// End the archive as tar expects it. Readers do without; so nobody waits for these blocks to be safe.
    pub fn finish(&mut self) {
        let _ = self
            .file
            .write_all_at(&[0u8; tar::TRAILER_BYTES as usize], self.end);
    }
}

fn create_new(path: &Path) -> Result<File, PilotError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(PilotError::file("create", path))
}

/// Bytes of a known length that become a member.
pub trait Source: Read {
    /// Bytes that will be read.
    fn length(&self) -> std::io::Result<u64>;
}

impl Source for File {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// A file whose copy ends with EINTR as soon as `stop` says so.
pub struct Stoppable<'a> {
    pub file: File,
    pub stop: &'a dyn Fn() -> bool,
    pub since_asked: u64,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.since_asked >= ASK_BYTES {
            self.since_asked = 0;
            if (self.stop)() {
                return Err(std::io::Error::from_raw_os_error(libc::EINTR));
            }
        }
        let count = self.file.read(into)?;
        self.since_asked += count as u64;
        Ok(count)
    }
}

impl Source for Stoppable<'_> {
    fn length(&self) -> std::io::Result<u64> {
        self.file.length()
    }
}

impl Source for &[u8] {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, first: u64) -> Member<'_> {
        Member {
            kind: "output",
            name,
            job: 7,
            first,
            count: 10,
            truncated: false,
        }
    }

    #[test]
    fn members_are_where_the_index_says_and_tar_reads_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut bundle = Bundle::create(directory.path(), "a.r0.i1", 1 << 30)
            .unwrap()
            .unwrap();
        let content = vec![7u8; 3_000_001];
        let first = bundle.append(&member("hits", 0), &mut &content[..]).unwrap();
        let log = Member {
            kind: "log",
            ..member("stderr", 0)
        };
        let second = bundle.append(&log, &mut &b"warning\n"[..]).unwrap();
        bundle.sync().unwrap();
        assert_eq!(bundle.dirty_bytes(), 0);
        bundle.finish();
        let data = std::fs::read(directory.path().join("a.r0.i1.tar")).unwrap();
        assert_eq!(
            &data[first.offset as usize..][..first.length as usize],
            &content[..]
        );
        assert_eq!(
            &data[second.offset as usize..][..second.length as usize],
            b"warning\n"
        );
        let output = std::process::Command::new("tar")
            .arg("-tf")
            .arg(directory.path().join("a.r0.i1.tar"))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "7/hits/0-9\n7/stderr.log/0-9\n"
        );
        assert!(output.stderr.is_empty());
        let index = std::fs::read_to_string(directory.path().join("a.r0.i1.idx")).unwrap();
        assert_eq!(index.lines().count(), 2);
        assert_eq!(first.sha256, hex::text(&Sha256::digest(&content)));
    }

    #[test]
    fn a_name_is_used_once() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Bundle::create(directory.path(), "a", 1).unwrap().is_some());
        assert!(Bundle::create(directory.path(), "a", 1).unwrap().is_none());
    }

    #[test]
    fn a_large_bundle_is_followed_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let mut bundle = Bundle::create(directory.path(), "a", 1000).unwrap().unwrap();
        assert!(!bundle.is_large());
        assert_eq!(
            bundle
                .append(&member("x", 0), &mut &[1u8; 600][..])
                .unwrap()
                .bundle,
            "a.tar"
        );
        assert!(bundle.is_large());
        bundle.sync().unwrap();
        bundle.start_next().unwrap();
        let next = bundle.append(&member("x", 10), &mut &[1u8; 600][..]).unwrap();
        assert_eq!((next.bundle.as_str(), next.offset), ("a.2.tar", 512));
        bundle.sync().unwrap();
        assert!(directory.path().join("a.2.idx").metadata().unwrap().len() > 0);
    }

    #[test]
    fn a_copy_that_is_told_to_stop_leaves_no_trace() {
        let directory = tempfile::tempdir().unwrap();
        let mut bundle = Bundle::create(directory.path(), "a", 1000).unwrap().unwrap();
        let large = tempfile::tempfile().unwrap();
        large.set_len(ASK_BYTES * 3).unwrap();
        let mut source = Stoppable {
            file: large,
            stop: &|| true,
            since_asked: 0,
        };
        assert!(bundle
            .append(&member("x", 0), &mut source)
            .unwrap_err()
            .is_interrupted());
        assert_eq!(bundle.dirty_bytes(), 0);
    }

    #[test]
    fn a_source_that_breaks_leaves_no_trace() {
        struct Short;
        impl Read for Short {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Ok(0)
            }
        }
        impl Source for Short {
            fn length(&self) -> std::io::Result<u64> {
                Ok(10)
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let mut bundle = Bundle::create(directory.path(), "a", 1000).unwrap().unwrap();
        assert!(bundle.append(&member("x", 0), &mut Short).is_err());
        assert_eq!(bundle.dirty_bytes(), 0);
        assert_eq!(
            bundle.append(&member("x", 0), &mut &b"abc"[..]).unwrap().offset,
            512
        );
    }
}
