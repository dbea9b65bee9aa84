//! The end of payloads: what they leave, and what is reported about them.

use std::os::fd::AsFd;

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::process::{self, Exit, Usage, Waited};
use tidemill_sys::{signal, time, Result};
use tidemill_wire::log::cause;

use super::batch_term::RUN_AGAIN;
use super::payload::{tasks_limit, Kind, Limits, Payload, Verdict};
use super::range::failed;
use super::range_protocol::Talk;
use super::scratch::LOOKS;
use super::streams::Whole;
use super::usage::{self, Reach};
use super::{spill, Init, RECALL_US};
use crate::queue::Events;
use crate::{Done, Failed, SlotOutput};

/// Bytes of stderr that a failure carries.
pub(super) const STDERR_TAIL_BYTES: usize = 4096;
/// A killed process that still exists after this time cannot be killed.
const KILL_US: u64 = 30_000_000;
/// Time from asking a launcher to end until it is killed.
const TERMINATE_US: u64 = 1_500_000;
/// What programs print when a file system is full (strerror of ENOSPC).
const FULL_MESSAGE: &[u8] = b"No space left on device";
/// The same of EAGAIN, from which fork and clone suffer, and of Python, which does not print it for threads.
const NO_TASK_MESSAGES: [&[u8]; 2] = [b"Resource temporarily unavailable", b"can't start new thread"];
/// The same of ENETUNREACH, and of those who look up names (getaddrinfo, curl, Go).
const NO_NETWORK_MESSAGES: [&[u8]; 5] = [
    b"Network is unreachable",
    b"network is unreachable",
    b"Temporary failure in name resolution",
    b"Could not resolve host",
    b"Name or service not known",
];

impl Init {
    /// Sends SIGKILL to everything in the slot but the init. A launcher gets SIGTERM first: it alone can end its ranks on
    /// other nodes.
    pub(super) fn kill(&mut self) {
        if let (Some(_), Some(payload)) = (&self.spec.directory, &mut self.payload) {
            let now_us = time::monotonic_us();
            if payload.terminated_us.is_none() {
                let _ = signal::kill(payload.pid, signal::TERM);
            }
            if now_us < *payload.terminated_us.get_or_insert(now_us) + TERMINATE_US {
                return;
            }
        }
        match self.reach {
            Reach::Namespace => signal::kill_namespace(),
            Reach::Descendants => {
                for pid in usage::processes(self.reach) {
                    // gone already is as good
                    let _ = signal::kill(pid, signal::KILL);
                }
            }
        }
    }

    /// Kills everything and waits for its end.
    pub(super) fn kill_and_reap(&mut self) -> Result<()> {
        let limit_us = time::monotonic_us() + KILL_US;
        loop {
            self.kill();
            loop {
                match process::wait(-1, false)? {
                    Waited::Ended { .. } => {}
                    Waited::Running => break,
                    Waited::NoChildren => return Ok(()),
                }
            }
            if time::monotonic_us() > limit_us {
                self.fatal = Some("a process of the slot cannot be killed".to_owned());
                return Ok(());
            }
            fd::poll(&mut [Poll::new(self.signals.as_fd(), READABLE)], Some(20_000))?;
            self.take_signals();
        }
    }

    /// Takes ended children; the payload's end ends everything that it left.
    pub(super) fn reap(&mut self) -> Result<()> {
        self.taken.child_ended = false;
        let now_us = time::monotonic_us();
        if let Some(payload) = self.payload.as_mut().filter(|payload| payload.old(now_us)) {
            // a process that has ended keeps its counts until it is waited for
            payload.traffic = usage::traffic(payload.pid).or(payload.traffic);
        }
        let mut ended = None;
        let left_over = loop {
            match process::wait(-1, false)? {
                Waited::Ended { pid, exit, usage } => {
                    if self.payload.as_ref().is_some_and(|payload| payload.pid == pid) {
                        ended = Some((exit, usage));
                    }
                }
                Waited::Running => break true,
                Waited::NoChildren => break false,
            }
        };
        let Some((exit, usage)) = ended else {
            return Ok(());
        };
        self.take_signals(); // it may have ended because the whole allocation was signalled
        if let Some(payload) = self.payload.take() {
            if left_over {
                self.kill_and_reap()?;
            }
            self.finish(payload, exit, usage);
        }
        Ok(())
    }

