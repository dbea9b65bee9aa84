//! What this machine says of itself: its name, its address towards others, its memory. Reads /proc and /sys.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::mountinfo::{mounts, Mount};

/// The name of this host; empty where the kernel does not say.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Whether this kernel is older than a version; one that does not say is not.
pub fn kernel_is_before(version: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel_version(&release).is_some_and(|own| own < version)
}

/// Of a release such as `3.10.0-1160.el7.x86_64`. Pure.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The address that this machine uses towards others: the source of what would go by the default route, or to a private
/// network where there is no such route, else the first of its own that is not the loopback's. Nothing is sent.
pub fn outbound_address() -> Option<IpAddr> {
    // 192.0.2.0/24 is reserved for documentation (RFC 5737): never local, so the default route answers
    let source = |target: &str| {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect(target).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified()).then_some(address)
    };
    source("192.0.2.1:9")
        .or_else(|| source("10.255.255.255:9"))
        .or_else(|| first_local(&std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default()))
}

/// Of the kernel's table of routes (fib_trie of proc(5)): an address line is followed by what it is. Pure.
fn first_local(table: &str) -> Option<IpAddr> {
    let mut last: Option<Ipv4Addr> = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" && last.is_some_and(|address| !address.is_loopback()) {
            return last.map(IpAddr::V4);
        }
    }
    None
}

/// Memory of this machine, and what of it programs can have without swapping (proc_meminfo(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
}

pub fn memory() -> MachineMemory {
    memory_of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// As /proc/meminfo says. Pure.
fn memory_of(text: &str) -> MachineMemory {
    let bytes = |name: &str| {
        let rest = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    MachineMemory {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
    }
}

/// The control groups of this process: the controllers of a hierarchy (empty: version 2) and our directory in it, where
/// it is mounted (cgroups(7)).
pub fn control_groups() -> Vec<(String, PathBuf)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    control_groups_of(&read("/proc/self/cgroup"), &mounts(&read("/proc/self/mountinfo")))
}

/// As /proc/self/cgroup and the mounts say. Pure.
pub fn control_groups_of(groups: &str, mounts: &[Mount]) -> Vec<(String, PathBuf)> {
    let one = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let mount = mounts.iter().find(|mount| is_hierarchy(mount, controllers))?;
        let ours = Path::new(&mount.point).join(path.trim_start_matches('/'));
        Some((controllers.to_owned(), ours))
    };
    groups.lines().filter_map(one).collect()
}

fn is_hierarchy(mount: &Mount, controllers: &str) -> bool {
    let has = |wanted: &str| mount.options.split(',').any(|option| option == wanted);
    match controllers {
        "" => mount.kind == "cgroup2",
        list => mount.kind == "cgroup" && list.split(',').all(has),
    }
}

/// The smallest memory limit from our control groups up to the roots of their hierarchies.
pub fn memory_limit_bytes() -> Option<u64> {
    memory_limit_of(&control_groups(), |path| std::fs::read_to_string(path).ok())
}

/// As the files of these groups say, which `read` gives. Pure.
fn memory_limit_of(groups: &[(String, PathBuf)], read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let smallest = |group: &Path| {
        group
            .ancestors()
            .take_while(|above| above.starts_with("/sys/fs/cgroup"))
            .flat_map(|above| ["memory.max", "memory.limit_in_bytes"].map(|name| above.join(name)))
            .filter_map(|path| read(&path)?.trim().parse::<u64>().ok())
            .filter(|&bytes| bytes < 1 << 60) // cgroup-v1/memory.rst: no limit is a number near 2^63
            .min()
    };
    groups.iter().filter_map(|(_, group)| smallest(group)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels_compare_as_numbers() {
        let own = |release| kernel_version(release);
        assert_eq!(own("3.10.0-1160.el7.x86_64\n"), Some((3, 10)));
        assert!(own("4.18.0-553").unwrap() > (4, 8));
        assert_eq!(own("6.8-rc1"), Some((6, 8)));
        assert_eq!(own(""), None);
        assert!(!kernel_is_before((1, 0)) && kernel_is_before((9999, 0)));
    }

    #[test]
    fn a_hierarchy_is_found_by_its_controllers() {
        let table = mounts(
            "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
             32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        );
        let groups = "4:cpu,cpuacct:/a\n3:memory:/b\n0::/c/d\nnonsense\n";
        let expected = [
            (
                "cpu,cpuacct".to_owned(),
                PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/a"),
            ),
            (String::new(), PathBuf::from("/sys/fs/cgroup/unified/c/d")),
        ];
        assert_eq!(control_groups_of(groups, &table), expected);
    }

    #[test]
    fn the_smallest_limit_up_the_tree_counts() {
        let table = mounts(
            "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
             32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             33 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        );
        let limit = |groups: &str, files: &[(&str, &str)]| {
            memory_limit_of(&control_groups_of(groups, &table), |wanted| {
                let mut files = files.iter();
                let (_, text) = files.find(|(path, _)| Path::new(path) == wanted)?;
                Some((*text).to_owned())
            })
        };
        let new = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
        ];
        assert_eq!(limit("0::/a/b\n", &new), Some(2048 << 20));
        assert_eq!(limit("0::/\n", &new), None);
        let old = "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes";
        let groups = "9:cpu:/x\n5:memory:/slurm/job_7\n";
        assert_eq!(limit(groups, &[(old, "1073741824\n")]), Some(1024 << 20));
        let none = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit("5:memory:/\n", &[(none, "9223372036854771712")]), None);
    }

    #[test]
    fn an_address_is_found_where_there_is_no_default_route() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\nLocal:\n     |-- 127.0.0.1\n        \
                     /32 host LOCAL\n     |-- 10.1.2.0\n        /24 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(first_local(table), Some(IpAddr::from([10, 1, 2, 3])));
        assert_eq!(first_local("     |-- 127.0.0.1\n        /32 host LOCAL\n"), None);
    }

    #[test]
    fn memory_is_read_in_bytes_and_what_is_not_there_is_none() {
        let found = memory_of("MemTotal:       50331648 kB\nMemFree: 1 kB\n");
        assert_eq!(
            (found.total_bytes, found.available_bytes),
            (Some(50_331_648 << 10), None)
        );
        assert_eq!(memory_of("nothing").total_bytes, None);
        assert!(memory().total_bytes.is_some_and(|bytes| bytes > 0) && !host().is_empty());
    }
}
