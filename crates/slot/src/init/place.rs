//! Where payloads live: the slot's namespaces and mounts, or a directory where there are none.
//!
//! One tmpfs, the scratch (S), holds everything (a directory elsewhere does where memory is short); the init keeps a
//! descriptor of its root:
//!
//! ```text
//! S/tmp         the payloads' /tmp, with /tmp/work (current directory) and /tmp/home (HOME)
//! S/shm         the payloads' /dev/shm
//! S/own         the payloads' /tmp/.tidemill, read-only to them: lib/ and in/JOB/
//! S/out/N/      outputs that wait for the pilot; payloads cannot reach it
//! S/over/N/     what a payload writes where image N lies over the file system (upper and work directories of overlays)
//! S/cover/N/    what payloads see, read-only, in place of a masked directory: nothing but the programs they need
//! ```
//!
//! /tmp being replaced, a program that lies there would be gone. What the site's own files name, and on a person's own
//! site what is theirs there, is shown again at its old path (`view`); inputs are read through a descriptor of the root
//! directory that was opened before anything was covered.
//!
//! Images lie over their areas, and the real trees beside them at /tmp/.tidemill/real, masked like the originals.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use tidemill_image::{Covering, ImageError};
use tidemill_sys::{file, landlock, mount, process, security, signal, socket, Result, SysError};

use super::cover::Covers;
use super::inputs::NodeCache;
use super::{doors, view};
use crate::{Isolated, Isolation, SlotImage, SlotSpec};

/// The Python payload library as payloads import it, from the tree of Python: the binary is built inside the repository
/// only (see build.rs of tidemill-node).
const LIBRARY: &str = include_str!("../../../../src/tidemill/payload/__init__.py");

/// Directories and paths of a slot.
pub(crate) struct SlotPlace {
    pub isolated: Isolated,
    /// S is a tmpfs of the slot's own
    pub in_memory: bool,
    /// S; outputs are renamed through it, since a rename does not cross mounts
    pub root: OwnedFd,
    /// the next three as payloads see them: the current directory must have its path there
    pub tmp: OwnedFd,
    pub work: OwnedFd,
    pub home: OwnedFd,
    pub shm: OwnedFd,
    pub own: OwnedFd,
    /// `/` before anything was covered
    pub old_root: OwnedFd,
    /// as payloads see S/tmp, S/tmp/home, S/own
    pub tmp_path: String,
    pub home_path: String,
    pub own_path: String,
    pub covers: Covers,
    /// images over their areas
    coverings: Vec<Covering>,
    /// payloads cannot open the device files of GPUs that are not the slot's
    pub devices_hidden: bool,
    /// what is not as it should be, and why
    pub note: String,
    /// of `SlotSpec::stores`, those that are there
    pub stores: Vec<(PathBuf, OwnedFd)>,
    pub node_cache: NodeCache,
    /// Landlock rules that payloads keep to, where the kernel has any
    pub rules: Option<OwnedFd>,
    /// where files may change by these rules; None = they do not bound files
    writable: Option<Vec<PathBuf>>,
}

/// What `start` passes to the init.
pub(crate) struct Entry<'a> {
    pub spec: &'a SlotSpec,
    pub old_root: OwnedFd,
    /// user and group of the pilot; they stay the same inside
    pub identity: (u32, u32),
    pub isolated: Isolated,
    /// the scratch directory of a slot without namespaces, or of one whose scratch is not in memory
    pub directory: Option<PathBuf>,
    /// there is a network namespace of the slot's own
    pub closed: bool,
}

/// Makes the namespaces that this process has just been born into a slot: identity, mounts, rights.
pub(crate) fn enter(entry: Entry<'_>) -> Result<SlotPlace> {
    match (entry.isolated, entry.directory.clone()) {
        (Isolated::Subreaper, Some(directory)) => enter_directory(entry, &directory),
        _ => enter_namespaces(entry),
    }
}

/// S at /tmp: memory, or a directory elsewhere.
fn mount_scratch(entry: &Entry<'_>, tmp: &Path) -> Result<()> {
    match &entry.directory {
        None => mount::tmpfs(tmp, entry.spec.scratch_mb.max(1) << 20, 0o755),
        Some(directory) => {
            mount::bind_descriptor(file::open_dir(directory)?.as_fd(), tmp)?;
            mount::set_read_only(tmp, false)
        }
    }
}

