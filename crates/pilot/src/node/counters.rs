//! What the kernel counts of this node's traffic with shared file systems: parsers of its texts. Pure.
//!
//! - NFS: `/proc/self/mountstats`. Requests of each kind and bytes from and to the server (net/sunrpc/stats.c and
//!   include/linux/nfs_iostat.h of Linux; mountstats(8)).
//! - Lustre: `md_stats` of each metadata client counts requests that were sent; where it is closed to us, `stats` of llite
//!   counts calls, some of which a cache answers (Lustre manual, "Monitoring Client Activity").
//! - local devices: `io.stat` of our cgroup has bytes (Linux, admin-guide/cgroup-v2).
//!
//! Opens and closes of files:
//!
//! - NFSv4: requests OPEN, OPEN_NOATTR (an open by file handle) and CLOSE. Opens that fail are among them; what a delegation
//!   of the server covers is not. The calls in `events:` lack them: nfs4_file_open and nfs_atomic_open (fs/nfs) do not
//!   count there.
//! - NFSv3 and v2 have no such requests. `events:` counts calls: NFSIOS_VFSOPEN of files and directories that exist,
//!   NFSIOS_VFSRELEASE of files only (nfs_opendir and nfs_file_open count, nfs_closedir does not).
//! - Lustre: `open` and `close` of llite count calls for files and directories (ll_file_open, ll_file_release; not of the
//!   root of the mount). `md_stats` has `close` only: its opens are among `intent_lock`.

use tidemill_sys::mountinfo::unescaped;

/// Since the mount, or since the node has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// metadata requests; None = not counted
    pub ops: Option<u64>,
    /// None = not counted
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

    /// The increase since `before`; a counter that decreased was reset.
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

/// A mounted NFS export since it was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfsMount {
    pub device: String,
    pub point: String,
    /// metadata requests, and bytes from and to the server
    pub counted: Counted,
    /// requests of every kind but pings
    pub ops: u64,
    /// transmissions of them: more than `ops` where some were repeated
    pub sent: u64,
    /// from the last transmission to the reply, all together
    pub rtt_ms: u64,
    /// bytes from and to the server
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub files: Files,
}

/// Files that were opened and closed since the mount; None = not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub opens: Option<u64>,
    pub closes: Option<u64>,
}

impl Files {
    /// The increase since `before`; None = one of the two is not known, or the counter went back.
    pub fn since(self, before: Files) -> Files {
        let since = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
        Files {
            opens: since(self.opens, before.opens),
            closes: since(self.closes, before.closes),
        }
    }

    /// Of both; None where one of them is not known: a part would look like the sum.
    pub fn plus(self, other: Files) -> Files {
        let plus = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Files {
            opens: plus(self.opens, other.opens),
            closes: plus(self.closes, other.closes),
        }
    }
}

impl NfsMount {
    /// `OPERATION: requests transmissions timeouts bytes-out bytes-in queue-ms rtt-ms execute-ms [errors]`
    fn add(&mut self, name: &str, numbers: &[&str]) {
        let number = |at: usize| numbers.get(at).and_then(|word| word.parse::<u64>().ok());
        if !NFS_DATA.contains(&name) {
            let (ops, bytes) = (number(0), None);
            self.counted.add(Counted { ops, bytes });
        }
        if name == "NULL" {
            return;
        }
        let add = |sum: &mut u64, at: usize| *sum = sum.saturating_add(number(at).unwrap_or(0));
        add(&mut self.ops, 0);
        add(&mut self.sent, 1);
        add(&mut self.rtt_ms, 6);
        let more = |sum: Option<u64>| Some(sum.unwrap_or(0).saturating_add(number(0)?));
        match name {
            "OPEN" | "OPEN_NOATTR" => self.files.opens = more(self.files.opens),
            "CLOSE" => self.files.closes = more(self.files.closes),
            _ => {}
        }
    }
}

/// Places of calls in `events:`, enum nfs_stat_eventcounters of include/linux/nfs_iostat.h.
const NFSIOS_VFSOPEN: usize = 4;
const NFSIOS_VFSRELEASE: usize = 17;

