//! The scratch between payloads: emptied, inputs laid out, outputs put aside; what payloads may leave in it, and what is
//! said where that was too much.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use tidemill_sys::file::{self, Space, Status};
use tidemill_sys::{process, time, Result};
use tidemill_wire::log::cause;

use super::payload::{Payload, Verdict};
use super::place::SlotPlace;
use super::Init;
use crate::SlotOutput;

/// The work directory below S.
const WORK: &str = "tmp/work";
/// The tmpfs counts as full when less than this is left of it.
const FULL_BYTES: u64 = 64 << 10;

/// Bytes of a scratch's size for each file or directory that it may hold, as in a tmpfs (`tidemill_sys::mount`)...
const BYTES_OF_A_FILE: u64 = 4096;
/// ... but at least and at most these numbers.
const FILES_MIN: u64 = 1024;
const FILES_MAX: u64 = 1_000_000;
/// Measuring the scratch costs at most a twentieth of the time.
const SCRATCH_COST: u64 = 20;

/// Number of payloads of a job in this slot whose work directory is searched: a job's payloads leave similar files.
pub(super) const LOOKS: u32 = 3;
/// Limits of the entries of a work directory that are counted, and that are named.
const ENTRIES_MAX: usize = 1_000;
const NAMED_MAX: usize = 3;
/// A command that packs or unpacks directories leaves entries in its work directory on purpose. A file of this name holds
/// their paths, each with a NUL byte after it (`tidemill.cli.command.wrapping`).
const PACKED: &str = ".tidemill-packed";
const PACKED_BYTES_MAX: u64 = 1 << 20;
/// Start of the line in the log; clients search for it (`tidemill.cli.jobs.outcome`).
const SAID: &str = "tidemill: removed from the work directory, since no output names it: ";
/// What precedes the files that lie where an output is missing; causes of failures end before it
/// (`tidemill.model.failure`).
const FOUND: &str = "; the work directory has ";

/// The directories that payloads write to, as they were before a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    directories: [Status; 4],
    space: Space,
}

/// Work directory, /tmp and waiting outputs of a slot.
pub(crate) struct Scratch {
    pub place: SlotPlace,
    before: Option<Snapshot>,
    /// names in the work directory that lead to inputs
    links: Vec<(String, String)>,
    /// directories below out/ that the pilot has not removed yet
    pub waiting: u64,
    numbered: u64,
    device: Option<u64>,
}

impl Scratch {
    pub fn new(place: SlotPlace) -> Self {
        let device = match place.in_memory {
            true => None,
            false => file::device(place.root.as_fd()).ok(),
        };
        Scratch {
            device,
            place,
            before: None,
            links: Vec::new(),
            waiting: 0,
            numbered: 0,
        }
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let place = &self.place;
        Ok(Snapshot {
            directories: [
                file::status(place.tmp.as_fd())?,
                file::status(place.work.as_fd())?,
                file::status(place.home.as_fd())?,
                file::status(place.shm.as_fd())?,
            ],
            space: file::space(place.root.as_fd())?,
        })
    }

    /// Puts the names of inputs into the (empty) work directory.
    pub fn lay_out(&mut self, links: Vec<(String, String)>) -> Result<()> {
        if links == self.links {
            return Ok(());
        }
        self.before = None;
        for (name, _) in std::mem::take(&mut self.links) {
            file::remove_at(self.place.work.as_fd(), &name, false)?;
        }
        for (name, target) in links {
            file::link_at(self.place.work.as_fd(), &name, &target)?;
            self.links.push((name, target));
        }
        Ok(())
    }

    /// To be called right before a payload starts. Costs nothing where the last `clean` found nothing to do.
    pub fn remember(&mut self) -> Result<()> {
        if self.before.is_none() && self.place.in_memory && self.waiting == 0 {
            self.before = Some(self.snapshot()?);
        }
        Ok(())
    }

