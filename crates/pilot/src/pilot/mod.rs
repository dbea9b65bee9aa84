//! The pilot of one node: one thread, one poll loop over signals, the lead, the stage, images and slots.
//!
//! Holds the parts, sleeps until one of them has something to do, and steps them in order; slots' answers, the lead's
//! orders and the end are in files of their own. The parts do not know each other; this module connects them.

mod answers;
mod asking;
mod end;
mod orders;

use tidemill_slot::ToSlot;
use tidemill_sys::fd::{self, Poll};
use tidemill_sys::time::monotonic_us;
use tidemill_wire::log::cause;

use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::keep::Keeper;
use crate::life::{Change, Outlook, Phase, Reason};
use crate::monitor::Monitor;
use crate::node::signals::Notice;
use crate::permits::Permits;
use crate::setup::Setups;
use crate::supply::Supply;
use asking::Asking;

pub struct Pilot {
    cx: Context,
    supply: Supply,
    keep: Keeper,
    permits: Permits,
    monitor: Monitor,
    setups: Setups,
    asking: Asking,
}

/// Parts that a pilot is started with.
pub struct Parts {
    pub keep: Keeper,
    pub permits: Permits,
    pub monitor: Monitor,
}

impl Pilot {
    pub fn new(cx: Context, supply: Supply, parts: Parts) -> Self {
        Pilot {
            asking: Asking::new(&cx.settings),
            cx,
            supply,
            keep: parts.keep,
            permits: parts.permits,
            monitor: parts.monitor,
            setups: Setups::default(),
        }
    }

    /// Run until it is time to leave; the exit code.
    pub fn run(mut self) -> Result<i32, PilotError> {
        while !self.cx.life.is_over(self.is_answered(), monotonic_us()) {
            if let Err(error) = self.turn() {
                // what ran must not be lost with what broke
                let cause = cause(&error);
                LOG.error("pilot.broke", &[("cause", &cause)]);
                self.cx.life.break_off(cause, monotonic_us());
                break;
            }
        }
        self.end()
    }

    /// Whether nothing holds up a pilot that leaves: no slot has work, and no outputs are being copied. After an order
    /// to stop, outputs are copied last of all, so they do not count.
    fn is_answered(&self) -> bool {
        let waits =
            self.keep.is_copying(monotonic_us()) && matches!(self.cx.life.phase(), Phase::Draining(_));
        !self.cx.work.at_slots() && !waits
    }

    fn turn(&mut self) -> Result<(), PilotError> {
        self.wait()?;
        self.cx.now_us = monotonic_us();
        self.cx.slots.reap();
        if let Some(notice) = self.cx.signals.take() {
            self.obey(notice)?;
        }
        self.supply.step(&mut self.cx)?;
        self.hear_slots()?;
        self.hear_lead()?;
        let admitted = self.setups.look(self.cx.now_us);
        self.admit(admitted)?;
        self.live()?;
        self.keep.step(&mut self.cx)?;
        self.leave_bad_storage()?;
        self.bind()?;
        self.permits.charge(&self.cx, self.supply.take_reads());
        self.permits.step(&mut self.cx)?;
        self.take_back_lost()?;
        let idle = self.cx.work.is_waiting();
        self.cx.report.step(&mut self.cx.lead, idle, self.cx.now_us)?;
        self.monitor.step(&mut self.cx)?; // behind records
        self.asking.step(&mut self.cx, self.setups.is_pending())
    }

    /// Sleep until something happens or is due.
    fn wait(&mut self) -> Result<(), PilotError> {
        let mut polls = vec![Poll::new(self.cx.signals.fd(), fd::READABLE)];
        polls.extend(self.cx.lead.poll());
        polls.extend(self.cx.slots.polls());
        polls.extend(self.supply.polls());
        polls.extend(self.keep.poll());
        polls.extend(self.monitor.poll());
        polls.extend(self.cx.report.records.poll());
        let now_us = monotonic_us();
        let wait_us = self.due_us(now_us).unwrap_or(now_us).saturating_sub(now_us);
        fd::poll(&mut polls, Some(wait_us)).map_err(|error| PilotError::system("poll")(error.source))?;
        Ok(())
    }

