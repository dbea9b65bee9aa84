//! The child that writes the bundle: it alone calls the file system that may hang. One request after the other.
//!
//! Groups of outputs count together. After an error of the file system nothing that was not safe before is trusted, and
//! the next file is started: a handle may be stale for good. Knows no slot but by its scratch directory.

use std::io::Cursor;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_sys::calls::{Calls, Kernel};
use tidemill_sys::file;
use tidemill_sys::time::monotonic_us;
use tidemill_wire::worker::Served;
use tidemill_wire::{log, OutputRef};

use super::bundle::{Bundle, FileSource, Member, MemberSource};
use crate::error::{is_of_node, PilotError};

/// How often a copy asks whether it should stop.
const ASK_BYTES: u64 = 16 << 20;
/// How often a long copy says that it goes on.
const SAY_US: u64 = 1_000_000;
/// Unsafe bytes at which the bundle is fsynced without being asked.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// Names that are tried for a file after one whose process is gone.
const NAMES_MAX: u64 = 1_000;

/// Outputs of one payload or range. What is inline stands in the request's body, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Group {
    pub number: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    /// The slot's scratch directory was passed with it.
    pub has_files: bool,
    pub outputs: Vec<Output>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub path: String,
    pub inline: Option<usize>,
}

/// A log; its text stands in the request's body.
#[derive(Debug, Serialize, Deserialize)]
pub struct Log {
    pub profile: bool,
    pub name: String,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub truncated: bool,
    pub bytes: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    Copy {
        groups: Vec<Group>,
    },
    Logs {
        logs: Vec<Log>,
    },
    /// Make everything safe; `ends`: nothing follows.
    Sync {
        ends: bool,
    },
}

/// Why something was not kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cause {
    /// The output itself could not be read, or not be taken: its payload's fault. Else the site's, and tried again.
    pub of_output: bool,
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A long copy goes on.
    Working,
    Copied {
        number: u64,
        bytes: u64,
        refs: Vec<OutputRef>,
    },
    Failed {
        number: u64,
        cause: Cause,
    },
    CalledOff {
        number: u64,
    },
    /// The groups of a request were answered.
    CopiesEnd,
    Logged {
        lost: u64,
    },
    /// Everything that was answered as copied is safe.
    Safe,
    /// Nothing since the last `Safe` is.
    Unsafe {
        cause: Cause,
    },
    /// A request to make everything safe was answered.
    SyncEnds,
}

/// Where the next file comes from, where there is none.
pub struct Origin {
    pub directory: PathBuf,
    pub pilot: String,
    pub bytes_max: u64,
}

pub struct Writer<C: Calls + Clone = Kernel> {
    calls: C,
    bundle: Option<Bundle<C>>,
    origin: Origin,
    output_bytes_max: u64,
    /// The file system failed: the next file is started before anything else is written.
    suspect: bool,
    said_us: u64,
}

impl<C: Calls + Clone> Writer<C> {
    pub fn new(calls: C, bundle: Option<Bundle<C>>, origin: Origin, output_bytes_max: u64) -> Self {
        Writer {
            calls,
            bundle,
            origin,
            output_bytes_max,
            suspect: false,
            said_us: 0,
        }
    }

