//! The init of a slot: PID 1 of its namespaces (or a subreaper) and its spawn loop. One thread, one `poll`.
//!
//! Per payload of command mode: clone, exec, poll, wait4 twice (the second time says that nothing is left over), a
//! read of each pipe, a few stats of the scratch. The pilot hears of it in messages that join neighbours.

mod approved;
mod batch_term;
mod control;
mod cover;
mod doors;
mod finish;
mod inputs;
mod job;
mod payload;
mod payload_traces;
mod permits;
mod place;
mod range;
mod range_protocol;
mod scratch;
mod start;
mod streams;
mod usage;
mod view;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use tidemill_sys::fd::{self, Poll, READABLE, WRITABLE};
use tidemill_sys::spawn::Spawner;
use tidemill_sys::{process, signal, socket, time, Result, SysError};
use tidemill_wire::log::cause;
use tidemill_wire::Program;

use crate::codec::Downward;
use crate::queue::{Events, Queue, Run};
use crate::{Done, FromSlot, Isolated, SlotSpec, ToSlot};
use approved::Approved;
use batch_term::Taken;
use control::{is_plain, Control, Joiner};
use inputs::NodeCache;
use job::Job;
use payload::{Kind, Payload};
use payload_traces::Sampler;
use permits::Permits;
use scratch::Scratch;
use streams::Streams;
use usage::Reach;

/// What the init is born with.
pub(crate) struct Birth {
    pub spec: SlotSpec,
    pub socket: OwnedFd,
    pub old_root: OwnedFd,
    /// user and group of the pilot
    pub identity: (u32, u32),
    pub isolated: Isolated,
    /// the scratch directory where there are no namespaces, or where the scratch is not in memory
    pub directory: Option<PathBuf>,
    /// it has a network of its own
    pub closed: bool,
    /// why there are none
    pub note: String,
}

/// Most payloads whose outputs may wait for the pilot.
const WAITING_MAX: u64 = 256;
/// A recalled payload that has not died by then: its events go back anyway.
const RECALL_US: u64 = 300_000;

/// State of the init.
pub(crate) struct Init {
    spec: SlotSpec,
    scratch: Scratch,
    control: Control,
    joiner: Joiner,
    programs: HashMap<u64, Rc<Program>>,
    jobs: HashMap<u64, Job>,
    /// jobs that cannot run, and why
    wrong_jobs: HashMap<u64, String>,
    queue: Queue,
    permits: Permits,
    sampler: Sampler,
    approved: Approved,
    payload: Option<Payload>,
    deadline_us: Option<u64>,
    /// nothing new is started; what arrives goes back with this reason
    draining: Option<&'static str>,
    /// has there been work since `Idle` was last sent?
    busy: bool,
    spawner: Spawner,
    signals: OwnedFd,
    taken: Taken,
    streams: Streams,
    reach: Reach,
    /// processes and threads that payloads may have
    tasks_max: u64,
    /// there is a network of the slot's own
    closed: bool,
    buffer: Vec<u8>,
    /// why the slot cannot go on
    fatal: Option<String>,
}

/// Runs the init; never returns.
pub(crate) fn run(birth: Birth) -> ! {
    let keep = [&birth.socket, &birth.old_root].map(std::os::fd::AsRawFd::as_raw_fd);
    let socket = fd::duplicate(birth.socket.as_fd());
    let result = fd::close_from(
        3,
        &[
            keep[0],
            keep[1],
            socket.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd),
        ],
    )
    .and_then(|()| Init::new(birth));
    match (result, socket) {
        (Ok(init), _) => init.serve(),
        (Err(error), Ok(socket)) => {
            let mut control = Control::new(socket);
            // one byte without a descriptor stands for the scratch that there is not
            let _ = socket::send(control.fd(), &[0]);
            control.refuse(cause(&error));
            control.flush();
            process::exit_now(1)
        }
        _ => process::exit_now(1),
    }
}

