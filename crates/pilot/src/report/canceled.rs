//! What was canceled: jobs, and what is still here of an earlier life of a job that was granted again.

use std::collections::HashSet;

use tidemill_wire::Grant;

/// Nothing that belongs to it is recorded any more.
#[derive(Debug, Default)]
pub struct Canceled {
    jobs: HashSet<u64>,
    /// Of jobs that were canceled and granted again: the grants that were here before, as long as anything of them is.
    grants: HashSet<u64>,
}

impl Canceled {
    pub fn add(&mut self, jobs: &[u64]) {
        self.jobs.extend(jobs);
    }

    /// Jobs that were canceled come again with these grants, since their owner retries them. `held` says what is here.
    pub fn granted(&mut self, grants: &[Grant], held: impl FnOnce() -> Vec<Grant>) {
        let again: HashSet<u64> = grants
            .iter()
            .map(|grant| grant.job)
            .filter(|job| self.jobs.contains(job))
            .collect();
        if again.is_empty() {
            return;
        }
        let held = held();
        self.grants
            .retain(|grant| held.iter().any(|piece| piece.grant == *grant));
        let former = held.iter().filter(|piece| again.contains(&piece.job));
        self.grants.extend(former.map(|piece| piece.grant));
        for grant in grants {
            self.grants.remove(&grant.grant);
            self.jobs.remove(&grant.job);
        }
    }

    pub fn has(&self, piece: &Grant) -> bool {
        self.jobs.contains(&piece.job) || self.grants.contains(&piece.grant)
    }

    /// Whether its job was granted again meanwhile: its site has let go of this grant, and gives its events elsewhere.
    pub fn is_former(&self, piece: &Grant) -> bool {
        self.grants.contains(&piece.grant)
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
        canceled.add(&[5]);
        let (former, other, again) = (piece(1, 5), piece(2, 6), piece(3, 5));
        canceled.granted(std::slice::from_ref(&again), || {
            vec![former.clone(), other.clone()]
        });
        assert!(canceled.has(&former) && !canceled.has(&again) && !canceled.has(&other));
    }

    #[test]
    fn former_grants_are_forgotten_when_nothing_of_them_is_here_any_more() {
        let mut canceled = Canceled::default();
        for life in 0..100 {
            canceled.add(&[5]);
            canceled.granted(&[piece(life + 1, 5)], || vec![piece(life, 5)]);
        }
        assert_eq!(canceled.grants.len(), 1);
        canceled.granted(&[piece(200, 7)], || {
            panic!("nothing that was canceled comes again")
        });
    }
}
