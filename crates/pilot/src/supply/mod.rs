//! What work needs on this node before it can run: slots, images, and files that are brought once for all slots.
//!
//! Carries out what the work's binding decides. Images and files want each other (an image's file is brought by the
//! stage, whose memory is entered with the images), and meet here only. Knows neither permits nor what payloads leave.

mod cache;
mod files;
mod images;

use tidemill_slot::{SlotSpec, ToSlot};
use tidemill_stage::Order;
use tidemill_sys::fd::Poll;
use tidemill_wire::{Settings, StagedFile, View};

use crate::cache::NodeCache;
use crate::context::Context;
use crate::error::PilotError;
use crate::images::Images;
use crate::node::room::Share;
use crate::node::{gpus, variables};
use crate::report::Note;
use crate::stage::Stage;
use crate::work::piece::{Shape, WorkPiece};
use crate::work::Action;

/// What a fleet of an older version hides without saying so.
const CREDENTIALS: [&str; 8] = [
    "~/.ssh",
    "~/.gnupg",
    "~/.globus",
    "~/.aws",
    "~/.kube",
    "~/.docker",
    "~/.netrc",
    "~/.config/tidemill",
];

/// The images and files of this node.
pub struct Supply {
    images: Images,
    stage: Stage,
    cache: NodeCache,
    /// Files that the stage reads from the shared file system, since `take_reads`.
    reads: Vec<StagedFile>,
}

impl Supply {
    /// `asks`: a lead or peers files can name nodes that have a file. `isolated`: slots get namespaces.
    pub fn new(settings: &Settings, asks: bool, isolated: bool) -> Self {
        Supply {
            images: Images::new(settings, isolated),
            stage: Stage::new(asks, &settings.io),
            cache: NodeCache::new(isolated),
            reads: Vec::new(),
        }
    }

