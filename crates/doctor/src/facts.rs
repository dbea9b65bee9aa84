//! What was found out about a node. `src/tidemill/site/setup/capabilities.py` reads it.

use std::collections::BTreeMap;

use serde::Serialize;

/// Names of what is tried, in the order of what depends on what.
pub const PTRACE: &str = "ptrace";
pub const SECCOMP: &str = "seccomp";
pub const TRACE: &str = "trace";
pub const USER: &str = "user_namespace";
pub const MOUNT: &str = "mount_namespace";
pub const TMPFS: &str = "tmpfs";
pub const OVERLAY: &str = "overlay";
pub const FUSE_DEVICE: &str = "fuse_device";
pub const FUSE: &str = "fuse";
pub const PROC: &str = "proc";
pub const NESTED: &str = "nested";
pub const TCP: &str = "tcp";

/// Whether something works, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tried {
    pub ok: bool,
    /// empty where it works
    pub why: String,
}

/// A directory for data of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataDirectory {
    pub path: String,
    /// such as `tmpfs`; a number where it has no name here
    pub kind: String,
    pub bytes: u64,
    pub free_bytes: u64,
    pub free_inodes: u64,
    pub writable: bool,
    pub no_exec: bool,
}

/// How control groups are there for us.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CGroups {
    /// `v2`, `v1`, `hybrid` or `none`
    pub version: String,
    /// our group's directory (of the first hierarchy where we may write, else of the first)
    pub path: String,
    /// may we make groups of our own there?
    pub delegated: bool,
    pub controllers: Vec<String>,
}

/// Bytes; `limit` is that of our control group, None = none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub total: u64,
    pub available: u64,
    pub limit: Option<u64>,
}

/// Soft and hard limit; None = unlimited.
pub type Limits = BTreeMap<&'static str, (Option<u64>, Option<u64>)>;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub format: u32,
    pub host: String,
    pub kernel: String,
    pub machine: String,
    pub uid: u32,
    pub gid: u32,
    /// programs that we start gain nothing by set-user-id bits
    pub no_new_privs: bool,
    /// address from which this node would reach others; empty = it has none
    pub address: String,
    /// text of files in /proc/sys that forbid something; those that are there
    pub sysctl: BTreeMap<String, String>,
    /// the AppArmor profile or SELinux context that we run in
    pub confined: String,
    pub tried: BTreeMap<String, Tried>,
    /// where helper programs are
    pub programs: BTreeMap<String, String>,
    /// of those, which are set-user-id root
    pub setuid: Vec<String>,
    pub cgroups: CGroups,
    pub limits: Limits,
    pub memory: Memory,
    /// /dev/shm, TMPDIR, /tmp and usual names, as far as they are there
    pub places: Vec<DataDirectory>,
}

impl Facts {
    /// Whether something that is tried works here.
    pub fn can(&self, what: &str) -> bool {
        self.tried.get(what).is_some_and(|tried| tried.ok)
    }

    /// Why it does not; says so where it was not tried.
    pub fn why(&self, what: &str) -> &str {
        self.tried
            .get(what)
            .map_or("it was not tried", |tried| &tried.why)
    }

    /// The first of these programs that is there.
    pub fn program(&self, names: &[&str]) -> Option<&str> {
        names
            .iter()
            .find_map(|&name| self.programs.get(name).map(String::as_str))
    }
}
