//! Asks the lead for work, and shows it that this pilot lives.

use std::collections::BTreeMap;

use tidemill_wire::{log, Ask, Beat, PilotMessage, Settings};

use crate::context::Context;
use crate::error::PilotError;
use crate::time::seconds_us;

/// Shortest time between two Asks without an answer.
const AGAIN_US: u64 = 100_000;
/// Time within which a lead that has work answers an Ask.
const ANSWER_US: u64 = 50_000;

pub struct Asking {
    /// Seconds of work that we said we have, and when.
    asked: Option<(f64, u64)>,
    /// Longest silence before a heartbeat is due.
    beat_us: u64,
}

impl Asking {
    pub fn new(settings: &Settings) -> Self {
        Asking {
            asked: None,
            beat_us: seconds_us((settings.dead_after_s / 3.0).min(10.0)),
        }
    }

    /// The Ask was answered, or is not true any more.
    pub fn again(&mut self) {
        self.asked = None;
    }

    pub fn is_unanswered(&self, now_us: u64) -> bool {
        self.asked.is_some_and(|(_, at_us)| now_us >= at_us + ANSWER_US)
    }

    pub fn due_us(&self, cx: &Context) -> Option<u64> {
        cx.lead.sent_us().map(|sent_us| sent_us + self.beat_us)
    }

    /// Ask for what we could take, say that we live, send what is queued; `full`: nothing more can be taken.
    pub fn step(&mut self, cx: &mut Context, full: bool) -> Result<(), PilotError> {
        if !full {
            self.ask(cx)?;
        }
        if self.due_us(cx).is_some_and(|due_us| cx.now_us >= due_us) {
            let at_us = log::now_us();
            cx.send(&PilotMessage::Beat(Beat { at_us }))?;
        }
        cx.lead.flush(cx.now_us);
        Ok(())
    }

    fn ask(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let able = cx.life.is_working() && cx.lead.has_lead();
        if !able || cx.report.catching_up || cx.report.is_full() {
            return Ok(());
        }
        let queued_s = cx.work.queued_s();
        let wanted = match self.asked {
            // one long event fills the queue by its seconds, but one core only
            None => {
                queued_s <= (cx.settings.queue_s / 2.0).max(cx.work.payload_s()) || cx.work.has_idle_core()
            }
            // the lead works with what we said last: say it again when it is far from the truth
            Some((told_s, at_us)) => queued_s < told_s / 2.0 && cx.now_us >= at_us + AGAIN_US,
        };
        if !wanted {
            return Ok(());
        }
        self.asked = Some((queued_s, cx.now_us));
        let (cores, memory_mb, devices) = cx.work.room().whole();
        let counts = devices.iter().map(|(kind, &count)| (kind.clone(), count as i64));
        let left_s = |at_us: u64| at_us.saturating_sub(cx.now_us) as f64 / 1e6;
        let ask = Ask {
            cores: *cores,
            memory_mb: *memory_mb,
            devices: BTreeMap::from_iter(counts),
            remaining_s: cx.life.deadline_us().map(left_s),
            queued_s,
            idle_cores: Some(cx.work.idle_cores()),
        };
        cx.send(&PilotMessage::Ask(ask))
    }
}
