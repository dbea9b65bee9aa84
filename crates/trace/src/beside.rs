//! The tracer beside the thread that it traces: both run on one CPU while that thread asks often.
//!
//! One of the two always sleeps while the other works. On two CPUs each turn wakes a CPU that has gone to sleep
//! meanwhile; on one CPU it is a context switch. A small tracer with the same requests took 12.9 us per operation on
//! two CPUs of a virtual machine (Linux 6.18), 5.5 us on one. Polling for the next stop instead of sleeping took 10.5
//! us and a whole CPU; with polling a Python import took 1.37 of its time, with sleeping 1.19. On a busy machine, where
//! both get the same CPU, an operation cost four times as much.
//!
//! The scheduler puts a thread that the tracer resumes onto an idle CPU, so both are confined to one: one thread at a
//! time, never longer than HOLD_NS, and only while it keeps asking. Programs do not notice: what a new thread or
//! process inherits is corrected before it runs, and before a program asks for CPUs (sched_getaffinity, `status` in
//! /proc) the original CPUs are restored.

use tidemill_sys::process::{affinity_of, current_cpu, set_affinity_of};
use tidemill_sys::{ptrace, time, Result};

/// A thread is confined after this many operations in a row within this time: 300 us each, of which two CPUs would take
/// 4 %. A late start is expensive: of an import's 4,200 operations, 260 came before the end of rows of 16, 90 before
/// the end of rows of 4.
const ROW_MIN: u32 = 4;
const ROW_NS: u64 = 1_250_000;
/// Interval of checks whether the thread keeps asking: a thread that computes is confined for at most twice this.
const LOOK_US: u64 = 10_000;
const OPERATIONS_MIN: u32 = 8;
/// Then the scheduler chooses a CPU anew; the next row costs a few slower operations.
const HOLD_NS: u64 = 100_000_000;
/// After a question for CPUs: the thread that asks is at once answered, but may have asked for another thread.
const QUIET_NS: u64 = 20_000_000;
/// This process, as affinity calls name it
const OWN: i32 = 0;

/// When to confine which thread. Pure.
#[derive(Debug, Default)]
pub struct Rows {
    pid: i32,
    count: u32,
    begun_ns: u64,
    quiet_until_ns: u64,
}

impl Rows {
    /// An operation of `pid`; true if it is the last of a row.
    fn note(&mut self, pid: i32, now_ns: u64) -> bool {
        if self.pid != pid || now_ns < self.quiet_until_ns {
            (self.pid, self.count) = (pid, 0);
        }
        if self.count == 0 {
            self.begun_ns = now_ns;
        }
        self.count += 1;
        if self.count < ROW_MIN {
            return false;
        }
        self.count = 0;
        now_ns - self.begun_ns <= ROW_NS
    }
}

/// A thread, its CPUs, and the one of them where it was put.
#[derive(Debug)]
struct Held {
    pid: i32,
    cpus: Vec<usize>,
    cpu: usize,
}

#[derive(Debug)]
pub struct Beside {
    /// our own CPUs; empty where nothing is to be done
    own: Vec<usize>,
    rows: Rows,
    /// the present one or the last one
    held: Option<Held>,
    holds: bool,
    since_ns: u64,
    /// since the last check
    operations: u32,
    /// interval of `ptrace::ticked` while no thread is held
    tick_us: u64,
}

impl Beside {
    pub fn new(wanted: bool, tick_us: u64) -> Self {
        let own = affinity_of(OWN).unwrap_or_default();
        Beside {
            own: if wanted && own.len() > 1 { own } else { Vec::new() },
            rows: Rows::default(),
            held: None,
            holds: false,
            since_ns: 0,
            operations: 0,
            tick_us,
        }
    }

    /// `pid` has stopped at an operation.
    pub fn at_operation(&mut self, pid: i32) {
        if self.own.is_empty() {
            return;
        }
        if self.holds {
            if self.is_held(pid) {
                self.operations += 1;
                return;
            }
            self.release();
        }
        let now_ns = time::monotonic_ns();
        if self.rows.note(pid, now_ns) {
            self.since_ns = now_ns;
            if let Err(error) = self.hold(pid) {
                self.release();
                if error.os_error() != libc::ESRCH {
                    self.own.clear(); // this system does not let us: as good as no second CPU
                }
            }
        }
    }

