//! From the command line to a ready pilot, with at most 10 look-ups on the shared file system.

use std::path::Path;

use tidemill_budget::Budget;
use tidemill_slot::{Isolated, Isolation};
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::log::cause;
use tidemill_wire::{handshake, Ended, Manifest, Record, Settings, Started};

use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::keep::{Bundle, BundleTarget, Keeper, Origin};
use crate::lead::board::Board;
use crate::lead::link::{Identity, Link};
use crate::lead::mailbox::Mailbox;
use crate::lead::{read_fleet_file, WorkSource};
use crate::life::{Life, Reason};
use crate::monitor::Monitor;
use crate::node::cgroups::Groups;
use crate::node::kernel_texts::KernelTexts;
use crate::node::place::Affinity;
use crate::node::room::Room;
use crate::node::signals::Signals;
use crate::node::{self, facts, spill};
use crate::options::Options;
use crate::permits::usage::UsageMeter;
use crate::permits::Permits;
use crate::pilot::{Parts, Pilot};
use crate::report::{Records, Report};
use crate::slots::{self, Slots};
use crate::supply::Supply;
use crate::time::seconds_us;
use crate::work::Binding;

const INCARNATIONS_MAX: u64 = 10_000;

/// Read what there is to know and prepare everything; nothing has been asked for yet. None: it has left at once.
pub fn start(options: &Options) -> Result<Option<Pilot>, PilotError> {
    let signals = Signals::block()?;
    let kernel = node::close_to_tracers()?;
    let mut facts = facts::read(&node::environ())?;
    let rank = options.rank.unwrap_or(facts.rank);
    if is_late(options) {
        leave_late(options, rank, facts.node);
        return Ok(None);
    }
    let path = options.fleet.join("manifest.json");
    let manifest = read_fleet_file(&path, "the fleet's manifest", |read: &Manifest| read.format)?;
    let (isolation, affinity) = modes(&path, &manifest)?;
    let network = slots::network(manifest.settings.network.as_deref());
    let settings = manifest.settings;
    let secret = handshake::read_secret(&options.fleet.join("secret"))?;
    node::add_gpus(&mut facts, &options.machine_root, settings.gpus_per_node)?;
    let slots = limited_slots(&settings, &mut facts.notes);
    let room = node::room(options, &facts, affinity)?;
    let (cores, memory_mb, _) = room.whole().clone();
    let now_us = monotonic_us();
    let ends_us = end_us(options, facts.ends_at_s, now_us, realtime_us());
    let (pilot, incarnation, bundle) = claim(options, rank, settings.bundle_bytes_max)?;
    let node = facts.node.unwrap_or_else(node::host);
    let files = manifest.lead == "none";
    let mut records = journal(&pilot, options, files);
    let probed = slots::probe(isolation, network, settings.scratch.as_ref().map(Into::into));
    let mut started = first_record(options, &pilot, rank, &node, &probed);
    (started.cores, started.memory_mb) = (cores, memory_mb);
    let mut notes = facts.notes;
    notes.extend(tidemill_sys::landlock::without_scopes());
    started.note = joined(std::mem::take(&mut started.note), notes);
    let isolated = started.isolation == Isolated::Namespaces.name();
    introduce(&mut records, started)?;
    if let Err(error) = probed {
        give_up(&mut records, (Reason::Error, cause(&error)))?;
        return Err(error);
    }
    if files && rank != 0 {
        let message = "without a lead, the pilot of rank 0 alone gets work";
        give_up(&mut records, (Reason::Idle, message.to_owned()))?;
        return Ok(None);
    }
    let identity = Identity {
        pilot,
        allocation: options.allocation.clone(),
        rank,
        node: node.clone(),
        secret,
    };
    let parts = parts(options, &settings, &identity, (bundle, kernel, files, now_us))?;
    let lead = source(options, &settings, identity, (files, incarnation, now_us))?;
    let supply = Supply::new(&settings, lead.tells_sources(), isolated);
    let cx = Context {
        now_us,
        node,
        life: Life::new(&options.fleet, &settings, ends_us, now_us),
        report: Report::new(records, &settings, files, now_us),
        lead,
        work: binding(room, &settings),
        slots,
        signals,
        isolation,
        settings,
    };
    Ok(Some(Pilot::new(cx, supply, parts)))
}

fn parts(
    options: &Options,
    settings: &Settings,
    who: &Identity,
    (bundle, kernel, files, now_us): (Bundle, KernelTexts, bool, u64),
) -> Result<Parts, PilotError> {
    Ok(Parts {
        monitor: Monitor::start(
            settings,
            (&who.node, &who.pilot),
            &options.fleet,
            (&kernel, files, now_us),
        )?,
        keep: keeper(options, settings, (who.pilot.clone(), bundle))?,
        permits: permits(settings, kernel, files, now_us),
    })
}

