//! The pilot of one node: one thread, one poll loop over signals, the lead and the slots.
//!
//! This file holds the state and the loop; what slots tell is in `results`, how it ends in `leaving`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use tidemill_slot::{Isolation, Slot};
use tidemill_sys::child;
use tidemill_sys::fd::{self, Poll};
use tidemill_sys::time::monotonic_us;
use tidemill_wire::{Ask, Beat, Manifest, PilotMessage, Record, Returned, Settings};

use crate::error::{PilotError, LOG};
use crate::images::Node;
use crate::keep::{Keeper, Kept};
use crate::lead::link::{LinkEvent, OUT_BYTES_MAX};
use crate::lead::process::{LeadProcess, WATCH_US};
use crate::lead::Source;
use crate::leaving::{Phase, Reason, COPY_US};
use crate::node::{
    self,
    signals::{Notice, Signals},
};
use crate::permits::Permits;
use crate::records::{Records, UNSAFE_BYTES_MAX};
use crate::setup::Setups;
use crate::stage::Staging;
use crate::time::seconds_us;
use crate::traces::FirstTraces;
use crate::work::piece::Piece;
use crate::work::Binding;

/// Records that no lead has acknowledged for so long go to the own journal.
const AWAY_US: u64 = 10_000_000;
const SAVE_AGAIN_US: u64 = 1_000_000;
/// A standing Ask is replaced at most so often.
const ASK_AGAIN_US: u64 = 100_000;
/// A lead that has work answers an Ask sooner.
const ANSWER_US: u64 = 50_000;
/// Records for the own journal are written at the latest when there are so many bytes of them.
const JOURNAL_BYTES: usize = 4 << 20;

/// What does not change after the start.
pub struct Post {
    pub fleet: PathBuf,
    pub manifest: Manifest,
    pub isolation: Isolation,
    /// Monotonic; when the batch system ends us, as told at the start.
    pub granted_us: Option<u64>,
    /// The same, as told last.
    pub ends_us: Option<u64>,
    /// Monotonic; no payload runs after this.
    pub deadline_us: Option<u64>,
}

impl Post {
    pub fn settings(&self) -> &Settings {
        &self.manifest.settings
    }
}

/// What occupancy is worked out from; wall clock.
#[derive(Default)]
pub struct Tally {
    pub busy_us: u64,
    pub first_us: Option<u64>,
    pub last_us: u64,
    /// Slots' lives: made, ended.
    pub lives: Vec<(u64, u64)>,
    pub made_us: HashMap<u32, u64>,
}

pub struct Pilot {
    pub(crate) post: Post,
    pub(crate) binding: Binding,
    pub(crate) node: Node,
    pub(crate) staging: Staging,
    /// Remarks that were recorded: each is told once.
    pub(crate) told: HashSet<String>,
    pub(crate) first_traces: FirstTraces,
    pub(crate) slots: BTreeMap<u32, Slot>,
    /// Children that were killed and have not ended, or still remove what slots left.
    pub(crate) lingering: Vec<i32>,
    pub(crate) records: Records,
    pub(crate) source: Source,
    pub(crate) keeper: Keeper,
    pub(crate) lead_process: Option<LeadProcess>,
    pub(crate) phase: Phase,
    pub(crate) tally: Tally,
    pub(crate) permits: Permits,
    pub(crate) signals: Signals,
    pub(crate) canceled: HashSet<u64>,
    /// Deaths of slots, and starts that failed, since the last Done.
    pub(crate) slot_deaths: u32,
    /// Events kept per job that is not over here, to know when its definition can go.
    pub(crate) settled: HashMap<u64, u64>,
    /// When the oldest record that waits to be sent came.
    pub(crate) flush_since_us: Option<u64>,
    pub(crate) asked: Option<(f64, u64)>,
    /// This connection has not carried all that was recorded before it: no Ask before that, since the lead takes what
    /// we neither hold nor have recorded by then for lost.
    pub(crate) catching_up: bool,
    pub(crate) worked_us: u64,
    pub(crate) was_busy: bool,
    pub(crate) safe_us: u64,
    saved_us: u64,
    pub(crate) stop_checked_us: u64,
    pub(crate) forgot: bool,
    pub(crate) slot_ready: bool,
    pub(crate) setups: Setups,
}

