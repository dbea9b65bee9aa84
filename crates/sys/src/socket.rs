//! Unix socket pairs, and descriptors sent through them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::error::{check, Result};
use crate::fd::{high, owned};

/// A pair of connected stream sockets, close-on-exec, numbered from 10.
pub fn stream_pair() -> Result<(OwnedFd, OwnedFd)> {
    pair(libc::SOCK_STREAM)
}

/// A pair of connected sockets that keep messages whole.
pub fn message_pair() -> Result<(OwnedFd, OwnedFd)> {
    pair(libc::SOCK_SEQPACKET)
}

fn pair(kind: libc::c_int) -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0 as RawFd; 2];
    // SAFETY: `ends` has room for two descriptors.
    let result = unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    check(result, "make", "socket pair")?;
    Ok((high(owned(ends[0].into()))?, high(owned(ends[1].into()))?))
}

/// Sends what fits without waiting; never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is valid for reads of its length.
    let put = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Receives what is there without waiting. Ok(0) is the end.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `into` is valid for writes of its length.
    let got = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            into.as_mut_ptr().cast(),
            into.len(),
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Room for one descriptor's control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends one byte and a descriptor with it.
pub fn send_descriptor(fd: BorrowedFd<'_>, passed: BorrowedFd<'_>) -> Result<()> {
    let byte = [0_u8];
    let mut part = libc::iovec {
        iov_base: byte.as_ptr().cast_mut().cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    // SAFETY: a zeroed msghdr is valid; its pointers are set to locals that outlive the call; CMSG_SPACE of one
    // descriptor (24 bytes) fits the control buffer, so CMSG_FIRSTHDR is not null.
    let sent = unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header)
            .cast::<RawFd>()
            .write_unaligned(passed.as_raw_fd());
        libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    check(sent as i64, "send", "descriptor")?;
    Ok(())
}

/// Waits for one byte and the descriptor that came with it. None: a byte without a descriptor, or the end.
pub fn receive_descriptor(fd: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let mut byte = [0_u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    // SAFETY: as in `send_descriptor`; the header is read only where the kernel says that there is one, and the
    // descriptor in it is new and ours.
    let found = unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let got = libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
        check(got as i64, "receive", "descriptor")?;
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            None
        } else {
            Some(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
        }
    };
    found.map(|fd| high(owned(fd.into()))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_arrives_and_works() {
        let (left, right) = stream_pair().unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), "hello").unwrap();
        send_descriptor(left.as_fd(), path.as_file().as_fd()).unwrap();
        let mut file = std::fs::File::from(receive_descriptor(right.as_fd()).unwrap().unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }
}
