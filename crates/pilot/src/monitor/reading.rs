//! The node's counters at one moment, and what two such readings show about the time between them.

use std::collections::BTreeMap;

use tidemill_sys::process;
use tidemill_sys::time::{monotonic_us, realtime_us};
use tidemill_wire::{Sampled, FIGURES};

use super::gpu_use::GpuUse;
use super::proc::{self, Counters, TIMES};
use crate::node::counters::{self, Files};
use crate::node::kernel_texts::{lustre_name, KernelTexts};
use tidemill_sys::mountinfo::mounts;

/// Most mounts that are reported separately: those with the most requests.
const MOUNTS_MAX: usize = 4;
/// A mount point is cut to this length.
const POINT_CHARS_MAX: usize = 64;
/// Most cores that are reported separately; beyond that, neighbours share a digit.
const CORES_MAX: usize = 128;

/// What the kernel had counted by one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    monotonic_us: u64,
    at_us: u64,
    /// current values
    levels: BTreeMap<&'static str, u64>,
    /// since the start of the node
    totals: BTreeMap<&'static str, u64>,
    processors: Counters,
    interfaces: Counters,
    disks: Counters,
    /// per mount: requests, transmissions, bytes read, bytes written, round trips in ms
    nfs: Counters,
    /// per mount: requests, and bytes read and written if they are known
    lustre: Counters,
    nfs_files: FilesOf,
    lustre_files: FilesOf,
}

/// By mount point.
type FilesOf = BTreeMap<String, Files>;

impl Reading {
    /// Read everything; takes about a millisecond, and waits for no file system.
    pub fn take(kernel: &KernelTexts, gpus: &mut GpuUse) -> Self {
        let mut reading = Reading {
            monotonic_us: monotonic_us(),
            at_us: realtime_us(),
            processors: proc::processor_times(&kernel.text("proc/stat")),
            interfaces: proc::interfaces(&kernel.text("proc/net/dev")),
            disks: proc::disks(&kernel.text("proc/diskstats")),
            ..Reading::default()
        };
        let physical = |name: &String| kernel.exists(&format!("sys/class/net/{name}/device"));
        if reading.interfaces.keys().any(&physical) {
            reading.interfaces.retain(|name, _| physical(name));
        } else {
            reading.interfaces.retain(|name, _| !proc::is_virtual(name));
        }
        let whole = |name: &String| kernel.exists(&format!("sys/block/{}/device", name.replace('/', "!")));
        reading.disks.retain(|name, _| whole(name));
        reading.read_levels(kernel);
        reading.read_totals(kernel);
        reading.read_storage(kernel);
        let now_us = reading.monotonic_us;
        let figures = gpus.figures(kernel, now_us);
        reading.levels.extend(figures);
        reading
    }

    fn read_levels(&mut self, kernel: &KernelTexts) {
        let (load, running) = proc::load(&kernel.text("proc/loadavg"));
        let cores = self.processors.len().saturating_sub(1) as u64;
        let levels = [
            ("load_milli", load),
            ("running", running),
            ("cores", Some(cores).filter(|&cores| cores > 0)),
        ];
        let memory = proc::memory(&kernel.text("proc/meminfo"));
        self.levels.extend(known(levels.into_iter().chain(memory)));
    }

    fn read_totals(&mut self, kernel: &KernelTexts) {
        self.totals
            .extend(known(proc::paging(&kernel.text("proc/vmstat"))));
        for (area, some, full) in [
            ("cpu", "cpu_some_us", ""),
            ("memory", "memory_some_us", "memory_full_us"),
            ("io", "io_some_us", "io_full_us"),
        ] {
            let (of_some, of_all) = proc::pressure(&kernel.text(&format!("proc/pressure/{area}")));
            self.totals.extend(known([(some, of_some), (full, of_all)]));
        }
        self.totals.remove("");
    }

    fn read_storage(&mut self, kernel: &KernelTexts) {
        for mount in counters::nfs(&kernel.mount_counts()) {
            let counts = vec![
                mount.ops,
                mount.sent,
                mount.read_bytes,
                mount.write_bytes,
                mount.rtt_ms,
            ];
            self.nfs_files.insert(mount.point.clone(), mount.files);
            self.nfs.insert(mount.point, counts);
        }
        let mut seen = Vec::new();
        for mount in mounts(&kernel.text("proc/self/mountinfo")) {
            let Some(name) = lustre_name(&mount.source).filter(|_| mount.kind == "lustre") else {
                continue;
            };
            if seen.iter().any(|known| known == name) {
                continue;
            }
            seen.push(name.to_owned());
            if let Some(found) = kernel.lustre(name) {
                let mut counts = vec![found.ops.unwrap_or(0)];
                counts.extend(
                    found
                        .bytes
                        .into_iter()
                        .flat_map(|(read, written)| [read, written]),
                );
                self.lustre_files.insert(mount.point.clone(), found.files);
                self.lustre.insert(mount.point, counts);
            }
        }
    }

