//! What the lead does with each line of a connection.

use serde::Serialize;
use serde_json::value::RawValue;
use tidemill_wire::{
    frame, handshake, Cancel, Deadline, Drain, Grant, Hello, LeadMessage, PilotMessage, Source, WireError,
};

use crate::ledger::record::RecordHead;
use crate::ledger::{Ledger, Number, PilotKey};
use crate::server::connection::{Connection, Peer};
use crate::server::Lead;
use crate::sources::{Answer, Wish};

/// A pilot's name becomes part of a file name.
const PILOT_ID_BYTES_MAX: usize = 200;

/// `Work` whose programs and jobs are the texts of the work file.
#[derive(Serialize)]
struct WorkMessage<'a> {
    m: &'static str,
    programs: Vec<&'a RawValue>,
    jobs: Vec<&'a RawValue>,
    grants: &'a [Grant],
}

impl Lead {
    /// Handles one line. Err says why the connection is over.
    pub(crate) fn handle(
        &mut self,
        slot: usize,
        connection: &mut Connection,
        line: &[u8],
        now: u64,
    ) -> Result<(), String> {
        let unreadable = |error: serde_json::Error| format!("it sent a message that cannot be read: {error}");
        match (&connection.peer, line.first()) {
            (Peer::Pilot(key), Some(b'{')) => {
                let key = *key;
                match serde_json::from_slice(line).map_err(unreadable)? {
                    PilotMessage::Ask(ask) => {
                        if !std::mem::replace(&mut self.in_line[key], true) {
                            self.asking.push_back(key);
                        }
                        self.ledger.ask(key, ask, now);
                        if !self.ledger.has_changed() {
                            self.serve_on(key, connection, now);
                        } // else all that ask are served in their order at the end of this turn
                        Ok(())
                    }
                    PilotMessage::Seek(seek) => {
                        if seek.serves.is_some() {
                            self.sources.serves(key, seek.serves);
                        }
                        let wish = Wish {
                            sha256: seek.sha256,
                            bytes: seek.bytes,
                            areas: seek.areas,
                        };
                        let answers = self.sources.seek(key, wish, seek.avoid, now);
                        self.tell_sources(answers, Some((key, connection)), now);
                        Ok(())
                    }
                    PilotMessage::Holds(holds) => {
                        if holds.serves.is_some() {
                            self.sources.serves(key, holds.serves);
                        }
                        let answers = self.sources.holds(key, &holds.sha256, holds.held, now);
                        self.tell_sources(answers, Some((key, connection)), now);
                        Ok(())
                    }
                    PilotMessage::Hello(_) => Err(String::from("it said hello twice")),
                    PilotMessage::Beat(_) => Ok(()),
                    other => {
                        self.hear(key, other, now);
                        Ok(())
                    }
                }
            }
            (Peer::Pilot(key), _) => {
                let key = *key;
                self.record(key, connection, line, now)
            }
            (Peer::Unknown { nonce, .. }, Some(b'{')) => {
                let nonce = nonce.clone();
                match serde_json::from_slice(line).map_err(unreadable)? {
                    PilotMessage::Hello(hello) => self.hello(slot, connection, (&nonce, &hello), now),
                    _ => Err(String::from("its first message was not hello")),
                }
            }
            (Peer::Unknown { .. }, _) => Err(String::from("it does not speak the protocol")),
        }
    }

    /// What a pilot wants to start, counted and measured.
    fn hear(&mut self, key: PilotKey, message: PilotMessage, now: u64) {
        match message {
            PilotMessage::Want(want) => self.want(key, &want),
            PilotMessage::Usage(usage) => self.usage(key, &usage, now),
            PilotMessage::Sampled(sampled) => self.monitor.take(&self.ledger.pilot(key).id, sampled),
            _ => {} // `handle` has taken it
        }
    }