    fn finish(&mut self, mut payload: Payload, exit: Exit, usage: Usage) {
        let now_us = time::monotonic_us();
        if self.taken.pauses(now_us) {
            // TERM came while what the payload left was killed
            payload.taken = true;
            payload.recalled.get_or_insert((RUN_AGAIN, now_us));
        }
        let (streams, scratch) = (&mut self.streams, &mut self.scratch);
        streams.drain(&mut || spill(scratch));
        if let Err(error) = streams.restore() {
            self.fatal = Some(cause(&error));
        }
        let job = payload.job;
        self.confirm(&mut payload);
        self.tell_trace(&mut payload);
        if payload.talk().is_some() {
            self.finish_persistent(payload, exit, usage);
        } else {
            self.finish_command(payload, exit, usage);
        }
        if let Err(error) = self.scratch.clean() {
            self.fatal = Some(format!("failed to empty the scratch: {}", cause(&error)));
        }
        if self.jobs.get(&job).is_some_and(|known| known.forgotten) {
            self.drop_job(job);
        }
    }

    fn finish_command(&mut self, payload: Payload, exit: Exit, usage: Usage) {
        let now_us = time::monotonic_us();
        let wall_us = payload.age_us(now_us);
        let Kind::Command { events, outputs } = &payload.kind else {
            return;
        };
        let events = *events;
        // who is asked to end may well say that all is fine
        let well = exit == Exit::Status(0) && payload.recalled.is_none() && payload.verdict.is_none();
        if let Some(job) = self.jobs.get_mut(&events.job) {
            job.inputs
                .remove_each(&self.scratch.place, &job.def, (events.first, events.count));
            if well {
                job.pace.measure(events.count, wall_us);
            }
        }
        if let Some((reason, _)) = payload.recalled {
            self.discard_whole();
            if !payload.recall_told {
                self.give_back(events, reason);
            }
            return;
        }
        let collected = if well {
            self.collect(outputs)
        } else {
            self.discard_whole();
            Err(self.cause(&payload, exit))
        };
        match collected {
            Err(verdict) => {
                let failed = self.describe(events, verdict, (exit, usage), wall_us);
                self.fail(failed);
            }
            Ok(kept) => {
                self.note_left(events.job, outputs);
                self.command_done(&payload, events, kept, usage, now_us);
            }
        }
    }

    /// Writes the files that no output names into the logs of a job's first payloads.
    fn note_left(&mut self, job: u64, outputs: &[(String, String)]) {
        let Some(job) = self.jobs.get_mut(&job).filter(|job| job.looks < LOOKS) else {
            return;
        };
        job.looks += 1;
        if let Some(said) = self.scratch.left(outputs) {
            self.streams.note(&said);
        }
    }

    fn command_done(
        &mut self,
        payload: &Payload,
        events: Events,
        outputs: Vec<SlotOutput>,
        usage: Usage,
        now_us: u64,
    ) {
        let Events {
            ticket,
            job,
            first,
            count,
        } = events;
        let wall_us = payload.age_us(now_us);
        let stdout_is_output = self.jobs.get(&job).is_some_and(|job| job.program.stdout_output);
        let streams = &self.streams;
        let truncated = (!stdout_is_output && streams.stdout.truncated()) || streams.stderr.truncated();
        let done = Done {
            ticket,
            job,
            first,
            count,
            payloads: 1,
            started_us: payload.started_at_us,
            ended_us: payload.started_at_us + wall_us,
            wall_us,
            setup_us: 0,
            user_us: usage.user_us,
            system_us: usage.system_us,
            rss_kb: payload.rss_max_kb.max(usage.rss_max_kb),
            read_bytes: payload.traffic.map(|traffic| traffic.read_bytes),
            write_bytes: payload.traffic.map(|traffic| traffic.write_bytes),
            outputs,
            stdout: if stdout_is_output {
                Vec::new()
            } else {
                streams.stdout.text()
            },
            stderr: streams.stderr.text(),
            truncated,
        };
        self.add_done(done, now_us);
    }

    /// Puts the outputs of a chunk aside, stdout among them where it is one.
    fn collect(&mut self, outputs: &[(String, String)]) -> std::result::Result<Vec<SlotOutput>, Verdict> {
        let payload = |message: String| Verdict {
            failure: "payload",
            message,
        };
        let mut all = match outputs {
            [] => Vec::new(),
            _ => match self.scratch.put_aside(outputs) {
                Ok(all) => all,
                Err(message) => {
                    self.discard_whole();
                    return Err(payload(message));
                }
            },
        };
        if let Some(error) = self.streams.whole_error.take() {
            self.discard_whole();
            if let Some(first) = all.first() {
                self.scratch.discard(&first.path);
            }
            let failure = if error.raw_os_error() == Some(28) {
                "disk"
            } else {
                "payload"
            };
            return Err(Verdict {
                failure,
                message: format!("output `stdout`: {error}"),
            });
        }
        let name = "stdout".to_owned();
        match self.streams.take_whole() {
            None => {}
            Some(Whole::Memory(bytes)) => {
                all.push(SlotOutput {
                    name,
                    path: String::new(),
                    inline: Some(bytes),
                });
            }
            Some(Whole::File { path, .. }) => all.push(SlotOutput {
                name,
                path,
                inline: None,
            }),
        }
        Ok(all)
    }

