//! Ways out of a slot that are not files of its payloads: sockets of the node's services, keyrings, processes without
//! number. Each is closed once, when the slot is made.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use tidemill_sys::security::walls::{self, Walls};
use tidemill_sys::{file, mount, process, security, Result};
use tidemill_wire::log::cause;

use crate::SlotSpec;

/// Where services have their sockets, and what stands for that below S.
const RUNTIME: [(&str, &str); 2] = [("/run", "cover/run"), ("/var/run", "cover/var-run")];
/// Entries of a runtime directory that are shown at most.
const RUNTIME_ENTRIES_MAX: usize = 1_000;
/// Names there (`*`: all that start so) of what acts for a user who connects: message bus (it ends sessions, and starts
/// services), containers and machines, terminals that go on (screen, tmux), Kerberos tickets (sssd-kcm).
const SERVICES: [&str; 11] = [
    "dbus",
    "docker*",
    "podman",
    "containerd*",
    "crio",
    "libvirt*",
    "screen*",
    "uscreens",
    "tmux*",
    ".heim_org.h5l.kcm-socket",
    "gssproxy*",
];
/// Of batch systems: munge's socket, Slurm's `sack.socket` (/run/slurm, /run/slurm-CLUSTER, /run/slurmctld, slurmdbd).
const BATCH_SERVICES: [&str; 3] = ["munge*", "slurm*", "pbs*"];
/// Elsewhere: Kerberos credentials by a socket. Nothing below /proc, such as /proc/keys, whose names reveal little: a
/// kernel gives containers in a slot no /proc where something covers a part of the slot's (`mount_too_revealing`).
const ELSEWHERE: [&str; 1] = ["/var/lib/gssproxy"];
/// slurm.conf(5): where Slurm looks for it without SLURM_CONF, the last of nodes that fetch theirs.
const SLURM_CONFS: [&str; 3] = [
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
];
const CONF_BYTES_MAX: u64 = 1 << 20;

/// Paths besides runtime directories that payloads must not see. Of a batch system: the sockets of the steps of jobs, and
/// those of its authentication where they are not at the usual places.
pub(super) fn masks(spec: &SlotSpec) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ELSEWHERE.iter().map(PathBuf::from).collect();
    if spec.batch_commands.is_empty() {
        return found;
    }
    let named = ["SLURM_SACK_SOCKET", "MUNGE_SOCKET"];
    found.extend(named.iter().filter_map(std::env::var_os).map(PathBuf::from));
    found.extend(like("/var/spool/slurm*"));
    let conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    for path in conf.into_iter().chain(SLURM_CONFS.iter().map(PathBuf::from)) {
        for named in paths_of_slurm(&start_of(&path)) {
            found.extend(like(&named));
        }
    }
    found.retain(|path| path.is_absolute() && path.parent().is_some());
    found
}

fn start_of(path: &Path) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let _ = file.take(CONF_BYTES_MAX).read_to_end(&mut text); // after an error, what was read is used
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Of slurm.conf(5): the spool directory of nodes, `*` for what stands for a node's name, and munge's sockets. Pure.
fn paths_of_slurm(conf: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in conf.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let value = value.trim();
        match key.trim().to_ascii_lowercase().as_str() {
            "slurmdspooldir" => found.push(match value.split_once('%') {
                Some((start, _)) => format!("{start}*"),
                None => value.to_owned(),
            }),
            "authinfo" | "authaltparameters" => {
                let options = value.split(',');
                let socket = options.filter_map(|option| option.trim().strip_prefix("socket="));
                found.extend(socket.map(str::to_owned));
            }
            "accountingstoragepass" => found.push(value.to_owned()),
            _ => {}
        }
    }
    found.retain(|path| path.starts_with('/') && !path.trim_matches('/').is_empty());
    found
}

/// The path itself, or, where it ends in `*`, the entries of its directory whose names start so.
fn like(named: &str) -> Vec<PathBuf> {
    let Some((directory, start)) = named.strip_suffix('*').and_then(|path| path.rsplit_once('/')) else {
        return vec![PathBuf::from(named)];
    };
    if start.is_empty() {
        return vec![PathBuf::from(directory)];
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let alike = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    alike.map(|entry| entry.path()).collect()
}

/// Shows the runtime directories without the services that act for a user. A mask over a socket or its directory is not
/// enough: it goes when the service removes them, as it does at a restart. /run itself cannot be removed.
pub(super) fn hide_services(root: &OwnedFd, spec: &SlotSpec) -> Result<()> {
    for (path, skeleton) in RUNTIME {
        let path = Path::new(path);
        // usually /var/run is a link to the other
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
            cover_runtime(root, path, skeleton, !spec.batch_commands.is_empty())?;
        }
    }
    Ok(())
}

fn cover_runtime(root: &OwnedFd, path: &Path, skeleton: &str, hides_batch: bool) -> Result<()> {
    let original = file::open_dir(path)?;
    file::make_dir_at(root.as_fd(), skeleton, 0o755)?;
    let stand_in = file::open_dir_at(root.as_fd(), skeleton)?;
    let mut shown = Vec::new();
    for entry in fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .take(RUNTIME_ENTRIES_MAX)
    {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else {
            continue;
        };
        if is_hidden(&name, hides_batch) {
            continue;
        }
        if kind.is_symlink() {
            if let Some(target) = fs::read_link(entry.path())
                .ok()
                .and_then(|path| path.into_os_string().into_string().ok())
            {
                file::link_at(stand_in.as_fd(), &name, &target)?;
            }
            continue;
        }
        if kind.is_dir() {
            file::make_dir_at(stand_in.as_fd(), &name, 0o755)?;
        } else {
            drop(file::create_at(stand_in.as_fd(), &name, 0o444)?);
        }
        shown.push(name);
    }
    file::change_dir(root.as_fd())?;
    mount::bind(Path::new(skeleton), path)?;
    file::change_dir(original.as_fd())?;
    for name in shown {
        // what has gone since stays empty
        let _ = mount::bind(Path::new(&name), &path.join(&name));
    }
    mount::set_read_only(path, true)
}

