//! What the processes of a slot use, read from /proc.

mod kept;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tidemill_sys::proc::{self, stat, stat_in};
use tidemill_sys::process;

use kept::{End, Kept};

/// Sums over the processes of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub rss_kb: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub processes: u64,
    /// threads of all of them
    pub tasks: u64,
}

/// Bytes that a process and the children it waited for moved (`read_bytes`, `write_bytes` count storage; `rchar`,
/// `wchar` count what programs asked for, which is what a shared file system sees too: those are taken).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// How the processes of a slot are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// everything in this PID namespace but ourselves
    Namespace,
    /// our descendants
    Descendants,
}

/// Process ids of the slot, without the init.
pub(crate) fn processes(reach: Reach) -> Vec<i32> {
    let (me, proc) = (process::id(), Path::new("/proc"));
    match reach {
        Reach::Namespace => all(proc).into_iter().filter(|&pid| pid != me).collect(),
        Reach::Descendants => descendants(proc, me).unwrap_or_else(|| descendants_among(proc, me)),
    }
}

fn all(proc: &Path) -> Vec<i32> {
    let entries = fs::read_dir(proc).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// What a process has started, and so on, at the cost of those processes and their threads, whatever else runs on the
/// node. None where the kernel does not list children (proc(5), /proc/PID/task/TID/children: CONFIG_PROC_CHILDREN).
fn descendants(proc: &Path, of: i32) -> Option<Vec<i32>> {
    let mut found = children(proc, of)?;
    let mut at = 0;
    while at < found.len() {
        let below = children(proc, found[at]).unwrap_or_default(); // it may have ended
        found.extend(below);
        at += 1;
    }
    found.sort_unstable();
    found.dedup(); // one whose parent ended while we looked has moved to another
    Some(found)
}

/// Of all threads of a process.
fn children(proc: &Path, pid: i32) -> Option<Vec<i32>> {
    let threads = fs::read_dir(proc.join(pid.to_string()).join("task")).ok()?;
    let mut found = Vec::new();
    let mut is_listed = false;
    for thread in threads.flatten() {
        let Ok(text) = fs::read_to_string(thread.path().join("children")) else {
            continue; // it may have ended
        };
        is_listed = true;
        found.extend(
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    is_listed.then_some(found)
}

/// The same from the parents of all processes of the node.
fn descendants_among(proc: &Path, of: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = all(proc)
        .into_iter()
        .filter_map(|pid| Some((pid, stat_in(proc, pid)?.parent)))
        .collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(parents.iter().filter(|each| each.1 == parent).map(|each| each.0));
        at += 1;
    }
    found.remove(0);
    found
}

/// The process above one; None when it has ended.
pub(super) fn parent(pid: i32) -> Option<i32> {
    stat(pid).map(|stat| stat.parent)
}

/// Sums over the slot. Shared pages count once per process.
pub(crate) fn sample(reach: Reach) -> Sample {
    processes(reach).into_iter().fold(Sample::default(), add)
}

/// Of one process and the children that it waited for.
pub(crate) fn sample_one(pid: i32) -> Sample {
    add(Sample::default(), pid)
}

fn add(mut sum: Sample, pid: i32) -> Sample {
    let (page_kb, tick_us) = (process::page_bytes() / 1024, 1_000_000 / process::ticks_per_s());
    let Some(stat) = stat(pid) else {
        return sum;
    };
    sum.processes += 1;
    sum.tasks += stat.threads;
    sum.user_us += stat.user_ticks * tick_us;
    sum.system_us += stat.system_ticks * tick_us;
    sum.rss_kb += stat.rss_pages * page_kb;
    sum
}

/// Memory with shared pages counted in parts (PSS). None where the kernel does not report it (before 4.14). Costs
/// milliseconds for large processes.
pub(crate) fn pss_kb(reach: Reach) -> Option<u64> {
    let mut sum = 0;
    let mut told = false;
    for pid in processes(reach) {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            continue;
        };
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let Some(kb) = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()) else {
            continue;
        };
        told = true;
        sum += kb;
    }
    told.then_some(sum)
}

