//! A small pilot.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidemill_slot::{start, Done, Failed, FromSlot, Isolation, PayloadLog, Slot, SlotSpec, ToSlot};
use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_wire::{JobDef, OutputDef, Program, View};

pub fn user() -> u32 {
    tidemill_sys::process::user_and_group().0
}

pub fn program(executable: &str, mode: &str) -> Program {
    Program {
        program: 1,
        app: "test".into(),
        version: "1".into(),
        executable: executable.into(),
        mode: mode.into(),
        env: BTreeMap::new(),
        cores: 1,
        memory_mb: 0,
        devices: BTreeMap::new(),
        scratch_mb: 100,
        event_s: 0.001,
        chunk_max: 1,
        range_s: 1.0,
        timeout_s: None,
        looping_s: None,
        ready_timeout_s: 20.0,
        log_bytes_max: 65536,
        outputs: Vec::new(),
        stdout_output: false,
        batch_commands: false,
        pass_env: vec![],
        ..Program::default()
    }
}

pub fn job(argv: &[&str]) -> JobDef {
    JobDef {
        job: 5,
        program: 1,
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: BTreeMap::new(),
        params: "{}".into(),
        seed_base: 100,
        events: 1000,
        inputs: Vec::new(),
        ..JobDef::default()
    }
}

/// A shell script in command mode; braces are plain.
pub fn shell(script: &str) -> (Program, JobDef) {
    (program("/bin/sh", "command"), job(&["-c", &braces(script)]))
}

/// A shell script that speaks the range protocol.
pub fn range_shell(script: &str) -> (Program, JobDef) {
    let mut program = program("/bin/sh", "range");
    program.chunk_max = 10;
    (program, job(&["-c", &braces(script)]))
}

pub fn braces(script: &str) -> String {
    script.replace('{', "{{").replace('}', "}}")
}

pub fn output(name: &str, path: &str) -> OutputDef {
    OutputDef {
        name: name.into(),
        path: path.into(),
    }
}

/// What an application file names.
pub fn shown(paths: &[&std::path::Path]) -> View {
    View {
        show: paths
            .iter()
            .map(|path| path.to_str().unwrap().to_owned())
            .collect(),
        ..View::default()
    }
}

pub fn isolated() -> SlotSpec {
    SlotSpec {
        isolation: Isolation::Required,
        scratch_mb: 50,
        ..SlotSpec::default()
    }
}

pub fn plain() -> SlotSpec {
    SlotSpec {
        isolation: Isolation::Off,
        ..isolated()
    }
}

/// A slot and everything that it sent.
pub struct Rig {
    pub slot: Slot,
    pub done: Vec<Done>,
    pub failed: Vec<Failed>,
    /// first, count, reason
    pub returned: Vec<(u64, u64, String)>,
    pub logs: Vec<PayloadLog>,
    pub idle: u32,
    pub wants: Vec<u64>,
    pub alive: bool,
    given: u64,
    ticket: u64,
}

impl Rig {
    pub fn new(spec: &SlotSpec) -> Rig {
        Rig {
            slot: start(spec).unwrap(),
            done: vec![],
            failed: vec![],
            returned: vec![],
            logs: vec![],
            idle: 0,
            wants: Vec::new(),
            alive: true,
            given: 0,
            ticket: 0,
        }
    }

    pub fn learn(&mut self, (program, job): &(Program, JobDef)) -> &mut Rig {
        self.tell(&ToSlot::Program(program.clone()))
            .tell(&ToSlot::Job(job.clone()))
    }

    pub fn tell(&mut self, message: &ToSlot) -> &mut Rig {
        self.slot.send(message).unwrap();
        self
    }

    pub fn give(&mut self, first: u64, count: u64) -> &mut Rig {
        self.given += count;
        self.ticket += 1;
        let (ticket, job) = (self.ticket, 5);
        self.tell(&ToSlot::Run {
            ticket,
            job,
            first,
            count,
            chunk_max: None,
        })
    }