/// What a pilot is made of at its start.
pub struct Parts {
    pub post: Post,
    pub binding: Binding,
    pub node: Node,
    pub records: Records,
    pub source: Source,
    pub keeper: Keeper,
    pub permits: Permits,
    pub lead_process: Option<LeadProcess>,
    pub signals: Signals,
}

impl Pilot {
    pub fn new(parts: Parts) -> Self {
        let now_us = monotonic_us();
        let staging = Staging::new(parts.source.tells_sources(), &parts.post.settings().io);
        let Parts {
            post,
            binding,
            node,
            records,
            source,
            keeper,
            permits,
            lead_process,
            signals,
        } = parts;
        Pilot {
            post,
            binding,
            node,
            staging,
            told: HashSet::new(),
            first_traces: FirstTraces::default(),
            slots: BTreeMap::new(),
            lingering: Vec::new(),
            records,
            source,
            keeper,
            lead_process,
            phase: Phase::Working,
            tally: Tally::default(),
            permits,
            signals,
            canceled: HashSet::new(),
            slot_deaths: 0,
            settled: HashMap::new(),
            flush_since_us: Some(now_us),
            asked: None,
            catching_up: true,
            worked_us: now_us,
            was_busy: false,
            safe_us: now_us,
            saved_us: 0,
            stop_checked_us: now_us,
            forgot: true,
            slot_ready: true,
            setups: Setups::default(),
        }
    }

    /// Run until it is time to leave; the exit code.
    pub fn run(mut self) -> Result<i32, PilotError> {
        while !self.is_over(monotonic_us()) {
            if let Err(error) = self.turn() {
                // what ran must not be lost with what broke
                let cause = tidemill_wire::log::cause(&error);
                LOG.error("pilot.broke", &[("cause", &cause)]);
                self.phase = Phase::Draining {
                    reason: Reason::Error,
                    message: cause,
                    since_us: monotonic_us(),
                };
                break;
            }
        }
        self.end()
    }

    fn turn(&mut self) -> Result<(), PilotError> {
        self.wait()?;
        let now_us = monotonic_us();
        self.lingering.retain(|&pid| child::still_runs(pid));
        if let Some(notice) = self.signals.take() {
            self.obey(notice, now_us)?;
        }
        self.hear_node(now_us)?; // before slots: an image that died explains what payloads say
        self.hear_stage(now_us)?;
        self.hear_slots(now_us)?;
        self.talk(now_us)?;
        self.hear_setups(now_us)?;
        self.watch(now_us)?;
        let kept = self.retry_copies(now_us);
        self.tell_kept(kept, now_us)?;
        let idle = self.binding.is_waiting();
        let kept = self.keeper.sync_if_due(now_us, idle);
        self.tell_kept(kept, now_us)?;
        self.bind(now_us)?;
        self.pace_starts(now_us)?;
        self.hand_over(now_us)
    }

    /// Try again to copy outputs that found no room or were interrupted.
    pub(crate) fn retry_copies(&mut self, now_us: u64) -> Vec<Kept> {
        let stop = || self.phase.is_past(monotonic_us(), COPY_US) || self.signals.is_pending();
        self.keeper.retry(|slot| self.slots.get(&slot), &stop, now_us)
    }

    /// Sleep until something happens or is due.
    fn wait(&mut self) -> Result<(), PilotError> {
        let mut polls = vec![Poll::new(self.signals.fd(), fd::READABLE)];
        if let Some(lead) = self.source.fd() {
            let events = if self.source.wants_write() {
                fd::READABLE | fd::WRITABLE
            } else {
                fd::READABLE
            };
            polls.push(Poll::new(lead, events));
        }
        for slot in self.slots.values() {
            let events = if slot.wants_write() {
                fd::READABLE | fd::WRITABLE
            } else {
                fd::READABLE
            };
            polls.push(Poll::new(slot.fd(), events));
        }
        polls.extend(self.staging.poll());
        polls.extend(self.node.fds().map(|fd| Poll::new(fd, fd::READABLE)));
        let now_us = monotonic_us();
        let wait_us = self.due_us(now_us).saturating_sub(now_us);
        fd::poll(&mut polls, Some(wait_us)).map_err(|error| PilotError::system("poll")(error.source))?;
        Ok(())
    }

