//! Brings outputs and logs of payloads into the bundle, and holds their records back until they are safe there.

use std::collections::VecDeque;
use std::io::Cursor;

use tidemill_slot::{Done as SlotDone, Slot, SlotOutput};
use tidemill_sys::time::monotonic_us;
use tidemill_wire::{log, Done, OutputRef};

use super::bundle::{Bundle, FileSource, Member, Part, Source};
use crate::error::PilotError;
use crate::report::Canceled;
use crate::time::seconds_us;
use crate::work::piece::Piece;

/// Unsafe bytes at which the bundle is fsynced whatever the time.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// A full disk is tried again for so long, then the events fail.
const FULL_US_MAX: u64 = 5_000_000;
const RETRY_US: u64 = 500_000;
/// After such a failure work with outputs stays queued for so long.
const HOLD_US: u64 = 30_000_000;
/// Outputs of one payload where the fleet's manifest, of an older version, does not say it.
const OUTPUT_BYTES_MAX: u64 = 20_000_000_000;
/// How often a copy asks whether it should stop.
const ASK_BYTES: u64 = 16 << 20;
/// A copy that takes longer lets the pilot hear its slots and its lead in between.
const TURN_US: u64 = 100_000;
/// Logs that wait for the end of a copy; more are lost.
const LOGS_BYTES_MAX: usize = 16 << 20;

/// A record that nobody may see yet.
struct Pending {
    done: Done,
    piece: Piece,
}

/// Outputs that are to come into the bundle.
struct Waiting {
    slot: u32,
    done: SlotDone,
    piece: Piece,
    since_us: u64,
}

/// Outputs that are on their way into the bundle.
struct Copying {
    waiting: Waiting,
    refs: Vec<OutputRef>,
    /// Of the members that were begun.
    bytes: u64,
    part: Option<(Part, Box<dyn Source>)>,
}

/// A log that came while outputs were copied.
struct WaitingLog {
    member: Member<'static>,
    text: Vec<u8>,
}

/// What became of outputs.
#[derive(Debug)]
pub(super) enum Kept {
    /// They are safe: this record may be told.
    Safe(Done),
    /// They are gone: these events failed with this class and message.
    Lost {
        piece: Piece,
        slot: u32,
        failure: &'static str,
        message: String,
    },
    /// Their slot died before they were copied.
    Orphaned { piece: Piece },
}

/// Says whether a copy should end now.
pub(super) type Stop<'a> = &'a dyn Fn() -> bool;

pub struct Keeper {
    bundle: Bundle,
    flush_us: u64,
    output_bytes_max: u64,
    pending: Vec<Pending>,
    copying: Option<Copying>,
    waiting: VecDeque<Waiting>,
    logs: Vec<WaitingLog>,
    retry_at_us: u64,
    hold_until_us: u64,
    dirty_since_us: Option<u64>,
    failed_unsafe: bool,
    logs_lost: u64,
}

impl Keeper {
    pub fn new(bundle: Bundle, flush_s: f64, output_bytes_max: Option<u64>) -> Self {
        Keeper {
            bundle,
            flush_us: seconds_us(flush_s),
            output_bytes_max: output_bytes_max.unwrap_or(OUTPUT_BYTES_MAX),
            pending: Vec::new(),
            copying: None,
            waiting: VecDeque::new(),
            logs: Vec::new(),
            retry_at_us: 0,
            hold_until_us: 0,
            dirty_since_us: None,
            failed_unsafe: false,
            logs_lost: 0,
        }
    }

    /// Take the outputs of a Done over from its slot. What is large, comes behind others or is told to `stop` is brought by
    /// `retry`.
    pub(super) fn take(
        &mut self,
        slot: &Slot,
        (done, piece): (SlotDone, Piece),
        stop: Stop<'_>,
        now_us: u64,
    ) -> Option<Kept> {
        let waiting = Waiting {
            slot: slot.index(),
            done,
            piece,
            since_us: now_us,
        };
        if !self.waiting.is_empty() || self.copying.is_some() {
            self.waiting.push_back(waiting);
            return None;
        }
        self.copy(slot, waiting, stop, now_us)
    }