    fn discard_whole(&mut self) {
        if let Some(Whole::File { path, .. }) = self.streams.take_whole() {
            self.scratch.discard(&path);
        }
    }

    /// Why a payload failed that did not end with 0.
    fn cause(&self, payload: &Payload, exit: Exit) -> Verdict {
        if let Some(verdict) = &payload.verdict {
            return verdict.clone();
        }
        let how = match exit {
            Exit::Status(status) => format!("exit status {status}"),
            Exit::Signal(number) => format!("killed by signal {number} ({})", signal_name(number)),
        };
        let tail = self.streams.stderr.last(STDERR_TAIL_BYTES);
        let says_full = tail
            .windows(FULL_MESSAGE.len())
            .any(|window| window == FULL_MESSAGE);
        // who fills a mapped file, such as one in /dev/shm, gets no error but this signal
        let in_a_mapped_file = exit == Exit::Signal(libc::SIGBUS) && payload.was_short;
        if self.scratch.full() || says_full || in_a_mapped_file {
            let message = format!("{how}; a file system is full: {}", self.shortage());
            return Verdict {
                failure: "disk",
                message,
            };
        }
        Verdict {
            failure: "payload",
            message: format!("{how}{}", self.hint(&tail)),
        }
    }

    /// What a limit of the slot has to do with what a payload said at its end, if it seems so.
    fn hint(&self, tail: &[u8]) -> String {
        let says = |message: &[u8]| tail.windows(message.len()).any(|window| window == message);
        if self.closed && NO_NETWORK_MESSAGES.iter().any(|message| says(message)) {
            return "; payloads have no network here, unless the application says `network = true`"
                .to_owned();
        }
        if NO_TASK_MESSAGES.iter().any(|message| says(message)) {
            return format!("; as to processes and threads, {}", tasks_limit(self.tasks_max));
        }
        String::new()
    }

    fn describe(
        &self,
        events: Events,
        verdict: Verdict,
        (exit, usage): (Exit, Usage),
        wall_us: u64,
    ) -> Failed {
        let (exit_status, number) = match exit {
            Exit::Status(status) => (Some(status), None),
            Exit::Signal(number) => (None, Some(number)),
        };
        Failed {
            message: verdict.message,
            exit_status,
            signal: number,
            stderr: self.last_words(),
            stdout: self.streams.stdout.text(),
            user_us: usage.user_us,
            system_us: usage.system_us,
            ..failed(events, verdict.failure, wall_us)
        }
    }

    /// The end of stderr. A launcher may say on stdout which rank died (Hydra does).
    fn last_words(&self) -> Vec<u8> {
        let streams = &self.streams;
        if self.spec.directory.is_none() {
            return streams.stderr.last(STDERR_TAIL_BYTES);
        }
        let mut words = streams.stdout.last(STDERR_TAIL_BYTES / 2);
        words.extend(streams.stderr.last(STDERR_TAIL_BYTES / 2));
        words
    }

