//! The node's cache: started when the first job reads through it, ended when slots need its memory, and noted.

use std::collections::BTreeSet;

use super::Supply;
use crate::cache::News;
use crate::context::Context;
use crate::error::{PilotError, LOG};
use crate::report::Note;

impl Supply {
    /// Start the cache where one of these jobs reads through it; end it where a slot would find no room beside it.
    pub(super) fn start_cache(&mut self, cx: &mut Context, jobs: &BTreeSet<u64>) -> Result<(), PilotError> {
        let Some(def) = cx.settings.node_cache.clone() else {
            return Ok(());
        };
        let reads = |job: &u64| {
            let inputs = cx.work.job(*job).map(|def| def.inputs.as_slice());
            inputs
                .unwrap_or_default()
                .iter()
                .any(|input| input.node_cache == Some(true))
        };
        if self.cache.is_over() || !(self.cache.runs() || jobs.iter().any(reads)) {
            return Ok(());
        }
        let (whole_mb, largest_mb) = (cx.work.room().whole().1, cx.work.largest_mb());
        if largest_mb + def.memory_mb > whole_mb {
            let why = format!(
                "slots of {largest_mb} MB and its {} MB do not fit into the {whole_mb} MB of this node",
                def.memory_mb
            );
            return self.refuse_cache(cx, &why);
        }
        if self.cache.runs() {
            return Ok(());
        }
        if !cx.work.hold_memory(def.memory_mb) {
            let why = format!("its {} MB are in use by slots and files", def.memory_mb);
            self.cache.wait(&why);
            self.tell_cache(cx);
            return cx.note_once(Note::new("cache", "waits", format!("`{}`: {why}", def.name)));
        }
        match self.cache.start(&def) {
            Ok(()) => {
                self.tell_cache(cx);
                Ok(())
            }
            Err(why) => {
                cx.work.release_memory(def.memory_mb);
                self.refuse_cache(cx, &why)
            }
        }
    }

    /// What became of it.
    pub(super) fn hear_cache(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        for news in self.cache.hear() {
            match news {
                News::Runs(message) => cx.note_once(Note::new("cache", "runs", message))?,
                News::Moved => self.tell_cache(cx),
                News::Died(why) => {
                    LOG.warning("cache.died", &[("cause", &why)]);
                    cx.note_once(Note::new("cache", "died", why))?;
                }
                News::Failed(why) => self.refuse_cache(cx, &why)?,
            }
        }
        Ok(())
    }

    /// The node gets no cache: its payloads use the next route, and a note reports the reason to the site.
    fn refuse_cache(&mut self, cx: &mut Context, why: &str) -> Result<(), PilotError> {
        if self.cache.is_over() {
            return Ok(());
        }
        self.note_cache(cx)?;
        cx.work.release_memory(self.cache.refuse(why));
        LOG.warning("cache.refused", &[("cause", &why)]);
        self.tell_cache(cx);
        cx.note_once(Note::new("cache", "failed", why))
    }

    fn tell_cache(&self, cx: &mut Context) {
        cx.tell_all(&self.cache.message());
    }

    /// Record what it has fetched and served.
    pub fn note_cache(&mut self, cx: &mut Context) -> Result<(), PilotError> {
        let Some((origin_bytes, client_bytes)) = self.cache.figures() else {
            return Ok(());
        };
        let note = Note::new("cache", "figures", "")
            .number("origin_bytes", origin_bytes)
            .number("client_bytes", client_bytes);
        cx.note(note)
    }
}