    /// Empties /tmp, /dev/shm, home and work directory, and what was written below areas of images. Where inode and
    /// block counts and the change times of the four directories are as before (change times cannot be set), there is
    /// nothing to empty. Other users of the file system (slots without namespaces, outputs that the pilot removes) make
    /// the counts useless.
    pub fn clean(&mut self) -> Result<()> {
        let renewed = self.place.renew_areas()?;
        if !renewed && self.before.is_some() && self.waiting == 0 && self.before == Some(self.snapshot()?) {
            return Ok(());
        }
        self.before = None;
        let place = &mut self.place;
        let (tmp, shm) = (place.tmp.as_fd(), place.shm.as_fd());
        file::set_mode(tmp, 0o1777)?;
        file::set_mode(shm, 0o1777)?;
        let kept: Vec<&str> = place.covers.kept().iter().map(String::as_str).collect();
        let emptied = file::empty(tmp, &kept).and(file::empty(shm, &[]));
        file::make_dir_at(tmp, "work", 0o755)?;
        file::make_dir_at(tmp, "home", 0o700)?;
        place.work = tidemill_sys::fd::high(file::open_dir_at(tmp, "work")?)?;
        place.home = tidemill_sys::fd::high(file::open_dir_at(tmp, "home")?)?;
        file::change_dir(place.work.as_fd())?;
        for (name, target) in &self.links {
            file::link_at(place.work.as_fd(), name, target)?;
        }
        emptied
    }

    /// We changed something ourselves: what was remembered does not count.
    pub fn changed(&mut self) {
        self.before = None;
    }

