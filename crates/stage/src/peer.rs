//! What two nodes say to each other: three lines of greeting, then frames.
//!
//! ```text
//! giver -> taker  Greeting   a nonce
//! taker -> giver  Wish       which file, from which block on, and a proof that it knows the fleet's secret
//! giver -> taker  Answer     a proof of its own, or a refusal
//! giver -> taker  frames     of 9 bytes: kind, length, CRC-32; a block's content follows its frame
//! ```

use std::io::{self, Read};
use std::time::Instant;

use serde::{de::DeserializeOwned, Deserialize, Serialize};

/// A greeting line is shorter.
const LINE_BYTES_MAX: usize = 2048;
pub const FRAME_BYTES: usize = 9;

#[derive(Debug, Serialize, Deserialize)]
pub struct Greeting {
    pub nonce: String,
    pub block_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Wish {
    pub name: String,
    pub nonce: String,
    pub proof: String,
    pub sha256: String,
    pub bytes: u64,
    pub block: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    pub proof: String,
    /// Why not; empty = here it comes.
    pub refusal: String,
}

/// What follows in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    Block {
        length: u32,
        checksum: u32,
    },
    /// The giver lives and has no more yet.
    Wait,
    /// What was sent was wrong: all blocks follow again.
    Spoiled,
    /// The giver will never have the rest.
    Gone,
}

impl Frame {
    pub fn bytes(self) -> [u8; FRAME_BYTES] {
        let (kind, length, checksum) = match self {
            Frame::Block { length, checksum } => (b'b', length, checksum),
            Frame::Wait => (b'w', 0, 0),
            Frame::Spoiled => (b's', 0, 0),
            Frame::Gone => (b'g', 0, 0),
        };
        let mut bytes = [kind; FRAME_BYTES];
        bytes[1..5].copy_from_slice(&length.to_be_bytes());
        bytes[5..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// None: no frame begins so.
    pub fn read(bytes: [u8; FRAME_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(match bytes[0] {
            b'b' => Frame::Block {
                length: number(1),
                checksum: number(5),
            },
            b'w' => Frame::Wait,
            b's' => Frame::Spoiled,
            b'g' => Frame::Gone,
            _ => return None,
        })
    }
}

/// One line of the greeting, whole before `until`; read byte by byte, since the bytes behind it must not be buffered
/// here.
pub fn read_line<T: DeserializeOwned>(from: &mut impl Read, until: Instant) -> io::Result<T> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if byte[0] == b'\n' {
            return serde_json::from_slice(&line).map_err(io::Error::from);
        }
        line.push(byte[0]);
        if line.len() >= LINE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "its greeting is longer than {LINE_BYTES_MAX} bytes"
            )));
        }
    }
}

/// A line to be sent.
pub fn line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(length: u32, checksum: u32) {
            for frame in [Frame::Block { length, checksum }, Frame::Wait, Frame::Spoiled, Frame::Gone] {
                prop_assert_eq!(Frame::read(frame.bytes()), Some(frame));
            }
        }
    }

    #[test]
    fn what_is_no_frame_and_a_line_without_end_are_refused() {
        assert_eq!(Frame::read(*b"xxxxxxxxx"), None);
        let mut endless = io::repeat(b'x');
        let later = Instant::now() + std::time::Duration::from_secs(60);
        assert!(read_line::<Wish>(&mut endless, later).is_err());
        let late = read_line::<Wish>(&mut endless, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
