//! What payloads must not see, and what they see again nevertheless.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use tidemill_sys::{file, mount, process, spawn, Result, SysError};
use tidemill_wire::View;

use super::doors;
use crate::SlotSpec;

/// Where batch commands are looked for besides PATH.
const PROGRAM_DIRS: [&str; 6] = [
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
];

/// Files below S, their permissions and text: what replaces a masked file, a device file, and a batch command.
type StandIn = (&'static str, u32, &'static str);
const EMPTY: StandIn = ("cover/empty", 0o444, "");
const NOT_FOR_USE: StandIn = ("cover/nothing", 0o000, "");
const REFUSAL: StandIn = ("cover/refusal", 0o555, REFUSAL_SCRIPT);

macro_rules! no_batch {
    () => {
        "is a command of the batch system, and payloads cannot use it; `--nodes` and `--ranks` start a program on \
         several nodes, also with MPI (docs/mpi.md)"
    };
}

/// Why a payload cannot start a batch command, after its name.
pub(super) const NO_BATCH: &str = no_batch!();

/// Prints the reason: for a file without permissions, a shell only reports "Permission denied". The status is a shell's
/// for a file that it cannot execute.
const REFUSAL_SCRIPT: &str = concat!(
    "#!/bin/sh\nprintf 'tidemill: `%s` %s\\n' \"${0##*/}\" '",
    no_batch!(),
    "' >&2\nexit 126\n"
);

/// A directory that is covered, by S/tmp or a read-only S/cover/N.
pub(super) struct Cover {
    pub path: PathBuf,
    /// what lies beneath
    pub original: OwnedFd,
    /// below S
    skeleton: String,
}

/// What is shown again where it is covered.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Back {
    pub path: PathBuf,
    /// as writable as it is, not read-only
    pub write: bool,
}

/// What was covered, or had come back, below some directories.
pub(crate) struct Covered {
    masks: Vec<PathBuf>,
    forbidden: Vec<PathBuf>,
    backs: Vec<Back>,
    /// below S, used no more
    skeletons: Vec<String>,
}

/// Everything that is covered in this slot's mount namespace.
pub(crate) struct Covers {
    pub(super) active: bool,
    pub(super) view: View,
    /// S
    root: OwnedFd,
    pub(super) covers: Vec<Cover>,
    /// their contents are hidden; a program there is shown again alone
    pub(super) masks: Vec<PathBuf>,
    /// their contents are shown only where they are named
    pub(super) veils: Vec<PathBuf>,
    /// programs that cannot be started
    forbidden: Vec<PathBuf>,
    pub(super) backs: Vec<Back>,
    /// where images lie
    pub(super) areas: Vec<PathBuf>,
    /// entries of /tmp that cleaning must leave alone
    kept: Vec<String>,
    numbered: u64,
    /// directories that payloads cannot rename, since what is protected lies below them
    pub(super) pinned: Vec<PathBuf>,
    /// of the old /tmp when it was looked through last, nanoseconds
    pub(super) own_seen_ns: Option<i128>,
    /// directories that have come back and have not been searched for sockets
    pub(super) unsearched: VecDeque<PathBuf>,
}

impl Covers {
    pub fn new(root: OwnedFd, view: &View) -> Self {
        Covers {
            active: true,
            view: view.clone(),
            root,
            covers: Vec::new(),
            masks: Vec::new(),
            veils: Vec::new(),
            forbidden: Vec::new(),
            backs: Vec::new(),
            areas: Vec::new(),
            kept: vec![".tidemill".into()],
            numbered: 0,
            pinned: Vec::new(),
            own_seen_ns: None,
            unsearched: VecDeque::new(),
        }
    }

    /// For a slot without a mount namespace: covers nothing.
    pub fn none(root: OwnedFd) -> Self {
        Covers {
            active: false,
            ..Covers::new(root, &View::default())
        }
    }

