//! Inputs of a job: copied into the slot's memory once, shown where the node holds them, or opened by their program.

mod unpack;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use tidemill_sys::{file, mount, SysError};
use tidemill_wire::log::cause;
use tidemill_wire::{InputDef, JobDef};

use super::place::SlotPlace;
use crate::Isolated;

/// Lines of `each` inputs are kept in memory; a longer file is refused.
const LINES_BYTES_MAX: u64 = 256 << 20;
const PIECE_BYTES: usize = 4 << 20;
/// A URL, and in the next line the way in words.
const URL_BYTES_MAX: u64 = 16 << 10;
/// URLs of events that are kept.
const URLS_MAX: usize = 10_000;

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

/// The host in a URL that goes through the cache of the node: its port is chosen there.
const NODE_CACHE: &str = "{node_cache}";

/// Where payloads reach the cache of this node; without an address there is none, and `why`.
#[derive(Debug, Default)]
pub(crate) struct NodeCache {
    pub address: String,
    pub why: String,
}

/// A file that the payload's program opens by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Opened {
    url: String,
    /// the way in words, such as `directly from root://host`
    way: String,
}

/// What of a job's inputs is in the slot.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    copied: bool,
    /// by name, and by event where each has its own
    opened: RefCell<BTreeMap<(String, Option<u64>), Opened>>,
    /// inputs of kind `url` that are here as a file
    fetched: BTreeSet<String>,
    /// shown by a mount, below `in/JOB`
    shown: Vec<String>,
    lines: BTreeMap<String, Lines>,
}

fn directory(job: u64) -> String {
    format!("in/{job}")
}

fn failed(what: &str, input: &InputDef, error: &SysError) -> InputError {
    let full = matches!(error.os_error(), libc::ENOSPC | libc::EDQUOT);
    InputError {
        failure: if full { "disk" } else { "stage_in" },
        message: format!("failed to {what} input `{}`: {}", input.name, cause(error)),
    }
}

