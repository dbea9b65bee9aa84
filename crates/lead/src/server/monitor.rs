//! What pilots measured of their nodes, and which jobs they run, on its way to the agent: FLEET/monitor and
//! FLEET/at_work.json, written by a thread of its own.
//!
//! Best effort: nothing waits for it, nothing is synced, and what the file system does not take in time is dropped. So
//! it is not part of the journal, which holds what must not be lost and is kept as long as the fleet.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};

use tidemill_sys::file;
use tidemill_wire::intervals::Intervals;
use tidemill_wire::log::{cause, Log};
use tidemill_wire::{frame, AtWork, Sampled, SegmentLog, FORMAT};

/// Interval at which samples are written.
const FLUSH_US: u64 = 1_000_000;
/// Waiting to be written; what comes on top of it is dropped.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Handed to the thread at once.
const BATCHES_MAX: usize = 2;
/// A sample is about 300 bytes; a longer one is not valid and is dropped.
const SAMPLE_BYTES_MAX: usize = 4096;
/// Two are kept: 8,000 nodes fill one in 90 s at an interval of 30 s.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;

/// Longest pause between two writes of `AtWork`: each change in a row doubles it, so that work of which jobs change all the
/// time costs the shared file system one name in 8 s.
const AT_WORK_MAX_US: u64 = 8 * FLUSH_US;
/// Of the text of `AtWork`: some thousand jobs with gaps between them.
const JOBS_BYTES_MAX: usize = 64 << 10;

/// What the thread writes at once.
enum Batch {
    Samples(Vec<u8>),
    AtWork(String),
}

pub(crate) struct Monitor {
    fleet: PathBuf,
    incarnation: u64,
    at_work: Option<String>,
    at_work_due: u64,
    at_work_pause: u64,
    directory: PathBuf,
    stem: String,
    waiting: Vec<u8>,
    due: u64,
    writer: Option<SyncSender<Batch>>,
    log: Log,
}

impl Monitor {
    /// Of this start of a lead. Nothing is made before the first sample.
    pub fn new(fleet: &Path, incarnation: u64, log: Log) -> Self {
        Monitor {
            fleet: fleet.to_owned(),
            incarnation,
            at_work: None,
            at_work_due: 0,
            at_work_pause: FLUSH_US,
            directory: fleet.join("monitor"),
            stem: format!("lead-{incarnation}"),
            waiting: Vec::new(),
            due: 0,
            writer: None,
            log,
        }
    }

    /// A sample of this pilot, whatever name it gives itself.
    pub fn take(&mut self, pilot: &str, mut sampled: Sampled) {
        pilot.clone_into(&mut sampled.p);
        let before = self.waiting.len();
        let is_written = before < WAITING_BYTES_MAX && frame::encode(&sampled, &mut self.waiting).is_ok();
        if is_written && self.waiting.len() - before > SAMPLE_BYTES_MAX {
            self.waiting.truncate(before);
        }
    }

    /// Write which jobs pilots run, as `jobs` finds it, when it is time and has changed.
    pub fn show_at_work(&mut self, now: u64, jobs: impl FnOnce() -> Intervals) {
        if now < self.at_work_due {
            return;
        }
        self.at_work_due = now + self.at_work_pause;
        let text = interval_text(&jobs());
        if self.at_work.as_ref() == Some(&text) {
            self.at_work_pause = FLUSH_US;
            self.at_work_due = now + FLUSH_US;
            return;
        }
        if self.writer.is_none() {
            self.writer = self.start();
        }
        let Some(writer) = &self.writer else { return };
        match writer.try_send(Batch::AtWork(text.clone())) {
            Ok(()) => {
                self.at_work = Some(text);
                self.at_work_pause = (2 * self.at_work_pause).min(AT_WORK_MAX_US);
            }
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => self.writer = None,
        }
    }

    /// Hand over what waits, when it is time and the thread is not behind.
    pub fn step(&mut self, now: u64) {
        if self.waiting.is_empty() || now < self.due {
            return;
        }
        self.due = now + FLUSH_US;
        if self.writer.is_none() {
            self.writer = self.start();
        }
        let Some(writer) = &self.writer else {
            self.waiting.clear();
            return;
        };
        match writer.try_send(Batch::Samples(std::mem::take(&mut self.waiting))) {
            Err(TrySendError::Full(Batch::Samples(lines))) => self.waiting = lines,
            Err(TrySendError::Disconnected(_)) => self.writer = None,
            _ => {}
        }
    }

    fn start(&self) -> Option<SyncSender<Batch>> {
        let (sender, batches) = sync_channel(BATCHES_MAX);
        let (directory, stem, log) = (self.directory.clone(), self.stem.clone(), self.log);
        let (fleet, incarnation) = (self.fleet.clone(), self.incarnation);
        let thread = std::thread::Builder::new().name(String::from("monitor"));
        let started = thread.spawn(move || write(&directory, &stem, &batches, (&fleet, incarnation), log));
        started.is_ok().then_some(sender)
    }
}

/// `1-5,7`: the lowest numbers, where all would be too long.
fn interval_text(jobs: &Intervals) -> String {
    let mut text = String::new();
    for &(first, end) in jobs.spans() {
        if text.len() > JOBS_BYTES_MAX {
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&first.to_string());
        if end - first > 1 {
            text.push('-');
            text.push_str(&(end - 1).to_string());
        }
    }
    text
}

