//! The pilot's append-only output bundle: a plain tar archive and an index of framed lines.
//!
//! Single writer. A member counts only after `sync`; the remains of a failed write are cut off. Holes of a source
//! become holes of the archive file: readers get zeros, and they take no disk space. Does not know slots or records.

use std::fs::File;
use std::io::{Cursor, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tidemill_sys::calls::{Calls, Kernel};
use tidemill_sys::file::{self, Extent};
use tidemill_wire::{hex, IndexEntry, JournalWriter, OutputRef};

use super::tar;
use crate::error::PilotError;

const COPY_BYTES: usize = 1 << 20;
/// Written bytes are pushed to the storage in steps of this size, so that the fsync at a yield finds little left.
const PUSH_BYTES: u64 = 8 << 20;
/// Not more than this is ever on its way to the storage, also while one large member is copied.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
const MODE: u32 = 0o600;

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
struct Mark {
    end: u64,
    entries: usize,
}

/// A member whose bytes are on their way into the bundle.
pub struct Part {
    entry: IndexEntry,
    digest: Sha256,
    left: u64,
    mode: Option<u64>,
}

impl Part {
    /// Refuse a source that was written to while it was copied: what is in the bundle may be of no moment.
    fn check(&self, source: &dyn MemberSource) -> Result<(), PilotError> {
        let failed = PilotError::file("read output", &self.entry.name);
        let length = match source.length() {
            Ok(length) => length,
            Err(error) => return Err(failed(error)),
        };
        let what = match length.cmp(&self.entry.length) {
            std::cmp::Ordering::Greater => format!("it grew by {} bytes", length - self.entry.length),
            std::cmp::Ordering::Less => format!("it shrank by {} bytes", self.entry.length - length),
            std::cmp::Ordering::Equal if source.was_changed() => String::from("it was written to"),
            std::cmp::Ordering::Equal => return Ok(()),
        };
        let hint = "a payload closes its outputs before it reports events done";
        Err(failed(std::io::Error::other(format!(
            "{what} while it was copied: {hint}"
        ))))
    }
}

/// FLEET/bundle/PILOT.tar and .idx, then PILOT.2.tar and so on.
pub struct Bundle<C: Calls = Kernel> {
    calls: C,
    directory: PathBuf,
    pilot: String,
    /// of the file that was started last, from 1
    number: u64,
    bytes_max: u64,
    name: String,
    path: PathBuf,
    file: File,
    index: JournalWriter<C>,
    /// Entries of members after the last sync.
    entries: Vec<IndexEntry>,
    /// Where the group of members starts that is on its way: they count together.
    group: Option<Mark>,
    /// Where the next bytes go.
    end: u64,
    /// Behind it nothing was ever written: a hole may begin there.
    reached: u64,
    synced: u64,
    pushed: u64,
    /// Up to here the data (not the index) is safe.
    data_synced: u64,
    /// Why an fsync failed: nothing that was not safe then is ever trusted.
    broken: Option<String>,
    /// The names of both files survive a crash.
    named: bool,
    copy: Vec<u8>,
}

impl Bundle {
    /// Make the first file, which must not exist: that makes the pilot's name unique. None if it exists.
    pub fn create(directory: &Path, pilot: &str, bytes_max: u64) -> Result<Option<Self>, PilotError> {
        Bundle::create_by(Kernel, directory, pilot, bytes_max)
    }
}

impl<C: Calls + Clone> Bundle<C> {
    /// As `create`, by these calls.
    pub fn create_by(
        calls: C,
        directory: &Path,
        pilot: &str,
        bytes_max: u64,
    ) -> Result<Option<Self>, PilotError> {
        Bundle::create_numbered(calls, (directory, pilot, 1), bytes_max)
    }

    /// The file of this number, which must not exist. None if it exists.
    pub fn create_numbered(
        calls: C,
        (directory, pilot, number): (&Path, &str, u64),
        bytes_max: u64,
    ) -> Result<Option<Self>, PilotError> {
        let name = file_name(pilot, number);
        let path = directory.join(&name);
        let (file, index) = match start_file(&calls, &path) {
            Err(PilotError::File { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                return Ok(None)
            }
            other => other?,
        };
        Ok(Some(Bundle {
            calls,
            directory: directory.to_owned(),
            pilot: pilot.to_owned(),
            number,
            bytes_max,
            name,
            path,
            file,
            index,
            entries: Vec::new(),
            group: None,
            end: 0,
            reached: 0,
            synced: 0,
            pushed: 0,
            data_synced: 0,
            broken: None,
            named: false,
            copy: Vec::new(),
        }))
    }

    /// Where what counts ends: before a group that is on its way.
    fn settled(&self) -> Mark {
        self.group.unwrap_or(Mark {
            end: self.end,
            entries: self.entries.len(),
        })
    }

    /// Bytes that a crash of the node would lose.
    pub fn dirty_bytes(&self) -> u64 {
        self.settled().end - self.synced
    }

    /// Append a member at once; it is not safe before `sync`. After an error the bundle is as before.
    pub fn append(
        &mut self,
        member: &Member<'_>,
        source: &mut dyn MemberSource,
    ) -> Result<OutputRef, PilotError> {
        self.begin();
        let result = self.write_member(member, source);
        match result {
            Ok(_) => self.commit(),
            Err(_) => self.roll_back(),
        }
        result
    }

    fn write_member(
        &mut self,
        member: &Member<'_>,
        source: &mut dyn MemberSource,
    ) -> Result<OutputRef, PilotError> {
        let length = source
            .length()
            .map_err(PilotError::file("stat output", member.name))?;
        let mut part = self.start(member, length)?;
        self.go_on(&mut part, source, u64::MAX)?;
        self.complete(part)
    }

    /// Members from here on count together, once `commit` is called.
    pub fn begin(&mut self) {
        debug_assert!(self.group.is_none());
        self.group = Some(self.settled());
    }

    /// The members since `begin` count.
    pub fn commit(&mut self) {
        self.group = None;
    }

    /// Forget the members since `begin`.
    pub fn roll_back(&mut self) {
        let Some(mark) = self.group.take() else {
            return;
        };
        debug_assert!(mark.end >= self.synced);
        self.end = mark.end;
        self.pushed = self.pushed.min(mark.end);
        self.data_synced = self.data_synced.min(mark.end);
        self.entries.truncate(mark.entries);
        // the next member overwrites what follows `end`; cutting it off frees the space
        if self.calls.cut(&self.file, mark.end).is_ok() {
            self.reached = mark.end;
        }
    }

    /// Begin a member of `length` bytes. After an error, here or in a later call, the group must be rolled back.
    pub fn start(&mut self, member: &Member<'_>, length: u64) -> Result<Part, PilotError> {
        let head = tar::header(&member.path(), length, tidemill_wire::log::now_us() / 1_000_000);
        self.put(&head)?;
        Ok(Part {
            entry: IndexEntry {
                kind: member.kind.to_owned(),
                job: member.job,
                first: member.first,
                count: member.count,
                name: member.name.to_owned(),
                offset: self.end,
                length,
                sha256: String::new(),
                truncated: member.truncated,
            },
            digest: Sha256::new(),
            left: length,
            mode: None,
        })
    }

    /// Copy at most `bytes_max` more bytes of a member, holes included; true when the member is complete.
    pub fn go_on(
        &mut self,
        part: &mut Part,
        source: &mut dyn MemberSource,
        bytes_max: u64,
    ) -> Result<bool, PilotError> {
        let mut copy = std::mem::take(&mut self.copy);
        copy.resize(COPY_BYTES, 0);
        let result = self.bring(part, source, bytes_max, &mut copy);
        self.copy = copy;
        result?;
        if part.left == 0 {
            part.mode = source.mode();
            part.check(source)?;
        }
        Ok(part.left == 0)
    }

    fn bring(
        &mut self,
        part: &mut Part,
        source: &mut dyn MemberSource,
        bytes_max: u64,
        copy: &mut [u8],
    ) -> Result<(), PilotError> {
        let mut left = part.left.min(bytes_max);
        while left > 0 {
            let wanted = left.min(COPY_BYTES as u64) as usize;
            let piece = source
                .next(&mut copy[..wanted])
                .map_err(PilotError::file("read output", &part.entry.name))?;
            let count = match piece {
                Stretch::Bytes(0) | Stretch::Hole(0) => {
                    let text = format!("it shrank by {} bytes while it was copied", part.left);
                    let source = std::io::Error::other(text);
                    return Err(PilotError::file("read output", &part.entry.name)(source));
                }
                Stretch::Bytes(count) => {
                    self.put(&copy[..count])?;
                    count
                }
                Stretch::Hole(count) => {
                    copy[..count].fill(0);
                    self.leave_out(&copy[..count])?;
                    count
                }
            };
            part.digest.update(&copy[..count]);
            part.left -= count as u64;
            left -= count as u64;
        }
        Ok(())
    }

    /// End a member all of whose bytes are there.
    pub fn complete(&mut self, part: Part) -> Result<OutputRef, PilotError> {
        debug_assert_eq!(part.left, 0);
        let padding = tar::padding(part.entry.length) as usize;
        self.put(&[0u8; tar::BLOCK as usize][..padding])?;
        if self.end > self.reached {
            // it ends with a hole, which a reader must find
            self.calls
                .cut(&self.file, self.end)
                .map_err(PilotError::file("lengthen", &self.path))?;
            self.reached = self.end;
        }
        let entry = IndexEntry {
            sha256: hex::text(&part.digest.finalize()),
            ..part.entry
        };
        let output = OutputRef {
            name: entry.name.clone(),
            bundle: self.name.clone(),
            offset: entry.offset,
            length: entry.length,
            sha256: entry.sha256.clone(),
            mode: part.mode,
        };
        self.entries.push(entry);
        Ok(output)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), PilotError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let until = self.end + bytes.len() as u64;
        // also of a write that fails in the middle
        self.reached = self.reached.max(until);
        self.calls
            .write_all_at(&self.file, bytes, self.end)
            .map_err(PilotError::file("write", &self.path))?;
        self.end = until;
        self.push()
    }

    /// A hole in the place of these zeros, where nothing has been written.
    fn leave_out(&mut self, zeros: &[u8]) -> Result<(), PilotError> {
        let used = self.reached.saturating_sub(self.end).min(zeros.len() as u64) as usize;
        self.put(&zeros[..used])?;
        self.end += (zeros.len() - used) as u64;
        self.push()
    }

    fn push(&mut self) -> Result<(), PilotError> {
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
        if let Err(error) = self.calls.sync_data(&self.file) {
            self.broken = Some(error.to_string());
            return Err(PilotError::file("fsync", &self.path)(error));
        }
        self.data_synced = self.end;
        self.pushed = self.end;
        Ok(())
    }

    /// Make every member that counts survive a crash of the node. After an error none since the last success is safe.
    pub fn sync(&mut self) -> Result<(), PilotError> {
        if let Some(why) = &self.broken {
            let source = std::io::Error::other(format!("an earlier fsync of it failed: {why}"));
            return Err(PilotError::file("fsync", &self.path)(source));
        }
        let settled = self.settled();
        if settled.end > self.data_synced {
            self.sync_file()?;
        }
        for entry in self.entries.drain(..settled.entries) {
            self.index.append(&entry)?;
        }
        if let Some(group) = &mut self.group {
            group.entries = 0;
        }
        self.index.sync()?;
        if !self.named && self.index.synced_bytes() > 0 {
            self.index.sync_name()?; // archive and index stand in one directory
            self.named = true;
        }
        self.synced = settled.end;
        Ok(())
    }

    /// Whether a next file should be started (before the next member, after a sync).
    pub fn is_large(&self) -> bool {
        self.settled().end >= self.bytes_max
    }

    /// Start the next file; call after `sync`, or after a sync that failed: then the old file is never trusted again.
    pub fn start_next(&mut self) -> Result<(), PilotError> {
        debug_assert!(self.group.is_none());
        self.number += 1; // a start that fails may have made a file of this name
        let name = file_name(&self.pilot, self.number);
        let path = self.directory.join(&name);
        let (file, index) = start_file(&self.calls, &path)?;
        self.finish();
        self.entries.clear();
        (self.name, self.path, self.file, self.index) = (name, path, file, index);
        (self.end, self.reached, self.synced, self.pushed, self.data_synced) = (0, 0, 0, 0, 0);
        (self.broken, self.named) = (None, false);
        Ok(())
    }

    /// What was not safe is gone, and only `start_next` helps.
    pub fn distrust(&mut self, why: &str) {
        self.roll_back();
        self.entries.clear();
        self.broken.get_or_insert_with(|| why.to_owned());
        (self.end, self.pushed, self.data_synced) = (self.synced, self.synced, self.synced);
    }

    /// The open files.
    pub fn descriptors(&self) -> Vec<RawFd> {
        vec![self.file.as_raw_fd(), self.index.descriptor()]
    }

    /// Whether the file is broken, so that only `start_next` helps.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Write the end blocks that tar expects. Readers work without them, so they need not be safe.
    pub fn finish(&mut self) {
        let _ = self
            .calls
            .write_all_at(&self.file, &[0u8; tar::TRAILER_BYTES as usize], self.end);
    }
}

fn file_name(pilot: &str, number: u64) -> String {
    if number == 1 {
        format!("{pilot}.tar")
    } else {
        format!("{pilot}.{number}.tar")
    }
}

/// A new archive and its index.
fn start_file<C: Calls + Clone>(calls: &C, path: &Path) -> Result<(File, JournalWriter<C>), PilotError> {
    let file = file::create_new(calls, path, MODE).map_err(PilotError::file("create", path))?;
    let index = JournalWriter::create_by(calls.clone(), &path.with_extension("idx"))?;
    Ok((file, index))
}

/// What a source returned: a number of bytes, or a hole of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    Bytes(usize),
    Hole(usize),
}

