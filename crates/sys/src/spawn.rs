//! Starting programs: vfork and exec with as few system calls as possible.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use crate::error::{Result, SysError};
use crate::file;

/// Directories of our PATH, but for relative ones: those depend on where we are.
pub fn path_places() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|place| place.is_absolute())
        .collect()
}

/// The first file of this name in these directories that we may execute.
pub fn find_program(name: &OsStr, places: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    first_program(places.into_iter().map(|place| place.join(name)))
}

/// The first of these files that we may execute.
pub fn first_program(paths: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let mut paths = paths.into_iter();
    paths.find(|path| path.is_file() && file::may_execute(path.as_path()))
}

/// Strings as execve wants them: pointers, with a null at the end.
#[derive(Debug, Default)]
pub struct Strings {
    texts: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Strings {
    pub fn new() -> Self {
        Strings {
            texts: Vec::new(),
            pointers: vec![std::ptr::null()],
        }
    }

    /// A text with a NUL inside is an error.
    pub fn push(&mut self, text: impl Into<Vec<u8>>) -> Result<()> {
        let text = CString::new(text).map_err(|_| {
            let source = io::Error::other("argument or variable contains a NUL byte");
            SysError::new("pass on arguments", "", source)
        })?;
        self.pointers.pop();
        // the heap block of a CString stays where it is when the CString moves
        self.pointers.push(text.as_ptr());
        self.pointers.push(std::ptr::null());
        self.texts.push(text);
        Ok(())
    }

    pub fn truncate(&mut self, count: usize) {
        self.texts.truncate(count);
        self.pointers.truncate(count);
        self.pointers.push(std::ptr::null());
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.texts.iter().map(CString::as_c_str)
    }
}

/// A soft limit for a program, in the units of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftLimit {
    resource: libc::__rlimit_resource_t,
    value: libc::rlim_t,
}

impl SoftLimit {
    /// By the lower-case name of its resource, such as `stack`; a negative value means unlimited. None for an unknown name.
    pub fn named(name: &str, value: i64) -> Option<SoftLimit> {
        let resource = match name {
            "as" => libc::RLIMIT_AS,
            "core" => libc::RLIMIT_CORE,
            "cpu" => libc::RLIMIT_CPU,
            "data" => libc::RLIMIT_DATA,
            "fsize" => libc::RLIMIT_FSIZE,
            "memlock" => libc::RLIMIT_MEMLOCK,
            "nofile" => libc::RLIMIT_NOFILE,
            "nproc" => libc::RLIMIT_NPROC,
            "rss" => libc::RLIMIT_RSS,
            "stack" => libc::RLIMIT_STACK,
            _ => return None,
        };
        let value = libc::rlim_t::try_from(value).unwrap_or(libc::RLIM_INFINITY);
        Some(SoftLimit { resource, value })
    }
}

/// What a shell sets for the programs that it starts; the default is what this process has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLimits {
    pub umask: Option<u32>,
    /// the hard limits of this process bound them
    pub soft: Vec<SoftLimit>,
}

/// What to start. The child inherits descriptors 0, 1, 2 and everything not close-on-exec.
pub struct Command<'a> {
    pub path: &'a CStr,
    pub argv: &'a Strings,
    pub env: &'a Strings,
    /// descriptors to place at numbers below 10: (this process's, the child's)
    pub descriptors: &'a [(RawFd, RawFd)],
    /// signal to the child when this process ends; 0 = none
    pub parent_death_signal: i32,
    /// Landlock rules that the child keeps to; this process has given up new privileges
    pub rules: Option<BorrowedFd<'a>>,
    pub limits: &'a ShellLimits,
}

/// Starts programs. Owns the stack on which a child lives between vfork and exec.
pub struct Spawner {
    stack: NonNull<u8>,
}

const STACK_BYTES: usize = 64 * 1024;

struct Start<'a> {
    command: &'a Command<'a>,
    mask: libc::sigset_t,
    failed: Option<(&'static str, i32)>,
}

impl Spawner {
    pub fn new() -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: a new anonymous mapping; nothing else is touched.
        let stack = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if stack == libc::MAP_FAILED {
            return Err(SysError::last("map", "stack"));
        }
        NonNull::new(stack.cast())
            .map(|stack| Spawner { stack })
            .ok_or_else(|| SysError::new("map", "stack", io::ErrorKind::OutOfMemory.into()))
    }

    /// Starts a program in a session of its own, no signal blocked. Returns its pid once exec has succeeded; a failed
    /// exec is an error and leaves no child.
    pub fn spawn(&mut self, command: &Command<'_>) -> Result<i32> {
        // SAFETY: a zeroed sigset_t is the empty set on Linux.
        let mask = unsafe { std::mem::zeroed() };
        let mut start = Start {
            command,
            mask,
            failed: None,
        };
        // SAFETY: CLONE_VFORK stops this thread until the child has exec'ed or ended, so the child is the only user of
        // `start` and of the stack while it lives; the stack belongs to `self`, is large enough for a few system calls,
        // and is passed by its upper end, 16-byte aligned (mmap aligns to pages). The child makes only system calls,
        // allocates nothing and cannot unwind.
        let pid = unsafe {
            let top = self.stack.as_ptr().add(STACK_BYTES);
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(child, top.cast(), flags, (&raw mut start).cast())
        };
        if pid < 0 {
            return Err(SysError::last("start", command.path.to_string_lossy()));
        }
        if let Some((operation, errno)) = start.failed {
            let _ = crate::process::wait(pid, true);
            let source = io::Error::from_raw_os_error(errno);
            return Err(SysError::new(operation, command.path.to_string_lossy(), source));
        }
        Ok(pid)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and no child uses it (see `spawn`).
        unsafe { libc::munmap(self.stack.as_ptr().cast(), STACK_BYTES) };
    }
}

