//! Traces of payloads: which ones are traced, how they are started under `trace`, and what came of it.
//!
//! The traced payload's parent is this very program, opened before the slot hid it. It passes exit status and signals on,
//! ends with its command, and is one process more in the payload's accounts. The profile comes by an anonymous file:
//! what payloads leave behind does not meet it; one that is out to spoil its own profile can.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use tidemill_sys::fd;
use tidemill_sys::file;
use tidemill_sys::spawn::Strings;
use tidemill_wire::Program;

use super::payload::{Kind, Payload};
use super::Init;
use crate::{FromSlot, PayloadLog};

/// Descriptor at which the tracer finds the file for the profile; 3 and 4 are the protocol's.
const PROFILE: RawFd = 5;
/// Unique paths in the profile of a payload: 5 MB.
const PATHS_MAX: &str = "50000";
/// A profile is never larger.
const PROFILE_BYTES_MAX: u64 = 64 << 20;
/// Payloads of a program that left no profile (killed, or tracing is refused here) before we stop trying.
const MISSES_MAX: u32 = 3;

/// What is known of a program's payloads in this slot.
#[derive(Debug, Default)]
struct Seen {
    started: u64,
    misses: u32,
}

/// Chooses payloads, and starts them under trace.
pub(crate) struct Sampler {
    ourselves: Option<OwnedFd>,
    seen: HashMap<u64, Seen>,
}

/// How a traced payload is started instead.
pub(crate) struct Instead {
    pub path: CString,
    pub argv: Strings,
    pub profile: File,
}

impl Sampler {
    /// Call it while /proc is still the pilot's.
    pub fn new() -> Self {
        let ourselves = File::open("/proc/self/exe")
            .ok()
            .and_then(|file| fd::high(file.into()).ok());
        Sampler {
            ourselves,
            seen: HashMap::new(),
        }
    }

    /// Whether the payload of this program that starts now is to be traced; counts it.
    fn due(&mut self, program: u64, (trace_first, trace_every): (bool, u64)) -> bool {
        let seen = self.seen.entry(program).or_default();
        let number = seen.started;
        seen.started += 1;
        let first = trace_first && number == 0;
        let every = trace_every > 0 && number > 0 && number % trace_every == 0;
        (first || every) && seen.misses < MISSES_MAX
    }

    /// A traced payload left no profile: the next one is traced instead.
    fn missed(&mut self, program: u64) {
        if let Some(seen) = self.seen.get_mut(&program) {
            seen.misses += 1;
            seen.started = 0;
        }
    }

    /// The command under trace, if it is this payload's turn. A program that cannot be executed is left alone: its own
    /// failure says why.
    pub fn instead(&mut self, program: &Program, path: &CStr, argv: &Strings) -> Option<Instead> {
        let wanted = (program.trace_first, program.trace_every);
        if !self.due(program.program, wanted) || !file::may_execute(path) {
            return None;
        }
        let ourselves = self.ourselves.as_ref()?.as_raw_fd();
        let profile = fd::memory_file(c"profile").ok()?;
        let mut whole = Strings::new();
        let descriptor = PROFILE.to_string();
        let words = ["tidemill-node", "trace", "--best-effort", "--end-with-command"];
        // a persistent payload may be killed with its slot: then there is no end to wait for
        let snapshots = (program.mode == "range").then_some("--snapshots");
        let to = ["--fd", &descriptor, "--paths-max", PATHS_MAX, "--"];
        for word in words.into_iter().chain(snapshots).chain(to) {
            whole.push(word).ok()?;
        }
        for word in argv.iter() {
            whole.push(word.to_bytes()).ok()?;
        }
        Some(Instead {
            path: CString::new(format!("/proc/self/fd/{ourselves}")).ok()?,
            argv: whole,
            profile: profile.into(),
        })
    }
}

impl Instead {
    /// Where the profile's file goes in the payload's parent.
    pub fn descriptor(&self) -> (RawFd, RawFd) {
        (self.profile.as_fd().as_raw_fd(), PROFILE)
    }
}

/// Operations of a profile.
#[derive(Deserialize)]
struct Counted {
    ops: HashMap<String, Ends>,
}