/// Files that processes hold and that are in no directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// kB of files in memory (memfd_create(2), shared segments), by device and number: data that is written there and
    /// not mapped is in no process's RSS or PSS
    memory: HashMap<(u64, u64), u64>,
    /// bytes of removed files of the scratch, by number
    removed: HashMap<u64, u64>,
    /// kB of what is behind sockets and pipes, of queues and semaphores, and of page tables
    kernel_kb: u64,
    /// descriptors on their way through Unix sockets that could not be examined
    pub unseen: u64,
    /// kB of mappings of files in memory that no descriptor shows, by number
    mapped_only: HashMap<u64, u64>,
}

/// Names of such files in /proc/PID/fd and /proc/PID/smaps. Shared segments have their number as that of their file.
const MEMORY_FILES: [&str; 2] = ["/memfd:", "/SYSV"];
/// The same in /proc/PID/maps, with shared memory that has no other name.
const MAPPED_FILES: [&str; 2] = ["/memfd:", "/dev/zero (deleted)"];
/// Bytes of the kernel for each message and semaphore (struct msg_msg, struct sem of Linux, ipc/).
const MESSAGE_BYTES: u64 = 64;
const SEMAPHORE_BYTES: u64 = 64;
/// Replaces the device of shared segments, which the kernel does not report.
const SEGMENTS: u64 = u64::MAX;

impl Held {
    pub fn memory_kb(&self) -> u64 {
        self.files_kb() + self.kernel_kb
    }

    fn files_kb(&self) -> u64 {
        self.memory.values().sum()
    }

    pub fn removed_bytes(&self) -> u64 {
        self.removed.values().sum()
    }

    /// Looks at descriptors of the slot's processes; `threads`: and of each of their threads, which may have others of
    /// their own. `scratch`: device of a scratch outside of memory. About 3 us for each descriptor.
    pub fn find(reach: Reach, (threads, scratch): (bool, Option<u64>)) -> Held {
        let (mut held, mut ends) = (Held::default(), HashMap::new());
        let mut mapped = HashMap::new();
        for pid in processes(reach) {
            held.kernel_kb += page_tables_kb(pid);
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            join_largest(&mut mapped, shared_mappings(&maps));
            held.add((pid, None), scratch, &mut ends);
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok().filter(|_| threads);
            for task in tasks.into_iter().flatten().flatten().skip(1) {
                let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
                held.add((pid, thread), scratch, &mut ends);
            }
        }
        let Kept { bytes, files, unseen } = kept::find(&ends, is_in_memory);
        held.memory.extend(files);
        mapped.retain(|number, _| !held.memory.keys().any(|(_, known)| known == number));
        held.mapped_only = mapped;
        (held.kernel_kb, held.unseen) = (held.kernel_kb + bytes / 1024, unseen);
        if reach == Reach::Namespace {
            let table = |name: &str| fs::read_to_string(format!("/proc/sysvipc/{name}")).unwrap_or_default();
            held.memory.extend(segments(&table("shm")));
            held.kernel_kb += queues_kb(&table("msg")) + semaphores_kb(&table("sem"));
        }
        held
    }