    /// What the child has to keep open.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.bundle.as_ref().map(Bundle::descriptors).unwrap_or_default()
    }

    /// Serve until the pilot is gone.
    pub fn serve(mut self, mut served: Served) {
        while let Ok(Some((request, body))) = served.request::<Request>() {
            let goes_on = match request {
                Request::Copy { groups } => self.copy_all(&mut served, &groups, &body),
                Request::Logs { logs } => {
                    let lost = self.write_logs(&mut served, &logs, &body);
                    served.answer(&Answer::Logged { lost })
                }
                Request::Sync { ends } => {
                    self.sync(&mut served);
                    if ends && !self.suspect {
                        self.bundle.iter_mut().for_each(Bundle::finish);
                    }
                    served.answer(&Answer::SyncEnds)
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    fn copy_all(&mut self, served: &mut Served, groups: &[Group], body: &[u8]) -> bool {
        let mut at = 0;
        let mut failed: Option<Cause> = None;
        for group in groups {
            let scratch = if group.has_files {
                served.descriptor()
            } else {
                None
            };
            let inline: usize = group.outputs.iter().filter_map(|output| output.inline).sum();
            let text = &body[at.min(body.len())..(at + inline).min(body.len())];
            at += inline;
            let answer = match &failed {
                // what the file system refused to the group before it would refuse to this one
                Some(cause) => Answer::Failed {
                    number: group.number,
                    cause: cause.clone(),
                },
                None => self.copy(served, group, (scratch.as_ref(), text)),
            };
            if let Answer::Failed { cause, .. } = &answer {
                failed = (!cause.of_output).then(|| cause.clone());
            }
            if !served.answer(&answer) {
                return false;
            }
        }
        served.answer(&Answer::CopiesEnd)
    }

    fn copy(&mut self, served: &mut Served, group: &Group, from: (Option<&OwnedFd>, &[u8])) -> Answer {
        let number = group.number;
        self.said_us = monotonic_us();
        let copied = self
            .usable(served)
            .and_then(|()| self.try_copy(served, group, from));
        let bundle = self.bundle.as_mut();
        match copied {
            Ok(Some((refs, bytes))) => {
                bundle.into_iter().for_each(Bundle::commit);
                Answer::Copied { number, bytes, refs }
            }
            Ok(None) => {
                bundle.into_iter().for_each(Bundle::roll_back);
                Answer::CalledOff { number }
            }
            Err(error) => {
                bundle.into_iter().for_each(Bundle::roll_back);
                let cause = self.cause(&error);
                Answer::Failed { number, cause }
            }
        }
    }

    fn cause(&mut self, error: &PilotError) -> Cause {
        let of_output = error.is_of_output();
        self.suspect |= !error.is_at_output() && !error.is_full();
        Cause {
            of_output,
            text: log::cause(error),
        }
    }

    /// See that there is a file that can be written to, and that it is neither too large nor too much of it unsafe.
    fn usable(&mut self, served: &mut Served) -> Result<(), PilotError> {
        // one whose fsync failed in the middle of a copy has lost what was copied before: that has to be said
        let due = self.bundle.as_ref().is_some_and(|bundle| {
            bundle.is_broken() || bundle.is_large() || bundle.dirty_bytes() >= DIRTY_BYTES_MAX
        });
        if due || self.suspect {
            self.sync(served);
        }
        match &mut self.bundle {
            Some(bundle) if self.suspect || bundle.is_broken() || bundle.is_large() => bundle.start_next()?,
            Some(_) => {}
            None => self.bundle = Some(self.start()?),
        }
        self.suspect = false;
        Ok(())
    }

    fn start(&self) -> Result<Bundle<C>, PilotError> {
        let origin = &self.origin;
        for number in 2..NAMES_MAX {
            let place = (&*origin.directory, &*origin.pilot, number);
            if let Some(bundle) = Bundle::create_numbered(self.calls.clone(), place, origin.bytes_max)? {
                return Ok(bundle);
            }
        }
        let source = std::io::ErrorKind::AlreadyExists.into();
        Err(PilotError::file("create the next bundle in", &origin.directory)(
            source,
        ))
    }

    /// The places of the outputs and their bytes; None where the copy was called off.
    fn try_copy(
        &mut self,
        served: &mut Served,
        group: &Group,
        (scratch, mut inline): (Option<&OwnedFd>, &[u8]),
    ) -> Result<Option<(Vec<OutputRef>, u64)>, PilotError> {
        let mut sources = Vec::with_capacity(group.outputs.len());
        let mut bytes = 0;
        for output in &group.outputs {
            let source = open(&self.calls, output, scratch, &mut inline)?;
            bytes = self.sum(bytes, output, &*source)?;
            sources.push(source);
        }
        let Some(bundle) = &mut self.bundle else {
            return Ok(None);
        };
        bundle.begin();
        let mut refs = Vec::with_capacity(sources.len());
        for (output, mut source) in group.outputs.iter().zip(sources) {
            let member = Member {
                kind: "output",
                name: &output.name,
                job: group.job,
                first: group.first,
                count: group.count,
                truncated: false,
            };
            let length = source
                .length()
                .map_err(PilotError::file("stat output", &output.name))?;
            let mut part = bundle.start(&member, length)?;
            while !bundle.go_on(&mut part, &mut *source, ASK_BYTES)? {
                if served.is_called_off(group.number) {
                    return Ok(None);
                }
                let now_us = monotonic_us();
                if now_us >= self.said_us + SAY_US {
                    self.said_us = now_us;
                    served.answer(&Answer::Working);
                }
            }
            refs.push(bundle.complete(part)?);
        }
        Ok(Some((refs, bytes)))
    }

    /// What outputs have together with another one, unless that is too much.
    fn sum(&self, bytes: u64, output: &Output, source: &dyn MemberSource) -> Result<u64, PilotError> {
        let length = source
            .length()
            .map_err(PilotError::file("stat output", &output.name))?;
        let sum = bytes.saturating_add(length);
        if sum <= self.output_bytes_max {
            return Ok(sum);
        }
        let others = if bytes == 0 { "" } else { " with those before it" };
        Err(PilotError::Output {
            name: output.name.clone(),
            message: format!(
                "it has {sum} bytes{others}, holes included; the outputs of one payload may have {} at this site \
                 (`output_bytes_max`)",
                self.output_bytes_max
            ),
        })
    }

    /// Logs that were lost: they never hold anything up.
    fn write_logs(&mut self, served: &mut Served, logs: &[Log], body: &[u8]) -> u64 {
        let mut lost = 0;
        let mut rest = body;
        for log in logs {
            let (text, behind) = rest.split_at(log.bytes.min(rest.len()));
            rest = behind;
            let member = Member {
                kind: if log.profile { "profile" } else { "log" },
                name: &log.name,
                job: log.job,
                first: log.first,
                count: log.count,
                truncated: log.truncated,
            };
            let written = self.usable(served).and_then(|()| match &mut self.bundle {
                Some(bundle) => bundle.append(&member, &mut Cursor::new(text)).map(drop),
                None => Ok(()),
            });
            if let Err(error) = written {
                self.cause(&error);
                lost += 1;
            }
        }
        lost
    }

    /// Make everything safe, and say whether it is.
    fn sync(&mut self, served: &mut Served) {
        let result = self.bundle.as_mut().map_or(Ok(()), Bundle::sync);
        let answer = match result {
            Ok(()) => Answer::Safe,
            Err(error) => {
                // the kernel may have dropped what was not safe (fsync(2), "Errors"), whatever a later call says
                let cause = self.cause(&error);
                self.suspect = true;
                self.bundle
                    .iter_mut()
                    .for_each(|bundle| bundle.distrust(&cause.text));
                Answer::Unsafe { cause }
            }
        };
        served.answer(&answer);
    }
}

/// What an output is copied from.
fn open(
    calls: &impl Calls,
    output: &Output,
    scratch: Option<&OwnedFd>,
    inline: &mut &[u8],
) -> Result<Box<dyn MemberSource>, PilotError> {
    let wrong = |message: String| PilotError::Output {
        name: output.name.clone(),
        message,
    };
    if let Some(length) = output.inline {
        let (text, behind) = inline.split_at(length.min(inline.len()));
        *inline = behind;
        return Ok(Box::new(Cursor::new(text.to_vec())));
    }
    let gone = PilotError::system("take over the directory of a slot");
    let scratch = scratch.ok_or_else(|| gone(std::io::ErrorKind::NotFound.into()))?;
    match file::open_beneath_by(calls, scratch.as_fd(), &output.path) {
        Ok(file) => Ok(Box::new(FileSource::new(file))),
        Err(error) if is_of_node(error.os_error()) => {
            Err(PilotError::file("open output", &output.name)(error.source))
        }
        Err(error) => Err(wrong(log::cause(&error))),
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