    /// Removes the directory of a waiting file that the pilot will not ask for, and everything in it. What cannot be
    /// removed still counts no longer: it must not keep payloads from starting.
    pub fn discard(&mut self, path: &str) {
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.discard_directory(directory);
        }
    }

    /// As `discard`, of a directory that `new_directory` made.
    pub fn discard_directory(&mut self, directory: &str) {
        let root = self.place.root.as_fd();
        let _ = file::open_dir_at(root, directory)
            .and_then(|open| file::empty(open.as_fd(), &[]))
            .and_then(|()| file::remove_at(root, directory, true));
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Is there no room left?
    pub fn full(&self) -> bool {
        file::space(self.place.root.as_fd())
            .is_ok_and(|space| space.blocks_free * space.block_bytes < FULL_BYTES || space.inodes_free == 0)
    }

    /// Its device, where it is not in memory.
    pub fn device(&self) -> Option<u64> {
        self.device
    }

    /// Of a scratch that no kernel bounds: MB that its files take, and whether they are more than `files_max`, or nested
    /// so deep that they cannot be counted.
    pub fn counted(&self, cap_mb: u64) -> (u64, bool) {
        let tree = file::tree(self.place.root.as_fd(), files_max(cap_mb));
        (tree.bytes.div_ceil(1 << 20), tree.partly)
    }

    /// What everything in the scratch takes now: of a tmpfs of our own as the kernel counts, of a directory as its files
    /// do.
    pub fn used_mb(&self) -> u64 {
        if !self.place.in_memory {
            return self.counted((FILES_MAX * BYTES_OF_A_FILE) >> 20).0;
        }
        self.tmpfs_bytes().div_ceil(1 << 20)
    }

    fn tmpfs_bytes(&self) -> u64 {
        let space = file::space(self.place.root.as_fd()).unwrap_or_default();
        space.blocks.saturating_sub(space.blocks_free) * space.block_bytes
    }

    /// Shared memory of the node, which files in memory are a part of, without this scratch.
    pub fn shared_kb_outside(&self) -> u64 {
        let own_kb = if self.place.in_memory {
            self.tmpfs_bytes() / 1024
        } else {
            0
        };
        process::shared_kb().saturating_sub(own_kb)
    }

    /// What is to be said where there was no room: the cap, what is in use, and what would change it.
    pub fn shortage(&self, cap_mb: u64) -> String {
        let inodes = file::space(self.place.root.as_fd())
            .is_ok_and(|space| self.place.in_memory && space.inodes_free == 0);
        let files = if inodes {
            ", and no file more can be made"
        } else {
            ""
        };
        format!(
            "work directory, inputs, /tmp and /dev/shm of a slot may take {cap_mb} MB together, {} MB are in \
             use{files}: raise `--scratch` of `run` or `job retry`, or `resources.scratch_mb` of a job file",
            self.used_mb()
        )
    }

    /// Moves files of the work directory to where the pilot finds them. The error says which output is wrong and how.
    pub fn put_aside(
        &mut self,
        outputs: &[(String, String)],
    ) -> std::result::Result<Vec<SlotOutput>, String> {
        for (name, path) in outputs {
            check_output(self.place.root.as_fd(), path).map_err(|wrong| {
                let (what, found) = match wrong {
                    Wrong::Missing => (format!("`{path}` is missing"), self.instead(path, outputs)),
                    Wrong::Other(what) => (what, None),
                };
                let found = found.map(|names| format!("{FOUND}{names}")).unwrap_or_default();
                format!("output `{name}`: {what}{found}")
            })?;
        }
        let directory = self.new_directory().map_err(|error| cause(&error))?;
        let moved = self.move_to(&directory, outputs);
        if moved.is_err() {
            self.discard_directory(&directory);
        }
        moved
    }

    fn move_to(
        &self,
        directory: &str,
        outputs: &[(String, String)],
    ) -> std::result::Result<Vec<SlotOutput>, String> {
        let root = self.place.root.as_fd();
        let mut moved = Vec::with_capacity(outputs.len());
        for (index, (name, path)) in outputs.iter().enumerate() {
            let to = format!("{directory}/{index}");
            file::rename_at(root, &format!("{WORK}/{path}"), root, &to)
                .map_err(|error| format!("output `{name}`: {}", cause(&error)))?;
            moved.push(SlotOutput {
                name: name.clone(),
                path: to,
                inline: None,
            });
        }
        Ok(moved)
    }

    /// The line that names what a payload left beside its outputs, after these were moved away; None = it left nothing.
    /// Does not count links (such as inputs), hidden files, and directories that held outputs.
    pub fn left(&self, outputs: &[(String, String)]) -> Option<String> {
        let covered = self.covered(outputs)?;
        let names = listed(self.place.work.as_fd(), &[], &covered)?;
        Some(format!("{SAID}{names}\n"))
    }

    /// What belongs to these outputs, or to archives that the command packs or unpacked: paths as their parts. None = an
    /// archive's paths are not known.
    fn covered(&self, outputs: &[(String, String)]) -> Option<Vec<Parts>> {
        let mut covered: Vec<Parts> = outputs.iter().map(|(_, path)| parts(path.as_bytes())).collect();
        let root = self.place.root.as_fd();
        let mark = format!("{WORK}/{PACKED}");
        if file::status_at(root, &mark).is_ok_and(|found| found.is_none()) {
            return Some(covered);
        }
        let mut said = Vec::new();
        let mark = file::open_beneath(root, &mark).ok()?;
        mark.take(PACKED_BYTES_MAX).read_to_end(&mut said).ok()?;
        if said.is_empty() || said.len() as u64 == PACKED_BYTES_MAX {
            return None;
        }
        covered.extend(
            said.split(|byte| *byte == 0)
                .map(parts)
                .filter(|path| !path.is_empty()),
        );
        Some(covered)
    }

    /// What lies where an output is missing: in its directory, or in the one above it that has something.
    fn instead(&self, path: &str, outputs: &[(String, String)]) -> Option<String> {
        let covered = self.covered(outputs)?;
        let mut directories = vec![self.place.work.as_fd().try_clone_to_owned().ok()?];
        let mut above = parts(path.as_bytes());
        above.pop();
        for name in &above {
            let name = std::str::from_utf8(name).ok()?;
            let Ok(open) = file::open_dir_at(directories[directories.len() - 1].as_fd(), name) else {
                break;
            };
            directories.push(open);
        }
        let found = directories.iter().enumerate().rev();
        found
            .filter_map(|(depth, open)| listed(open.as_fd(), &above[..depth], &covered))
            .next()
    }

    /// A directory below S for outputs of one payload or range; it waits until the pilot has removed it.
    pub fn new_directory(&mut self) -> Result<String> {
        self.numbered += 1;
        let directory = format!("out/{}", self.numbered);
        file::make_dir_at(self.place.root.as_fd(), &directory, 0o700)?;
        self.waiting += 1;
        Ok(directory)
    }
}

/// Files and directories that a scratch of this size may hold.
fn files_max(cap_mb: u64) -> u64 {
    ((cap_mb << 20) / BYTES_OF_A_FILE).clamp(FILES_MIN, FILES_MAX)
}

/// A path's names, without those that lead nowhere.
type Parts = Vec<Vec<u8>>;

fn parts(path: &[u8]) -> Parts {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect()
}

