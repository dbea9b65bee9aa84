//! Descriptors of other processes, and what the kernel keeps behind them: data in sockets and pipes, and files that are on
//! their way through Unix sockets (unix(7), SCM_RIGHTS), which no process lists.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::owned;
use crate::error::check;

/// include/uapi/asm-generic/socket.h
const SO_MEMINFO: libc::c_int = 55;
/// include/uapi/linux/sock_diag.h, SK_MEMINFO_*: memory of what was received and what is to be sent (twice: what the
/// protocol holds, and what waits), what is reserved, options, and what waits to be received.
const MEMINFO: usize = 9;
const RECEIVED: usize = 0;
const SENT: usize = 2;
const RESERVED: usize = 4;
const SENT_QUEUED: usize = 5;
const OPTIONS: usize = 6;
const BACKLOG: usize = 7;
/// include/net/scm.h, SCM_MAX_FD: descriptors of one message.
const DESCRIPTORS_MAX: usize = 253;
/// Of the control part of a message with as many.
const CONTROL_BYTES: usize = 1040;
const PEEK_BYTES: usize = 64 << 10;
/// Messages of one socket that are examined.
const PEEKS_MAX: usize = 4096;
/// The default of net.core.wmem_max (net/core/sock.c, SK_WMEM_MAX); a program can have twice that (socket(7), SO_SNDBUF).
const SEND_BYTES: u64 = 212_992;
/// The kernel's memory for a message of one byte: its head (struct sk_buff, struct skb_shared_info), and its data.
const MESSAGE_BYTES: u64 = 1024;

/// A process or thread whose descriptors can be copied (pidfd_getfd(2), Linux 5.6).
pub struct Holder(OwnedFd);

impl Holder {
    pub fn process(pid: i32) -> io::Result<Self> {
        Holder::open(pid, 0)
    }

    /// One that may have a table of descriptors of its own. Linux 6.9.
    pub fn thread(tid: i32) -> io::Result<Self> {
        Holder::open(tid, libc::O_EXCL)
    }

    fn open(id: i32, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: plain call; it returns a new descriptor or an error.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
        checked(opened).map(Holder)
    }

    /// A copy of its descriptor `number`. Needs what tracing it needs.
    pub fn copy(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: plain call on a descriptor that lives; it returns a new descriptor or an error.
        let copied = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), number, 0) };
        checked(copied)
    }
}

fn checked(result: i64) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(owned(result))
}

/// A socket, as far as its memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub is_unix: bool,
    pub is_listening: bool,
    /// Of Unix sockets, which charge data to its sender: bytes of memory that wait here, at most, and whose sender may be
    /// gone, so that no socket accounts for them.
    pub orphaned_bytes: u64,
}

/// None: it is not a socket.
pub fn kind(socket: BorrowedFd<'_>) -> Option<Kind> {
    let is_unix = option(socket, libc::SO_DOMAIN)? == libc::AF_UNIX;
    let is_listening = option(socket, libc::SO_ACCEPTCONN)? != 0;
    let is_stream = option(socket, libc::SO_TYPE)? != libc::SOCK_DGRAM;
    let mut look = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN | libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one valid pollfd; a time of 0 does not wait.
    unsafe { libc::poll(&raw mut look, 1, 0) };
    let (has_data, has_ended) = (
        look.revents & libc::POLLIN != 0,
        look.revents & libc::POLLRDHUP != 0,
    );
    // a stream whose peer has gone is readable without data, too
    let is_orphaned = is_unix && !is_listening && has_data && (!is_stream || has_ended);
    let bytes = if is_orphaned { waiting(socket) } else { 0 };
    let orphaned_bytes = if bytes > 0 {
        orphaned(bytes, is_stream, send_bytes_max())
    } else {
        0
    };
    Some(Kind {
        is_unix,
        is_listening,
        orphaned_bytes,
    })
}

/// The most that `bytes` which wait in a socket take, if its sender could have `send_bytes_max` on their way. Of
/// datagrams `bytes` are those of the first: the others are not counted beyond what a sender may send by default.
fn orphaned(bytes: u64, is_stream: bool, send_bytes_max: u64) -> u64 {
    let most = if is_stream {
        bytes.saturating_mul(MESSAGE_BYTES)
    } else {
        2 * SEND_BYTES
    };
    send_bytes_max.min(most)
}

