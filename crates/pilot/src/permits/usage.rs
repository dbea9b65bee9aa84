//! This node's load on the areas of shared file systems that have a budget, from its kernel's counters.

use std::collections::BTreeMap;

use tidemill_sys::machine;
use tidemill_sys::mountinfo::{self, Mount};
use tidemill_wire::{IoArea, StagedFile, Usage};

use crate::node::counters::{self, Counted};
use crate::node::kernel_texts::{lustre_name, KernelTexts};

/// Interval at which counters are read; reading them sends no request to a shared file system.
const EVERY_US: u64 = 10_000_000;

/// Reads counters when they are due, and adds up starts meanwhile.
#[derive(Default)]
pub struct UsageMeter {
    kernel: KernelTexts,
    areas: Vec<IoArea>,
    before: BTreeMap<String, Counted>,
    starts: BTreeMap<u64, i64>,
    read_us: u64,
    /// no counters here: nothing to report
    blind: bool,
}

impl UsageMeter {
    /// Reads nothing where no area has a budget.
    pub fn new(kernel: KernelTexts, areas: &[IoArea], now_us: u64) -> Self {
        let bounded = |area: &&IoArea| area.ops_per_s.is_some() || area.bytes_per_s.is_some();
        let mut meter = UsageMeter {
            kernel,
            areas: areas.iter().filter(bounded).cloned().collect(),
            read_us: now_us,
            ..UsageMeter::default()
        };
        meter.before = meter.read();
        meter.blind = meter.before.is_empty();
        meter
    }

    /// A payload was permitted to start.
    pub fn started(&mut self, program: u64) {
        if !self.blind {
            *self.starts.entry(program).or_default() += 1;
        }
    }

    /// When `step` has something to do.
    pub fn due_us(&self) -> Option<u64> {
        (!self.blind).then_some(self.read_us + EVERY_US)
    }

    /// What happened since the last time, when it is time.
    pub fn step(&mut self, now_us: u64) -> Option<Usage> {
        self.due_us().filter(|&due_us| now_us >= due_us)?;
        let over_us = now_us - self.read_us;
        self.read_us = now_us;
        let now = self.read();
        let mut usage = Usage {
            over_us,
            starts: std::mem::take(&mut self.starts)
                .into_iter()
                .map(|(program, starts)| (program.to_string(), starts))
                .collect(),
            ..Usage::default()
        };
        for (name, &counted) in &now {
            let since = counted.since(self.before.get(name).copied().unwrap_or(counted));
            if let Some(ops) = since.ops {
                usage.ops.insert(name.clone(), clipped(ops));
            }
            if let Some(bytes) = since.bytes {
                usage.bytes.insert(name.clone(), clipped(bytes));
            }
        }
        self.before = now;
        Some(usage)
    }

    fn read(&self) -> BTreeMap<String, Counted> {
        let mut found = BTreeMap::new();
        if self.areas.is_empty() {
            return found;
        }
        let mounts = mountinfo::mounts(&self.kernel.text("proc/self/mountinfo"));
        let nfs = counters::nfs(&self.kernel.mount_counts());
        let devices = self.device_bytes(&mounts);
        for area in &self.areas {
            let mut sum: Option<Counted> = None;
            let mut seen: Vec<&str> = Vec::new();
            for mount in mounts_of(area, &mounts) {
                if seen.contains(&mount.source.as_str()) {
                    continue;
                }
                seen.push(&mount.source);
                let counted = match mount.kind.as_str() {
                    "nfs" | "nfs4" => nfs
                        .iter()
                        .find(|each| each.device == mount.source)
                        .map(|each| each.counted),
                    "lustre" => lustre_name(&mount.source)
                        .and_then(|name| self.kernel.lustre(name))
                        .map(|found| found.counted()),
                    _ => devices
                        .iter()
                        .find(|(device, _)| *device == mount.device)
                        .map(|&(_, bytes)| Counted {
                            ops: None,
                            bytes: Some(bytes),
                        }),
                };
                if let Some(counted) = counted {
                    sum.get_or_insert_with(Counted::default).add(counted);
                }
            }
            if let Some(sum) = sum {
                found.insert(area.name.clone(), sum);
            }
        }
        found
    }

    fn device_bytes(&self, mounts: &[Mount]) -> Vec<(String, u64)> {
        let groups = machine::control_groups_of(&self.kernel.text("proc/self/cgroup"), mounts);
        let Some((_, group)) = groups.iter().find(|(controllers, _)| controllers.is_empty()) else {
            return Vec::new();
        };
        let path = group.join("io.stat");
        counters::cgroup_io(&self.kernel.text(path.to_string_lossy().trim_start_matches('/')))
    }
}

/// The mounts that show an area: what its prefixes lie on, and what is mounted below them.
fn mounts_of<'a>(area: &IoArea, mounts: &'a [Mount]) -> Vec<&'a Mount> {
    let mut shown: Vec<&Mount> = Vec::new();
    for prefix in &area.prefixes {
        let below = mounts.iter().filter(|mount| is_below(&mount.point, prefix));
        shown.extend(below);
        let on = mounts
            .iter()
            .filter(|mount| is_below(prefix, &mount.point))
            .max_by_key(|mount| mount.point.len());
        shown.extend(on);
    }
    shown
}

