//! The payload that runs in a slot, and when it is to be killed.

use tidemill_sys::time;
use tidemill_wire::Program;

use super::range_protocol::Talk;
use super::usage::{self, Held, Reach, Traffic};
use crate::queue::Events;
use crate::Done;

/// Interval at which memory and CPU are sampled, once a payload has reached that age.
const SAMPLE_US: u64 = 200_000;
/// Costly figures (PSS, bytes) are taken for payloads that are older than this, and again after `COSTLY_AGAIN_US`.
const COSTLY_AFTER_US: u64 = 1_000_000;
const COSTLY_AGAIN_US: u64 = 10_000_000;
/// Where there are many processes, samples take at most a `SAMPLE_COST`th of the time, but limits wait for a sample for
/// at most `SAMPLE_US_MAX`.
const SAMPLE_COST: u64 = 50;
const SAMPLE_US_MAX: u64 = 5_000_000;
/// Reading the PSS of a process of hundreds of GB takes seconds: it takes at most a `PSS_COST`th of the time, and a
/// `PSS_COST_OVER`th where the memory may be over its limit.
const PSS_COST: u64 = 50;
const PSS_COST_OVER: u64 = 10;
/// Usage is read seldom enough that reading takes at most a `CHARGE_COST`th of the time.
const CHARGE_COST: u64 = 100;
/// The same for examining which files processes hold.
const FILES_COST: u64 = 50;
/// Descriptors that stay in connections which are not accepted for this time and number of readings are hidden
/// there on purpose.
const UNSEEN_US: u64 = 10_000_000;
const UNSEEN_LOOKS: u64 = 10;
/// Time for a persistent payload to leave after it was sent `end`.
const LEAVE_US: u64 = 30_000_000;

/// Why we killed a payload: failure class and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub failure: &'static str,
    pub message: String,
}

/// What a slot may take, and where its scratch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// 0 = no limit
    pub memory_mb: u64,
    pub tasks_max: u64,
    /// device of a scratch that is not in memory
    pub scratch: Option<u64>,
    /// the node's shared memory outside of this slot's scratch
    pub shared_kb: u64,
}

/// When a payload started, and what the node had then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// monotonic, and wall clock
    pub now_us: u64,
    pub at_us: u64,
    /// as in `Limits`
    pub shared_kb: u64,
}

/// What is to be said of a payload with too many processes.
pub(crate) fn tasks_limit(tasks_max: u64) -> String {
    format!("its slot may have {tasks_max}, `processes_max` of the application allows more")
}

/// How the payload gets its events.
pub(crate) enum Kind {
    Command {
        events: Events,
        outputs: Vec<(String, String)>,
    },
    Range(Box<Talk>),
}

/// A running payload.
pub(crate) struct Payload {
    pub pid: i32,
    pub job: u64,
    pub kind: Kind,
    /// monotonic, and wall clock
    pub started_us: u64,
    pub started_at_us: u64,
    shared_kb: u64,
    /// its program's files were checked once more after its start
    pub confirmed: bool,
    /// where its profile will be, if it is traced
    pub traced: Option<std::fs::File>,
    /// we killed it because of this
    pub verdict: Option<Verdict>,
    /// we killed it on order: the reason with which its events go back, and when
    pub recalled: Option<(&'static str, u64)>,
    /// the batch system ended it, as it ends all processes of the allocation: what it says from then on does not count
    pub taken: bool,
    /// a launcher was asked to end, so that it ends its ranks on other nodes
    pub terminated_us: Option<u64>,
    /// its events have gone back already
    pub recall_told: bool,
    pub setup_us: u64,
    pub rss_max_kb: u64,
    pub traffic: Option<Traffic>,
    /// CPU time that Done messages have reported already
    told_user_us: u64,
    told_system_us: u64,
    told_traffic: Traffic,
    /// the scratch was nearly full while it ran
    pub was_short: bool,
    /// when the scratch is measured next, where that costs something
    pub next_scratch_us: u64,
    /// what was found last
    pub held: Held,
    next_files_us: u64,
    /// since when some of what waits in its sockets could not be examined, and how often
    unseen: Option<(u64, u64)>,
    next_sample_us: u64,
    next_costly_us: u64,
    /// no PSS before that, whatever seems to be used
    next_pss_us: u64,
    next_charge_us: u64,
    progress_us: u64,
    cpu_us: u64,
    printed: u64,
}

impl Payload {
    pub fn new(pid: i32, job: u64, kind: Kind, start: Start) -> Self {
        let now_us = start.now_us;
        Payload {
            pid,
            job,
            kind,
            started_us: now_us,
            started_at_us: start.at_us,
            shared_kb: start.shared_kb,
            confirmed: false,
            traced: None,
            verdict: None,
            recalled: None,
            taken: false,
            terminated_us: None,
            recall_told: false,
            setup_us: 0,
            rss_max_kb: 0,
            traffic: None,
            told_user_us: 0,
            told_system_us: 0,
            told_traffic: Traffic::default(),
            was_short: false,
            next_scratch_us: 0,
            held: Held::default(),
            next_files_us: 0,
            unseen: None,
            next_sample_us: now_us + SAMPLE_US,
            next_costly_us: now_us + COSTLY_AFTER_US,
            next_pss_us: 0,
            next_charge_us: 0,
            progress_us: now_us,
            cpu_us: 0,
            printed: 0,
        }
    }

