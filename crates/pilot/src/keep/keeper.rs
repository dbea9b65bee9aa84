//! Copies outputs and logs of payloads into the bundle, and holds their records back until they are safe there.
//!
//! A child (`writer`) does the writing, so a slow bundle file system never blocks the pilot. While writing fails or
//! hangs, outputs stay where they are (in the slot's memory), no work with outputs starts, and the copy is retried with
//! growing pauses. When the site's patience is over, the pilot gives up the node, and the events are returned unharmed.

use std::collections::{BTreeSet, HashSet, VecDeque};

use tidemill_slot::{Done as SlotDone, Slot};
use tidemill_sys::calls::Kernel;
use tidemill_sys::fd::{self, Poll};
use tidemill_wire::worker::Worker;
use tidemill_wire::{Done, OutputRef};

use super::bundle::Bundle;
use super::trouble::Trouble;
use super::writer::{Answer, Cause, Group, Log, Origin, Output, Request, Writer};
use crate::error::PilotError;
use crate::work::piece::WorkPiece;
use crate::FILES;

/// Most groups in a request, because their descriptors must fit into a socket.
const GROUPS_MAX: usize = 32;
/// A request with this many inline bytes takes no further group.
const BATCH_BYTES: usize = 4 << 20;
/// Outputs, and their inline bytes, that wait: above either limit, no work with outputs starts.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Inline bytes that are held: above this limit, new outputs are dropped, and their events run again later.
const HELD_BYTES_MAX: usize = 256 << 20;
/// Copied outputs stay at their slot until they are safe, unless payloads may need the room.
const RETAINED_MAX: usize = 64;
const RETAINED_BYTES_MAX: u64 = 16 << 20;
/// Logs that wait, in bytes; further logs are lost.
const LOGS_BYTES_MAX: usize = 16 << 20;
/// The first outputs of a pilot are made safe after this time, since people wait for them. Each time it doubles until it is
/// the interval of the settings: four syncs more in the life of a pilot.
const FIRST_FLUSH_US: u64 = 2_000_000;
/// A child that is silent for this time hangs: a copy reports progress each second, and an fsync covers 64 MiB.
const HANG_US: u64 = 10_000_000;

/// Outputs that wait to be copied into the bundle.
struct Waiting {
    number: u64,
    slot: u32,
    done: SlotDone,
    piece: WorkPiece,
    /// Its job was canceled.
    dropped: bool,
}

impl Waiting {
    fn has_files(&self) -> bool {
        self.done.outputs.iter().any(|output| output.inline.is_none())
    }

    fn inline_bytes(&self) -> usize {
        let lengths = self
            .done
            .outputs
            .iter()
            .filter_map(|output| output.inline.as_ref());
        lengths.map(Vec::len).sum()
    }
}

/// A record of outputs that are in the bundle and not safe.
struct Pending {
    done: Done,
    piece: WorkPiece,
    /// What they can be copied from once more.
    retained: Option<(Waiting, u64)>,
}

/// What became of outputs.
#[derive(Debug)]
pub(super) enum Kept {
    /// They are safe: this record may be reported.
    Safe(Done),
    /// They are lost through their payload's fault: these events failed with this message.
    Lost {
        piece: WorkPiece,
        slot: u32,
        message: String,
    },
    /// They are gone through no fault of these events, which run again.
    Orphaned { piece: WorkPiece },
    /// The storage did not take them, and the pilot leaves.
    Refused {
        piece: WorkPiece,
        slot: u32,
        message: String,
    },
}

/// What is where, and who writes it.
pub struct BundleTarget {
    pub origin: Origin,
    /// What people call the file system: `nfs4` at `/home`.
    pub area: String,
    pub output_bytes_max: u64,
}