/// Only for people: an error is not said, and the next change is written, too.
fn replace_at_work(fleet: &Path, incarnation: u64, jobs: String) -> Option<()> {
    let told = AtWork {
        format: FORMAT,
        incarnation,
        jobs,
    };
    let text = serde_json::to_vec(&told).ok()?;
    let temporary = format!(".at_work.json.{incarnation}.tmp");
    let directory = file::open_dir(fleet).ok()?;
    let below = directory.as_fd();
    let mut new = file::create_at(below, &temporary, 0o600).ok()?;
    new.write_all(&text).ok()?;
    file::rename_at(below, &temporary, below, "at_work.json").ok()
}

fn write(
    directory: &Path,
    stem: &str,
    batches: &Receiver<Batch>,
    (fleet, incarnation): (&Path, u64),
    log: Log,
) {
    remove_others(directory, stem);
    let mut segments = SegmentLog::new(directory, stem, SEGMENT_BYTES_MAX);
    let mut failed = false;
    for batch in batches {
        let lines = match batch {
            Batch::Samples(lines) => lines,
            Batch::AtWork(jobs) => {
                let _ = replace_at_work(fleet, incarnation, jobs);
                continue;
            }
        };
        let written = segments.append(&lines);
        if let (Err(error), false) = (&written, failed) {
            let hint = "what nodes measure is lost meanwhile, and nothing else";
            log.warning("monitor.unwritten", &[("error", &cause(error)), ("hint", &hint)]);
        }
        failed = written.is_err();
    }
}

/// Segments of leads before us.
fn remove_others(directory: &Path, stem: &str) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("lead-") && !name.starts_with(&format!("{stem}.")) {
            let _ = std::fs::remove_file(entry.path()); // it may be gone
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(node: &str) -> Sampled {
        Sampled {
            p: String::from("somebody else"),
            node: node.to_owned(),
            ..Sampled::default()
        }
    }

    fn until(is_there: impl Fn() -> bool) {
        for _ in 0..500 {
            if is_there() {
                return;
            }
            let _ = tidemill_sys::fd::poll(&mut [], Some(10_000));
        }
        panic!("it did not come");
    }

    #[test]
    fn samples_are_written_with_the_name_of_the_pilot_that_sent_them_and_older_leads_files_go() {
        let fleet = tempfile::tempdir().unwrap();
        let directory = fleet.path().join("monitor");
        std::fs::create_dir(&directory).unwrap();
        for name in ["lead-1.7.log", "a.r0.i1.1.log"] {
            std::fs::write(directory.join(name), "").unwrap();
        }
        let mut monitor = Monitor::new(fleet.path(), 2, Log::new("test"));
        monitor.take("a.r0.i1", sampled("n1"));
        monitor.take("a.r1.i1", sampled(&"x".repeat(SAMPLE_BYTES_MAX)));
        monitor.step(1);
        let path = directory.join("lead-2.1.log");
        until(|| std::fs::read(&path).is_ok_and(|text| !text.is_empty()));
        let text = std::fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = text
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(lines.len(), 1); // the other one is too long
        let read: Sampled = serde_json::from_slice(frame::check(lines[0]).unwrap()).unwrap();
        assert_eq!((read.p.as_str(), read.node.as_str()), ("a.r0.i1", "n1"));
        assert!(!directory.join("lead-1.7.log").exists());
        assert!(directory.join("a.r0.i1.1.log").exists());
    }

    #[test]
    fn the_jobs_that_pilots_run_are_written_when_they_change() {
        let fleet = tempfile::tempdir().unwrap();
        let path = fleet.path().join("at_work.json");
        let mut monitor = Monitor::new(fleet.path(), 2, Log::new("test"));
        let mut jobs = Intervals::of(1, 5);
        jobs.add(7, 8);
        monitor.show_at_work(2 * FLUSH_US, || jobs.clone());
        let read = || -> Option<AtWork> { serde_json::from_slice(&std::fs::read(&path).ok()?).ok() };
        until(|| read().is_some_and(|told| told.jobs == "1-5,7" && told.incarnation == 2));
        monitor.show_at_work(2 * FLUSH_US + 1, || panic!("it is too soon"));
        monitor.show_at_work(4 * FLUSH_US, Intervals::default);
        until(|| read().is_some_and(|told| told.jobs.is_empty()));
    }

    #[test]
    fn jobs_that_change_all_the_time_are_written_ever_more_rarely() {
        let fleet = tempfile::tempdir().unwrap();
        let mut monitor = Monitor::new(fleet.path(), 2, Log::new("test"));
        let (writer, written) = sync_channel(100);
        monitor.writer = Some(writer);
        let mut when = Vec::new();
        for second in 0..40 {
            monitor.show_at_work(second * FLUSH_US, || Intervals::of(second.min(30), 1));
            when.extend(written.try_iter().map(|_| second));
        }
        assert_eq!(when, [0, 1, 3, 7, 15, 23, 31]);
        monitor.show_at_work(40 * FLUSH_US, || Intervals::of(99, 1));
        assert_eq!(
            written.try_iter().count(),
            1,
            "soon again after a time without a change"
        );
    }

    #[test]
    fn what_waits_is_bounded() {
        let fleet = tempfile::tempdir().unwrap();
        let mut monitor = Monitor::new(fleet.path(), 1, Log::new("test"));
        for _ in 0..20_000 {
            monitor.take("a.r0.i1", sampled(&"n".repeat(1000)));
        }
        assert!(monitor.waiting.len() < WAITING_BYTES_MAX + SAMPLE_BYTES_MAX);
    }
}
