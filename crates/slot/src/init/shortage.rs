//! What payloads may leave in the scratch, and what is said where that was too much.

use tidemill_sys::time;

use super::payload::{Payload, Verdict};
use super::scratch::files_max;
use super::Init;

/// Looking what the scratch takes costs a twentieth of the time at most.
const SCRATCH_COST: u64 = 20;

impl Init {
    /// What is to be said where the scratch had no room.
    pub(super) fn shortage(&self) -> String {
        match &self.spec.directory {
            None => self.scratch.shortage(self.spec.scratch_mb),
            Some(directory) => format!("payloads that span nodes write to `{}`", directory.display()),
        }
    }

    /// Where no kernel bounds the scratch, what it takes is looked at; else only whether it is nearly full.
    pub(super) fn judge_scratch(&self, payload: &mut Payload, now_us: u64) -> Option<Verdict> {
        let cap_mb = self.spec.scratch_mb;
        if self.scratch.place.in_memory {
            payload.was_short |= self.scratch.used_mb() * 10 >= cap_mb * 9;
            return None;
        }
        if self.spec.directory.is_some() || now_us < payload.next_scratch_us {
            return None;
        }
        let began_us = time::monotonic_us();
        let (used_mb, too_many) = self.scratch.counted(cap_mb);
        let cost_us = time::monotonic_us().saturating_sub(began_us);
        payload.next_scratch_us = now_us + SCRATCH_COST * cost_us;
        // removed files that are still open are in no directory
        let used_mb = used_mb + (payload.held.removed_bytes() >> 20);
        let what = if used_mb > cap_mb {
            "too much in the scratch".to_owned()
        } else if too_many {
            format!(
                "more than {} files in the scratch, or nested too deep",
                files_max(cap_mb)
            )
        } else {
            return None;
        };
        Some(Verdict {
            failure: "disk",
            message: format!("{what}: {}", self.shortage()),
        })
    }
}
