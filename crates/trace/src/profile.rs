//! The profile as JSON: what was counted, by final path and area. Format 1 of `src/tidemill/image/profile.py`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;
use tidemill_sys::mountinfo::Mount;
use tidemill_sys::process::Exit;

use crate::areas::{self, Finder};
use crate::calls::{errno_name, Group};
use crate::counts::{ByGroup, Counts, Facts, Use};
use crate::paths::{follow, is_library, is_plain, is_python, Links};
use crate::sockets::Reads;

const FORMAT: u32 = 1;

/// The file system is asked for the kinds of at most this many unopened paths; the others are called files.
const ASKED_MAX: usize = 200_000;

/// File systems that do not count as storage: what is opened there need not be a file.
const PSEUDO: &[&str] = &[
    "proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "mqueue", "cgroup2", "fuse",
];

/// The file system is asked for the sizes of at most this many files; the sizes of other files are missing.
const SIZED_MAX: usize = 200_000;
/// Their files are the kernel's, made when they are read.
const KERNEL: &[&str] = &["proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup2"];

/// One traced run.
#[derive(Debug, Serialize)]
pub struct Profile {
    format: u32,
    command: Vec<String>,
    runs: u32,
    wall_us: u64,
    exit: Option<i32>,
    signal: Option<i32>,
    host: String,
    started_us: u64,
    cwd: String,
    env: BTreeMap<String, String>,
    mounts: Vec<FileSystem>,
    ops: BTreeMap<&'static str, Ends>,
    areas: Vec<Area>,
    bins: Vec<Bin>,
    /// path, kind, operations that succeeded and that failed, bytes that it has if they may have been read
    paths: Vec<(String, char, u64, u64, u64)>,
    truncated: bool,
    /// why it is truncated; empty: it is complete
    left_out: Vec<&'static str>,
    reads: Vec<Reads>,
    /// connections of which nothing is known
    reads_missed: u64,
}

#[derive(Debug, Serialize)]
struct FileSystem {
    point: String,
    #[serde(rename = "type")]
    kind: String,
    prefix: Option<String>,
    stripe: Option<String>,
}

#[derive(Debug, Serialize)]
struct Ends {
    ok: u64,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Serialize)]
struct Area {
    area: String,
    ops: u64,
    failed: u64,
    files: u64,
    so: u64,
    py: u64,
    bytes_read: u64,
    calls: BTreeMap<&'static str, Calls>,
}

#[derive(Debug, Default, Serialize)]
struct Calls {
    ok: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct Bin {
    s: usize,
    ok: u64,
    failed: u64,
}

/// What is known of a run beside its counts.
pub struct Run {
    pub command: Vec<OsString>,
    pub wall_us: u64,
    pub started_us: u64,
    /// nothing more will be counted
    pub over: bool,
    pub cwd: String,
    pub env: BTreeMap<String, String>,
    pub host: String,
    /// prefixes that were asked for
    pub prefixes: Vec<String>,
    pub mounts: Vec<Mount>,
}

/// Variables that say where programs look for files, by their names.
pub fn search_paths(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    const OTHERS: [&str; 6] = [
        "PYTHONHOME",
        "PERL5LIB",
        "ROOTSYS",
        "R_LIBS",
        "XDG_DATA_DIRS",
        "TCLLIB",
    ];
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.ends_with("PATH") || OTHERS.contains(&name.as_str()))
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect()
}

/// A path after all is counted.
struct Final {
    kind: char,
    /// number in the finder
    area: usize,
    groups: ByGroup,
    bytes: u64,
}

impl Final {
    fn sum(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), each: &(u64, u64)| (sum.0 + each.0, sum.1 + each.1);
        self.groups.iter().fold((0, 0), add)
    }
}

impl Profile {
    /// Adds how and when the command ended.
    pub fn end(&mut self, exit: Exit, wall_us: u64) {
        self.wall_us = wall_us;
        match exit {
            Exit::Status(status) => self.exit = Some(status),
            Exit::Signal(number) => self.signal = Some(number),
        }
    }
}

