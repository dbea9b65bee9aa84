//! squashfuse: found, started, watched and ended.
//!
//! This process opens /dev/fuse and mounts; squashfuse gets the connection as mount point `/dev/fd/3`, which libfuse
//! accepts since 3.3 (its ChangeLog, "/dev/fd/%u"), so it needs neither rights nor fusermount. An ordinary user's
//! squashfuse runs in a user namespace in which that user is user 0: files of an image belong to 0, so they belong to
//! the user. squashfuse gets SIGKILL when this process ends.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tidemill_sys::fd;
use tidemill_sys::mountinfo::mounts;
use tidemill_sys::overlay::{self, FuseUser};
use tidemill_sys::process::{self, Exit, Fork, Namespaces, Waited};
use tidemill_sys::spawn::{self, Strings};
use tidemill_sys::{child, file, mount, security, signal, socket, time, SysError};
use tidemill_wire::log::cause;

use crate::{ImageError, Limits};

const PROGRAMS: [&str; 2] = ["squashfuse_ll", "squashfuse"];
/// Looked at before PATH, whose directories may be on the shared file system. Apptainer and Singularity bring a squashfuse
/// along (their libexec directories, 1.1 and later).
pub const PROGRAM_PLACES: [&str; 10] = [
    "/usr/bin",
    "/bin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/libexec/apptainer/bin",
    "/usr/local/libexec/apptainer/bin",
    "/usr/lib/apptainer/bin",
    "/opt/apptainer/libexec/apptainer/bin",
    "/usr/libexec/singularity/bin",
    "/usr/local/libexec/singularity/bin",
];
/// Interval between checks whether it answers.
const LOOK_US: u64 = 2_000;
/// From the end of its mount to its own.
const LAST_US: u64 = 1_000_000;
/// What it says is kept up to here.
const WORDS_MAX: usize = 2000;
/// Descriptor at which squashfuse finds its connection.
const CONNECTION: i32 = 3;

/// A squashfuse that serves a mount.
#[derive(Debug)]
pub(crate) struct Daemon {
    pid: i32,
    /// the process that started it; a fork of that process must not end it
    owner: i32,
    at: PathBuf,
    program: PathBuf,
    words: File,
    said: String,
    exit: Option<Option<Exit>>,
    note: String,
}

/// The first squashfuse of the usual places and PATH.
fn find() -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = PROGRAM_PLACES.iter().map(PathBuf::from).collect();
    places.extend(spawn::path_places());
    let find = |program: &&str| spawn::find_program(OsStr::new(program), places.iter().cloned());
    PROGRAMS.iter().find_map(find)
}

/// The user as which squashfuse runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// the caller's user; files of user 0 keep their owner
    Same,
    /// user 0 of a nested user namespace
    Owner,
}

impl Daemon {
    /// Mounts the image at `at` and waits until it answers.
    pub fn start(image: &Path, at: &Path, limits: &Limits) -> Result<Daemon, ImageError> {
        let program = find().ok_or_else(|| {
            ImageError::Fuse(format!(
                "no squashfuse_ll or squashfuse in {} or PATH",
                PROGRAM_PLACES.join(", ")
            ))
        })?;
        let (uid, _) = process::user_and_group();
        if uid == 0 {
            return Daemon::start_as(Identity::Same, &program, image, at, limits);
        }
        match Daemon::start_as(Identity::Owner, &program, image, at, limits) {
            Err(error @ (ImageError::Fuse(_) | ImageError::Sys(_))) => {
                let mut daemon = Daemon::start_as(Identity::Same, &program, image, at, limits)?;
                daemon.note = format!("files belong to others and cannot be changed: {}", cause(&error));
                Ok(daemon)
            }
            started => started,
        }
    }