    fn copy(&mut self, slot: &Slot, waiting: Waiting, stop: Stop<'_>, now_us: u64) -> Option<Kept> {
        let prepared = self.prepare(slot, &waiting);
        self.bundle.begin();
        self.copying = Some(Copying {
            refs: Vec::with_capacity(waiting.done.outputs.len()),
            waiting,
            bytes: 0,
            part: None,
        });
        match prepared {
            Ok(()) => self.go_on(slot, stop, now_us),
            Err(error) => self.give_up(slot, &error, now_us),
        }
    }

    /// Start another file if this one is large, and see that the outputs are not too large, before a byte is copied.
    fn prepare(&mut self, slot: &Slot, waiting: &Waiting) -> Result<(), PilotError> {
        if self.bundle.is_large() && self.bundle.dirty_bytes() == 0 {
            self.bundle.start_next()?;
        }
        let mut bytes = 0;
        if let [_, _, ..] = waiting.done.outputs[..] {
            for output in &waiting.done.outputs {
                bytes = self.sum(bytes, output, &*source(slot, output)?)?;
            }
        }
        Ok(())
    }

    /// What outputs have together with another one, unless that is too much.
    fn sum(&self, bytes: u64, output: &SlotOutput, source: &dyn Source) -> Result<u64, PilotError> {
        let length = source
            .length()
            .map_err(PilotError::file("stat output", &output.name))?;
        let sum = bytes.saturating_add(length);
        if sum <= self.output_bytes_max {
            return Ok(sum);
        }
        let others = if bytes == 0 { "" } else { " with those before it" };
        Err(PilotError::Output {
            name: output.name.clone(),
            message: format!(
                "it has {sum} bytes{others}, holes included; the outputs of one payload may have {} at this site \
                 (`output_bytes_max`)",
                self.output_bytes_max
            ),
        })
    }

    /// Go on with the outputs that are on their way, for a while.
    fn go_on(&mut self, slot: &Slot, stop: Stop<'_>, now_us: u64) -> Option<Kept> {
        let mut copying = self.copying.take()?;
        let until_us = monotonic_us() + TURN_US;
        let result = loop {
            match self.step_copy(slot, &mut copying) {
                Ok(false) if stop() || monotonic_us() >= until_us => break Ok(false),
                Ok(false) => {}
                ended => break ended,
            }
        };
        match result {
            Ok(true) => {
                self.bundle.commit();
                let Copying { waiting, refs, .. } = copying;
                remove_outputs(slot, &waiting.done);
                self.dirty_since_us.get_or_insert(now_us);
                let done = record(&waiting.done, &waiting.piece, waiting.slot, refs);
                let piece = waiting.piece;
                self.pending.push(Pending { done, piece });
                self.write_logs(now_us);
                None
            }
            Ok(false) => {
                self.copying = Some(copying);
                None
            }
            Err(error) => {
                self.copying = Some(copying);
                self.give_up(slot, &error, now_us)
            }
        }
    }

    /// A step of a copy; whether all outputs are in the bundle.
    fn step_copy(&mut self, slot: &Slot, copying: &mut Copying) -> Result<bool, PilotError> {
        let done = &copying.waiting.done;
        let Some(output) = done.outputs.get(copying.refs.len()) else {
            return Ok(true);
        };
        let (mut part, mut source) = match copying.part.take() {
            Some(part) => part,
            None => {
                let source = source(slot, output)?;
                let bytes = self.sum(copying.bytes, output, &*source)?;
                let length = bytes - copying.bytes;
                copying.bytes = bytes;
                let member = Member {
                    kind: "output",
                    name: &output.name,
                    job: done.job,
                    first: done.first,
                    count: done.count,
                    truncated: false,
                };
                (self.bundle.start(&member, length)?, source)
            }
        };
        if self.bundle.go_on(&mut part, &mut *source, ASK_BYTES)? {
            copying.refs.push(self.bundle.complete(part)?);
        } else {
            copying.part = Some((part, source));
        }
        Ok(copying.refs.len() == done.outputs.len())
    }

    /// A copy has failed: it is tried again where the disk was full, for a while.
    fn give_up(&mut self, slot: &Slot, error: &PilotError, now_us: u64) -> Option<Kept> {
        let waiting = self.break_off(now_us)?;
        if error.is_full() && now_us < waiting.since_us + FULL_US_MAX {
            self.retry_at_us = now_us + RETRY_US;
            self.waiting.push_front(waiting);
            return None;
        }
        remove_outputs(slot, &waiting.done);
        if error.is_full() {
            self.hold_until_us = now_us + HOLD_US;
        }
        Some(Kept::Lost {
            piece: waiting.piece,
            slot: waiting.slot,
            failure: if error.is_of_output() { "payload" } else { "disk" },
            message: log::cause(error),
        })
    }

