//! One file of the store, which grows while others read it.
//!
//! It comes in blocks. The node that reads a block from the shared file system computes its checksum, which travels
//! with the block: if a node's memory or network corrupts the block, the next node notices.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::error::FetchError;

/// The unit in which files travel. 1 MiB to 16 MiB made no difference on a loopback; the first byte reaches the last node
/// of a tree after depth times one block.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// What is known of a file that may still be coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Coming,
    /// Whole and right.
    Held,
    /// It will not come.
    Gone,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Of the blocks that are here.
    checksums: Vec<u32>,
    /// How often everything was discarded: what readers got in an earlier era is invalid.
    era: u64,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Block {
        checksum: u32,
    },
    /// Not yet.
    Nothing,
    Gone,
    /// What was read before was wrong.
    Spoiled,
}

#[derive(Debug)]
pub struct Entry {
    pub sha256: String,
    pub bytes: u64,
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    state: Mutex<State>,
    changed: Condvar,
    writer: Mutex<Writer>,
    /// It is where it shall be, and is only read.
    adopted: bool,
}

/// What only the one who fetches uses.
#[derive(Debug, Default)]
struct Writer {
    digest: Option<Digest>,
    from: Vec<String>,
    shared_bytes: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    /// A new, empty file below `directory`.
    pub fn create(directory: &Path, sha256: &str, bytes: u64) -> Result<Self, FetchError> {
        let temporary = directory.join(format!(".{sha256}.part"));
        let _ = std::fs::remove_file(&temporary); // of an earlier try
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(|source| FetchError::Store {
                path: temporary.clone(),
                source,
            })?;
        Ok(Entry::new((directory, temporary, file), sha256, bytes))
    }