    /// What happened since an earlier reading.
    pub fn since(&self, before: &Reading, node: &str) -> Sampled {
        let mut found = self.levels.clone();
        for (&name, &total) in &self.totals {
            let old = before.totals.get(name);
            if let Some(more) = old.and_then(|&old| total.checked_sub(old)) {
                found.insert(name, more);
            }
        }
        self.add_processors(before, &mut found);
        if let Some(sums) = sums(&self.interfaces, &before.interfaces) {
            let names = [
                "net_in_bytes",
                "net_out_bytes",
                "net_in_packets",
                "net_out_packets",
            ];
            found.extend(names.into_iter().zip(sums));
        }
        if let Some(sums) = sums(&self.disks, &before.disks) {
            found.extend(
                ["disk_read_bytes", "disk_write_bytes", "disk_ops"]
                    .into_iter()
                    .zip(sums),
            );
            let busy = differences(&self.disks, &before.disks).into_iter().flatten();
            if let Some(longest) = busy.map(|(_, more)| more[3]).max() {
                found.insert("disk_busy_ms", longest);
            }
        }
        if let Some(sums) = sums(&self.lustre, &before.lustre) {
            let names = ["lustre_ops", "lustre_read_bytes", "lustre_write_bytes"];
            found.extend(names.into_iter().zip(sums));
        }
        if let Some(sums) = sums(&self.nfs, &before.nfs) {
            let names = [
                "nfs_ops",
                "nfs_again",
                "nfs_read_bytes",
                "nfs_write_bytes",
                "nfs_rtt_us",
            ];
            let told = names.into_iter().zip(requests(&sums));
            found.extend(known(told));
        }
        let nfs = all_files(&self.nfs_files, &before.nfs_files);
        let lustre = all_files(&self.lustre_files, &before.lustre_files);
        found.extend(known([
            ("nfs_opens", nfs.opens),
            ("nfs_closes", nfs.closes),
            ("lustre_opens", lustre.opens),
            ("lustre_closes", lustre.closes),
        ]));
        debug_assert!(found.keys().all(|name| FIGURES.contains(name)), "{found:?}");
        Sampled {
            p: String::new(),
            node: node.to_owned(),
            at_us: self.at_us,
            over_us: self.monotonic_us.saturating_sub(before.monotonic_us),
            figures: in_order(&found),
            cores: self.busy_cores(before),
            mounts: self.busy_mounts(before),
        }
    }

    /// Each time by itself: iowait may go back (proc_stat(5)), and the others are right all the same.
    fn add_processors(&self, before: &Reading, found: &mut BTreeMap<&'static str, u64>) {
        let names = [
            "user_ms",
            "nice_ms",
            "system_ms",
            "iowait_ms",
            "idle_ms",
            "steal_ms",
        ];
        let (Some(now), Some(old)) = (self.processors.get("cpu"), before.processors.get("cpu")) else {
            return;
        };
        let ticks_per_s = process::ticks_per_s().max(1);
        for (place, name) in names.into_iter().enumerate() {
            if let Some(ticks) = now[place].checked_sub(old[place]) {
                found.insert(name, ticks.saturating_mul(1000) / ticks_per_s);
            }
        }
    }

    /// One digit per core, or per group of neighbours.
    fn busy_cores(&self, before: &Reading) -> String {
        let shares = each_core(&self.processors, &before.processors);
        let group = shares.len().div_ceil(CORES_MAX).max(1);
        let digit = |cores: &[(u64, u64)]| {
            let (busy, all) = cores
                .iter()
                .fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
            let tenths = (busy * 10).checked_div(all).unwrap_or(0).min(9);
            char::from(b'0' + tenths as u8)
        };
        shares.chunks(group).map(digit).collect()
    }

