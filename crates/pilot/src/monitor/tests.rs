//! A node whose kernel says what we let it say, twice.

use std::collections::BTreeMap;
use std::path::Path;

use tidemill_fuzz::hunt;
use tidemill_sys::process;
use tidemill_wire::{frame, Sampled, FIGURES, MOUNT_FIGURES};

use super::gpu_use::GpuUse;
use super::proc;
use super::reading::Reading;
use crate::node::counters::nfs;
use crate::node::kernel_texts::KernelTexts;

fn write(root: &Path, path: &str, text: &str) {
    std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
    std::fs::write(root.join(path), text).unwrap();
}

fn figures(sampled: &Sampled) -> BTreeMap<&str, u64> {
    let named = FIGURES.iter().copied().zip(&sampled.figures);
    named
        .filter_map(|(name, value)| Some((name, (*value)?)))
        .collect()
}

/// One reading after the other of what `change` writes.
fn two(root: &Path, change: impl FnOnce()) -> Sampled {
    let (kernel, mut gpus) = (KernelTexts::below(root), GpuUse::default());
    let before = Reading::take(&kernel, &mut gpus);
    change();
    Reading::take(&kernel, &mut gpus).since(&before, "n17")
}

fn mountstats(ops: u64, sent: u64, rtt_ms: u64) -> String {
    format!(
        "device srv:/sw mounted on /cvmfs/sw with fstype nfs4 statvers=1.1\n\
         \tbytes:\t1 2 0 0 {} {} 4 5\n\tper-op statistics\n\
         \t        NULL: 1 1 0 44 24 0 0 0 0\n\
         \t        READ: {ops} {sent} 0 7 8 9 {rtt_ms} 11 0\n",
        ops * 1000,
        ops * 10,
    )
}

fn stat(ticks: [u64; 3]) -> String {
    let all: u64 = ticks.iter().sum();
    let mut text = format!("cpu  {all} 0 0 {} 0 0 0 0 0 0\n", 3000 - all);
    for (core, busy) in ticks.iter().enumerate() {
        let idle = if all == 0 { 0 } else { 1000 - busy };
        text += &format!("cpu{core} {busy} 0 0 {idle} 0 0 0 0 0 0\n");
    }
    text
}

#[test]
fn a_sample_tells_what_was_counted_between_two_readings() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    std::fs::create_dir_all(at.join("sys/class/net/hsn0/device")).unwrap();
    std::fs::create_dir_all(at.join("sys/block/sda/device")).unwrap();
    let net = |bytes: u64| {
        format!("  lo: 9 9 0 0 0 0 0 0 {bytes} 9 0 0 0 0 0 0\nhsn0: {bytes} 3 0 0 0 0 0 0 50 4 0 0 0 0 0 0\n")
    };
    let disk = |n: u64| format!("8 0 sda {n} 0 {n} 0 {n} 0 {n} 0 0 {n} 0\n8 1 sda1 9 0 9 0 9 0 9 0 0 9 0\n");
    write(at, "proc/stat", &stat([0, 0, 0]));
    write(at, "proc/net/dev", &net(100));
    write(at, "proc/diskstats", &disk(10));
    write(at, "proc/self/mountstats", &mountstats(100, 100, 50));
    write(
        at,
        "proc/pressure/io",
        "some avg10=0 total=1000\nfull avg10=0 total=10\n",
    );
    let sampled = two(at, || {
        write(at, "proc/stat", &stat([0, 550, 1000]));
        write(at, "proc/net/dev", &net(1600));
        write(at, "proc/diskstats", &disk(30));
        write(at, "proc/self/mountstats", &mountstats(150, 153, 200));
        write(
            at,
            "proc/pressure/io",
            "some avg10=0 total=9000\nfull avg10=0 total=10\n",
        );
        write(at, "proc/loadavg", "2.50 1 1 3/99 1\n");
    });
    let found = figures(&sampled);
    let ms = |ticks: u64| ticks * 1000 / process::ticks_per_s();
    assert_eq!((found["cores"], found["user_ms"]), (3, ms(1550)));
    assert!(!found.contains_key("idle_ms")); // it went back
    assert_eq!((found["load_milli"], found["running"]), (2500, 3));
    assert_eq!(
        (
            found["net_in_bytes"],
            found["net_out_bytes"],
            found["net_in_packets"]
        ),
        (1500, 0, 0)
    );
    assert_eq!(
        (found["disk_read_bytes"], found["disk_ops"], found["disk_busy_ms"]),
        (20 * 512, 40, 20)
    );
    assert_eq!((found["io_some_us"], found["io_full_us"]), (8000, 0));
    assert_eq!(
        (found["nfs_ops"], found["nfs_again"], found["nfs_rtt_us"]),
        (50, 3, 3000)
    );
    assert_eq!((found["nfs_read_bytes"], found["nfs_write_bytes"]), (50_000, 500));
    assert_eq!(sampled.cores, "059");
    let mount: Vec<u64> = sampled.mounts["/cvmfs/sw"].iter().flatten().copied().collect();
    assert_eq!(mount, [50, 3, 50_000, 500, 3000]);
    assert!(!found.contains_key("gpus") && !found.contains_key("used_kb"));
    assert_eq!(sampled.node, "n17");
}

