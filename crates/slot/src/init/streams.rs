//! Stdout and stderr of payloads: two pipes that all payloads of a slot use, one after the other.
//!
//! Their writing ends are descriptors 1 and 2 of the init, which itself prints nothing. Between two payloads every
//! process that could hold them is dead, so nothing of one can get into the other.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tidemill_sys::{fd, file, Result};

use crate::capture::Capture;

const READ_BYTES: usize = 64 << 10;
/// Reads of one stream before others get their turn.
const READS_MAX: usize = 16;
/// Stdout that is an output goes to a file when it is longer.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// Stdout as an output: in memory, then in a file of the scratch.
pub(crate) enum Whole {
    Memory(Vec<u8>),
    File { file: File, path: String },
}

/// The reading ends and what came out of them.
pub(crate) struct Streams {
    out: OwnedFd,
    err: OwnedFd,
    pub stdout: Capture,
    pub stderr: Capture,
    whole: Option<Whole>,
    /// the first error of writing `whole`
    pub whole_error: Option<io::Error>,
    buffer: Vec<u8>,
}

impl Streams {
    /// Makes the pipes and places their writing ends at 1 and 2, and `null` at 0.
    pub fn new(null: BorrowedFd<'_>) -> Result<Self> {
        let (out, out_end) = fd::pipe()?;
        let (err, err_end) = fd::pipe()?;
        fd::set_nonblocking(out.as_fd(), true)?;
        fd::set_nonblocking(err.as_fd(), true)?;
        fd::place(null, 0)?;
        fd::place(out_end.as_fd(), 1)?;
        fd::place(err_end.as_fd(), 2)?;
        let buffer = vec![0; READ_BYTES];
        let (stdout, stderr) = (Capture::default(), Capture::default());
        Ok(Streams {
            out,
            err,
            stdout,
            stderr,
            whole: None,
            whole_error: None,
            buffer,
        })
    }

    pub fn out_fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }

    pub fn err_fd(&self) -> BorrowedFd<'_> {
        self.err.as_fd()
    }

    /// Forgets the last payload's output. `keep_whole`: stdout is an output.
    pub fn reset(&mut self, limit: usize, keep_whole: bool) {
        self.stdout.reset(limit);
        self.stderr.reset(limit);
        self.whole = keep_whole.then(|| Whole::Memory(Vec::new()));
        self.whole_error = None;
    }

    /// Reads some of stdout. `spill` makes the file that a long stdout output goes to.
    pub fn read_out(&mut self, spill: &mut dyn FnMut() -> io::Result<(File, String)>) {
        for _ in 0..READS_MAX {
            let Some(got) = read_some(&self.out, &mut self.buffer) else {
                return;
            };
            self.stdout.push(&self.buffer[..got]);
            if self.whole.is_some() && self.whole_error.is_none() {
                let kept = keep(&mut self.whole, &self.buffer[..got], spill);
                self.whole_error = kept.err();
            }
        }
    }

    pub fn read_err(&mut self) {
        for _ in 0..READS_MAX {
            let Some(got) = read_some(&self.err, &mut self.buffer) else {
                return;
            };
            self.stderr.push(&self.buffer[..got]);
        }
    }

    /// Reads all that is left, once no process can write any more.
    pub fn drain(&mut self, spill: &mut dyn FnMut() -> io::Result<(File, String)>) {
        loop {
            let before = self.stdout.total();
            self.read_out(spill);
            if self.stdout.total() == before {
                break;
            }
        }
        loop {
            let before = self.stderr.total();
            self.read_err();
            if self.stderr.total() == before {
                break;
            }
        }
    }

    /// A payload can make the shared descriptions non-blocking (some runtimes do); the next one must not inherit that.
    pub fn restore(&self) -> Result<()> {
        fd::set_nonblocking(io::stdout().as_fd(), false)?;
        fd::set_nonblocking(io::stderr().as_fd(), false)
    }

    /// Adds a line of Tidemill, or of the protocol, to the log.
    pub fn note(&mut self, text: &str) {
        self.stderr.push(text.as_bytes());
    }

    pub fn take_whole(&mut self) -> Option<Whole> {
        self.whole.take()
    }

    pub fn printed(&self) -> u64 {
        self.stdout.total() + self.stderr.total()
    }
}

fn read_some(from: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match fd::read(from.as_fd(), buffer) {
            Ok(0) => return None,
            Ok(got) => return Some(got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn keep(
    whole: &mut Option<Whole>,
    bytes: &[u8],
    spill: &mut dyn FnMut() -> io::Result<(File, String)>,
) -> io::Result<()> {
    match whole {
        Some(Whole::Memory(kept)) if kept.len() + bytes.len() <= INLINE_BYTES_MAX => {
            kept.extend_from_slice(bytes);
        }
        Some(Whole::Memory(kept)) => {
            let (file, path) = spill()?;
            let start = std::mem::take(kept);
            // known from now on, so that it is removed should writing fail
            *whole = Some(Whole::File { file, path });
            if let Some(Whole::File { file, .. }) = whole {
                file.write_all(&start)?;
                file.write_all(bytes)?;
            }
        }
        Some(Whole::File { file, .. }) => file.write_all(bytes)?,
        None => {}
    }
    Ok(())
}

/// Makes the file for a long stdout, with the mode of a file to which a shell redirects; delivery applies the umask.
pub(crate) fn spill_file(root: BorrowedFd<'_>, directory: &str) -> io::Result<(File, String)> {
    let path = format!("{directory}/stdout");
    let file = file::create_at(root, &path, 0o600).map_err(|error| error.source)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    Ok((file, path))
}
