//! What the kernel counts of this node's traffic with shared file systems: parsers of its texts. Pure.
//!
//! - NFS: `/proc/self/mountstats`. Requests of each kind and bytes from and to the server (net/sunrpc/stats.c and
//!   fs/nfs/iostat.h of Linux; mountstats(8)).
//! - Lustre: `md_stats` of each metadata client counts requests that were sent; where it is closed to us, `stats` of llite
//!   counts calls, some of which a cache answers (Lustre manual, "Monitoring Client Activity").
//! - local devices: `io.stat` of our cgroup has bytes (Linux, admin-guide/cgroup-v2).

use tidemill_sys::mountinfo::unescaped;

/// Since the mount, or since the node has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// metadata requests; None = nobody counts them
    pub ops: Option<u64>,
    /// None = nobody counts them
    pub bytes: Option<u64>,
}

impl Counted {
    pub fn add(&mut self, other: Counted) {
        if let Some(ops) = other.ops {
            self.ops = Some(self.ops.unwrap_or(0).saturating_add(ops));
        }
        if let Some(bytes) = other.bytes {
            self.bytes = Some(self.bytes.unwrap_or(0).saturating_add(bytes));
        }
    }

    /// What came since; a counter that went back was started again.
    pub fn since(self, before: Counted) -> Counted {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Counted {
            ops: self.ops.map(|ops| since(ops, before.ops.unwrap_or(ops))),
            bytes: self
                .bytes
                .map(|bytes| since(bytes, before.bytes.unwrap_or(bytes))),
        }
    }
}

/// Requests that move data; all others are metadata. `NULL` is a ping.
const NFS_DATA: [&str; 4] = ["NULL", "READ", "WRITE", "COMMIT"];
const LLITE_METADATA: [&str; 16] = [
    "open", "close", "readdir", "setattr", "truncate", "getattr", "create", "link", "unlink", "symlink",
    "mkdir", "rmdir", "mknod", "rename", "statfs", "getxattr",
];

/// Per device of an NFS mount: one that is mounted twice counts once.
pub fn nfs(text: &str) -> Vec<(String, Counted)> {
    let mut found: Vec<(String, Counted)> = Vec::new();
    let mut current: Option<(String, Counted)> = None;
    let mut in_operations = false;
    let mut keep = |ended: Option<(String, Counted)>| {
        if let Some((device, counted)) = ended {
            if !found.iter().any(|(known, _)| *known == device) {
                found.push((device, counted));
            }
        }
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"device") {
            keep(current.take());
            in_operations = false;
            let kind = words
                .iter()
                .position(|&word| word == "fstype")
                .map(|at| words.get(at + 1));
            if matches!(kind, Some(Some(kind)) if kind.starts_with("nfs") && *kind != "nfsd") {
                current = words.get(1).map(|device| (unescaped(device), Counted::default()));
            }
            continue;
        }
        let Some((_, counted)) = &mut current else {
            continue;
        };
        match words.as_slice() {
            ["bytes:", numbers @ ..] => {
                // normal read, normal written, direct read, direct written, from the server, to the server
                let server = numbers
                    .iter()
                    .skip(4)
                    .take(2)
                    .filter_map(|word| word.parse::<u64>().ok());
                counted.bytes = Some(server.fold(0, u64::saturating_add));
            }
            ["per-op", "statistics"] => in_operations = true,
            [name, operations, _, ..] if in_operations && name.ends_with(':') => {
                let name = name.trim_end_matches(':');
                if !NFS_DATA.contains(&name) {
                    let ops = operations.parse().ok();
                    counted.add(Counted { ops, bytes: None });
                }
            }
            _ => {}
        }
    }
    keep(current);
    found
}

/// Requests of `md_stats` of one metadata client.
pub fn lustre_md(text: &str) -> u64 {
    rows(text).map(|(_, count, _)| count).fold(0, u64::saturating_add)
}

/// Calls and bytes of `stats` of one llite mount.
pub fn llite(text: &str) -> Counted {
    let mut counted = Counted {
        ops: None,
        bytes: Some(0),
    };
    for (name, count, sum) in rows(text) {
        if LLITE_METADATA.contains(&name) {
            counted.add(Counted {
                ops: Some(count),
                bytes: None,
            });
        } else if name == "read_bytes" || name == "write_bytes" {
            counted.add(Counted {
                ops: None,
                bytes: Some(sum),
            });
        }
    }
    counted
}