    /// Entries of S/tmp that are not the payloads'.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    pub fn tmp_replaced(&mut self, original: OwnedFd) {
        self.covers.push(Cover {
            path: "/tmp".into(),
            original,
            skeleton: "tmp".into(),
        });
    }

    /// Before an image lies over an area: the place for the real tree beside it, and, where it is covered, such as below
    /// /tmp, the area itself again. `own` is S/own. The current directory is another one afterwards.
    pub fn prepare_area(&mut self, area: &Path, own: BorrowedFd<'_>) -> Result<()> {
        self.back(area, true)?;
        let names = plain_names(area, area.strip_prefix("/").unwrap_or(area))?;
        let mut at = String::from("real");
        file::make_dir_at(own, &at, 0o755)?;
        for name in names {
            at = format!("{at}/{name}");
            file::make_dir_at(own, &at, 0o755)?;
        }
        self.areas.push(area.to_owned());
        Ok(())
    }

    /// The same paths in the real trees beside images.
    fn beside(&self, paths: &[PathBuf]) -> Vec<PathBuf> {
        let below = |path: &&PathBuf| self.areas.iter().any(|area| path.starts_with(area));
        let alias =
            |path: &PathBuf| Path::new(tidemill_image::ALIAS).join(path.strip_prefix("/").unwrap_or(path));
        paths.iter().filter(below).map(alias).collect()
    }

    /// Masks the site's paths, the user's keys, and the batch system.
    pub fn mask_all(&mut self, spec: &SlotSpec, uid: u32) -> Result<()> {
        let mut masks = spec.mask.clone();
        masks.extend(self.credentials());
        masks.extend(spec.stores.iter().cloned());
        if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            masks.extend(Some(runtime).filter(|path| path.is_absolute()));
        }
        masks.push(format!("/run/user/{uid}").into());
        masks.extend(doors::masks(spec));
        masks.extend(self.beside(&masks));
        self.masks = masks.clone();
        for path in &masks {
            self.mask(path)?;
        }
        self.forbid_programs(&spec.batch_commands)
    }

    pub(super) fn mask(&mut self, path: &Path) -> Result<()> {
        let Ok(metadata) = std::fs::metadata(path) else {
            return Ok(());
        };
        self.pin(path)?;
        if metadata.is_dir() {
            // another's home is hidden too, and need not be readable for that
            let original = tidemill_sys::fd::high(file::open_dir(path).or_else(|_| file::open_place(path))?)?;
            let skeleton = self.number();
            file::make_dir_at(self.root.as_fd(), &skeleton, 0o755)?;
            self.show(self.root.as_fd(), &skeleton, path, true)?;
            self.covers.push(Cover {
                path: path.to_owned(),
                original,
                skeleton,
            });
        } else {
            self.hide_file(path)?;
        }
        Ok(())
    }

    /// An empty file in place of a file, a socket or a FIFO.
    pub(super) fn hide_file(&self, path: &Path) -> Result<()> {
        self.show_stand_in(EMPTY, path)
    }

    /// A file that covers a path; paths with the same cover share one file.
    fn show_stand_in(&self, (name, mode, text): StandIn, path: &Path) -> Result<()> {
        if file::status_at(self.root.as_fd(), name)?.is_none() {
            let mut made = file::create_at(self.root.as_fd(), name, mode)?;
            let written = made.write_all(text.as_bytes());
            written.map_err(|source| SysError::new("write", name, source))?;
            file::set_mode(made.as_fd(), mode)?; // the pilot's umask may have removed bits
        }
        self.show(self.root.as_fd(), name, path, true)
    }

    /// Whether this is a program that payloads must not start.
    pub fn forbids(&self, program: &Path) -> bool {
        self.forbidden.iter().any(|path| path == program)
    }

    /// Forgets and releases what is mounted below these directories, before the mounts at them are removed and take it
    /// along.
    pub fn uncover(&mut self, areas: &[PathBuf]) -> Covered {
        let below = |path: &Path| areas.iter().any(|area| path != area && path.starts_with(area));
        let chosen = |paths: &[PathBuf]| paths.iter().filter(|path| below(path)).cloned().collect();
        let (gone, kept): (Vec<Cover>, _) = std::mem::take(&mut self.covers)
            .into_iter()
            .partition(|cover| below(&cover.path));
        self.covers = kept;
        let covered = Covered {
            masks: [chosen(&self.veils_in_areas()), chosen(&self.masks)].concat(),
            forbidden: chosen(&self.forbidden),
            backs: self
                .backs
                .iter()
                .filter(|back| below(&back.path))
                .cloned()
                .collect(),
            skeletons: gone.into_iter().map(|cover| cover.skeleton).collect(),
        };
        self.backs.retain(|back| !below(&back.path));
        covered
    }

    /// Covers again what `uncover` returned. The current directory is a different one afterwards.
    pub fn cover_again(&mut self, covered: Covered) -> Result<()> {
        for skeleton in &covered.skeletons {
            file::empty(file::open_dir_at(self.root.as_fd(), skeleton)?.as_fd(), &[])?;
            file::remove_at(self.root.as_fd(), skeleton, true)?;
        }
        for path in &covered.masks {
            self.mask(path)?;
        }
        for program in &covered.forbidden {
            self.show_stand_in(REFUSAL, program)?;
        }
        for back in &covered.backs {
            self.back(&back.path, back.write)?;
        }
        Ok(())
    }

    /// Covers each of these programs with a script that prints the reason. On a user's own site, the user's own programs
    /// stay: other software has names such as `flux`, too.
    fn forbid_programs(&mut self, names: &[String]) -> Result<()> {
        let mut dirs = spawn::path_places();
        dirs.extend(PROGRAM_DIRS.iter().map(PathBuf::from));
        dirs.extend(self.beside(&dirs));
        dirs.sort();
        dirs.dedup();
        let own = (!self.view.shared).then(OwnPrograms::find);
        for name in names.iter().filter(|name| !name.contains('/')) {
            let found: Vec<PathBuf> = dirs
                .iter()
                .map(|dir| dir.join(name))
                .filter(|path| path.is_file() && !own.as_ref().is_some_and(|own| own.has(path)))
                .collect();
            for program in found {
                self.show_stand_in(REFUSAL, &program)?;
                self.forbidden.push(program);
            }
        }
        Ok(())
    }

    /// An empty file without any permission over each of these: opening it fails as if a device controller refused it.
    pub fn forbid_files(&self, paths: &[PathBuf]) -> Result<()> {
        let there = paths.iter().filter(|path| path.exists());
        there
            .into_iter()
            .try_for_each(|path| self.show_stand_in(NOT_FOR_USE, path))
    }

    fn number(&mut self) -> String {
        self.numbered += 1;
        format!("cover/{}", self.numbered)
    }

    /// Binds `relative` (below `base`) at `target`. The source is named relative to the current directory, because by its
    /// path it may be covered.
    fn show(&self, base: BorrowedFd<'_>, relative: &str, target: &Path, read_only: bool) -> Result<()> {
        file::change_dir(base)?;
        let source = if relative.is_empty() { "." } else { relative };
        mount::bind(Path::new(source), target)?;
        if read_only {
            mount::set_read_only(target, true)?;
        }
        Ok(())
    }

    /// Shows `path` again where it is covered: a directory or a regular file, read-only or as writable as it is. The
    /// current directory is another one afterwards.
    pub fn back(&mut self, path: &Path, write: bool) -> Result<()> {
        if !self.active || self.backs.iter().any(|back| back.path == path) {
            return Ok(());
        }
        if self.masks.iter().any(|mask| mask == path) {
            return Ok(()); // a key of the site stays hidden, even if it is named
        }
        let Some(at) = self.cover_of(path) else {
            return Ok(());
        };
        let (original, skeleton) = (&self.covers[at].original, self.covers[at].skeleton.clone());
        let below = path.strip_prefix(&self.covers[at].path).unwrap_or(Path::new(""));
        let names = plain_names(path, below)?;
        let original = tidemill_sys::fd::duplicate(original.as_fd())?;
        let secret = self.masks.iter().any(|mask| path.starts_with(mask));
        let is_dir = match kind_of(&original, &names.join("/")).unwrap_or(None) {
            Some(status) if status.is_file() => false,
            Some(status) if status.is_dir() && !secret => true,
            _ => return Ok(()), // not there, or not for this user: starting it will say so; or nothing to be shown
        };
        let skeleton = if skeleton == "tmp" {
            self.tmp_skeleton(&names, is_dir)?
        } else {
            skeleton
        };
        if let Some(skeleton) = skeleton.strip_suffix('/') {
            self.make_target(skeleton, &names[1..], is_dir)?;
        } else if skeleton != "tmp" {
            self.make_target(&skeleton, &names, is_dir)?;
        }
        self.show(original.as_fd(), &names.join("/"), path, false)?;
        if !write {
            mount::set_tree_read_only(path)?;
        } else if self.view.shared {
            make_writable(path)?;
        }
        self.backs.push(Back {
            path: path.to_owned(),
            write,
        });
        if is_dir {
            self.keep_below(path)?;
            self.search_later(path);
        }
        self.mask_below(path)
    }

    /// A directory that came back may hold covered ones; what came back before below those must come back again.
    fn mask_below(&mut self, path: &Path) -> Result<()> {
        let masks = self.masks.iter().filter(|mask| mask.starts_with(path));
        let veils = self
            .veils
            .iter()
            .filter(|veil| veil.starts_with(path) && *veil != path);
        let hidden: Vec<PathBuf> = masks.chain(veils).cloned().collect();
        for mask in hidden {
            self.mask(&mask)?;
            let (again, others) = std::mem::take(&mut self.backs)
                .into_iter()
                .partition(|back: &Back| back.path.starts_with(&mask));
            self.backs = others;
            let again: Vec<Back> = again;
            for back in again {
                self.back(&back.path, back.write)?;
            }
        }
        Ok(())
    }

    /// Whether a file is there and payloads do not see it.
    pub fn hides(&self, path: &Path) -> bool {
        let Some(cover) = self.cover_of(path).map(|at| &self.covers[at]) else {
            return false;
        };
        let below = path.strip_prefix(&cover.path).unwrap_or(Path::new(""));
        let names = plain_names(path, below).unwrap_or_default();
        !path.exists() && kind_of(&cover.original, &names.join("/")).is_ok_and(|kind| kind.is_some())
    }

    /// The innermost cover above a path, unless something between them has come back.
    fn cover_of(&self, path: &Path) -> Option<usize> {
        let covers = self
            .covers
            .iter()
            .enumerate()
            .filter(|(_, cover)| path.starts_with(&cover.path));
        let (at, cover) = covers.max_by_key(|(at, cover)| (cover.path.as_os_str().len(), *at))?;
        let shown = self
            .backs
            .iter()
            .any(|back| path.starts_with(&back.path) && back.path.starts_with(&cover.path));
        (!shown).then_some(at)
    }

    /// The first name below /tmp becomes a mount point that payloads cannot remove: a read-only skeleton, marked by a
    /// `/` at the end of its name, or (`tmp`) the very file or directory that is shown again.
    fn tmp_skeleton(&mut self, names: &[String], is_dir: bool) -> Result<String> {
        let [first, rest @ ..] = names else {
            return Err(SysError::new(
                "show again",
                "/tmp",
                std::io::ErrorKind::InvalidInput.into(),
            ));
        };
        let point = format!("tmp/{first}");
        let skeleton = format!("cover/tmp-{first}");
        if rest.is_empty() {
            make_point(&self.root, &point, is_dir)?;
            self.kept.push(first.clone());
            return Ok("tmp".into());
        }
        if !self.kept.contains(first) {
            file::make_dir_at(self.root.as_fd(), &point, 0o755)?;
            file::make_dir_at(self.root.as_fd(), &skeleton, 0o755)?;
            self.show(self.root.as_fd(), &skeleton, &Path::new("/tmp").join(first), true)?;
            self.kept.push(first.clone());
        }
        Ok(format!("{skeleton}/"))
    }

    /// Makes a mount point below a skeleton.
    fn make_target(&self, skeleton: &str, names: &[String], is_dir: bool) -> Result<()> {
        let mut at = skeleton.to_owned();
        for (index, name) in names.iter().enumerate() {
            at = format!("{at}/{name}");
            let inner = index + 1 < names.len();
            make_point(&self.root, &at, inner || is_dir)?;
        }
        Ok(())
    }
}

