//! Limits of slots by control groups of version 2, where the site delegates the group that the pilot is in.
//!
//! Linux, Documentation/admin-guide/cgroup-v2.rst: a delegated group is one in which this user may make groups and move
//! processes ("Delegation"); controllers can be passed on only by a group without processes of its own ("No Internal
//! Process Constraint"), so the pilot and what started it move into a group below. Files of a tmpfs count for the group
//! of the process that wrote them ("Memory Ownership"): a limit includes files in flight.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use tidemill_slot::SlotSpec;
use tidemill_sys::{file, machine, proc, process};

/// The group of everything but slots: pilots, their leads and what started them.
const OTHERS: &str = "tidemill-pilots";
/// The controllers that limit slots; without the first, slots get no limits.
const CONTROLLERS: [&str; 3] = ["memory", "cpuset", "pids"];
/// The slot's init, its tracer, and what is on its way into them.
const TASKS_BESIDES: u64 = 16;
/// Memory of the same.
const MEMORY_BESIDES_MB: u64 = 64;
/// Generations above a process: a shell, the batch system's step, an agent and what started it.
const ANCESTORS_MAX: usize = 64;

/// A delegated group in which slots have groups.
#[derive(Debug)]
pub struct Groups {
    base: PathBuf,
    controllers: Vec<&'static str>,
    /// Groups of slots that have ended, until the last of their processes has gone.
    leaving: Vec<PathBuf>,
}

impl Groups {
    /// Of this process: None where nothing is delegated, and where it cannot be used, why.
    pub fn find() -> Result<Option<Groups>, String> {
        let groups = machine::control_groups();
        let Some((_, own)) = groups.into_iter().find(|(controllers, _)| controllers.is_empty()) else {
            return Ok(None);
        };
        let me = process::id();
        let mine = above(Path::new("/"), me);
        let is_ours = |pid: i32| mine.contains(&pid) || above(Path::new("/"), pid).contains(&me);
        Groups::set_up(&own, is_ours)
    }

    /// In the group `own`. `is_ours`: a process that may be moved.
    fn set_up(own: &Path, is_ours: impl Fn(i32) -> bool) -> Result<Option<Groups>, String> {
        // a pilot that came before has done it
        let is_among_others = own.file_name().is_some_and(|name| name == OTHERS);
        let base = match own.parent() {
            Some(parent) if is_among_others => parent,
            _ => own,
        };
        let text = |name: &str| std::fs::read_to_string(base.join(name)).unwrap_or_default();
        let there = text("cgroup.controllers");
        let has = |controller: &&str| there.split_whitespace().any(|word| word == *controller);
        let mut controllers: Vec<&'static str> = CONTROLLERS.iter().copied().filter(has).collect();
        // the root of the hierarchy has no type, and must not be divided
        let is_root = !base.join("cgroup.type").exists();
        let may_write = file::may_write(base) && file::may_write(&base.join("cgroup.procs"));
        if is_root || !may_write || controllers.first() != Some(&CONTROLLERS[0]) {
            return Ok(None);
        }
        let failed = |error: io::Error| format!("control groups are delegated and cannot be used: {error}");
        if !is_among_others {
            let pids: Vec<i32> = text("cgroup.procs")
                .lines()
                .filter_map(|line| line.trim().parse().ok())
                .collect();
            if let Some(other) = pids.iter().find(|&&pid| !is_ours(pid)) {
                return Err(format!(
                    "control groups are delegated and not used: process {other} of something else is in the group"
                ));
            }
            move_all(base, &pids).map_err(failed)?;
        }
        let control = base.join("cgroup.subtree_control");
        controllers
            .retain(|name| std::fs::write(&control, format!("+{name}")).is_ok() || *name == CONTROLLERS[0]);
        let passed = std::fs::read_to_string(&control).unwrap_or_default();
        if !passed.contains(CONTROLLERS[0]) {
            return Err(failed(io::Error::other("the memory controller is not passed on")));
        }
        Ok(Some(Groups {
            base: base.to_owned(),
            controllers,
            leaving: Vec::new(),
        }))
    }

    /// Put a slot that has just come up into a group with its limits. One that spans nodes has none: its ranks are
    /// elsewhere.
    pub fn confine(&mut self, spec: &SlotSpec, pid: i32) -> io::Result<()> {
        if spec.directory.is_some() {
            return Ok(());
        }
        let group = self.group(spec.index);
        match std::fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for (controller, name, value) in limits(spec) {
            if self.controllers.contains(&controller) {
                std::fs::write(group.join(name), value)?;
            }
        }
        std::fs::write(group.join("cgroup.procs"), pid.to_string())
    }

