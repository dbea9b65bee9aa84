//! What the kernel says of the whole node: parsers of its texts. Pure; a figure that a text does not hold is absent.
//!
//! Sources: proc(5) and its pages for stat, loadavg, meminfo, vmstat, net/dev; Linux, Documentation/accounting/psi and
//! Documentation/admin-guide/iostats.

use std::collections::BTreeMap;

/// Named counters of devices, mounts or cores.
pub type Counters = BTreeMap<String, Vec<u64>>;

/// Bytes of a sector in /proc/diskstats, whatever the device has (iostats).
const SECTOR_BYTES: u64 = 512;
/// Interfaces that carry nothing of the node's own, where the kernel does not say which have a device.
const VIRTUAL: [&str; 12] = [
    "lo", "veth", "docker", "virbr", "br-", "ifb", "tun", "tap", "dummy", "bond", "cni", "flannel",
];

/// Ticks of all cores, or of one: user, nice, system with interrupts, iowait, idle, steal.
pub const TIMES: usize = 6;

/// Of `cpu` (all cores) and of each `cpuN`, by that name. Old kernels say less: absent times are 0.
pub fn processor_times(stat: &str) -> Counters {
    let one = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|name| name.starts_with("cpu"))?;
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let at = |place: usize| numbers.get(place).copied().unwrap_or(0);
        let system = at(2).saturating_add(at(5)).saturating_add(at(6));
        let times = vec![at(0), at(1), system, at(4), at(3), at(7)];
        (numbers.len() >= 4).then(|| (name.to_owned(), times))
    };
    stat.lines().filter_map(one).collect()
}

/// Load of one minute in thousandths, and processes that run or could.
pub fn load(loadavg: &str) -> (Option<u64>, Option<u64>) {
    let words: Vec<&str> = loadavg.split_ascii_whitespace().collect();
    let load = words.first().and_then(|word| word.parse::<f64>().ok());
    let load = load.filter(|load| (0.0..1e9).contains(load));
    let running = words.get(3).and_then(|word| word.split_once('/'));
    (
        load.map(|load| (load * 1000.0).round() as u64),
        running.and_then(|(running, _)| running.parse().ok()),
    )
}

/// Microseconds for which some, and all, processes waited.
pub fn pressure(text: &str) -> (Option<u64>, Option<u64>) {
    let of = |kind: &str| {
        let line = text
            .lines()
            .find(|line| line.split_ascii_whitespace().next() == Some(kind))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    };
    (of("some"), of("full"))
}

/// `NAME: VALUE kB` and `NAME VALUE`, as in meminfo and vmstat.
fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([':', ' ']).then_some(rest)
    })?;
    let word = line.trim_start_matches(':').split_ascii_whitespace().next()?;
    word.parse().ok()
}