    /// When the first part has something to do.
    fn due_us(&self, now_us: u64) -> Option<u64> {
        let parts = [
            self.cx.life.due_us(&self.outlook()),
            self.cx.lead.due_us(),
            self.cx.report.due_us(&self.cx.lead),
            self.supply.due_us(&self.cx),
            self.keep.due_us(now_us),
            self.permits.due_us(),
            self.monitor.due_us(now_us),
            self.setups.due_us(now_us),
            self.asking.due_us(&self.cx),
        ];
        parts.into_iter().flatten().min()
    }

    fn obey(&mut self, notice: Notice) -> Result<(), PilotError> {
        LOG.info("pilot.signalled", &[("notice", &format!("{notice:?}"))]);
        self.change(match notice {
            Notice::Yield => Change::Stop(Reason::Yield),
            Notice::Finish => Change::drain(Reason::Walltime, "walltime is near"),
        })
    }

    /// Enter the phase that follows: what has not started goes back, and slots hear what to do with the rest.
    fn change(&mut self, change: Change) -> Result<(), PilotError> {
        let message = match change {
            Change::Drain(..) => ToSlot::Finish,
            Change::Stop(_) => ToSlot::Stop,
        };
        if self.cx.life.enter(change, self.cx.now_us) {
            self.return_queue()?;
            self.cx.tell_all(&message);
        }
        Ok(())
    }

    fn return_queue(&mut self) -> Result<(), PilotError> {
        let reason = self.cx.life.returned().unwrap_or("drain");
        let waiting = self.setups.drop_waiting();
        for piece in self.cx.work.drain_queue().into_iter().chain(waiting) {
            self.cx.give_back(&piece, reason)?;
        }
        Ok(())
    }

    /// Make the changes of phase that are due.
    fn live(&mut self) -> Result<(), PilotError> {
        let outlook = self.outlook();
        if self.cx.life.see(&outlook, self.cx.now_us) {
            let actions = self.cx.work.forget(true);
            self.supply.act(&mut self.cx, actions)?;
        }
        while let Some(change) = self.cx.life.next(&outlook, self.cx.now_us) {
            self.change(change)?;
        }
        Ok(())
    }

    fn outlook(&self) -> Outlook {
        let (lead, settings) = (&self.cx.lead, &self.cx.settings);
        Outlook {
            busy: self.cx.work.work_left() || self.keep.is_busy() || self.setups.is_pending(),
            waiting: self.cx.work.is_waiting(),
            alone: !lead.has_lead() && !lead.is_files(),
            agent_is_dead: lead.agent_is_dead(),
            lead_dies_us: lead.dies_us(settings.dead_after_s),
            patience_us: lead.patience_us(settings),
        }
    }

    /// Bring work to slots.
    fn bind(&mut self) -> Result<(), PilotError> {
        self.take_back_lost()?; // a slot that died in this turn gets no work
        let cx = &mut self.cx;
        if !cx.life.is_working() || cx.report.is_full() || cx.lead.is_behind(cx.now_us) {
            return Ok(());
        }
        cx.work.hold_outputs = self.keep.holds();
        cx.work.keeping = self.keep.slots();
        cx.work.short = self.asking.is_unanswered(cx.now_us) || !cx.lead.has_lead();
        let actions = cx.work.decide(cx.now_us);
        if !actions.is_empty() {
            self.supply.act(cx, actions)?;
            let actions = cx.work.forget(false);
            self.supply.act(cx, actions)?;
        }
        Ok(())
    }

    /// Leave a node whose storage has been in trouble for too long.
    fn leave_bad_storage(&mut self) -> Result<(), PilotError> {
        let (cx, now_us) = (&self.cx, self.cx.now_us);
        if !cx.life.is_working() {
            return Ok(());
        }
        let records = || cx.report.hopeless(&cx.lead, now_us);
        if let Some(why) = self.keep.hopeless(now_us).or_else(records) {
            self.change(Change::Drain(Reason::Error, why))?;
        }
        Ok(())
    }

    /// Take back the work of slots that were lost, those included that a drain finds dead; leave a node that is not fit for
    /// work.
    fn take_back_lost(&mut self) -> Result<(), PilotError> {
        while let Some(unfit) = self.cx.take_back_lost()? {
            self.change(Change::Drain(Reason::Error, unfit))?;
        }
        Ok(())
    }
}
