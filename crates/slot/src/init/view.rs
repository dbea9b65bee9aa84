//! What the site lets payloads see of the node besides their slot, and what they may change there.
//!
//! A site that runs jobs of others than its owner: everything is read-only, home directories and the installation are
//! hidden (`veils`), and what site and application files name comes back. A person's own site: what is theirs below /tmp
//! is shown, and the installation cannot be written. Nothing here depends on a job's arguments or environment.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tidemill_sys::mountinfo::{mounts, Mount};
use tidemill_sys::{file, landlock, mount, time, Result};
use tidemill_wire::log::cause;
use tidemill_wire::View;

use super::cover::{make_writable, Back, Covers};

/// Entries of directories shown again that are searched for sockets: 10 ms of a slot's start.
const LOOKS_MAX: usize = 10_000;
/// Entries of /tmp that are the owner's and shown: each is a mount.
const OWN_MAX: usize = 200;
/// Two changes of a directory within one tick of the kernel's clock cannot be told apart.
const TICK_NS: i128 = 20_000_000;
/// Where sockets of sessions and agents are.
const VOLATILE: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];
const VAR_TMP: &str = "/var/tmp";
/// What is the slot's own below /tmp, and what other slots and servers keep there.
const OURS: [&str; 3] = ["work", "home", ".tidemill"];
const OURS_BEGIN: &str = "tidemill-";
/// Through these user 0 changes the kernel, also without capabilities.
const KERNEL: [&str; 5] = [
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
];

/// Makes all that is mounted now read-only, where the site's view says so. Before anything of the slot is mounted.
pub(super) fn close(view: &View) -> Result<()> {
    if view.shared {
        mount::set_tree_read_only(Path::new("/"))?;
    }
    Ok(())
}

/// After /proc and /tmp are the slot's own; what stays open, and why.
pub(super) fn close_kernel(view: &View, uid: u32) -> Result<String> {
    if !view.shared {
        return Ok(close_groups());
    }
    for path in KERNEL
        .iter()
        .map(Path::new)
        .filter(|path| uid == 0 && path.exists())
    {
        mount::bind(path, path)?;
        mount::set_read_only(path, true)?;
    }
    Ok(String::new())
}

/// Where control groups are the owner's to divide, a payload could lift its own limits or leave its group.
fn close_groups() -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_groups = |mount: &Mount| mount.kind == "cgroup" || mount.kind == "cgroup2";
    let mut note = String::new();
    for mount in mounts(&table).into_iter().filter(is_groups) {
        let point = Path::new(&mount.point);
        if let (true, Err(error)) = (point.exists(), mount::set_read_only(point, true)) {
            note = format!("control groups can be changed by payloads: {}; ", cause(&error));
        }
    }
    note
}

impl Covers {
    /// What is hidden unless named, and what is not to be written. Before images are shown.
    pub fn veil_all(&mut self) -> Result<()> {
        let mut veils: Vec<PathBuf> = self.view.veils.iter().map(PathBuf::from).collect();
        veils.sort(); // one that lies in another comes after it, and is hidden already
        self.veils.clone_from(&veils);
        for path in veils.iter().filter(|path| path.is_absolute()) {
            if path == Path::new(VAR_TMP) && path.is_dir() && !self.names_below(path) {
                mount::bind(Path::new("/tmp"), path)?; // programs that know no TMPDIR write there
            } else {
                self.mask(path)?;
            }
        }
        self.keep_below(Path::new("/"))
    }

    /// An image over an area covers what was hidden there: its own copy is hidden too. What lies around an area stays,
    /// since it would hide that.
    pub(super) fn veil_again(&mut self) -> Result<()> {
        for path in self.veils_in_areas() {
            self.mask(&path)?;
        }
        Ok(())
    }