impl Inputs {
    /// Copies what all payloads of the job share and reads the lines; done once, and begun anew where it was broken off.
    pub fn copy_shared(
        &mut self,
        place: &SlotPlace,
        job: &JobDef,
        go_on: GoOn<'_>,
    ) -> Result<(), InputError> {
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
                (Some(path), "shared") if input.unpack == Some(true) => {
                    unpack_into(place, path, &target, input, go_on)?;
                }
                (Some(path), "shared") if show(place, path, &target) => {
                    if place.isolated == Isolated::Namespaces {
                        self.shown.push(target.clone());
                    }
                }
                (Some(path), "shared") => copy(place, path, &target, input, go_on)?,
                (_, "url") => {} // before each payload: its way may change
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

    /// Reads the URLs that all payloads of the job open, as the site has them now; where it has a copy instead, copies
    /// that once.
    pub fn read_urls(&mut self, place: &SlotPlace, job: &JobDef, go_on: GoOn<'_>) -> Result<(), InputError> {
        for input in job.inputs.iter().filter(|input| input.kind == "url") {
            let from = input.path.as_deref().unwrap_or_default();
            let key = (input.name.clone(), None);
            if let Some(opened) = read_url(place, from, input)? {
                self.opened.get_mut().insert(key, opened);
                continue;
            }
            self.opened.get_mut().remove(&key);
            if self.fetched.insert(input.name.clone()) {
                let target = format!("{}/{}", directory(job.job), input.name);
                let copied = copy(place, from, &target, input, go_on);
                if copied.is_err() {
                    self.fetched.remove(&input.name);
                }
                copied?;
            }
        }
        Ok(())
    }

    /// Copies the files of events `first..first + count`, or reads the URLs of those that programs open.
    pub fn copy_each(
        &self,
        place: &SlotPlace,
        job: &JobDef,
        events: (u64, u64),
        go_on: GoOn<'_>,
    ) -> Result<(), InputError> {
        for input in each_files(job) {
            let from = input.path.as_deref().unwrap_or_default();
            for event in events.0..events.0 + events.1 {
                let target = format!("{}/{}/{event}", directory(job.job), input.name);
                if input.kind == "urls" && self.copy_url(place, from, &target, input, event)? {
                    continue;
                }
                copy(place, &format!("{from}/{event}"), &target, input, go_on)?;
            }
        }
        Ok(())
    }

    /// Reads the URL of an event, and shows it as `EVENT.url` to payloads that take several; false = it has a file.
    fn copy_url(
        &self,
        place: &SlotPlace,
        from: &str,
        target: &str,
        input: &InputDef,
        event: u64,
    ) -> Result<bool, InputError> {
        let mut known = self.opened.borrow_mut();
        let key = (input.name.clone(), Some(event));
        let Some(opened) = read_url(place, &format!("{from}/{event}"), input)? else {
            known.remove(&key);
            return Ok(false);
        };
        let mut file =
            create(place, &format!("{target}.url")).map_err(|error| failed("copy", input, &error))?;
        let written = file.write_all(opened.url.as_bytes());
        written.map_err(|source| failed("copy", input, &SysError::new("write", target, source)))?;
        if known.len() >= URLS_MAX {
            known.clear(); // those of events that are over: what runs has its URL already
        }
        known.insert(key, opened);
        Ok(true)
    }

    /// The URL that the payload opens instead of reading a file.
    pub fn url_of(&self, job: &JobDef, name: &str, event: Option<u64>) -> Option<String> {
        let input = job.inputs.iter().find(|input| input.name == name)?;
        let event = match input.kind.as_str() {
            "url" => None,
            "urls" => Some(event?),
            _ => return None,
        };
        let known = self.opened.borrow();
        Some(known.get(&(name.to_owned(), event))?.url.clone())
    }

    /// By which ways these events read what their program opened, for the evidence of a failure; empty = none did.
    pub fn ways(&self, (first, count): (u64, u64)) -> String {
        let its = |event: &Option<u64>| event.is_none_or(|event| event >= first && event - first < count);
        let known = self.opened.borrow();
        let mut ways: Vec<String> = known
            .iter()
            .filter(|((_, event), _)| its(event))
            .map(|((name, _), opened)| format!("input `{name}` was read {}", opened.way))
            .collect();
        ways.dedup();
        ways.truncate(3);
        ways.join(", ")
    }

    /// Removes the files of events that are over.
    pub fn remove_each(&self, place: &SlotPlace, job: &JobDef, events: (u64, u64)) {
        for input in each_files(job) {
            for event in events.0..events.0 + events.1 {
                let name = format!("{}/{}/{event}", directory(job.job), input.name);
                // not there: it was never copied, or is gone already
                let _ = file::remove_at(place.own.as_fd(), &name, false);
                if input.kind == "urls" {
                    let _ = file::remove_at(place.own.as_fd(), &format!("{name}.url"), false);
                }
            }
        }
    }

    /// The first input line of an event or the URL that stands for it, and the line as it was written.
    pub fn line(&self, event: u64) -> Option<(Cow<'_, str>, &str)> {
        let mut found = self.lines.iter();
        let (name, line) = found.find_map(|(name, lines)| Some((name, lines.of_event(event)?)))?;
        let known = self.opened.borrow();
        let filled = match known.get(&(name.clone(), Some(event))) {
            Some(opened) => Cow::Owned(opened.url.clone()),
            None => Cow::Borrowed(line),
        };
        Some((filled, line))
    }

    /// Removes everything of the job.
    pub fn remove(&mut self, place: &SlotPlace, job: u64) {
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
        .filter(|input| matches!(input.kind.as_str(), "each" | "urls") && input.path.is_some())
}

/// The directory with all inputs of the job, as payloads see it.
pub(crate) fn directory_of(place: &SlotPlace, job: &JobDef) -> String {
    format!("{}/{}", place.own_path, directory(job.job))
}

/// Where a payload finds an input: a shared file, the file of its one event, or the directory of an `each` input.
pub(crate) fn path_of(place: &SlotPlace, job: &JobDef, name: &str, event: Option<u64>) -> Option<String> {
    let input = job.inputs.iter().find(|input| input.name == name)?;
    let path = format!("{}/{}", directory_of(place, job), input.name);
    Some(match (input.kind.as_str(), &input.path, event) {
        ("each" | "urls", None, _) => format!("{path}.lines"),
        ("each" | "urls", Some(_), Some(event)) => format!("{path}/{event}"),
        _ => path,
    })
}

/// Where payloads see `target`, which is below `own`.
fn seen(place: &SlotPlace, target: &str) -> PathBuf {
    Path::new(&place.own_path).join(target)
}

/// Show a file that the node holds, verified, instead of copying it: by a read-only mount, or where there are no
/// namespaces by a hard link. False where it is not held, or cannot be shown: then it is copied.
fn show(place: &SlotPlace, from: &str, target: &str) -> bool {
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
    if create(place, target).is_err() {
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
            message: format!("`{name}` cannot be the name of an input: it is not a file name"),
        });
    }
    Ok(())
}

