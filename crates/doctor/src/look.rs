//! What can be read without trying anything.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tidemill_image::PROGRAM_PLACES;
use tidemill_sys::process::Limit;
use tidemill_sys::{file, machine, proc, process, spawn};

use crate::facts::{CGroups, DataDirectory, Facts, Limits, Memory};

/// Files below /proc/sys that forbid what we want. user.*: namespaces(7); yama: Documentation/admin-guide/LSM/Yama.rst;
/// unprivileged_userns_clone: Debian's kernel; apparmor_*: Ubuntu 23.10 and later; fs.*: proc_sys_fs(5).
const SYSCTL: [&str; 7] = [
    "user.max_user_namespaces",
    "user.max_mnt_namespaces",
    "user.max_pid_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.apparmor_restrict_unprivileged_unconfined",
    "kernel.yama.ptrace_scope",
];

const PROGRAMS: [&str; 17] = [
    "squashfuse",
    "squashfuse_ll",
    "fusermount3",
    "fusermount",
    "fuse-overlayfs",
    "newuidmap",
    "unsquashfs",
    "apptainer",
    "singularity",
    "shifter",
    "podman-hpc",
    "podman",
    "crun",
    "ch-run",
    "modulecmd",
    "lfs",
    "nvidia-container-cli",
];

const PLACES: [&str; 5] = ["/dev/shm", "/tmp", "/local", "/scratch", "/localscratch"];

pub fn facts() -> Facts {
    let (uid, gid) = process::user_and_group();
    let programs = programs();
    let setuid = programs
        .iter()
        .filter(|(_, path)| is_setuid_root(path))
        .map(|(name, _)| name.clone())
        .collect();
    Facts {
        format: 1,
        host: machine::host(),
        kernel: line("/proc/sys/kernel/osrelease"),
        machine: std::env::consts::ARCH.to_owned(),
        uid,
        gid,
        no_new_privs: proc::status("self", "NoNewPrivs").is_some_and(|value| value == "1"),
        address: machine::outbound_address().map_or_else(String::new, |address| address.to_string()),
        sysctl: sysctl(),
        confined: confined(),
        tried: BTreeMap::new(),
        programs,
        setuid,
        cgroups: cgroups(),
        limits: limits(),
        memory: memory(),
        places: places(),
    }
}

fn line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn sysctl() -> BTreeMap<String, String> {
    let text = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    SYSCTL
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), text(name)?)))
        .collect()
}

fn confined() -> String {
    let text = line("/proc/self/attr/current");
    let text = text.trim_end_matches('\0');
    if text == "unconfined" {
        String::new()
    } else {
        text.to_owned()
    }
}

fn programs() -> BTreeMap<String, String> {
    let mut places = spawn::path_places();
    places.extend(PROGRAM_PLACES.iter().map(PathBuf::from));
    let find = |name: &str| spawn::find_program(OsStr::new(name), places.iter().cloned());
    PROGRAMS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), find(name)?.to_string_lossy().into_owned())))
        .collect()
}

fn is_setuid_root(path: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o4000 != 0)
}

fn limits() -> Limits {
    [
        ("open_files", Limit::OpenFiles),
        ("processes", Limit::Processes),
        ("locked_memory", Limit::LockedMemory),
        ("stack", Limit::Stack),
        ("address_space", Limit::AddressSpace),
    ]
    .into_iter()
    .map(|(name, of)| (name, process::limit(of)))
    .collect()
}

fn memory() -> Memory {
    let memory = machine::memory();
    Memory {
        total: memory.total_bytes.unwrap_or(0),
        available: memory.available_bytes.unwrap_or(0),
        limit: machine::memory_limit_bytes(),
    }
}

/// A control group is delegated if this user may create children in it and move processes into it (cgroup-v2.rst,
/// "Delegation").
fn cgroups() -> CGroups {
    let all = machine::control_groups();
    let new = all.iter().any(|(controllers, _)| controllers.is_empty());
    let old = all.iter().any(|(controllers, _)| !controllers.is_empty());
    let version = match (new, old) {
        (true, true) => "hybrid",
        (true, false) => "v2",
        (false, true) => "v1",
        (false, false) => "none",
    };
    let ours = |dir: &Path| file::may_write(dir) && file::may_write(&dir.join("cgroup.procs"));
    let useful = |controllers: &str| controllers.is_empty() || controllers.contains("memory");
    let chosen = all
        .iter()
        .filter(|(controllers, _)| useful(controllers))
        .min_by_key(|(_, dir)| !ours(dir));
    let controllers = chosen.map_or_else(Vec::new, |(names, dir)| {
        let text = if names.is_empty() {
            std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default()
        } else {
            names.replace(',', " ")
        };
        text.split_whitespace().map(str::to_owned).collect()
    });
    CGroups {
        version: version.to_owned(),
        path: chosen.map_or_else(String::new, |(_, dir)| dir.display().to_string()),
        delegated: chosen.is_some_and(|(_, dir)| ours(dir)),
        controllers,
    }
}

fn places() -> Vec<DataDirectory> {
    let mut paths: Vec<String> = PLACES.iter().map(|path| (*path).to_owned()).collect();
    if let Some(path) = std::env::var_os("TMPDIR") {
        let path = path.to_string_lossy().into_owned();
        if path.starts_with('/') && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let place = |path: String| {
        let at = Path::new(&path);
        let found = file::file_system(at).ok().filter(|_| at.is_dir())?;
        Some(DataDirectory {
            kind: kind(found.magic),
            bytes: found.bytes,
            free_bytes: found.free_bytes,
            free_inodes: found.free_inodes,
            writable: !found.read_only && file::may_write(at),
            no_exec: found.no_exec,
            path,
        })
    };
    paths.into_iter().filter_map(place).collect()
}

/// Names of file systems: <linux/magic.h>, and of those outside of Linux lustre_idl.h (LL_SUPER_MAGIC), gpfs.h,
/// beegfs_client and zfs_vfsops.h.
fn kind(magic: u64) -> String {
    let known = match magic {
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x6969 => "nfs",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0x1983_0326 => "beegfs",
        0x2fc1_2fc1 => "zfs",
        0x00c3_6400 => "ceph",
        0x794c_7630 => "overlay",
        0x6573_5546 => "fuse",
        0x7371_7368 => "squashfs",
        other => return format!("{other:#x}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_node_tells_its_kernel_memory_and_limits() {
        let facts = facts();
        assert!(!facts.kernel.is_empty() && facts.memory.total > 0);
        assert!(facts.limits.contains_key("open_files"));
        assert!(facts.places.iter().any(|place| place.path == "/tmp"));
    }
}