/// Bytes of a known length that become a member.
pub trait MemberSource {
    /// The number of bytes to be read.
    fn length(&self) -> std::io::Result<u64>;

    /// The next bytes, at most as many as fit into `into`; a hole leaves `into` unchanged.
    fn next(&mut self, into: &mut [u8]) -> std::io::Result<Stretch>;

    /// Whether another process has written to it since it was opened here.
    fn was_changed(&self) -> bool {
        false
    }

    /// Permission bits of a file.
    fn mode(&self) -> Option<u64> {
        None
    }
}

/// A file with its holes.
pub struct FileSource {
    file: File,
    modified: Option<SystemTime>,
    at: u64,
    extent: Extent,
}

impl FileSource {
    pub fn new(file: File) -> Self {
        FileSource {
            modified: modified(&file),
            file,
            at: 0,
            extent: Extent {
                until: 0,
                is_hole: false,
            },
        }
    }
}

impl MemberSource for FileSource {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn next(&mut self, into: &mut [u8]) -> std::io::Result<Stretch> {
        if self.at >= self.extent.until {
            self.extent = file::extent(&self.file, self.at, u64::MAX)?;
        }
        let count = (self.extent.until - self.at).min(into.len() as u64) as usize;
        let piece = if self.extent.is_hole {
            Stretch::Hole(count)
        } else {
            Stretch::Bytes(read_at(&self.file, &mut into[..count], self.at)?)
        };
        match piece {
            Stretch::Bytes(count) | Stretch::Hole(count) => self.at += count as u64,
        }
        Ok(piece)
    }

    fn was_changed(&self) -> bool {
        modified(&self.file) != self.modified
    }

    fn mode(&self) -> Option<u64> {
        let status = self.file.metadata().ok()?;
        Some(u64::from(status.permissions().mode() & 0o777))
    }
}

fn modified(file: &File) -> Option<SystemTime> {
    file.metadata().and_then(|status| status.modified()).ok()
}

/// pread(2), also where a signal came in between.
fn read_at(file: &File, into: &mut [u8], at: u64) -> std::io::Result<usize> {
    loop {
        match file.read_at(into, at) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl<T: AsRef<[u8]>> MemberSource for Cursor<T> {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.get_ref().as_ref().len() as u64)
    }

    fn next(&mut self, into: &mut [u8]) -> std::io::Result<Stretch> {
        self.read(into).map(Stretch::Bytes)
    }
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
