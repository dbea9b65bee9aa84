//! What the ledger knows of allocations: which pilots are theirs, which of them get work, who takes whose place.

use super::{Ledger, PilotKey};

impl Ledger {
    /// Hand out nothing for the time being, or go on.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.changed = true;
    }

    /// Whether this pilot may get work.
    pub(crate) fn serves(&self, key: PilotKey) -> bool {
        let allocation = &self.pilots[key].allocation;
        !self.draining
            && !self.paused
            && !self.ended.contains(allocation)
            && !self.leaving.contains(allocation)
    }

    /// Every pilot of an allocation that is known.
    pub fn pilots_of(&self, allocation: &str) -> &[PilotKey] {
        self.of_allocation.get(allocation).map_or(&[], Vec::as_slice)
    }

    /// Returns the end of this pilot's allocation, and whether it must leave, as work files say.
    pub fn orders_for(&self, key: PilotKey) -> (Option<u64>, bool) {
        let allocation = &self.pilots[key].allocation;
        (
            self.ends.get(allocation).copied(),
            self.leaving.contains(allocation),
        )
    }

    /// Earlier starts of the same place (allocation and rank) that may still hold something.
    pub fn predecessors(&self, key: PilotKey) -> Vec<PilotKey> {
        let Some((rank, incarnation)) = start_of(&self.pilots[key].id) else {
            return Vec::new();
        };
        let earlier = |&&old: &&PilotKey| {
            let pilot = &self.pilots[old];
            let place = start_of(&pilot.id);
            place.is_some_and(|(its_rank, its)| its_rank == rank && its < incarnation)
                && (pilot.alive
                    || pilot.connected
                    || pilot.lost_at.is_some()
                    || !pilot.outstanding.is_empty())
        };
        let known = self.pilots_of(&self.pilots[key].allocation);
        known.iter().filter(earlier).copied().collect()
    }

    /// The pilot does not come back: what it has becomes free.
    pub fn give_up(&mut self, key: PilotKey) {
        self.pilots[key].alive = false;
        self.give_away(key);
    }

    /// Whether the batch system has ended this pilot's allocation.
    pub fn has_ended(&self, key: PilotKey) -> bool {
        self.ended.contains(&self.pilots[key].allocation)
    }
}

/// Rank and incarnation in a name made by `pilot_id`: `ALLOCATION.rRANK.iINCARNATION`.
fn start_of(id: &str) -> Option<(u64, u64)> {
    let mut parts = id.rsplitn(3, '.');
    let incarnation = parts.next()?.strip_prefix('i')?.parse().ok()?;
    let rank = parts.next()?.strip_prefix('r')?.parse().ok()?;
    Some((rank, incarnation))
}