    /// Whether it was given any of the events `first..end` of a ticket and has not answered for them.
    pub fn runs(&self, ticket: u64, span: (u64, u64)) -> bool {
        match &self.kind {
            Kind::Command { events, .. } => events.overlaps(ticket, span),
            Kind::Range(talk) => talk.left().any(|events| events.overlaps(ticket, span)),
        }
    }

    pub fn age_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.started_us)
    }

    /// Old enough for the figures that cost something?
    pub fn old(&self, now_us: u64) -> bool {
        self.age_us(now_us) >= COSTLY_AFTER_US
    }

    /// When `judge` is to be called next.
    pub fn next_look_us(&self) -> u64 {
        self.next_sample_us
    }

    pub fn talk(&mut self) -> Option<&mut Talk> {
        match &mut self.kind {
            Kind::Range(talk) => Some(talk),
            Kind::Command { .. } => None,
        }
    }

    /// Adds to a Done what was used beyond what earlier ones have reported.
    pub fn charge(&mut self, done: &mut Done, (user_us, system_us): (u64, u64), traffic: Option<Traffic>) {
        done.user_us += user_us.saturating_sub(self.told_user_us);
        done.system_us += system_us.saturating_sub(self.told_system_us);
        self.told_user_us = self.told_user_us.max(user_us);
        self.told_system_us = self.told_system_us.max(system_us);
        if let Some(now) = traffic {
            let read_bytes = now.read_bytes.saturating_sub(self.told_traffic.read_bytes);
            let write_bytes = now.write_bytes.saturating_sub(self.told_traffic.write_bytes);
            done.read_bytes = Some(done.read_bytes.unwrap_or(0) + read_bytes);
            done.write_bytes = Some(done.write_bytes.unwrap_or(0) + write_bytes);
            self.told_traffic = now;
        }
    }

    /// Adds to a Done what the running payload used since the last time; reads seldom where there are many processes.
    pub fn charge_running(&mut self, done: &mut Done, reach: Reach) {
        let now_us = time::monotonic_us();
        if now_us < self.next_charge_us {
            return;
        }
        let sample = match reach {
            Reach::Namespace => usage::sample(reach),
            // to find the payload's processes, those of the whole node would have to be read
            Reach::Descendants => usage::sample_one(self.pid),
        };
        let traffic = self.old(now_us).then(|| usage::traffic(self.pid)).flatten();
        self.charge(done, (sample.user_us, sample.system_us), traffic);
        done.rss_kb = done.rss_kb.max(sample.rss_kb).max(self.rss_max_kb);
        let cost_us = time::monotonic_us().saturating_sub(now_us);
        self.next_charge_us = now_us + CHARGE_COST * cost_us;
    }

    /// Samples the slot's processes and says whether the payload must go. `printed`: bytes on stdout and stderr.
    pub fn judge(
        &mut self,
        program: &Program,
        limits: Limits,
        reach: Reach,
        printed: u64,
        now_us: u64,
    ) -> Option<Verdict> {
        let Limits {
            memory_mb, tasks_max, ..
        } = limits;
        let began_us = time::monotonic_us();
        let sample = usage::sample(reach);
        self.sampled(now_us, time::monotonic_us() - began_us);
        self.look_at_files(limits, reach, now_us);
        let held_kb = self.held.memory_kb();
        let mut used_kb = sample.rss_kb + held_kb;
        let grown_kb = limits.shared_kb.saturating_sub(self.shared_kb);
        let is_seen = used_kb > memory_mb * 1024;
        let over = memory_mb > 0 && used_kb + self.held.dropped_kb_max(grown_kb) > memory_mb * 1024;
        let measures = self.measures_pss(over, now_us);
        if measures {
            let began_us = time::monotonic_us();
            // shared pages count once per process in RSS: forked payloads would seem larger than they are
            used_kb = usage::pss_kb(reach).unwrap_or(sample.rss_kb) + held_kb;
            used_kb -= self.held.mapped_kb(reach).min(used_kb); // they are among both
            if over {
                used_kb += self.held.dropped_kb(reach, grown_kb);
            }
            self.traffic = usage::traffic(self.pid).or(self.traffic);
            self.measured_pss(is_seen, now_us, time::monotonic_us() - began_us);
            self.rss_max_kb = self.rss_max_kb.max(used_kb);
        }
        let cpu_us = sample.user_us + sample.system_us;
        if cpu_us != self.cpu_us || printed != self.printed {
            (self.cpu_us, self.printed) = (cpu_us, printed);
            self.progress_us = now_us;
        }
        // what only RSS says counts shared pages several times
        if over && measures && used_kb > memory_mb * 1024 {
            let used_mb = used_kb / 1024;
            return Some(Verdict {
                failure: "memory",
                message: format!("used {used_mb} MB of memory, its limit is {memory_mb} MB"),
            });
        }
        if let Some(verdict) = self.hidden(memory_mb, now_us) {
            return Some(verdict);
        }
        if sample.tasks > tasks_max {
            let tasks = sample.tasks;
            return Some(Verdict {
                failure: "payload",
                message: format!("has {tasks} processes and threads: {}", tasks_limit(tasks_max)),
            });
        }
        self.overdue(program, now_us)
    }

    /// Files whose memory cannot be counted.
    fn hidden(&self, memory_mb: u64, now_us: u64) -> Option<Verdict> {
        let (since_us, looks) = self.unseen?;
        let count = self.held.unseen;
        (memory_mb > 0 && looks > UNSEEN_LOOKS && now_us > since_us + UNSEEN_US).then(|| Verdict {
            failure: "memory",
            message: format!(
                "kept {count} descriptors in Unix sockets whose connections were not accepted, or in messages without \
                 content, for {} s: their memory cannot be counted, and its limit is {memory_mb} MB",
                UNSEEN_US / 1_000_000
            ),
        })
    }

    /// Sets when the next sample is due, after one that took `cost_us`.
    fn sampled(&mut self, now_us: u64, cost_us: u64) {
        let interval_us = (SAMPLE_COST * cost_us).clamp(SAMPLE_US, SAMPLE_US_MAX);
        self.next_sample_us = now_us + interval_us;
    }

    /// Whether PSS is to be read now; `over`: the slot may be over the limit.
    fn measures_pss(&self, over: bool, now_us: u64) -> bool {
        now_us >= self.next_pss_us && (over || now_us >= self.next_costly_us)
    }

    /// `is_seen`: RSS alone is over the limit. What only mappings suggest may be untouched for as long as it is mapped.
    fn measured_pss(&mut self, is_seen: bool, now_us: u64, cost_us: u64) {
        let factor = if is_seen { PSS_COST_OVER } else { PSS_COST };
        self.next_pss_us = now_us + factor * cost_us;
        self.next_costly_us = now_us + COSTLY_AGAIN_US.max(PSS_COST * cost_us);
    }

    /// Finds what no directory and no mapping shows; this takes at most a `FILES_COST`th of the time.
    fn look_at_files(&mut self, limits: Limits, reach: Reach, now_us: u64) {
        if now_us < self.next_files_us || (limits.memory_mb == 0 && limits.scratch.is_none()) {
            return;
        }
        let costly = now_us >= self.next_costly_us;
        self.held = Held::find(reach, (costly, limits.scratch));
        let (since_us, looks) = self.unseen.unwrap_or((now_us, 0));
        self.unseen = (self.held.unseen > 0).then_some((since_us, looks + 1));
        let cost_us = time::monotonic_us().saturating_sub(now_us);
        self.next_files_us = now_us + FILES_COST * cost_us;
    }

    /// Time limits.
    fn overdue(&mut self, program: &Program, now_us: u64) -> Option<Verdict> {
        let started_us = self.started_us;
        let mut limit_from = None;
        match &self.kind {
            Kind::Command { events, .. } => limit_from = Some((started_us, events.count)),
            Kind::Range(talk) => {
                if !talk.ready && passed(started_us, program.ready_timeout_s, now_us) {
                    let message = format!("was not `ready` after {} s", program.ready_timeout_s);
                    return Some(Verdict {
                        failure: "payload_setup",
                        message,
                    });
                }
                if talk.idle() && talk.ended_us.is_some_and(|since| now_us > since + LEAVE_US) {
                    let message = "did not end after `end`".to_owned();
                    return Some(Verdict {
                        failure: "payload",
                        message,
                    });
                }
                if !talk.idle() {
                    limit_from = Some((talk.progress_us, talk.largest()));
                }
                let waits_for_us = talk.idle() && !talk.asked.is_empty();
                let since = if waits_for_us { now_us } else { talk.progress_us };
                self.progress_us = self.progress_us.max(since);
            }
        }
        if let (Some(timeout_s), Some((since_us, events))) = (program.timeout_s, limit_from) {
            let limit_s = timeout_s * events as f64;
            if passed(since_us, limit_s, now_us) {
                let message = format!("ran longer than {limit_s} s ({timeout_s} s per event)");
                return Some(Verdict {
                    failure: "walltime",
                    message,
                });
            }
        }
        let looping_s = program.looping_s?;
        passed(self.progress_us, looping_s, now_us).then(|| Verdict {
            failure: "payload",
            message: format!("used no CPU and wrote nothing for {looping_s} s"),
        })
    }
}