    fn start_as(
        identity: Identity,
        program: &Path,
        image: &Path,
        at: &Path,
        limits: &Limits,
    ) -> Result<Daemon, ImageError> {
        let (words, their_words) = fd::pipe()?;
        let (ours, theirs) = socket::stream_pair()?;
        let namespaces = Namespaces {
            user: identity == Identity::Owner,
            mount: identity == Identity::Owner,
            ..Namespaces::NONE
        };
        let owner = process::id();
        let pid = match process::fork(namespaces)? {
            Fork::Parent { child } => child,
            Fork::Child => {
                let birth = Birth {
                    identity,
                    user: process::user_and_group(),
                    owner,
                    socket: theirs,
                    words: their_words,
                };
                be_squashfuse(&birth, program, image, at)
            }
        };
        drop((theirs, their_words));
        fd::set_nonblocking(words.as_fd(), true)?;
        let mut daemon = Daemon {
            pid,
            owner,
            at: at.to_owned(),
            program: program.to_owned(),
            words: File::from(words),
            said: String::new(),
            exit: None,
            note: String::new(),
        };
        if let Some(mounted) = socket::receive_descriptor(ours.as_fd())? {
            overlay::place_mount(mounted.as_fd(), at)?;
        }
        daemon.wait_until_it_answers(limits)?;
        Ok(daemon)
    }

    /// Asks from a separate process: if squashfuse hangs, the process that asks hangs too.
    fn wait_until_it_answers(&mut self, limits: &Limits) -> Result<(), ImageError> {
        let asker = match process::fork(Namespaces::NONE)? {
            Fork::Parent { child } => child,
            Fork::Child => {
                let answer = file::open_dir(&self.at).and_then(|dir| file::entries(dir.as_fd()));
                process::exit_now(i32::from(answer.is_err()))
            }
        };
        let end_us = time::monotonic_us() + (limits.answer_s * 1e6) as u64;
        let answer = loop {
            match process::wait(asker, false)? {
                Waited::Ended { exit, .. } => break Some(exit),
                Waited::NoChildren => break None,
                Waited::Running if time::monotonic_us() > end_us || self.ended().is_some() => break None,
                Waited::Running => drop(fd::poll(&mut [], Some(LOOK_US))?),
            }
        };
        if answer.is_some_and(|exit| exit != Exit::Status(0)) {
            // it lets go of the mount a moment before it can be waited for
            let end_us = time::monotonic_us() + LAST_US;
            while self.ended().is_none() && time::monotonic_us() < end_us {
                fd::poll(&mut [], Some(LOOK_US))?;
            }
        }
        // that the mount can be listed says nothing when it is not a mount any more
        let ended = self.ended();
        if ended.is_none() && answer == Some(Exit::Status(0)) && is_mounted(&self.at) {
            return Ok(());
        }
        if answer.is_none() {
            let _ = signal::kill(self.pid, signal::KILL); // lets go of the asker where it is stuck
            child::end(asker);
        }
        Err(ImageError::Fuse(ended.unwrap_or_else(|| {
            format!(
                "`{}` does not answer{}",
                self.program.display(),
                self.words_said()
            )
        })))
    }

