//! Lines from and to a nonblocking socket.

use std::io::{self, Read, Write};

use crate::error::WireError;

const GROW_BYTES: usize = 4096;
const READ_BYTES_MAX: usize = 256 << 10;

/// What a read from a peer gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// So many new bytes; 0 = nothing there now.
    Open(usize),
    /// The peer has closed its side; lines that are complete may still be in the buffer.
    Closed,
}

/// Cuts what a peer sends into lines. Memory grows with the longest line, up to a limit.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    start: usize,
    scanned: usize,
    end: usize,
    limit: usize,
    /// The last read filled all the room: the next one gets more.
    full: bool,
}

impl LineBuffer {
    /// `limit`: bytes of one line at most, newline included.
    pub fn new(limit: usize) -> Self {
        LineBuffer {
            bytes: Vec::new(),
            start: 0,
            scanned: 0,
            end: 0,
            limit,
            full: false,
        }
    }

    /// Change the limit, for example after the peer has proved who it is.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Bytes that are buffered, whole lines or not.
    pub fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// One read. An error if the line that is being received is longer than the limit.
    pub fn fill(&mut self, source: &mut impl Read) -> Result<Fill, FillError> {
        self.make_room()?;
        loop {
            match source.read(&mut self.bytes[self.end..]) {
                Ok(0) => return Ok(Fill::Closed),
                Ok(count) => {
                    self.end += count;
                    self.full = self.end == self.bytes.len();
                    return Ok(Fill::Open(count));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Fill::Open(0)),
                Err(error) => return Err(FillError::Io(error)),
            }
        }
    }

    /// The next whole line without its newline.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        match self.bytes[self.scanned..self.end]
            .iter()
            .position(|&byte| byte == b'\n')
        {
            Some(offset) => {
                let (first, newline) = (self.start, self.scanned + offset);
                self.start = newline + 1;
                self.scanned = self.start;
                Some(&self.bytes[first..newline])
            }
            None => {
                self.scanned = self.end;
                None
            }
        }
    }

    fn make_room(&mut self) -> Result<(), FillError> {
        if self.start == self.end {
            (self.start, self.scanned, self.end) = (0, 0, 0);
        }
        if self.scanned - self.start >= self.limit {
            return Err(FillError::Line(WireError::LineTooLong { limit: self.limit }));
        }
        if self.start > 0 && self.bytes.len() - self.end < self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.scanned -= self.start;
            self.start = 0;
        }
        let length = self.bytes.len();
        let wants_more = std::mem::take(&mut self.full) && length < READ_BYTES_MAX;
        if self.end == length || wants_more {
            self.bytes
                .resize(length + length.clamp(GROW_BYTES, READ_BYTES_MAX), 0);
        }
        Ok(())
    }
}

/// Why a peer cannot be read any more.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    #[error("the connection broke")]
    Io(#[source] io::Error),
    #[error(transparent)]
    Line(#[from] WireError),
}

/// Bytes on their way to a nonblocking socket.
#[derive(Debug, Default)]
pub struct OutBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl OutBuffer {
    /// The buffer to append whole lines to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Append a message and its newline.
    pub fn push<T: serde::Serialize + ?Sized>(&mut self, message: &T) -> Result<(), WireError> {
        let start = self.bytes.len();
        if let Err(source) = serde_json::to_writer(&mut self.bytes, message) {
            self.bytes.truncate(start);
            return Err(WireError::Json {
                what: "JSON",
                quoted: String::from("a message"),
                source,
            });
        }
        self.bytes.push(b'\n');
        Ok(())
    }

    /// Bytes that are not sent yet.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Send what the socket takes now; true when nothing is left.
    pub fn flush(&mut self, sink: &mut impl Write) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match sink.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > READ_BYTES_MAX && self.sent * 2 > self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(self.sent == self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives its bytes in pieces, with WouldBlock between them.
    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        piece: usize,
        block: bool,
    }

    impl Read for Pieces {
        fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
            self.block = !self.block;
            if self.block && self.at < self.bytes.len() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = self.piece.min(place.len()).min(self.bytes.len() - self.at);
            place[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }
    }

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in(lines in proptest::collection::vec("[a-z]{0,9000}", 0..6), piece in 1usize..5000) {
            let mut bytes = lines.join("\n").into_bytes();
            if !lines.is_empty() {
                bytes.push(b'\n');
            }
            bytes.extend_from_slice(b"torn");
            let mut source = Pieces { bytes, at: 0, piece, block: false };
            let mut buffer = LineBuffer::new(10_000);
            let mut read = Vec::new();
            while buffer.fill(&mut source).unwrap() != Fill::Closed {
                while let Some(line) = buffer.next_line() {
                    read.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            prop_assert_eq!(read, lines);
            prop_assert_eq!(buffer.buffered(), 4);
        }
    }

    #[test]
    fn a_line_over_the_limit_is_an_error_and_memory_stays_bounded() {
        let mut source = Pieces {
            bytes: vec![b'x'; 1 << 20],
            at: 0,
            piece: 1 << 20,
            block: true,
        };
        let mut buffer = LineBuffer::new(64 << 10);
        let error = loop {
            match buffer.fill(&mut source) {
                Ok(_) => assert!(buffer.next_line().is_none()),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("65536"), "{error}");
        assert!(buffer.buffered() <= 192 << 10, "{}", buffer.buffered());
    }

    #[test]
    fn an_out_buffer_sends_all_in_pieces() {
        struct Slow(Vec<u8>, bool);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let count = bytes.len().min(3);
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Slow(Vec::new(), false);
        let mut out = OutBuffer::default();
        out.push(&[1, 2, 3]).unwrap();
        while !out.flush(&mut sink).unwrap() {
            assert!(out.pending() > 0);
        }
        assert_eq!(sink.0, b"[1,2,3]\n");
        assert_eq!(out.pending(), 0);
    }
}
