//! What the pilot does about files: has them brought by the stage, lets work wait for them, tells how they came.

pub mod life;
mod process;
pub mod stager;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tidemill_stage::{FailureKind, Order, Report};
use tidemill_sys::own::OwnDirectory;
use tidemill_wire::{ImageUse, InputDef, IoArea, Piece, StagedFile};

use crate::error::PilotError;
use crate::leaving::Phase;
use crate::pilot::Pilot;
use crate::slots::TOLD_MAX;
use crate::stage::life::Stage;
use crate::stage::stager::{Came, Stager, Step, User};

/// Smaller inputs are read by each slot: asking for them costs as much as reading them.
pub const STAGED_BYTES_MIN: u64 = 1 << 20;

/// Files that come to this node.
#[derive(Default)]
pub struct Staging {
    pub stager: Stager,
    pub stage: Stage,
    /// Stages that died in a row.
    pub failures: usize,
    /// Where files are held: in memory, and in the fast tier where there is one.
    pub directories: Vec<PathBuf>,
    /// The one in the fast tier.
    pub fast: Option<OwnDirectory>,
    /// Slots that were made before there were such directories: they do not see them, and read the originals.
    pub blind: BTreeSet<u32>,
}

impl Staging {
    pub fn new(asks: bool, areas: &[IoArea]) -> Self {
        Staging {
            stager: Stager::new(asks, areas),
            ..Staging::default()
        }
    }
}

impl Pilot {
    /// Have the large shared inputs of these jobs brought; their work waits.
    pub(crate) fn stage_inputs(&mut self, jobs: &BTreeSet<u64>, now_us: u64) -> Result<(), PilotError> {
        if self.post.settings().scratch.is_some() || !matches!(self.phase, Phase::Working) {
            return Ok(()); // payloads that span nodes read what all of these see; who leaves starts nothing
        }
        for &job in jobs {
            let inputs = self.binding.job(job).map(|def| def.inputs.clone());
            for file in inputs.into_iter().flatten().filter_map(|input| staged(&input)) {
                if !self.has_stage(now_us)? {
                    return Ok(());
                }
                let settings = self.post.settings();
                let fast = settings.fast_dir.is_some() && file.bytes >= settings.fast_bytes;
                if !self.has_room(job, (&file, fast), now_us)? {
                    continue;
                }
                let steps = self.staging.stager.want(&file, fast, User::Job(job), now_us);
                self.act_stage(steps, now_us)?;
            }
        }
        self.release_over(now_us)?;
        self.hold_jobs();
        Ok(())
    }

    /// Let go of what only jobs that are over here wanted: nothing else bounds what the fast tier holds.
    fn release_over(&mut self, now_us: u64) -> Result<(), PilotError> {
        let binding = &self.binding;
        let over = |sha256: &str, user: &User| match user {
            User::Job(job) => binding.job(*job).is_none() && !binding.names_input(sha256),
            User::Image { .. } => false,
        };
        let steps = self.staging.stager.release(&over);
        self.act_stage(steps, now_us)
    }

    /// Room for an input, counted once; where there is none, slots read it by themselves, and that is told.
    fn has_room(
        &mut self,
        job: u64,
        (file, fast): (&StagedFile, bool),
        now_us: u64,
    ) -> Result<bool, PilotError> {
        let memory_mb = if fast { 0 } else { file.bytes.div_ceil(1 << 20) };
        let mut actions = Vec::new();
        let holds = self
            .binding
            .hold_input(job, (&file.sha256, memory_mb), &mut actions);
        self.act(actions, now_us)?;
        if !holds {
            let message = format!(
                "file {}: each slot reads it by itself: it takes {memory_mb} MB, and beside the slots of its job there is \
                 no room for it in the {} MB that this node may hold",
                short(&file.sha256),
                self.binding.store_mb()
            );
            if self.told.len() < TOLD_MAX && self.told.insert(message.clone()) {
                self.note(("stage", "direct", message), None, BTreeMap::new(), now_us)?;
            }
        }
        Ok(holds)
    }

    /// A file that no work here uses has to make room.
    pub(crate) fn drop_input(&mut self, sha256: &str, now_us: u64) -> Result<(), PilotError> {
        let its = |name: &str, user: &User| name == sha256 && matches!(user, User::Job(_));
        let steps = self.staging.stager.release(&its);
        self.act_stage(steps, now_us)?;
        self.hold_jobs(); // it may still be on its way
        Ok(())
    }

    /// Files that nobody uses make room for one that found none: true when it is fetched anew.
    fn made_room(&mut self, report: &Report, now_us: u64) -> Result<bool, PilotError> {
        let Report::Failed {
            sha256,
            kind: FailureKind::Full,
            ..
        } = report
        else {
            return Ok(false);
        };
        let mut actions = Vec::new();
        if !self.binding.drop_beside(sha256, &mut actions) {
            return Ok(false);
        }
        self.act(actions, now_us)?;
        let steps = self.staging.stager.again(sha256, now_us);
        self.act_stage(steps, now_us)?;
        Ok(true)
    }

    /// Have an image's file brought: true while it is on its way, `bring_image` follows; false when it is here, or the
    /// image is to read it itself.
    pub(crate) fn seek_image(
        &mut self,
        image: &ImageUse,
        (limit_mb, by_files): (u64, bool),
        now_us: u64,
    ) -> Result<bool, PilotError> {
        if self.staging.stager.is_settled(&image.file.sha256) || !self.has_stage(now_us)? {
            return Ok(false);
        }
        let user = User::Image { limit_mb, by_files };
        let steps = self.staging.stager.want(&image.file, false, user, now_us);
        self.act_stage(steps, now_us)?;
        Ok(true)
    }