fn enter_namespaces(entry: Entry<'_>) -> Result<SlotPlace> {
    let (uid, _) = entry.identity;
    process::map_user(entry.identity, entry.identity)?;
    if entry.closed {
        socket::bring_up_loopback()?; // programs talk to themselves by it, MPI for one
    }
    mount::make_all_private()?;
    let stores = open_stores(entry.spec); // before they are covered
    view::close(&entry.spec.view)?;
    let tmp = Path::new("/tmp");
    let covered_tmp = file::open_dir(tmp)?;
    let images = open_images(entry.spec)?;
    mount_scratch(&entry, tmp)?;
    let root = file::open_dir(tmp)?;
    make_directories(&root)?;
    let dir = |name: &str| file::open_dir_at(root.as_fd(), name).and_then(tidemill_sys::fd::high);
    let tmp_seen = |name: &str| file::open_dir(&tmp.join(name)).and_then(tidemill_sys::fd::high);
    if Path::new("/dev/shm").is_dir() {
        mount::bind(Path::new("/tmp/shm"), Path::new("/dev/shm"))?;
    }
    mount::bind(Path::new("/tmp/own"), Path::new("/tmp/tmp/.tidemill"))?;
    mount::set_read_only(Path::new("/tmp/tmp/.tidemill"), true)?;
    mount::bind(Path::new("/tmp/tmp"), tmp)?;
    mount::proc(Path::new("/proc"))?;
    let mut place = SlotPlace {
        isolated: Isolated::Namespaces,
        in_memory: entry.directory.is_none(),
        tmp: tmp_seen("")?,
        work: tmp_seen("work")?,
        home: tmp_seen("home")?,
        shm: dir("shm")?,
        own: dir("own")?,
        old_root: entry.old_root,
        tmp_path: "/tmp".into(),
        home_path: "/tmp/home".into(),
        own_path: "/tmp/.tidemill".into(),
        covers: Covers::new(tidemill_sys::fd::duplicate(root.as_fd())?, &entry.spec.view),
        coverings: Vec::new(),
        devices_hidden: false,
        note: String::new(),
        root,
        stores,
        node_cache: NodeCache::default(),
        rules: None,
        writable: None,
    };
    // segments of System V shared memory go with their last user; kernels that refuse keep them until the slot ends
    let _ = std::fs::write("/proc/sys/kernel/shm_rmid_forced", "1");
    doors::forbid_namespaces(entry.spec);
    place.covers.tmp_replaced(covered_tmp);
    let open = view::close_kernel(&entry.spec.view, uid)?;
    place.note.push_str(&open);
    place.covers.veil_all()?;
    cover_areas(&mut place, entry.spec, &images)?;
    place.covers.veil_again()?;
    place.covers.mask_all(entry.spec, uid)?;
    doors::hide_services(&place.root, entry.spec)?;
    place.covers.show_named()?;
    let hidden = entry.spec.hidden_files();
    place.covers.forbid_files(&hidden)?;
    place.devices_hidden = !hidden.is_empty();
    finish_set_up(&place)?;
    doors::bound(entry.spec)?;
    security::start_programs_without_capabilities()?;
    harden(false)?;
    place.note.push_str(&doors::close_calls(entry.spec, false));
    place.bound(entry.spec)?;
    security::set_parent_death_signal(signal::KILL)?;
    Ok(place)
}

impl SlotPlace {
    /// Takes back what a payload wrote below the areas of images; whether there was anything. No process may be left that
    /// uses an area.
    pub fn renew_areas(&mut self) -> Result<bool> {
        let mut any = false;
        for covering in &mut self.coverings {
            let failed = |error| image_error("empty area", "of an image", &error);
            if !covering.is_changed(self.in_memory).map_err(failed)? {
                continue;
            }
            any = true;
            let areas: Vec<PathBuf> = covering.areas().map(Path::to_owned).collect();
            let covered = self.covers.uncover(&areas);
            covering.renew().map_err(failed)?;
            self.covers.cover_again(covered)?;
        }
        if any {
            self.make_rules(); // the areas are other directories now
        }
        Ok(any)
    }

    /// Landlock beside the mounts. Not where a launcher's ranks are outside of the slot, and not where set-user-id
    /// programs must work, which they do not under rules.
    fn bound(&mut self, spec: &SlotSpec) -> Result<()> {
        if spec.directory.is_some() || spec.isolation == Isolation::Off {
            return Ok(());
        }
        landlock::scope()?;
        if spec.view.shared && !spec.may_mount {
            let mut writable: Vec<PathBuf> = ["/dev", "/proc", "/tmp", "/dev/shm"].map(PathBuf::from).into();
            if self.isolated == Isolated::Subreaper {
                writable.extend(["/var/tmp".into(), self.tmp_path.clone().into()]);
            }
            writable.extend(spec.view.write.iter().map(PathBuf::from));
            writable.extend(
                spec.images
                    .iter()
                    .flat_map(|image| &image.areas)
                    .map(PathBuf::from),
            );
            self.writable = Some(writable);
        }
        self.make_rules();
        Ok(())
    }

    fn make_rules(&mut self) {
        let Some(writable) = &self.writable else { return };
        let (rules, wrong) = view::rules(writable);
        self.rules = rules;
        self.note.push_str(&wrong);
    }
}