/// The profile of a run whose end is not known yet. Asks the file system about links before `..`, about paths whose
/// kind no operation showed, and about the sizes of files that were opened.
pub fn profile(run: Run, counts: &Counts, sizes: &mut Sizes) -> Profile {
    let points = run.mounts.iter().map(|mount| mount.point.clone());
    let finder = Finder::new(points.chain(run.prefixes.iter().cloned()).collect());
    let paths = final_paths(counts, &run, &finder, sizes);
    let areas = sum_areas(counts, &paths, &finder);
    let mounts = places(&areas, &run);
    Profile {
        format: FORMAT,
        command: run
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        runs: 1,
        wall_us: run.wall_us,
        exit: None,
        signal: None,
        host: run.host,
        started_us: run.started_us,
        cwd: run.cwd,
        env: run.env,
        mounts,
        ops: counts
            .by_call()
            .map(|(name, ok, errors)| {
                let errors = errors
                    .into_iter()
                    .map(|(errno, count)| (errno_name(errno), count));
                (
                    name,
                    Ends {
                        ok,
                        errors: errors.collect(),
                    },
                )
            })
            .collect(),
        areas,
        bins: (0..)
            .zip(&counts.seconds)
            .filter(|(_, &(ok, failed))| ok + failed > 0)
            .map(|(s, &(ok, failed))| Bin { s, ok, failed })
            .collect(),
        paths: paths
            .into_iter()
            .map(|(path, it)| {
                let (ok, failed) = it.sum();
                (path, it.kind, ok, failed, it.bytes)
            })
            .collect(),
        truncated: !counts.gaps.is_empty(),
        left_out: counts.gaps.iter().map(|gap| gap.name()).collect(),
        reads: counts.network.sums(),
        reads_missed: counts.network.missed,
    }
}

/// All paths, plain, sorted, each once; what is not UTF-8 is replaced.
fn final_paths(counts: &Counts, run: &Run, finder: &Finder, sizes: &mut Sizes) -> Vec<(String, Final)> {
    let mut links = Links::new(follow);
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut seen: Vec<(String, &Use)> = counts
        .paths()
        .map(|(path, used)| {
            let plain = if is_plain(path) {
                text(path)
            } else {
                text(&links.plain(path))
            };
            (plain, used)
        })
        .collect();
    seen.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let within = |kinds: &[&str]| -> Vec<bool> {
        let names = finder.names().iter();
        let its = |name: &String| run.mounts.iter().find(|mount| mount.point == *name);
        names
            .map(|name| its(name).is_some_and(|mount| kinds.contains(&mount.kind.as_str())))
            .collect()
    };
    let (pseudo, of_kernel) = (within(PSEUDO), within(KERNEL));
    let mut asked = 0;
    let mut sized = HashSet::new();
    let mut found: Vec<(String, Final)> = Vec::new();
    let mut seen = seen.into_iter().peekable();
    while let Some((path, first)) = seen.next() {
        let mut facts = first.facts;
        let mut groups = ByGroup::default();
        add_use(&mut groups, first);
        while let Some((_, next)) = seen.next_if(|next| next.0 == path) {
            facts.add(next.facts);
            add_use(&mut groups, next);
        }
        let area = finder.area_of(path.as_bytes());
        let kind = kind(&path, facts, pseudo[area], &mut asked);
        let bytes = if facts.has(Facts::READ) && !of_kernel[area] {
            sizes.of(&path, &mut sized)
        } else {
            0
        };
        let it = Final {
            kind,
            area,
            groups,
            bytes,
        };
        found.push((path, it));
    }
    found
}

/// What files have that were opened: at most that is what a run reads of them. Asked when a profile is written, once per
/// name and as the program saw it, not with each open.
#[derive(Default)]
pub struct Sizes {
    /// device, inode and size by name; None: removed since, or no file
    known: HashMap<String, Option<(u64, u64, u64)>>,
}