    pub fn settled(&self) -> u64 {
        self.done.iter().map(|done| done.count).sum::<u64>()
            + self.failed.iter().map(|failed| failed.count).sum::<u64>()
            + self.returned.iter().map(|returned| returned.1).sum::<u64>()
    }

    /// Receives until `enough`; 60 s at most.
    pub fn until(&mut self, enough: impl Fn(&Rig) -> bool) -> &mut Rig {
        let limit = Instant::now() + Duration::from_secs(60);
        while !enough(self) {
            assert!(
                Instant::now() < limit,
                "nothing came: {:?} {:?} {:?}",
                self.done,
                self.failed,
                self.returned
            );
            assert!(self.alive, "the slot ended");
            let _ = self.slot.flush();
            fd::poll(&mut [Poll::new(self.slot.fd(), READABLE)], Some(100_000)).unwrap();
            self.receive();
        }
        self
    }

    fn receive(&mut self) {
        let mut messages = Vec::new();
        self.alive = self.slot.receive(&mut messages).unwrap();
        for message in messages {
            match message {
                FromSlot::Up { .. } => {}
                FromSlot::Done(done) => self.done.push(done),
                FromSlot::Failed(failed) => self.failed.push(failed),
                FromSlot::Returned {
                    first, count, reason, ..
                } => self.returned.push((first, count, reason)),
                FromSlot::Log(log) | FromSlot::Traced { log, .. } => self.logs.push(log),
                FromSlot::Want { program } => self.wants.push(program),
                FromSlot::Idle => self.idle += 1,
            }
        }
    }

    pub fn all(&mut self) -> &mut Rig {
        self.until(|rig| rig.settled() >= rig.given)
    }

    /// The text that all payloads wrote to stdout.
    pub fn stdout(&self) -> String {
        self.done
            .iter()
            .map(|done| String::from_utf8_lossy(&done.stdout).into_owned())
            .collect()
    }
}

/// Runs a script once in a new slot; what it printed. It must succeed.
pub fn prints(spec: &SlotSpec, script: &str) -> String {
    let mut rig = Rig::new(spec);
    rig.learn(&shell(script)).give(0, 1).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    rig.stdout()
}

/// Runs a program for one event; how it failed.
pub fn fails(spec: &SlotSpec, what: &(Program, JobDef)) -> Failed {
    let mut rig = Rig::new(spec);
    rig.learn(what).give(0, 1).all();
    assert!(rig.done.is_empty(), "{:?}", rig.done);
    rig.failed.remove(0)
}

/// Tries up to ten times. Only for a limit of time that is itself what a test is about: a clock shows how long other
/// load on the machine held up the slot or the test, too. What an event or a number can show needs no such attempts.
pub fn in_time(mut attempt: impl FnMut() -> Result<(), String>) {
    let mut late = Vec::new();
    while late.len() < 10 {
        match attempt() {
            Ok(()) => return,
            Err(what) => late.push(what),
        }
    }
    panic!("too slow in every one of {} attempts: {late:?}", late.len());
}

/// An error when more than this has passed.
pub fn within(began: Instant, ms: u64) -> Result<(), String> {
    let passed = began.elapsed();
    if passed < Duration::from_millis(ms) {
        return Ok(());
    }
    Err(format!("took {passed:?}, not {ms} ms"))
}

/// What payloads of a slot may write there besides.
pub fn writing(spec: SlotSpec, place: &Path) -> SlotSpec {
    let mut spec = spec;
    spec.view.write = vec![place.to_str().unwrap().to_owned()];
    spec
}

pub fn make_fifo(path: &Path) -> String {
    let status = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
    path.to_str().unwrap().to_owned()
}

/// Blocks until a payload has written a line to the fifo and closed it.
pub fn wait_for_line(fifo: &str) {
    let mut text = String::new();
    std::fs::File::open(fifo)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "started\n");
}