fn send_bytes_max() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap_or_default();
    2 * text.trim().parse().unwrap_or(SEND_BYTES)
}

/// Bytes that can be read from a socket or pipe: of datagrams, those of the first.
fn waiting(fd: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes an int.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if asked < 0 {
        return 0;
    }
    u64::try_from(bytes).unwrap_or(0)
}

/// Bytes of the kernel's memory that a socket accounts for; 0 before Linux 4.12.
pub fn socket_bytes(socket: BorrowedFd<'_>) -> u64 {
    let mut found = [0_u32; MEMINFO];
    let mut length = std::mem::size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of u32 there.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            found.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if asked < 0 {
        return 0;
    }
    let sent = found[SENT].max(found[SENT_QUEUED]);
    let parts = [
        found[RECEIVED],
        sent,
        found[RESERVED],
        found[OPTIONS],
        found[BACKLOG],
    ];
    parts.into_iter().map(u64::from).sum()
}

/// Bytes that a pipe may hold, 0 when it is empty. A page may hold a single byte.
pub fn pipe_bytes(pipe: BorrowedFd<'_>) -> u64 {
    if waiting(pipe) == 0 {
        return 0;
    }
    // SAFETY: plain call on a descriptor that lives.
    let size = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) };
    u64::try_from(size).unwrap_or(0)
}

/// Passes on copies of the descriptors that wait in a Unix socket, which stay there. Returns how many wait there and
/// could not be examined: those of connections that were not accepted, and those of messages without content. What
/// waits is known since Linux 5.10; before, the first message is examined.
pub fn in_flight(socket: BorrowedFd<'_>, each: &mut dyn FnMut(OwnedFd)) -> u64 {
    let before = announced(socket);
    if before == Some(0) {
        return 0;
    }
    let mut found = peek(socket, each).unwrap_or(0);
    let all = before.unwrap_or(0);
    if found < all {
        found = peek_all(socket, all, each);
    }
    // what was received meanwhile does not wait
    let after = announced(socket).unwrap_or(0);
    all.min(after).saturating_sub(found)
}

/// Linux, net/unix/af_unix.c, unix_show_fdinfo.
fn announced(socket: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", socket.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"))?;
    count.trim().parse().ok()
}

/// Message by message: peeking goes on from an offset, which every reader of the socket shares (socket(7), SO_PEEK_OFF).
fn peek_all(socket: BorrowedFd<'_>, all: u64, each: &mut dyn FnMut(OwnedFd)) -> u64 {
    let Some(offset) = option(socket, libc::SO_PEEK_OFF) else {
        return 0;
    };
    if !set_option(socket, libc::SO_PEEK_OFF, 0) {
        return 0;
    }
    let mut found = 0;
    for _ in 0..PEEKS_MAX {
        match peek(socket, each) {
            Some(more) if found < all => found += more,
            _ => break,
        }
    }
    set_option(socket, libc::SO_PEEK_OFF, offset);
    found
}

/// The descriptors of the next message; None where there is none.
fn peek(socket: BorrowedFd<'_>, each: &mut dyn FnMut(OwnedFd)) -> Option<u64> {
    let mut bytes = [MaybeUninit::<u8>::uninit(); PEEK_BYTES];
    let mut control = [0_u64; CONTROL_BYTES / 8]; // aligned as struct cmsghdr
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: PEEK_BYTES,
    };
    // SAFETY: a zeroed msghdr is valid: no name, no parts, no control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` names two buffers that live, with their lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return None;
    }
    let mut count = 0;
    // SAFETY: the kernel has filled `message`; the macros stay within its control part, and descriptors in it are new and
    // this process has them alone. They need not be aligned.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(&raw const message);
        while !head.is_null() {
            if ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(head).cast::<RawFd>();
                let length = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for at in 0..(length / std::mem::size_of::<RawFd>()).min(DESCRIPTORS_MAX) {
                    count += 1;
                    each(owned(i64::from(data.add(at).read_unaligned())));
                }
            }
            head = libc::CMSG_NXTHDR(&raw const message, head);
        }
    }
    (got > 0 || count > 0).then_some(count)
}

fn option(socket: BorrowedFd<'_>, name: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = std::mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes an int of this length.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (asked == 0).then_some(value)
}