/// The first entries of a directory, which lies `above` in the work directory, as text; None = it has none. Does not
/// count links, hidden files and what is covered.
fn listed(directory: BorrowedFd<'_>, above: &[Vec<u8>], covered: &[Parts]) -> Option<String> {
    let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(place).ok()?.flatten().take(ENTRIES_MAX) {
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name();
        let path = [above, &[name.as_bytes().to_vec()]].concat();
        let is_covered = covered
            .iter()
            .any(|each| each.starts_with(&path) || path.starts_with(each));
        if kind.is_symlink() || name.as_bytes().starts_with(b".") || is_covered {
            continue;
        }
        let slash = if kind.is_dir() { "/" } else { "" };
        let path = path.join(&b'/');
        names.push(format!(
            "`{}{slash}`",
            String::from_utf8_lossy(&path).escape_debug()
        ));
    }
    let more = match names.len() {
        ..=NAMED_MAX => String::new(),
        ENTRIES_MAX.. => " and many more".to_owned(),
        count => format!(" and {} more", count - NAMED_MAX),
    };
    names.sort();
    names.truncate(NAMED_MAX);
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}

/// Why a path does not lead to an output.
enum Wrong {
    Missing,
    Other(String),
}

/// A regular file below the work directory, no link on the way.
fn check_output(root: BorrowedFd<'_>, path: &str) -> std::result::Result<(), Wrong> {
    if path.split('/').any(|name| name == "..") {
        return Err(Wrong::Other(format!("`{path}` leads out of the work directory")));
    }
    match file::open_beneath(root, &format!("{WORK}/{path}")) {
        Ok(_) => Ok(()),
        Err(error) if error.os_error() == 2 => Err(Wrong::Missing),
        Err(error) => Err(Wrong::Other(
            wrong_kind(root, path).unwrap_or_else(|| cause(&error)),
        )),
    }
}

/// Why the path of an output does not lead to a regular file. A symbolic link is named by its own path.
fn wrong_kind(root: BorrowedFd<'_>, path: &str) -> Option<String> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    for end in ends {
        let name = path.get(..end)?;
        let found = file::status_at(root, &format!("{WORK}/{name}")).ok()??;
        if found.is_link() {
            return Some(format!(
                "`{name}` is a symbolic link, but an output must be a regular file below the work directory: have the \
                 command write or copy the file itself to `{path}` (`cp -L`)"
            ));
        }
        if end == path.len() && found.is_dir() {
            return Some(format!(
                "`{path}` is a directory, but an output must be a file: `tidemill run --output {path}/` packs it; in a \
                 job file the output is an archive that the command makes"
            ));
        }
        if end == path.len() {
            return Some(format!(
                "`{path}` is not a regular file, but a pipe, socket or device"
            ));
        }
    }
    None
}

impl Init {
    /// What is to be said where the scratch had no room.
    pub(super) fn shortage(&self) -> String {
        match &self.spec.directory {
            None => self.scratch.shortage(self.spec.scratch_mb),
            Some(directory) => format!("payloads that span nodes write to `{}`", directory.display()),
        }
    }

    /// Measures the scratch if no kernel limit bounds it; else checks only whether it is nearly full.
    pub(super) fn judge_scratch(&self, payload: &mut Payload, now_us: u64) -> Option<Verdict> {
        let cap_mb = self.spec.scratch_mb;
        if self.scratch.place.in_memory {
            payload.was_short |= self.scratch.used_mb() * 10 >= cap_mb * 9;
            return None;
        }
        if self.spec.directory.is_some() || now_us < payload.next_scratch_us {
            return None;
        }
        let began_us = time::monotonic_us();
        let (used_mb, too_many) = self.scratch.counted(cap_mb);
        let cost_us = time::monotonic_us().saturating_sub(began_us);
        payload.next_scratch_us = now_us + SCRATCH_COST * cost_us;
        // removed files that are still open are in no directory
        let used_mb = used_mb + (payload.held.removed_bytes() >> 20);
        let what = if used_mb > cap_mb {
            "too much in the scratch".to_owned()
        } else if too_many {
            format!(
                "more than {} files in the scratch, or nested too deep",
                files_max(cap_mb)
            )
        } else {
            return None;
        };
        Some(Verdict {
            failure: "disk",
            message: format!("{what}: {}", self.shortage()),
        })
    }
}