/// The NFS mounts of `/proc/self/mountstats`: a device that is mounted twice counts once.
pub fn nfs(text: &str) -> Vec<NfsMount> {
    let mut found: Vec<NfsMount> = Vec::new();
    let mut current: Option<NfsMount> = None;
    let mut called = Files::default();
    let mut in_operations = false;
    let mut keep = |ended: Option<NfsMount>| {
        if let Some(mount) = ended {
            if !found.iter().any(|known| known.device == mount.device) {
                found.push(mount);
            }
        }
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"device") {
            keep(current.take());
            (called, in_operations) = (Files::default(), false);
            let after = |word: &str| {
                let at = words.iter().position(|&each| each == word)?;
                words.get(at + 1).copied()
            };
            if after("fstype").is_some_and(|kind| kind.starts_with("nfs") && kind != "nfsd") {
                current = words.get(1).map(|device| NfsMount {
                    device: unescaped(device),
                    point: unescaped(after("on").unwrap_or_default()),
                    ..NfsMount::default()
                });
            }
            continue;
        }
        let Some(mount) = &mut current else {
            continue;
        };
        match words.as_slice() {
            ["bytes:", numbers @ ..] => {
                // normal read, normal written, direct read, direct written, from the server, to the server
                let bytes = |at: usize| numbers.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
                (mount.read_bytes, mount.write_bytes) = (bytes(4), bytes(5));
                mount.counted.bytes = Some(mount.read_bytes.saturating_add(mount.write_bytes));
            }
            ["events:", numbers @ ..] => {
                let calls = |at: usize| numbers.get(at).and_then(|word| word.parse().ok());
                (called.opens, called.closes) = (calls(NFSIOS_VFSOPEN), calls(NFSIOS_VFSRELEASE));
            }
            // program and version of the protocol
            ["RPC", .., "p/v:", "100003/2" | "100003/3", _] => mount.files = called,
            ["per-op", "statistics"] => in_operations = true,
            [name, numbers @ ..] if in_operations && name.ends_with(':') && numbers.len() > 1 => {
                mount.add(name.trim_end_matches(':'), numbers);
            }
            _ => {}
        }
    }
    keep(current);
    found
}

/// Of `stats` of one llite mount, which lists a counter once it was used.
pub fn llite_files(text: &str) -> Files {
    Files {
        opens: Some(count(text, "open")),
        closes: Some(count(text, "close")),
    }
}

/// Requests to close a file, of `md_stats` of one metadata client.
pub fn lustre_md_closes(text: &str) -> u64 {
    count(text, "close")
}

fn count(text: &str, wanted: &str) -> u64 {
    let found = rows(text).filter(|(name, _, _)| *name == wanted);
    found.map(|(_, count, _)| count).fold(0, u64::saturating_add)
}

/// Requests of `md_stats` of one metadata client.
pub fn lustre_md(text: &str) -> u64 {
    rows(text).map(|(_, count, _)| count).fold(0, u64::saturating_add)
}

/// Bytes that were read and written through one llite mount, by its `stats`.
pub fn llite_bytes(text: &str) -> (u64, u64) {
    let of = |wanted: &str| {
        let found = rows(text).filter(|(name, _, _)| *name == wanted);
        found.map(|(_, _, sum)| sum).fold(0, u64::saturating_add)
    };
    (of("read_bytes"), of("write_bytes"))
}

