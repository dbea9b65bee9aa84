//! Inputs of a job: copied into the slot's memory once, or shown where the node holds them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use tidemill_sys::{file, mount, SysError};
use tidemill_wire::log::cause;
use tidemill_wire::{InputDef, JobDef};

use super::place::Place;
use crate::Isolated;

/// Lines of `each` inputs are kept in memory; a longer file is refused.
const LINES_BYTES_MAX: u64 = 256 << 20;
const PIECE_BYTES: usize = 4 << 20;

/// Why inputs are not there: a failure class and a message.
#[derive(Debug)]
pub(crate) struct InputError {
    pub failure: &'static str,
    pub message: String,
}

/// Asked between pieces of a long copy: false ends it.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// The lines of one `each` input.
#[derive(Debug, Default)]
struct Lines {
    first: u64,
    text: String,
    /// start of each line
    starts: Vec<usize>,
}

impl Lines {
    fn of_event(&self, event: u64) -> Option<&str> {
        let index = usize::try_from(event.checked_sub(self.first)?).ok()?;
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).copied().unwrap_or(self.text.len());
        Some(self.text[start..end].trim_end_matches(['\n', '\r']))
    }
}

/// What of a job's inputs is in the slot.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    copied: bool,
    /// shown by a mount, below `in/JOB`
    shown: Vec<String>,
    lines: BTreeMap<String, Lines>,
}

fn directory(job: u64) -> String {
    format!("in/{job}")
}

fn failed(what: &str, input: &InputDef, error: &SysError) -> InputError {
    let full = matches!(error.os_error(), 28 | 122); // ENOSPC, EDQUOT
    InputError {
        failure: if full { "disk" } else { "stage_in" },
        message: format!("failed to {what} input `{}`: {}", input.name, cause(error)),
    }
}

impl Inputs {
    /// Copies what all payloads of the job share and reads the lines; done once, and begun anew where it was broken off.
    pub fn copy_shared(&mut self, place: &Place, job: &JobDef, go_on: GoOn<'_>) -> Result<(), InputError> {
        if self.copied {
            return Ok(());
        }
        let own = place.own.as_fd();
        for input in &job.inputs {
            check_name(input)?;
            let wrong = |error| failed("make room for", input, &error);
            file::make_dir_at(own, &directory(job.job), 0o755).map_err(wrong)?;
            let target = format!("{}/{}", directory(job.job), input.name);
            match (&input.path, input.kind.as_str()) {
                _ if self.shown.contains(&target) => {}
                (Some(path), "shared") if show(place, path, &target) => {
                    if place.isolated == Isolated::Namespaces {
                        self.shown.push(target.clone());
                    }
                }
                (Some(path), "shared") => copy(place, path, &target, input, go_on)?,
                _ => file::make_dir_at(own, &target, 0o755).map_err(wrong)?,
            }
            if let Some(path) = &input.lines {
                self.lines
                    .insert(input.name.clone(), read_lines(place, path, input)?);
                copy(place, path, &format!("{target}.lines"), input, go_on)?;
            }
        }
        self.copied = true;
        Ok(())
    }

    /// Copies the files of events `first..first + count`.
    pub fn copy_each(
        &self,
        place: &Place,
        job: &JobDef,
        events: (u64, u64),
        go_on: GoOn<'_>,
    ) -> Result<(), InputError> {
        for input in each_files(job) {
            let from = input.path.as_deref().unwrap_or_default();
            for event in events.0..events.0 + events.1 {
                let target = format!("{}/{}/{event}", directory(job.job), input.name);
                copy(place, &format!("{from}/{event}"), &target, input, go_on)?;
            }
        }
        Ok(())
    }

    /// Removes the files of events that are over.
    pub fn remove_each(&self, place: &Place, job: &JobDef, events: (u64, u64)) {
        for input in each_files(job) {
            for event in events.0..events.0 + events.1 {
                let name = format!("{}/{}/{event}", directory(job.job), input.name);
                // not there: it was never copied, or is gone already
                let _ = file::remove_at(place.own.as_fd(), &name, false);
            }
        }
    }

    /// The first input line of an event.
    pub fn line(&self, event: u64) -> Option<&str> {
        self.lines.values().find_map(|lines| lines.of_event(event))
    }

    /// Removes everything of the job.
    pub fn remove(&mut self, place: &Place, job: u64) {
        for target in &self.shown {
            let _ = mount::detach(&seen(place, target)); // what stays goes with the slot
        }
        *self = Inputs::default();
        if let Ok(dir) = file::open_dir_at(place.own.as_fd(), &directory(job)) {
            let _ = file::empty(dir.as_fd(), &[]);
            let _ = file::remove_at(place.own.as_fd(), &directory(job), true);
        }
    }
}

