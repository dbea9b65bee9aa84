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
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    added: Condvar,
}

impl Store {
    pub fn new(directory: &Path, bytes_max: u64) -> Self {
        Store {
            directory: directory.to_owned(),
            bytes_max,
            entries: Mutex::default(),
            added: Condvar::new(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, new where it is not known. An error where there is no room for it.
    pub fn have(&self, sha256: &str, bytes: u64) -> Result<Arc<Entry>, FetchError> {
        let mut entries = self.locked();
        if let Some(known) = entries.get(sha256) {
            return Ok(Arc::clone(known));
        }
        let used: u64 = entries.values().map(|entry| entry.bytes).sum();
        if used.saturating_add(bytes) > self.bytes_max {
            return Err(FetchError::Full {
                path: self.directory.clone(),
                bytes,
                used,
                max: self.bytes_max,
            });
        }
        let entry = Arc::new(Entry::create(&self.directory, sha256, bytes)?);
        entries.insert(sha256.to_owned(), Arc::clone(&entry));
        self.added.notify_all();
        Ok(entry)
    }

    /// A file that is known, waited for at most so long.
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
            entry.end(); // before anybody can make its file anew
        }
    }
}
