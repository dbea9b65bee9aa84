//! How many payloads per second this machine's slots start: for a test here, and for the example `bench`.

use std::collections::BTreeMap;

use tidemill_slot::{start, FromSlot, Slot, SlotError, SlotImage, SlotSpec, ToSlot};
use tidemill_sys::fd::{self, Poll, READABLE, WRITABLE};
use tidemill_sys::{process, time};
use tidemill_wire::{JobDef, Program};

/// Events of one `Run`: small enough that slots end together.
const RUN_EVENTS: u64 = 500;

/// What to run.
#[derive(Clone, Debug)]
pub struct Bench {
    pub slots: u32,
    pub events: u64,
    /// executable (absolute path) and arguments
    pub argv: Vec<String>,
    /// `command` or `range`
    pub mode: String,
    /// events per payload or range at most
    pub chunk_max: u64,
    /// pin slot N to CPU N of those granted
    pub pin: bool,
    /// what lies over the file system
    pub images: Vec<SlotImage>,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub events: u64,
    pub failed: u64,
    pub payloads: u64,
    pub seconds: f64,
    pub rate_per_s: f64,
    pub user_us: u64,
    pub system_us: u64,
    pub isolation: &'static str,
    /// first failure's message
    pub failure: String,
}

fn program(bench: &Bench) -> Program {
    Program {
        program: 1,
        app: "bench".into(),
        version: "1".into(),
        executable: bench.argv.first().cloned().unwrap_or_default(),
        mode: bench.mode.clone(),
        env: BTreeMap::new(),
        cores: 1,
        memory_mb: 0,
        devices: BTreeMap::new(),
        scratch_mb: 100,
        event_s: 0.0,
        chunk_max: bench.chunk_max,
        range_s: 1.0,
        timeout_s: None,
        looping_s: None,
        ready_timeout_s: 10.0,
        log_bytes_max: 65536,
        outputs: Vec::new(),
        stdout_output: false,
        batch_commands: false,
        pass_env: vec![],
        ..Program::default()
    }
}

fn job(bench: &Bench) -> JobDef {
    JobDef {
        job: 1,
        program: 1,
        argv: bench.argv.iter().skip(1).cloned().collect(),
        env: BTreeMap::new(),
        params: "{}".into(),
        seed_base: 0,
        events: bench.events,
        inputs: Vec::new(),
        ..JobDef::default()
    }
}

/// Runs a command on the given number of slots, with isolation and output capture on, and counts. Call only while
/// single-threaded.
pub fn bench(bench: &Bench) -> Result<Outcome, SlotError> {
    let mut slots = start_all(bench, &process::affinity()?)?;
    let mut outcome = Outcome::default();
    let (mut ticket, mut given) = (0_u64, 0_u64);
    let began_us = time::monotonic_us();
    let run_events = RUN_EVENTS.max(bench.chunk_max * 4);
    let mut next = |slot: &mut Slot| -> Result<(), SlotError> {
        let count = run_events.min(bench.events - given);
        if count == 0 {
            return Ok(());
        }
        ticket += 1;
        let run = ToSlot::Run {
            ticket,
            job: 1,
            first: given,
            count,
            chunk_max: None,
        };
        given += count;
        slot.send(&run)
    };
    for slot in &mut slots {
        outcome.isolation = slot.isolation().0.name();
        slot.send(&ToSlot::Program(program(bench)))?;
        slot.send(&ToSlot::Job(job(bench)))?;
        next(slot)?;
        next(slot)?;
    }
    let mut settled = vec![0_u64; slots.len()];
    while outcome.events + outcome.failed < bench.events {
        let events = |slot: &Slot| {
            if slot.wants_write() {
                READABLE | WRITABLE
            } else {
                READABLE
            }
        };
        let mut fds: Vec<Poll> = slots
            .iter()
            .map(|slot| Poll::new(slot.fd(), events(slot)))
            .collect();
        fd::poll(&mut fds, None)?;
        for (index, slot) in slots.iter_mut().enumerate() {
            let mut messages = Vec::new();
            let alive = fds[index]
                .readable()
                .then(|| slot.receive(&mut messages))
                .transpose()?;
            settled[index] += messages
                .iter()
                .map(|message| count(message, &mut outcome))
                .sum::<u64>();
            while settled[index] >= run_events {
                settled[index] -= run_events;
                next(slot)?;
            }
            slot.flush()?;
            if alive == Some(false) {
                return Err(SlotError::Refused {
                    index: slot.index(),
                    reason: "the slot ended".into(),
                });
            }
        }
    }
    outcome.seconds = (time::monotonic_us() - began_us) as f64 / 1e6;
    outcome.rate_per_s = outcome.events as f64 / outcome.seconds.max(1e-6);
    Ok(outcome)
}

fn start_all(bench: &Bench, granted: &[usize]) -> Result<Vec<Slot>, SlotError> {
    let mut slots = Vec::new();
    for index in 0..bench.slots {
        let cpu = granted
            .get(index as usize % granted.len().max(1))
            .copied()
            .filter(|_| bench.pin);
        slots.push(start(&SlotSpec {
            index,
            cpus: cpu.into_iter().collect(),
            images: bench.images.clone(),
            ..SlotSpec::default()
        })?);
    }
    Ok(slots)
}

/// Adds a message to the outcome; events that it settles.
fn count(message: &FromSlot, outcome: &mut Outcome) -> u64 {
    match message {
        FromSlot::Done(done) => {
            outcome.events += done.count;
            outcome.payloads += done.payloads;
            outcome.user_us += done.user_us;
            outcome.system_us += done.system_us;
            done.count
        }
        FromSlot::Failed(failed) => {
            outcome.failed += failed.count;
            if outcome.failure.is_empty() {
                outcome.failure.clone_from(&failed.message);
            }
            failed.count
        }
        FromSlot::Returned { count, reason, .. } => {
            outcome.failed += count;
            outcome.failure = format!("returned: {reason}");
            *count
        }
        FromSlot::Up { .. }
        | FromSlot::Log(_)
        | FromSlot::Traced { .. }
        | FromSlot::Want { .. }
        | FromSlot::Idle => 0,
    }
}