    fn add(
        &mut self,
        (process, thread): (i32, Option<i32>),
        scratch: Option<u64>,
        ends: &mut HashMap<u64, End>,
    ) {
        let descriptors = match thread {
            None => format!("/proc/{process}/fd"),
            Some(thread) => format!("/proc/{process}/task/{thread}/fd"),
        };
        for entry in fs::read_dir(descriptors).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(at), Some(number)) = (kept::is_end(&target), number) {
                ends.entry(at).or_insert(End {
                    process,
                    thread,
                    number,
                });
                continue;
            }
            let in_memory = is_in_memory(&target);
            if !in_memory && (scratch.is_none() || !target.ends_with(" (deleted)")) {
                continue;
            }
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            if in_memory {
                let at = (metadata.dev(), metadata.ino());
                self.memory.insert(at, metadata.blocks() / 2);
            } else if metadata.nlink() == 0 && Some(metadata.dev()) == scratch {
                self.removed.insert(metadata.ino(), metadata.blocks() * 512);
            }
        }
    }

    /// kB of these files that PSS counts already. Costs as much as `pss_kb` several times.
    pub fn mapped_kb(&self, reach: Reach) -> u64 {
        if self.memory.is_empty() {
            return 0;
        }
        mapped_kb(reach, &|mapping| self.is_held(mapping)).min(self.files_kb())
    }

    fn is_held(&self, mapping: &Mapping<'_>) -> bool {
        let is_known = || self.memory.keys().any(|&(_, known)| known == mapping.number);
        is_in_memory(mapping.name) && is_known()
    }

    /// The most that pages of shared memory can be which are in no page table any more (madvise(2), MADV_DONTNEED): kB of
    /// what is mapped. `grown_kb`: what the node has more of shared memory than when the payload started; what is mapped
    /// and was never written takes none.
    pub fn dropped_kb_max(&self, grown_kb: u64) -> u64 {
        let mapped_kb: u64 = self.mapped_only.values().sum();
        mapped_kb.min(grown_kb.saturating_sub(self.files_kb()))
    }

    /// The same without what is in page tables, and so in PSS.
    pub fn dropped_kb(&self, reach: Reach, grown_kb: u64) -> u64 {
        let most_kb = self.dropped_kb_max(grown_kb);
        if most_kb == 0 {
            return 0;
        }
        let mapped_kb = mapped_kb(reach, &|mapping| self.mapped_only.contains_key(&mapping.number));
        most_kb.saturating_sub(mapped_kb)
    }
}

/// A line `from-to perms offset major:minor number name` of /proc/PID/maps or smaps (proc(5)).
struct Mapping<'a> {
    kb: u64,
    is_shared: bool,
    number: u64,
    name: &'a str,
}

/// None: a line of another kind.
fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let bytes = address(to)?.checked_sub(address(from)?)?;
    let is_shared = words.next()?.ends_with('s');
    let number = words.nth(2)?.parse().ok()?;
    let name = line.find('/').map_or("", |at| &line[at..]);
    Some(Mapping {
        kb: bytes / 1024,
        is_shared,
        number,
        name,
    })
}

/// kB by number of the file, of the text of one /proc/PID/maps.
fn shared_mappings(maps: &str) -> HashMap<u64, u64> {
    let mut found = HashMap::new();
    for each in maps.lines().filter_map(mapping) {
        let is_ours = MAPPED_FILES.iter().any(|name| each.name.starts_with(name));
        if is_ours && each.is_shared {
            *found.entry(each.number).or_insert(0) += each.kb;
        }
    }
    found
}

/// Several processes map the same.
fn join_largest(all: &mut HashMap<u64, u64>, more: HashMap<u64, u64>) {
    for (number, kb) in more {
        let known = all.entry(number).or_insert(0);
        *known = kb.max(*known);
    }
}

/// PSS of mappings of all processes.
fn mapped_kb(reach: Reach, wanted: &dyn Fn(&Mapping<'_>) -> bool) -> u64 {
    let maps = processes(reach)
        .into_iter()
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default());
    maps.map(|text| mapped_in(&text, wanted)).sum()
}

