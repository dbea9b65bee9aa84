//! Bytes of a file to a socket without passing through this process (sendfile(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends `length` bytes of `file` from `offset` on and waits as the socket's own time limit says. The file's position
/// stays. An error where the file ends before.
pub fn send(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<()> {
    let (mut at, end) = (offset as i64, (offset + length) as i64);
    while at < end {
        // SAFETY: both descriptors are borrowed and open; `at` is a valid place, which the kernel moves on.
        let sent =
            unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &mut at, (end - at) as usize) };
        match sent {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_part_of_a_file_goes_out_and_a_missing_part_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let (left, mut right) = UnixStream::pair().unwrap();
        super::send(left.as_fd(), file.as_fd(), 3, 4).unwrap();
        let mut got = [0; 4];
        right.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"3456");
        assert!(super::send(left.as_fd(), file.as_fd(), 8, 4).is_err());
    }
}
