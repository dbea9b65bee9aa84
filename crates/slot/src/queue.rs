//! Work that waits in a slot, and how much of it one payload or range gets. Pure.

use std::collections::VecDeque;

/// What is left of a `Run`: events `next..end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub ticket: u64,
    pub job: u64,
    pub next: u64,
    pub end: u64,
    pub chunk_max: Option<u64>,
}

/// Consecutive events of one ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Events {
    pub ticket: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
}

impl Events {
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Whether any of them is among `first..end` of a ticket.
    pub fn overlaps(&self, ticket: u64, (first, end): (u64, u64)) -> bool {
        self.ticket == ticket && self.first < end && first < self.end()
    }
}

/// Runs in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    runs: VecDeque<Run>,
}

impl Queue {
    pub fn push(&mut self, run: Run) {
        if run.next < run.end {
            self.runs.push_back(run);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The job of the oldest run.
    pub fn front_job(&self) -> Option<u64> {
        self.runs.front().map(|run| run.job)
    }

    /// The oldest run of a job.
    pub fn of_job(&self, job: u64) -> Option<&Run> {
        self.runs.iter().find(|run| run.job == job)
    }

    /// Takes up to `count` events off the oldest run of a job.
    pub fn take(&mut self, job: u64, count: u64) -> Option<Events> {
        let at = self.runs.iter().position(|run| run.job == job)?;
        let run = &mut self.runs[at];
        let count = count.min(run.end - run.next);
        let events = Events {
            ticket: run.ticket,
            job,
            first: run.next,
            count,
        };
        run.next += count;
        if run.next == run.end {
            self.runs.remove(at);
        }
        Some(events)
    }

    /// Takes the events `first..end` of a ticket.
    pub fn take_part(&mut self, ticket: u64, first: u64, end: u64) -> Vec<Events> {
        let mut taken = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            let (from, until) = (run.next.max(first), run.end.min(end));
            if run.ticket != ticket || from >= until {
                self.runs.push_back(run);
                continue;
            }
            taken.push(Events {
                ticket,
                job: run.job,
                first: from,
                count: until - from,
            });
            self.push(Run {
                end: from,
                ..run.clone()
            });
            self.push(Run { next: until, ..run });
        }
        taken
    }

    /// Takes everything, or everything of one job.
    pub fn take_all(&mut self, job: Option<u64>) -> Vec<Events> {
        let (taken, kept) = self
            .runs
            .drain(..)
            .partition(|run| job.unwrap_or(run.job) == run.job);
        self.runs = kept;
        let taken: VecDeque<Run> = taken;
        let events = |run: &Run| Events {
            ticket: run.ticket,
            job: run.job,
            first: run.next,
            count: run.end - run.next,
        };
        taken.iter().map(events).collect()
    }
}

/// Seconds per event of a job: the application's estimate until measured.
///
/// A process takes time to start: the smallest chunk and the average one together say how long chunks between them take.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// seconds and events of an average chunk, lately; or the estimate and one event
    wall_s: f64,
    events: f64,
    measured: bool,
    /// events of the smallest chunk so far, and its seconds, lately
    smallest: (f64, f64),
    /// events of the largest chunk so far
    largest: u64,
}

/// What bounds the next chunk or range.
pub(crate) struct Bounds {
    /// aimed length
    pub range_s: f64,
    pub chunk_max: u64,
    /// until the deadline
    pub left_us: Option<u64>,
}

/// Weight of a measurement against the earlier ones.
const WEIGHT: f64 = 0.3;
/// The next range is at most this many times the largest so far: one lucky event says little about the next thousand.
const GROWTH_MAX: u64 = 8;

impl Pace {
    pub fn new(estimate_s: f64) -> Self {
        let estimate_s = estimate_s.max(0.0);
        Pace {
            wall_s: estimate_s,
            events: 1.0,
            measured: false,
            smallest: (1.0, estimate_s),
            largest: 0,
        }
    }