impl Init {
    fn new(birth: Birth) -> Result<Self> {
        signal::reset_all()?;
        signal::shrug_off(&signal::SENT_TO_ALL)?;
        signal::block_only(&[signal::CHILD, signal::TERM])?;
        let null = File::open("/dev/null").map_err(|source| SysError::new("open", "/dev/null", source))?;
        let streams = Streams::new(null.as_fd())?;
        drop(null);
        if !birth.spec.cpus.is_empty() {
            process::set_affinity(&birth.spec.cpus)?;
        }
        let sampler = Sampler::new();
        let place = place::enter(place::Entry {
            spec: &birth.spec,
            old_root: birth.old_root,
            identity: birth.identity,
            isolated: birth.isolated,
            directory: birth.directory,
            closed: birth.closed,
        })?;
        let isolated = place.isolated;
        let note = [birth.note, place.note.clone()].concat();
        socket::send_descriptor(birth.socket.as_fd(), place.root.as_fd())?;
        let mut init = Init {
            tasks_max: birth.spec.tasks_max(),
            closed: birth.closed,
            spec: birth.spec,
            scratch: Scratch::new(place),
            control: Control::new(birth.socket),
            joiner: Joiner::default(),
            programs: HashMap::new(),
            jobs: HashMap::new(),
            wrong_jobs: HashMap::new(),
            queue: Queue::default(),
            permits: Permits::default(),
            sampler,
            approved: Approved::default(),
            payload: None,
            deadline_us: None,
            draining: None,
            busy: false,
            spawner: Spawner::new()?,
            signals: signal::descriptor(&[signal::CHILD, signal::TERM])?,
            taken: Taken::default(),
            streams,
            reach: if isolated == Isolated::Namespaces {
                Reach::Namespace
            } else {
                Reach::Descendants
            },
            buffer: vec![0; 64 << 10],
            fatal: None,
        };
        init.control.put(FromSlot::Up {
            isolated,
            note,
            pid: process::id() as u32,
        });
        Ok(init)
    }

    fn serve(mut self) -> ! {
        while self.fatal.is_none() && !self.control.closed {
            self.take_messages();
            self.advance();
            self.tell_when_idle();
            let now_us = time::monotonic_us();
            if self.joiner.due_us().is_some_and(|due_us| now_us >= due_us) {
                self.flush_joiner();
            }
            if self.control.wants_write() {
                self.control.flush();
            }
            if let Err(error) = self.wait(now_us) {
                self.fatal = Some(cause(&error));
            }
            self.look_after_payload();
            self.tell_failures(time::monotonic_us());
        }
        self.leave()
    }

    /// The pilot is gone, or the slot cannot go on: nothing of it stays.
    fn leave(mut self) -> ! {
        let _ = self.kill_and_reap();
        self.tell_failures(u64::MAX);
        if let Some(reason) = &self.fatal {
            self.control.refuse(reason.clone());
        }
        self.control.flush();
        if self.scratch.place.isolated == Isolated::Subreaper {
            let _ = tidemill_sys::file::empty(self.scratch.place.root.as_fd(), &[]);
        }
        process::exit_now(if self.fatal.is_some() { 1 } else { 0 })
    }

    /// Sleeps until something happens, and reads it.
    fn wait(&mut self, now_us: u64) -> Result<()> {
        use std::os::fd::AsRawFd;
        let taken = self.payload.as_ref().is_some_and(|payload| payload.taken);
        let talk = self.payload.as_mut().and_then(Payload::talk);
        let outputs_wait = self.scratch.waiting >= WAITING_MAX;
        let from = talk
            .as_ref()
            .and_then(|talk| talk.from())
            .filter(|_| !outputs_wait && !taken);
        let to = talk
            .as_ref()
            .filter(|talk| talk.wants_write())
            .map(|talk| talk.to());
        let control_events = if self.control.wants_write() {
            READABLE | WRITABLE
        } else {
            READABLE
        };
        // the signal comes first: the kernel looks in this order
        let mut fds = [
            Poll::new(self.signals.as_fd(), READABLE),
            Poll::new(self.control.fd(), control_events),
            Poll::new(self.streams.out_fd(), READABLE),
            Poll::new(self.streams.err_fd(), READABLE),
            Poll::raw(from.map_or(-1, AsRawFd::as_raw_fd), READABLE),
            Poll::raw(to.map_or(-1, AsRawFd::as_raw_fd), WRITABLE),
        ];
        let wake_us = self.wake_us();
        fd::poll(&mut fds, wake_us.map(|wake_us| wake_us.saturating_sub(now_us)))?;
        let [signals, control, out, err, from, to] = fds;
        if signals.readable() && self.take_signals() {
            self.recall(batch_term::RUN_AGAIN); // before anything else is read of the payload
        }
        if control.readable() {
            self.control.receive();
        }
        if out.readable() {
            self.read_out();
        }
        if err.readable() {
            self.streams.read_err();
        }
        if to.writable() {
            if let Some(talk) = self.payload.as_mut().and_then(Payload::talk) {
                talk.flush();
            }
        }
        if from.readable() {
            self.hear();
        }
        if self.taken.child_ended {
            self.reap()?;
        }
        Ok(())
    }

