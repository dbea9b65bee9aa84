//! The process that runs xrootd on this node: it makes the directory, restarts xrootd after a crash, and counts bytes.
//!
//! Where namespaces are available, its files are in a tmpfs of its own, which has a size limit and disappears with its
//! processes however they end. Elsewhere they are in a directory in /dev/shm, which is removed when the pilot is gone.
//! The kernel ends xrootd when this process ends.

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidemill_sys::own::{self, OwnDirectory};
use tidemill_sys::process::{self, Exit, Waited};
use tidemill_sys::spawn::{Command, ShellLimits, Spawner, Strings};
use tidemill_sys::time::monotonic_us;
use tidemill_sys::{child, file, security, signal};
use tidemill_wire::log::cause;
use tidemill_wire::worker::Served;
use tidemill_wire::NodeCacheDef;

use crate::images::home;

const SHARED_MEMORY: &str = "/dev/shm";
const WHAT: &str = "cache";
/// Pauses before restarts of xrootd after consecutive crashes; one more crash disables the cache.
const PAUSES_US: [u64; 5] = [0, 1_000_000, 4_000_000, 15_000_000, 60_000_000];
/// After this run time, a crash of xrootd counts as the first in a row.
const STEADY_US: u64 = 60_000_000;
const LOOK_US: u64 = 500_000;
/// Interval at which the fetched bytes are counted.
const COUNT_US: u64 = 2_000_000;
const FILES_MAX: u64 = 20_000;
const LOG_BYTES_MAX: u64 = 4 << 20;
const LAST_WORDS: usize = 300;
const REPORT_BYTES_MAX: usize = 64 << 10;
/// Environment variables that xrootd inherits, so that it finds its libraries.
const PASSED: [&str; 6] = ["PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LANG", "TZ"];

/// In /proc/PID/comm.
pub const NAME: &std::ffi::CStr = c"tidemill-cache";

/// What the process says of itself and of xrootd.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// To be removed when it is gone.
    Directory(PathBuf),
    /// xrootd is started, in this directory.
    Runs(String),
    /// From now on it listens at this port.
    Port(u16),
    Sums {
        origin_bytes: u64,
        client_bytes: u64,
    },
    /// It is started again.
    Died(String),
    /// It is given up.
    Failed(String),
}

/// What to run.
pub struct Order {
    pub def: NodeCacheDef,
    pub program: PathBuf,
    pub port: u16,
    /// there are namespaces
    pub isolated: bool,
}

/// Run it until the pilot is gone, or it is given up.
pub fn serve(order: Order, mut pilot: Served) {
    // the pilot's end is seen by its socket: what is in shared memory has to be removed then
    let _ = security::set_parent_death_signal(0);
    let own = match make_place(&order) {
        Ok(own) => own,
        Err(why) => {
            pilot.answer(&Told::Failed(why));
            return;
        }
    };
    if let CacheDirectory::Shared(own) = &own {
        pilot.answer(&Told::Directory(own.path().to_owned()));
    }
    let told = Server::new(order, own.path()).and_then(|mut server| server.run(&mut pilot));
    if let CacheDirectory::Shared(own) = &own {
        own::remove(own.path());
    }
    if let Err(why) = told {
        pilot.answer(&Told::Failed(why));
    }
}

/// Where its files are.
enum CacheDirectory {
    Private(PathBuf),
    Shared(OwnDirectory),
}

impl CacheDirectory {
    fn path(&self) -> &Path {
        match self {
            CacheDirectory::Private(path) => path,
            CacheDirectory::Shared(own) => own.path(),
        }
    }
}

fn make_place(order: &Order) -> Result<CacheDirectory, String> {
    own::clean(Path::new(SHARED_MEMORY), WHAT);
    let files_mb = order.def.memory_mb.saturating_sub(order.def.ram_mb);
    if order.isolated {
        if let Ok(path) = home::enter_namespaces(files_mb) {
            return Ok(CacheDirectory::Private(path));
        }
    }
    let own = OwnDirectory::make(Path::new(SHARED_MEMORY), WHAT).map_err(|error| cause(&error))?;
    Ok(CacheDirectory::Shared(own))
}

