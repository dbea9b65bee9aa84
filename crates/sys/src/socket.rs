//! Unix socket pairs, descriptors and files sent through sockets, and the loopback of a new network.

pub mod framed;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::{check, Named, Result};
use crate::fd::high;

/// A pair of connected stream sockets, close-on-exec, numbered from 10.
pub fn stream_pair() -> Result<(OwnedFd, OwnedFd)> {
    pair(SocketType::STREAM)
}

/// A pair of connected sockets that keep messages whole.
pub fn message_pair() -> Result<(OwnedFd, OwnedFd)> {
    pair(SocketType::SEQPACKET)
}

fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd)> {
    let made = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (left, right) = made.named("make", "socket pair")?;
    Ok((high(left)?, high(right)?))
}

/// Sends what fits without waiting; never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(
        fd,
        bytes,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?)
}

/// Receives what is there without waiting. Ok(0) is the end.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(fd, into, RecvFlags::DONTWAIT)?.0)
}

/// Sends one byte and a descriptor with it.
pub fn send_descriptor(fd: BorrowedFd<'_>, passed: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [passed];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(fd, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
        .named("send", "descriptor")
        .map(drop)
}

/// Waits for one byte and the descriptor that came with it. None: a byte without a descriptor, or the end.
pub fn receive_descriptor(fd: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let mut byte = [0_u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .named("receive", "descriptor")?;
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    found.map(high).transpose()
}

/// Sends `length` bytes of `file` from `offset` on without passing them through this process (sendfile(2)), and waits as
/// the socket's own time limit says. The file's position stays. An error where the file ends before.
pub fn send_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<()> {
    let (mut at, end) = (offset, offset + length);
    while at < end {
        let left = (end - at) as usize;
        match rustix::fs::sendfile(socket, file, Some(&mut at), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Brings up the loopback of this network namespace. Needs CAP_NET_ADMIN in the user namespace that owns it.
pub fn bring_up_loopback() -> Result<()> {
    let made = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let socket = made.named("make", "socket")?;
    // SAFETY: a zeroed ifreq is valid: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is (netdevice(7)).
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    check(result, "bring up", "loopback").map(drop)
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

    #[test]
    fn a_part_of_a_file_goes_out_and_a_missing_part_is_an_error() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let (left, mut right) = std::os::unix::net::UnixStream::pair().unwrap();
        send_file(left.as_fd(), file.as_fd(), 3, 4).unwrap();
        let mut got = [0; 4];
        right.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"3456");
        assert!(send_file(left.as_fd(), file.as_fd(), 8, 4).is_err());
    }
}