    fn hello(
        &mut self,
        slot: usize,
        connection: &mut Connection,
        (nonce, hello): (&str, &Hello),
        now: u64,
    ) -> Result<(), String> {
        if !handshake::pilot_is_known(&self.secret, nonce, &hello.nonce, &hello.pilot, &hello.proof) {
            return Err(String::from(
                "its proof is wrong: it does not know the fleet's secret",
            ));
        }
        if !is_file_name(&hello.pilot) {
            return Err(String::from("its name is not a file name"));
        }
        // what was said of its allocation before it started is not about this start
        if !self.ledger.is_closed()
            && self.looks.work_at < connection.accepted_at
            && self.looks.greeted_at != now
        {
            self.looks.greeted_at = now;
            self.look_for_work(now);
        }
        let key = self.ledger.key_of(&hello.pilot);
        self.catch_up(key, hello, connection.accepted_at, now)
            .map_err(|error| tidemill_wire::log::cause(&error))?;
        self.know_pilots();
        if let Some(old) = self.connection_of[key] {
            self.close(old, "the pilot has connected anew", now);
        }
        self.take_over(key, now)?;
        self.ledger.connect(key, &hello.held, now);
        self.sources.serves(key, hello.serves.clone());
        self.connection_of[key] = Some(slot);
        connection.become_pilot(key);
        let proof = handshake::lead_proof(&self.secret, nonce, &hello.nonce, &hello.pilot);
        Lead::welcome(connection, proof, (self.synced[key], now), self.log);
        let jobs = self.ledger.cancelled_of(&hello.held);
        let events = self.ledger.withdrawn_of(&hello.held);
        if !jobs.is_empty() || !events.is_empty() {
            let events = (!events.is_empty()).then_some(events);
            connection.send(&LeadMessage::Cancel(Cancel { jobs, events }), now, self.log);
        }
        self.tell_orders(key, connection, now);
        self.log.info(
            "pilot.connected",
            &[
                ("pilot", &hello.pilot),
                ("node", &hello.node),
                ("peer", &connection.address),
                ("version", &hello.version),
                ("held", &hello.held.len()),
                ("acked", &self.synced[key]),
            ],
        );
        Ok(())
    }

    /// Reads what other journals hold of a pilot, if any of it is unknown: thousands of pilots may come at once, and
    /// each file costs a query to a shared file system. For a pilot that does not report what there is (of an older
    /// version), reads its own journal, and those of leads unless they were read since its connection came:
    /// whatever another lead acknowledged, it acknowledged before that.
    fn catch_up(
        &mut self,
        key: PilotKey,
        hello: &Hello,
        accepted_at: u64,
        now: u64,
    ) -> Result<(), WireError> {
        let received = self.ledger.pilot(key).received;
        let is_behind = |told: Option<u64>| told.is_none_or(|number| number > received);
        if is_behind(hello.acked) && self.looks.leads_at < accepted_at {
            self.journals.catch_up_leads(&mut self.ledger, now)?;
            self.looks.leads_at = now;
        }
        if is_behind(hello.journaled) {
            self.journals
                .catch_up_pilot(&mut self.ledger, &hello.pilot, now)?;
        }
        Ok(())
    }

    /// Sends a pilot its orders when it connects: the end of its allocation, and whether to leave.
    fn tell_orders(&self, key: PilotKey, connection: &mut Connection, now: u64) {
        let (end_us, leaves) = self.ledger.orders_for(key);
        if let Some(at_us) = end_us {
            connection.send(&LeadMessage::Deadline(Deadline { at_us }), now, self.log);
        }
        if self.ledger.is_draining() || self.abandoned || leaves {
            let reason = self.drain_reason();
            connection.send(&LeadMessage::Drain(Drain { reason }), now, self.log);
        }
    }

    /// A pilot of an allocation that the batch system has started again: its earlier starts are over, and what they had
    /// is free at once. Should one of them be alive after all, it connects again with what it holds.
    fn take_over(&mut self, key: PilotKey, now: u64) -> Result<(), String> {
        for old in self.ledger.predecessors(key) {
            if let Some(slot) = self.connection_of[old] {
                self.close(slot, "its allocation has been started again", now);
            }
            let id = self.ledger.pilot(old).id.clone();
            self.journals
                .catch_up_pilot(&mut self.ledger, &id, now)
                .map_err(|error| tidemill_wire::log::cause(&error))?;
            self.ledger.give_up(old);
            self.log.info(
                "pilot.replaced",
                &[("pilot", &id), ("by", &self.ledger.pilot(key).id)],
            );
        }
        self.know_pilots();
        Ok(())
    }

    /// Room for pilots that the ledger has learnt of. What came from other journals is on disk.
    pub(crate) fn know_pilots(&mut self) {
        let known = self.ledger.pilots().len();
        self.connection_of.resize(known, None);
        self.in_line.resize(known, false);
        self.synced.resize(known, 0);
        for (key, number) in self.journals.take_safe() {
            self.synced[key] = self.synced[key].max(number);
        }
    }