    /// Take the bundle back to before the outputs that are on their way.
    fn break_off(&mut self, now_us: u64) -> Option<Waiting> {
        let copying = self.copying.take()?;
        self.bundle.roll_back();
        self.write_logs(now_us);
        Some(copying.waiting)
    }

    /// Put a log into the bundle; never holds anything up, and a full disk only costs the log.
    pub(super) fn take_log(&mut self, member: Member<'static>, text: &[u8], now_us: u64) {
        if text.is_empty() {
            return;
        }
        if self.copying.is_none() {
            self.write_log(&member, text, now_us);
            return;
        }
        let waiting: usize = self.logs.iter().map(|log| log.text.len()).sum();
        if waiting + text.len() <= LOGS_BYTES_MAX {
            let text = text.to_vec();
            self.logs.push(WaitingLog { member, text });
        } else {
            self.logs_lost += 1;
        }
    }

    fn write_logs(&mut self, now_us: u64) {
        for log in std::mem::take(&mut self.logs) {
            self.write_log(&log.member, &log.text, now_us);
        }
    }

    fn write_log(&mut self, member: &Member<'_>, text: &[u8], now_us: u64) {
        match self.bundle.append(member, &mut Cursor::new(text)) {
            Ok(_) => {
                self.dirty_since_us.get_or_insert(now_us);
            }
            Err(_) => self.logs_lost += 1,
        }
    }

    /// A failed payload's logs were taken: its record does not wait for them, but somebody may soon read them.
    pub(super) fn take_failed(&mut self) {
        self.failed_unsafe = self.dirty_since_us.is_some();
    }