pub struct Keeper {
    place: BundleTarget,
    worker: Option<Worker<Answer>>,
    /// Longest time before what is new becomes safe, and the present one.
    flush_us: u64,
    pause_us: u64,
    number: u64,
    waiting: VecDeque<Waiting>,
    sent: VecDeque<Waiting>,
    pending: Vec<Pending>,
    logs: VecDeque<(Log, Vec<u8>)>,
    /// Requests without an answer.
    copying: bool,
    logging: bool,
    syncing: bool,
    /// The child's last word, or the first request since.
    heard_us: u64,
    dirty_since_us: Option<u64>,
    logs_lost: u64,
    trouble: Trouble,
    /// Jobs of which a record says why their outputs were not kept.
    pub(super) explained: HashSet<u64>,
}

impl Keeper {
    /// Forks the writer: call while single-threaded.
    pub fn new(
        bundle: Bundle,
        place: BundleTarget,
        (flush_us, patience_us): (u64, u64),
    ) -> Result<Self, PilotError> {
        let mut keeper = Keeper::alone(place, (flush_us, patience_us));
        keeper.start(Some(bundle))?;
        Ok(keeper)
    }

    /// One whose writer has not been started.
    fn alone(place: BundleTarget, (flush_us, patience_us): (u64, u64)) -> Self {
        Keeper {
            trouble: Trouble::new(patience_us),
            place,
            worker: None,
            flush_us,
            pause_us: flush_us.min(FIRST_FLUSH_US),
            number: 0,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            pending: Vec::new(),
            logs: VecDeque::new(),
            copying: false,
            logging: false,
            syncing: false,
            heard_us: 0,
            dirty_since_us: None,
            logs_lost: 0,
            explained: HashSet::new(),
        }
    }

    fn start(&mut self, bundle: Option<Bundle>) -> Result<(), PilotError> {
        let origin = Origin {
            directory: self.place.origin.directory.clone(),
            pilot: self.place.origin.pilot.clone(),
            bytes_max: self.place.origin.bytes_max,
        };
        let writer = Writer::new(Kernel, bundle, origin, self.place.output_bytes_max);
        let kept = writer.descriptors();
        self.worker = Some(Worker::start(FILES, &kept, |served| writer.serve(served))?);
        Ok(())
    }

    pub fn poll(&self) -> Option<Poll> {
        self.worker.as_ref().map(Worker::poll)
    }

