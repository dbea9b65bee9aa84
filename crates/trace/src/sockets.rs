//! Reads from network connections, added up by the address that a program connected to. Bounded. Knows no process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use tidemill_sys::bpf::{answer, argument_at, equal, load, Instruction, ARCHITECTURE_AT, NUMBER_AT};

use crate::filter::{ALLOW, ARCHITECTURE, TRACE};

/// Addresses that are counted separately; reads from any further address count together, under no address.
const PEERS_MAX: usize = 256;
/// Waits of 2^39 us (6 days) and more count as such.
const WAITS: usize = 40;

/// What a call does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// its result is what arrived; unless this argument has MSG_PEEK
    Receives(Option<usize>),
    Sends,
    Closes,
}

use Traffic::{Closes, Receives, Sends};

/// connect: see `calls::SILENT`. Calls on a connection, by their numbers on x86_64; their first argument is the descriptor:
/// read, write, close, readv, writev, sendto, recvfrom, sendmsg, recvmsg, splice.
pub const TRAFFIC: [(i64, Traffic); 10] = [
    (0, Receives(None)),
    (1, Sends),
    (3, Closes),
    (19, Receives(None)),
    (20, Sends),
    (44, Sends),
    (45, Receives(Some(3))),
    (46, Sends),
    (47, Receives(Some(2))),
    (275, Receives(None)),
];

/// What the call with this number does.
pub fn traffic(number: i64) -> Option<Traffic> {
    let found = TRAFFIC.iter().find(|&&(known, _)| known == number);
    found.map(|&(_, traffic)| traffic)
}

/// A filter that stops at traffic of one descriptor; of everything else it takes little time.
pub fn filter(descriptor: i32) -> Vec<Instruction> {
    let calls = TRAFFIC.len();
    let mut whole = vec![
        load(argument_at(0)),
        equal(descriptor as u32, 1, 0),
        answer(ALLOW),
        load(ARCHITECTURE_AT),
        equal(ARCHITECTURE, 1, 0),
        answer(ALLOW),
        load(NUMBER_AT),
    ];
    for (number, _) in TRAFFIC {
        let behind = whole.len() - 7;
        whole.push(equal(number as u32, calls - behind, 0));
    }
    whole.push(answer(ALLOW));
    whole.push(answer(TRACE));
    whole
}

/// Where a program connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    address: IpAddr,
    port: u16,
}

impl Peer {
    /// From a `struct sockaddr` (ip(7), ipv6(7)); None where it is not of the Internet.
    pub fn parse(bytes: &[u8]) -> Option<Peer> {
        let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        let address = match family {
            libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?).to_canonical(),
            _ => return None,
        };
        Some(Peer { address, port })
    }
}

/// Traffic with one peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reads {
    address: String,
    port: u16,
    /// connections from which something was read
    connections: u64,
    /// calls that gave something
    reads: u64,
    bytes: u64,
    /// first replies after something was sent
    waits: u64,
    wait_us: u64,
    /// waits of less than 2, 4, 8, ... microseconds, each in one bin
    wait_log2_us: Vec<u64>,
}

impl Reads {
    fn is_some(&self) -> bool {
        self.reads > 0
    }

    fn add(&mut self, bytes: u64, wait_us: Option<u64>) {
        self.reads += 1;
        self.bytes += bytes;
        let Some(wait_us) = wait_us else { return };
        self.waits += 1;
        self.wait_us += wait_us;
        let bin = (wait_us.max(1).ilog2() as usize).min(WAITS - 1);
        if self.wait_log2_us.len() <= bin {
            self.wait_log2_us.resize(bin + 1, 0);
        }
        self.wait_log2_us[bin] += 1;
    }
}

/// A connection of a traced program.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// number of its peer in `Traffics`
    pub peer: u16,
    /// when a program last sent something to which nothing has come back yet
    pub sent_us: Option<u64>,
    /// something was read
    used: bool,
}

/// All that was read from connections.
#[derive(Debug, Default)]
pub struct Network {
    numbers: HashMap<Peer, u16>,
    reads: Vec<Reads>,
    /// connections that could not be watched
    pub missed: u64,
}

impl Network {
    /// A new connection.
    pub fn connect(&mut self, peer: Peer) -> Socket {
        let number = self.number(peer);
        Socket {
            peer: number,
            sent_us: None,
            used: false,
        }
    }

    fn number(&mut self, peer: Peer) -> u16 {
        if let Some(&number) = self.numbers.get(&peer) {
            return number;
        }
        // the last one is that of all others
        let is_known = self.reads.len() < PEERS_MAX;
        if is_known || self.reads.len() == PEERS_MAX {
            self.reads.push(Reads {
                address: if is_known {
                    peer.address.to_string()
                } else {
                    String::new()
                },
                port: if is_known { peer.port } else { 0 },
                ..Reads::default()
            });
        }
        let number = (self.reads.len() - 1) as u16;
        if is_known {
            self.numbers.insert(peer, number);
        }
        number
    }

