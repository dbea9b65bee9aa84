//! Files that the stage brings for jobs and images: noted, and read by each slot where they cannot be held.

use std::collections::BTreeSet;

use tidemill_stage::{FailureKind, Order, Report};
use tidemill_wire::{ImageUse, InputDef, Piece, StagedFile};

use super::Supply;
use crate::context::Context;
use crate::error::PilotError;
use crate::report::Note;
use crate::stage::stager::{Came, Step, User};

/// Smaller inputs are read by each slot: asking for them costs as much as reading them.
const STAGED_BYTES_MIN: u64 = 1 << 20;

impl Supply {
    /// Have the large shared inputs of these jobs brought; their work waits.
    pub fn bring_inputs(&mut self, cx: &mut Context, jobs: &BTreeSet<u64>) -> Result<(), PilotError> {
        if cx.settings.scratch.is_some() || !cx.life.is_working() {
            return Ok(()); // payloads that span nodes read what all of these see; who leaves starts nothing
        }
        self.start_cache(cx, jobs)?;
        for &job in jobs {
            let inputs = cx.work.job(job).map(|def| def.inputs.clone());
            for file in inputs.into_iter().flatten().filter_map(|input| staged(&input)) {
                if !self.has_stage(cx)? {
                    return Ok(());
                }
                let settings = &cx.settings;
                let fast = settings.fast_dir.is_some() && file.bytes >= settings.fast_bytes;
                if !self.has_room(cx, job, (&file, fast))? {
                    continue;
                }
                let steps = self.stage.stager.want(&file, fast, User::Job(job), cx.now_us);
                self.act_stage(cx, steps)?;
            }
        }
        self.release_over(cx)?;
        self.hold_jobs(cx);
        Ok(())
    }

    /// Let go of what only jobs that are over here wanted: nothing else bounds what the fast tier holds.
    fn release_over(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let over = |sha256: &str, user: &User| match user {
            User::Job(job) => cx.work.job(*job).is_none() && !cx.work.names_input(sha256),
            User::Image { .. } => false,
        };
        let steps = self.stage.stager.release(&over);
        self.act_stage(cx, steps)
    }

    /// Room for an input, counted once; where there is none, slots read it by themselves, and that is noted.
    fn has_room(
        &mut self,
        cx: &mut Context,
        job: u64,
        (file, fast): (&StagedFile, bool),
    ) -> Result<bool, PilotError> {
        let memory_mb = if fast { 0 } else { file.bytes.div_ceil(1 << 20) };
        let mut actions = Vec::new();
        let holds = cx.work.hold_input(job, &file.sha256, memory_mb, &mut actions);
        self.act(cx, actions)?;
        if !holds {
            let message = format!(
                "file {}: each slot reads it by itself: it takes {memory_mb} MB, and beside the slots of its job there is \
                 no room for it in the {} MB that this node may hold",
                short(&file.sha256),
                cx.work.store_mb()
            );
            cx.note_once(Note::new("stage", "direct", message))?;
        }
        Ok(holds)
    }

    /// A file that no work here uses has to make room.
    pub(super) fn drop_input(&mut self, cx: &mut Context, sha256: &str) -> Result<(), PilotError> {
        let its = |name: &str, user: &User| name == sha256 && matches!(user, User::Job(_));
        let steps = self.stage.stager.release(&its);
        self.act_stage(cx, steps)?;
        self.hold_jobs(cx); // the file may still be in transfer
        Ok(())
    }

    /// Unused files make room for a file that found none; true if that is fetched again.
    fn made_room(&mut self, cx: &mut Context, report: &Report) -> Result<bool, PilotError> {
        let Report::Failed {
            sha256,
            kind: FailureKind::Full,
            ..
        } = report
        else {
            return Ok(false);
        };
        let mut actions = Vec::new();
        if !cx.work.drop_beside(sha256, &mut actions) {
            return Ok(false);
        }
        self.act(cx, actions)?;
        let steps = self.stage.stager.again(sha256, cx.now_us);
        self.act_stage(cx, steps)?;
        Ok(true)
    }

