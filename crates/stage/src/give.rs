//! Giving files to other nodes, also while they are still coming.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_sys::socket;
use tidemill_wire::handshake;
use tidemill_wire::log::Log;

use crate::entry::{Entry, Found, BLOCK_BYTES};
use crate::peer::{self, Answer, Frame, Greeting, Wish};
use crate::Node;

const LOG: Log = Log::new("stage");
/// Connections at once, from any client; the lead assigns two children per file to a node.
const TAKERS_MAX: usize = 32;
/// Time for a taker to prove its identity.
const GREETING: Duration = Duration::from_secs(5);
/// Interval of the signs of life that a taker gets while it waits.
const WAIT: Duration = Duration::from_secs(1);
/// A taker that reads nothing for this long is gone.
const DEAF: Duration = Duration::from_secs(20);
/// The order to get the file may come after the first taker that asks this node for it.
const UNKNOWN: Duration = Duration::from_secs(10);
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Accept takers for ever.
pub fn serve(node: &Arc<Node>, listener: &TcpListener) {
    let takers = Arc::new(AtomicUsize::new(0));
    loop {
        match listener.accept() {
            Ok((stream, address)) => {
                if takers.load(Ordering::Relaxed) >= TAKERS_MAX {
                    continue; // closed at once: the taker asks for another source
                }
                takers.fetch_add(1, Ordering::Relaxed);
                let node = Arc::clone(node);
                let serves = Arc::clone(&takers);
                let thread = std::thread::Builder::new().spawn(move || {
                    if let Err(error) = give(&node, stream) {
                        LOG.info(
                            "taker.left",
                            &[("peer", &address.to_string()), ("cause", &error.to_string())],
                        );
                    }
                    serves.fetch_sub(1, Ordering::Relaxed);
                });
                if let Err(error) = thread {
                    // the stream is closed: the taker asks for another source
                    takers.fetch_sub(1, Ordering::Relaxed);
                    LOG.warning("stage.cannot_serve", &[("cause", &error.to_string())]);
                }
            }
            Err(error) => {
                LOG.warning("stage.cannot_accept", &[("cause", &error.to_string())]);
                let _ = tidemill_sys::fd::poll(&mut [], Some(ACCEPT_AGAIN.as_micros() as u64));
            }
        }
    }
}

fn give(node: &Node, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(DEAF))?;
    let nonce = handshake::nonce().map_err(io::Error::other)?;
    stream.write_all(&peer::line(&Greeting {
        nonce: nonce.clone(),
        block_bytes: BLOCK_BYTES,
    })?)?;
    let wish: Wish = peer::read_line(&mut stream, Instant::now() + GREETING)?;
    if !handshake::taker_is_known(&node.secret, &nonce, &wish.nonce, &wish.sha256, &wish.proof) {
        return Err(io::Error::other("it does not know the fleet's secret"));
    }
    let entry = node.store.wait(&wish.sha256, UNKNOWN);
    let refusal = match &entry {
        None => String::from("has not this file"),
        Some(entry) if entry.bytes != wish.bytes => format!("has it with {} bytes", entry.bytes),
        Some(_) => String::new(),
    };
    let proof = handshake::giver_proof(&node.secret, &nonce, &wish.nonce, &wish.sha256);
    let answer = Answer { proof, refusal };
    stream.write_all(&peer::line(&answer)?)?;
    match entry.filter(|_| answer.refusal.is_empty()) {
        Some(entry) => send(&entry, wish.block, &mut stream),
        None => Ok(()),
    }
}

fn send(entry: &Entry, first: u64, stream: &mut TcpStream) -> io::Result<()> {
    let mut era = entry.era();
    let mut block = first;
    let mut said = Instant::now();
    while block < entry.blocks() {
        match entry.wait(block, era, WAIT) {
            Found::Block { checksum } => {
                let length = entry.length(block);
                let frame = Frame::Block {
                    length: length as u32, // a block has 4 MiB at most
                    checksum,
                };
                stream.write_all(&frame.bytes())?;
                socket::send_file(stream.as_fd(), entry.file().as_fd(), block * BLOCK_BYTES, length)?;
                block += 1;
                said = Instant::now();
            }
            Found::Nothing if said.elapsed() >= WAIT => {
                stream.write_all(&Frame::Wait.bytes())?;
                said = Instant::now();
            }
            Found::Nothing => {}
            Found::Spoiled => {
                stream.write_all(&Frame::Spoiled.bytes())?;
                (era, block) = (entry.era(), 0);
            }
            Found::Gone => return stream.write_all(&Frame::Gone.bytes()),
        }
    }
    // the taker closes when it has checked the last block; what it should say before is nothing
    stream.set_read_timeout(Some(DEAF))?;
    let _ = io::Read::read(stream, &mut [0]);
    Ok(())
}
