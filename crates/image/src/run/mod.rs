//! `tidemill-node image`: one command in an image, by hand.
//!
//! Two processes watch over the command: the one that was started (outside) and one in between (inside), PID 1 of the
//! namespaces, or a subreaper without them. Each of them cleans up when the other one is killed.

mod alias;
mod inside;
mod offspring;
mod options;
mod outside;
mod recipe;
mod relocated;
mod report;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use tidemill_sys::own::{self, OwnDirectory};
use tidemill_wire::ImageUse;

use crate::inode::Survey;
use crate::{assemble, check, digest, unpack, ImageError, Limits, Links};
use options::{Options, Verb};

const USAGE_ERROR: i32 = 2;
const SITE_ERROR: i32 = 3;

/// What is to be run, and how.
struct Order {
    image: ImageUse,
    mode: options::Mode,
    memory_bytes: u64,
    command: Vec<OsString>,
}

/// Runs `tidemill-node image`; returns the exit code.
pub fn command(args: impl Iterator<Item = OsString>) -> i32 {
    let options = match options::parse(args) {
        Ok(options) => options,
        Err(what) => {
            say(&format!("{what}\nhint: tidemill-node image --help"));
            return USAGE_ERROR;
        }
    };
    if options.verb == Verb::Help {
        // a closed pipe is the reader's choice
        let _ = std::io::stdout().write_all(options::USAGE.as_bytes());
        return 0;
    }
    match obey(options) {
        Ok(status) => status,
        Err(error) => {
            say(&error.chain());
            match error {
                ImageError::Recipe { .. } => USAGE_ERROR,
                _ => SITE_ERROR,
            }
        }
    }
}

fn obey(options: Options) -> Result<i32, ImageError> {
    let image = options.recipe.as_deref().map(recipe::read).transpose()?;
    let available = options.memory_mb.map_or_else(available_bytes, |mb| mb << 20);
    let limits = Limits::memory(available);
    match (options.verb, image) {
        (Verb::Run { mode, command }, Some(image)) => outside::run(Order {
            image,
            mode,
            memory_bytes: available,
            command,
        }),
        (Verb::Unpack { to }, Some(image)) => {
            std::fs::create_dir_all(&to).map_err(ImageError::file("make directory", &to))?;
            let file = to.join(".tidemill-image");
            assemble(&image.name, &image.file, &file, &mut || true)?;
            let survey = unpack_beside(&file, &to, &limits)?;
            print(&survey, &image.file.sha256, image.file.bytes);
            Ok(0)
        }
        (Verb::Check { file: Some(file) }, _) => {
            let survey = check(&file, &limits)?;
            let (sha256, bytes) = digest(&file)?;
            print(&survey, &sha256, bytes);
            Ok(0)
        }
        (Verb::Check { file: None }, Some(image)) => {
            let place = temporary()?;
            let file = place.path().join("image");
            let result =
                assemble(&image.name, &image.file, &file, &mut || true).and_then(|()| check(&file, &limits));
            own::remove(place.path());
            print(&result?, &image.file.sha256, image.file.bytes);
            Ok(0)
        }
        _ => Ok(USAGE_ERROR), // `parse` asks for a recipe
    }
}

/// Unpacks a file that lies in the very directory, and removes it.
fn unpack_beside(file: &Path, to: &Path, limits: &Limits) -> Result<Survey, ImageError> {
    let opened = std::fs::File::open(file).map_err(ImageError::file("open", file))?;
    std::fs::remove_file(file).map_err(ImageError::file("remove", file))?;
    let mut entries = std::fs::read_dir(to).map_err(ImageError::file("list", to))?;
    if entries.next().is_some() {
        return Err(ImageError::File {
            operation: "unpack into",
            path: to.to_owned(),
            source: std::io::Error::other("it is not empty"),
        });
    }
    use std::os::fd::AsRawFd;
    let open = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string());
    unpack(&open, to, Links::Keep, limits)
}

/// A private directory in memory. First removes those left by runs that were killed together with their watchers.
fn temporary() -> Result<OwnDirectory, ImageError> {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    own::clean(&base, "image");
    Ok(OwnDirectory::make(&base, "image")?)
}

fn print(survey: &Survey, sha256: &str, bytes: u64) {
    let text = serde_json::json!({
        "sha256": sha256,
        "bytes": bytes,
        "entries": survey.entries,
        "files": survey.files,
        "directories": survey.directories,
        "links": survey.links,
        "special": survey.special,
        "unpacked_bytes": survey.bytes,
        "memory_bytes": survey.memory_bytes,
    });
    // a closed pipe is the reader's choice
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn say(what: &str) {
    tidemill_wire::log::plain(&format!("tidemill-node image: {what}\n"));
}

/// Three quarters of the memory that the kernel calls available; 1 GiB where it does not say.
fn available_bytes() -> u64 {
    let available = tidemill_sys::machine::memory().available_bytes;
    available.map_or(1 << 30, |bytes| bytes / 4 * 3)
}