    /// Have an image's file brought: true while it is on its way, `bring_image` follows; false when it is here, or the
    /// image is to read it itself.
    pub(super) fn seek_image(
        &mut self,
        cx: &mut Context,
        image: &ImageUse,
        limit_mb: u64,
        by_files: bool,
    ) -> Result<bool, PilotError> {
        if self.stage.stager.is_settled(&image.file.sha256) || !self.has_stage(cx)? {
            return Ok(false);
        }
        let user = User::Image { limit_mb, by_files };
        let steps = self.stage.stager.want(&image.file, false, user, cx.now_us);
        self.act_stage(cx, steps)?;
        Ok(true)
    }

    /// The image is shown no more, and its file is gone with it.
    pub(super) fn forget_image_file(&mut self, cx: &mut Context, sha256: &str) -> Result<(), PilotError> {
        let its = |name: &str, user: &User| name == sha256 && matches!(user, User::Image { .. });
        let steps = self.stage.stager.release(&its);
        self.act_stage(cx, steps)
    }

    /// A lead that knows nothing of us is there.
    pub fn connected(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let steps = self.stage.stager.connected(cx.now_us);
        self.act_stage(cx, steps)
    }

    /// The answer to a Seek.
    pub fn sourced(&mut self, cx: &mut Context, source: tidemill_wire::Source) -> Result<(), PilotError> {
        let steps = self.stage.stager.told(source);
        self.act_stage(cx, steps)
    }

    /// Read what the stage reports; do what is due.
    pub(super) fn hear_stage(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        if self.stage.starts(false, cx.now_us) {
            self.stage.sweep();
            self.start_stage(cx)?;
        }
        match self.stage.hear() {
            None => return Ok(()),
            Some(Ok(reports)) => {
                for report in reports {
                    if !self.made_room(cx, &report)? {
                        let steps = self.stage.stager.heard(report, cx.now_us);
                        self.act_stage(cx, steps)?;
                    }
                }
            }
            Some(Err(cause)) => {
                let (message, steps) = self.stage.lose(&cause, cx.now_us);
                let mode = if self.stage.is_refused() {
                    "direct"
                } else {
                    "again"
                };
                cx.note(Note::new("stage", mode, message))?;
                self.act_stage(cx, steps)?;
            }
        }
        if let Some(link) = cx.lead.link() {
            link.serves.clone_from(&self.stage.stager.serves);
        }
        let steps = self.stage.stager.tick(cx.lead.answers(), cx.now_us);
        self.act_stage(cx, steps)
    }

    /// Whether there is a stage, or will be soon: started where it was not; what cannot be is noted once.
    fn has_stage(&mut self, cx: &mut Context) -> Result<bool, PilotError> {
        if self.stage.starts(true, cx.now_us) {
            self.start_stage(cx)?;
        }
        Ok(!self.stage.is_refused())
    }

    fn start_stage(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let order = self.first_order(cx);
        let Err(cause) = order.and_then(|order| self.stage.start(&order, cx.now_us)) else {
            return Ok(());
        };
        let message = format!("slots read inputs by themselves: {cause}");
        cx.note(Note::new("stage", "direct", message))?;
        let steps = self.stage.refuse(&cause);
        self.act_stage(cx, steps)
    }

    fn first_order(&mut self, cx: &Context) -> Result<Order, String> {
        let store_mb = cx.work.store_mb();
        let home = self.images.enter(store_mb)?.join("files");
        let settings = &cx.settings;
        let fast = self.stage.hold_in(home.clone(), settings.fast_dir.as_deref());
        let (name, secret, host) = match cx.lead.as_peer() {
            Some((pilot, secret, address)) => {
                let host = address.filter(|_| settings.peers);
                (pilot, secret, host.map(|address| address.to_string()))
            }
            None => ("", "", None),
        };
        Ok(Order::Start {
            secret: secret.to_owned(),
            name: name.to_owned(),
            directory: home.display().to_string(),
            bytes_max: store_mb << 20,
            fast: fast.map(|path| path.display().to_string()),
            host,
        })
    }