    fn due_us(&self, now_us: u64) -> u64 {
        let settings = self.post.settings();
        let due = [
            self.stop_due_us(),
            self.source.due_us(),
            self.setups.due_us(now_us),
            self.keeper.due_us(),
            self.phase.due_us(),
            self.phase.ends_us(
                self.post.deadline_us,
                self.source.dead_us(seconds_us(settings.dead_after_s)),
                seconds_us(settings.drain_s),
            ),
            self.source.beat_due_us(beat_us(settings)),
            self.flush_since_us.map(|since_us| since_us + self.flush_us()),
            self.lead_process.as_ref().map(|_| now_us + WATCH_US),
            (!self.records.all_safe() && !self.source.is_files())
                .then_some((self.safe_us + AWAY_US).max(self.saved_us + SAVE_AGAIN_US)),
            self.idle_due_us(),
            self.staging.stager.due_us().filter(|_| !self.source.answers()),
            self.staging.rests_until_us(),
            self.permits.due_us(),
            self.forget_due_us(),
        ];
        due.into_iter().flatten().min().unwrap_or(now_us).max(now_us)
    }

    fn obey(&mut self, notice: Notice, now_us: u64) -> Result<(), PilotError> {
        LOG.info("pilot.signalled", &[("notice", &format!("{notice:?}"))]);
        match notice {
            Notice::Yield => self.stop_now(Reason::Yield, now_us),
            Notice::Finish => self.drain(Reason::Walltime, "walltime is near", now_us),
        }
    }

    /// Bring work to slots.
    fn bind(&mut self, now_us: u64) -> Result<(), PilotError> {
        let ready = matches!(self.phase, Phase::Working) && self.records.unsafe_bytes() < UNSAFE_BYTES_MAX;
        if !ready || self.source.is_behind(now_us) {
            return Ok(());
        }
        self.binding.hold_outputs = self.keeper.holds(now_us);
        let unanswered = self.asked.is_some_and(|(_, at_us)| now_us >= at_us + ANSWER_US);
        self.binding.short = unanswered || !self.source.has_lead();
        let actions = self.binding.decide(now_us);
        let busy = !actions.is_empty();
        self.act(actions, now_us)?;
        if busy {
            let actions = self.binding.forget(false);
            self.act(actions, now_us)?;
        }
        Ok(())
    }

    /// Records to the lead or to the own journal; then what we could take.
    fn hand_over(&mut self, now_us: u64) -> Result<(), PilotError> {
        let flush_us = self.flush_us();
        let due = self
            .flush_since_us
            .is_some_and(|since_us| now_us >= since_us + flush_us);
        if self.source.is_files() {
            return self.keep_journal(due, now_us);
        }
        if due || (self.flush_since_us.is_some() && self.binding.is_waiting()) {
            self.records.seal()?;
            self.flush_since_us = None;
        }
        if (self.flush_since_us.is_none() || self.catching_up) && self.records.has_unsent() {
            if let Some(buffer) = self.source.records_buffer(now_us) {
                self.records.write_unsent(buffer, OUT_BYTES_MAX);
            }
        }
        if self.records.all_safe() {
            self.safe_us = now_us;
        } else if now_us >= self.safe_us + AWAY_US && now_us >= self.saved_us + SAVE_AGAIN_US {
            self.saved_us = now_us;
            self.save(now_us)?;
        }
        self.catching_up &= !self.source.has_lead() || self.records.has_unsent();
        self.ask(now_us)?;
        let beat_us = beat_us(self.post.settings());
        if self
            .source
            .beat_due_us(beat_us)
            .is_some_and(|due_us| now_us >= due_us)
        {
            self.source.send(
                &PilotMessage::Beat(Beat {
                    at_us: tidemill_wire::log::now_us(),
                }),
                now_us,
            )?;
        }
        for event in self.source.flush(now_us) {
            if let LinkEvent::Lost { cause } = event {
                LOG.warning("lead.lost", &[("cause", &cause)]);
            }
        }
        Ok(())
    }