    pub fn measure(&mut self, count: u64, wall_us: u64) {
        let (events, wall_s) = (count.max(1) as f64, wall_us as f64 / 1e6);
        let weight = if self.measured { WEIGHT } else { 1.0 };
        self.wall_s += weight * (wall_s - self.wall_s);
        self.events += weight * (events - self.events);
        if !self.measured || events < self.smallest.0 {
            self.smallest = (events, wall_s);
        } else if events == self.smallest.0 {
            self.smallest.1 += WEIGHT * (wall_s - self.smallest.1);
        }
        self.measured = true;
        self.largest = self.largest.max(count);
    }

    fn event_s(&self) -> f64 {
        self.wall_s / self.events
    }

    /// Expected time of `count` events: never less than at the average pace.
    pub fn expected_us(&self, count: u64) -> u64 {
        (self.expected_s(count) * 1e6) as u64
    }

    fn expected_s(&self, count: u64) -> f64 {
        let events = count as f64;
        let average_s = events * self.event_s();
        let (few, few_s) = self.smallest;
        if events < few || events >= self.events {
            return average_s;
        }
        // more events do not take less time
        let few_s = few_s.min(self.wall_s);
        let part = (events - few) / (self.events - few);
        average_s.max(few_s + part * (self.wall_s - few_s))
    }

