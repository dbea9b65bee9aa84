//! The slots of this node: starts them, exchanges messages with them, and ends them.
//!
//! Knows slots as processes, but not the work that they have: a caller that loses a slot takes its work back.

mod kills;
mod traces;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use tidemill_slot::{Failed, FromSlot, Isolated, Isolation, Network, Slot, SlotSpec, ToSlot};
use tidemill_sys::fd::{Poll, READABLE, WRITABLE};
use tidemill_sys::time::realtime_us;
use tidemill_sys::{child, signal};
use tidemill_wire::log;

use crate::error::{PilotError, LOG};
use crate::node::cgroups::Groups;
use kills::Kills;
use traces::FirstTraces;

/// Deaths of slots without a Done between them after which the node is not fit for work.
const DEATHS_MAX: u32 = 6;
const LIVES_MAX: usize = 100_000;

/// A slot that is gone.
#[derive(Debug)]
pub struct Lost {
    pub slot: u32,
    pub cause: String,
    /// Deaths in a row, this one included.
    pub deaths: u32,
}

/// What occupancy is worked out from; wall clock.
#[derive(Default)]
pub struct Occupancy {
    pub busy_us: u64,
    first_us: Option<u64>,
    last_us: u64,
    /// Slots' lives: made, ended.
    lives: Vec<(u64, u64)>,
    made_us: HashMap<u32, u64>,
}

impl Occupancy {
    /// A payload ran from then to then.
    pub fn count(&mut self, started_us: u64, ended_us: u64, wall_us: u64) {
        self.busy_us += wall_us;
        self.first_us = Some(
            self.first_us
                .map_or(started_us, |first_us| first_us.min(started_us)),
        );
        self.last_us = self.last_us.max(ended_us);
    }

    /// Slot time between the first start and the last end of a payload.
    pub fn slot_us(&self, now_us: u64) -> u64 {
        let Some(first_us) = self.first_us else {
            return 0;
        };
        let alive = self.made_us.values().map(|&made_us| (made_us, now_us));
        let lives = self.lives.iter().copied().chain(alive);
        lives
            .map(|(from, to)| to.min(self.last_us).saturating_sub(from.max(first_us)))
            .sum()
    }

    fn end(&mut self, slot: u32) {
        if let Some(made_us) = self.made_us.remove(&slot) {
            if self.lives.len() < LIVES_MAX {
                self.lives.push((made_us, realtime_us()));
            }
        }
    }
}

/// All slots of a pilot.
#[derive(Default)]
pub struct Slots {
    running: BTreeMap<u32, Slot>,
    /// Children that were killed and have not ended, or still remove what slots left.
    pub lingering: Vec<i32>,
    lost: Vec<Lost>,
    /// Deaths of slots, and starts that failed, since the last Done.
    deaths: u32,
    /// Slots that were made before there were directories of staged files: they do not see them, and read the originals.
    blind: BTreeSet<u32>,
    pub first_traces: FirstTraces,
    /// Where slots have groups with limits; None = nothing is delegated.
    groups: Option<Groups>,
    /// What the kernel has ended of each slot for its memory.
    kills: BTreeMap<u32, Kills>,
    pub occupancy: Occupancy,
}

impl Slots {
    /// Start a slot; what is to be said of it, None if it is lost.
    pub fn start(&mut self, spec: &SlotSpec, cores: u64) -> Option<String> {
        let slot = spec.index;
        let started = match tidemill_slot::start(spec) {
            Ok(started) => started,
            Err(error) => {
                self.died(slot, log::cause(&error));
                return None;
            }
        };
        if spec.stores.is_empty() {
            self.blind.insert(slot);
        }
        LOG.info(
            "slot.started",
            &[
                ("slot", &slot),
                ("pid", &started.pid()),
                ("cores", &cores),
                ("cpus", &spec.cpus),
            ],
        );
        self.confine(spec, started.pid());
        let note = match started.isolation() {
            (Isolated::Namespaces, note) => note.to_owned(),
            _ => String::new(), // the first record says why
        };
        self.running.insert(slot, started);
        self.occupancy.made_us.insert(slot, realtime_us());
        Some(note)
    }

    /// Slots that start from now on have limits in these groups.
    pub fn limit_by(&mut self, groups: Option<Groups>) {
        self.groups = groups;
    }

    fn confine(&mut self, spec: &SlotSpec, pid: i32) {
        let Some(groups) = &mut self.groups else { return };
        let confined = groups.confine(spec, pid);
        let kills = Kills::new(groups.kills(spec.index), realtime_us()); // of a group that is left of an earlier slot
        self.kills.insert(spec.index, kills);
        if let Err(error) = confined {
            LOG.warning(
                "slot.unlimited",
                &[("slot", &spec.index), ("cause", &error.to_string())],
            );
        }
    }

    /// A failure as it was: a payload that the kernel killed at the limit of its slot had too much memory. What the slot
    /// itself found, such as too long a run, stays.
    pub fn explained(&mut self, slot: u32, mut failed: Failed) -> Failed {
        self.count_kills(slot);
        let Some(kills) = self.kills.get_mut(&slot) else {
            return failed;
        };
        let was_killed = failed.failure == "payload" && failed.signal == Some(signal::KILL);
        if was_killed && kills.take((failed.at_us.saturating_sub(failed.wall_us), failed.at_us)) {
            failed.failure = String::from("memory");
            failed.message =
                String::from("the kernel ended it at the memory limit of its slot, files in flight included");
        }
        failed
    }

    /// A slot has reported an end: the kernel's kills up to now cannot belong to a later payload.
    pub fn count_kills(&mut self, slot: u32) {
        if let (Some(groups), Some(kills)) = (&self.groups, self.kills.get_mut(&slot)) {
            kills.count(groups.kills(slot), realtime_us());
        }
    }

