//! Checks the directory for work directories that do not fit into memory (`fast_dir`).

use std::os::fd::AsFd;
use std::path::Path;

use tidemill_sys::mountinfo::mounts;
use tidemill_sys::{file, own};
use tidemill_wire::file_systems::is_shared;

use crate::node::variables;

/// One part in `RESERVE` of the free space stays free.
const RESERVE: u64 = 20;

/// MB that work directories may take below `named`, and a message; 0 with the reason where it cannot be used. Removes
/// what this user's killed pilots left there. A variable in `named` means a directory of this allocation, such as a
/// burst buffer, which may be on a network file system, and is made where it is not there yet.
pub fn look(named: Option<&str>) -> (u64, String) {
    let Some(base) = named else {
        return (0, String::from("the site has no `fast_dir`"));
    };
    let no = |why: &str| (0, format!("`fast_dir` `{base}` {why}"));
    let expanded = match variables::expand(base) {
        Ok(expanded) => expanded,
        Err(why) => return no(&format!("cannot be used on this node: {why}")),
    };
    if expanded != base {
        if let Err(why) = variables::make(&expanded) {
            return no(&format!("cannot be used on this node: {why}"));
        }
    }
    let path = match Path::new(&expanded).canonicalize() {
        Ok(path) => path,
        Err(error) => return no(&format!("cannot be used on this node: {error}")),
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match kind_of(&mounts, &path) {
        // work directories there would load the network file system, which memory is meant to spare
        Some(kind) if is_shared(&kind) && expanded == base => {
            return no(&format!("is on a network file system ({kind})"));
        }
        Some(kind) if kind == "tmpfs" || kind == "ramfs" => {
            return no(&format!("is in memory ({kind})"));
        }
        _ => {}
    }
    let removed = own::clean(&path, "slot");
    if removed > 0 {
        crate::error::LOG.info("spill.cleaned", &[("base", &base), ("removed", &removed)]);
    }
    if let Err(error) = own::OwnDirectory::make(&path, "slot").map(|own| own::remove(own.path())) {
        return no(&tidemill_wire::log::cause(&error));
    }
    match file::open_dir(&path).and_then(|dir| file::space(dir.as_fd())) {
        Ok(space) => {
            let free_mb =
                (space.blocks_free / RESERVE * (RESERVE - 1)).saturating_mul(space.block_bytes) >> 20;
            (free_mb, format!("`fast_dir` `{base}` has {free_mb} MB free"))
        }
        Err(error) => no(&tidemill_wire::log::cause(&error)),
    }
}

/// The kind of the file system on which a path lies: of the last mount at the longest prefix.
fn kind_of(mountinfo: &str, path: &Path) -> Option<String> {
    let around = mounts(mountinfo)
        .into_iter()
        .filter(|mount| path.starts_with(&mount.point));
    around
        .max_by_key(|mount| mount.point.len())
        .map(|mount| mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
        30 21 0:40 / /data rw shared:1 - nfs4 server:/data rw\n\
        31 30 0:41 / /data/fast\\040disk rw - xfs /dev/nvme0n1 rw\n\
        32 21 0:42 / /dev/shm rw - tmpfs tmpfs rw\n";

    #[test]
    fn the_innermost_mount_tells_the_kind() {
        let kind = |path: &str| kind_of(MOUNTS, Path::new(path));
        assert_eq!(kind("/var/tmp").as_deref(), Some("ext4"));
        assert_eq!(kind("/data/me").as_deref(), Some("nfs4"));
        assert_eq!(kind("/data/fast disk/x").as_deref(), Some("xfs"));
        assert_eq!(kind("/datas").as_deref(), Some("ext4"));
    }

    #[test]
    fn a_place_of_no_use_says_why() {
        assert_eq!(look(None).0, 0);
        let (free_mb, told) = look(Some("/nonexistent/fast"));
        assert!(free_mb == 0 && told.contains("/nonexistent/fast"), "{told}");
        let (free_mb, told) = look(Some("/dev/shm"));
        assert!(free_mb == 0 && told.contains("in memory"), "{told}");
    }
}