fn is_hidden(name: &str, hides_batch: bool) -> bool {
    let batch = BATCH_SERVICES.iter().filter(|_| hides_batch);
    SERVICES
        .iter()
        .chain(batch)
        .any(|hidden| match hidden.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *hidden,
        })
}

/// Open files of a process: what most distributions allowed until systemd 240 (2018). The slot reads what each is.
const OPEN_FILES_MAX: u64 = 4096;

/// Bounds processes and open files of a slot with namespaces.
pub(super) fn bound(spec: &SlotSpec) -> Result<()> {
    bound_tasks(spec)?;
    bound_files(spec)
}

/// Bounds the cost of reading the slot's descriptors, where payloads are of other users. A higher soft limit of the pilot
/// stays: it is the operator's word.
pub(super) fn bound_files(spec: &SlotSpec) -> Result<()> {
    if !spec.view.shared || spec.directory.is_some() {
        return Ok(());
    }
    process::bound_open_files(OPEN_FILES_MAX)
}

/// Bounds the processes of a user namespace of the slot's own; where the kernel cannot, they are counted
/// (`Payload::judge`).
fn bound_tasks(spec: &SlotSpec) -> Result<()> {
    process::limit_tasks(spec.tasks_max()).map(drop)
}

/// What payloads are kept from: with no word of the application, on a site that runs jobs of others, namespaces and much
/// else. On a person's own site programs are theirs.
pub(super) fn walls(spec: &SlotSpec) -> Walls {
    if spec.view.shared && !spec.may_mount {
        Walls::Closed
    } else {
        Walls::Open
    }
}

/// No namespaces in the slot's own user namespace (namespaces(7), /proc/sys/user), which its payloads do not rule.
/// Kernels that do not let a namespace's owner say so have the filter.
pub(super) fn forbid_namespaces(spec: &SlotSpec) {
    if walls(spec) == Walls::Open {
        return;
    }
    for entry in fs::read_dir("/proc/sys/user").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with("_namespaces") {
            let _ = fs::write(entry.path(), "0");
        }
    }
}

/// Keys that the pilot was started with, and those of its user, are out of reach, and the walls stand; what is still open
/// otherwise. `new_privileges`: programs may gain some, and then the kernel takes no filter from a user.
pub(super) fn close_calls(spec: &SlotSpec, new_privileges: bool) -> String {
    let left = security::leave_session_keyring();
    if !new_privileges {
        return match walls::raise(walls(spec)) {
            Ok(()) => String::new(),
            Err(error) => {
                let what = match walls(spec) {
                    Walls::Open => "payloads reach the user's keyring",
                    Walls::Closed => "payloads reach the user's keyring and make namespaces",
                };
                format!("{what}: {}; ", cause(&error))
            }
        };
    }
    match left {
        // a kernel without keyrings
        Err(error) if error.os_error() != libc::ENOSYS => {
            format!("payloads reach the session keyring: {}; ", cause(&error))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_configuration_names_spool_and_sockets() {
        let conf = "ClusterName=x\n# SlurmdSpoolDir=/no\nSlurmdSpoolDir = /var/spool/d.%n  # of each\nslurmdspooldir=/srv/spool\n\
            AuthInfo=ttl=10,socket=/srv/munge/s,cred_expire=3\nAccountingStoragePass=/srv/munge/2\nAccountingStoragePass=secret\n\
            SlurmdSpoolDir=/%n\nnonsense\n";
        let expected = [
            "/var/spool/d.*",
            "/srv/spool",
            "/srv/munge/s",
            "/srv/munge/2",
            "/*",
        ];
        assert_eq!(paths_of_slurm(conf), expected);
    }

    #[test]
    fn names_that_start_so_are_found_and_a_whole_root_never_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["slurm", "slurm-two", "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut found = like(&format!("{}/slurm*", dir.path().display()));
        found.sort();
        assert_eq!(found, [dir.path().join("slurm"), dir.path().join("slurm-two")]);
        assert_eq!(like("/srv/munge.s"), [PathBuf::from("/srv/munge.s")]);
        let spec = SlotSpec {
            batch_commands: vec!["sbatch".into()],
            ..SlotSpec::default()
        };
        assert!(masks(&spec)
            .iter()
            .all(|path| path.parent().is_some() && path.is_absolute()));
        assert_eq!(like("/*"), [PathBuf::from("")]);
    }

    #[test]
    fn services_are_hidden_and_those_of_batch_systems_where_payloads_may_not_use_them() {
        for name in ["dbus", "docker.sock", "screen", "tmux-1000"] {
            assert!(is_hidden(name, false) && is_hidden(name, true), "{name}");
        }
        for name in ["munge", "slurm", "slurm-two", "slurmctld"] {
            assert!(!is_hidden(name, false) && is_hidden(name, true), "{name}");
        }
        for name in ["systemd", "nscd", "dbusy", "udev", "lock"] {
            assert!(!is_hidden(name, true), "{name}");
        }
    }
}
