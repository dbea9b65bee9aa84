//! The stored result of a set-up, and the claim of the pilot that is about to make it.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// `STORE/KEY.NODETYPE.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub format: u32,
    pub lines: Vec<String>,
    pub host: String,
    /// what the lines set or changed, without functions, secrets and what belongs to the slot
    pub variables: BTreeMap<String, String>,
    /// names that were left out because they look like secrets
    pub left_out: Vec<String>,
}

pub const FORMAT: u32 = 1;

/// The variables of a stored result; None where there is none that can be used.
pub fn read(path: &Path) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read(path).ok()?;
    let found: Stored = serde_json::from_slice(&text).ok()?;
    (found.format == FORMAT).then_some(found.variables)
}

/// Temporary file, fsync, rename.
pub fn write(path: &Path, found: &Stored) -> std::io::Result<()> {
    let text = serde_json::to_vec(found)?;
    let temporary = path.with_extension(format!("{}.new", tidemill_sys::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// `STORE/KEY.NODETYPE.claim`: the pilot that made it runs the lines, and removes it with the answer.
pub struct Claim(PathBuf);

impl Claim {
    /// The claim, or None if another pilot has it.
    pub fn take(result: &Path) -> std::io::Result<Option<Claim>> {
        if let Some(store) = result.parent() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(store)?;
        }
        let path = result.with_extension("claim");
        let made = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(_) => Ok(Some(Claim(path))),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_at_a_time_and_a_result_for_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("setup/key.type.json");
        let first = Claim::take(&path).unwrap();
        assert!(first.is_some());
        assert!(Claim::take(&path).unwrap().is_none());
        assert_eq!(read(&path), None);
        let found = Stored {
            format: FORMAT,
            lines: vec!["module load x".into()],
            host: "n1".into(),
            variables: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            left_out: vec![],
        };
        write(&path, &found).unwrap();
        drop(first);
        assert_eq!(read(&path), Some(found.variables));
        assert!(Claim::take(&path).unwrap().is_some());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
