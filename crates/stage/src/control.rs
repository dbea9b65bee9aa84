//! The messages between a pilot and its stage: frames of JSON (`tidemill_wire::worker`).

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidemill_wire::worker::Served;
use tidemill_wire::StagedFile;

/// Pilot to stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Order {
    /// The first line, once.
    Start {
        /// of the fleet
        secret: String,
        /// the pilot's
        name: String,
        /// where files are held: an existing directory that only this stage uses
        directory: String,
        /// limit for all files together
        bytes_max: u64,
        /// a directory on a fast tier besides memory, which only this stage uses and does not limit
        fast: Option<String>,
        /// numeric address at which other nodes reach this one; None = do not serve them
        host: Option<String>,
    },
    /// Get a file: from the first of these nodes that serves it, or, where there are none, from the shared file system.
    /// What came from another source before is kept. Answered by Held or Failed. `fast`: hold it in the fast tier.
    Fetch {
        file: StagedFile,
        peers: Vec<String>,
        fast: bool,
    },
    /// An earlier stage held this file, and slots use it: hold it too, after reading all of it again. Answered as Fetch
    /// is.
    Adopt { sha256: String, bytes: u64, fast: bool },
    /// This node no longer needs the file.
    Drop { sha256: String },
}

/// Stage to pilot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Report {
    /// Answer to Start: where other nodes get files, or why not.
    Listens {
        address: Option<String>,
        message: String,
    },
    /// The whole file is here and its digest is right.
    Held {
        sha256: String,
        path: String,
        bytes: u64,
        ms: u64,
        /// read from the shared file system
        shared_bytes: u64,
        /// addresses that gave some of it
        from: Vec<String>,
    },
    /// Not now: what was tried, and what came back.
    Failed {
        sha256: String,
        kind: FailureKind,
        message: String,
        /// addresses that did not serve it
        avoid: Vec<String>,
    },
}

/// Why a file did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The other node: try another one.
    Peer,
    /// The shared file system, or what it holds.
    Shared,
    /// No room here.
    Full,
}

/// Reports to the pilot, from any thread.
pub struct Pilot(Mutex<Served>);

impl Pilot {
    pub fn new(stream: UnixStream) -> Self {
        Pilot(Mutex::new(Served::new(stream)))
    }

    pub fn tell(&self, report: &Report) {
        // a pilot that is gone takes us with it: the reader of orders sees its end
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .answer(report);
    }
}
