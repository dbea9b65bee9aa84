//! Taking a file from another node.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tidemill_wire::handshake;

use crate::entry::{Entry, BLOCK_BYTES};
use crate::error::FetchError;
use crate::peer::{self, Answer, Frame, Greeting, Wish, FRAME_BYTES};
use crate::Node;

const CONNECT: Duration = Duration::from_secs(3);
/// A giver sends a sign of life every second; one that is silent for this long is gone.
const SILENT: Duration = Duration::from_secs(15);
/// A giver that lives but does not send the next block within this time has a broken source: ask for another giver.
const STUCK: Duration = Duration::from_secs(60);
/// A giver whose sources corrupt the file more often than this has no good source.
const SPOILED_MAX: u32 = 3;

/// Get what is missing of `entry` from the node at `address`.
pub fn take(node: &Node, entry: &Entry, address: &str) -> Result<(), FetchError> {
    let mut stream = greet(node, entry, address)?;
    let failed = |operation: &'static str| {
        move |source: io::Error| FetchError::Peer {
            operation,
            peer: address.to_owned(),
            source,
        }
    };
    let refused = |message: &str| FetchError::Refused {
        peer: address.to_owned(),
        message: message.to_owned(),
    };
    let mut content = Vec::new();
    let mut until = Instant::now() + STUCK;
    let mut spoiled = 0;
    while entry.here() < entry.blocks() {
        let mut head = [0; FRAME_BYTES];
        read_before(&mut stream, &mut head, until).map_err(failed("hear more from"))?;
        match Frame::read(head) {
            Some(Frame::Block { length, checksum }) => {
                let block = entry.here();
                if u64::from(length) != entry.length(block) {
                    return Err(refused(&format!("sent a block of {length} bytes")));
                }
                content.resize(length as usize, 0);
                read_before(&mut stream, &mut content, until).map_err(failed("receive a block from"))?;
                let found = crc32fast::hash(&content);
                if found != checksum {
                    return Err(FetchError::Damaged {
                        peer: address.to_owned(),
                        block,
                        found,
                        expected: checksum,
                    });
                }
                content = entry.append(content, checksum, Some(address))?;
                until = Instant::now() + STUCK;
            }
            Some(Frame::Wait) => {}
            Some(Frame::Spoiled) if spoiled == SPOILED_MAX => {
                return Err(refused(&format!(
                    "got corrupt data from its own source more than {SPOILED_MAX} times"
                )));
            }
            Some(Frame::Spoiled) => {
                spoiled += 1;
                entry.start_again();
            }
            Some(Frame::Gone) => return Err(refused("cannot provide this file")),
            None => return Err(refused("sent an invalid frame")),
        }
    }
    Ok(())
}

/// Fills the buffer; an error where it is not full before `until`, however the bytes come.
fn read_before(from: &mut impl Read, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        if Instant::now() > until {
            let what = format!("no whole block in {} s", STUCK.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        match from.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn greet(node: &Node, entry: &Entry, address: &str) -> Result<TcpStream, FetchError> {
    let failed = |operation: &'static str| {
        move |source: io::Error| FetchError::Peer {
            operation,
            peer: address.to_owned(),
            source,
        }
    };
    let refused = |message: String| FetchError::Refused {
        peer: address.to_owned(),
        message,
    };
    let socket: SocketAddr = address
        .parse()
        .map_err(|_| refused(String::from("is not a numeric address")))?;
    let mut stream = TcpStream::connect_timeout(&socket, CONNECT).map_err(failed("connect to"))?;
    stream.set_nodelay(true).map_err(failed("connect to"))?;
    stream
        .set_read_timeout(Some(SILENT))
        .map_err(failed("connect to"))?;
    stream
        .set_write_timeout(Some(SILENT))
        .map_err(failed("connect to"))?;
    let until = Instant::now() + 2 * SILENT;
    let greeting: Greeting = peer::read_line(&mut stream, until).map_err(failed("be greeted by"))?;
    if greeting.block_bytes != BLOCK_BYTES {
        return Err(refused(format!("has blocks of {} bytes", greeting.block_bytes)));
    }
    let nonce = handshake::nonce()?;
    let wish = Wish {
        name: node.name.clone(),
        proof: handshake::taker_proof(&node.secret, &greeting.nonce, &nonce, &entry.sha256),
        nonce: nonce.clone(),
        sha256: entry.sha256.clone(),
        bytes: entry.bytes,
        block: entry.here(),
    };
    let line = peer::line(&wish).map_err(failed("ask"))?;
    stream.write_all(&line).map_err(failed("ask"))?;
    let answer: Answer = peer::read_line(&mut stream, until).map_err(failed("get an answer from"))?;
    if !handshake::giver_is_known(
        &node.secret,
        &greeting.nonce,
        &nonce,
        &entry.sha256,
        &answer.proof,
    ) {
        return Err(refused(String::from("does not know the fleet's secret")));
    }
    if !answer.refusal.is_empty() {
        return Err(refused(answer.refusal));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_come_one_by_one_do_not_put_off_the_end() {
        let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::thread::spawn(move || while theirs.write_all(b"x").is_ok() {});
        let mut small = [0; 3];
        let soon = Duration::from_millis(50);
        read_before(&mut ours, &mut small, Instant::now() + STUCK).unwrap();
        assert_eq!(&small, b"xxx");
        let mut endless = Slow(ours);
        let error = read_before(&mut endless, &mut [0; 1 << 20], Instant::now() + soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// A byte per read, whatever there is.
    struct Slow<T>(T);

    impl<T: Read> Read for Slow<T> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(&mut buffer[..1])
        }
    }
}