fn mapped_in(smaps: &str, wanted: &dyn Fn(&Mapping<'_>) -> bool) -> u64 {
    let (mut is_wanted, mut sum_kb) = (false, 0);
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            is_wanted = wanted(&mapping);
        } else if let (true, Some(rest)) = (is_wanted, line.strip_prefix("Pss:")) {
            let kb = rest.split_ascii_whitespace().next();
            sum_kb += kb.and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum_kb
}

fn is_in_memory(target: &str) -> bool {
    MEMORY_FILES.iter().any(|name| target.starts_with(name))
}

/// Of a process (proc(5), /proc/PID/status): memory that is reserved and never written takes page tables all the same.
fn page_tables_kb(pid: i32) -> u64 {
    let kb = proc::status(pid, "VmPTE").and_then(|text| text.split(' ').next()?.parse().ok());
    kb.unwrap_or(0)
}

/// Columns of these names of a table of /proc/sysvipc (proc(5)), line by line.
fn columns<const N: usize>(table: &str, wanted: [&str; N]) -> Vec<[u64; N]> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let places = wanted.map(|name| names.iter().position(|&found| found == name));
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let values = places.map(|place| words.get(place?)?.parse::<u64>().ok());
        values
            .iter()
            .all(Option::is_some)
            .then(|| values.map(Option::unwrap_or_default))
    };
    lines.filter_map(one).collect()
}

/// Number and kB in memory of each shared segment.
fn segments(table: &str) -> HashMap<(u64, u64), u64> {
    let found = columns(table, ["shmid", "rss"]);
    found
        .into_iter()
        .map(|[number, rss]| ((SEGMENTS, number), rss / 1024))
        .collect()
}

fn queues_kb(table: &str) -> u64 {
    let found = columns(table, ["cbytes", "qnum"]);
    let bytes: u64 = { found.iter() }
        .map(|[bytes, messages]| bytes + messages * MESSAGE_BYTES)
        .sum();
    bytes / 1024
}

fn semaphores_kb(table: &str) -> u64 {
    let found = columns(table, ["nsems"]);
    let bytes: u64 = found.iter().map(|[count]| count * SEMAPHORE_BYTES).sum();
    bytes / 1024
}

