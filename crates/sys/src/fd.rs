//! Descriptors: pipes, poll, flags, plain reads and writes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::Resource;

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

    /// Readable, or hung up (then a read tells how).
    pub fn readable(&self) -> bool {
        self.0.revents & (READABLE | HUNG_UP) != 0
    }

    pub fn writable(&self) -> bool {
        self.0.revents & (WRITABLE | HUNG_UP) != 0
    }
}

/// Waits until one is ready or `timeout_us` has passed (None: for ever; rounded up to 1 ms). An interrupted wait ends
/// early. The kernel looks at the descriptors in their order.
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

/// Room for so many bytes in a pipe; the kernel may refuse (its limit for users), which is no error.
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
    // SAFETY: closing descriptors touches no memory; the caller guarantees that nobody uses them.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) };
    if result == 0 {
        return Ok(());
    }
    // kernels before 5.9 have no close_range
    let limit = rustix::process::getrlimit(Resource::Nofile)
        .current
        .map_or(65536, |limit| limit.min(65536) as i32);
    for fd in first..=last.min(limit) {
        // SAFETY: as above; closing a number that is not open fails harmlessly.
        unsafe { libc::close(fd) };
    }
    Ok(())
}