    /// Without a lead: everything to the own journal, as often as outputs are flushed, and at once when there is
    /// nothing else to do.
    fn keep_journal(&mut self, due: bool, now_us: u64) -> Result<(), PilotError> {
        let idle = self.flush_since_us.is_some() && self.binding.is_waiting();
        let full = self.records.unsafe_bytes() > JOURNAL_BYTES;
        if (due || idle || full) && now_us >= self.saved_us + SAVE_AGAIN_US {
            self.saved_us = now_us;
            if self.save(now_us)? {
                self.flush_since_us = None;
            }
        }
        Ok(())
    }

    /// Records wait so long for others.
    fn flush_us(&self) -> u64 {
        let settings = self.post.settings();
        if self.source.is_files() {
            seconds_us(settings.output_flush_s).max(SAVE_AGAIN_US)
        } else {
            settings.record_flush_ms * 1000
        }
    }

    /// Write what is not safe to the own journal; a failure is told and tried again.
    pub(crate) fn save(&mut self, now_us: u64) -> Result<bool, PilotError> {
        self.records.seal()?;
        match self.records.save() {
            Ok(()) => {
                self.safe_us = now_us;
                LOG.info(
                    "records.saved",
                    &[("journal", &self.records.journal_path().display().to_string())],
                );
                Ok(true)
            }
            Err(error) => {
                LOG.warning("records.unsafe", &[("cause", &tidemill_wire::log::cause(&error))]);
                Ok(false)
            }
        }
    }

    fn ask(&mut self, now_us: u64) -> Result<(), PilotError> {
        let working = matches!(self.phase, Phase::Working) && self.source.has_lead() && self.slot_ready;
        let working = working && !self.setups.is_pending(); // nothing more before that is known
        if !working || self.catching_up || self.records.unsafe_bytes() >= UNSAFE_BYTES_MAX {
            return Ok(());
        }
        let queued_s = self.binding.queued_s();
        let wanted = match self.asked {
            // one long event fills the queue by its seconds, but one core only
            None => {
                queued_s <= (self.post.settings().queue_s / 2.0).max(self.binding.payload_s())
                    || self.binding.has_idle_core()
            }
            // the lead works with what we said last: say it again when it is far from the truth
            Some((told_s, at_us)) => queued_s < told_s / 2.0 && now_us >= at_us + ASK_AGAIN_US,
        };
        if !wanted {
            return Ok(());
        }
        self.asked = Some((queued_s, now_us));
        let ask = Ask {
            cores: self.binding.room().whole().0,
            memory_mb: self.binding.room().whole().1,
            devices: node::device_counts(self.binding.room()),
            remaining_s: self
                .post
                .deadline_us
                .map(|at_us| at_us.saturating_sub(now_us) as f64 / 1e6),
            queued_s,
        };
        self.source.send(&PilotMessage::Ask(ask), now_us)
    }

    /// Record that events go back to the lead.
    pub(crate) fn give_back(&mut self, piece: &Piece, reason: &str, now_us: u64) -> Result<(), PilotError> {
        if self.canceled.contains(&piece.job) {
            return Ok(());
        }
        self.add(
            Record::Returned(Returned {
                p: String::new(),
                s: 0,
                grant: piece.grant,
                job: piece.job,
                first: piece.first,
                count: piece.count,
                reason: reason.to_owned(),
            }),
            now_us,
        )
    }

    pub(crate) fn add(&mut self, record: Record, now_us: u64) -> Result<(), PilotError> {
        self.flush_since_us.get_or_insert(now_us);
        self.records.add(record)
    }
}

/// A sign of life is due when nothing else was sent for a third of `dead_after_s`, at most 10 s.
fn beat_us(settings: &Settings) -> u64 {
    seconds_us((settings.dead_after_s / 3.0).min(10.0))
}
