//! Paths: joined, and made plain without losing what links mean.

use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// `path` as seen from `directory`, into `into`.
pub fn join(directory: &[u8], path: &[u8], into: &mut Vec<u8>) {
    into.clear();
    if path.first() != Some(&b'/') {
        into.extend_from_slice(directory);
        if directory.last() != Some(&b'/') {
            into.push(b'/');
        }
    }
    into.extend_from_slice(path);
}

/// Where a symbolic link leads; asked once per directory.
pub struct Links<F: Fn(&Path) -> Option<PathBuf>> {
    /// the real path of a path that is a symbolic link, else None
    resolve: F,
    known: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<F: Fn(&Path) -> Option<PathBuf>> Links<F> {
    pub fn new(resolve: F) -> Self {
        Links {
            resolve,
            known: HashMap::new(),
        }
    }

    /// An absolute path without `.`, `..` and doubled slashes. What stands before `..` is followed where it is a link,
    /// as the kernel does (path_resolution(7)); other links stay.
    pub fn plain(&mut self, path: &[u8]) -> Vec<u8> {
        let mut plain: Vec<u8> = Vec::with_capacity(path.len());
        for name in path.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    if let Some(real) = self.real(&plain) {
                        plain = real;
                    }
                    let parent = plain.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                    plain.truncate(parent);
                }
                name => {
                    plain.push(b'/');
                    plain.extend_from_slice(name);
                }
            }
        }
        if plain.is_empty() {
            plain.push(b'/');
        }
        plain
    }

    fn real(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if path.is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(path) {
            return known.clone();
        }
        let found = (self.resolve)(Path::new(std::ffi::OsStr::from_bytes(path)));
        let real = found.map(|real| real.into_os_string().into_vec());
        self.known.insert(path.to_vec(), real.clone());
        real
    }
}

/// Whether a path has no `.`, `..` and doubled slash, and does not end in a slash.
pub fn is_plain(path: &[u8]) -> bool {
    let mut names = path.split(|&byte| byte == b'/');
    names.next() == Some(b"") && names.all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Asks the file system: the real path of a symbolic link.
pub fn follow(path: &Path) -> Option<PathBuf> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_symlink());
    is_link.then(|| std::fs::canonicalize(path).ok()).flatten()
}

/// `libm.so`, `libm.so.6`.
pub fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some((stem, version)) = name.rsplit_once(".so") else {
        return false;
    };
    let mut after = version.chars();
    let numbered = after.next() == Some('.') && after.next().is_some_and(|digit| digit.is_ascii_digit());
    !stem.is_empty() && (version.is_empty() || numbered)
}

/// `x.py`, `x.pyc`.
pub fn is_python(path: &str) -> bool {
    path.ends_with(".py") || path.ends_with(".pyc")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(path: &str) -> String {
        let resolve = |path: &Path| (path == Path::new("/link")).then(|| PathBuf::from("/far/away"));
        String::from_utf8(Links::new(resolve).plain(path.as_bytes())).unwrap()
    }

    #[test]
    fn paths_are_joined_and_absolute_ones_kept() {
        let mut into = b"old".to_vec();
        join(b"/a", b"b/c", &mut into);
        assert_eq!(into, b"/a/b/c");
        join(b"/", b"b", &mut into);
        assert_eq!(into, b"/b");
        join(b"/a", b"/b", &mut into);
        assert_eq!(into, b"/b");
    }

    #[test]
    fn dots_go_and_links_before_two_dots_are_followed() {
        assert_eq!(plain("/a/./b//c/"), "/a/b/c");
        assert_eq!(plain("/a/b/../c"), "/a/c");
        assert_eq!(plain("/link/../c"), "/far/c");
        assert_eq!(plain("/link/c"), "/link/c");
        assert_eq!(plain("/.."), "/");
        assert_eq!(plain("/../../a"), "/a");
    }

    #[test]
    fn libraries_and_modules_are_known_by_their_names() {
        assert!(is_library("/usr/lib/libm.so.6") && is_library("/x/_ssl.cpython-311.so"));
        assert!(!is_library("/etc/ld.so.cache") && !is_library("/x/.so") && !is_library("/x.so/readme"));
        assert!(is_python("/a/b.py") && is_python("/a/b.cpython-311.pyc") && !is_python("/a/b.pyx"));
    }

    proptest! {
        #[test]
        fn a_plain_path_stays_as_it_is(path in "(/[a-c.]{0,3}){1,6}") {
            let once = plain(&path);
            prop_assert!(once.starts_with('/'));
            prop_assert_eq!(is_plain(path.as_bytes()), once == path && path != "/");
            prop_assert_eq!(plain(&once), once);
        }
    }
}