    /// How often the kernel ended a process of the slot because the slot was at its limit. `oom_kill` alone also counts
    /// what it ends when the whole node is short of memory, `oom` only failures at the limit ("Memory Interface Files").
    pub fn kills(&self, slot: u32) -> u64 {
        let events = std::fs::read_to_string(self.group(slot).join("memory.events")).unwrap_or_default();
        let count = |name: &str| -> u64 {
            let mut lines = events.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            found.unwrap_or(0)
        };
        count("oom ").min(count("oom_kill "))
    }

    /// The slot has ended: its group goes with the last of its processes.
    pub fn leave(&mut self, slot: u32) {
        self.leaving.push(self.group(slot));
        self.sweep();
    }

    /// Remove the groups of ended slots that are empty.
    pub fn sweep(&mut self) {
        self.leaving.retain(|group| {
            std::fs::remove_dir(group).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        });
    }

    fn group(&self, slot: u32) -> PathBuf {
        self.base.join(format!("tidemill-{}-{slot}", process::id()))
    }
}

#[cfg(test)]
impl Groups {
    /// Groups that are plain files.
    pub fn of_files(base: &Path) -> Groups {
        Groups {
            base: base.to_owned(),
            controllers: vec!["memory"],
            leaving: Vec::new(),
        }
    }

    /// The kernel counts.
    pub fn write_events(base: &Path, slot: u32, events: &str) {
        let group = base.join(format!("tidemill-{}-{slot}", process::id()));
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.events"), events).unwrap();
    }
}

/// What is written where, by controller.
fn limits(spec: &SlotSpec) -> Vec<(&'static str, &'static str, String)> {
    let mut list = vec![("pids", "pids.max", (spec.tasks_max() + TASKS_BESIDES).to_string())];
    if spec.memory_mb > 0 {
        let files_mb = if spec.spill.is_none() { spec.scratch_mb } else { 0 };
        let bytes = (spec.memory_mb + files_mb + MEMORY_BESIDES_MB) << 20;
        list.push(("memory", "memory.max", bytes.to_string()));
    }
    if !spec.cpus.is_empty() {
        let cpus = spec.cpus.iter().map(usize::to_string).collect::<Vec<_>>();
        list.push(("cpuset", "cpuset.cpus", cpus.join(",")));
    }
    list
}

/// Into the group of others; back where one cannot be moved.
fn move_all(base: &Path, pids: &[i32]) -> io::Result<()> {
    let others = base.join(OTHERS);
    match std::fs::create_dir(&others) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in pids {
        let Err(error) = std::fs::write(others.join("cgroup.procs"), pid.to_string()) else {
            continue;
        };
        if error.raw_os_error() == Some(libc::ESRCH) {
            continue; // it has ended
        }
        for moved in pids {
            let _ = std::fs::write(base.join("cgroup.procs"), moved.to_string());
        }
        return Err(error);
    }
    Ok(())
}

/// A process and those above it.
fn above(root: &Path, pid: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut next = pid;
    while next > 1 && found.len() < ANCESTORS_MAX && found.insert(next) {
        next = parent(root, next).unwrap_or(0);
    }
    found
}

fn parent(root: &Path, pid: i32) -> Option<i32> {
    proc::stat_in(&root.join("proc"), pid).map(|stat| stat.parent)
}