    /// The image is shown no more, and its file is gone with it.
    pub(crate) fn forget_image_file(&mut self, sha256: &str, now_us: u64) -> Result<(), PilotError> {
        let its = |name: &str, user: &User| name == sha256 && matches!(user, User::Image { .. });
        let steps = self.staging.stager.release(&its);
        self.act_stage(steps, now_us)
    }

    pub(crate) fn drop_image(&mut self, sha256: &str, now_us: u64) -> Result<(), PilotError> {
        self.node.drop_image(sha256);
        self.forget_image_file(sha256, now_us)
    }

    /// Read what the stage tells; do what is due.
    pub(crate) fn hear_stage(&mut self, now_us: u64) -> Result<(), PilotError> {
        self.revive_stage(now_us)?;
        let Some(stage) = self.staging.stage.process() else {
            return Ok(());
        };
        match stage.hear() {
            Ok(reports) => {
                for report in reports {
                    if self.made_room(&report, now_us)? {
                        continue;
                    }
                    let steps = self.staging.stager.heard(report, now_us);
                    self.act_stage(steps, now_us)?;
                }
            }
            Err(cause) => self.lose_stage(&cause, now_us)?,
        }
        if let Some(link) = self.source.link() {
            link.serves.clone_from(&self.staging.stager.serves);
        }
        let steps = self.staging.stager.tick(self.source.answers(), now_us);
        self.act_stage(steps, now_us)
    }

    pub(crate) fn act_stage(&mut self, steps: Vec<Step>, now_us: u64) -> Result<(), PilotError> {
        if steps.is_empty() {
            return Ok(());
        }
        for step in steps {
            match step {
                Step::Tell(message) => self.source.send(&message, now_us)?,
                Step::Order(order) => {
                    if let Order::Drop { sha256 } = &order {
                        self.binding.release_input(sha256);
                    }
                    self.charge_own(&order, now_us);
                    self.staging.order(&order);
                }
                Step::Ready { sha256, users, came } => {
                    self.tell_ready(&sha256, &came, now_us)?;
                    self.bring_for(&sha256, users, now_us)?;
                }
                Step::Direct {
                    sha256,
                    users,
                    message,
                } => {
                    let told = format!("file {}: each slot reads it by itself: {message}", short(&sha256));
                    self.binding.release_input(&sha256);
                    if !message.is_empty() {
                        self.note(("stage", "direct", told), None, BTreeMap::new(), now_us)?;
                    }
                    self.bring_for(&sha256, users, now_us)?;
                }
                Step::Failed {
                    sha256,
                    users,
                    message,
                } => self.fail_staged(&sha256, (users, &message), now_us)?,
            }
        }
        self.hold_jobs();
        Ok(())
    }

    fn hold_jobs(&mut self) {
        self.binding.hold_jobs = self.staging.stager.waiting().collect();
    }

    fn tell_ready(&mut self, sha256: &str, came: &Came, now_us: u64) -> Result<(), PilotError> {
        if came.bytes > 0 {
            let mode = if came.from.is_empty() { "shared" } else { "peer" };
            let from = if came.from.is_empty() {
                String::from("the shared file system")
            } else {
                came.from.join(", ")
            };
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            let numbers = [
                ("bytes", number(came.bytes)),
                ("ms", number(came.ms)),
                ("shared_bytes", number(came.shared_bytes)),
            ];
            let numbers = numbers.map(|(key, value)| (key.to_owned(), value)).into();
            let message = format!("file {} from {from}", short(sha256));
            self.note(("stage", mode, message), None, numbers, now_us)?;
        }
        Ok(())
    }

    /// Images whose file is here, or is to be read by themselves, are shown next.
    fn bring_for(&mut self, sha256: &str, users: Vec<User>, now_us: u64) -> Result<(), PilotError> {
        for user in users {
            if let User::Image { limit_mb, by_files } = user {
                self.bring_image(sha256, (limit_mb, by_files), now_us)?;
            }
        }
        Ok(())
    }

    fn fail_staged(
        &mut self,
        sha256: &str,
        (users, message): (Vec<User>, &str),
        now_us: u64,
    ) -> Result<(), PilotError> {
        let told = format!("failed to bring file {} to this node: {message}", short(sha256));
        self.note(("stage", "failed", told.clone()), None, BTreeMap::new(), now_us)?;
        for user in users {
            let User::Job(job) = user else {
                let name = self.binding.image(sha256).map(|image| image.name.clone());
                let told = format!("image `{}`: {told}", name.unwrap_or_default());
                self.fail_image(sha256, &told, now_us)?;
                continue;
            };
            let name = self.binding.job(job).and_then(|def| {
                let named = |input: &&InputDef| input.sha256.as_deref() == Some(sha256);
                def.inputs.iter().find(named).map(|input| input.name.clone())
            });
            let told = format!("input `{}`: {told}", name.unwrap_or_default());
            for piece in self.binding.take_queued(job) {
                if !self.canceled.contains(&job) {
                    self.fail_in_slot(&piece, 0, ("stage_in", &told), now_us)?;
                }
            }
        }
        Ok(())
    }
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
