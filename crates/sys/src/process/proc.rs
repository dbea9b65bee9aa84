//! What /proc says of a process. None where it has ended, or where the kernel does not show it.

use std::path::Path;

/// Parts of /proc/PID/stat (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// it has ended and waits for its parent to take note
    pub is_zombie: bool,
    pub parent: i32,
    /// its own, and of children that it waited for
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub threads: u64,
    pub rss_pages: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    stat_in(Path::new("/proc"), pid)
}

/// The same, of another place than /proc.
pub fn stat_in(proc: &Path, pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(proc.join(format!("{pid}/stat"))).ok()?;
    // a name in parentheses may hold anything; behind it come state, parent, group and others
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    // of one that is being released right now the kernel shows parent 0 and group -1 (fs/proc/array.c, do_task_stat)
    if fields.get(2) == Some(&"-1") {
        return None;
    }
    Some(Stat {
        is_zombie: *fields.first()? == "Z",
        parent: fields.get(1)?.parse().ok()?,
        user_ticks: number(11)? + number(13)?,
        system_ticks: number(12)? + number(14)?,
        threads: number(17)?,
        rss_pages: number(21)?,
    })
}

/// A field of /proc/PID/status; `process` may be `self`.
pub fn status(process: impl std::fmt::Display, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(value)
}