struct Server {
    order: Order,
    directory: PathBuf,
    reports: UdpSocket,
    /// Bytes of files when they were counted last, and what has been fetched since the start.
    held_bytes: u64,
    origin_bytes: u64,
    /// Bytes sent by xrootds that have died, and by the one that runs.
    sent_before: u64,
    sent_bytes: u64,
    counted_us: u64,
    told: (u64, u64),
}

impl Server {
    fn new(order: Order, directory: &Path) -> Result<Self, String> {
        let wrong = |error: std::io::Error| format!("failed to listen to xrootd's reports: {error}");
        let reports = UdpSocket::bind(("127.0.0.1", 0)).map_err(wrong)?;
        reports.set_nonblocking(true).map_err(wrong)?;
        let port = reports.local_addr().map_err(wrong)?.port();
        let server = Server {
            order,
            directory: directory.to_owned(),
            reports,
            held_bytes: 0,
            origin_bytes: 0,
            sent_before: 0,
            sent_bytes: 0,
            counted_us: 0,
            told: (0, 0),
        };
        let failed = |error: std::io::Error| format!("failed to make `{}`: {error}", directory.display());
        server.write(port).map_err(failed)?;
        Ok(server)
    }

    fn write(&self, report_port: u16) -> std::io::Result<()> {
        for part in ["data", "run", "run/admin", "log"] {
            DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(self.directory.join(part))?;
        }
        let filled = |text: &str| {
            text.replace("{dir}", &self.directory.to_string_lossy())
                .replace("{report}", &report_port.to_string())
        };
        let def = &self.order.def;
        for (name, text) in [("xrootd.cfg", &def.config), ("run/authdb", &def.authdb)] {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options
                .open(self.directory.join(name))?
                .write_all(filled(text).as_bytes())?;
        }
        std::env::set_current_dir(self.directory.join("run"))
    }

    /// Err: it is given up, and why.
    fn run(&mut self, pilot: &mut Served) -> Result<(), String> {
        let mut deaths = 0;
        loop {
            let begun_us = monotonic_us();
            let pid = self.start()?;
            pilot.answer(&Told::Runs(self.directory.display().to_string()));
            let Some(how) = self.watch(pid, pilot) else {
                child::end(pid);
                return Ok(());
            };
            let why = format!("{how}{}", self.last_words());
            deaths = if monotonic_us() - begun_us >= STEADY_US {
                1
            } else {
                deaths + 1
            };
            let Some(pause_us) = PAUSES_US.get(deaths - 1) else {
                return Err(format!("{why}; started {deaths} times"));
            };
            let is_taken = why.contains("in use");
            pilot.answer(&Told::Died(why));
            if !pilot.sleep(*pause_us) {
                return Ok(());
            }
            if is_taken {
                self.order.port = super::free_port()?;
                pilot.answer(&Told::Port(self.order.port));
            }
        }
    }

    /// How it ended; None: the pilot is gone.
    fn watch(&mut self, pid: i32, pilot: &mut Served) -> Option<String> {
        let how = loop {
            if !pilot.sleep(LOOK_US) {
                return None;
            }
            self.count(pilot);
            match process::wait(pid, false) {
                Ok(Waited::Running) => {}
                Ok(Waited::Ended { exit, .. }) => break told(exit),
                Ok(Waited::NoChildren) => break String::from("it is gone"),
                Err(error) => break cause(&error),
            }
        };
        self.sent_before += std::mem::take(&mut self.sent_bytes);
        Some(how)
    }