    fn finish_persistent(&mut self, mut payload: Payload, exit: Exit, usage: Usage) {
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let more = payload.talk().is_some_and(|talk| talk.read(&mut buffer));
            if !payload.taken {
                self.understand(&mut payload);
            }
            if !more {
                break;
            }
        }
        self.buffer = buffer;
        let (job, wall_us) = (payload.job, payload.age_us(time::monotonic_us()));
        if let Some(last) = self.joiner.last() {
            let traffic = payload.traffic;
            payload.charge(last, (usage.user_us, usage.system_us), traffic);
            last.rss_kb = last.rss_kb.max(usage.rss_max_kb).max(payload.rss_max_kb);
        }
        let cause = self.persistent_cause(&payload, exit);
        let Kind::Range(talk) = &mut payload.kind else {
            return;
        };
        let oldest = talk.take_oldest_left();
        let fetched = talk.take_left();
        if let Some(known) = self.jobs.get(&job) {
            for events in oldest.iter().chain(&fetched) {
                known
                    .inputs
                    .remove_each(&self.scratch.place, &known.def, (events.first, events.count));
            }
        }
        if let Some((reason, _)) = payload.recalled {
            for &events in oldest.iter().chain(&fetched).filter(|_| !payload.recall_told) {
                self.give_back(events, reason);
            }
        } else {
            let blamed = if oldest.is_empty() {
                self.blame(talk, job, exit)
            } else {
                oldest
            };
            // it had asked for these ahead, and never got to them
            for events in fetched {
                self.give_back(events, "again");
            }
            for (place, &events) in blamed.iter().enumerate() {
                let mut failed = self.describe(events, cause.clone(), (exit, usage), wall_us);
                if place > 0 {
                    // one payload has one end: what it printed and used is reported once
                    failed = Failed {
                        stdout: Vec::new(),
                        stderr: format!("(see the failure of event {})\n", blamed[0].first).into_bytes(),
                        wall_us: 0,
                        user_us: 0,
                        system_us: 0,
                        ..failed
                    };
                }
                self.fail(failed);
            }
        }
        self.tell_log(job, talk.span);
    }

    fn persistent_cause(&self, payload: &Payload, exit: Exit) -> Verdict {
        let Kind::Range(talk) = &payload.kind else {
            return self.cause(payload, exit);
        };
        let mut verdict = match exit {
            Exit::Status(0) if payload.verdict.is_none() => {
                let message = match (talk.ready, talk.took) {
                    (false, _) => "ended before it was `ready`",
                    (true, false) => "ended without asking for a range",
                    (true, true) => "ended without finishing its ranges",
                };
                Verdict {
                    failure: "payload",
                    message: message.to_owned(),
                }
            }
            _ => self.cause(payload, exit),
        };
        if !talk.ready && verdict.failure == "payload" {
            verdict.failure = "payload_setup";
        }
        verdict
    }

    /// Events charged with the end of a payload that was working on none: none if it did its work or was sent away; its
    /// whole first run if it was never ready; else what it would have received next, so that payloads are not started
    /// for ever.
    fn blame(&mut self, talk: &Talk, job: u64, exit: Exit) -> Vec<Events> {
        let sent_away = talk.ended_us.is_some();
        if talk.took || sent_away || (exit == Exit::Status(0) && self.queue.of_job(job).is_none()) {
            return Vec::new();
        }
        let count = if talk.ready {
            self.jobs.get(&job).map_or(1, |known| self.size(known, 0).max(1))
        } else {
            u64::MAX
        };
        self.queue.take(job, count).into_iter().collect()
    }

    /// Limits of the running payload, and what follows from them.
    pub(super) fn look_after_payload(&mut self) {
        let now_us = time::monotonic_us();
        let Some(mut payload) = self.payload.take() else {
            return;
        };
        if let (Some((reason, since_us)), false) = (payload.recalled, payload.recall_told) {
            if now_us >= since_us + RECALL_US {
                self.give_back_running(&mut payload, reason);
            }
        }
        let due = now_us >= payload.next_look_us();
        if due {
            self.tell_running_trace(&mut payload);
        }
        let is_stopping = payload
            .terminated_us
            .is_some_and(|since_us| now_us >= since_us + TERMINATE_US);
        let mut kill = is_stopping || (due && self.confirm(&mut payload));
        if let (true, Some(job)) = (due, self.jobs.get(&payload.job)) {
            let limit = job.program.memory_mb;
            let limits = Limits {
                memory_mb: if limit > 0 { limit } else { self.spec.memory_mb },
                tasks_max: self.tasks_max,
                scratch: self.scratch.device(),
                shared_kb: self.scratch.shared_kb_outside(),
            };
            let printed = self.streams.printed();
            let verdict = payload.judge(&job.program, limits, self.reach, printed, now_us);
            let verdict = verdict.or_else(|| self.judge_scratch(&mut payload, now_us));
            if let (Some(verdict), None) = (verdict, &payload.verdict) {
                payload.verdict = Some(verdict);
                kill = true;
            }
        }
        self.payload = Some(payload);
        if kill {
            self.kill();
        }
    }

    /// Checks once, at the first sample after its start or at its end, that the payload's program is still the one that was
    /// approved; true if it must go.
    fn confirm(&mut self, payload: &mut Payload) -> bool {
        if payload.confirmed || payload.verdict.is_some() {
            return false;
        }
        payload.confirmed = true;
        let job = self.jobs.get(&payload.job);
        payload.verdict = job.and_then(|job| self.approved.replaced(&job.files));
        payload.verdict.is_some()
    }

    /// The events of a payload that was killed on order and takes long to die.
    fn give_back_running(&mut self, payload: &mut Payload, reason: &str) {
        if !payload.taken {
            self.understand(payload);
        }
        let left = match &mut payload.kind {
            Kind::Command { events, .. } => vec![*events],
            Kind::Range(talk) => talk.take_left(),
        };
        for events in left {
            self.give_back(events, reason);
        }
        payload.recall_told = true;
    }
}

fn signal_name(number: i32) -> &'static str {
    match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "see signal(7)",
    }
}