    fn busy_mounts(&self, before: &Reading) -> BTreeMap<String, Vec<Option<u64>>> {
        let mut found: Vec<(String, Vec<Option<u64>>)> = Vec::new();
        for (point, now) in &self.nfs {
            let old = before.nfs.get(point);
            if let Some(more) = old.and_then(|old| difference(now, old)) {
                let files = files_since(&self.nfs_files, &before.nfs_files, point);
                let figures = [&requests(&more)[..], &[files.opens, files.closes]].concat();
                found.push((point.clone(), figures));
            }
        }
        for (point, now) in &self.lustre {
            let old = before.lustre.get(point);
            if let Some(more) = old.and_then(|old| difference(now, old)) {
                let files = files_since(&self.lustre_files, &before.lustre_files, point);
                let known = |place: usize| more.get(place).copied();
                let traffic = [known(0), None, known(1), known(2), None];
                let figures = [&traffic[..], &[files.opens, files.closes]].concat();
                found.push((point.clone(), figures));
            }
        }
        found.retain(|(_, figures)| figures.iter().flatten().any(|&figure| figure > 0));
        found.sort_by_key(|(_, figures)| std::cmp::Reverse(figures[0]));
        found.truncate(MOUNTS_MAX);
        let cut = |point: String| point.chars().take(POINT_CHARS_MAX).collect();
        found
            .into_iter()
            .map(|(point, figures)| (cut(point), figures))
            .collect()
    }
}

/// As FIGURES, without absent ones at the end.
fn in_order(found: &BTreeMap<&'static str, u64>) -> Vec<Option<u64>> {
    let count = FIGURES
        .iter()
        .rposition(|name| found.contains_key(name))
        .map_or(0, |last| last + 1);
    let names = FIGURES.iter().take(count);
    names.map(|name| found.get(name).copied()).collect()
}

fn known(
    figures: impl IntoIterator<Item = (&'static str, Option<u64>)>,
) -> impl Iterator<Item = (&'static str, u64)> {
    figures
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
}

/// None: a counter went back. Only those that both readings have.
fn difference(now: &[u64], before: &[u64]) -> Option<Vec<u64>> {
    now.iter()
        .zip(before)
        .map(|(now, before)| now.checked_sub(*before))
        .collect()
}

/// Of those that both have; None: a counter went back, or both have none.
fn differences(now: &Counters, before: &Counters) -> Option<Vec<(String, Vec<u64>)>> {
    let shared = now
        .iter()
        .filter_map(|(name, now)| Some((name, now, before.get(name)?)));
    let found: Option<Vec<_>> = shared
        .map(|(name, now, before)| Some((name.clone(), difference(now, before)?)))
        .collect();
    found.filter(|found| !found.is_empty())
}

fn sums(now: &Counters, before: &Counters) -> Option<Vec<u64>> {
    let mut all = differences(now, before)?.into_iter().map(|(_, more)| more);
    let first = all.next()?;
    Some(all.fold(first, |sum, more| {
        let pairs = sum.iter().zip(more);
        pairs.map(|(sum, more)| sum.saturating_add(more)).collect()
    }))
}

fn files_since(now: &FilesOf, before: &FilesOf, point: &str) -> Files {
    let of = |files: &FilesOf| files.get(point).copied().unwrap_or_default();
    of(now).since(of(before))
}

/// Of the mounts that both have.
fn all_files(now: &FilesOf, before: &FilesOf) -> Files {
    let shared = now.keys().filter(|point| before.contains_key(*point));
    let each = shared.map(|point| files_since(now, before, point));
    each.reduce(Files::plus).unwrap_or_default()
}

/// The first five of MOUNT_FIGURES, from requests, transmissions, bytes and round trips.
fn requests(more: &[u64]) -> [Option<u64>; 5] {
    let (ops, sent, rtt_ms) = (more[0], more[1], more[4]);
    [
        Some(ops),
        Some(sent.saturating_sub(ops)),
        Some(more[2]),
        Some(more[3]),
        rtt_ms.saturating_mul(1000).checked_div(ops),
    ]
}

/// Busy ticks and all ticks of each core that both readings have, in their order.
fn each_core(now: &Counters, before: &Counters) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, (u64, u64))> = Vec::new();
    for (name, now) in now {
        let Some(number) = name.strip_prefix("cpu").and_then(|number| number.parse().ok()) else {
            continue;
        };
        let Some(before) = before.get(name) else {
            continue;
        };
        let more: Vec<u64> = (0..TIMES)
            .map(|place| now[place].saturating_sub(before[place]))
            .collect();
        let all: u64 = more
            .iter()
            .fold(0, |sum, &ticks| sum.saturating_add(ticks) % (u64::MAX / 32));
        let idle = more[3].saturating_add(more[4]);
        found.push((number, (all.saturating_sub(idle), all)));
    }
    found.sort_unstable();
    found.into_iter().map(|(_, shares)| shares).collect()
}
