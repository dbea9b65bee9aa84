//! From a command line to a pilot that is ready: at most 10 look-ups on the shared file system.

use std::path::Path;

use tidemill_slot::Isolation;
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::log::cause;
use tidemill_wire::{handshake, Ended, Manifest, Record, Started, FORMAT};

use crate::binding::Binding;
use crate::bundle::Bundle;
use crate::error::PilotError;
use crate::facts;
use crate::keeper::Keeper;
use crate::lead_process::LeadProcess;
use crate::leaving::Reason;
use crate::link::{Identity, Link};
use crate::options::Options;
use crate::pilot::{seconds_us, Parts, Pilot, Post, LOG};
use crate::place::Affinity;
use crate::records::Records;
use crate::results;
use crate::system::{self, Signals};

const INCARNATIONS_MAX: u64 = 10_000;
/// Kept free at the end for what is still to be written: 2 % of the time, at least 3 s (a 10 ms fsync of the journal
/// and one of a bundle with at most 64 MiB dirty, at 25 MB/s), at most 30 s, never more than a quarter.
const MARGIN_SHARE: f64 = 0.02;
const MARGIN_S_MIN: f64 = 3.0;
const MARGIN_S_MAX: f64 = 30.0;

/// Read what there is to know and prepare everything; nothing has been asked for yet.
pub fn start(options: &Options) -> Result<Pilot, PilotError> {
    let signals = Signals::block()?;
    system::close_to_tracers()?;
    let environ = system::environ();
    let facts = facts::read(&environ)?;
    for note in &facts.notes {
        LOG.warning("node.note", &[("note", note)]);
    }
    let manifest = read_manifest(&options.fleet)?;
    let settings = manifest.settings.clone();
    let (isolation, affinity) = modes(&options.fleet, &manifest)?;
    let secret = handshake::read_secret(&options.fleet.join("secret"))?;
    let room = system::room(options, &facts, affinity)?;
    let (cores, memory_mb, _) = room.whole().clone();
    let rank = options.rank.unwrap_or(facts.rank);
    let now_us = monotonic_us();
    let post = post(options, manifest, (isolation, facts.ends_at_s), now_us);
    let (pilot, bundle) = claim(options, rank, settings.bundle_bytes_max)?;
    let lead_process =
        (post.manifest.lead == "rank0" && rank == 0).then(|| LeadProcess::new(&options.fleet, now_us));
    let node = facts.node.unwrap_or_else(system::host);
    let mut records = Records::new(&pilot, &options.fleet.join("journal"));
    let probed = results::probe(isolation, settings.scratch.as_ref().map(Into::into));
    let (isolated, note) = match &probed {
        Ok((isolated, note)) => (isolated.clone(), note.clone()),
        Err(error) => (String::from("none"), cause(error)),
    };
    let said = std::iter::once(note)
        .chain(facts.notes)
        .filter(|each| !each.is_empty());
    let started = Started {
        p: pilot.clone(),
        s: 0,
        allocation: options.allocation.clone(),
        node: node.clone(),
        rank,
        cores,
        memory_mb,
        isolation: isolated,
        note: said.collect::<Vec<_>>().join("; "),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_us: realtime_us(),
    };
    introduce(&started);
    records.add(Record::Started(started))?;
    if let Err(error) = probed {
        give_up(&mut records, &error)?;
        return Err(error);
    }
    let identity = Identity {
        pilot,
        allocation: options.allocation.clone(),
        rank,
        node,
        secret,
    };
    Ok(Pilot::new(Parts {
        post,
        binding: Binding::new(room),
        records,
        link: Link::new(&options.fleet, identity, now_us),
        keeper: Keeper::new(bundle, settings.output_flush_s),
        lead_process,
        signals,
    }))
}

fn post(
    options: &Options,
    manifest: Manifest,
    (isolation, ends_at_s): (Isolation, Option<u64>),
    now_us: u64,
) -> Post {
    let ends_us = end_us(options, ends_at_s, now_us, realtime_us());
    let margin_us = |ends_us: u64| seconds_us(margin_s((ends_us - now_us) as f64 / 1e6));
    Post {
        fleet: options.fleet.clone(),
        isolation,
        ends_us,
        deadline_us: ends_us.map(|ends_us| ends_us - margin_us(ends_us)),
        manifest,
    }
}

fn introduce(started: &Started) {
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
}

/// No slot can be made here: say so where the agent finds it, without waiting for a lead.
fn give_up(records: &mut Records, error: &PilotError) -> Result<(), PilotError> {
    records.add(Record::Ended(Ended {
        p: String::new(),
        s: 0,
        reason: Reason::Error.word().to_owned(),
        message: cause(error),
        busy_us: 0,
        slot_us: 0,
        at_us: realtime_us(),
    }))?;
    records.save()
}

fn read_manifest(fleet: &Path) -> Result<Manifest, PilotError> {
    let path = fleet.join("manifest.json");
    let text = std::fs::read(&path).map_err(PilotError::file("read", &path))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|source| PilotError::Json {
        what: "the fleet's manifest",
        path: path.clone(),
        source,
    })?;
    if manifest.format > FORMAT {
        return Err(PilotError::Format {
            path,
            found: manifest.format,
            known: FORMAT,
        });
    }
    Ok(manifest)
}

fn modes(fleet: &Path, manifest: &Manifest) -> Result<(Isolation, Affinity), PilotError> {
    let path = fleet.join("manifest.json");
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
        other => return Err(wrong("isolation", other, "`required` or `preferred`")),
    };
    let affinity = Affinity::parse(&settings.affinity).ok_or_else(|| {
        wrong(
            "affinity",
            &settings.affinity,
            "`spread`, `compact`, `core` or `none`",
        )
    })?;
    match manifest.lead.as_str() {
        "beside" | "rank0" => Ok((isolation, affinity)),
        other => Err(PilotError::Usage {
            message: format!(
                "`{}`: lead is `{other}`, expected `beside` or `rank0`",
                path.display()
            ),
        }),
    }
}

/// A name that no other start of a pilot has: whoever creates the bundle file owns it, also when the batch system
/// starts the same allocation again.
fn claim(options: &Options, rank: u64, bytes_max: u64) -> Result<(String, Bundle), PilotError> {
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
            return Ok((pilot, bundle));
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

fn margin_s(remaining_s: f64) -> f64 {
    (remaining_s * MARGIN_SHARE)
        .clamp(MARGIN_S_MIN, MARGIN_S_MAX)
        .min(remaining_s / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_between_3_and_30_seconds_and_never_most_of_the_time() {
        assert_eq!([4.0, 60.0, 600.0, 86_400.0].map(margin_s), [1.0, 3.0, 12.0, 30.0]);
    }

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