/// The child between vfork and exec, on its own stack in the parent's memory.
extern "C" fn child(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` points to the `Start` of the parent, which is suspended (see `spawn`). Only async-signal-safe
    // system calls follow. Their results are ignored where the worst case is a payload that notices.
    unsafe {
        let start = &mut *start.cast::<Start<'_>>();
        let command = start.command;
        for &(ours, theirs) in command.descriptors {
            if libc::dup2(ours, theirs) < 0 {
                start.failed = Some(("place a descriptor for", *libc::__errno_location()));
                libc::_exit(127);
            }
        }
        libc::setsid();
        if command.parent_death_signal != 0 {
            libc::prctl(
                libc::PR_SET_PDEATHSIG,
                command.parent_death_signal as libc::c_ulong,
            );
        }
        if let Some(rules) = command.rules {
            if libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) < 0 {
                start.failed = Some(("apply Landlock rules to", *libc::__errno_location()));
                libc::_exit(127);
            }
        }
        if let Some(umask) = command.limits.umask {
            libc::umask(umask & 0o777);
        }
        for soft in &command.limits.soft {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            if libc::getrlimit(soft.resource, &raw mut limit) == 0 {
                limit.rlim_cur = soft.value.min(limit.rlim_max);
                libc::setrlimit(soft.resource, &raw const limit);
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, &start.mask, std::ptr::null_mut());
        libc::execve(
            command.path.as_ptr(),
            command.argv.pointers.as_ptr(),
            command.env.pointers.as_ptr(),
        );
        start.failed = Some(("execute", *libc::__errno_location()));
        libc::_exit(127)
    }
}

/// This process becomes another program. Returns only when that failed.
pub fn replace(path: &CStr, argv: &Strings, env: &Strings) -> SysError {
    // SAFETY: path and both lists are NUL-terminated (see `Strings`) and live during the call.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    SysError::last("execute", path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{wait, Exit, Waited};

    #[test]
    fn programs_are_found_in_the_order_of_places_and_only_what_can_be_run() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let places = ["directory", "plain", "right", "later"].map(|name| dir.path().join(name));
        for place in &places {
            std::fs::create_dir(place).unwrap();
        }
        std::fs::create_dir(places[0].join("it")).unwrap();
        for (place, mode) in [(1, 0o644), (2, 0o755), (3, 0o755)] {
            let path = places[place].join("it");
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let found = find_program(OsStr::new("it"), places.clone());
        assert_eq!(found, Some(places[2].join("it")));
        assert_eq!(find_program(OsStr::new("other"), places), None);
    }

    fn strings(texts: &[&str]) -> Strings {
        let mut strings = Strings::new();
        for text in texts {
            strings.push(*text).unwrap();
        }
        strings
    }

    fn run(path: &CStr, argv: &[&str]) -> Result<i32> {
        run_limited(path, argv, &ShellLimits::default())
    }

    fn run_limited(path: &CStr, argv: &[&str], limits: &ShellLimits) -> Result<i32> {
        let (argv, env) = (strings(argv), strings(&["A=b"]));
        let command = Command {
            path,
            argv: &argv,
            env: &env,
            descriptors: &[],
            parent_death_signal: 0,
            rules: None,
            limits,
        };
        Spawner::new()?.spawn(&command)
    }

    #[test]
    fn a_program_gets_umask_and_soft_limits_and_hard_limits_bound_them() {
        let (_, hard) = crate::process::limit(crate::process::Limit::OpenFiles);
        let beyond = i64::try_from(hard.unwrap_or(1 << 20)).unwrap();
        let limits = ShellLimits {
            umask: Some(0o027),
            soft: [("stack", 4 << 20), ("core", 0), ("nofile", i64::MAX)]
                .into_iter()
                .map(|(name, value)| SoftLimit::named(name, value).unwrap())
                .collect(),
        };
        let test = format!(
            "test $(umask) = 0027 && test $(ulimit -s) = 4096 && test $(ulimit -c) = 0 && test $(ulimit -n) = {beyond}"
        );
        let pid = run_limited(c"/bin/bash", &["bash", "-c", &test], &limits).unwrap();
        let Waited::Ended { exit, .. } = wait(pid, true).unwrap() else {
            panic!("did not end");
        };
        assert_eq!(exit, Exit::Status(0), "{test}");
        let (here, _) = crate::process::limit(crate::process::Limit::Stack);
        assert_ne!(here, Some(4 << 20), "the limits are the program's alone");
        assert_eq!(SoftLimit::named("colour", 1), None);
    }

    #[test]
    fn a_program_gets_arguments_and_environment_and_its_exit_is_told() {
        let pid = run(c"/bin/sh", &["sh", "-c", "test \"$A\" = b && exit $1", "x", "7"]).unwrap();
        let Waited::Ended {
            pid: ended,
            exit,
            usage,
        } = wait(pid, true).unwrap()
        else {
            panic!("did not end");
        };
        assert_eq!((ended, exit), (pid, Exit::Status(7)));
        assert!(usage.rss_max_kb > 0);
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = run(c"/no/such/program", &["x"]).unwrap_err();
        assert_eq!(error.os_error(), libc::ENOENT);
        assert!(error.to_string().contains("/no/such/program"));
    }
}
