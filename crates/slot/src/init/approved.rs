//! Every start is one that the site's staff approved: the digests of a program's files are compared before each, and once
//! more soon after it: between the check and the moment at which an interpreter opens its script, a file can be replaced.
//!
//! A file whose device, inode, size and times are those of the last check is not read again. A file of more than
//! `READ_BYTES_MAX`, such as a container's image, is read by the agent only: here its size and times must be those that
//! the agent saw; a user who may write to a file can set the time of its content, and not that of its last change. Files
//! below an image's areas belong to the image, whose own digest is compared where it is brought.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};
use tidemill_wire::ApprovedFile;

use super::payload::Verdict;

/// 0.2 s at the 300 MB/s of a core without instructions for SHA-256.
const READ_BYTES_MAX: u64 = 64 << 20;
const STEP_BYTES: usize = 1 << 20;

/// Device, inode, size, seconds and nanoseconds of the last change of content and of anything.
type Mark = (u64, u64, u64, [i64; 4]);

fn mark(status: &Metadata) -> Mark {
    (
        status.dev(),
        status.ino(),
        status.size(),
        [
            status.mtime(),
            status.mtime_nsec(),
            status.ctime(),
            status.ctime_nsec(),
        ],
    )
}

/// Failure class of another file than was approved.
const REPLACED: &str = "dispatch";

