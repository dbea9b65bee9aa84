//! Texts of the kernel below a root: what counts this node's own doings. None of them waits for a server.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::counters::{self, Counted};

/// A text of counters that is longer is cut.
const TEXT_BYTES_MAX: u64 = 8 << 20;
/// Where clients of Lustre count, by version.
const LUSTRE: [&str; 2] = ["proc/fs/lustre", "sys/kernel/debug/lustre"];

/// Reads files of /proc and /sys.
#[derive(Clone, Debug, Default)]
pub struct KernelTexts {
    root: PathBuf,
}

/// Of a Lustre file system since it was mounted. None: nobody counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LustreCounts {
    /// requests of its metadata clients, else calls of its mounts
    pub ops: Option<u64>,
    /// read and written
    pub bytes: Option<(u64, u64)>,
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
        }
    }

    /// A text; empty where there is none for us.
    pub fn text(&self, path: &str) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = std::fs::File::open(self.root.join(path)) {
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

    /// What clients of this Lustre file system count here; None where there are none.
    pub fn lustre(&self, name: &str) -> Option<LustreCounts> {
        let mut found: Option<LustreCounts> = None;
        let mut requests: Option<u64> = None;
        for base in LUSTRE {
            for text in self.texts(&format!("{base}/llite"), name, "stats") {
                let sum = found.get_or_insert_with(LustreCounts::default);
                let (read, written) = counters::llite_bytes(&text);
                let (sum_read, sum_written) = sum.bytes.unwrap_or_default();
                sum.bytes = Some((sum_read.saturating_add(read), sum_written.saturating_add(written)));
                if let Some(ops) = counters::llite(&text).ops {
                    sum.ops = Some(sum.ops.unwrap_or(0).saturating_add(ops));
                }
            }
            for text in self.texts(&format!("{base}/mdc"), name, "md_stats") {
                let sum = requests.get_or_insert(0);
                *sum = sum.saturating_add(counters::lustre_md(&text));
            }
            if found.is_some() || requests.is_some() {
                break;
            }
        }
        if requests.is_some() {
            found.get_or_insert_with(LustreCounts::default).ops = requests;
        }
        found
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
