//! The files that this node holds or is getting.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::entry::Entry;
use crate::error::FetchError;

#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    bytes_max: u64,
    fast: Option<PathBuf>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    added: Condvar,
}

impl Store {
    pub fn new(directory: &Path, bytes_max: u64, fast: Option<&Path>) -> Self {
        Store {
            directory: directory.to_owned(),
            bytes_max,
            fast: fast.map(Path::to_owned),
            entries: Mutex::default(),
            added: Condvar::new(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, new where it is not known, in memory or in the fast tier. An error where there is no room for it.
    pub fn have(&self, sha256: &str, bytes: u64, fast: bool) -> Result<Arc<Entry>, FetchError> {
        let mut entries = self.locked();
        if let Some(known) = entries.get(sha256) {
            return Ok(Arc::clone(known));
        }
        let fast = self.fast.as_deref().filter(|_| fast);
        let in_memory = entries
            .values()
            .filter(|entry| entry.path().parent() == Some(&self.directory));
        let used: u64 = in_memory.map(|entry| entry.bytes).sum();
        if fast.is_none() && used.saturating_add(bytes) > self.bytes_max {
            return Err(FetchError::Full {
                path: self.directory.clone(),
                bytes,
                used,
                max: self.bytes_max,
            });
        }
        let entry = Arc::new(Entry::create(fast.unwrap_or(&self.directory), sha256, bytes)?);
        entries.insert(sha256.to_owned(), Arc::clone(&entry));
        self.added.notify_all();
        Ok(entry)
    }

    /// A file that an earlier stage of this node left here, whole as far as it said.
    pub fn adopt(&self, sha256: &str, bytes: u64, fast: bool) -> Result<Arc<Entry>, FetchError> {
        let directory = self.fast.as_ref().filter(|_| fast).unwrap_or(&self.directory);
        let entry = Arc::new(Entry::adopt(directory, sha256, bytes)?);
        self.locked().insert(sha256.to_owned(), Arc::clone(&entry));
        self.added.notify_all();
        Ok(entry)
    }

    /// The pilot is gone, perhaps killed: nothing stays.
    pub fn clear(&self) {
        for (_, entry) in self.locked().drain() {
            entry.end();
        }
        for directory in std::iter::once(&self.directory).chain(&self.fast) {
            let _ = std::fs::remove_dir(directory); // what others put there is theirs
        }
    }

    /// A known file; waits at most `limit` until it is known.
    pub fn wait(&self, sha256: &str, limit: Duration) -> Option<Arc<Entry>> {
        let entries = self
            .added
            .wait_timeout_while(self.locked(), limit, |entries| !entries.contains_key(sha256));
        let entries = entries.unwrap_or_else(PoisonError::into_inner).0;
        entries.get(sha256).map(Arc::clone)
    }

    /// Forget a file; readers that have it open keep what they have.
    pub fn remove(&self, sha256: &str) {
        let mut entries = self.locked();
        if let Some(entry) = entries.remove(sha256) {
            entry.end(); // before its file can be made anew
        }
    }
}