    pub(super) fn veils_in_areas(&self) -> Vec<PathBuf> {
        let lies_in = |veil: &PathBuf| {
            self.areas
                .iter()
                .any(|area| veil != area && veil.starts_with(area))
        };
        let holds = |veil: &PathBuf| self.areas.iter().any(|area| area.starts_with(veil));
        let veils = self.veils.iter();
        veils
            .filter(|veil| lies_in(veil) && !holds(veil))
            .cloned()
            .collect()
    }

    /// What is shown and not to be written, of what lies in a directory that can be seen now.
    pub(super) fn keep_below(&mut self, top: &Path) -> Result<()> {
        for path in self.view.keep.clone() {
            let path = Path::new(&path);
            if path.is_absolute() && path.starts_with(top) && path.exists() {
                self.pin(path)?;
                mount::bind(path, path)?;
                mount::set_tree_read_only(path)?;
            }
        }
        Ok(())
    }

    fn names_below(&self, place: &Path) -> bool {
        let named = self.view.show.iter().chain(&self.view.write);
        named.map(Path::new).any(|path| path.starts_with(place))
    }

    /// Makes mount points of the directories above a path, which cannot be renamed then: else one could take a protected
    /// directory's place. Where everything is read-only that needs no mounts.
    pub(super) fn pin(&mut self, path: &Path) -> Result<()> {
        if !self.view.own_tmp {
            return Ok(());
        }
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for directory in above {
            let Some(parent) = directory.parent() else {
                continue;
            };
            let is_known = self.pinned.iter().any(|pinned| pinned == directory)
                || self.backs.iter().any(|back| back.path == directory);
            if is_known || directory == Path::new("/tmp") || !file::may_write(parent) {
                continue;
            }
            mount::bind(directory, directory)?;
            self.pinned.push(directory.to_owned());
        }
        Ok(())
    }

    /// Paths of credentials that are to be hidden; those below /tmp are not shown in the first place.
    pub(super) fn credentials(&self) -> Vec<PathBuf> {
        let home = std::env::var_os("HOME")
            .map(PathBuf::from)
            .filter(|home| home.is_absolute());
        let usual = self.view.credentials.iter().filter_map(|text| {
            let path = match (text.strip_prefix("~/"), &home) {
                (Some(below), Some(home)) => home.join(below),
                _ => PathBuf::from(text),
            };
            (path.is_absolute() && !text.ends_with('*')).then_some(path)
        });
        usual.filter(|path| !self.is_allowed(path)).collect()
    }

    fn is_allowed(&self, path: &Path) -> bool {
        self.view.allowed.iter().any(|allowed| Path::new(allowed) == path)
    }

    /// Whether a path is a credential by its name, and not one that the owner shows.
    fn is_credential(&self, path: &Path) -> bool {
        let named = |pattern: &String| {
            let Some(start) = pattern.strip_suffix('*') else {
                return path == Path::new(pattern);
            };
            path.to_str().is_some_and(|text| text.starts_with(start))
        };
        !self.is_allowed(path) && self.view.credentials.iter().any(named)
    }

    /// Shows what site and application files name, a directory before what is in it. After everything is hidden.
    pub fn show_named(&mut self) -> Result<()> {
        let named = |paths: &[String], write: bool| -> Vec<Back> {
            let paths = paths.iter().map(PathBuf::from).filter(|path| path.is_absolute());
            paths.map(|path| Back { path, write }).collect()
        };
        let mut all = named(&self.view.show, false);
        all.extend(named(&self.view.write, true));
        all.extend(named(&self.view.allowed, true));
        all.sort();
        self.show_own()?;
        for each in all {
            if self.is_credential(&each.path) {
                continue;
            }
            if each.write {
                self.open(&each.path)?;
            } else {
                self.back(&each.path, false)?;
            }
        }
        self.hide_sockets()
    }

