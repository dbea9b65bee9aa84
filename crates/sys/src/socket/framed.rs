//! Frames between two of our processes: a length of four bytes, then as many bytes. Knows no message.

use std::cell::{Cell, RefCell, RefMut};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::socket;

/// A frame is never longer; a peer that says otherwise is broken.
const FRAME_BYTES_MAX: usize = 256 << 20;
const READ_BYTES: usize = 64 << 10;
/// Sent bytes are dropped from the front of a long queue when they exceed this.
const SENT_BYTES_MAX: usize = 32 << 20;
/// Room that an empty queue keeps.
const KEPT_BYTES: usize = 1 << 20;

/// A socket of frames: what has come in, and what waits to go out. Never blocks.
#[derive(Debug)]
pub struct Framed {
    socket: OwnedFd,
    input: Vec<u8>,
    /// bytes of `input` that were taken
    taken: usize,
    output: RefCell<Vec<u8>>,
    /// bytes of `output` that were sent
    sent: Cell<usize>,
}

impl Framed {
    pub fn new(socket: OwnedFd) -> Self {
        Framed {
            socket,
            input: Vec::new(),
            taken: 0,
            output: RefCell::default(),
            sent: Cell::new(0),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what is there; false at the end.
    pub fn receive(&mut self) -> io::Result<bool> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let mut piece = [0_u8; READ_BYTES];
        loop {
            match socket::receive(self.socket.as_fd(), &mut piece) {
                Ok(0) => return Ok(false),
                Ok(got) => {
                    self.input.extend_from_slice(&piece[..got]);
                    if got < READ_BYTES {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next whole frame of what was read, as `read` understands it; None where there is none.
    pub fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> io::Result<T>) -> io::Result<Option<T>> {
        let Some((content, bytes)) = next_frame(&self.input[self.taken..])? else {
            return Ok(None);
        };
        let message = read(content)?;
        self.taken += bytes;
        Ok(Some(message))
    }

    /// Where messages to send are appended.
    pub fn output(&self) -> RefMut<'_, Vec<u8>> {
        self.output.borrow_mut()
    }

    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.output.borrow().len() - self.sent.get()
    }

    /// Sends what the socket takes.
    pub fn flush(&self) -> io::Result<()> {
        let mut output = self.output.borrow_mut();
        let mut sent = self.sent.get();
        let mut result = Ok(());
        while sent < output.len() {
            match socket::send(self.socket.as_fd(), &output[sent..]) {
                Ok(put) => sent += put,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if sent == output.len() {
            output.clear();
            output.shrink_to(KEPT_BYTES);
            sent = 0;
        } else if sent > SENT_BYTES_MAX {
            output.drain(..sent);
            sent = 0;
        }
        self.sent.set(sent);
        result
    }

    /// Discards the output that waits: its reader is gone.
    pub fn forget_output(&self) {
        self.output.borrow_mut().clear();
        self.sent.set(0);
    }
}

/// Appends one frame whose content `write` appends.
pub fn put_frame(into: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend_from_slice(&[0; 4]);
    write(into);
    let length = (into.len() - start - 4) as u32;
    into[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The content of the frame at the front, and the frame's length; None where it is not whole yet.
pub fn next_frame(bytes: &[u8]) -> io::Result<Option<(&[u8], usize)>> {
    let Some(&head) = bytes.first_chunk() else {
        return Ok(None);
    };
    let length = content_length(head)?;
    Ok(bytes.get(4..4 + length).map(|content| (content, 4 + length)))
}

/// Waits for a frame: its content, or None at the end.
pub fn read_frame(from: &mut impl io::Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut content = vec![0; content_length(head)?];
    from.read_exact(&mut content)?;
    Ok(Some(content))
}

fn content_length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > FRAME_BYTES_MAX {
        let text = format!("a frame of {length} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Framed, Framed) {
        let (left, right) = socket::stream_pair().unwrap();
        (Framed::new(left), Framed::new(right))
    }

    fn text(content: &[u8]) -> io::Result<Vec<u8>> {
        Ok(content.to_vec())
    }

    fn put(to: &Framed, content: &[u8]) {
        put_frame(&mut to.output(), |frame| frame.extend_from_slice(content));
    }

    #[test]
    fn frames_arrive_in_order_when_the_socket_is_full_and_when_they_come_in_pieces() {
        let (left, mut right) = pair();
        let long = vec![b'x'; 1 << 20];
        for content in [b"one".as_slice(), &long, b"three"] {
            put(&left, content);
        }
        let mut got = Vec::new();
        while got.len() < 3 {
            left.flush().unwrap();
            assert!(right.receive().unwrap());
            while let Some(frame) = right.next(text).unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, [b"one".to_vec(), long, b"three".to_vec()]);
        assert_eq!(left.pending(), 0);
        drop(left);
        assert!(!right.receive().unwrap());
    }

    #[test]
    fn a_frame_that_is_too_long_is_an_error() {
        let (left, mut right) = pair();
        left.output().extend_from_slice(&[0xff; 8]);
        left.flush().unwrap();
        assert!(right.receive().unwrap());
        assert!(right.next(text).is_err());
    }
}
