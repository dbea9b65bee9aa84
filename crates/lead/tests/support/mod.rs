//! A fleet directory, a lead on a thread, and pilots that speak the real protocol over loopback.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod made;

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidemill_lead::{Exit, Lead};
use tidemill_wire::log::Log;
use tidemill_wire::*;

pub use made::*;

pub const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";
pub const PATIENCE: Duration = Duration::from_secs(10);

pub struct Fleet {
    pub directory: tempfile::TempDir,
    next: u64,
}

impl Fleet {
    pub fn new() -> Self {
        Fleet::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["work", "journal", "bundle"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let mut settings = Settings {
            record_flush_ms: 20,
            output_flush_s: 30.0,
            queue_s: 2.0,
            idle_s: 60.0,
            dead_after_s: 30.0,
            drain_s: 30.0,
            top_up_s: 60.0,
            stop_files: vec![],
            scratch: None,
            pilot_grace_s: 0.3,
            isolation: String::from("preferred"),
            affinity: String::from("none"),
            mask: vec![],
            batch_commands: vec![],
            bundle_bytes_max: 1 << 30,
            output_bytes_max: Some(1 << 30),
            ..Settings::default()
        };
        change(&mut settings);
        let manifest = Manifest {
            format: FORMAT,
            fleet: String::from("e1-1"),
            site: String::from("here"),
            epoch: 1,
            created_us: 1,
            lead: String::from("beside"),
            listen: String::from("127.0.0.1:0"),
            settings,
        };
        std::fs::write(
            directory.path().join("manifest.json"),
            serde_json::to_vec(&manifest).unwrap(),
        )
        .unwrap();
        let mut secret = std::fs::OpenOptions::new();
        let mut secret = secret
            .write(true)
            .create(true)
            .mode(0o600)
            .open(directory.path().join("secret"))
            .unwrap();
        writeln!(secret, "{SECRET}").unwrap();
        Fleet { directory, next: 1 }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn journal(&self, name: &str) -> PathBuf {
        self.path().join("journal").join(name)
    }

    /// Write the next work file.
    pub fn work(&mut self, change: impl FnOnce(&mut WorkFile)) {
        let mut work = WorkFile {
            format: FORMAT,
            number: self.next,
            programs: vec![],
            jobs: vec![],
            grants: vec![],
            cancel_jobs: vec![],
            shares: vec![],
            ended: vec![],
            ends: vec![],
            leave: vec![],
            drain: false,
            close: false,
            ..WorkFile::default()
        };
        change(&mut work);
        let path = self.path().join(format!("work/{:06}.json", self.next));
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec(&work).unwrap()).unwrap();
        std::fs::rename(&temporary, &path).unwrap();
        self.next += 1;
    }

    /// The agent's sign of life.
    pub fn sign(&self, epoch: u64, count: u64) {
        let alive = Alive {
            format: FORMAT,
            epoch,
            count,
        };
        let temporary = self.path().join("alive.tmp");
        std::fs::write(&temporary, serde_json::to_vec(&alive).unwrap()).unwrap();
        std::fs::rename(&temporary, self.path().join("alive.json")).unwrap();
    }

    /// One program, one job with one grant of `events` events.
    pub fn one_job(&mut self, events: u64, event_s: f64) {
        self.work(|work| {
            work.programs.push(program(1, event_s));
            work.jobs.push(job(1, 1, events));
            work.grants.push(grant(1, 1, 0, events));
        });
    }

    /// All records in all journals of leads.
    pub fn records(&self) -> Vec<Record> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(self.path().join("journal"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        let mut records = Vec::new();
        for path in names {
            let mut reader = JournalReader::new(&path);
            while reader
                .read(|json| records.push(serde_json::from_slice(json).unwrap()))
                .unwrap()
                > 0
            {}
        }
        records
    }

    pub fn lead(&self) -> Running {
        Running::start(self.path())
    }
}

/// A lead on a thread.
pub struct Running {
    pub address: SocketAddr,
    pub incarnation: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<Exit>>>,
}

impl Running {
    pub fn start(fleet: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, address) = mpsc::channel();
        let (fleet, stopping) = (fleet.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut lead = Lead::start(&fleet, Log::silent("lead")).unwrap();
            told.send((lead.address().unwrap(), lead.incarnation())).unwrap();
            while !stopping.load(Ordering::SeqCst) {
                if let Some(exit) = lead.turn(20_000).unwrap() {
                    lead.leave(exit).unwrap();
                    return Some(exit);
                }
            }
            None
        });
        let (address, incarnation) = address.recv_timeout(PATIENCE).expect("the lead starts");
        Running {
            address,
            incarnation,
            stop,
            thread: Some(thread),
        }
    }

    /// Stop at once, as by SIGKILL: nothing is synced or said.
    pub fn kill(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }

    /// How it leaves by itself.
    pub fn exit(mut self) -> Exit {
        let deadline = Instant::now() + PATIENCE;
        while !self.thread.as_ref().unwrap().is_finished() {
            assert!(Instant::now() < deadline, "the lead does not leave");
            std::thread::yield_now();
        }
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    pub fn pilot(&self, id: &str) -> Pilot {
        Pilot::join(self.address, id, &[])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A pilot's side of a connection.
pub struct Pilot {
    pub id: String,
    pub acked: u64,
    pub next: u64,
    pub reader: BufReader<TcpStream>,
    pub seen: VecDeque<LeadMessage>,
}

impl Pilot {
    pub fn join(address: SocketAddr, id: &str, held: &[Grant]) -> Self {
        Pilot::try_join(address, (id, SECRET), held).expect("welcome")
    }

    /// None: the lead closes the connection.
    pub fn try_join(address: SocketAddr, who: (&str, &str), held: &[Grant]) -> Option<Self> {
        Pilot::greet(address, who, (held, None))
    }

    /// A pilot that says which of its records a lead has acknowledged, and which are in its own journal.
    pub fn join_saying(address: SocketAddr, id: &str, safe: (u64, u64)) -> Self {
        Pilot::greet(address, (id, SECRET), (&[], Some(safe))).expect("welcome")
    }

    fn greet(
        address: SocketAddr,
        (id, secret): (&str, &str),
        (held, safe): (&[Grant], Option<(u64, u64)>),
    ) -> Option<Self> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut pilot = Pilot {
            id: id.to_owned(),
            acked: 0,
            next: 1,
            reader: BufReader::new(stream),
            seen: VecDeque::new(),
        };
        let Some(LeadMessage::Challenge(challenge)) = pilot.receive() else {
            panic!("no challenge")
        };
        let nonce = handshake::nonce().unwrap();
        let proof = handshake::pilot_proof(secret, &challenge.nonce, &nonce, id);
        pilot.send(&PilotMessage::Hello(Hello {
            pilot: id.to_owned(),
            allocation: id.split('.').next().unwrap().to_owned(),
            rank: 0,
            node: String::from("node"),
            version: String::from("0"),
            nonce: nonce.clone(),
            proof,
            held: held.to_vec(),
            serves: None,
            acked: safe.map(|safe| safe.0),
            journaled: safe.map(|safe| safe.1),
        }));
        match pilot.receive()? {
            LeadMessage::Welcome(welcome) => {
                assert!(handshake::lead_is_known(
                    secret,
                    &challenge.nonce,
                    &nonce,
                    id,
                    &welcome.proof
                ));
                pilot.acked = welcome.acked;
                pilot.next = welcome.acked + 1;
                Some(pilot)
            }
            other => panic!("no welcome but {other:?}"),
        }
    }

    pub fn send(&mut self, message: &PilotMessage) {
        let mut line = serde_json::to_vec(message).unwrap();
        line.push(b'\n');
        self.send_raw(&line);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes); // the lead may have closed
    }

    /// The next message; None at the end of the connection.
    pub fn receive(&mut self) -> Option<LeadMessage> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn ask(&mut self, cores: u64) {
        self.ask_with(|ask| ask.cores = cores);
    }

    pub fn ask_with(&mut self, change: impl FnOnce(&mut Ask)) {
        let mut ask = Ask {
            cores: 2,
            memory_mb: 1000,
            devices: BTreeMap::new(),
            remaining_s: None,
            queued_s: 0.0,
            idle_cores: None,
        };
        change(&mut ask);
        self.send(&PilotMessage::Ask(ask));
    }

    fn wait<T>(&mut self, mut wanted: impl FnMut(&LeadMessage) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.receive().expect("the lead has closed the connection");
            if let LeadMessage::Ack(ack) = &message {
                self.acked = self.acked.max(ack.acked);
            }
            if let Some(found) = wanted(&message) {
                return found;
            }
            self.seen.push_back(message);
            assert!(Instant::now() < deadline, "not in time; seen {:?}", self.seen);
        }
    }

    pub fn work(&mut self) -> Work {
        self.wait(|message| match message {
            LeadMessage::Work(work) => Some(work.clone()),
            _ => None,
        })
    }

    pub fn drained(&mut self) -> String {
        self.wait(|message| match message {
            LeadMessage::Drain(drain) => Some(drain.reason.clone()),
            _ => None,
        })
    }

    pub fn deadline(&mut self) -> u64 {
        self.wait(|message| match message {
            LeadMessage::Deadline(deadline) => Some(deadline.at_us),
            _ => None,
        })
    }

    pub fn withdrawn(&mut self) -> Vec<Withdrawn> {
        self.wait(|message| match message {
            LeadMessage::Cancel(cancel) => cancel.events.clone(),
            _ => None,
        })
    }

    pub fn cancelled(&mut self) -> Vec<u64> {
        self.wait(|message| match message {
            LeadMessage::Cancel(cancel) => Some(cancel.jobs.clone()),
            _ => None,
        })
    }

    pub fn wait_acked(&mut self, number: u64) {
        if self.acked < number {
            self.wait(|message| match message {
                LeadMessage::Ack(ack) if ack.acked >= number => Some(()),
                _ => None,
            });
        }
    }

    /// Wait until the lead closes the connection.
    pub fn closed(&mut self) {
        while self.receive().is_some() {}
    }

    /// Send a record under the next number; returns the number.
    pub fn record(&mut self, record: Record) -> u64 {
        let number = self.next;
        self.next += 1;
        self.send_record(number, record);
        number
    }

    pub fn send_record(&mut self, number: u64, record: Record) {
        let record = numbered(record, &self.id, number);
        let mut bytes = Vec::new();
        frame::encode(&record, &mut bytes).unwrap();
        self.send_raw(&bytes);
    }

    pub fn done(&mut self, grant: &Grant, wall_us: u64) -> u64 {
        self.record(done(grant, wall_us))
    }
}