    /// Shows a path as writable as it is, also one that is shown read-only.
    fn open(&mut self, path: &Path) -> Result<()> {
        self.backs.retain(|back| back.write || back.path != path);
        self.back(path, true)?;
        let is_hidden = self.masks.iter().any(|mask| path.starts_with(mask));
        if is_hidden || !(path.is_dir() || path.is_file()) || !mount::is_read_only(path)? {
            return Ok(());
        }
        mount::bind(path, path)?;
        make_writable(path)?;
        self.backs.push(Back {
            path: path.to_owned(),
            write: true,
        });
        Ok(())
    }

    /// On a person's own site: what is theirs directly below /tmp, but for sockets and credentials. Whether there was
    /// anything new. Costs one system call where /tmp has not changed. The current directory is another one afterwards.
    pub fn show_own(&mut self) -> Result<bool> {
        let old = self.covers.iter().find(|cover| cover.path == Path::new("/tmp"));
        let Some(old) = old.filter(|_| self.active && self.view.own_tmp) else {
            return Ok(false);
        };
        let changed_ns = file::status(old.original.as_fd())?.changed_ns;
        if self.own_seen_ns == Some(changed_ns) {
            return Ok(false);
        }
        let now_ns = i128::from(time::realtime_us()) * 1000;
        self.own_seen_ns = (now_ns - changed_ns > TICK_NS).then_some(changed_ns);
        let names = self.own_names(&old.original);
        let before = self.backs.len();
        for name in names {
            self.back(&Path::new("/tmp").join(name), true)?;
        }
        self.hide_sockets()?;
        Ok(self.backs.len() != before)
    }

    /// Directories first, then what changed last.
    fn own_names(&self, old: &OwnedFd) -> Vec<String> {
        let uid = tidemill_sys::process::user_and_group().0;
        let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", old.as_raw_fd())) else {
            return Vec::new();
        };
        let mut found: Vec<(bool, i64, String)> = Vec::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let Ok(status) = entry.metadata() else { continue };
            let kind = status.file_type();
            let is_ours = OURS.contains(&name.as_str()) || name.starts_with(OURS_BEGIN);
            if status.uid() == uid
                && (kind.is_dir() || kind.is_file())
                && !is_ours
                && !self.is_credential(&Path::new("/tmp").join(&name))
            {
                found.push((kind.is_file(), -status.mtime(), name));
            }
        }
        found.sort();
        found.truncate(OWN_MAX);
        found.into_iter().map(|(_, _, name)| name).collect()
    }

    /// Puts an empty file over each socket in the directories that have come back: sockets of sessions and agents serve
    /// every process of this user. Searches all of the directories together, level by level, since a tree of many files
    /// would otherwise use up the entries, and sockets lie near the top. Sockets beyond `LOOKS_MAX` entries, and those
    /// made later, stay.
    pub(super) fn hide_sockets(&mut self) -> Result<()> {
        let mut directories = std::mem::take(&mut self.unsearched);
        let mut left = LOOKS_MAX;
        while let Some(directory) = directories.pop_front() {
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                match entry.file_type() {
                    // one that is gone meanwhile needs no cover
                    Ok(kind) if kind.is_socket() => match self.hide_file(&entry.path()) {
                        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {}
                        other => other?,
                    },
                    Ok(kind) if kind.is_dir() => directories.push_back(entry.path()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A directory that has come back is searched by the next `hide_sockets`, if sessions and agents have sockets there.
    pub(super) fn search_later(&mut self, top: &Path) {
        if VOLATILE.iter().any(|place| top.starts_with(place)) {
            self.unsearched.push_back(top.to_owned());
        }
    }
}

/// Landlock rules for payloads: files change below `writable` only. None where the kernel has none; the text says why if
/// that is an error.
pub(super) fn rules(writable: &[PathBuf]) -> (Option<OwnedFd>, String) {
    let open = |path: &PathBuf| {
        File::options()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path)
            .ok()
    };
    let files: Vec<File> = writable.iter().filter_map(open).collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    match landlock::bound_files(&fds) {
        Ok(rules) => (rules, String::new()),
        Err(error) => (None, tidemill_wire::log::cause(&error)),
    }
}
