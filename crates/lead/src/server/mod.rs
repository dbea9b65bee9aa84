//! The loop: sockets, work files, journal and ledger meet here and nowhere else. One turn is bounded.

mod connection;
mod fleet_files;
mod monitor;
mod peers;
mod permits;
mod protocol;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use tidemill_sys::fd::{poll, Poll, READABLE, WRITABLE};
use tidemill_sys::time::monotonic_us;
use tidemill_sys::{machine, signal};
use tidemill_wire::log::Log;
use tidemill_wire::{
    handshake, Ack, AliveFile, Beat, Drain, LeadAddress, LeadMessage, Manifest, Settings, Welcome, FORMAT,
};

use crate::address;
use crate::error::LeadError;
use crate::journal::commit::Commit;
use crate::journal::replay::Journals;
use crate::ledger::{Ledger, PilotKey};
use crate::server::connection::{Connection, Peer};
use crate::server::monitor::Monitor;
use crate::server::peers::Refusals;
use crate::server::permits::Pacing;
use crate::sources::Sources;
use tidemill_wire::WorkReader;

/// Most connections at once. At this number, the oldest unauthenticated connection makes room for the next one; if all
/// belong to pilots, more wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 4096;
/// With more connections than this, each turn pauses to collect input, instead of handling one line per `poll` of all.
const CROWD: usize = 64;
const CROWD_PAUSE_US: u64 = 2_000;
const TICK_US: u64 = 250_000;
const BEAT_US_MAX: u64 = 10_000_000;
/// Heartbeats of silence after which a pilot counts as gone.
const SILENT_BEATS: u64 = 4;
/// Longest time after a restart that pilots that seem alive have to come back before work is given out.
const HOLD_US_MAX: u64 = 10_000_000;
const LISTENER: usize = 0;
const SIGNALS: usize = 2;
const FIRST: usize = 3;

/// Why the lead left its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Closed, all pilots have left, everything is on disk.
    Finished,
    /// The agent has been silent for too long, and all pilots have left.
    Abandoned,
    /// A newer lead has taken over.
    Superseded,
    /// SIGTERM.
    Asked,
}

/// How often the file system is queried.
pub(crate) struct Intervals {
    /// Work files, while a pilot waits for work.
    pub(crate) hungry_us: u64,
    /// Work files, while no pilot waits: they may hold orders.
    pub(crate) work_us: u64,
    pub(crate) stop_us: u64,
    pub(crate) superseded_us: u64,
}

/// When the file system was last asked for what a pilot that comes must not miss.
#[derive(Default)]
pub(crate) struct Looks {
    /// No work file was left to read.
    pub(crate) work_at: u64,
    /// A pilot's coming made us look for work.
    pub(crate) greeted_at: u64,
    /// The journals of other leads were read.
    pub(crate) leads_at: u64,
}

pub struct Lead {
    pub(crate) fleet: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) secret: String,
    pub(crate) incarnation: u64,
    pub(crate) listener: TcpListener,
    pub(crate) accept_again_at: u64,
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) open: usize,
    pub(crate) greeting_bytes: usize,
    pub(crate) refused: u64,
    pub(crate) refusals: Refusals,
    pub(crate) connection_of: Vec<Option<usize>>,
    /// Pilots that asked, in that order, once each; some have been served since.
    pub(crate) asking: VecDeque<PilotKey>,
    pub(crate) in_line: Vec<bool>,
    pub(crate) synced: Vec<u64>,
    pub(crate) ledger: Ledger,
    pub(crate) sources: Sources,
    pub(crate) journals: Journals,
    pub(crate) commit: Commit,
    pub(crate) work: WorkReader,
    pub(crate) work_problem: Option<String>,
    pub(crate) intervals: Intervals,
    pub(crate) pacing: Pacing,
    pub(crate) monitor: Monitor,
    pub(crate) work_at: u64,
    pub(crate) looks: Looks,
    pub(crate) stop_at: u64,
    pub(crate) superseded_at: u64,
    tick_at: u64,
    pub(crate) stop_paths: Vec<PathBuf>,
    pub(crate) stopped: bool,
    pub(crate) alive: AliveFile,
    /// The agent is silent: nothing is handed out, and pilots are ordered to leave.
    pub(crate) abandoned: bool,
    pub(crate) superseded: bool,
    pub(crate) asked: bool,
    signals: Option<OwnedFd>,
    pub(crate) drain_told: bool,
    pub(crate) quiet_since: u64,
    pub(crate) log: Log,
    polled: Vec<Poll>,
    polled_slots: Vec<usize>,
}