fn set_option(socket: BorrowedFd<'_>, name: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: the kernel reads an int of this length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw const value).cast(),
            std::mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    check(i64::from(set), "set", "socket option").is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::socket::send_descriptor;

    fn memory(bytes: usize) -> OwnedFd {
        let fd = crate::fd::memory_file(c"x").unwrap();
        std::fs::File::from(fd.try_clone().unwrap())
            .write_all(&vec![1; bytes])
            .unwrap();
        fd
    }

    fn sizes(socket: BorrowedFd<'_>) -> (Vec<u64>, u64) {
        let mut found = Vec::new();
        let unseen = in_flight(socket, &mut |fd| {
            found.push(std::fs::File::from(fd).metadata().unwrap().len());
        });
        (found, unseen)
    }

    #[test]
    fn files_on_their_way_are_seen_and_arrive_as_they_were_sent() {
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(b"before").unwrap();
        for bytes in [10, 20, 30] {
            send_descriptor(left.as_fd(), memory(bytes).as_fd()).unwrap();
        }
        if announced(right.as_fd()).is_none() {
            return; // this kernel does not count them
        }
        for _ in 0..2 {
            let (mut found, unseen) = sizes(right.as_fd());
            found.sort_unstable();
            found.dedup(); // the first message is examined twice
            assert_eq!((found, unseen), (vec![10, 20, 30], 0));
        }
        let mut text = [0; 6];
        (&right).read_exact(&mut text).unwrap();
        assert_eq!(&text, b"before");
        for bytes in [10, 20, 30] {
            let fd = crate::socket::receive_descriptor(right.as_fd()).unwrap().unwrap();
            assert_eq!(std::fs::File::from(fd).metadata().unwrap().len(), bytes);
        }
        assert_eq!(sizes(right.as_fd()), (vec![], 0));
    }

    #[test]
    fn what_waits_for_an_unaccepted_connection_is_counted_though_not_seen() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let client = UnixStream::connect(dir.path().join("s")).unwrap();
        send_descriptor(client.as_fd(), memory(5).as_fd()).unwrap();
        if announced(listener.as_fd()).is_some() {
            assert_eq!(sizes(listener.as_fd()), (vec![], 1));
        }
        assert!(kind(listener.as_fd()).unwrap().is_listening);
    }

    #[test]
    fn data_in_sockets_and_pipes_has_a_size_also_when_its_sender_has_gone() {
        let (mut left, right) = UnixStream::pair().unwrap();
        assert_eq!(socket_bytes(left.as_fd()), 0);
        left.write_all(&[0; 50_000]).unwrap();
        assert!(socket_bytes(left.as_fd()) >= 50_000);
        assert_eq!(kind(right.as_fd()).unwrap().orphaned_bytes, 0);
        drop(left);
        let kept = kind(right.as_fd()).unwrap().orphaned_bytes;
        assert!(kept >= 50_000 && kept <= send_bytes_max(), "{kept}");
        let (from, to) = crate::fd::pipe().unwrap();
        assert_eq!((pipe_bytes(from.as_fd()), kind(from.as_fd())), (0, None));
        std::fs::File::from(to.try_clone().unwrap())
            .write_all(b"x")
            .unwrap();
        assert_eq!(pipe_bytes(to.as_fd()), 65_536);
    }

    #[test]
    fn a_few_bytes_of_a_sender_that_has_gone_are_not_all_that_it_could_have_sent() {
        let large = 512 << 20; // of a node with wmem_max of 256 MB
        assert_eq!(orphaned(10, true, large), 10_240);
        assert_eq!(orphaned(10, false, large), 425_984);
        assert_eq!(orphaned(1 << 30, true, large), large);
        assert_eq!(orphaned(10, false, 4096), 4096);
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(&[0; 10]).unwrap();
        drop(left);
        assert_eq!(
            kind(right.as_fd()).unwrap().orphaned_bytes,
            10_240.min(send_bytes_max())
        );
    }

    #[test]
    fn descriptors_of_a_process_are_copied_by_number() {
        let Ok(me) = Holder::process(crate::process::id()) else {
            return; // before Linux 5.6
        };
        let file = memory(7);
        let copy = me.copy(file.as_raw_fd()).unwrap();
        assert_eq!(std::fs::File::from(copy).metadata().unwrap().len(), 7);
        assert!(me.copy(1 << 20).is_err());
    }
}