fn passed(since_us: u64, limit_s: f64, now_us: u64) -> bool {
    now_us.saturating_sub(since_us) as f64 > limit_s * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often something happens that is asked for each `SAMPLE_US`, in a minute.
    fn in_a_minute(mut happens: impl FnMut(u64) -> bool) -> usize {
        (1..=300).filter(|&turn| happens(turn * SAMPLE_US)).count()
    }

    fn payload() -> Payload {
        let events = Events::default();
        let kind = Kind::Command {
            events,
            outputs: Vec::new(),
        };
        Payload::new(1, 1, kind, Start::default())
    }

    #[test]
    fn pss_that_takes_a_second_is_read_a_tenth_of_the_time_at_most_even_over_the_limit() {
        for (over, is_seen, cost_us, times) in [
            (true, true, 1_000_000, 6),
            (true, true, 100, 300),
            (true, false, 1_000_000, 2), // untouched shared memory
            (false, false, 1_000_000, 2),
        ] {
            let mut payload = payload();
            let measured = in_a_minute(|now_us| {
                let measures = payload.measures_pss(over, now_us);
                if measures {
                    payload.measured_pss(is_seen, now_us, cost_us);
                }
                measures
            });
            assert_eq!(measured, times, "{over} {is_seen} {cost_us}");
        }
    }

    #[test]
    fn samples_of_many_processes_are_taken_less_often_and_limits_still_hold() {
        let mut payload = payload();
        payload.sampled(0, 20_000);
        assert_eq!(payload.next_look_us(), 1_000_000);
        payload.sampled(0, 10_000_000);
        assert_eq!(payload.next_look_us(), SAMPLE_US_MAX);
        payload.sampled(0, 10);
        assert_eq!(payload.next_look_us(), SAMPLE_US);
    }
}