#[test]
fn a_counter_that_went_back_is_absent_and_so_is_what_was_not_there_before() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    write(at, "proc/vmstat", "pswpin 10\npswpout 5\n");
    write(at, "proc/self/mountstats", &mountstats(100, 100, 50));
    write(at, "proc/net/dev", "eth0: 100 3 0 0 0 0 0 0 50 4 0 0 0 0 0 0\n");
    let sampled = two(at, || {
        write(at, "proc/vmstat", "pswpin 9\npswpout 7\npgmajfault 3\n");
        write(at, "proc/self/mountstats", &mountstats(90, 90, 50));
        write(at, "proc/net/dev", "eth0: 1 3 0 0 0 0 0 0 50 4 0 0 0 0 0 0\n");
    });
    assert_eq!(figures(&sampled), [("swapped_out", 2)].into());
    assert!(sampled.mounts.is_empty());
}

#[test]
fn lustre_counts_of_a_mounted_file_system_are_told() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    write(
        at,
        "proc/self/mountinfo",
        "3 1 0:6 / /scratch rw - lustre mgs@tcp:/lfs rw\n",
    );
    let counts = |n: u64| {
        write(
            at,
            "proc/fs/lustre/mdc/lfs-MDT0000-mdc-ff/md_stats",
            &format!("open {n} samples [reqs]\n"),
        );
        let text = format!(
            "read_bytes {n} samples [bytes] 1 9 {}\nwrite_bytes 1 samples [bytes] 1 9 5\n",
            n * 7
        );
        write(at, "proc/fs/lustre/llite/lfs-ff/stats", &text);
    };
    counts(10);
    let sampled = two(at, || counts(30));
    let found = figures(&sampled);
    assert_eq!(
        (
            found["lustre_ops"],
            found["lustre_read_bytes"],
            found["lustre_write_bytes"]
        ),
        (20, 140, 0)
    );
    assert_eq!(
        sampled.mounts["/scratch"],
        [Some(20), None, Some(140), Some(0), None, Some(0), Some(0)]
    );
}

/// An NFS mount with files that were opened and closed, by calls of NFSv3 or by requests of NFSv4.
fn opened(point: &str, protocol: u32, opens: u64, closes: u64) -> String {
    let (events, requests) = match protocol {
        3 => (
            format!("9 9 0 0 {opens} 9 9 0 0 0 0 0 0 0 9 0 0 {closes} 0 0 0 0 0 0 0 0 0"),
            format!("\t     GETATTR: {opens} {opens} 0 1 1 0 1 1 0\n"),
        ),
        _ => (
            String::from("9 9 0 0 1 9 9 0 0 0 0 0 0 0 9 0 0 9 0 0 0 0 0 0 0 0 0"),
            format!(
                "\t OPEN_NOATTR: {opens} {opens} 0 1 1 0 1 1 0\n\t       CLOSE: {closes} {closes} 0 1 1 0 1 1 0\n"
            ),
        ),
    };
    format!(
        "device srv:{point} mounted on {point} with fstype nfs statvers=1.1\n\tevents:\t{events}\n\
         \tRPC iostats version: 1.1  p/v: 100003/{protocol} (nfs)\n\tper-op statistics\n{requests}\n"
    )
}