impl Sizes {
    /// 0 for a file that is among those `seen`, by whatever name.
    fn of(&mut self, path: &str, seen: &mut HashSet<(u64, u64)>) -> u64 {
        if !self.known.contains_key(path) {
            if self.known.len() >= SIZED_MAX {
                return 0;
            }
            let status = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
            let found = status.map(|status| (status.dev(), status.ino(), status.len()));
            self.known.insert(path.to_owned(), found);
        }
        match self.known.get(path) {
            Some(&Some((device, inode, size))) if seen.insert((device, inode)) => size,
            _ => 0,
        }
    }
}

fn add_use(groups: &mut ByGroup, used: &Use) {
    for (sum, &(ok, failed)) in groups.iter_mut().zip(&used.groups) {
        *sum = (sum.0 + u64::from(ok), sum.1 + u64::from(failed));
    }
}

fn kind(path: &str, facts: Facts, pseudo: bool, asked: &mut usize) -> char {
    let from_facts = [
        (Facts::LISTED, 'D'),
        (Facts::DIRECTORY, 'd'),
        (Facts::LINK, 'l'),
        (Facts::FILE, 'f'),
        (Facts::OTHER, 'o'),
    ];
    if let Some((_, kind)) = from_facts.into_iter().find(|&(fact, _)| facts.has(fact)) {
        return kind;
    }
    if !facts.has(Facts::EXISTS) {
        return 'x';
    }
    if (facts.has(Facts::OPENED) && !pseudo) || *asked >= ASKED_MAX {
        return 'f';
    }
    *asked += 1;
    match std::fs::metadata(path) {
        Ok(status) if status.is_dir() => 'd',
        Ok(status) if !status.is_file() => 'o',
        // removed since, or a link to nowhere
        _ => 'f',
    }
}

fn sum_areas(counts: &Counts, paths: &[(String, Final)], finder: &Finder) -> Vec<Area> {
    let mut areas: BTreeMap<&str, Area> = BTreeMap::new();
    for (path, it) in paths {
        let area = areas.entry(&finder.names()[it.area]).or_default();
        add_groups(area, &it.groups);
        area.bytes_read += it.bytes;
        if it.kind != 'x' {
            area.files += 1;
            area.so += u64::from(is_library(path));
            area.py += u64::from(is_python(path));
        }
    }
    for (&number, groups) in &counts.beyond {
        let name = &counts.finder().names()[number as usize];
        add_groups(areas.entry(name).or_default(), groups);
    }
    areas
        .into_iter()
        .map(|(name, area)| Area {
            area: name.to_owned(),
            ..area
        })
        .collect()
}

fn add_groups(area: &mut Area, groups: &ByGroup) {
    for (name, &(ok, failed)) in Group::NAMES.iter().zip(groups) {
        if ok + failed > 0 {
            area.ops += ok + failed;
            area.failed += failed;
            let calls = area.calls.entry(name).or_default();
            calls.ok += ok;
            calls.failed += failed;
        }
    }
}

/// Mount points that were touched, and all prefixes. Includes their stripes on Lustre once the run is over: asking
/// takes time, during which the run would be stopped.
fn places(areas: &[Area], run: &Run) -> Vec<FileSystem> {
    let (mounts, asks) = (&run.mounts, run.over);
    let owners = Finder::new(mounts.iter().map(|mount| mount.point.clone()).collect());
    let kind_of = |point: &str| {
        let mount = mounts.iter().find(|mount| mount.point == point);
        mount.map_or_else(String::new, |mount| mount.kind.clone())
    };
    let place = |directory: &str, prefix: Option<&String>| {
        let point = owners.names()[owners.area_of(directory.as_bytes())].clone();
        let kind = kind_of(&point);
        FileSystem {
            stripe: (asks && kind == "lustre")
                .then(|| areas::stripe(directory))
                .flatten(),
            point,
            kind,
            prefix: prefix.cloned(),
        }
    };
    let touched = areas
        .iter()
        .filter(|area| mounts.iter().any(|mount| mount.point == area.area));
    let mut places: Vec<FileSystem> = touched.map(|area| place(&area.area, None)).collect();
    let mut prefixes = run.prefixes.clone();
    prefixes.sort();
    prefixes.dedup();
    places.extend(prefixes.iter().map(|prefix| place(prefix, Some(prefix))));
    places
}