    /// Go on with a copy, then with what waits: for its turn, or for room.
    pub(super) fn retry<'a>(
        &mut self,
        slot_of: impl Fn(u32) -> Option<&'a Slot>,
        stop: Stop<'_>,
        now_us: u64,
    ) -> Vec<Kept> {
        let mut kept = Vec::new();
        if let (Some(copying), false) = (&self.copying, stop()) {
            match slot_of(copying.waiting.slot) {
                Some(slot) => kept.extend(self.go_on(slot, stop, now_us)),
                None => kept.extend(self.break_off(now_us).map(orphaned)),
            }
        }
        while self.copying.is_none() && now_us >= self.retry_at_us && !stop() {
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            match slot_of(waiting.slot) {
                Some(slot) => kept.extend(self.copy(slot, waiting, stop, now_us)),
                None => kept.push(orphaned(waiting)),
            }
        }
        kept
    }

    /// Drop the outputs of jobs that were canceled, also of a copy that is on its way.
    pub(super) fn drop_canceled<'a>(
        &mut self,
        canceled: &Canceled,
        slot_of: impl Fn(u32) -> Option<&'a Slot>,
        now_us: u64,
    ) {
        if canceled.is_empty() || (self.copying.is_none() && self.waiting.is_empty()) {
            return;
        }
        let is_canceled = |waiting: &Waiting| canceled.has(&waiting.piece);
        let mut dropped = Vec::new();
        if self
            .copying
            .as_ref()
            .is_some_and(|each| is_canceled(&each.waiting))
        {
            dropped.extend(self.break_off(now_us));
        }
        let (gone, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(is_canceled);
        self.waiting = left;
        dropped.extend(gone);
        for waiting in dropped {
            if let Some(slot) = slot_of(waiting.slot) {
                remove_outputs(slot, &waiting.done);
            }
        }
    }

    /// Whether outputs are on their way into the bundle.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Give up what found no time or no room: the pilot leaves.
    pub(super) fn abandon(&mut self, now_us: u64) -> Vec<Kept> {
        let copied = self.break_off(now_us);
        copied
            .into_iter()
            .chain(self.waiting.drain(..))
            .map(orphaned)
            .collect()
    }

    /// Fsync if it is time; `idle` = there is nothing else to do. The records that may be told now.
    pub(super) fn sync_if_due(&mut self, now_us: u64, idle: bool) -> Vec<Kept> {
        let Some(since_us) = self.dirty_since_us else {
            return Vec::new();
        };
        let due = idle && (self.failed_unsafe || !self.pending.is_empty())
            || now_us >= since_us + self.flush_us
            || self.bundle.dirty_bytes() >= DIRTY_BYTES_MAX
            || self.bundle.is_large();
        if due {
            self.sync(now_us)
        } else {
            Vec::new()
        }
    }

    /// Fsync. After a failure nothing that was not safe before is ever trusted: the kernel may have dropped it
    /// (fsync(2), "Errors"), so these events failed and a new file is started.
    pub(super) fn sync(&mut self, now_us: u64) -> Vec<Kept> {
        self.dirty_since_us = None;
        self.failed_unsafe = false;
        let result = self.bundle.sync();
        let pending = std::mem::take(&mut self.pending);
        let Err(error) = result else {
            return pending.into_iter().map(|each| Kept::Safe(each.done)).collect();
        };
        self.hold_until_us = now_us + HOLD_US;
        let mut message = log::cause(&error);
        // a copy that is on its way has to begin again: this file is not gone on with
        if let Some(waiting) = self.break_off(now_us) {
            self.waiting.push_front(waiting);
        }
        if let Err(next) = self.bundle.start_next() {
            message = format!("{message}; {}", log::cause(&next));
        }
        pending
            .into_iter()
            .map(|each| Kept::Lost {
                slot: each.done.slot as u32,
                piece: each.piece,
                failure: "disk",
                message: message.clone(),
            })
            .collect()
    }

    /// End the archive; logs that were not written are told.
    pub(super) fn end_archive(&mut self) -> u64 {
        self.bundle.finish();
        self.logs_lost
    }

    /// Whether work with outputs should stay queued.
    pub fn holds(&self, now_us: u64) -> bool {
        !self.waiting.is_empty() || now_us < self.hold_until_us
    }

    /// Events that ran and have no record yet.
    pub fn held(&self) -> Vec<Piece> {
        let pending = self.pending.iter().map(|each| &each.piece);
        let copying = self.copying.iter().map(|each| &each.waiting.piece);
        let waiting = self.waiting.iter().map(|each| &each.piece);
        pending.chain(copying).chain(waiting).cloned().collect()
    }

    /// When `retry` or `sync_if_due` should be called at the latest.
    pub fn due_us(&self) -> Option<u64> {
        let sync = self.dirty_since_us.map(|since_us| since_us + self.flush_us);
        let copy = self.copying.as_ref().map(|_| 0);
        let retry = (self.copying.is_none() && !self.waiting.is_empty()).then_some(self.retry_at_us);
        [sync, copy, retry].into_iter().flatten().min()
    }

    /// Whether records wait for an fsync or for room.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.copying.is_some() || !self.waiting.is_empty()
    }
}

fn orphaned(waiting: Waiting) -> Kept {
    Kept::Orphaned { piece: waiting.piece }
}

/// What an output is copied from.
fn source(slot: &Slot, output: &SlotOutput) -> Result<Box<dyn Source>, PilotError> {
    match &output.inline {
        Some(bytes) => Ok(Box::new(Cursor::new(bytes.clone()))),
        None => match slot.open_output(&output.path) {
            Ok(file) => Ok(Box::new(FileSource::new(file))),
            Err(error) => Err(PilotError::Output {
                name: output.name.clone(),
                message: log::cause(&error),
            }),
        },
    }
}

/// Free the places of outputs that are not wanted any more: a slot starts nothing while many wait.
pub(super) fn remove_outputs(slot: &Slot, done: &SlotDone) {
    for output in done.outputs.iter().filter(|output| output.inline.is_none()) {
        // what stays fills the slot's own scratch, which its init empties
        let _ = slot.remove_output(&output.path);
    }
}

/// The record of a Done; `p` and `s` are filled in when it is numbered.
pub(super) fn record(done: &SlotDone, piece: &Piece, slot: u32, outputs: Vec<OutputRef>) -> Done {
    Done {
        grant: piece.grant,
        job: done.job,
        first: done.first,
        count: done.count,
        payloads: done.payloads,
        slot: slot.into(),
        started_us: done.started_us,
        ended_us: done.ended_us,
        wall_us: done.wall_us,
        setup_us: done.setup_us,
        user_us: done.user_us,
        system_us: done.system_us,
        rss_kb: done.rss_kb,
        read_bytes: done.read_bytes,
        write_bytes: done.write_bytes,
        outputs,
        ..Done::default()
    }
}