    /// Take the outputs of a Done over; `step` brings them into the bundle. Those that find no room leave their slot.
    pub(super) fn take<'a>(
        &mut self,
        slot: u32,
        (done, piece): (SlotDone, WorkPiece),
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
    ) -> Option<Kept> {
        self.number += 1;
        let waiting = Waiting {
            number: self.number,
            slot,
            done,
            piece,
            dropped: false,
        };
        if self.held_bytes() + waiting.inline_bytes() > HELD_BYTES_MAX {
            remove_outputs(slot_of(slot), &waiting.done);
            return Some(Kept::Orphaned { piece: waiting.piece });
        }
        self.waiting.push_back(waiting);
        None
    }

    fn held_bytes(&self) -> usize {
        let unsent = self.waiting.iter().chain(&self.sent);
        unsent.map(Waiting::inline_bytes).sum()
    }

    /// Take a log; it never holds anything up, and what finds no room is lost.
    pub(super) fn take_log(&mut self, log: Log, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        let waiting: usize = self.logs.iter().map(|(_, text)| text.len()).sum();
        if waiting + text.len() <= LOGS_BYTES_MAX {
            self.logs.push_back((log, text.to_vec()));
        } else {
            self.logs_lost += 1;
        }
    }

    /// Handle the child's answers, and check whether it hangs.
    pub(super) fn hear<'a>(&mut self, slot_of: &dyn Fn(u32) -> Option<&'a Slot>, now_us: u64) -> Vec<Kept> {
        let Some(worker) = &mut self.worker else {
            return Vec::new();
        };
        let answers = match worker.hear() {
            Ok(answers) => answers,
            Err(how) => return self.start_over(&how, slot_of, now_us),
        };
        if !answers.is_empty() {
            self.heard_us = now_us;
        }
        let mut kept = Vec::new();
        for answer in answers {
            kept.extend(self.answered(answer, slot_of, now_us));
        }
        if self.is_awaited() && now_us >= self.heard_us + HANG_US && !self.trouble.is_on() {
            let text = format!(
                "`{}` has not answered for 10 s",
                self.place.origin.directory.display()
            );
            self.trouble.failed(text, now_us);
        }
        kept
    }

    fn answered<'a>(
        &mut self,
        answer: Answer,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        now_us: u64,
    ) -> Vec<Kept> {
        match answer {
            Answer::Working => {}
            Answer::Copied { number, bytes, refs } => self.copied(number, bytes, refs, slot_of, now_us),
            Answer::Failed { number, cause } => return self.refused(number, cause, slot_of, now_us),
            Answer::CalledOff { number } => {
                if let Some(waiting) = self.answered_for(number) {
                    remove_outputs(slot_of(waiting.slot), &waiting.done);
                }
            }
            Answer::CopiesEnd => self.copying = false,
            Answer::Logged { lost } => {
                self.logging = false;
                self.logs_lost += lost;
                self.dirty_since_us.get_or_insert(now_us);
            }
            Answer::Safe => return self.safe(slot_of),
            Answer::Unsafe { cause } => {
                self.trouble.failed(cause.text, now_us);
                return self.take_back();
            }
            Answer::SyncEnds => self.syncing = false,
        }
        Vec::new()
    }

    fn answered_for(&mut self, number: u64) -> Option<Waiting> {
        let place = self.sent.iter().position(|each| each.number == number)?;
        self.sent.remove(place)
    }

    fn copied<'a>(
        &mut self,
        number: u64,
        bytes: u64,
        refs: Vec<OutputRef>,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        now_us: u64,
    ) {
        let Some(waiting) = self.answered_for(number) else {
            return;
        };
        self.dirty_since_us.get_or_insert(now_us);
        self.trouble.tried();
        if waiting.dropped {
            remove_outputs(slot_of(waiting.slot), &waiting.done);
            return;
        }
        let done = record(&waiting.done, &waiting.piece, waiting.slot, refs);
        let piece = waiting.piece.clone();
        let retained = self.pending.iter().filter_map(|each| each.retained.as_ref());
        let (count, sum) = retained.fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
        let retained = if count < RETAINED_MAX && sum + bytes <= RETAINED_BYTES_MAX {
            Some((waiting, bytes))
        } else {
            remove_outputs(slot_of(waiting.slot), &waiting.done);
            None
        };
        self.pending.push(Pending {
            done,
            piece,
            retained,
        });
    }

    fn refused<'a>(
        &mut self,
        number: u64,
        cause: Cause,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        now_us: u64,
    ) -> Vec<Kept> {
        let Some(waiting) = self.answered_for(number) else {
            return Vec::new();
        };
        if !cause.of_output {
            self.trouble.failed(cause.text, now_us);
            if waiting.dropped {
                remove_outputs(slot_of(waiting.slot), &waiting.done);
                return Vec::new();
            }
            // groups fail in their order, the first of those that are sent
            let place = self
                .waiting
                .iter()
                .take_while(|each| each.number < number)
                .count();
            self.waiting.insert(place, waiting);
            return Vec::new();
        }
        remove_outputs(slot_of(waiting.slot), &waiting.done);
        if waiting.dropped {
            return Vec::new();
        }
        if waiting.has_files() && slot_of(waiting.slot).is_none() {
            // what its slot had went with it, and whatever was found wrong was that
            return vec![Kept::Orphaned { piece: waiting.piece }];
        }
        vec![Kept::Lost {
            piece: waiting.piece,
            slot: waiting.slot,
            message: cause.text,
        }]
    }

    fn safe<'a>(&mut self, slot_of: &dyn Fn(u32) -> Option<&'a Slot>) -> Vec<Kept> {
        self.dirty_since_us = None;
        self.pause_us = (2 * self.pause_us).min(self.flush_us);
        self.trouble.ended_well();
        let pending = std::mem::take(&mut self.pending);
        let safe = |each: Pending| {
            if let Some((waiting, _)) = &each.retained {
                remove_outputs(slot_of(waiting.slot), &waiting.done);
            }
            Kept::Safe(each.done)
        };
        pending.into_iter().map(safe).collect()
    }

    /// Nothing that was copied is safe, or ever will be: copy it again, or let its events run again.
    fn take_back(&mut self) -> Vec<Kept> {
        self.dirty_since_us = None;
        let mut kept = Vec::new();
        for each in std::mem::take(&mut self.pending).into_iter().rev() {
            match each.retained {
                Some((waiting, _)) => self.waiting.push_front(waiting),
                None => kept.push(Kept::Orphaned { piece: each.piece }),
            }
        }
        kept
    }

    /// The child is gone.
    fn start_over<'a>(
        &mut self,
        how: &str,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        now_us: u64,
    ) -> Vec<Kept> {
        self.trouble.failed(how.to_owned(), now_us);
        self.worker = None;
        (self.copying, self.logging, self.syncing) = (false, false, false);
        for waiting in std::mem::take(&mut self.sent).into_iter().rev() {
            if waiting.dropped {
                remove_outputs(slot_of(waiting.slot), &waiting.done);
            } else {
                self.waiting.push_front(waiting);
            }
        }
        self.take_back()
    }

    /// Send what is due; `idle` = there is nothing else to do.
    pub(super) fn go_on<'a>(
        &mut self,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        idle: bool,
        now_us: u64,
    ) -> Result<Vec<Kept>, PilotError> {
        let has_some = !self.waiting.is_empty() || !self.logs.is_empty();
        if self.trouble.rests(has_some || self.is_awaited(), now_us) {
            return Ok(Vec::new());
        }
        let was_awaited = self.is_awaited();
        if self.worker.is_none() && has_some {
            if let Err(error) = self.start(None) {
                self.trouble.failed(tidemill_wire::log::cause(&error), now_us);
            }
        }
        let mut kept = Vec::new();
        if let Some(mut worker) = self.worker.take() {
            let sent = self.send_all(&mut worker, slot_of, idle, now_us);
            self.worker = Some(worker);
            kept = sent?;
        }
        if !was_awaited && self.is_awaited() {
            self.heard_us = now_us;
        }
        Ok(kept)
    }

    fn send_all<'a>(
        &mut self,
        worker: &mut Worker<Answer>,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
        idle: bool,
        now_us: u64,
    ) -> Result<Vec<Kept>, PilotError> {
        if !self.logging && !self.logs.is_empty() {
            let (logs, texts): (Vec<Log>, Vec<Vec<u8>>) = self.logs.drain(..).unzip();
            worker.send(&Request::Logs { logs }, &texts.concat())?;
            self.logging = true;
        }
        let mut kept = Vec::new();
        if !self.copying && !self.waiting.is_empty() {
            kept = self.send_copies(worker, slot_of)?;
        }
        if !self.syncing && self.sync_is_due(idle, now_us) {
            worker.send(&Request::Sync { ends: false }, &[])?;
            self.syncing = true;
        }
        Ok(kept)
    }

    fn send_copies<'a>(
        &mut self,
        worker: &mut Worker<Answer>,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
    ) -> Result<Vec<Kept>, PilotError> {
        let most = if self.trouble.is_on() { 1 } else { GROUPS_MAX };
        let (mut groups, mut body, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept = Vec::new();
        while groups.len() < most && body.len() < BATCH_BYTES {
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            if waiting.has_files() {
                match slot_of(waiting.slot) {
                    Some(slot) => passed.push(slot),
                    None => {
                        kept.push(Kept::Orphaned { piece: waiting.piece });
                        continue;
                    }
                }
            }
            groups.push(group(&waiting, &mut body));
            self.sent.push_back(waiting);
        }
        if groups.is_empty() {
            return Ok(kept);
        }
        worker.send(&Request::Copy { groups }, &body)?;
        passed.into_iter().for_each(|slot| worker.pass(slot.scratch()));
        self.copying = true;
        Ok(kept)
    }

    /// Where nothing else is to do, logs are made safe at once, too: their records do not wait for them, but a user may
    /// soon read them.
    fn sync_is_due(&self, idle: bool, now_us: u64) -> bool {
        let Some(since_us) = self.dirty_since_us else {
            return false;
        };
        idle || self.trouble.is_on() || now_us >= since_us + self.pause_us
    }

    /// Ask for everything to be safe, and for the end of the archive.
    pub(super) fn end_archive(&mut self) -> Result<(), PilotError> {
        let Some(worker) = self
            .worker
            .as_mut()
            .filter(|_| !self.trouble.is_on() || !self.pending.is_empty())
        else {
            return Ok(());
        };
        worker.send(&Request::Sync { ends: true }, &[])?;
        self.syncing = true;
        Ok(())
    }

    /// Drop the outputs of canceled pieces, also of a copy in progress.
    pub(super) fn drop_canceled<'a>(
        &mut self,
        is_over: &dyn Fn(&WorkPiece) -> bool,
        slot_of: &dyn Fn(u32) -> Option<&'a Slot>,
    ) {
        for waiting in self.sent.iter_mut().filter(|each| !each.dropped) {
            if is_over(&waiting.piece) {
                waiting.dropped = true;
                if let Some(worker) = &mut self.worker {
                    worker.call_off(waiting.number);
                }
            }
        }
        if !self.waiting.iter().any(|waiting| is_over(&waiting.piece)) {
            return;
        }
        let (gone, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| is_over(&waiting.piece));
        self.waiting = left;
        for waiting in gone {
            remove_outputs(slot_of(waiting.slot), &waiting.done);
        }
    }

    fn is_awaited(&self) -> bool {
        self.copying || self.logging || self.syncing
    }

    /// Whether outputs wait for the storage, or a call of it hangs: also a log's, behind which no output gets through.
    fn needs_storage(&self) -> bool {
        let unsent = self.sent.iter().chain(&self.waiting).any(|each| !each.dropped);
        unsent || !self.pending.is_empty() || self.is_awaited()
    }

    /// Whether the child is at something that this pilot waits for.
    pub(super) fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// Whether outputs are on their way into the bundle, and may arrive.
    pub fn is_copying(&self, now_us: u64) -> bool {
        (!self.sent.is_empty() || !self.waiting.is_empty()) && !self.trouble.is_hopeless(now_us)
    }

    /// Whether logs are being written to the bundle.
    pub(super) fn is_logging(&self) -> bool {
        !self.trouble.is_on() && (self.logging || !self.logs.is_empty())
    }

    /// Wait for the child, at most for `limit_us`; without a child, for exactly that time.
    pub(super) fn wait(&self, limit_us: u64) -> Result<(), PilotError> {
        let mut polls: Vec<Poll> = self.poll().into_iter().collect();
        fd::poll(&mut polls, Some(limit_us)).map_err(|error| PilotError::system("poll")(error.source))?;
        Ok(())
    }

    /// Give up what is not in the bundle and, with `unsafe_too`, what is not safe there: the pilot leaves.
    pub(super) fn abandon(&mut self, unsafe_too: bool) -> Vec<Kept> {
        let message = self.why();
        let unsent = self.sent.drain(..).chain(self.waiting.drain(..));
        let mut left: Vec<(WorkPiece, u32)> = unsent
            .filter(|each| !each.dropped)
            .map(|each| (each.piece, each.slot))
            .collect();
        if unsafe_too {
            let pending = self.pending.drain(..);
            left.extend(pending.map(|each| (each.piece, each.done.slot as u32)));
        }
        let refused = |(piece, slot)| match &message {
            Some(message) => Kept::Refused {
                piece,
                slot,
                message: message.clone(),
            },
            None => Kept::Orphaned { piece },
        };
        left.into_iter().map(refused).collect()
    }

    /// The trouble of the storage in words, while there is one.
    pub fn why(&self) -> Option<String> {
        let text = self.trouble.text()?;
        Some(format!("{text} ({})", self.place.area))
    }

    /// Why this node is to be given up: the trouble has lasted longer than the site's patience, and something waits for
    /// the storage.
    pub fn hopeless(&self, now_us: u64) -> Option<String> {
        let why = self
            .why()
            .filter(|_| self.needs_storage() && self.trouble.is_hopeless(now_us))?;
        Some(format!("outputs cannot be kept: {why}"))
    }

    /// Trouble that has begun or ended since the last call: `failed` with the cause, or `works`.
    pub(super) fn news(&mut self) -> Option<(&'static str, String)> {
        let mode = self.trouble.news()?;
        Some((mode, self.why().unwrap_or_else(|| self.place.area.clone())))
    }

    pub(super) fn take_lost_logs(&mut self) -> u64 {
        self.logs_lost += self.logs.drain(..).count() as u64;
        std::mem::take(&mut self.logs_lost)
    }

    /// Whether work with outputs should stay queued.
    pub fn holds(&self) -> bool {
        self.trouble.is_on()
            || self.waiting.len() + self.sent.len() > WAITING_MAX
            || self.held_bytes() > WAITING_BYTES_MAX
    }

    /// Slots that have outputs which are not in the bundle yet.
    pub fn slots(&self) -> BTreeSet<u32> {
        let unsent = self.sent.iter().chain(&self.waiting);
        let wanted = unsent.filter(|each| !each.dropped && each.has_files());
        wanted.map(|each| each.slot).collect()
    }

    /// Events that ran and have no record yet.
    pub fn held(&self) -> Vec<WorkPiece> {
        let pending = self.pending.iter().map(|each| &each.piece);
        let unsent = self.sent.iter().chain(&self.waiting).filter(|each| !each.dropped);
        pending.chain(unsent.map(|each| &each.piece)).cloned().collect()
    }

    /// When `hear` or `go_on` should be called at the latest, or the node is given up. What has been hopeless for a while
    /// needs no call: a pilot that leaves for another reason only waits for its slots.
    pub fn due_us(&self, now_us: u64) -> Option<u64> {
        let sync = self.dirty_since_us.filter(|_| !self.syncing);
        let sync = sync.map(|since_us| (since_us + self.pause_us).max(self.trouble.retry_us()));
        let hang = self.is_awaited().then_some(self.heard_us + HANG_US);
        let hang = hang.filter(|_| !self.trouble.is_on());
        let send = (!self.copying && !self.waiting.is_empty()) || (!self.logging && !self.logs.is_empty());
        let send = send.then_some(self.trouble.retry_us());
        let over = self.trouble.hopeless_us().filter(|_| self.needs_storage());
        let over = over.filter(|&at_us| at_us > now_us);
        [sync, hang, send, over].into_iter().flatten().min()
    }

    /// Whether records wait for an fsync or for room.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.sent.is_empty() || !self.waiting.is_empty()
    }
}

fn group(waiting: &Waiting, body: &mut Vec<u8>) -> Group {
    let done = &waiting.done;
    let outputs = done.outputs.iter().map(|output| {
        body.extend_from_slice(output.inline.as_deref().unwrap_or_default());
        Output {
            name: output.name.clone(),
            path: output.path.clone(),
            inline: output.inline.as_ref().map(Vec::len),
        }
    });
    Group {
        number: waiting.number,
        job: done.job,
        first: done.first,
        count: done.count,
        outputs: outputs.collect(),
        has_files: waiting.has_files(),
    }
}

/// Free the places of outputs that are not wanted any more: a slot starts nothing while many wait.
pub(super) fn remove_outputs(slot: Option<&Slot>, done: &SlotDone) {
    let Some(slot) = slot else {
        return;
    };
    for output in done.outputs.iter().filter(|output| output.inline.is_none()) {
        // what stays fills the slot's own scratch, which its init empties
        let _ = slot.remove_output(&output.path);
    }
}

/// The record of a Done; `p` and `s` are filled in when it is numbered.
pub(super) fn record(done: &SlotDone, piece: &WorkPiece, slot: u32, outputs: Vec<OutputRef>) -> Done {
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

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
