//! Counters of the kernel and of file systems are read from whatever they print.

use tidemill_fuzz::hunt;
use tidemill_sys::machine::control_groups_of;
use tidemill_sys::mountinfo::mounts;

use crate::node::counters::{cgroup_io, llite, lustre_md, nfs};

#[test]
fn counters_of_any_text() {
    hunt("counters", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let lines = text.lines().count();
        let found = nfs(&text);
        assert!(found.len() <= lines);
        let devices: std::collections::BTreeSet<_> = found.iter().map(|mount| &mount.device).collect();
        assert_eq!(devices.len(), found.len(), "each device once");
        let mut sum = llite(&text);
        for mount in found {
            sum.add(mount.counted);
        }
        assert_eq!(sum.since(sum).ops.unwrap_or(0), 0);
        let _ = lustre_md(&text);
        assert!(cgroup_io(&text).len() <= lines);
        let table = mounts("1 0 0:5 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let groups = control_groups_of(&text, &table);
        let in_lines = |path: &std::path::Path| !path.to_string_lossy().contains('\n');
        assert!(groups.len() <= lines && groups.iter().all(|(_, path)| in_lines(path)));
    });
}
