//! The lead and the I/O budget: who wants to start something hears when it may; what nodes counted corrects the forecast.

use tidemill_wire::{IoArea, LeadMessage, Permit, Usage, Want};

use crate::ledger::{Ledger, PilotKey};
use crate::server::Lead;
use tidemill_budget::{Budget, Costs, Over};

/// What starts may cost shared file systems.
#[derive(Default)]
pub(crate) struct Pacing {
    pub budget: Budget,
    /// when the next start can be permitted, as far as time alone decides
    pub due: Option<u64>,
    was_over: bool,
}

fn costs_of<'a>(ledger: &'a Ledger) -> impl Fn(u64) -> Option<Costs<'a>> {
    |program| Some(Costs::of(&ledger.programs.get(&program)?.program))
}

impl Lead {
    pub(crate) fn set_budget(&mut self, areas: &[IoArea], now: u64) {
        self.pacing.budget.set(areas, now);
        let told: Vec<String> = areas
            .iter()
            .map(|area| {
                let rate = |rate: Option<f64>| rate.unwrap_or(f64::INFINITY);
                format!(
                    "{} {:.0}/s {:.0} B/s",
                    area.name,
                    rate(area.ops_per_s),
                    rate(area.bytes_per_s)
                )
            })
            .collect();
        self.log.info("io.share", &[("areas", &told)]);
    }

    pub(crate) fn want(&mut self, key: PilotKey, want: &Want) {
        self.pacing.budget.want(key, want.program, want.starts);
    }

    pub(crate) fn usage(&mut self, key: PilotKey, usage: &Usage, now: u64) {
        self.pacing
            .budget
            .observe(usage, costs_of(&self.ledger), key, now);
        let over = self.pacing.budget.over(now);
        let is_over = !over.is_empty();
        if is_over && !self.pacing.was_over {
            self.log
                .warning("io.over_budget", &[("thousandths", &format!("{over:?}"))]);
        }
        self.pacing.was_over = is_over;
    }

    /// Permits the starts that are due. Nothing starts while all pilots are to leave.
    pub(crate) fn permit(&mut self, now: u64) {
        self.pacing.due = None;
        let leaving = self.ledger.is_draining() || self.abandoned || self.stopped;
        if self.pacing.budget.is_idle() || leaving {
            return;
        }
        let (granted, due) = self.pacing.budget.grant(costs_of(&self.ledger), now);
        self.pacing.due = due;
        let over = if granted.is_empty() {
            Over::default()
        } else {
            self.pacing.budget.over(now)
        };
        for each in granted {
            let message = LeadMessage::Permit(Permit {
                program: each.program,
                starts: each.starts,
                over: over.ops.clone(),
                over_bytes: over.bytes.clone(),
            });
            let slot = self.connection_of.get(each.waiter).copied().flatten();
            if let Some(connection) = slot.and_then(|slot| self.connections[slot].as_mut()) {
                connection.send(&message, now, self.log);
            }
        }
    }
}
