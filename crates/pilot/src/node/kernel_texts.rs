//! The kernel's text files below a root, which count this node's own activity. Reading them never waits for a server.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::counters::{self, Counted, Files};

/// A text of counters that is longer is cut.
const TEXT_BYTES_MAX: u64 = 8 << 20;
/// Where clients of Lustre count, by version.
const LUSTRE: [&str; 2] = ["proc/fs/lustre", "sys/kernel/debug/lustre"];

const MOUNT_COUNTS: &str = "proc/self/mountstats";

/// Reads files of /proc and /sys.
#[derive(Clone, Debug, Default)]
pub struct KernelTexts {
    root: PathBuf,
    /// held open: only its owner may open it (0400), which for a process that is not dumpable is root (proc(5))
    mount_counts: Option<Rc<File>>,
}

/// Counts of a Lustre file system since it was mounted; None: not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LustreCounts {
    /// requests of its metadata clients, else calls of its mounts
    pub ops: Option<u64>,
    /// read and written
    pub bytes: Option<(u64, u64)>,
    /// calls of its mounts, else requests of its metadata clients
    pub files: Files,
}

impl LustreCounts {
    pub fn counted(self) -> Counted {
        Counted {
            ops: self.ops,
            bytes: self.bytes.map(|(read, written)| read.saturating_add(written)),
        }
    }
}

/// FSNAME of a mount's source, `MGS:/FSNAME[/SUBDIRECTORY]`.
pub fn lustre_name(source: &str) -> Option<&str> {
    source.rsplit_once(":/")?.1.split('/').next()
}

impl KernelTexts {
    pub fn below(root: &Path) -> Self {
        KernelTexts {
            root: root.to_owned(),
            mount_counts: None,
        }
    }

    /// Those of this machine: make it before the process becomes non-dumpable.
    pub fn open() -> Self {
        let root = Path::new("/");
        KernelTexts {
            mount_counts: File::open(root.join(MOUNT_COUNTS)).ok().map(Rc::new),
            ..KernelTexts::below(root)
        }
    }

    /// What a child has to keep to read the same.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.mount_counts.as_ref().map(|file| file.as_raw_fd())
    }

    /// Counters of mounts, as in mountstats(8).
    pub fn mount_counts(&self) -> String {
        let Some(file) = &self.mount_counts else {
            return self.text(MOUNT_COUNTS);
        };
        let (mut bytes, mut piece) = (Vec::new(), [0; 16 << 10]);
        while (bytes.len() as u64) < TEXT_BYTES_MAX {
            match file.read_at(&mut piece, bytes.len() as u64) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
                _ => break, // what was read until then counts
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A text; empty where there is none for us.
    pub fn text(&self, path: &str) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.root.join(path)) {
            let _ = file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes); // what was read until then counts
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Names in a directory, in order.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(directory));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// What clients of this Lustre file system count here; None where there are none. Of mounts and
    /// metadata clients, one may count in /proc and the other in debugfs.
    pub fn lustre(&self, name: &str) -> Option<LustreCounts> {
        let first = |kind: &str, file: &str| {
            let mut found = LUSTRE
                .iter()
                .map(|base| self.texts(&format!("{base}/{kind}"), name, file));
            found.find(|texts| !texts.is_empty()).unwrap_or_default()
        };
        let (mounts, clients) = (first("llite", "stats"), first("mdc", "md_stats"));
        if mounts.is_empty() && clients.is_empty() {
            return None;
        }
        let mut found = LustreCounts::default();
        for text in &mounts {
            let (read, written) = counters::llite_bytes(text);
            let (sum_read, sum_written) = found.bytes.unwrap_or_default();
            found.bytes = Some((sum_read.saturating_add(read), sum_written.saturating_add(written)));
            if let Some(ops) = counters::llite(text).ops {
                found.ops = Some(found.ops.unwrap_or(0).saturating_add(ops));
            }
        }
        let files = mounts.iter().map(|text| counters::llite_files(text));
        found.files = files.reduce(Files::plus).unwrap_or_default();
        let sum = |of: fn(&str) -> u64| {
            let counts = clients.iter().map(|text| of(text));
            counts.reduce(u64::saturating_add)
        };
        found.ops = sum(counters::lustre_md).or(found.ops);
        found.files.closes = found.files.closes.or(sum(counters::lustre_md_closes));
        Some(found)
    }

    /// The texts of DIRECTORY/NAME-*/FILE.
    fn texts(&self, directory: &str, name: &str, file: &str) -> Vec<String> {
        let prefix = format!("{name}-");
        let names = self.names(directory).into_iter();
        names
            .filter(|entry| entry.starts_with(&prefix))
            .map(|entry| self.text(&format!("{directory}/{entry}/{file}")))
            .filter(|text| !text.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_mounts_are_read_anew_from_what_was_opened_before() {
        let kernel = KernelTexts::open();
        assert!(kernel.descriptor().is_some());
        let devices = |text: &str| text.lines().filter(|line| line.starts_with("device ")).count();
        let now = devices(&KernelTexts::below(Path::new("/")).mount_counts());
        assert!(now > 0);
        for _ in 0..2 {
            assert_eq!(devices(&kernel.mount_counts()), now);
        }
    }
}