/// Calls and bytes of `stats` of one llite mount.
pub fn llite(text: &str) -> Counted {
    let (read, written) = llite_bytes(text);
    let mut counted = Counted {
        ops: None,
        bytes: Some(read.saturating_add(written)),
    };
    for (name, count, _) in rows(text) {
        if LLITE_METADATA.contains(&name) {
            let ops = Some(count);
            counted.add(Counted { ops, bytes: None });
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
        let counted: Vec<_> = found
            .iter()
            .map(|each| (each.device.as_str(), each.counted))
            .collect();
        assert_eq!(counted, [("srv:/sw", sw), ("srv:/home", home)]);
        assert_eq!(
            (found[0].point.as_str(), found[1].point.as_str()),
            ("/sw", "/my home")
        );
        assert_eq!(found[0].ops, 34096 + 322_308 + 12637 + 52480 + 11727);
        assert_eq!(
            (found[0].sent, found[0].rtt_ms),
            (found[0].ops, 464_840 + 10_139_998 + 57185 + 30069 + 16935)
        );
        assert_eq!((found[1].read_bytes, found[1].write_bytes), (20, 10));
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

    /// A mount of a version of the protocol; `operations` are lines of its list.
    fn mount(point: &str, protocol: u32, events: &str, operations: &str) -> String {
        let kind = if protocol == 4 { "nfs4" } else { "nfs" };
        format!(
            "device srv:{point} mounted on {point} with fstype {kind} statvers=1.1\n\
             \tage:\t600\n\tevents:\t{events} \n\tbytes:\t1 2 0 0 3 4 5 6\n\
             \tRPC iostats version: 1.1  p/v: 100003/{protocol} (nfs)\n\
             \txprt:\ttcp 0 1 2 0 0 9 9 0 9 0 2 0 0\n\tper-op statistics\n\
             \t        NULL: 1 1 0 44 24 0 0 0 0\n{operations}\n"
        )
    }

    fn files(opens: u64, closes: u64) -> Files {
        Files {
            opens: Some(opens),
            closes: Some(closes),
        }
    }

    #[test]
    fn nfs_counts_opens_by_requests_where_the_protocol_has_them_and_by_calls_elsewhere() {
        // 27 numbers: 801 opens in place 4, 790 releases in place 17
        let events = "9 300 0 7 801 12 900 0 5 40 0 3 2 0 790 1 0 790 0 0 0 0 0 0 0 0 0";
        // a client of NFSv4 does not count opens of files there: 1 is a directory
        let events_4 = "9 300 0 7 1 12 900 0 5 40 0 3 2 0 790 1 0 790 0 0 0 0 0 0 0 0 0";
        // of 4.0, kernel before 5.3: without the column of errors
        let of_40 = "\t        OPEN: 700 701 0 5 6 7 8 9\n\t  OPEN_CONFIRM: 350 350 0 5 6 7 8 9\n\
                     \t OPEN_NOATTR: 40 40 0 5 6 7 8 9\n\t OPEN_DOWNGRADE: 3 3 0 5 6 7 8 9\n\
                     \t       CLOSE: 690 690 0 5 6 7 8 9\n";
        let of_41 = "\t        OPEN: 0 0 0 0 0 0 0 0 0\n\t OPEN_NOATTR: 12 12 0 5 6 7 8 9 4\n\
                     \t       CLOSE: 8 8 0 5 6 7 8 9 0\n\t EXCHANGE_ID: 1 1 0 5 6 7 8 9 0\n";
        let unused = "\t        OPEN: 0 0 0 0 0 0 0 0 0\n\t OPEN_NOATTR: 0 0 0 0 0 0 0 0 0\n\
                      \t       CLOSE: 0 0 0 0 0 0 0 0 0\n";
        let of_3 = "\t     GETATTR: 900 900 0 5 6 7 8 9 0\n\t      LOOKUP: 80 80 0 5 6 7 8 9 41\n";
        let text = [
            mount("/v40", 4, events_4, of_40),
            mount("/v41", 4, events_4, of_41),
            mount("/unused", 4, events_4, unused),
            mount("/v3", 3, events, of_3),
            mount("/short", 3, "9 300 0 7", of_3), // nothing is known of it
            mount("/cut", 4, events_4, ""),
        ]
        .concat();
        let found: Vec<_> = nfs(&text)
            .into_iter()
            .map(|each| (each.point, each.files))
            .collect();
        let expected = [
            ("/v40", files(740, 690)),
            ("/v41", files(12, 8)),
            ("/unused", files(0, 0)),
            ("/v3", files(801, 790)),
            ("/short", Files::default()),
            ("/cut", Files::default()),
        ];
        assert_eq!(found, expected.map(|(point, files)| (point.to_owned(), files)));
    }

    #[test]
    fn lustre_counts_opens_of_a_mount_in_the_units_of_each_version() {
        assert_eq!(llite_files(LLITE), files(136, 96));
        // 2.15: times in microseconds, and names that begin as `open` does
        let newer = "\
snapshot_time             1710759783.271040288 secs.nsecs
start_time                1710759000.000000000 secs.nsecs
elapsed_time              783.271040288 secs.nsecs
open                      3600 samples [usecs] 0 1729 33936 883673
close                     3590 samples [usecs] 6 1940 54020 1195606
opencount                 3600 samples [reqs] 1 2 4043 4938
openclosetime             1797 samples [usecs] 34302 20804 4185 2084
";
        assert_eq!(llite_files(newer), files(3600, 3590));
        // a counter that was never used is not listed
        assert_eq!(llite_files("snapshot_time 1.5 secs.nsecs\n"), files(0, 0));
        assert_eq!(lustre_md_closes(MD), 11);
    }

    #[test]
    fn a_part_is_no_sum_and_a_counter_that_went_back_is_not_known() {
        let some = files(7, 5);
        let half = Files {
            opens: None,
            closes: Some(9),
        };
        assert_eq!((some.plus(half).opens, some.plus(half).closes), (None, Some(14)));
        assert_eq!((half.since(some).opens, half.since(some).closes), (None, Some(4)));
        assert_eq!(some.since(half), Files::default());
        assert_eq!(files(7, u64::MAX).plus(some), files(14, u64::MAX));
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