    pub fn watch(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    pub fn note(&self) -> &str {
        &self.note
    }

    pub fn pid(&self) -> Option<i32> {
        self.exit.is_none().then_some(self.pid)
    }

    pub fn gone(&mut self, exit: Exit) {
        self.exit.get_or_insert(Some(exit));
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<String> {
        self.listen();
        if self.exit.is_none() {
            match process::wait(self.pid, false) {
                Ok(Waited::Ended { exit, .. }) => self.exit = Some(Some(exit)),
                Ok(Waited::NoChildren) => self.exit = Some(None),
                _ => return None,
            }
            self.listen();
        }
        let how = match self.exit.flatten() {
            Some(exit) => format!("ended with {exit}"),
            None => "is gone".to_owned(),
        };
        Some(format!(
            "squashfuse {how} (`{}`){}",
            self.program.display(),
            self.words_said()
        ))
    }

    fn listen(&mut self) {
        let mut buffer = [0; 1024];
        while let Ok(got @ 1..) = self.words.read(&mut buffer) {
            let words = String::from_utf8_lossy(&buffer[..got]);
            let room = WORDS_MAX.saturating_sub(self.said.len());
            self.said.extend(words.chars().take(room));
        }
    }

    fn words_said(&self) -> String {
        let words = self.said.trim();
        if words.is_empty() {
            String::new()
        } else {
            format!(": {words}")
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if process::id() != self.owner {
            return;
        }
        if is_mounted(&self.at) {
            let _ = mount::detach(&self.at);
        }
        if self.exit.is_none() {
            child::end(self.pid);
        }
    }
}

/// Whether a FUSE mount is at this path. Asks only the kernel.
fn is_mounted(at: &Path) -> bool {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let at = at.to_string_lossy();
    mounts(&String::from_utf8_lossy(&text))
        .iter()
        .any(|mount| mount.point == at && mount.kind.starts_with("fuse"))
}

/// What the process that becomes squashfuse is born with.
struct Birth {
    identity: Identity,
    user: (u32, u32),
    owner: i32,
    socket: OwnedFd,
    words: OwnedFd,
}

fn be_squashfuse(birth: &Birth, program: &Path, image: &Path, at: &Path) -> ! {
    let error = become_squashfuse(birth, program, image, at);
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(&error) {
        text = format!("{text}: {cause}");
    }
    // after `place` the pipe is descriptor 2, before it is where it was
    let _ = fd::write(birth.words.as_fd(), text.as_bytes());
    process::exit_now(127)
}

/// Returns only what went wrong.
fn become_squashfuse(birth: &Birth, program: &Path, image: &Path, at: &Path) -> SysError {
    let (argv, env, path) = match words_for(program, image) {
        Ok(words) => words,
        Err(error) => return error,
    };
    let prepared = mount_here(birth, at).and_then(|fuse| {
        let null = File::open("/dev/null").map_err(|source| SysError::new("open", "/dev/null", source))?;
        process::new_session()?;
        fd::place(null.as_fd(), 0)?;
        fd::place(null.as_fd(), 1)?;
        fd::place(birth.words.as_fd(), 2)?;
        fd::place(fuse.as_fd(), CONNECTION)?;
        signal::reset_all()?;
        // batch systems signal all processes of a job: it serves until its owner lets go of it, by KILL
        signal::block_only(&signal::SENT_TO_ALL)?;
        security::start_programs_without_capabilities()?;
        security::forbid_new_privileges()?;
        security::set_parent_death_signal(signal::KILL)?;
        // a parent outside this PID namespace has the number 0
        if process::parent_id() != birth.owner {
            return Err(SysError::new(
                "start",
                "squashfuse",
                std::io::Error::other("who started it has ended"),
            ));
        }
        fd::close_from(CONNECTION + 1, &[birth.words.as_raw_fd()])?;
        // closed already, with everything else
        let _ = (null.into_raw_fd(), fuse.into_raw_fd());
        Ok(())
    });
    match prepared {
        Ok(()) => spawn::replace(&path, &argv, &env),
        Err(error) => error,
    }
}

fn words_for(program: &Path, image: &Path) -> Result<(Strings, Strings, CString), SysError> {
    let path = CString::new(program.as_os_str().as_bytes())
        .map_err(|source| SysError::new("use as path", program.to_string_lossy(), source.into()))?;
    let (mut argv, mut env) = (Strings::new(), Strings::new());
    argv.push(program.as_os_str().as_bytes())?;
    argv.push("-f")?;
    argv.push(image.as_os_str().as_bytes())?;
    argv.push(format!("/dev/fd/{CONNECTION}"))?;
    env.push("LC_ALL=C")?;
    let usual = PROGRAM_PLACES
        .iter()
        .any(|place| program.parent() == Some(Path::new(place)));
    if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH").filter(|_| !usual) {
        env.push([b"LD_LIBRARY_PATH=", libraries.as_bytes()].concat())?;
    }
    Ok((argv, env, path))
}

/// Mounts, or sends the mount to our starter; returns the connection.
fn mount_here(birth: &Birth, at: &Path) -> Result<File, SysError> {
    let (uid, gid) = birth.user;
    if birth.identity == Identity::Owner {
        process::map_user((uid, gid), (0, 0))?;
        let fuse = overlay::open_fuse()?;
        let user = FuseUser {
            uid: 0,
            gid: 0,
            everybody: false,
        };
        let mounted = overlay::detached_fuse(fuse.as_fd(), user)?;
        socket::send_descriptor(birth.socket.as_fd(), mounted.as_fd())?;
        return Ok(fuse);
    }
    let fuse = overlay::open_fuse()?;
    let user = FuseUser {
        uid,
        gid,
        everybody: true,
    };
    overlay::mount_fuse(fuse.as_fd(), user, at)?;
    let _ = socket::send(birth.socket.as_fd(), &[1]); // a starter that has ended is noticed elsewhere
    Ok(fuse)
}