    /// When something is due without anything happening.
    fn wake_us(&self) -> Option<u64> {
        let dues = [self.joiner.due_us(), self.taken.due_us(!self.queue.is_empty())];
        let mut wake_us = dues.into_iter().flatten().min();
        if let Some(payload) = &self.payload {
            let mut look_us = payload.next_look_us();
            if let Some((_, since_us)) = payload.recalled.filter(|_| !payload.recall_told) {
                look_us = look_us.min(since_us + RECALL_US);
            }
            wake_us = Some(wake_us.map_or(look_us, |wake_us| wake_us.min(look_us)));
        }
        wake_us
    }

    fn read_out(&mut self) {
        let (streams, scratch) = (&mut self.streams, &mut self.scratch);
        streams.read_out(&mut || spill(scratch));
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.control.inbox.pop_front() {
            match message {
                Downward::Collected(count) => {
                    self.scratch.waiting = self.scratch.waiting.saturating_sub(count);
                }
                Downward::Pilot(message) => self.obey(message),
            }
        }
    }

    fn obey(&mut self, message: ToSlot) {
        match message {
            ToSlot::Program(program) => drop(self.programs.insert(program.program, Rc::new(program))),
            ToSlot::Job(job) => self.learn_job(job),
            ToSlot::Run {
                ticket,
                job,
                first,
                count,
                chunk_max,
            } => {
                self.busy = true;
                let run = Run {
                    ticket,
                    job,
                    next: first,
                    end: first.saturating_add(count),
                    chunk_max,
                };
                self.queue.push(run);
                if let Some(reason) = self.draining {
                    self.return_queued(None, reason);
                }
            }
            ToSlot::Deadline { monotonic_us } => self.deadline_us = monotonic_us,
            ToSlot::Permit { program, note } => self.permits.permit(program, note, time::monotonic_us()),
            ToSlot::NodeCache { address, why } => self.scratch.place.node_cache = NodeCache { address, why },
            ToSlot::Forget { job } => self.forget(job),
            ToSlot::Finish => {
                self.draining.get_or_insert("drain");
                self.return_queued(None, "drain");
            }
            ToSlot::Stop => {
                self.draining = Some("yield");
                self.return_queued(None, "yield");
                self.return_failures("yield");
                self.recall("yield");
            }
            ToSlot::CancelJob { job } => {
                self.return_queued(Some(job), "cancel");
                if self.payload.as_ref().is_some_and(|payload| payload.job == job) {
                    self.recall("cancel");
                }
            }
            ToSlot::CancelEvents { ticket, first, count } => {
                let end = first.saturating_add(count);
                for events in self.queue.take_part(ticket, first, end) {
                    self.give_back(events, "cancel");
                }
                if self
                    .payload
                    .as_ref()
                    .is_some_and(|payload| payload.runs(ticket, (first, end)))
                {
                    self.recall("cancel");
                }
            }
        }
    }

    /// What is the owner's below /tmp may have come since the last job.
    fn show_own(&mut self) {
        match self.scratch.place.covers.show_own() {
            Ok(false) => return,
            Ok(true) => {}
            // the payload will say what it misses; here is why
            Err(error) => self.streams.note(&format!("tidemill: {}\n", cause(&error))),
        }
        self.scratch.changed();
        if let Err(error) = tidemill_sys::file::change_dir(self.scratch.place.work.as_fd()) {
            self.fatal = Some(cause(&error));
        }
    }