fn copy(
    place: &SlotPlace,
    from: &str,
    to: &str,
    input: &InputDef,
    go_on: GoOn<'_>,
) -> Result<(), InputError> {
    let mut source =
        file::open_in_root(place.old_root.as_fd(), from).map_err(|error| failed("read", input, &error))?;
    let mut target = create(place, to).map_err(|error| failed("copy", input, &error))?;
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

/// The directory of an input in the slot, to which the files of an archive go.
struct Unpacked<'a, 'b> {
    place: &'a SlotPlace,
    directory: &'a str,
    go_on: &'a mut GoOn<'b>,
}

impl unpack::Target for Unpacked<'_, '_> {
    fn make_directory(&mut self, path: &str) -> std::io::Result<()> {
        let path = format!("{}/{path}", self.directory);
        file::make_dir_at(self.place.own.as_fd(), &path, 0o755).map_err(|error| error.source)
    }

    fn create(&mut self, path: &str) -> std::io::Result<File> {
        create(self.place, &format!("{}/{path}", self.directory)).map_err(|error| error.source)
    }

    fn goes_on(&mut self) -> bool {
        (self.go_on)()
    }
}

/// Unpacks the archive `from` into the directory `to`.
fn unpack_into(
    place: &SlotPlace,
    from: &str,
    to: &str,
    input: &InputDef,
    mut go_on: GoOn<'_>,
) -> Result<(), InputError> {
    let mut source =
        file::open_in_root(place.old_root.as_fd(), from).map_err(|error| failed("read", input, &error))?;
    file::make_dir_at(place.own.as_fd(), to, 0o755)
        .map_err(|error| failed("make room for", input, &error))?;
    let mut target = Unpacked {
        place,
        directory: to,
        go_on: &mut go_on,
    };
    match unpack::unpack(&mut source, &mut target) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Err(InputError {
            failure: "preempted",
            message: format!("unpacking input `{}` was broken off", input.name),
        }),
        Err(source) => Err(failed("unpack", input, &SysError::new("unpack", from, source))),
    }
}

/// What the site wrote beside `path` of a file that programs open, as `.NAME.url`; None = it has a copy of it.
fn read_url(place: &SlotPlace, path: &str, input: &InputDef) -> Result<Option<Opened>, InputError> {
    let (folder, name) = path.rsplit_once('/').unwrap_or_default();
    let path = &format!("{folder}/.{name}.url");
    let source = match file::open_in_root(place.old_root.as_fd(), path) {
        Err(error) if error.os_error() == 2 => return Ok(None), // ENOENT
        source => source.map_err(|error| failed("read", input, &error))?,
    };
    let mut text = String::new();
    let read = source.take(URL_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|source| failed("read", input, &SysError::new("read", path, source)))?;
    let opened = opened_of(&text, &place.node_cache);
    opened.map(Some).map_err(|why| InputError {
        failure: "stage_in",
        message: format!("input `{}` cannot be read: {why}", input.name),
    })
}