/// Bytes of a file that lie in areas whose bytes are bounded: of a piece, in the area with the longest prefix.
pub fn bytes_in(file: &StagedFile, areas: &[IoArea]) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for piece in &file.pieces {
        let prefixes = areas.iter().flat_map(|area| {
            let its = area
                .prefixes
                .iter()
                .filter(|prefix| is_below(&piece.path, prefix));
            its.map(move |prefix| (prefix.len(), area))
        });
        let Some((_, area)) = prefixes.max_by_key(|(length, _)| *length) else {
            continue;
        };
        if area.bytes_per_s.is_some() {
            *found.entry(area.name.clone()).or_insert(0_i64) += clipped(piece.length);
        }
    }
    found
}

fn is_below(path: &str, directory: &str) -> bool {
    let directory = directory.trim_end_matches('/');
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn clipped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidemill_wire::Piece;

    use super::*;

    fn area(name: &str, prefix: &str) -> IoArea {
        IoArea {
            name: name.into(),
            prefixes: vec![prefix.into()],
            ops_per_s: Some(1.0),
            bytes_per_s: None,
        }
    }

    fn write(root: &Path, path: &str, text: &str) {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), text).unwrap();
    }

    #[test]
    fn areas_on_nfs_and_lustre_tell_what_was_done_since() {
        let root = tempfile::tempdir().unwrap();
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /sw rw - nfs4 srv:/sw rw\n\
            3 1 0:6 / /scratch rw - lustre mgs@tcp:/scratch rw\n";
        write(root.path(), "proc/self/mountinfo", mounts);
        let nfs = |lookups: u32| {
            let head =
                "device srv:/sw mounted on /sw with fstype nfs4 statvers=1.1\n\tbytes: 0 0 0 0 100 50 0 0\n";
            format!("{head}\tper-op statistics\n\tLOOKUP: {lookups} 1 0\n\tREAD: 9 9 0\n")
        };
        let md = |opens: u32| format!("open {opens} samples [reqs]\n");
        write(root.path(), "proc/self/mountstats", &nfs(10));
        let mdc = "proc/fs/lustre/mdc/scratch-MDT0000-mdc-ffff88/md_stats";
        write(root.path(), mdc, &md(100));
        write(
            root.path(),
            "proc/fs/lustre/llite/scratch-ffff88/stats",
            "write_bytes 1 samples [bytes] 1 9 512\n",
        );
        let areas = [
            area("sw", "/sw/rel"),
            area("scratch", "/scratch"),
            area("local", "/opt"),
        ];
        let mut meter = UsageMeter::new(KernelTexts::below(root.path()), &areas, 0);
        meter.started(7);
        meter.started(7);
        assert_eq!(meter.step(EVERY_US - 1), None);
        write(root.path(), "proc/self/mountstats", &nfs(25));
        write(root.path(), mdc, &md(150));
        let usage = meter.step(EVERY_US).unwrap();
        assert_eq!((usage.over_us, usage.starts["7"]), (EVERY_US, 2));
        assert_eq!(
            usage.ops,
            [("scratch".to_owned(), 50), ("sw".to_owned(), 15)].into()
        );
        assert_eq!(
            usage.bytes,
            [("scratch".to_owned(), 0), ("sw".to_owned(), 0)].into()
        );
    }

    #[test]
    fn an_area_on_a_local_device_tells_the_bytes_of_our_control_group() {
        let root = tempfile::tempdir().unwrap();
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        write(root.path(), "proc/self/mountinfo", mounts);
        let groups = "1:name=systemd:/x\n0::/user.slice\n";
        write(root.path(), "proc/self/cgroup", groups);
        let io = "sys/fs/cgroup/user.slice/io.stat";
        write(root.path(), io, "8:1 rbytes=100 wbytes=1\n");
        let mut meter = UsageMeter::new(KernelTexts::below(root.path()), &[area("local", "/opt")], 0);
        write(root.path(), io, "8:1 rbytes=400 wbytes=2\n");
        let usage = meter.step(EVERY_US).unwrap();
        assert_eq!(usage.bytes, [("local".to_owned(), 301)].into());
    }

    #[test]
    fn a_file_costs_the_areas_that_its_pieces_lie_in() {
        let mut areas = [area("sw", "/sw"), area("packs", "/sw/images/"), area("ops", "/o")];
        areas[0].bytes_per_s = Some(1.0);
        areas[1].bytes_per_s = Some(1.0);
        let piece = |path: &str, length| Piece {
            path: path.into(),
            offset: 0,
            length,
        };
        let pieces = [
            ("/sw/images/a", 5),
            ("/sw/x", 2),
            ("/sw/images/b", 7),
            ("/o/x", 9),
            ("/swx", 9),
        ];
        let file = StagedFile {
            sha256: String::new(),
            bytes: 32,
            pieces: pieces.map(|(path, length)| piece(path, length)).to_vec(),
        };
        let found = bytes_in(&file, &areas);
        assert_eq!(found, [("packs".to_owned(), 12), ("sw".to_owned(), 2)].into());
    }

    #[test]
    fn a_node_without_counters_tells_nothing() {
        let root = tempfile::tempdir().unwrap();
        let mut meter = UsageMeter::new(KernelTexts::below(root.path()), &[area("sw", "/sw")], 0);
        meter.started(1);
        assert_eq!((meter.due_us(), meter.step(u64::MAX)), (None, None));
    }
}
