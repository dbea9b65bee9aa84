//! Counters of the kernel and of file systems are read from whatever they print.

use tidemill_fuzz::hunt;

use crate::permits::counters::{cgroup_io, llite, lustre_md, nfs, own_cgroup};

#[test]
fn counters_of_any_text() {
    hunt("counters", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let lines = text.lines().count();
        let found = nfs(&text);
        assert!(found.len() <= lines);
        let devices: std::collections::BTreeSet<_> = found.iter().map(|(device, _)| device).collect();
        assert_eq!(devices.len(), found.len(), "each device once");
        let mut sum = llite(&text);
        for (_, counted) in found {
            sum.add(counted);
        }
        assert_eq!(sum.since(sum).ops.unwrap_or(0), 0);
        let _ = lustre_md(&text);
        assert!(cgroup_io(&text).len() <= lines);
        assert!(own_cgroup(&text).is_none_or(|path| !path.contains('\n')));
    });
}