/// What makes a program the user's own.
struct OwnPrograms {
    home: Option<PathBuf>,
    /// None if ownership proves nothing: root's files are the system's, and in the slot's user namespace all users but
    /// one have the overflow id (user_namespaces(7))
    uid: Option<u32>,
}

impl OwnPrograms {
    fn find() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let home = home.and_then(|home| home.canonicalize().ok());
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        let overflow: Option<u32> = overflow.ok().and_then(|text| text.trim().parse().ok());
        let uid = process::user_and_group().0;
        OwnPrograms {
            home: home.filter(|home| home.parent().is_some()),
            uid: (uid != 0 && overflow.is_some_and(|overflow| uid != overflow)).then_some(uid),
        }
    }

    /// Whether a program, not a link to it, belongs to the user or lies in their home directory.
    fn has(&self, program: &Path) -> bool {
        let Ok(real) = program.canonicalize() else {
            return false;
        };
        self.home.as_ref().is_some_and(|home| real.starts_with(home))
            || self
                .uid
                .is_some_and(|uid| real.metadata().is_ok_and(|status| status.uid() == uid))
    }
}

fn make_point(root: &OwnedFd, name: &str, is_dir: bool) -> Result<()> {
    if file::status_at(root.as_fd(), name)?.is_some() {
        return Ok(());
    }
    if is_dir {
        return file::make_dir_at(root.as_fd(), name, 0o755);
    }
    file::create_at(root.as_fd(), name, 0o444).map(drop)
}

/// What it is; None where it does not exist.
/// As writable as the node has it: a mount that is read-only there stays so, which the kernel says by EPERM in a user
/// namespace (mount_namespaces(7), locked flags).
pub(super) fn make_writable(path: &Path) -> Result<()> {
    match mount::set_read_only(path, false) {
        Err(error)
            if matches!(
                error.source.kind(),
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn kind_of(base: &OwnedFd, relative: &str) -> Result<Option<file::Status>> {
    let name = if relative.is_empty() { "." } else { relative };
    file::status_followed(base.as_fd(), name)
}

/// The names of a relative path; `..` is an error.
fn plain_names(whole: &Path, below: &Path) -> Result<Vec<String>> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    };
    let names: Option<Vec<String>> = below.components().map(name).collect();
    names.ok_or_else(|| {
        let source = std::io::Error::other("a path with `..`, or not UTF-8");
        SysError::new("show again", whole.to_string_lossy(), source)
    })
}