impl Lead {
    /// Read the fleet's files, take an incarnation, listen, and say where.
    pub fn start(fleet: &Path, log: Log) -> Result<Self, LeadError> {
        let manifest = address::read_manifest(fleet)?;
        let secret = handshake::read_secret(&fleet.join("secret"))?;
        let now = monotonic_us();
        let mut ledger = Ledger::default();
        let (journals, incarnation, writer) = Journals::replay(fleet, &mut ledger, log)?;
        let flush_us = manifest.settings.record_flush_ms.max(1) * 1000;
        let commit = Commit::new(writer, flush_us, log)?;
        let listener = address::listen_again(&manifest.listen, fleet)?;
        let beside = manifest.lead == "beside";
        let dead_after_us = seconds_us(manifest.settings.dead_after_s);
        let readers_max = usize::try_from(manifest.settings.stage_readers).unwrap_or(1);
        let mut lead = Lead {
            sources: Sources::new(manifest.settings.peers, readers_max),
            fleet: fleet.to_owned(),
            work: WorkReader::new(fleet),
            secret,
            incarnation,
            listener,
            accept_again_at: 0,
            connections: Vec::new(),
            open: 0,
            greeting_bytes: 0,
            refused: 0,
            refusals: Refusals::default(),
            connection_of: Vec::new(),
            asking: VecDeque::new(),
            in_line: Vec::new(),
            synced: Vec::new(),
            ledger,
            journals,
            commit,
            work_problem: None,
            intervals: Intervals {
                hungry_us: if beside { 50_000 } else { 2_000_000 },
                work_us: if beside { 500_000 } else { 2_000_000 },
                stop_us: 2_000_000,
                superseded_us: if beside { 2_000_000 } else { 5_000_000 },
            },
            pacing: Pacing::default(),
            monitor: Monitor::new(fleet, incarnation, log),
            work_at: 0,
            looks: Looks::default(),
            stop_at: 0,
            superseded_at: now + 1_000_000,
            tick_at: 0,
            stop_paths: stop_paths(fleet, &manifest.settings),
            stopped: false,
            alive: AliveFile::new(fleet, dead_after_us, now),
            abandoned: false,
            superseded: false,
            asked: false,
            signals: None,
            drain_told: false,
            quiet_since: now,
            log,
            polled: Vec::new(),
            polled_slots: Vec::new(),
            manifest,
        };
        lead.know_pilots();
        lead.set_budget(&lead.manifest.settings.io.clone(), now);
        while lead.work_at <= now {
            lead.look_for_work(now);
        }
        let hold_us = seconds_us(lead.manifest.settings.pilot_grace_s).min(HOLD_US_MAX);
        lead.ledger.start(now + hold_us);
        lead.announce()?;
        Ok(lead)
    }

    /// Leave when one of the signals of this descriptor comes.
    pub fn leave_on(&mut self, signals: OwnedFd) {
        self.signals = Some(signals);
    }