/// Failure class and message: `REPLACED` for another file than was approved, `payload_setup` for one that cannot be read.
pub(super) type Unlike = (&'static str, String);

/// Files that were found to be those that were approved.
#[derive(Default)]
pub(super) struct Approved {
    good: HashMap<String, (String, Mark)>,
}

impl Approved {
    /// The error says which file is another one.
    pub fn check(&mut self, files: &[ApprovedFile]) -> Result<(), Unlike> {
        for file in files {
            self.look(file)?;
        }
        Ok(())
    }

    /// Which file was replaced by another one since `check`, also if the approved one is back in its place. One that
    /// cannot be read now is not counted: the next start finds it.
    pub fn replaced(&mut self, files: &[ApprovedFile]) -> Option<Verdict> {
        for file in files {
            let seen = self.good.get(&file.path).map(|(_, seen)| *seen);
            let message = match (self.look(file), std::fs::metadata(&file.path)) {
                (Err((REPLACED, message)), _) => message,
                (Ok(()), Ok(status)) if seen.is_some_and(|seen| seen != mark(&status)) => {
                    format!("`{}` was changed while the program started", file.path)
                }
                _ => continue,
            };
            return Some(Verdict {
                failure: REPLACED,
                message,
            });
        }
        None
    }

    fn look(&mut self, wanted: &ApprovedFile) -> Result<(), Unlike> {
        let unread = |error: io::Error| {
            let message = format!("failed to read `{}`: {error}", wanted.path);
            ("payload_setup", message)
        };
        let status = std::fs::metadata(&wanted.path).map_err(unread)?;
        if self
            .good
            .get(&wanted.path)
            .is_some_and(|(sha256, seen)| *sha256 == wanted.sha256 && *seen == mark(&status))
        {
            return Ok(());
        }
        if wanted.bytes > READ_BYTES_MAX {
            let at_ns = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
            let (mtime_ns, ctime_ns) = (
                at_ns(status.mtime(), status.mtime_nsec()),
                at_ns(status.ctime(), status.ctime_nsec()),
            );
            let is_other = status.size() != wanted.bytes || mtime_ns != i128::from(wanted.mtime_ns);
            if is_other || wanted.ctime_ns.is_some_and(|seen| i128::from(seen) != ctime_ns) {
                let message = format!(
                    "`{}` is not the file that the site's staff approved: {} bytes, expected {}; \
                     or it was changed since",
                    wanted.path,
                    status.size(),
                    wanted.bytes
                );
                return Err((REPLACED, message));
            }
        } else {
            let found = digest(&wanted.path, wanted.bytes).map_err(unread)?;
            if found != wanted.sha256 {
                let message = format!(
                    "`{}` has digest sha256:{}, approved is sha256:{}: it was changed after its approval",
                    wanted.path,
                    recognised(&found),
                    recognised(&wanted.sha256)
                );
                return Err((REPLACED, message));
            }
        }
        self.good
            .insert(wanted.path.clone(), (wanted.sha256.clone(), mark(&status)));
        Ok(())
    }
}

/// The digits of a digest by which people recognise it; as `digest_text` of `model/quantities` in Python.
fn recognised(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// SHA-256 of a file, of one byte more than `bytes` at most: a longer one has another digest anyway.
fn digest(path: &str, bytes: u64) -> io::Result<String> {
    let mut file = File::open(path)?.take(bytes + 1);
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; STEP_BYTES]);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(format!("{:x}", hash.finalize()));
        }
        hash.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approved(path: &std::path::Path, content: &[u8]) -> ApprovedFile {
        ApprovedFile {
            path: path.to_string_lossy().into_owned(),
            sha256: format!("{:x}", Sha256::digest(content)),
            bytes: content.len() as u64,
            mtime_ns: 0,
            ctime_ns: None,
        }
    }

    #[test]
    fn what_was_changed_after_it_was_approved_is_told_at_the_next_look() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sim");
        std::fs::write(&path, "good").unwrap();
        let file = approved(&path, b"good");
        let mut it = Approved::default();
        assert_eq!(it.check(std::slice::from_ref(&file)), Ok(()));
        assert_eq!(it.check(std::slice::from_ref(&file)), Ok(()));
        std::fs::write(&path, "evil").unwrap();
        let (class, told) = it.check(std::slice::from_ref(&file)).unwrap_err();
        assert!(class == "dispatch" && told.contains("has digest"), "{told}");
        let known = format!("approved is sha256:{}:", &file.sha256[..12]);
        assert!(told.contains(&known) && !told.contains(&file.sha256), "{told}");
        assert_eq!(it.replaced(std::slice::from_ref(&file)).unwrap().message, told);
        std::fs::write(&path, "good, and more").unwrap();
        assert!(it.check(std::slice::from_ref(&file)).is_err());
        std::fs::write(&path, "good").unwrap();
        assert_eq!(it.check(std::slice::from_ref(&file)), Ok(()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(it.replaced(std::slice::from_ref(&file)), None);
        let (class, told) = it.check(&[file]).unwrap_err();
        assert!(
            class == "payload_setup" && told.contains("failed to read"),
            "{told}"
        );
    }

    #[test]
    fn what_was_replaced_and_put_back_while_a_program_started_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("sim"), folder.path().join("aside"));
        let mut it = Approved::default();
        std::fs::write(&path, "good").unwrap();
        let files = [approved(&path, b"good")];
        assert_eq!(it.check(&files), Ok(()));
        assert_eq!(it.replaced(&files), None);
        std::fs::rename(&path, &aside).unwrap();
        std::fs::write(&path, "evil").unwrap();
        std::fs::rename(&aside, &path).unwrap();
        let told = it.replaced(&files).unwrap();
        assert!(
            told.failure == REPLACED && told.message.contains("while the program started"),
            "{told:?}"
        );
        assert_eq!(it.check(&files), Ok(())); // the next start
        assert_eq!(it.replaced(&files), None);
        std::fs::write(&path, "evil").unwrap();
        std::fs::write(&path, "good").unwrap();
        assert!(it.replaced(&files).is_some());
    }

    /// A file that only the agent reads, and what the agent saw of it.
    fn large(path: &std::path::Path) -> ApprovedFile {
        let file = File::create(path).unwrap();
        file.set_len(READ_BYTES_MAX + 1).unwrap();
        let status = file.metadata().unwrap();
        let at_ns = |s: i64, ns: i64| u64::try_from(s * 1_000_000_000 + ns).unwrap();
        let mut found = approved(path, b"");
        found.bytes = READ_BYTES_MAX + 1;
        found.mtime_ns = at_ns(status.mtime(), status.mtime_nsec());
        found.ctime_ns = Some(at_ns(status.ctime(), status.ctime_nsec()));
        found
    }

    #[test]
    fn a_large_file_is_told_by_size_and_times() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.sif");
        let mut file = large(&path);
        let mut it = Approved::default();
        assert_eq!(it.check(std::slice::from_ref(&file)), Ok(()));
        file.mtime_ns -= 1;
        file.sha256 = "0".repeat(64); // approved anew, so that it is checked
        let (_, told) = it.check(&[file]).unwrap_err();
        assert!(told.contains("not the file"), "{told}");
    }

    #[test]
    fn a_file_whose_last_change_was_not_noted_is_known_by_size_and_time_of_its_content() {
        let before = r#"{"path":"/sim","sha256":"","bytes":7,"mtime_ns":5}"#;
        assert_eq!(
            serde_json::from_str::<ApprovedFile>(before).unwrap().ctime_ns,
            None
        );
        let folder = tempfile::tempdir().unwrap();
        let mut file = large(&folder.path().join("image.sif"));
        file.ctime_ns = None;
        assert_eq!(Approved::default().check(std::slice::from_ref(&file)), Ok(()));
        file.mtime_ns += 1;
        assert!(Approved::default().check(&[file]).is_err());
    }

    #[test]
    fn a_large_file_with_the_time_of_another_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.sif");
        let files = [large(&path)];
        let old = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::remove_file(&path).unwrap();
        let evil = File::create(&path).unwrap();
        evil.set_len(READ_BYTES_MAX + 1).unwrap();
        evil.set_times(std::fs::FileTimes::new().set_modified(old))
            .unwrap();
        let (_, told) = Approved::default().check(&files).unwrap_err();
        assert!(told.contains("not the file"), "{told}");
    }
}