/// No slots yet; those to come get limits by control groups where such are delegated, and no payload spans nodes. What is
/// noted of the node is logged.
fn limited_slots(settings: &Settings, notes: &mut Vec<String>) -> Slots {
    let mut slots = Slots::default();
    if settings.scratch.is_none() {
        match Groups::find() {
            Ok(groups) => slots.limit_by(groups),
            Err(why) => notes.push(why),
        }
    }
    for note in notes {
        LOG.warning("node.note", &[("note", note)]);
    }
    slots
}

/// Outputs of one payload where the fleet's manifest, of an older version, does not say it.
const OUTPUT_BYTES_MAX: u64 = 20_000_000_000;
const STORAGE_PATIENCE_S: f64 = 300.0;

fn keeper(options: &Options, settings: &Settings, own: (String, Bundle)) -> Result<Keeper, PilotError> {
    let (pilot, bundle) = own;
    let directory = options.fleet.join("bundle");
    let place = BundleTarget {
        area: area(&directory),
        output_bytes_max: settings.output_bytes_max.unwrap_or(OUTPUT_BYTES_MAX),
        origin: Origin {
            directory,
            pilot,
            bytes_max: settings.bundle_bytes_max,
        },
    };
    let patience_s = settings.storage_patience_s.unwrap_or(STORAGE_PATIENCE_S);
    let times = (seconds_us(settings.output_flush_s), seconds_us(patience_s));
    Keeper::new(bundle, place, times)
}

/// The file system of a directory in words. Asks the kernel's table only: the file system itself may hang later.
fn area(directory: &Path) -> String {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = tidemill_sys::mountinfo::mounts(&text).into_iter();
    let here = mounts.filter(|mount| directory.starts_with(&mount.point));
    match here.max_by_key(|mount| mount.point.len()) {
        Some(mount) => format!("{} `{}` at `{}`", mount.kind, mount.source, mount.point),
        None => String::from("unknown file system"),
    }
}

/// Where work comes from: the fleet's lead, or files.
fn source(
    options: &Options,
    settings: &Settings,
    identity: Identity,
    (files, incarnation, now_us): (bool, u64, u64),
) -> Result<WorkSource, PilotError> {
    if files {
        by_files(options, settings, &identity, (incarnation, now_us))
    } else {
        Ok(WorkSource::Lead(Link::new(&options.fleet, identity, now_us)))
    }
}

/// The source without a lead: work and knowledge of other nodes come from files only.
fn by_files(
    options: &Options,
    settings: &Settings,
    who: &Identity,
    (incarnation, now_us): (u64, u64),
) -> Result<WorkSource, PilotError> {
    // a restart of the same allocation does not take the work that its predecessor was given
    let first = (incarnation == 1).then(|| options.work_from.unwrap_or(1));
    let mailbox = Mailbox::open(&options.fleet, &options.allocation, settings, first, now_us)?;
    let board = settings
        .peers
        .then(|| Board::new(&options.fleet, &who.pilot, &who.secret));
    Ok(WorkSource::Files(mailbox, board))
}