/// Whether a process is below another one, which may be PID 1.
pub(super) fn is_below(pid: i32, top: i32) -> bool {
    let root = Path::new("/");
    pid != top && { above(root, pid).iter() }.any(|&each| parent(root, each) == Some(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of files: what the kernel does with them is not here.
    fn group(controllers: &str, pids: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("cgroup.controllers", controllers);
        write("cgroup.procs", pids);
        write("cgroup.type", "domain\n");
        write("cgroup.subtree_control", "");
        dir
    }

    fn spec() -> SlotSpec {
        SlotSpec {
            index: 3,
            cpus: vec![0, 2],
            memory_mb: 100,
            scratch_mb: 50,
            tasks_max: 10,
            ..SlotSpec::default()
        }
    }

    #[test]
    fn a_slot_in_a_delegated_group_has_limits_of_memory_cpus_and_tasks() {
        let dir = group("cpuset cpu io memory pids", "7\n8\n");
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        let first = Groups::set_up(dir.path(), |_| true);
        // the kernel adds to what is passed on; a file keeps what was written last
        assert!(
            first.is_err() && text(&format!("{OTHERS}/cgroup.procs")) == "8",
            "moved, and not passed on: {first:?}"
        );
        let mut groups = Groups {
            base: dir.path().to_owned(),
            controllers: CONTROLLERS.to_vec(),
            leaving: Vec::new(),
        };
        groups.confine(&spec(), 99).unwrap();
        let slot = format!("tidemill-{}-3", process::id());
        assert_eq!(
            text(&format!("{slot}/memory.max")),
            ((100 + 50 + 64) << 20).to_string()
        );
        assert_eq!(text(&format!("{slot}/cpuset.cpus")), "0,2");
        assert_eq!(text(&format!("{slot}/pids.max")), "26");
        assert_eq!(text(&format!("{slot}/cgroup.procs")), "99");
        std::fs::write(
            dir.path().join(&slot).join("memory.events"),
            "low 0\noom 3\noom_kill 2\n",
        )
        .unwrap();
        assert_eq!((groups.kills(3), groups.kills(4)), (2, 0));
    }

    #[test]
    fn what_the_kernel_ends_when_the_node_is_short_of_memory_is_not_over_its_limit() {
        let dir = group("memory", "");
        let groups = Groups::of_files(dir.path());
        for (events, kills) in [
            ("low 0\noom 0\noom_kill 2\n", 0),
            ("oom 4\noom_kill 2\noom_group_kill 0\n", 2),
            ("", 0),
        ] {
            Groups::write_events(dir.path(), 3, events);
            assert_eq!(groups.kills(3), kills, "{events}");
        }
    }

    #[test]
    fn a_pilot_among_others_uses_the_group_above() {
        let dir = group("memory", "");
        let own = dir.path().join(OTHERS);
        std::fs::create_dir(&own).unwrap();
        let groups = Groups::set_up(&own, |_| false).unwrap().unwrap();
        assert_eq!(
            (groups.base.as_path(), groups.controllers),
            (dir.path(), vec!["memory"])
        );
    }

    #[test]
    fn what_is_not_delegated_is_left_alone() {
        for controllers in ["", "cpu io pids"] {
            let dir = group(controllers, "7\n");
            assert!(
                Groups::set_up(dir.path(), |_| true).unwrap().is_none(),
                "without memory"
            );
        }
        let root = group("memory", "7\n");
        std::fs::remove_file(root.path().join("cgroup.type")).unwrap();
        assert!(
            Groups::set_up(root.path(), |_| true).unwrap().is_none(),
            "the root"
        );
        let shared = group("memory", "7\n8\n");
        let why = Groups::set_up(shared.path(), |pid| pid == 7).unwrap_err();
        assert!(why.contains("process 8"), "{why}");
        assert!(!shared.path().join(OTHERS).exists());
        assert!(Groups::set_up(Path::new("/none"), |_| true).unwrap().is_none());
    }

    #[test]
    fn a_limit_counts_files_only_where_they_are_in_memory() {
        let find = |spec: &SlotSpec, name: &str| {
            let found = limits(spec)
                .into_iter()
                .find(|(controller, _, _)| *controller == name);
            found.map(|(_, _, value)| value)
        };
        let spilled = SlotSpec {
            spill: Some("/x".into()),
            ..spec()
        };
        assert_eq!(find(&spilled, "memory"), Some(((100 + 64) << 20).to_string()));
        let free = SlotSpec {
            memory_mb: 0,
            cpus: Vec::new(),
            ..spec()
        };
        assert_eq!((find(&free, "memory"), find(&free, "cpuset")), (None, None));
    }

    #[test]
    fn ended_groups_go_when_they_are_empty() {
        let dir = group("memory", "");
        let mut groups = Groups {
            base: dir.path().to_owned(),
            controllers: vec!["memory"],
            leaving: Vec::new(),
        };
        let slot = groups.group(3);
        std::fs::create_dir(&slot).unwrap();
        std::fs::write(slot.join("busy"), "").unwrap();
        groups.leave(3);
        assert!(slot.exists());
        std::fs::remove_file(slot.join("busy")).unwrap();
        groups.sweep();
        assert!(!slot.exists() && groups.leaving.is_empty());
    }

    #[test]
    fn a_process_is_below_those_that_started_it() {
        let me = process::id();
        let mine = above(Path::new("/"), me);
        assert!(mine.contains(&me));
        assert!(is_below(me, parent(Path::new("/"), me).unwrap()));
        assert!(!is_below(me, me) && !is_below(0, me) && !is_below(1 << 29, 1));
        assert!(above(Path::new("/"), 1 << 29).len() == 1, "one that is not there");
        let proc = tempfile::tempdir().unwrap();
        for (pid, stat) in [(30, "30 (a) b) S 20"), (20, "20 (x) S 30")] {
            let stat = format!("{stat}{}", " 0".repeat(22));
            std::fs::create_dir_all(proc.path().join(format!("proc/{pid}"))).unwrap();
            std::fs::write(proc.path().join(format!("proc/{pid}/stat")), stat).unwrap();
        }
        assert_eq!(above(proc.path(), 30), BTreeSet::from([20, 30]), "a circle ends");
    }
}