    fn is_held(&self, pid: i32) -> bool {
        self.holds && self.held.as_ref().is_some_and(|held| held.pid == pid)
    }

    fn hold(&mut self, pid: i32) -> Result<()> {
        let cpus = affinity_of(pid)?;
        let cpu = current_cpu();
        // a thread that is restricted to one CPU has its reasons
        if cpus.len() < 2 || !cpus.contains(&cpu) {
            return Ok(());
        }
        self.held = Some(Held { pid, cpus, cpu });
        self.holds = true;
        self.operations = 0;
        ptrace::tick(LOOK_US)?;
        set_affinity_of(OWN, &[cpu])?;
        set_affinity_of(pid, &[cpu])
    }

    /// As often as `ptrace::ticked` says yes.
    pub fn tick(&mut self) {
        let long = || time::monotonic_ns() - self.since_ns > HOLD_NS;
        if self.holds && (self.operations < OPERATIONS_MIN || long()) {
            self.release();
        }
        self.operations = 0;
    }

    /// All as it was.
    pub fn release(&mut self) {
        if !self.holds {
            return;
        }
        self.holds = false;
        let _ = ptrace::tick(self.tick_us);
        let _ = set_affinity_of(OWN, &self.own);
        if let Some(held) = &self.held {
            let _ = set_affinity_of(held.pid, &held.cpus); // it may be no more
        }
    }

    /// Restarts the ticks after signal handlers were replaced: without the handler of SIGALRM there are no ticks, and
    /// no thread would be released in time.
    pub fn restart(&mut self) {
        self.release();
        if self.tick_us > 0 {
            let _ = ptrace::tick(self.tick_us);
        }
    }

    /// A program is about to ask for CPUs, or to set them.
    pub fn before_question(&mut self) {
        self.release();
        self.rows.quiet_until_ns = time::monotonic_ns() + QUIET_NS;
    }

    /// Restores the CPUs of a thread that has not run yet, if it inherited the confinement. `parent` is None where it
    /// is not known.
    pub fn born(&mut self, pid: i32, parent: Option<i32>) {
        self.release();
        let Some(held) = &self.held else {
            return;
        };
        let confined = |pid| affinity_of(pid).is_ok_and(|cpus| cpus == [held.cpu]);
        let inherited = match parent {
            // one that confined itself meanwhile has its own reasons
            Some(parent) => parent == held.pid && !confined(parent),
            None => true,
        };
        if inherited && confined(pid) {
            let _ = set_affinity_of(pid, &held.cpus);
        }
    }

    /// A thread is no more, or has another number.
    pub fn gone(&mut self, pid: i32) {
        if self.is_held(pid) {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(gap_ns: u64, pids: &[i32], quiet_until_ns: u64) -> usize {
        let mut rows = Rows {
            quiet_until_ns,
            ..Rows::default()
        };
        let each = pids.iter().zip(1..);
        each.filter(|&(&pid, index)| rows.note(pid, index * gap_ns))
            .count()
    }

    #[test]
    fn a_row_is_many_operations_of_one_thread_that_follow_soon() {
        assert_eq!(ends(100_000, &[7; ROW_MIN as usize], 0), 1);
        assert_eq!(ends(100_000, &[7; ROW_MIN as usize - 1], 0), 0);
        assert_eq!(ends(1_000_000, &[7; 64], 0), 0);
    }

    #[test]
    fn threads_that_take_turns_make_no_row() {
        let turns: Vec<i32> = (0..200).map(|index| index % 2 + 1).collect();
        assert_eq!(ends(1000, &turns, 0), 0);
    }

    proptest! {
        #[test]
        fn while_it_is_quiet_no_row_ends(gap_ns in 0u64..100_000, count in 0usize..200) {
            prop_assert_eq!(ends(gap_ns, &vec![7; count], u64::MAX), 0);
        }
    }
}