#[test]
fn opens_and_closes_are_told_of_all_mounts_together_and_of_each() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    write(
        at,
        "proc/self/mountinfo",
        "3 1 0:6 / /scratch rw - lustre mgs@tcp:/lfs rw\n",
    );
    // mounts count in debugfs, metadata clients in /proc
    let lustre = |opens: u64, closes: u64| {
        let text = format!(
            "snapshot_time 1.5 secs.nsecs\nopen {opens} samples [regs]\nclose {closes} samples [regs]\n"
        );
        write(at, "sys/kernel/debug/lustre/llite/lfs-ff/stats", &text);
        write(
            at,
            "proc/fs/lustre/mdc/lfs-MDT0000-mdc-ff/md_stats",
            &format!("close 5 samples [reqs]\nintent_lock {opens} samples [reqs]\n"),
        );
    };
    let nfs = |text: &str| write(at, "proc/self/mountstats", text);
    lustre(4_000, 3_990);
    nfs(&(opened("/home", 3, 100, 90) + &opened("/sw", 4, 7_000, 6_000)));
    let sampled = two(at, || {
        lustre(4_500, 4_480);
        let new = opened("/new", 4, 99_999, 9_999); // mounted meanwhile: there is nothing to compare it with
        nfs(&(opened("/home", 3, 103, 92) + &opened("/sw", 4, 7_900, 6_700) + &new));
    });
    let found = figures(&sampled);
    assert_eq!((found["nfs_opens"], found["nfs_closes"]), (903, 702));
    assert_eq!((found["lustre_opens"], found["lustre_closes"]), (500, 490));
    let of = |point: &str| sampled.mounts[point][5..].to_vec();
    assert_eq!(of("/sw"), [Some(900), Some(700)]);
    assert_eq!(of("/home"), [Some(3), Some(2)]);
    assert_eq!(of("/scratch"), [Some(500), Some(490)]);
}

#[test]
fn opens_that_nobody_counts_are_absent_and_not_zero() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    write(
        at,
        "proc/self/mountinfo",
        "3 1 0:6 / /scratch rw - lustre mgs@tcp:/lfs rw\n",
    );
    // `stats` of llite is closed to us: of requests, opens are among `intent_lock`
    let counts = |closes: u64| {
        let text = format!("close {closes} samples [reqs]\nintent_lock {closes} samples [reqs]\n");
        write(at, "proc/fs/lustre/mdc/lfs-MDT0000-mdc-ff/md_stats", &text);
        let short = "device srv:/b mounted on /b with fstype nfs statvers=1.1\n\tper-op statistics\n\
                     \t     GETATTR: 5 5 0 1 1 0 1 1 0\n";
        write(
            at,
            "proc/self/mountstats",
            &(opened("/a", 4, closes, closes) + short),
        );
    };
    counts(10);
    let sampled = two(at, || counts(30));
    let found = figures(&sampled);
    assert_eq!((found["lustre_ops"], found["lustre_closes"]), (40, 20));
    for name in ["lustre_opens", "lustre_read_bytes", "lustre_write_bytes"] {
        assert!(!found.contains_key(name), "{name}");
    }
    let row = &sampled.mounts["/scratch"];
    assert_eq!(row[..], [Some(40), None, None, None, None, None, Some(20)]);
    // one of two mounts does not say
    assert!(!found.contains_key("nfs_opens") && !found.contains_key("nfs_closes"));
    assert_eq!(sampled.mounts["/a"][5..], [Some(20), Some(20)]);
    // one that went back, as after a new mount
    counts(50);
    let sampled = two(at, || counts(3));
    let names: Vec<_> = figures(&sampled).into_keys().collect();
    assert!(!names.iter().any(|name| name.ends_with("_closes")), "{names:?}");
}

#[test]
fn neighbours_share_a_digit_where_there_are_many_cores_and_a_sample_stays_small() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    let cores = |busy: u64| {
        let each = |core: u64| format!("cpu{core} {} 0 0 {busy} 0\n", if core < 150 { busy } else { 0 });
        (0..300).map(each).collect::<String>()
    };
    write(at, "proc/stat", &cores(1000));
    let sampled = two(at, || write(at, "proc/stat", &cores(2000)));
    assert_eq!(sampled.cores, format!("{}{}", "5".repeat(50), "0".repeat(50)));
    // with every figure at its usual size on a large node
    let full = Sampled {
        p: String::from("tm-perlmutter-e12-1234.r511.i1"),
        node: String::from("nid001234"),
        at_us: 1_764_000_000_000_000,
        over_us: 30_000_123,
        figures: vec![Some(12_345); FIGURES.len()],
        cores: "9".repeat(64),
        mounts: [(
            String::from("/global/cfs"),
            vec![Some(12_345); MOUNT_FIGURES.len()],
        )]
        .into(),
    };
    let mut line = Vec::new();
    frame::encode(&full, &mut line).unwrap();
    assert!(line.len() < 550, "{}", line.len());
}

#[test]
fn any_text_is_read() {
    hunt("counters", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = (
            proc::load(&text),
            proc::pressure(&text),
            proc::memory(&text),
            proc::paging(&text),
        );
        for times in proc::processor_times(&text).values() {
            assert_eq!(times.len(), proc::TIMES);
        }
        assert!(proc::interfaces(&text).values().all(|counts| counts.len() == 4));
        assert!(proc::disks(&text).values().all(|counts| counts.len() == 4));
        let _ = nfs(&text);
    });
}