#[derive(Deserialize)]
struct Ends {
    ok: u64,
    errors: HashMap<String, u64>,
}

/// All and failed operations in a profile; None if it is not a valid profile.
fn operations(profile: &[u8]) -> Option<(u64, u64)> {
    let counted: Counted = serde_json::from_slice(profile).ok()?;
    let failed = |ends: &Ends| ends.errors.values().sum::<u64>();
    let sum = counted
        .ops
        .values()
        .map(|ends| (ends.ok + failed(ends), failed(ends)));
    Some(sum.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1)))
}

/// What stands in the profile's file; the tracer may be writing it just now.
fn read(file: &File) -> Vec<u8> {
    let length = file
        .metadata()
        .map_or(0, |status| status.len())
        .min(PROFILE_BYTES_MAX);
    let mut profile = vec![0; usize::try_from(length).unwrap_or(0)];
    // the offset is the tracer's too: it stays untouched
    match file.read_exact_at(&mut profile, 0) {
        Ok(()) => profile,
        Err(_) => Vec::new(),
    }
}

impl Init {
    /// Tells what the trace of a payload that has ended gave.
    pub(super) fn tell_trace(&mut self, payload: &mut Payload) {
        let Some(file) = payload.traced.take() else {
            return;
        };
        let profile = read(&file);
        if let Some(counted) = operations(&profile) {
            return self.put_trace(payload, counted, (profile, ""));
        }
        if let Some(job) = self.jobs.get(&payload.job) {
            self.sampler.missed(job.program.program);
        }
        let why = if payload.recalled.is_some() || payload.verdict.is_some() {
            "the payload was killed"
        } else {
            "the tracer wrote no profile: the payload's stderr says why"
        };
        self.put_trace(payload, (0, 0), (Vec::new(), why));
    }

    /// Reports the trace so far of a persistent payload that has received events, once: it may never end by itself.
    pub(super) fn tell_running_trace(&mut self, payload: &mut Payload) {
        let (Kind::Range(talk), Some(file)) = (&payload.kind, &payload.traced) else {
            return;
        };
        if !talk.took {
            return;
        }
        let profile = read(file);
        if let Some(counted) = operations(&profile) {
            payload.traced = None;
            self.put_trace(payload, counted, (profile, ""));
        }
    }

    fn put_trace(&mut self, payload: &Payload, (ops, failed): (u64, u64), (profile, why): (Vec<u8>, &str)) {
        let events = match &payload.kind {
            Kind::Command { events, .. } => *events,
            Kind::Range(talk) => talk.span.unwrap_or_default(),
        };
        let program = self.jobs.get(&payload.job).map_or(0, |job| job.program.program);
        self.control.put(FromSlot::Traced {
            program,
            ops,
            failed,
            log: PayloadLog {
                ticket: events.ticket,
                job: payload.job,
                first: events.first,
                count: events.count,
                stdout: profile,
                stderr: why.as_bytes().to_vec(),
                truncated: false,
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(first: bool, every: u64, count: usize) -> Vec<usize> {
        let mut sampler = Sampler::new();
        (0..count).filter(|_| sampler.due(7, (first, every))).collect()
    }

    #[test]
    fn the_first_payload_and_every_so_many_th_are_traced() {
        assert_eq!(traced(true, 0, 10), [0]);
        assert_eq!(traced(false, 0, 10), Vec::<usize>::new());
        assert_eq!(traced(true, 4, 10), [0, 4, 8]);
        assert_eq!(traced(false, 4, 10), [4, 8]);
    }

    #[test]
    fn after_a_miss_the_next_payload_is_traced_but_not_for_ever() {
        let mut sampler = Sampler::new();
        for _ in 0..MISSES_MAX {
            assert!(sampler.due(7, (true, 0)));
            sampler.missed(7);
        }
        assert!(!sampler.due(7, (true, 0)));
    }

    #[test]
    fn operations_of_a_profile_are_added_up() {
        let profile =
            br#"{"format":1,"ops":{"open":{"ok":3,"errors":{"ENOENT":2}},"stat":{"ok":1,"errors":{}}}}"#;
        assert_eq!(operations(profile), Some((6, 2)));
        assert_eq!(operations(b""), None);
    }
}