    /// Tell pilots where to get files; `own` is the one whose connection is being served.
    pub(crate) fn tell_sources(
        &mut self,
        answers: Vec<Answer>,
        mut own: Option<(PilotKey, &mut Connection)>,
        now: u64,
    ) {
        for answer in answers {
            self.pacing.budget.charge(&answer.reads, now);
            let Answer {
                pilot, sha256, peers, ..
            } = answer;
            let message = LeadMessage::Source(Source { sha256, peers });
            match &mut own {
                Some((key, connection)) if *key == pilot => connection.send(&message, now, self.log),
                _ => {
                    let slot = self.connection_of.get(pilot).copied().flatten();
                    if let Some(connection) = slot.and_then(|slot| self.connections[slot].as_mut()) {
                        connection.send(&message, now, self.log);
                    } // else it says anew what it seeks when it is back
                }
            }
        }
    }

    fn record(
        &mut self,
        key: PilotKey,
        connection: &mut Connection,
        line: &[u8],
        now: u64,
    ) -> Result<(), String> {
        let json = frame::check(line).map_err(|error| error.to_string())?;
        let head: RecordHead<'_> = serde_json::from_slice(json)
            .map_err(|error| format!("it sent a record that cannot be read: {error}"))?;
        if head.p != self.ledger.pilot(key).id.as_str() {
            return Err(format!("it sent a record of `{}`", head.p));
        }
        if !head.is_in_range() {
            return Err(String::from("it sent a record with a number out of range"));
        }
        match self.ledger.number(key, head.s) {
            Number::Duplicate => {
                self.acknowledge_again(key, connection, now);
                Ok(())
            }
            Number::Gap { expected } => Err(format!(
                "it sent record {} where {expected} was expected: records are missing",
                head.s
            )),
            Number::New => {
                self.commit.append(line, (key, head.s), now);
                if self.ledger.record(key, &head, now) {
                    let pilot = &self.ledger.pilot(key).id;
                    self.log.info(
                        "pilot.ended",
                        &[("pilot", pilot), ("reason", &head.reason.as_ref())],
                    );
                } else if self.ledger.pilot(key).asks() {
                    connection.hungry = true;
                }
                Ok(())
            }
        }
    }

    fn acknowledge_again(&mut self, key: PilotKey, connection: &mut Connection, now: u64) {
        let acked = self.synced[key];
        connection.send(&LeadMessage::Ack(tidemill_wire::Ack { acked }), now, self.log);
    }

    /// Give work to a pilot that asks, if there is any.
    pub(crate) fn serve(&mut self, key: PilotKey, now: u64) {
        let Some(slot) = self.connection_of.get(key).copied().flatten() else {
            return;
        };
        let Some(mut connection) = self.connections[slot].take() else {
            return;
        };
        self.serve_on(key, &mut connection, now);
        self.connections[slot] = Some(connection);
    }

    pub(crate) fn serve_on(&mut self, key: PilotKey, connection: &mut Connection, now: u64) {
        connection.hungry = false;
        if !connection.takes_work() {
            return;
        }
        if let Some(grants) = self.ledger.hand_out(key, self.manifest.settings.queue_s, now) {
            if let Err(error) = tell_work(&self.ledger, connection, &grants) {
                self.log.error("message.unwritable", &[("error", &error)]);
            }
            connection.sent_at = now;
        }
    }

    pub(crate) fn drain_reason(&self) -> String {
        let reason = if self.stopped {
            "stop"
        } else if self.abandoned {
            "dead_agent"
        } else {
            "drain"
        };
        String::from(reason)
    }
}

/// Queues a Work message, with the programs and jobs that this connection has not received yet.
fn tell_work(ledger: &Ledger, connection: &mut Connection, grants: &[Grant]) -> Result<(), String> {
    let mut message = WorkMessage {
        m: "work",
        programs: Vec::new(),
        jobs: Vec::new(),
        grants,
    };
    for grant in grants {
        if !connection.told_jobs.insert(grant.job) {
            continue;
        }
        let (program, job_text, program_text) = ledger
            .texts(grant.job)
            .ok_or_else(|| format!("job {} is not known", grant.job))?;
        message.jobs.push(job_text);
        if connection.told_programs.insert(program) {
            message.programs.push(program_text);
        }
    }
    connection.out.push(&message).map_err(|error| error.to_string())
}

fn is_file_name(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= PILOT_ID_BYTES_MAX
        && !id.starts_with('.')
        && !id.starts_with("lead-")
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