/// Memory in kB: of the node, what programs cannot have without swapping, page cache (without files in memory), swap.
pub fn memory(meminfo: &str) -> [(&'static str, Option<u64>); 4] {
    let of = |name| value(meminfo, name);
    let files = of("Cached").map(|cached| cached.saturating_add(of("Buffers").unwrap_or(0)));
    let cache = files.map(|files| files.saturating_sub(of("Shmem").unwrap_or(0)));
    // MemAvailable is of Linux 3.14
    let available = of("MemAvailable").or_else(|| Some(of("MemFree")?.saturating_add(cache.unwrap_or(0))));
    let less = |all: Option<u64>, rest: Option<u64>| Some(all?.saturating_sub(rest?));
    [
        ("memory_kb", of("MemTotal")),
        ("used_kb", less(of("MemTotal"), available)),
        ("cached_kb", cache),
        ("swap_kb", less(of("SwapTotal"), of("SwapFree"))),
    ]
}

/// Pages since the start: swapped in, swapped out, major faults.
pub fn paging(vmstat: &str) -> [(&'static str, Option<u64>); 3] {
    [
        ("swapped_in", value(vmstat, "pswpin")),
        ("swapped_out", value(vmstat, "pswpout")),
        ("major_faults", value(vmstat, "pgmajfault")),
    ]
}

/// Bytes in, bytes out, packets in, packets out of each interface.
pub fn interfaces(text: &str) -> Counters {
    let one = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let at = |place: usize| numbers.get(place).copied();
        let found = vec![at(0)?, at(8)?, at(1)?, at(9)?];
        Some((name.trim().to_owned(), found))
    };
    text.lines().filter_map(one).collect()
}

/// Whether an interface's name is one of no device.
pub fn is_virtual(interface: &str) -> bool {
    VIRTUAL.iter().any(|prefix| interface.starts_with(prefix))
}

/// Bytes read, bytes written, operations, milliseconds in which there was at least one, of each device.
pub fn disks(text: &str) -> Counters {
    let one = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let found = vec![
            number(5)?.saturating_mul(SECTOR_BYTES),
            number(9)?.saturating_mul(SECTOR_BYTES),
            number(3)?.saturating_add(number(7)?),
            number(12)?,
        ];
        Some(((*words.get(2)?).to_owned(), found))
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_cores_and_of_each_are_told_with_interrupts_as_system() {
        let text = "cpu  100 20 30 4000 50 6 7 8 9 0\ncpu0 60 20 10 2000 50 6 0 8\ncpu1 40 0 20 2000 0 0 7 0 9 0\nintr 7 1\n";
        let found = processor_times(text);
        assert_eq!(found["cpu"], [100, 20, 43, 50, 4000, 8]);
        assert_eq!(found["cpu1"], [40, 0, 27, 0, 2000, 0]);
        assert_eq!(found.len(), 3);
        assert_eq!(
            processor_times("cpu 1 2 3 4\ncpux 1\n")["cpu"],
            [1, 2, 3, 0, 4, 0]
        ); // Linux 2.4
    }

    #[test]
    fn load_and_what_runs_are_read_or_absent() {
        assert_eq!(load("3.127 1.07 0.69 5/148 30744\n"), (Some(3127), Some(5)));
        assert_eq!(load("x 1 1"), (None, None));
        assert_eq!(load("-1 1 1 a/2 3"), (None, None));
    }

    #[test]
    fn pressure_is_the_total_of_some_and_of_full() {
        let text = "some avg10=0.10 avg60=2.00 avg300=3.85 total=15\nfull avg10=0.20 avg60=3.00 avg300=4.95 total=25\n";
        assert_eq!(pressure(text), (Some(15), Some(25)));
        assert_eq!(
            pressure("some avg10=0 avg60=0 avg300=0 total=9\n"),
            (Some(9), None)
        ); // cpu before Linux 5.13
        assert_eq!(pressure(""), (None, None));
    }

    #[test]
    fn files_in_memory_are_no_page_cache_and_old_kernels_do_not_say_what_is_available() {
        let text =
            "MemTotal:  1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nBuffers: 50 kB\nCached: 400 kB\n\
            SwapCached: 7 kB\nSwapTotal: 90 kB\nSwapFree: 70 kB\nShmem: 100 kB\n";
        let found = BTreeMap::from(memory(text));
        assert_eq!(found["used_kb"], Some(400));
        assert_eq!((found["cached_kb"], found["swap_kb"]), (Some(350), Some(20)));
        let old = text.replace("MemAvailable", "Other");
        assert_eq!(BTreeMap::from(memory(&old))["used_kb"], Some(1000 - 300 - 350));
        assert!(memory("").iter().all(|(_, value)| value.is_none()));
    }

    #[test]
    fn interfaces_and_disks_are_read_line_by_line() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets |bytes packets\n\
            \x20   lo: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n  ib0:10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n  eth9: 1 2\n";
        let found = interfaces(text);
        assert_eq!(found["ib0"], [10, 30, 20, 40]);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ib0", "lo"]);
        assert!(is_virtual("veth12ab") && is_virtual("lo") && !is_virtual("hsn0"));
        let text = "   8       0 sda 10 0 20 0 30 0 40 0 0 55 0 1 2 3 4\n   8 1 sda1 1 2\n";
        assert_eq!(
            disks(text),
            [("sda".to_owned(), vec![10_240, 20_480, 40, 55])].into()
        );
    }

    #[test]
    fn paging_is_counted_in_pages() {
        let found = BTreeMap::from(paging(
            "pgpgin 1\npswpin 2\npswpout 3\npgmajfault 4\npgmajfault_x 5\n",
        ));
        assert_eq!(found["swapped_in"], Some(2));
        assert_eq!((found["swapped_out"], found["major_faults"]), (Some(3), Some(4)));
    }
}