/// Of a process, also one that has ended and was not waited for yet.
pub(crate) fn traffic(pid: i32) -> Option<Traffic> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let value = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().parse::<u64>().ok()
    };
    Some(Traffic {
        read_bytes: value("rchar:")?,
        write_bytes: value("wchar:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_are_held_once_and_what_is_mapped_of_them_is_known() {
        let held = Held {
            memory: HashMap::from([((1, 77), 400), ((SEGMENTS, 3), 10)]),
            kernel_kb: 7,
            ..Held::default()
        };
        let smaps = "7f00-7f01 rw-s 00000000 00:01 77    /memfd:x (deleted)\nSize: 9 kB\nPss:   5 kB\nPss_Dirty: 4 kB\n\
            7f02-7f03 rw-s 00000000 00:01 78    /memfd:closed (deleted)\nPss:  100 kB\n\
            7f04-7f05 rw-s 00000000 00:01 3     /SYSV00000000 (deleted)\nPss:  10 kB\n\
            7f06-7f07 rw-p 00000000 00:00 0\nPss:  1000 kB\nVmFlags: rd wr\n";
        assert_eq!(
            (
                held.memory_kb(),
                mapped_in(smaps, &|mapping| held.is_held(mapping))
            ),
            (417, 15)
        );
    }

    #[test]
    fn shared_memory_is_known_by_its_mappings() {
        let maps = "7f00000000-7f00100000 rw-s 00000000 00:01 77    /dev/zero (deleted)\n\
            7f00100000-7f00200000 rw-s 00100000 00:01 77    /dev/zero (deleted)\n\
            7f01000000-7f01100000 rw-p 00000000 00:01 78    /memfd:a b (deleted)\n\
            7f02000000-7f02000400 rw-s 00000000 00:01 79    /memfd:a b (deleted)\n\
            7f03000000-7f03100000 rw-s 00000000 08:01 80    /tmp/dev/zero (deleted)\nVmFlags: rd wr\n";
        let mut found = shared_mappings(maps);
        assert_eq!(found, HashMap::from([(77, 2048), (79, 1)]));
        join_largest(&mut found, HashMap::from([(77, 1), (79, 5)]));
        assert_eq!(found, HashMap::from([(77, 2048), (79, 5)]));
    }

    #[test]
    fn what_is_mapped_and_was_not_written_counts_nothing() {
        let held = Held {
            memory: HashMap::from([((1, 77), 400)]),
            mapped_only: HashMap::from([(78, 8_000_000)]),
            ..Held::default()
        };
        assert_eq!(held.dropped_kb_max(0), 0);
        assert_eq!(held.dropped_kb_max(50_400), 50_000); // the file is counted as such
        assert_eq!(held.dropped_kb_max(9_000_000), 8_000_000);
        assert_eq!(held.dropped_kb(Reach::Namespace, 0), 0);
    }

    #[test]
    fn segments_are_read_by_the_names_of_columns() {
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n\
            \u{20}        0          3  1600            104857600    12    12      1     0     0     0     0 1 0 1             41943040                     0\n";
        assert_eq!(segments(table), HashMap::from([((SEGMENTS, 3), 40960)]));
        assert!(segments("").is_empty());
        let queues = "  key  msqid perms cbytes qnum lspid\n 0 0 1600 10000 1000 1\n 0 1 1600 240 1 1\n";
        assert_eq!(queues_kb(queues), (10_240 + 1001 * 64) / 1024);
        let semaphores = "  key semid perms nsems uid\n 0 0 600 32000 0\n 0 1 600 16 0\n";
        assert_eq!((semaphores_kb(semaphores), semaphores_kb("")), (2001, 0));
    }

    #[test]
    fn our_own_process_has_cpu_time_and_traffic() {
        let me = process::id();
        assert!(stat(me).is_some());
        assert!(traffic(me).is_some_and(|traffic| traffic.read_bytes > 0));
        let (proc, parent) = (Path::new("/proc"), stat(me).unwrap().parent);
        assert!(descendants_among(proc, parent).contains(&me));
        assert!(descendants(proc, parent).is_none_or(|found| found.contains(&me)));
    }

    #[test]
    fn descendants_are_found_through_the_tree_of_processes_and_nothing_else_is_read() {
        let proc = tempfile::tempdir().unwrap();
        let thread = |pid: i32, tid: i32, children: &str| {
            let at = proc.path().join(format!("{pid}/task/{tid}"));
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("children"), children).unwrap();
        };
        thread(10, 10, "11 12 ");
        thread(11, 11, "");
        thread(11, 21, "31 ");
        thread(12, 12, "13 ");
        thread(31, 31, "");
        thread(77, 77, "78 "); // another user's
        assert_eq!(descendants(proc.path(), 10), Some(vec![11, 12, 13, 31])); // 13 has just ended
        fs::remove_file(proc.path().join("10/task/10/children")).unwrap();
        assert_eq!(descendants(proc.path(), 10), None);
    }

    #[test]
    fn a_process_that_is_being_released_has_ended() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("13788")).unwrap();
        let text = |state, parent, group| {
            format!(
                "13788 (kill) {state} {parent} {group} -1 0 -1 4227148 17 0 0 0 0 0 0 0 20 0 0 0 7649499 0 0 0 0 0 0"
            )
        };
        for (line, parent) in [
            (text('Z', 40, 40), Some(40)),
            (text('Z', 0, -1), None),
            (text('X', 0, -1), None),
            (text('S', 0, 0), Some(0)), // it joined the namespace from outside
        ] {
            fs::write(proc.path().join("13788/stat"), line).unwrap();
            assert_eq!(stat_in(proc.path(), 13788).map(|stat| stat.parent), parent);
        }
    }

    #[test]
    fn where_children_are_not_listed_their_parents_tell() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent) in [(10, 1), (11, 10), (12, 11), (77, 1)] {
            let at = proc.path().join(pid.to_string());
            fs::create_dir(&at).unwrap();
            let rest = "0 ".repeat(22);
            fs::write(at.join("stat"), format!("{pid} (a) b) S {parent} {rest}")).unwrap();
        }
        assert_eq!(descendants_among(proc.path(), 10), [11, 12]);
    }
}