    /// A call on a connection has given this many bytes.
    pub fn receive(&mut self, socket: &mut Socket, bytes: u64, now_us: u64) {
        let wait_us = socket
            .sent_us
            .take()
            .map(|sent_us| now_us.saturating_sub(sent_us));
        if let Some(reads) = self.reads.get_mut(usize::from(socket.peer)) {
            reads.add(bytes, wait_us);
            if !socket.used {
                reads.connections += 1;
            }
        }
        socket.used = true;
    }

    /// Peers from which something was read, by address.
    pub fn sums(&self) -> Vec<Reads> {
        let mut sums: Vec<Reads> = self
            .reads
            .iter()
            .filter(|reads| reads.is_some())
            .cloned()
            .collect();
        sums.sort_unstable_by(|a, b| (&a.address, a.port).cmp(&(&b.address, b.port)));
        sums
    }
}

#[cfg(test)]
mod tests {
    use tidemill_sys::bpf::{ANSWER, LOAD};

    use super::*;

    fn peer(port: u16) -> Peer {
        Peer {
            address: Ipv4Addr::LOCALHOST.into(),
            port,
        }
    }

    #[test]
    fn addresses_of_the_internet_are_read_and_others_are_not() {
        let mut four = vec![0; 16];
        four[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        four[2..4].copy_from_slice(&1094u16.to_be_bytes());
        four[4..8].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(Peer::parse(&four), Some(peer(1094)));
        let mut six = vec![0; 28];
        six[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        six[2..4].copy_from_slice(&1094u16.to_be_bytes());
        six[8..24].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        assert_eq!(Peer::parse(&six), Some(peer(1094)));
        assert_eq!(Peer::parse(&(libc::AF_UNIX as u16).to_ne_bytes()), None);
        assert_eq!(Peer::parse(&six[..20]), None);
        assert_eq!(Peer::parse(b""), None);
    }

    #[test]
    fn a_wait_is_from_what_was_sent_last_to_the_first_that_comes_back() {
        let mut network = Network::default();
        let mut socket = network.connect(peer(1094));
        socket.sent_us = Some(1_000);
        network.receive(&mut socket, 8, 251_000);
        network.receive(&mut socket, 4096, 252_000);
        let sums = network.sums();
        assert_eq!(sums.len(), 1);
        let it = &sums[0];
        assert_eq!((it.reads, it.bytes, it.connections), (2, 4104, 1));
        assert_eq!((it.waits, it.wait_us), (1, 250_000));
        assert_eq!(it.wait_log2_us.iter().position(|&count| count == 1), Some(17));
    }

    #[test]
    fn a_connection_from_which_nothing_was_read_is_not_told() {
        let mut network = Network::default();
        let _ = network.connect(peer(53));
        assert!(network.sums().is_empty());
    }

    #[test]
    fn beyond_the_limit_peers_count_as_one() {
        let mut network = Network::default();
        for port in 1..1000 {
            let mut socket = network.connect(peer(port));
            network.receive(&mut socket, 1, 0);
        }
        let sums = network.sums();
        assert_eq!(sums.len(), PEERS_MAX + 1);
        assert_eq!(
            (sums[0].address.as_str(), sums[0].reads),
            ("", 999 - PEERS_MAX as u64)
        );
        assert_eq!(sums.iter().map(|reads| reads.bytes).sum::<u64>(), 999);
    }

    #[test]
    fn the_filter_stops_at_traffic_of_its_descriptor_only() {
        let program = filter(7);
        let run = |number: u32, descriptor: u32, architecture: u32| {
            let (mut at, mut value) = (0, 0);
            loop {
                let it = program[at];
                at += 1;
                match it.code {
                    LOAD if it.k == NUMBER_AT => value = number,
                    LOAD if it.k == ARCHITECTURE_AT => value = architecture,
                    LOAD => value = descriptor,
                    ANSWER => return it.k,
                    _ => at += usize::from(if value == it.k { it.yes } else { it.no }),
                }
            }
        };
        for (number, _) in TRAFFIC {
            assert_eq!(run(number as u32, 7, ARCHITECTURE), TRACE);
            assert_eq!(run(number as u32, 8, ARCHITECTURE), ALLOW);
            assert_eq!(run(number as u32, 7, 0x4000_0003), ALLOW);
        }
        for number in [2, 9, 42, 202, 257] {
            assert_eq!(run(number, 7, ARCHITECTURE), ALLOW);
        }
    }
}
