//! What was canceled: jobs, and what is still here of an earlier life of a job that was granted again.

use std::collections::{HashMap, HashSet};

use tidemill_wire::Grant;

/// Nothing that belongs to it is recorded any more. Each with the time at which its cancellation was heard of first: a lead
/// repeats it on every connection.
#[derive(Debug, Default)]
pub struct Canceled {
    jobs: HashMap<u64, u64>,
    /// Of jobs that were canceled and granted again: the grants that were here before, as long as anything of them is.
    grants: HashMap<u64, u64>,
    last_us: Option<u64>,
}

impl Canceled {
    pub fn add(&mut self, jobs: &[u64], now_us: u64) {
        for &job in jobs {
            self.jobs.entry(job).or_insert_with(|| {
                self.last_us = Some(now_us);
                now_us
            });
        }
    }

    /// Whether a job was canceled in the last `duration_us`.
    pub fn is_recent(&self, duration_us: u64, now_us: u64) -> bool {
        self.last_us.is_some_and(|at_us| now_us < at_us + duration_us)
    }

    /// Whether it was canceled more than `duration_us` ago.
    pub fn has_for(&self, piece: &Grant, duration_us: u64, now_us: u64) -> bool {
        let at_us = self
            .jobs
            .get(&piece.job)
            .or_else(|| self.grants.get(&piece.grant));
        at_us.is_some_and(|at_us| now_us > at_us + duration_us)
    }

    /// Jobs that were canceled come again with these grants, since their owner retries them. `held` says what is here.
    pub fn granted(&mut self, grants: &[Grant], held: impl FnOnce() -> Vec<Grant>) {
        let again: HashSet<u64> = grants
            .iter()
            .map(|grant| grant.job)
            .filter(|job| self.jobs.contains_key(job))
            .collect();
        if again.is_empty() {
            return;
        }
        let held = held();
        self.grants
            .retain(|grant, _| held.iter().any(|piece| piece.grant == *grant));
        for piece in held.iter().filter(|piece| again.contains(&piece.job)) {
            let at_us = self.jobs[&piece.job];
            self.grants.entry(piece.grant).or_insert(at_us);
        }
        for grant in grants {
            self.grants.remove(&grant.grant);
            self.jobs.remove(&grant.job);
        }
    }

    pub fn has(&self, piece: &Grant) -> bool {
        self.jobs.contains_key(&piece.job) || self.is_former(piece)
    }

    /// Whether its job was granted again meanwhile: its site has let go of this grant, and gives its events elsewhere.
    pub fn is_former(&self, piece: &Grant) -> bool {
        self.grants.contains_key(&piece.grant)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.grants.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(grant: u64, job: u64) -> Grant {
        Grant {
            grant,
            job,
            first: 0,
            count: 1,
            chunk_max: None,
        }
    }

    #[test]
    fn what_a_slot_still_has_of_a_canceled_job_stays_canceled_when_the_job_is_granted_again() {
        let mut canceled = Canceled::default();
        canceled.add(&[5], 0);
        let (former, other, again) = (piece(1, 5), piece(2, 6), piece(3, 5));
        canceled.granted(std::slice::from_ref(&again), || {
            vec![former.clone(), other.clone()]
        });
        assert!(canceled.has(&former) && !canceled.has(&again) && !canceled.has(&other));
    }

    #[test]
    fn a_cancellation_that_is_repeated_or_followed_by_others_begins_no_new_grace() {
        let mut canceled = Canceled::default();
        canceled.add(&[5], 100);
        let (first, second) = (piece(1, 5), piece(2, 6));
        assert!(canceled.is_recent(10, 109) && !canceled.is_recent(10, 110));
        canceled.add(&[5], 115); // a new connection
        assert!(!canceled.is_recent(10, 115));
        canceled.add(&[5, 6], 118);
        assert!(canceled.is_recent(10, 118));
        assert!(canceled.has_for(&first, 20, 121) && !canceled.has_for(&second, 20, 121));
        canceled.granted(&[piece(3, 5)], || vec![first.clone()]);
        assert!(canceled.has_for(&first, 20, 121));
        canceled.add(&[5], 130); // granted again since: another cancellation
        assert!(!canceled.has_for(&piece(3, 5), 20, 140) && canceled.has_for(&piece(3, 5), 20, 151));
    }

    #[test]
    fn former_grants_are_forgotten_when_nothing_of_them_is_here_any_more() {
        let mut canceled = Canceled::default();
        for life in 0..100 {
            canceled.add(&[5], 0);
            canceled.granted(&[piece(life + 1, 5)], || vec![piece(life, 5)]);
        }
        assert_eq!(canceled.grants.len(), 1);
        canceled.granted(&[piece(200, 7)], || {
            panic!("nothing that was canceled comes again")
        });
    }
}
