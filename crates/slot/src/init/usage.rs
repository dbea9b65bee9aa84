//! What the processes of a slot use, read from /proc.

use std::fs;

use tidemill_sys::process;

/// Sums over the processes of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub rss_kb: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub processes: u64,
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
    let me = process::id();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let ids: Vec<i32> = ids.filter(|&pid| pid != me).collect();
    match reach {
        Reach::Namespace => ids,
        Reach::Descendants => descendants(me, &ids),
    }
}

fn descendants(of: i32, ids: &[i32]) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = ids
        .iter()
        .filter_map(|&pid| Some((pid, stat(pid)?.parent)))
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

struct Stat {
    parent: i32,
    user_ticks: u64,
    system_ticks: u64,
    rss_pages: u64,
}

/// proc(5): after the name in parentheses come state, ppid and 9 others, then utime, stime, cutime, cstime, and 6 others
/// later rss.
fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        user_ticks: ticks(11)? + ticks(13)?,
        system_ticks: ticks(12)? + ticks(14)?,
        rss_pages: ticks(21)?,
    })
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
    sum.user_us += stat.user_ticks * tick_us;
    sum.system_us += stat.system_ticks * tick_us;
    sum.rss_kb += stat.rss_pages * page_kb;
    sum
}

/// Shared pages count in parts (PSS). None where the kernel does not tell (before 4.14). Costs milliseconds for large
/// processes.
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
    fn our_own_process_has_cpu_time_and_traffic() {
        let me = process::id();
        assert!(stat(me).is_some());
        assert!(traffic(me).is_some_and(|traffic| traffic.read_bytes > 0));
        let parent = stat(me).unwrap().parent;
        assert!(descendants(parent, &[me]).contains(&me));
    }
}