    fn act_stage(&mut self, cx: &mut Context, steps: Vec<Step>) -> Result<(), PilotError> {
        if steps.is_empty() {
            return Ok(());
        }
        for step in steps {
            match step {
                Step::Tell(message) => cx.send(&message)?,
                Step::Order(order) => self.order(cx, order),
                Step::Ready { sha256, users, came } => {
                    note_ready(cx, &sha256, &came)?;
                    self.bring_for(cx, &sha256, users)?;
                }
                Step::Direct {
                    sha256,
                    users,
                    message,
                } => {
                    cx.work.release_input(&sha256);
                    if !message.is_empty() {
                        let told =
                            format!("file {}: each slot reads it by itself: {message}", short(&sha256));
                        cx.note(Note::new("stage", "direct", told))?;
                    }
                    self.bring_for(cx, &sha256, users)?;
                }
                Step::Failed {
                    sha256,
                    users,
                    message,
                } => self.fail_staged(cx, &sha256, users, &message)?,
            }
        }
        self.hold_jobs(cx);
        Ok(())
    }

    fn hold_jobs(&mut self, cx: &mut Context) {
        cx.work.hold_jobs = self.stage.stager.waiting().collect();
    }

    /// Images whose file is here, or is to be read by themselves, are shown next.
    fn bring_for(&mut self, cx: &mut Context, sha256: &str, users: Vec<User>) -> Result<(), PilotError> {
        for user in users {
            if let User::Image { limit_mb, by_files } = user {
                self.bring_image(cx, sha256, limit_mb, by_files)?;
            }
        }
        Ok(())
    }

    fn fail_staged(
        &mut self,
        cx: &mut Context,
        sha256: &str,
        users: Vec<User>,
        message: &str,
    ) -> Result<(), PilotError> {
        let told = format!("failed to bring file {} to this node: {message}", short(sha256));
        cx.note(Note::new("stage", "failed", told.clone()))?;
        for user in users {
            let User::Job(job) = user else {
                let name = cx.work.image(sha256).map(|image| image.name.clone());
                let told = format!("image `{}`: {told}", name.unwrap_or_default());
                self.fail_image(cx, sha256, &told)?;
                continue;
            };
            let name = cx.work.job(job).and_then(|def| {
                let named = |input: &&InputDef| input.sha256.as_deref() == Some(sha256);
                def.inputs.iter().find(named).map(|input| input.name.clone())
            });
            let told = format!("input `{}`: {told}", name.unwrap_or_default());
            for piece in cx.work.take_queued(job) {
                if !cx.report.canceled.has(&piece) {
                    cx.fail(&piece, 0, ("stage_in", &told))?;
                }
            }
        }
        Ok(())
    }
}

fn note_ready(cx: &mut Context, sha256: &str, came: &Came) -> Result<(), PilotError> {
    if came.bytes == 0 {
        return Ok(()); // it was here
    }
    let (mode, from) = if came.from.is_empty() {
        ("shared", String::from("the shared file system"))
    } else {
        ("peer", came.from.join(", "))
    };
    let note = Note::new("stage", mode, format!("file {} from {from}", short(sha256)))
        .number("bytes", came.bytes)
        .number("ms", came.ms)
        .number("shared_bytes", came.shared_bytes);
    cx.note(note)
}

/// A shared input that is worth being brought once for all slots.
fn staged(input: &InputDef) -> Option<StagedFile> {
    let (path, sha256, bytes) = (input.path.as_ref()?, input.sha256.as_ref()?, input.bytes?);
    (input.kind == "shared" && bytes >= STAGED_BYTES_MIN).then(|| StagedFile {
        sha256: sha256.clone(),
        bytes,
        pieces: vec![Piece {
            path: path.clone(),
            offset: 0,
            length: bytes,
        }],
    })
}

fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_shared_files_with_a_digest_are_staged() {
        let input = InputDef {
            name: "a".into(),
            kind: "shared".into(),
            path: Some("/x".into()),
            sha256: Some("ab".into()),
            bytes: Some(STAGED_BYTES_MIN),
            ..InputDef::default()
        };
        assert_eq!(staged(&input).unwrap().pieces[0].path, "/x");
        for changed in [
            InputDef {
                bytes: Some(STAGED_BYTES_MIN - 1),
                ..input.clone()
            },
            InputDef {
                sha256: None,
                ..input.clone()
            },
            InputDef {
                kind: "each".into(),
                ..input.clone()
            },
        ] {
            assert!(staged(&changed).is_none());
        }
    }
}