    /// The most events that are expected to take no longer.
    fn fit(&self, limit_s: f64) -> u64 {
        // the cast saturates where an event takes nothing
        let average = (limit_s / self.event_s()) as u64;
        if self.expected_s(average) <= limit_s {
            return average;
        }
        // between smallest and average chunk: a straight line
        let (mut fits, mut too_many) = (0, average);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.expected_s(middle) <= limit_s {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }

    /// Events for the next chunk or range; 0 when not even one is expected to end in time.
    pub fn size(&self, bounds: &Bounds) -> u64 {
        let fits = match bounds.left_us {
            None => u64::MAX,
            Some(0) => 0,
            Some(left_us) => self.fit(left_us as f64 / 1e6),
        };
        let aimed = self.fit(bounds.range_s);
        let grown = if self.measured {
            self.largest.saturating_mul(GROWTH_MAX)
        } else {
            u64::MAX
        };
        aimed.min(grown).clamp(1, bounds.chunk_max.max(1)).min(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bounds(range_s: f64, chunk_max: u64, left_us: Option<u64>) -> Bounds {
        Bounds {
            range_s,
            chunk_max,
            left_us,
        }
    }

    #[test]
    fn events_of_a_ticket_are_taken_out_of_the_middle_of_what_waits() {
        let mut queue = Queue::default();
        for (ticket, next, end) in [(1, 0, 10), (2, 0, 10)] {
            queue.push(Run {
                ticket,
                job: 5,
                next,
                end,
                chunk_max: None,
            });
        }
        let spans = |taken: Vec<Events>| -> Vec<(u64, u64, u64)> {
            taken
                .iter()
                .map(|each| (each.ticket, each.first, each.end()))
                .collect()
        };
        assert_eq!(spans(queue.take_part(1, 3, 5)), [(1, 3, 5)]);
        assert_eq!(spans(queue.take_part(1, 4, 6)), [(1, 5, 6)]);
        assert_eq!(spans(queue.take_all(None)), [(1, 0, 3), (1, 6, 10), (2, 0, 10)]);
    }

    #[test]
    fn a_90_s_range_is_not_started_with_60_s_left() {
        let pace = Pace::new(90.0);
        assert_eq!(pace.size(&bounds(10.0, 100, Some(60_000_000))), 0);
        assert_eq!(pace.size(&bounds(10.0, 100, Some(91_000_000))), 1);
        assert_eq!(pace.size(&bounds(10.0, 100, None)), 1);
    }

    #[test]
    fn sizes_follow_the_measured_pace_and_the_time_left() {
        let mut pace = Pace::new(60.0);
        pace.measure(10, 1_000_000);
        assert_eq!(pace.size(&bounds(1.0, 1000, None)), 10);
        assert_eq!(
            pace.size(&bounds(100.0, 1000, None)),
            80,
            "no more than 8 times the largest"
        );
        assert_eq!(pace.size(&bounds(100.0, 5, None)), 5);
        assert_eq!(pace.size(&bounds(100.0, 1000, Some(300_001))), 3);
    }

    /// Wall time of a chunk whose process takes 0.1 s to start and 0.5 ms per event.
    fn wall_us(count: u64) -> u64 {
        100_000 + 500 * count
    }

    #[test]
    fn chunks_grow_to_their_limit_although_a_process_takes_long_to_start() {
        let mut pace = Pace::new(0.0005);
        pace.measure(1, wall_us(1));
        let mut sizes = Vec::new();
        for _ in 0..4 {
            sizes.push(pace.size(&bounds(5.0, 500, None)));
            pace.measure(sizes[sizes.len() - 1], wall_us(sizes[sizes.len() - 1]));
            pace.measure(1, wall_us(1)); // the rest of a hand-out says nothing against large chunks
        }
        assert_eq!(sizes[3], 500, "{sizes:?}");
        assert!(
            sizes.windows(2).all(|two| two[1] <= 8 * two[0].max(1)),
            "{sizes:?}"
        );
    }

    #[test]
    fn the_start_of_a_process_is_part_of_what_is_expected() {
        let mut pace = Pace::new(0.0005);
        for count in [1, 8, 64, 500, 500, 500, 500] {
            pace.measure(count, wall_us(count));
        }
        for count in [1, 2, 10, 100, 300, 500] {
            let (expected, real) = (pace.expected_us(count), wall_us(count));
            assert!(
                expected * 100 >= real * 99 && expected <= 2 * real,
                "{count}: {expected} {real}"
            );
        }
        // 50 ms are too little for any process, at whatever pace it works then
        assert_eq!(pace.size(&bounds(5.0, 500, Some(50_000))), 0);
        let size = pace.size(&bounds(5.0, 500, Some(200_000)));
        assert!(size > 100 && wall_us(size) <= 202_000, "{size}");
    }

    proptest! {
        #[test]
        fn what_is_started_is_expected_to_end_in_time(event_s in 0.0001_f64..1000.0, range_s in 0.1_f64..1000.0, chunk_max in 1_u64..10_000, left_us in 0_u64..10_000_000_000) {
            let mut pace = Pace::new(1.0);
            pace.measure(1, (event_s * 1e6) as u64);
            let size = pace.size(&bounds(range_s, chunk_max, Some(left_us)));
            prop_assert!(size as f64 * pace.event_s() <= left_us as f64 / 1e6 * 1.000_001);
            prop_assert!(size <= chunk_max);
        }

        #[test]
        fn a_queue_gives_every_event_once(runs in prop::collection::vec((0_u64..3, 0_u64..20), 0..10), takes in prop::collection::vec((0_u64..3, 1_u64..7), 0..40)) {
            let mut queue = Queue::default();
            let mut all = Vec::new();
            for (ticket, &(job, count)) in runs.iter().enumerate() {
                let ticket = ticket as u64;
                queue.push(Run { ticket, job, next: 100 * ticket, end: 100 * ticket + count, chunk_max: None });
                all.extend((0..count).map(|event| (ticket, job, 100 * ticket + event)));
            }
            let mut taken: Vec<Events> = takes.iter().filter_map(|&(job, count)| queue.take(job, count)).collect();
            taken.extend(queue.take_all(None));
            prop_assert!(queue.is_empty());
            let mut given: Vec<_> = taken.iter().flat_map(|e| (e.first..e.end()).map(|event| (e.ticket, e.job, event))).collect();
            given.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!(given, all);
        }
    }
}