    pub fn polls(&self) -> impl Iterator<Item = Poll> + '_ {
        let helpers = self.stage.poll().into_iter().chain(self.cache.poll());
        helpers.chain(self.images.polls())
    }

    pub fn due_us(&self, cx: &Context) -> Option<u64> {
        self.stage.due_us(cx.lead.answers())
    }

    /// What became of images and files. Call before slots are heard: an image that died explains what payloads say.
    pub fn step(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        self.hear_images(cx)?;
        self.hear_stage(cx)?;
        self.hear_cache(cx)
    }

    /// Do what the binding decided.
    pub fn act(&mut self, cx: &mut Context, actions: Vec<Action>) -> Result<(), PilotError> {
        for action in actions {
            match action {
                Action::Create { slot, shape, share } => self.create_slot(cx, slot, &shape, share)?,
                Action::Destroy { slot } => cx.slots.end(slot),
                Action::TellProgram { slot, program } => {
                    if let Some(program) = cx.work.program(program).cloned() {
                        let program = cx.slots.first_traces.told_to(slot, program);
                        cx.slots.tell(slot, &ToSlot::Program(program));
                    }
                }
                Action::TellJob { slot, job } => {
                    if let Some(mut job) = cx.work.job(job).cloned() {
                        if !cx.slots.is_blind(slot) {
                            job = self.stage.stager.with_held(job);
                        }
                        cx.slots.tell(slot, &ToSlot::Job(job));
                    }
                }
                Action::Run { slot, ticket, piece } => cx.slots.tell(slot, &run(ticket, piece)),
                Action::Forget { slot, job } => cx.slots.tell(slot, &ToSlot::Forget { job }),
                Action::Bring {
                    sha256,
                    limit_mb,
                    by_files,
                } => self.bring_image(cx, &sha256, limit_mb, by_files)?,
                Action::Drop { sha256 } => {
                    self.images.drop_image(&sha256);
                    self.forget_image_file(cx, &sha256)?;
                }
                Action::DropInput { sha256 } => self.drop_input(cx, &sha256)?,
                Action::FailImage { sha256, message } => self.fail_image(cx, &sha256, &message)?,
            }
        }
        Ok(())
    }

    fn create_slot(
        &mut self,
        cx: &mut Context,
        slot: u32,
        shape: &Shape,
        share: Share,
    ) -> Result<(), PilotError> {
        let settings = &cx.settings;
        let batch_commands = if shape.batch_commands {
            Vec::new()
        } else {
            settings.batch_commands.clone()
        };
        let images = shape.images.iter();
        let images = images.filter_map(|(sha256, areas)| self.images.for_slot(sha256, areas));
        let (devices, other_devices) = gpus::divided(cx.work.room().gpus(), &share.gpus);
        let spec = SlotSpec {
            index: slot,
            node: cx.node.clone(),
            images: images.collect(),
            spill: settings
                .spill
                .as_ref()
                .filter(|_| share.spill_mb > 0)
                .and_then(|named| variables::expand(named).ok())
                .map(Into::into),
            cpus: share.cpus,
            devices,
            other_devices,
            memory_mb: shape.memory_mb,
            scratch_mb: shape.scratch_mb,
            isolation: cx.isolation,
            directory: settings.scratch.as_ref().map(Into::into),
            mask: settings.mask.iter().map(Into::into).collect(),
            stores: self.stage.directories().to_vec(),
            batch_commands,
            network: shape.network,
            tasks_max: shape.tasks_max,
            view: view_of(settings, shape),
            may_mount: shape.may_mount,
        };
        if let Some(note) = cx.slots.start(&spec, shape.cores) {
            note_made(cx, &spec, note)?;
            let monotonic_us = cx.life.deadline_us();
            cx.slots.tell(slot, &ToSlot::Deadline { monotonic_us });
            cx.slots.tell(slot, &self.cache.message());
        }
        Ok(())
    }

    /// Files that the stage reads from the shared file system, since the last call.
    pub fn take_reads(&mut self) -> Vec<StagedFile> {
        std::mem::take(&mut self.reads)
    }

    fn order(&mut self, cx: &mut Context, order: Order) {
        if let Order::Drop { sha256 } = &order {
            cx.work.release_input(sha256);
        }
        self.stage.order(&order);
        if let Order::Fetch { file, peers, .. } = order {
            if peers.is_empty() {
                self.reads.push(file);
            }
        }
    }

    /// End images and files; the children that still remove them.
    pub fn leave(&mut self) -> impl Iterator<Item = i32> {
        [self.stage.leave(), self.images.leave(), self.cache.leave()]
            .into_iter()
            .flatten()
    }
}

/// What payloads of this shape see: what the site says, and what their application names.
fn view_of(settings: &Settings, shape: &Shape) -> View {
    let mut view = settings.view.clone().unwrap_or_else(|| View {
        credentials: CREDENTIALS.map(str::to_owned).into(),
        ..View::default()
    });
    let (show, write) = &shape.named;
    view.show.extend(show.iter().cloned());
    view.write.extend(write.iter().cloned());
    view
}

fn run(ticket: u64, piece: WorkPiece) -> ToSlot {
    ToSlot::Run {
        ticket,
        job: piece.job,
        first: piece.first,
        count: piece.count,
        chunk_max: piece.chunk_max,
    }
}

/// How a slot is unlike others, noted once for each way.
fn note_made(cx: &mut Context, spec: &SlotSpec, note: String) -> Result<(), PilotError> {
    if let Some(base) = &spec.spill {
        let message = format!(
            "a work directory of {} MB does not fit into memory: it is in `{}`",
            spec.scratch_mb,
            base.display()
        );
        let spilled = Note::new("spill", "directory", message)
            .number("scratch_mb", spec.scratch_mb)
            .number("memory_mb", spec.memory_mb);
        cx.note_once(spilled)?;
    }
    if !note.is_empty() && !spec.images.is_empty() {
        cx.note_once(Note::new("image", "slot", note))?;
    }
    Ok(())
}