/// Inputs that have a file per event.
pub(crate) fn each_files(job: &JobDef) -> impl Iterator<Item = &InputDef> {
    job.inputs
        .iter()
        .filter(|input| input.kind == "each" && input.path.is_some())
}

/// Where a payload finds an input: a shared file, the file of its one event, or the directory of an `each` input.
pub(crate) fn path_of(place: &Place, job: &JobDef, name: &str, event: Option<u64>) -> Option<String> {
    let input = job.inputs.iter().find(|input| input.name == name)?;
    let path = format!("{}/{}/{}", place.own_path, directory(job.job), input.name);
    Some(match (input.kind.as_str(), &input.path, event) {
        ("each", None, _) => format!("{path}.lines"),
        ("each", Some(_), Some(event)) => format!("{path}/{event}"),
        _ => path,
    })
}

/// Where payloads see `target`, which is below `own`.
fn seen(place: &Place, target: &str) -> PathBuf {
    Path::new(&place.own_path).join(target)
}

/// Show a file that the node holds, verified, instead of copying it: by a read-only mount, or where there are no
/// namespaces by a hard link. False where it is not held, or cannot be shown: then it is copied.
fn show(place: &Place, from: &str, target: &str) -> bool {
    let path = Path::new(from);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return false;
    };
    let Some((_, store)) = place.stores.iter().find(|(store, _)| store == parent) else {
        return false;
    };
    if place.isolated == Isolated::Subreaper {
        let _ = file::remove_at(place.own.as_fd(), target, false);
        return std::fs::hard_link(path, seen(place, target)).is_ok();
    }
    if create(place.own.as_fd(), target).is_err() {
        return false;
    }
    let held = PathBuf::from(format!("/proc/self/fd/{}/{name}", store.as_raw_fd()));
    let at = seen(place, target);
    if mount::bind(&held, &at).is_err() {
        return false;
    }
    if mount::set_read_only(&at, true).is_err() {
        let _ = mount::detach(&at);
        return false;
    }
    true
}

fn check_name(input: &InputDef) -> Result<(), InputError> {
    let name = &input.name;
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(InputError {
            failure: "stage_in",
            message: format!("`{name}` cannot be the name of an input: it is no file name"),
        });
    }
    Ok(())
}

fn copy(place: &Place, from: &str, to: &str, input: &InputDef, go_on: GoOn<'_>) -> Result<(), InputError> {
    let mut source =
        file::open_in_root(place.old_root.as_fd(), from).map_err(|error| failed("read", input, &error))?;
    let mut target = create(place.own.as_fd(), to).map_err(|error| failed("copy", input, &error))?;
    loop {
        let piece = std::io::copy(&mut (&mut source).take(PIECE_BYTES as u64), &mut target);
        match piece {
            Ok(0) => break,
            Ok(_) => {}
            Err(source) => return Err(failed("copy", input, &SysError::new("copy", from, source))),
        }
        if !go_on() {
            let message = format!("the copy of input `{}` was broken off", input.name);
            return Err(InputError {
                failure: "preempted",
                message,
            });
        }
    }
    target
        .flush()
        .map_err(|source| failed("copy", input, &SysError::new("write", to, source)))
}

/// Read-only to payloads twice over: by its mode and by the mount.
fn create(own: BorrowedFd<'_>, to: &str) -> tidemill_sys::Result<File> {
    let _ = file::remove_at(own, to, false);
    file::create_at(own, to, 0o555)
}

fn read_lines(place: &Place, path: &str, input: &InputDef) -> Result<Lines, InputError> {
    let source =
        file::open_in_root(place.old_root.as_fd(), path).map_err(|error| failed("read", input, &error))?;
    let mut text = String::new();
    let read = source.take(LINES_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|source| failed("read", input, &SysError::new("read", path, source)))?;
    if text.len() as u64 > LINES_BYTES_MAX {
        let message = format!(
            "the lines of input `{}` take more than {LINES_BYTES_MAX} bytes",
            input.name
        );
        return Err(InputError {
            failure: "stage_in",
            message,
        });
    }
    let mut starts = vec![0];
    starts.extend(
        text.match_indices('\n')
            .map(|(at, _)| at + 1)
            .filter(|&at| at < text.len()),
    );
    if text.is_empty() {
        starts.clear();
    }
    Ok(Lines {
        first: input.first,
        text,
        starts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_belong_to_events_from_the_first_on() {
        let text = "a b\nc\r\n\nd".to_owned();
        let lines = Lines {
            first: 10,
            starts: vec![0, 4, 7, 8],
            text,
        };
        let of = |event| lines.of_event(event);
        assert_eq!(
            [of(10), of(11), of(12), of(13)],
            [Some("a b"), Some("c"), Some(""), Some("d")]
        );
        assert_eq!((of(9), of(14)), (None, None));
    }
}