    fn learn_job(&mut self, def: tidemill_wire::JobDef) {
        self.show_own();
        let Some(program) = self.programs.get(&def.program) else {
            self.wrong_jobs
                .insert(def.job, format!("its program {} is not known here", def.program));
            return;
        };
        let id = def.job;
        let program = Rc::clone(program);
        self.take_away(id); // it was cancelled and comes back: its inputs may have changed
        match Job::new(def, program, &self.spec, &self.scratch.place) {
            Ok(job) => drop(self.jobs.insert(id, job)),
            Err(what) => drop(self.wrong_jobs.insert(id, what)),
        }
    }

    fn forget(&mut self, job: u64) {
        if let Some(known) = self.jobs.get_mut(&job) {
            known.forgotten = true;
        }
        if self.payload.as_ref().is_none_or(|payload| payload.job != job) {
            self.drop_job(job);
        }
    }

    fn drop_job(&mut self, job: u64) {
        if self.queue.of_job(job).is_none() {
            self.take_away(job);
        }
    }

    fn take_away(&mut self, job: u64) {
        self.wrong_jobs.remove(&job);
        if let Some(mut known) = self.jobs.remove(&job) {
            if let Err(error) = self.scratch.lay_out(Vec::new()) {
                self.fatal = Some(cause(&error));
            }
            known.inputs.remove(&self.scratch.place, job);
            self.scratch.changed();
        }
    }

    /// Kills the payload on order. One that has ended by itself before counts as it ended, unless the batch system takes
    /// the allocation away; from here on no exit status does.
    fn recall(&mut self, reason: &'static str) {
        if let Err(error) = self.reap() {
            self.fatal = Some(cause(&error));
        }
        if let Some(payload) = &mut self.payload {
            payload.recalled.get_or_insert((reason, time::monotonic_us()));
            self.kill();
        }
    }

    fn return_queued(&mut self, job: Option<u64>, reason: &str) {
        for events in self.queue.take_all(job) {
            self.give_back(events, reason);
        }
    }

    fn give_back(&mut self, events: Events, reason: &str) {
        let Events {
            ticket,
            job,
            first,
            count,
        } = events;
        self.control.put(FromSlot::Returned {
            ticket,
            job,
            first,
            count,
            reason: reason.to_owned(),
        });
    }

    /// Of a payload of command mode: what it used is known.
    fn add_done(&mut self, done: Done, now_us: u64) {
        if !is_plain(&done) {
            self.control.put(FromSlot::Done(done));
        } else if self.joiner.add(done, now_us) {
            self.flush_joiner();
        }
    }

    /// Of a range of a persistent payload: waits for `flush_joiner` to say what it used.
    fn add_piece(&mut self, done: Done, now_us: u64) {
        if self.joiner.add(done, now_us) {
            for done in self.joiner.take_older() {
                self.control.put(FromSlot::Done(done));
            }
        }
    }

    fn flush_joiner(&mut self) {
        self.charge_running();
        for done in self.joiner.take_all() {
            self.control.put(FromSlot::Done(done));
        }
    }

    /// Adds what a persistent payload used since the last time to the newest Done.
    fn charge_running(&mut self) {
        let Some(payload) = self
            .payload
            .as_mut()
            .filter(|payload| matches!(payload.kind, Kind::Range(_)))
        else {
            return;
        };
        let Some(last) = self.joiner.last() else {
            return;
        };
        payload.charge_running(last, self.reach);
    }

    fn tell_when_idle(&mut self) {
        let working = match &mut self.payload {
            None => false,
            Some(payload) => match payload.talk() {
                None => true,
                Some(talk) => !talk.idle() || payload.recalled.is_some(),
            },
        };
        if self.busy && !working && self.queue.is_empty() && self.taken.is_settled() {
            self.flush_joiner();
            self.control.put(FromSlot::Idle);
            self.permits.forget();
            self.busy = false;
        }
    }
}

fn spill(scratch: &mut Scratch) -> std::io::Result<(File, String)> {
    let directory = scratch.new_directory().map_err(|error| error.source)?;
    let made = streams::spill_file(scratch.place.root.as_fd(), &directory);
    if made.is_err() {
        scratch.discard_directory(&directory);
    }
    made
}
