//! Descriptors: pipes, poll, flags, plain reads and writes.

pub mod foreign;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, OFlags};
use rustix::pipe::PipeFlags;

use crate::error::{check, Named, Result, SysError};

pub const READABLE: i16 = libc::POLLIN;
pub const WRITABLE: i16 = libc::POLLOUT;
pub const HUNG_UP: i16 = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;

/// One descriptor to wait for.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Poll(libc::pollfd);

impl Poll {
    pub fn new(fd: BorrowedFd<'_>, events: i16) -> Self {
        Poll::raw(fd.as_raw_fd(), events)
    }

    /// By number; -1 is skipped by the kernel.
    pub fn raw(fd: RawFd, events: i16) -> Self {
        Poll(libc::pollfd {
            fd,
            events,
            revents: 0,
        })
    }

    /// Readable, or hung up (then a read shows how).
    pub fn readable(&self) -> bool {
        self.0.revents & (READABLE | HUNG_UP) != 0
    }

    pub fn writable(&self) -> bool {
        self.0.revents & (WRITABLE | HUNG_UP) != 0
    }
}

/// Waits until one is ready or `timeout_us` has passed (None: for ever; rounded up to 1 ms). An interrupted wait ends
/// early. The kernel checks the descriptors in their order.
pub fn poll(fds: &mut [Poll], timeout_us: Option<u64>) -> Result<usize> {
    let timeout_ms = match timeout_us {
        None => -1,
        Some(wait) => i32::try_from(wait.div_ceil(1000)).unwrap_or(i32::MAX),
    };
    // SAFETY: Poll is a transparent pollfd; the slice is valid for its length.
    let ready = unsafe { libc::poll(fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t, timeout_ms) };
    if ready >= 0 {
        return Ok(ready as usize);
    }
    let source = io::Error::last_os_error();
    if source.kind() == io::ErrorKind::Interrupted {
        for each in fds {
            each.0.revents = 0;
        }
        return Ok(0);
    }
    Err(SysError::new("poll", "", source))
}

/// Takes ownership of a descriptor that a system call has just returned.
pub(crate) fn owned(fd: i64) -> OwnedFd {
    // SAFETY: callers pass a descriptor that the kernel has just made for them, so nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// A pipe, both ends close-on-exec and numbered from 10, so that 0 to 4 stay free for payloads.
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).named("make", "pipe")?;
    Ok((high(from)?, high(to)?))
}

/// An anonymous file in memory, close-on-exec and numbered from 10.
pub fn memory_file(name: &std::ffi::CStr) -> Result<OwnedFd> {
    high(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).named("make", "memory file")?)
}

/// The same description at a number of at least 10, close-on-exec.
pub fn high(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() >= 10 {
        return Ok(fd);
    }
    duplicate(fd.as_fd())
}

/// Another descriptor (at least 10, close-on-exec) of the same description.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 10).named("duplicate", "descriptor")
}

/// Makes descriptor number `target` (0 to 9) the same description as `fd`, inherited by programs; what was there is closed.
pub fn place(fd: BorrowedFd<'_>, target: RawFd) -> Result<()> {
    // SAFETY: plain call; numbers below 10 belong to payloads by the rule of this crate (`high`).
    let result = unsafe { libc::dup2(fd.as_raw_fd(), target) };
    check(result, "place descriptor at", target.to_string())?;
    Ok(())
}

/// Reads and writes return at once with WouldBlock where they would wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd).named("get flags of", "descriptor")?;
    let mut wanted = flags;
    wanted.set(OFlags::NONBLOCK, on);
    if wanted != flags {
        rustix::fs::fcntl_setfl(fd, wanted).named("set flags of", "descriptor")?;
    }
    Ok(())
}

/// Sets the size of a pipe in bytes; the kernel may refuse (its limit for users), which is not an error.
pub fn set_pipe_size(fd: BorrowedFd<'_>, bytes: i32) {
    let _ = rustix::pipe::fcntl_setpipe_size(fd, bytes.unsigned_abs() as usize);
}

/// Reads once. Ok(0) is the end of file.
pub fn read(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(fd, into)?)
}

/// Writes once. A closed pipe is an error (EPIPE): callers have a handler for SIGPIPE or ignore it.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(fd, bytes)?)
}

/// Closes every descriptor from `first` on except those in `keep`.
pub fn close_from(first: RawFd, keep: &[RawFd]) -> Result<()> {
    let mut keep: Vec<RawFd> = keep.iter().copied().filter(|&fd| fd >= first).collect();
    keep.sort_unstable();
    let mut from = first;
    for fd in keep {
        close_between(from, fd - 1)?;
        from = fd + 1;
    }
    close_between(from, RawFd::MAX)
}

fn close_between(first: RawFd, last: RawFd) -> Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: closing descriptors touches no memory; the caller guarantees that they are not in use.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) };
    if result == 0 {
        return Ok(());
    }
    close_listed(first, last); // kernels before 5.9 have no close_range
    Ok(())
}

/// The same of those that are open: a descriptor can have any number, since the limit may have been higher before.
fn close_listed(first: RawFd, last: RawFd) {
    for number in open_numbers() {
        if (first..=last).contains(&number) {
            // SAFETY: as for close_range; a number that is not open any more fails harmlessly.
            unsafe { libc::close(number) };
        }
    }
}

/// More descriptors than this a process cannot have unless the machine's administrator raised the kernel's own limit
/// (proc(5), /proc/sys/fs/nr_open).
const FILES_MAX: RawFd = 1 << 20;

/// Numbers of the open descriptors of this process.
fn open_numbers() -> Vec<RawFd> {
    let listed = std::fs::read_dir("/proc/self/fd").and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name().to_str().and_then(|name| name.parse().ok())))
            .collect::<io::Result<Vec<Option<RawFd>>>>()
    });
    match listed {
        Ok(numbers) => numbers.into_iter().flatten().collect(),
        // without /proc: all that there can be
        Err(_) => (0..FILES_MAX).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_close_range_descriptors_of_any_number_are_closed() {
        use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
        let limits = |files: u64| Rlimit {
            current: Some(files),
            maximum: Some(files),
        };
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
        setrlimit(Resource::Nofile, limits(hard)).unwrap();
        let number = 70_000.min(hard as RawFd - 1);
        let null = std::fs::File::open("/dev/null").unwrap();
        place(null.as_fd(), number).unwrap();
        // descriptors above a lowered limit stay open
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(1000),
                maximum: Some(hard),
            },
        )
        .unwrap();
        assert!(open_numbers().contains(&number));
        close_listed(number, number);
        assert!(!open_numbers().contains(&number));
    }
}