    fn start(&self) -> Result<i32, String> {
        let failed = |error: tidemill_sys::SysError| cause(&error);
        let log = self
            .log()
            .map_err(|error| format!("failed to open its log: {error}"))?;
        let nothing =
            File::open("/dev/null").map_err(|error| format!("failed to open `/dev/null`: {error}"))?;
        let (mut argv, mut env) = (Strings::new(), Strings::new());
        let config = self.directory.join("xrootd.cfg");
        let port = self.order.port.to_string();
        for word in ["xrootd", "-n", "cache", "-c"] {
            argv.push(word).map_err(failed)?;
        }
        argv.push(config.as_os_str().as_bytes()).map_err(failed)?;
        argv.push("-p").map_err(failed)?;
        argv.push(port).map_err(failed)?;
        let passed = PASSED
            .iter()
            .filter_map(|&name| Some((name, std::env::var(name).ok()?)));
        for (name, value) in passed {
            env.push(format!("{name}={value}")).map_err(failed)?;
        }
        for (name, value) in &self.order.def.environment {
            env.push(format!("{name}={value}")).map_err(failed)?;
        }
        let path = CString::new(self.order.program.as_os_str().as_bytes())
            .map_err(|error| format!("the path of xrootd: {error}"))?;
        let command = Command {
            path: &path,
            argv: &argv,
            env: &env,
            descriptors: &[
                (nothing.as_raw_fd(), 0),
                (log.as_raw_fd(), 1),
                (log.as_raw_fd(), 2),
            ],
            parent_death_signal: signal::KILL,
            rules: None,
            limits: &ShellLimits::default(),
        };
        Spawner::new()
            .and_then(|mut spawner| spawner.spawn(&command))
            .map_err(failed)
    }

    fn log(&self) -> std::io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.directory.join("log/xrootd.log"))
    }

    /// Count fetched and sent bytes and send changes to the pilot. Keep the log short.
    fn count(&mut self, pilot: &mut Served) {
        let mut packet = vec![0; REPORT_BYTES_MAX];
        while let Ok(length) = self.reports.recv(&mut packet) {
            let text = String::from_utf8_lossy(&packet[..length]);
            self.sent_bytes = self.sent_bytes.max(sent(&text).unwrap_or(0));
        }
        let now_us = monotonic_us();
        if now_us - self.counted_us < COUNT_US {
            return;
        }
        self.counted_us = now_us;
        if let Ok(data) = file::open_dir(&self.directory.join("data")) {
            let bytes = file::tree(data.as_fd(), FILES_MAX).bytes;
            self.origin_bytes += bytes.saturating_sub(self.held_bytes); // what a purge hides in between is missing
            self.held_bytes = bytes;
        }
        if let Ok(log) = self.log() {
            if log.metadata().is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
                let _ = log.set_len(0); // it may grow once more
            }
        }
        let sums = (self.origin_bytes, self.sent_before + self.sent_bytes);
        if sums != self.told {
            self.told = sums;
            let (origin_bytes, client_bytes) = sums;
            pilot.answer(&Told::Sums {
                origin_bytes,
                client_bytes,
            });
        }
    }

    /// The last line of its log that says what is wrong.
    fn last_words(&self) -> String {
        let text = std::fs::read(self.directory.join("log/xrootd.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let wrong = |line: &&str| {
            ["rror", "Unable", "in use"]
                .iter()
                .any(|word| line.contains(word))
        };
        let lines: Vec<&str> = text.lines().rev().take(40).collect();
        match lines
            .iter()
            .copied()
            .find(wrong)
            .or_else(|| lines.first().copied())
        {
            Some(line) => format!("; its log: {}", line.chars().take(LAST_WORDS).collect::<String>()),
            None => String::new(),
        }
    }
}

fn told(exit: Exit) -> String {
    match exit {
        Exit::Status(status) => format!("xrootd ended with status {status}"),
        Exit::Signal(signal) => format!("xrootd was ended by signal {signal}"),
    }
}

/// Bytes that a server has sent to its clients, of a summary report (XRootD 5.5, `xrd.report ... link`).
fn sent(report: &str) -> Option<u64> {
    let (_, link) = report.split_once("<stats id=\"link\">")?;
    let (_, out) = link.split_once("</stats>")?.0.split_once("<out>")?;
    out.split_once("</out>")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sent_are_those_of_links_and_what_is_none_counts_nothing() {
        let report =
            "<statistics tod=\"1\"><stats id=\"info\"><out>9</out></stats><stats id=\"link\"><num>1</num>\
                      <in>48</in><out>1234</out></stats></statistics>";
        assert_eq!(sent(report), Some(1234));
        for wrong in ["", "<out>5</out>", "<stats id=\"link\"><out>x</out></stats>"] {
            assert_eq!(sent(wrong), None, "{wrong}");
        }
    }
}