    pub fn get(&self, slot: u32) -> Option<&Slot> {
        self.running.get(&slot)
    }

    /// Whether staged files are hidden from it.
    pub fn is_blind(&self, slot: u32) -> bool {
        self.blind.contains(&slot)
    }

    pub fn polls(&self) -> impl Iterator<Item = Poll> + '_ {
        let events = |slot: &Slot| READABLE | if slot.wants_write() { WRITABLE } else { 0 };
        self.running
            .values()
            .map(move |slot| Poll::new(slot.fd(), events(slot)))
    }

    /// Send to a slot; one that cannot be reached is lost. One that died a moment ago hears nothing.
    pub fn tell(&mut self, slot: u32, message: &ToSlot) {
        if let Some(Err(error)) = self.running.get_mut(&slot).map(|slot| slot.send(message)) {
            self.lose(slot, log::cause(&error));
        }
    }

    /// What a slot has said since, and the cause for `lose` when it is gone.
    pub fn hear(&mut self, slot: u32) -> (Vec<FromSlot>, Option<String>) {
        let mut told = Vec::new();
        let Some(source) = self.running.get_mut(&slot) else {
            return (told, None);
        };
        let written = if source.wants_write() {
            source.flush()
        } else {
            Ok(())
        };
        let gone = match written.and_then(|()| source.receive(&mut told)) {
            Ok(true) => None,
            Ok(false) => Some(String::from("it ended")),
            Err(error) => Some(log::cause(&error)),
        };
        (told, gone)
    }

    /// A slot has died.
    pub fn lose(&mut self, slot: u32, cause: String) {
        if let Some(dead) = self.running.remove(&slot) {
            self.died(slot, cause);
            self.kill(dead);
        }
    }

    fn died(&mut self, slot: u32, cause: String) {
        self.deaths += 1;
        let deaths = self.deaths;
        LOG.warning(
            "slot.lost",
            &[("slot", &slot), ("cause", &cause), ("deaths", &deaths)],
        );
        self.close(slot);
        self.lost.push(Lost { slot, cause, deaths });
    }

    /// The slots that were lost since the last call: their work is to be taken back.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
    }

    /// A slot has done something.
    pub fn works(&mut self) {
        self.deaths = 0;
    }

    pub fn keep_dying(&self) -> bool {
        self.deaths >= DEATHS_MAX
    }

    /// Kill a slot that has no work.
    pub fn end(&mut self, slot: u32) {
        if let Some(ended) = self.running.remove(&slot) {
            self.kill(ended);
            LOG.info("slot.ended", &[("slot", &slot)]);
        }
        self.close(slot);
    }

    pub fn end_all(&mut self) {
        for (_, slot) in std::mem::take(&mut self.running) {
            self.kill(slot);
        }
    }

    /// Kill a slot; what is not over at once is left to itself.
    fn kill(&mut self, slot: Slot) {
        let index = slot.index();
        let left = slot.kill();
        if !left.is_empty() {
            LOG.warning("slot.lingers", &[("slot", &index), ("pids", &left)]);
        }
        self.lingering.extend(left);
    }

    fn close(&mut self, slot: u32) {
        self.first_traces.gone(slot);
        self.blind.remove(&slot);
        self.kills.remove(&slot);
        if let Some(groups) = &mut self.groups {
            groups.leave(slot);
        }
        self.occupancy.end(slot);
    }

    pub fn reap(&mut self) {
        self.lingering.retain(|&pid| child::still_runs(pid));
        if let Some(groups) = &mut self.groups {
            groups.sweep();
        }
    }
}

/// What payloads see of the network. A word that is not known here, as an agent of a later version may use, is the
/// narrowest.
pub fn network(word: Option<&str>) -> Network {
    word.map_or(Network::Open, |word| {
        Network::parse(word).unwrap_or(Network::Closed)
    })
}

/// Isolation of this node's slots, from one that is started and ended at once: `required` fails here and not under way.
pub fn probe(
    isolation: Isolation,
    network: Network,
    directory: Option<PathBuf>,
) -> Result<(String, String), PilotError> {
    let spec = SlotSpec {
        scratch_mb: 1,
        isolation,
        network,
        directory,
        ..SlotSpec::default()
    };
    let slot: Slot = tidemill_slot::start(&spec).map_err(|error| PilotError::Slot {
        message: log::cause(&error),
    })?;
    let (isolated, note) = slot.isolation();
    let answer = (isolated.name().to_owned(), note.to_owned());
    slot.kill();
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: &str = "oom 1\noom_kill 1\n";

    /// The failure class of a failure that slot 3 reports once the kernel has counted `events`.
    fn explained(events: &str, failure: &str, number: i32) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut slots = Slots::default();
        slots.limit_by(Some(Groups::of_files(dir.path())));
        slots.kills.insert(3, Kills::new(0, realtime_us()));
        Groups::write_events(dir.path(), 3, events);
        let failed = Failed {
            failure: failure.to_owned(),
            signal: Some(number),
            wall_us: 1_000_000,
            at_us: realtime_us(),
            ..Failed::default()
        };
        slots.explained(3, failed).failure
    }

    #[test]
    fn only_what_the_kernel_ended_at_the_limit_of_its_slot_had_too_much_memory() {
        assert_eq!(explained(LIMIT, "payload", signal::KILL), "memory");
        assert_eq!(
            explained(LIMIT, "walltime", signal::KILL),
            "walltime",
            "the slot ended it"
        );
        assert_eq!(explained(LIMIT, "payload", signal::TERM), "payload");
        assert_eq!(
            explained("oom 0\noom_kill 1\n", "payload", signal::KILL),
            "payload"
        );
        assert_eq!(explained("", "payload", signal::KILL), "payload");
    }
}
