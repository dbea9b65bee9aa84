//! Brings outputs and logs of payloads into the bundle, and holds their records back until they are safe there.

use std::collections::VecDeque;

use tidemill_slot::{Done as SlotDone, Slot};
use tidemill_wire::{log, Done, OutputRef};

use super::bundle::{Bundle, Member, Stoppable};
use crate::error::PilotError;
use crate::time::seconds_us;
use crate::work::piece::Piece;

/// Unsafe bytes at which the bundle is fsynced whatever the time.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// A full disk is tried again for so long, then the events fail.
const FULL_US_MAX: u64 = 5_000_000;
const RETRY_US: u64 = 500_000;
/// After such a failure work with outputs stays queued for so long.
const HOLD_US: u64 = 30_000_000;

/// A record that nobody may see yet.
struct Pending {
    done: Done,
    piece: Piece,
}

/// Outputs that found no room in the bundle.
struct Waiting {
    slot: u32,
    done: SlotDone,
    piece: Piece,
    since_us: u64,
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
    pending: Vec<Pending>,
    waiting: VecDeque<Waiting>,
    retry_at_us: u64,
    hold_until_us: u64,
    dirty_since_us: Option<u64>,
    failed_unsafe: bool,
    logs_lost: u64,
}

impl Keeper {
    pub fn new(bundle: Bundle, flush_s: f64) -> Self {
        Keeper {
            bundle,
            flush_us: seconds_us(flush_s),
            pending: Vec::new(),
            waiting: VecDeque::new(),
            retry_at_us: 0,
            hold_until_us: 0,
            dirty_since_us: None,
            failed_unsafe: false,
            logs_lost: 0,
        }
    }

    /// Take the outputs of a Done over from its slot.
    ///
    /// A copy ends when `stop` says so; it is tried again by `retry`.
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
        if !self.waiting.is_empty() {
            self.waiting.push_back(waiting);
            return None;
        }
        self.copy(slot, waiting, stop, now_us)
    }

    fn copy(&mut self, slot: &Slot, waiting: Waiting, stop: Stop<'_>, now_us: u64) -> Option<Kept> {
        match self.append_all(slot, &waiting, stop) {
            Ok(outputs) => {
                remove_outputs(slot, &waiting.done);
                self.dirty_since_us.get_or_insert(now_us);
                let done = record(&waiting.done, &waiting.piece, waiting.slot, outputs);
                let piece = waiting.piece;
                self.pending.push(Pending { done, piece });
                None
            }
            Err(error) if error.is_interrupted() => {
                self.waiting.push_front(waiting);
                None
            }
            Err(error) if error.is_full() && now_us < waiting.since_us + FULL_US_MAX => {
                self.retry_at_us = now_us + RETRY_US;
                self.waiting.push_front(waiting);
                None
            }
            Err(error) => {
                remove_outputs(slot, &waiting.done);
                let full = error.is_full();
                if full {
                    self.hold_until_us = now_us + HOLD_US;
                }
                let failure = if full { "disk" } else { "payload" };
                Some(Kept::Lost {
                    piece: waiting.piece,
                    slot: waiting.slot,
                    failure,
                    message: log::cause(&error),
                })
            }
        }
    }

    fn append_all(
        &mut self,
        slot: &Slot,
        waiting: &Waiting,
        stop: Stop<'_>,
    ) -> Result<Vec<OutputRef>, PilotError> {
        if self.bundle.is_large() && self.bundle.dirty_bytes() == 0 {
            self.bundle.start_next()?;
        }
        let mark = self.bundle.mark();
        let done = &waiting.done;
        let mut refs = Vec::with_capacity(done.outputs.len());
        for output in &done.outputs {
            let member = Member {
                kind: "output",
                name: &output.name,
                job: done.job,
                first: done.first,
                count: done.count,
                truncated: false,
            };
            let result = match &output.inline {
                Some(bytes) => self.bundle.append(&member, &mut &bytes[..]),
                None => slot
                    .open_output(&output.path)
                    .map_err(|error| PilotError::Output {
                        name: output.name.clone(),
                        message: log::cause(&error),
                    })
                    .and_then(|file| {
                        let mut source = Stoppable {
                            file,
                            stop,
                            since_asked: 0,
                        };
                        self.bundle.append(&member, &mut source)
                    }),
            };
            match result {
                Ok(done) => refs.push(done),
                Err(error) => {
                    self.bundle.roll_back(mark);
                    return Err(error);
                }
            }
        }
        Ok(refs)
    }

    /// Put a log into the bundle; never holds anything up, and a full disk only costs the log.
    pub(super) fn take_log(&mut self, member: &Member<'_>, text: &[u8], now_us: u64) {
        if text.is_empty() {
            return;
        }
        match self.bundle.append(member, &mut &text[..]) {
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

    /// Try again what found no room.
    pub(super) fn retry<'a>(
        &mut self,
        slot_of: impl Fn(u32) -> Option<&'a Slot>,
        stop: Stop<'_>,
        now_us: u64,
    ) -> Vec<Kept> {
        let mut kept = Vec::new();
        while now_us >= self.retry_at_us && !stop() {
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            match slot_of(waiting.slot) {
                Some(slot) => kept.extend(self.copy(slot, waiting, stop, now_us)),
                None => kept.push(Kept::Orphaned { piece: waiting.piece }),
            }
        }
        kept
    }

    /// Give up what found no room: the pilot leaves.
    pub(super) fn abandon(&mut self) -> Vec<Kept> {
        let orphaned = |waiting: Waiting| Kept::Orphaned { piece: waiting.piece };
        self.waiting.drain(..).map(orphaned).collect()
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
        let waiting = self.waiting.iter().map(|each| &each.piece);
        pending.chain(waiting).cloned().collect()
    }

    /// When `retry` or `sync_if_due` should be called at the latest.
    pub fn due_us(&self) -> Option<u64> {
        let sync = self.dirty_since_us.map(|since_us| since_us + self.flush_us);
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at_us);
        [sync, retry].into_iter().flatten().min()
    }

    /// Whether records wait for an fsync or for room.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.waiting.is_empty()
    }
}

fn remove_outputs(slot: &Slot, done: &SlotDone) {
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