/// What to open: where the first way leads through the node's cache and that does not run, the second one.
fn opened_of(text: &str, cache: &NodeCache) -> Result<Opened, String> {
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default().to_owned();
    let first = Opened {
        url: next(),
        way: next(),
    };
    if !first.url.contains(NODE_CACHE) {
        return Ok(first);
    }
    if !cache.address.is_empty() {
        let url = first.url.replacen(NODE_CACHE, &cache.address, 1);
        return Ok(Opened { url, ..first });
    }
    let why = match cache.why.as_str() {
        "" => "it was not started",
        why => why,
    };
    let (url, way) = (next(), next());
    if url.is_empty() {
        return Err(format!("this node has no cache: {why}"));
    }
    let way = format!("{way}, because this node has no cache: {why}");
    Ok(Opened { url, way })
}

/// Payloads cannot write to it: the mount is read-only, without namespaces the mode is. Under the mount it is writable by
/// its mode, so that a payload's own copy (`cp`) can be changed. A script may be an input, thus all are executable.
fn create(place: &SlotPlace, to: &str) -> tidemill_sys::Result<File> {
    let own = place.own.as_fd();
    let is_mounted = place.isolated == Isolated::Namespaces;
    let _ = file::remove_at(own, to, false);
    file::create_at(own, to, if is_mounted { 0o755 } else { 0o555 })
}

/// The byte order mark: some editors begin a text with it; it does not belong to the first line.
const BYTE_ORDER_MARK: char = '\u{feff}';

fn read_lines(place: &SlotPlace, path: &str, input: &InputDef) -> Result<Lines, InputError> {
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
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
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
    fn a_line_is_replaced_by_the_url_that_its_program_opens() {
        let inputs = Inputs::default();
        let (first, second) = (
            opened_of(
                "root://c//root://o//a\nthrough cache `c`\n",
                &NodeCache::default(),
            )
            .unwrap(),
            opened_of("x", &NodeCache::default()).unwrap(),
        );
        assert_eq!(first.way, "through cache `c`");
        assert_eq!((second.url.as_str(), second.way.as_str()), ("x", ""));
        let mut inputs = Inputs {
            lines: BTreeMap::from([(
                "files".to_owned(),
                Lines {
                    first: 0,
                    text: "root://o//a\nroot://o//b\n".to_owned(),
                    starts: vec![0, 12],
                },
            )]),
            ..inputs
        };
        inputs
            .opened
            .get_mut()
            .insert(("files".to_owned(), Some(0)), first);
        let line = |event| {
            inputs
                .line(event)
                .map(|(line, written)| (line.into_owned(), written))
        };
        let through = "root://c//root://o//a".to_owned();
        assert_eq!(line(0), Some((through, "root://o//a")));
        assert_eq!(line(1), Some(("root://o//b".to_owned(), "root://o//b")));
        assert_eq!(inputs.ways((0, 1)), "input `files` was read through cache `c`");
        assert_eq!(inputs.ways((1, 1)), "");
        let input = InputDef {
            name: "files".into(),
            kind: "urls".into(),
            ..InputDef::default()
        };
        let job = JobDef {
            inputs: vec![input],
            ..JobDef::default()
        };
        let url = |event| inputs.url_of(&job, "files", event);
        assert_eq!(url(Some(0)).as_deref(), Some("root://c//root://o//a"));
        assert_eq!((url(Some(1)), url(None)), (None, None));
    }

    #[test]
    fn the_url_of_a_node_cache_gets_its_address_or_gives_way_to_the_next() {
        let text = "root://{node_cache}//root://o//a\nthrough cache `n`\nroot://o//a\ndirectly\n";
        let running = NodeCache {
            address: "127.0.0.1:99".into(),
            ..NodeCache::default()
        };
        let missing = NodeCache {
            why: "`xrootd` is missing".into(),
            ..NodeCache::default()
        };
        let opened = opened_of(text, &running).unwrap();
        assert_eq!(opened.url, "root://127.0.0.1:99//root://o//a");
        assert_eq!(opened.way, "through cache `n`");
        let opened = opened_of(text, &missing).unwrap();
        assert_eq!(opened.url, "root://o//a");
        assert_eq!(
            opened.way,
            "directly, because this node has no cache: `xrootd` is missing"
        );
        let only = "root://{node_cache}//root://o//a\nthrough cache `n`\n";
        assert!(opened_of(only, &missing).unwrap_err().contains("missing"));
    }

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
