//! What the kernel keeps for a slot's processes behind sockets and pipes, and files that are on their way from one process
//! to another: in no process's RSS, and partly behind no descriptor.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use tidemill_sys::fd::foreign::{self, Holder};

/// A descriptor of a process of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub process: i32,
    /// of the process, where the descriptor is in the table of one of its threads
    pub thread: Option<i32>,
    pub number: i32,
}

/// Sockets that wait to be examined once they have come out of others: each holds one of our descriptors.
const WAITING_MAX: usize = 256;

/// Sums over sockets and pipes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub bytes: u64,
    /// kB of files in memory that are on their way, by device and number
    pub files: HashMap<(u64, u64), u64>,
    /// descriptors on their way that could not be examined
    pub unseen: u64,
}

/// Looks at sockets and pipes by their numbers. What cannot be copied (before Linux 5.6) counts nothing.
pub(super) fn find(ends: &HashMap<u64, End>, is_in_memory: impl Fn(&str) -> bool) -> Kept {
    let mut look = Look {
        kept: Kept::default(),
        known: ends.keys().copied().collect(),
        waiting: Vec::new(),
    };
    let mut holders: HashMap<(i32, Option<i32>), Option<Holder>> = HashMap::new();
    for (&number, end) in ends {
        let holder = holders.entry((end.process, end.thread)).or_insert_with(|| {
            let opened = match end.thread {
                Some(thread) => Holder::thread(thread),
                None => Holder::process(end.process),
            };
            opened.ok()
        });
        let copied = holder.as_ref().and_then(|holder| holder.copy(end.number).ok());
        // it may have been closed meanwhile, and its number be that of another
        if let Some(fd) = copied.filter(|fd| number_of(fd) == Some(number)) {
            look.at(&fd, &is_in_memory);
        }
        while let Some(fd) = look.waiting.pop() {
            look.at(&fd, &is_in_memory);
        }
    }
    look.kept
}

struct Look {
    kept: Kept,
    /// sockets and pipes that were examined, or will be
    known: HashSet<u64>,
    waiting: Vec<OwnedFd>,
}

impl Look {
    fn at(&mut self, fd: &OwnedFd, is_in_memory: &impl Fn(&str) -> bool) {
        let Some(kind) = foreign::kind(fd.as_fd()) else {
            self.kept.bytes += foreign::pipe_bytes(fd.as_fd());
            return;
        };
        self.kept.bytes += foreign::socket_bytes(fd.as_fd());
        self.kept.bytes += kind.orphaned_bytes;
        if !kind.is_unix {
            return;
        }
        let mut dropped = 0;
        let unseen = foreign::in_flight(fd.as_fd(), &mut |passed| {
            dropped += u64::from(!self.take(passed, is_in_memory));
        });
        self.kept.unseen += unseen + dropped;
    }

    /// A descriptor on its way; false if there is no room to examine it. What kind of file it is says its name: asking a
    /// file for its size may wait for who serves it.
    fn take(&mut self, fd: OwnedFd, is_in_memory: &impl Fn(&str) -> bool) -> bool {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let Ok(target) = std::fs::read_link(path) else {
            return true;
        };
        let target = target.to_string_lossy();
        if is_in_memory(&target) {
            if let Ok(metadata) = File::from(fd).metadata() {
                let at = (metadata.dev(), metadata.ino());
                self.kept.files.insert(at, metadata.blocks() / 2);
            }
        } else if is_end(&target).is_some_and(|number| self.known.insert(number)) {
            if self.waiting.len() >= WAITING_MAX {
                return false;
            }
            self.waiting.push(fd);
        }
        true
    }
}

/// The number of a socket or pipe, of what /proc/PID/fd shows.
pub(super) fn is_end(target: &str) -> Option<u64> {
    let rest = target
        .strip_prefix("socket:[")
        .or_else(|| target.strip_prefix("pipe:["))?;
    rest.strip_suffix(']')?.parse().ok()
}

fn number_of(fd: &OwnedFd) -> Option<u64> {
    Some(File::from(fd.try_clone().ok()?).metadata().ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use tidemill_sys::{fd, process, socket};

    /// As a slot would find it in this process.
    fn end(fd: &impl AsRawFd) -> (u64, End) {
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let end = End {
            process: process::id(),
            thread: None,
            number: fd.as_raw_fd(),
        };
        (is_end(&target.to_string_lossy()).unwrap(), end)
    }

    #[test]
    fn a_file_in_a_socket_that_is_in_a_socket_is_found() {
        let me = process::id();
        let (inner, kept) = UnixStream::pair().unwrap();
        let (outer, held) = UnixStream::pair().unwrap();
        let ends = HashMap::from([end(&held)]);
        if Holder::process(me).is_err() || find(&ends, |_| false).bytes > 0 {
            return; // before Linux 5.6
        }
        let file = fd::memory_file(c"x").unwrap();
        File::from(file.try_clone().unwrap())
            .write_all(&[1; 400_000])
            .unwrap();
        socket::send_descriptor(inner.as_fd(), file.as_fd()).unwrap();
        socket::send_descriptor(outer.as_fd(), kept.as_fd()).unwrap();
        let found = find(&ends, |target| target.starts_with("/memfd:"));
        let kb: Vec<u64> = found.files.values().copied().collect();
        assert!(kb.len() == 1 && kb[0] >= 390 && found.unseen == 0, "{found:?}");
        drop((inner, outer));
    }

    #[test]
    fn ends_are_known_by_their_names() {
        assert_eq!(is_end("socket:[12]"), Some(12));
        assert_eq!(is_end("pipe:[7]"), Some(7));
        assert_eq!(is_end("/tmp/pipe:[7]"), None);
    }
}