    /// The number of this start of a lead.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, LeadError> {
        self.listener.local_addr().map_err(|source| LeadError::Socket {
            operation: "get the address of",
            address: self.manifest.listen.clone(),
            source,
        })
    }

    fn announce(&mut self) -> Result<(), LeadError> {
        let address = self.address()?;
        let host = address::host_for_others(address.ip(), machine::outbound_address);
        let told = LeadAddress {
            format: FORMAT,
            incarnation: self.incarnation,
            host,
            port: u64::from(address.port()),
            pid: u64::from(std::process::id()),
        };
        if address::publish(&self.fleet, &told)? {
            self.log.info(
                "lead.listens",
                &[
                    ("fleet", &self.manifest.fleet),
                    ("incarnation", &told.incarnation),
                    ("host", &told.host),
                    ("port", &told.port),
                    ("open_events", &self.ledger.open_events()),
                    ("pilots_known", &self.ledger.pilots().len()),
                ],
            );
        }
        Ok(())
    }

    /// One bounded turn: wait for at most `wait_us`, handle what came. Some: leave the loop.
    pub fn turn(&mut self, wait_us: u64) -> Result<Option<Exit>, LeadError> {
        self.wait(wait_us)?;
        let now = monotonic_us();
        if self.polled[SIGNALS].readable() {
            self.asked |= self
                .signals
                .as_ref()
                .and_then(|fd| signal::take(fd.as_fd()))
                .is_some();
        }
        if self.polled[LISTENER].readable() {
            self.accept(now);
        }
        for k in FIRST..self.polled.len() {
            if self.polled[k].readable() {
                self.receive(self.polled_slots[k - FIRST], now);
            }
        }
        self.look_at_files(now);
        if now >= self.tick_at {
            self.tick_at = now + TICK_US;
            self.tick(now);
        }
        self.serve_all(now);
        self.permit(now);
        self.hurry(now);
        for (key, number) in self.commit.step(now) {
            self.acknowledge(key, number, now);
        }
        self.flush_all(now);
        if self.open > CROWD {
            poll(&mut [], Some(CROWD_PAUSE_US))?;
        }
        Ok(self.exit_reason(now))
    }

    fn wait(&mut self, wait_us: u64) -> Result<(), LeadError> {
        let now = monotonic_us();
        let soonest = [
            Some(self.work_at).filter(|_| !self.ledger.is_closed()),
            Some(self.tick_at),
            self.commit.due(),
            self.pacing.due,
        ];
        let soonest = soonest.into_iter().flatten().min().unwrap_or(now + TICK_US);
        let full = self.commit.is_full();
        self.polled.clear();
        self.polled_slots.clear();
        let accepting = now >= self.accept_again_at && self.has_room(now);
        self.polled.push(Poll::new(
            self.listener.as_fd(),
            if accepting { READABLE } else { 0 },
        ));
        self.polled.push(Poll::new(self.commit.wake_fd(), READABLE));
        self.polled.push(match &self.signals {
            Some(fd) => Poll::new(fd.as_fd(), READABLE),
            None => Poll::raw(-1, 0),
        });
        for (slot, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            let mut events = if full && connection.pilot().is_some() {
                0
            } else {
                READABLE
            };
            if connection.out.pending() > 0 {
                events |= WRITABLE;
            }
            self.polled.push(Poll::new(connection.stream.as_fd(), events));
            self.polled_slots.push(slot);
        }
        poll(&mut self.polled, Some(wait_us.min(soonest.saturating_sub(now))))?;
        Ok(())
    }

    fn tick(&mut self, now: u64) {
        self.monitor.step(now);
        self.monitor.show_at_work(now, || self.ledger.at_work());
        if !self.asking.is_empty() && self.ledger.free_events() > 0 {
            self.ledger.touch();
        }
        match self.journals.catch_up_gaps(&mut self.ledger, now) {
            Ok(true) => self.know_pilots(),
            Ok(false) => {}
            Err(error) => self
                .log
                .error("journal.unread", &[("error", &tidemill_wire::log::cause(&error))]),
        }
        let grace_us = seconds_us(self.manifest.settings.pilot_grace_s);
        for key in self.ledger.tick(now, grace_us) {
            let pilot = &self.ledger.pilot(key).id;
            self.log.warning(
                "pilot.lost",
                &[
                    ("pilot", pilot),
                    ("grace_s", &self.manifest.settings.pilot_grace_s),
                ],
            );
        }
        let answers = self.sources.tick(now);
        self.tell_sources(answers, None, now);
        let deaf = self.commit.is_full();
        let dead_after_us = seconds_us(self.manifest.settings.dead_after_s);
        let beat_us = (dead_after_us / 3).clamp(100_000, BEAT_US_MAX);
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot] else {
                continue;
            };
            if deaf {
                connection.heard_at = now; // we do not listen: it is not silent
            }
            let silent_us = now.saturating_sub(connection.heard_at);
            match &connection.peer {
                Peer::Unknown { until, .. } if now >= *until => {
                    self.close(slot, "it has not proved who it is in time", now);
                }
                Peer::Pilot(_) if silent_us > SILENT_BEATS * beat_us => {
                    self.close(slot, "it is silent", now);
                }
                Peer::Pilot(_) if now.saturating_sub(connection.sent_at) >= beat_us => {
                    let beat = Beat {
                        at_us: tidemill_wire::log::now_us(),
                    };
                    connection.send(&LeadMessage::Beat(beat), now, self.log);
                }
                _ => {}
            }
        }
    }

    fn serve_all(&mut self, now: u64) {
        let mut left = self.ledger.take_changed();
        for _ in 0..self.asking.len() {
            if left == 0 {
                return;
            }
            let Some(key) = self.asking.pop_front() else {
                return;
            };
            self.serve(key, now);
            self.in_line[key] = self.ledger.pilot(key).asks();
            if self.in_line[key] {
                self.asking.push_back(key);
            } else {
                left -= 1;
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, key: PilotKey, number: u64, now: u64) {
        self.synced[key] = self.synced[key].max(number);
        let acked = self.synced[key];
        if let Some(connection) = self.connection_of[key].and_then(|slot| self.connections[slot].as_mut()) {
            connection.send(&LeadMessage::Ack(Ack { acked }), now, self.log);
        }
    }

    fn flush_all(&mut self, now: u64) {
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot] else {
                continue;
            };
            if connection.out.pending() > 0 {
                if let Err(reason) = connection.flush() {
                    self.close(slot, &reason, now);
                }
            }
        }
    }

    pub(crate) fn tell_all_to_drain(&mut self, reason: &str, now: u64) {
        for connection in self
            .connections
            .iter_mut()
            .flatten()
            .filter(|each| each.pilot().is_some())
        {
            connection.send(
                &LeadMessage::Drain(Drain {
                    reason: reason.to_owned(),
                }),
                now,
                self.log,
            );
        }
    }

    pub(crate) fn welcome(connection: &mut Connection, proof: String, (acked, now): (u64, u64), log: Log) {
        connection.send(&LeadMessage::Welcome(Welcome { proof, acked }), now, log);
    }

    pub(crate) fn pilots_connected(&self) -> usize {
        self.connection_of.iter().flatten().count()
    }

    /// Everything that was received is on disk; nothing more is accepted.
    pub fn leave(&mut self, exit: Exit) -> Result<(), LeadError> {
        self.commit.sync()?;
        self.log.info(
            "lead.left",
            &[
                ("fleet", &self.manifest.fleet),
                ("incarnation", &self.incarnation),
                ("reason", &format!("{exit:?}").to_lowercase()),
                ("open_events", &self.ledger.open_events()),
            ],
        );
        Ok(())
    }
}

fn stop_paths(fleet: &Path, settings: &Settings) -> Vec<PathBuf> {
    let agreed = settings.stop_files.iter().map(PathBuf::from);
    std::iter::once(fleet.join("STOP")).chain(agreed).collect()
}

pub(crate) fn seconds_us(value: f64) -> u64 {
    (value.max(0.0) * 1e6) as u64
}