/// `NAME COUNT samples [UNIT] MIN MAX SUM ...`
fn rows(text: &str) -> impl Iterator<Item = (&str, u64, u64)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(2) != Some(&"samples") {
            return None;
        }
        let sum = words.get(6).and_then(|word| word.parse().ok()).unwrap_or(0);
        Some((words[0], words[1].parse().ok()?, sum))
    })
}

/// Bytes per device of a cgroup's `io.stat`.
pub fn cgroup_io(text: &str) -> Vec<(String, u64)> {
    let one = |line: &str| {
        let mut words = line.split_whitespace();
        let device = words.next()?.to_owned();
        let value = |word: &str| {
            let (key, value) = word.split_once('=')?;
            (key == "rbytes" || key == "wbytes").then(|| value.parse::<u64>().ok())?
        };
        Some((device, words.filter_map(value).fold(0, u64::saturating_add)))
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NFS: &str = "\
device sysfs mounted on /sys with fstype sysfs
device srv:/sw mounted on /sw with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=131072,acregmin=3,proto=tcp,clientaddr=192.0.2.5
\tage:\t83520
\tevents:\t52472 472680 16671 57552 2104 9565 749555 9568641 168 24103 1 267134 3350 20097 116581 18214 43757 1 0 28 9563845 34 0 0 0 0 0
\tbytes:\t2021340783 39056395530 0 0 1788561151 39087991255 442605 9557343
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 940 0 2 0 1 938505 938504 0 12756069 0 32 254729 10823602
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 34096 34096 0 7103096 1792122744 2272 464840 467945 0
\t       WRITE: 322308 322308 0 39161277084 56725504 401718334 10139998 411864389 0
\t        OPEN: 12637 12637 0 3923256 4659940 871 57185 58251 394
\t     GETATTR: 52480 52480 0 10015464 12694076 2930 30069 34502 0
\t      LOOKUP: 11727 11727 0 2518200 2886376 272 16935 17662 3546

device srv:/sw mounted on /again with fstype nfs4 statvers=1.1
\tbytes:\t1 1 0 0 1 1 1 1
\tper-op statistics
\t        OPEN: 12637 12637 0 3923256 4659940 871 57185 58251 394
device srv:/home mounted on /my\\040home with fstype nfs statvers=1.1
\tbytes:\t7 8 0 0 20 10 0 0
\tper-op statistics
\t      ACCESS: 5 5 0 526 362 1 1 1
";
    const LLITE: &str = "\
snapshot_time             1510950459.772792457 secs.nsecs
read_bytes                1 samples [bytes] 4194304 4194304 4194304
write_bytes               894 samples [bytes] 4096 1048576 93813797294080
open                      136 samples [regs]
close                     96 samples [usecs] 63 194037 5402095148 11956065309788
inode_permission          398 samples [regs]
getxattr_hits             20 samples [regs]
";
    const MD: &str = "\
snapshot_time             1510950459.782265624 secs.nsecs
close                     11 samples [reqs]
getattr                   1 samples [reqs]
intent_lock               329 samples [reqs]
";

    #[test]
    fn nfs_requests_that_move_no_data_are_metadata_and_a_second_mount_of_a_device_counts_once() {
        let found = nfs(NFS);
        let sw = Counted {
            ops: Some(12637 + 52480 + 11727),
            bytes: Some(1_788_561_151 + 39_087_991_255),
        };
        let home = Counted {
            ops: Some(5),
            bytes: Some(30),
        };
        assert_eq!(found, [("srv:/sw".into(), sw), ("srv:/home".into(), home)]);
        assert!(nfs("device x mounted on / with fstype ext4\nrubbish: 1 2 3\n").is_empty());
    }

    #[test]
    fn lustre_counts_requests_of_metadata_clients_or_calls_of_a_mount() {
        assert_eq!(lustre_md(MD), 341);
        let expected = Counted {
            ops: Some(136 + 96),
            bytes: Some(4_194_304 + 93_813_797_294_080),
        };
        assert_eq!(llite(LLITE), expected);
    }

    #[test]
    fn cgroups_are_read_as_the_kernel_writes_them() {
        let io = "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n8:0 rbytes=1\n";
        assert_eq!(cgroup_io(io), [("8:16".into(), 316_232_704), ("8:0".into(), 1)]);
    }

    #[test]
    fn a_counter_that_went_back_counts_from_nothing() {
        let [old, new, expected] = [(10, 5), (4, 9), (4, 4)].map(|(ops, bytes)| Counted {
            ops: Some(ops),
            bytes: Some(bytes),
        });
        assert_eq!(new.since(old), expected);
        let none = Counted {
            ops: None,
            bytes: Some(0),
        };
        assert_eq!(old.since(none).ops, Some(0)); // one that was closed to us before says nothing yet
    }
}
