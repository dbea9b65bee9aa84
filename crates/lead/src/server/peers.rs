//! Connections that come, are read, and go.

use std::net::{SocketAddr, TcpStream};

use tidemill_wire::log::cause;
use tidemill_wire::{handshake, Challenge, LeadMessage, LineBuffer, LINE_BYTES_MAX};

use crate::server::connection::{self, Connection, Peer};
use crate::server::{Lead, CONNECTIONS_MAX};

const ACCEPTS_PER_TURN: usize = 64;
/// Time in which a pilot authenticates, on a slow network too.
const PROOF_US: u64 = 250_000;
/// Refused connections that are logged in `REFUSALS_US`; each line says how many there were altogether.
const REFUSALS_MAX: u32 = 20;
const REFUSALS_US: u64 = 10_000_000;

/// Keeps a stranger from filling the log.
#[derive(Debug, Default)]
pub struct Refusals {
    since: u64,
    told: u32,
}

impl Refusals {
    /// Whether another one is to be logged.
    fn tell(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) > REFUSALS_US {
            *self = Refusals { since: now, told: 0 };
        }
        self.told += 1;
        self.told <= REFUSALS_MAX
    }
}

impl Lead {
    pub(crate) fn accept(&mut self, now: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.open >= CONNECTIONS_MAX {
                let Some(slot) = self.oldest_stranger(now) else {
                    return;
                };
                self.close(slot, "others wait, and it has not proved who it is", now);
            }
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if let Err(error) = self.greet(stream, address, now) {
                        self.log.warning(
                            "connection.refused",
                            &[("peer", &address.to_string()), ("error", &error)],
                        );
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.log
                        .warning("lead.cannot_accept", &[("error", &error.to_string())]);
                    self.accept_again_at = now + 1_000_000;
                    return;
                }
            }
        }
    }

    /// Whether another connection can be taken.
    pub(crate) fn has_room(&self, now: u64) -> bool {
        self.open < CONNECTIONS_MAX || self.oldest_stranger(now).is_some()
    }

    /// The connection that has not proved for the longest time who it is, unless it has just come.
    fn oldest_stranger(&self, now: u64) -> Option<usize> {
        let came = |connection: &Connection| match connection.peer {
            Peer::Unknown { until, .. } => Some(until.saturating_sub(connection::GREETING_US)),
            Peer::Pilot(_) => None,
        };
        let strangers = self.connections.iter().enumerate();
        strangers
            .filter_map(|(slot, connection)| Some((came(connection.as_ref()?)?, slot)))
            .min()
            .filter(|&(at, _)| now.saturating_sub(at) > PROOF_US)
            .map(|(_, slot)| slot)
    }

    fn greet(&mut self, stream: TcpStream, address: SocketAddr, now: u64) -> Result<(), String> {
        let nonce = handshake::nonce().map_err(|error| cause(&error))?;
        let mut new = Connection::new(stream, address.to_string(), (nonce.clone(), now))
            .map_err(|error| error.to_string())?;
        new.send(
            &LeadMessage::Challenge(Challenge {
                nonce,
                incarnation: self.incarnation,
            }),
            now,
            self.log,
        );
        new.flush()?;
        self.open += 1;
        match self.connections.iter().position(Option::is_none) {
            Some(slot) => self.connections[slot] = Some(new),
            None => self.connections.push(Some(new)),
        }
        Ok(())
    }

    /// Read from one connection and handle its lines.
    pub(crate) fn receive(&mut self, slot: usize, now: u64) {
        let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
            return;
        };
        let before = connection.lines.buffered();
        let greets = connection.pilot().is_none();
        if greets {
            let crowded = self.greeting_bytes > connection::GREETING_BYTES_TOTAL;
            let limit = if crowded {
                connection::GREETING_BYTES_CROWDED
            } else {
                connection::GREETING_BYTES_MAX
            };
            connection.lines.set_limit(limit);
        }
        let mut over = connection.read(now).err();
        let mut lines = std::mem::replace(&mut connection.lines, LineBuffer::new(0));
        if over.is_none() || connection.pilot().is_some() {
            while let Some(line) = lines.next_line() {
                if let Err(reason) = self.handle(slot, &mut connection, line, now) {
                    over = Some(reason);
                    break;
                }
            }
        }
        connection.lines = lines;
        if let (true, Some(key)) = (connection.hungry, connection.pilot()) {
            self.serve_on(key, &mut connection, now);
        }
        if greets {
            self.greeting_bytes = self.greeting_bytes.saturating_sub(before);
            if connection.pilot().is_none() {
                self.greeting_bytes += connection.lines.buffered();
            } else {
                connection.lines.set_limit(LINE_BYTES_MAX);
            }
        }
        self.connections[slot] = Some(connection);
        if let Some(reason) = over {
            self.close(slot, &reason, now);
        }
    }

    /// End a connection; its pilot, if any, gets its time of grace.
    pub(crate) fn close(&mut self, slot: usize, reason: &str, now: u64) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::take) else {
            return;
        };
        self.open -= 1;
        match connection.peer {
            Peer::Unknown { .. } => {
                self.greeting_bytes = self.greeting_bytes.saturating_sub(connection.lines.buffered());
                self.refused += 1;
                if self.refusals.tell(now) {
                    self.log.warning(
                        "connection.refused",
                        &[
                            ("peer", &connection.address),
                            ("reason", &reason),
                            ("refused", &self.refused),
                        ],
                    );
                }
            }
            Peer::Pilot(key) => {
                if self.connection_of[key] == Some(slot) {
                    self.connection_of[key] = None;
                    self.ledger.disconnect(key, now);
                    let answers = self.sources.leave(key, now);
                    self.tell_sources(answers, None, now);
                    self.pacing.budget.leave(key);
                    let pilot = &self.ledger.pilot(key).id;
                    self.log
                        .info("pilot.disconnected", &[("pilot", pilot), ("reason", &reason)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_a_few_times_in_a_while() {
        let mut refusals = Refusals::default();
        let told = |refusals: &mut Refusals, now| (0..1000).filter(|_| refusals.tell(now)).count();
        assert_eq!(told(&mut refusals, 1), 20);
        assert_eq!(told(&mut refusals, REFUSALS_US + 2), 20);
        assert_eq!(told(&mut refusals, REFUSALS_US + 3), 0);
    }
}
