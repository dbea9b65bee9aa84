//! Group commit: records are appended to the journal, fsynced together by a second thread, then acknowledged.
//!
//! The thread only calls fsync. While it does, nothing is written to the file, so that one fsync covers all that was
//! written before it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};

use tidemill_wire::log::{cause, Log};
use tidemill_wire::{JournalWriter, WireError};

use crate::ledger::PilotKey;

/// Time until the next try after a failed write or fsync (full disk).
const RETRY_US: u64 = 1_000_000;
/// Shortest time for which records wait for others.
const GROUP_US_MIN: u64 = 5_000;
/// Records wait for others for this multiple of the fsync time, so that fsync takes at most a quarter of the disk's
/// time.
const GROUP_FSYNCS: u64 = 3;
/// With more than this unsynced in memory, no more is read from pilots.
const UNSYNCED_BYTES_MAX: usize = 64 << 20;

/// The lead's own journal.
pub struct Commit {
    writer: JournalWriter,
    flush_us: u64,
    requests: Sender<File>,
    results: Receiver<io::Result<()>>,
    wake: UnixStream,
    /// Bytes and start of the fsync that runs.
    running: Option<(usize, u64)>,
    first_unsynced: Option<u64>,
    retry_at: Option<u64>,
    fsync_us: u64,
    /// Last record of each pilot: not yet in an fsync, and in the one that runs.
    dirty: Vec<(PilotKey, u64)>,
    syncing: Vec<(PilotKey, u64)>,
    log: Log,
}

impl Commit {
    pub fn new(writer: JournalWriter, flush_us: u64, log: Log) -> Result<Self, WireError> {
        let path = writer.path().to_owned();
        let (wake, mut waker) = UnixStream::pair().map_err(WireError::file("make sockets for", &path))?;
        wake.set_nonblocking(true)
            .map_err(WireError::file("set up sockets for", &path))?;
        let (requests, incoming) = channel::<File>();
        let (outgoing, results) = channel();
        std::thread::Builder::new()
            .name(String::from("fsync"))
            .spawn(move || {
                for file in incoming {
                    if outgoing.send(file.sync_data()).is_err() || waker.write_all(&[1]).is_err() {
                        return; // the lead is gone
                    }
                }
            })
            .map_err(WireError::file("start a thread for", &path))?;
        Ok(Commit {
            writer,
            flush_us,
            requests,
            results,
            wake,
            running: None,
            first_unsynced: None,
            retry_at: None,
            fsync_us: 0,
            dirty: Vec::new(),
            syncing: Vec::new(),
            log,
        })
    }

    /// Readable when an fsync has ended.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Add a checked record of a pilot.
    pub fn append(&mut self, line: &[u8], (key, number): (PilotKey, u64), now: u64) {
        self.writer.append_line(line);
        match self.dirty.last_mut() {
            Some(last) if last.0 == key => last.1 = number,
            _ => self.dirty.push((key, number)),
        }
        self.first_unsynced.get_or_insert(now);
    }

    /// Too much is in memory: read nothing more from pilots.
    pub fn is_full(&self) -> bool {
        self.writer.unsynced_bytes() > UNSYNCED_BYTES_MAX
    }

    /// Everything is on disk.
    pub fn is_idle(&self) -> bool {
        self.writer.unsynced_bytes() == 0
    }

    /// When `step` has something to do, if nothing happens before.
    pub fn due(&self) -> Option<u64> {
        if self.running.is_some() {
            return None;
        }
        let wait_us = (GROUP_FSYNCS * self.fsync_us).clamp(GROUP_US_MIN.min(self.flush_us), self.flush_us);
        self.first_unsynced
            .map(|first| (first + wait_us).max(self.retry_at.unwrap_or(0)))
    }

    /// Start an fsync if one is due, take note of one that has ended: returns the records that are safe now.
    pub fn step(&mut self, now: u64) -> Vec<(PilotKey, u64)> {
        let safe = self.finish(now);
        if self.due().is_some_and(|due| now >= due) {
            let started = self.writer.write().and_then(|()| self.writer.handle());
            match started {
                Ok(file) => {
                    self.running = Some((self.writer.written_bytes(), now));
                    self.syncing.append(&mut self.dirty);
                    self.first_unsynced = None;
                    if self.requests.send(file).is_err() {
                        self.failed(
                            &WireError::file("fsync", self.writer.path())(io::ErrorKind::BrokenPipe.into()),
                            now,
                        );
                    }
                }
                Err(error) => self.failed(&error, now),
            }
        }
        safe
    }

    fn finish(&mut self, now: u64) -> Vec<(PilotKey, u64)> {
        let mut bytes = [0; 16];
        while matches!(self.wake.read(&mut bytes), Ok(count) if count > 0) {}
        let Ok(result) = self.results.try_recv() else {
            return Vec::new();
        };
        let Some((bytes, began)) = self.running.take() else {
            return Vec::new();
        };
        self.fsync_us = (self.fsync_us * 3 + now.saturating_sub(began)) / 4;
        match self.writer.finish_sync(bytes, result) {
            Ok(()) => {
                if self.retry_at.take().is_some() {
                    self.log.info("journal.works_again", &[]);
                }
                std::mem::take(&mut self.syncing)
            }
            Err(error) => {
                self.failed(&error, now);
                Vec::new()
            }
        }
    }

    fn failed(&mut self, error: &WireError, now: u64) {
        self.running = None;
        if self.retry_at.is_none() {
            let hint = "free space on that file system: nothing is acknowledged meanwhile, nothing is lost";
            self.log
                .error("journal.failed", &[("error", &cause(error)), ("hint", &hint)]);
        }
        self.retry_at = Some(now + RETRY_US);
        let later = std::mem::take(&mut self.dirty);
        self.dirty = std::mem::take(&mut self.syncing);
        self.dirty.extend(later);
        self.first_unsynced.get_or_insert(now);
    }

    /// Write and fsync everything now.
    pub fn sync(&mut self) -> Result<(), WireError> {
        if let Some((bytes, _)) = self.running.take() {
            if let Ok(result) = self.results.recv() {
                self.writer.finish_sync(bytes, result)?;
            }
        }
        self.writer.sync()
    }
}