fn joined(first: String, more: Vec<String>) -> String {
    let said = std::iter::once(first).chain(more);
    said.filter(|each| !each.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Without a lead, the manifest states the share of each allocation.
fn permits(settings: &Settings, kernel: KernelTexts, files: bool, now_us: u64) -> Permits {
    let own = files.then(|| {
        let mut budget = Budget::default();
        budget.set(&settings.io, now_us);
        budget
    });
    Permits::new(own, UsageMeter::new(kernel, &settings.io, now_us), now_us)
}

/// The binding, with the site's settings for memory and for the directory used besides it.
fn binding(room: Room, settings: &Settings) -> Binding {
    let mut binding = Binding::new(room);
    let spans_nodes = settings.scratch.is_some();
    binding.set_store(settings.store_mb, spans_nodes);
    let (free_mb, told) = spill::look(settings.spill.as_deref().filter(|_| !spans_nodes));
    if free_mb == 0 && settings.spill.is_some() {
        LOG.warning("spill.useless", &[("cause", &told)]);
    }
    binding.set_spill(free_mb, told);
    binding
}

fn journal(pilot: &str, options: &Options, files: bool) -> Records {
    let records = Records::new(pilot, &options.fleet.join("journal"));
    if files {
        records.without_lead()
    } else {
        records
    }
}

fn first_record(
    options: &Options,
    pilot: &str,
    rank: u64,
    node: &str,
    probed: &Result<(String, String), PilotError>,
) -> Started {
    let (isolation, note) = match probed {
        Ok((isolation, note)) => (isolation.clone(), note.clone()),
        Err(error) => (String::from("none"), cause(error)),
    };
    Started {
        p: pilot.to_owned(),
        allocation: options.allocation.clone(),
        node: node.to_owned(),
        rank,
        isolation,
        note,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_us: realtime_us(),
        ..Started::default()
    }
}

fn introduce(records: &mut Records, started: Started) -> Result<(), PilotError> {
    LOG.info(
        "pilot.started",
        &[
            ("pilot", &started.p),
            ("node", &started.node),
            ("cores", &started.cores),
            ("memory_mb", &started.memory_mb),
            ("isolation", &started.isolation),
        ],
    );
    records.add(Record::Started(started))
}

fn is_late(options: &Options) -> bool {
    let now_s = realtime_us() as f64 / 1e6;
    options.start_by_s.is_some_and(|start_by_s| now_s > start_by_s)
}

/// The agent that asked for this allocation may be dead, and its fleet gone: say why we leave if that is cheap (three
/// small files), and leave in any case.
fn leave_late(options: &Options, rank: u64, node: Option<String>) {
    let tell = || -> Result<(), PilotError> {
        let (pilot, _, _) = claim(options, rank, u64::MAX)?;
        let mut records = journal(&pilot, options, true);
        let node = node.unwrap_or_else(node::host);
        let unprobed = Ok((String::from("none"), String::new()));
        let started = first_record(options, &pilot, rank, &node, &unprobed);
        records.add(Record::Started(started))?;
        give_up(&mut records, (Reason::Late, String::new()))
    };
    LOG.info(
        "pilot.late",
        &[("start_by_s", &options.start_by_s.unwrap_or(0.0))],
    );
    if let Err(error) = tell() {
        LOG.warning("pilot.late_untold", &[("cause", &cause(&error))]);
    }
}

/// We leave before we have begun: say why where the agent finds it, without waiting for a lead.
fn give_up(records: &mut Records, (reason, message): (Reason, String)) -> Result<(), PilotError> {
    records.add(Record::Ended(Ended {
        reason: reason.word().to_owned(),
        message,
        at_us: realtime_us(),
        ..Ended::default()
    }))?;
    records.save_here()
}

fn modes(path: &Path, manifest: &Manifest) -> Result<(Isolation, Affinity), PilotError> {
    let wrong = |key: &str, value: &str, known: &str| PilotError::Usage {
        message: format!(
            "`{}`: settings.{key} is `{value}`, expected {known}",
            path.display()
        ),
    };
    let settings = &manifest.settings;
    let isolation = match settings.isolation.as_str() {
        "required" => Isolation::Required,
        "preferred" => Isolation::Preferred,
        "off" => Isolation::Off,
        other => return Err(wrong("isolation", other, "`required`, `preferred` or `off`")),
    };
    let affinity = Affinity::parse(&settings.affinity).ok_or_else(|| {
        wrong(
            "affinity",
            &settings.affinity,
            "`spread`, `compact`, `core` or `none`",
        )
    })?;
    match manifest.lead.as_str() {
        "beside" | "none" => Ok((isolation, affinity)),
        other => Err(PilotError::Usage {
            message: format!(
                "`{}`: lead is `{other}`, expected `beside` or `none`",
                path.display()
            ),
        }),
    }
}

/// A name that no other start of a pilot has: the pilot that creates the bundle file owns it, also when the batch
/// system restarts the same allocation.
fn claim(options: &Options, rank: u64, bytes_max: u64) -> Result<(String, u64, Bundle), PilotError> {
    let directory = options.fleet.join("bundle");
    let name = |incarnation: u64| format!("{}.r{rank}.i{incarnation}", options.allocation);
    let range = match options.incarnation {
        Some(incarnation) => incarnation..=incarnation,
        None => 1..=INCARNATIONS_MAX,
    };
    let last = *range.end();
    for incarnation in range {
        let pilot = name(incarnation);
        if let Some(bundle) = Bundle::create(&directory, &pilot, bytes_max)? {
            return Ok((pilot, incarnation, bundle));
        }
    }
    Err(PilotError::Usage {
        message: format!(
            "pilot `{}` has been started before: its bundle exists in `{}`",
            name(last),
            directory.display()
        ),
    })
}

/// Monotonic end of the allocation.
fn end_us(options: &Options, ends_at_s: Option<u64>, now_us: u64, wall_us: u64) -> Option<u64> {
    if let Some(wall_s) = options.wall_s {
        return Some(now_us + seconds_us(wall_s));
    }
    let ends_at_s = options.ends_at_s.or(ends_at_s.map(|at_s| at_s as f64))?;
    Some(now_us + seconds_us(ends_at_s).saturating_sub(wall_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_has_passed_is_now() {
        let options = Options {
            ends_at_s: Some(10.0),
            ..Options::default()
        };
        assert_eq!(end_us(&options, None, 7, 20_000_000), Some(7));
        assert_eq!(
            end_us(&Options::default(), Some(30), 7, 20_000_000),
            Some(10_000_007)
        );
        assert_eq!(end_us(&Options::default(), None, 7, 20_000_000), None);
        let both = Options {
            wall_s: Some(1.5),
            ..Options::default()
        };
        assert_eq!(end_us(&both, Some(30), 7, 20_000_000), Some(1_500_007));
    }
}