fn image_error(operation: &'static str, on: &str, error: &ImageError) -> SysError {
    SysError::new(operation, on, std::io::Error::other(error.chain()))
}

/// The trees of images: where they lie may be covered a moment later.
fn open_images(spec: &SlotSpec) -> Result<Vec<OwnedFd>> {
    let open = |image: &SlotImage| file::open_dir(&image.root).and_then(tidemill_sys::fd::high);
    spec.images.iter().map(open).collect()
}

/// Lays each image over its areas. Writes go to the scratch.
fn cover_areas(place: &mut SlotPlace, spec: &SlotSpec, images: &[OwnedFd]) -> Result<()> {
    let by_number = |fd: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    for (number, (image, root)) in spec.images.iter().zip(images).enumerate() {
        let scratch = format!("over/{number}");
        file::make_dir_at(place.root.as_fd(), "over", 0o700)?;
        file::make_dir_at(place.root.as_fd(), &scratch, 0o700)?;
        for area in &image.areas {
            place.covers.prepare_area(Path::new(area), place.own.as_fd())?;
        }
        let covering = tidemill_image::cover(
            &by_number(root),
            &image.areas,
            &by_number(&place.root).join(scratch),
            Path::new(tidemill_image::ALIAS),
        )
        .map_err(|error| image_error("show image over", &image.areas.join(", "), &error))?;
        place.note.push_str(&covering.note);
        place.coverings.push(covering);
    }
    Ok(())
}

fn enter_directory(entry: Entry<'_>, directory: &Path) -> Result<SlotPlace> {
    security::become_subreaper()?;
    let root = file::open_dir(directory)?;
    make_directories(&root)?;
    let dir = |name: &str| file::open_dir_at(root.as_fd(), name).and_then(tidemill_sys::fd::high);
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let mut place = SlotPlace {
        isolated: Isolated::Subreaper,
        in_memory: false,
        tmp: dir("tmp")?,
        work: dir("tmp/work")?,
        home: dir("tmp/home")?,
        shm: dir("shm")?,
        own: dir("own")?,
        old_root: entry.old_root,
        tmp_path: path("tmp"),
        home_path: path("tmp/home"),
        own_path: path("own"),
        covers: Covers::none(tidemill_sys::fd::duplicate(root.as_fd())?),
        coverings: Vec::new(),
        devices_hidden: false,
        note: String::new(),
        root,
        stores: open_stores(entry.spec),
        node_cache: NodeCache::default(),
        rules: None,
        writable: None,
    };
    finish_set_up(&place)?;
    // no parent-death signal: only the living init can end its payloads, when the pilot's socket closes
    let setuid = entry.spec.isolation == Isolation::Off;
    harden(setuid)?;
    doors::bound_files(entry.spec)?;
    place.note.push_str(&doors::close_calls(entry.spec, setuid));
    place.bound(entry.spec)?;
    Ok(place)
}

/// A store that is made later is not shown to this slot: it copies from there.
fn open_stores(spec: &SlotSpec) -> Vec<(PathBuf, OwnedFd)> {
    let open = |path: &PathBuf| {
        let fd = file::open_dir(path).and_then(tidemill_sys::fd::high).ok()?;
        Some((path.clone(), fd))
    };
    spec.stores.iter().filter_map(open).collect()
}

fn make_directories(root: &OwnedFd) -> Result<()> {
    let directories = [
        ("tmp", 0o1777),
        ("tmp/work", 0o755),
        ("tmp/home", 0o700),
        ("tmp/.tidemill", 0o755),
        ("shm", 0o1777),
        ("out", 0o700),
        ("own", 0o755),
        ("own/lib", 0o755),
        ("own/in", 0o755),
        ("cover", 0o755),
    ];
    for (name, mode) in directories {
        file::make_dir_at(root.as_fd(), name, mode)?;
    }
    Ok(())
}

fn finish_set_up(place: &SlotPlace) -> Result<()> {
    use std::io::Write;
    let mut library = file::create_at(place.own.as_fd(), "lib/tidemill_payload.py", 0o644)?;
    let written = library.write_all(LIBRARY.as_bytes());
    written.map_err(|source| SysError::new("write", "tidemill_payload.py", source))?;
    // the umask is the pilot's
    file::set_mode(place.tmp.as_fd(), 0o1777)?;
    file::set_mode(place.shm.as_fd(), 0o1777)?;
    file::change_dir(place.work.as_fd())
}

/// What both ways share. The order matters: changes of rights reset the parent-death signal and the dumpable state.
/// `setuid`: the site needs set-user-id programs, such as a container's runtime, and takes what else comes with them.
fn harden(setuid: bool) -> Result<()> {
    if !setuid {
        security::forbid_new_privileges()?;
    }
    process::forbid_core_dumps()?;
    security::set_dumpable(false)
}