    /// A whole file below `directory`; `read_again` says whether it is right.
    pub fn adopt(directory: &Path, sha256: &str, bytes: u64) -> Result<Self, FetchError> {
        let path = directory.join(sha256);
        let wrong = |source| FetchError::Store {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(wrong)?;
        let temporary = directory.join(format!(".{sha256}.part"));
        Ok(Entry {
            adopted: true,
            ..Entry::new((directory, temporary, file), sha256, bytes)
        })
    }

    fn new((directory, temporary, file): (&Path, PathBuf, File), sha256: &str, bytes: u64) -> Self {
        Entry {
            sha256: sha256.to_owned(),
            bytes,
            path: directory.join(sha256),
            temporary,
            file,
            state: Mutex::new(State {
                phase: Phase::Coming,
                checksums: Vec::new(),
                era: 0,
            }),
            changed: Condvar::new(),
            writer: Mutex::default(),
            adopted: false,
        }
    }

    /// Reads all blocks of an adopted file again; other nodes get them meanwhile.
    pub fn read_again(&self) -> Result<(), FetchError> {
        let mut content = Vec::new();
        while self.here() < self.blocks() {
            let block = self.here();
            content.resize(self.length(block) as usize, 0);
            let read = self.file.read_exact_at(&mut content, block * BLOCK_BYTES);
            read.map_err(|source| FetchError::Store {
                path: self.path.clone(),
                source,
            })?;
            let checksum = crc32fast::hash(&content);
            self.show_block(checksum);
            let mut writer = locked(&self.writer);
            content = writer.digest.get_or_insert_with(Digest::start).add(content);
        }
        Ok(())
    }

    fn show_block(&self, checksum: u32) {
        locked(&self.state).checksums.push(checksum);
        self.changed.notify_all();
    }

    pub fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES)
    }

    /// Bytes of a block: the last one is shorter.
    pub fn length(&self, block: u64) -> u64 {
        BLOCK_BYTES.min(self.bytes.saturating_sub(block * BLOCK_BYTES))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn phase(&self) -> Phase {
        locked(&self.state).phase
    }

    pub fn era(&self) -> u64 {
        locked(&self.state).era
    }

    /// Blocks that are here, from the first on.
    pub fn here(&self) -> u64 {
        locked(&self.state).checksums.len() as u64
    }

    /// A block, as soon as it is here; waits at most `limit`.
    pub fn wait(&self, block: u64, era: u64, limit: Duration) -> Found {
        let look = |state: &State| {
            if state.era != era {
                return Found::Spoiled;
            }
            match state.checksums.get(block as usize) {
                Some(&checksum) => Found::Block { checksum },
                None if state.phase == Phase::Gone => Found::Gone,
                None => Found::Nothing,
            }
        };
        let state = locked(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(state, limit, |state| look(state) == Found::Nothing);
        look(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Put the next block there and let others have it. `content` comes back to be filled again.
    pub fn append(&self, content: Vec<u8>, checksum: u32, from: Option<&str>) -> Result<Vec<u8>, FetchError> {
        let block = self.here();
        if self.phase() == Phase::Gone {
            return Err(FetchError::Dropped);
        }
        self.file
            .write_all_at(&content, block * BLOCK_BYTES)
            .map_err(|source| FetchError::Store {
                path: self.temporary.clone(),
                source,
            })?;
        self.show_block(checksum);
        let mut writer = locked(&self.writer);
        match from {
            Some(peer) if writer.from.iter().any(|known| known == peer) => {}
            Some(peer) => writer.from.push(peer.to_owned()),
            None => writer.shared_bytes += content.len() as u64,
        }
        Ok(writer.digest.get_or_insert_with(Digest::start).add(content))
    }

    /// All blocks are here: show the file if its digest is right, else throw everything away. The addresses that gave some
    /// of it, and the bytes from the shared file system.
    pub fn finish(&self) -> Result<(Vec<String>, u64), FetchError> {
        let mut writer = std::mem::take(&mut *locked(&self.writer));
        let found = match writer.digest.take() {
            Some(digest) => digest.finish(),
            None => tidemill_wire::hex::text(&Sha256::digest([])),
        };
        if found != self.sha256 {
            self.spoil(&writer.from);
            let from = match writer.from.as_slice() {
                [] if self.adopted => String::from("an earlier stage of this node"),
                [] => String::from("the shared file system"),
                peers => format!("`{}`", peers.join("`, `")),
            };
            return Err(FetchError::Digest {
                from,
                found,
                expected: self.sha256.clone(),
            });
        }
        let wrong = |source| FetchError::Store {
            path: self.path.clone(),
            source,
        };
        if !self.adopted {
            // as inputs always were: read-only, and a script may be one
            std::fs::set_permissions(&self.temporary, Permissions::from_mode(0o555)).map_err(wrong)?;
            std::fs::rename(&self.temporary, &self.path).map_err(wrong)?;
        }
        locked(&self.state).phase = Phase::Held;
        self.changed.notify_all();
        Ok((writer.from, writer.shared_bytes))
    }

    /// Discards what is here; `from` are sources that this node must not ask again.
    fn spoil(&self, from: &[String]) {
        {
            let mut state = locked(&self.state);
            state.era += 1;
            state.checksums.clear();
        }
        let mut writer = locked(&self.writer);
        *writer = Writer::default();
        writer.from.extend_from_slice(from); // reported with the failure
        self.changed.notify_all();
    }

    /// Returns and forgets the addresses that sent some of what is here or was discarded last.
    pub fn take_blamed(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.writer).from)
    }

    /// Starts the file anew for its readers, after one of its sources has corrupted it.
    pub fn start_again(&self) {
        self.spoil(&[]);
    }

    /// Ends a file that will not come or is not needed: its memory is free once its readers are gone.
    pub fn end(&self) {
        locked(&self.state).phase = Phase::Gone;
        self.changed.notify_all();
        let _ = std::fs::remove_file(&self.temporary); // one of the two is there
        let _ = std::fs::remove_file(&self.path);
    }
}
