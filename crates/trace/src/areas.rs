//! File-system areas: mount points and configured prefixes, and how Lustre stripes them.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::mountinfo::{self, Mount};
use tidemill_sys::time;

/// The mounts of a text as in /proc/self/mountinfo; of several at one point the last.
pub fn mounts(text: &str) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for mount in mountinfo::mounts(text) {
        found.retain(|known| known.point != mount.point);
        found.push(mount);
    }
    found
}

/// Finds the area of a path: the longest prefix by whole names.
#[derive(Debug, Default)]
pub struct Finder {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, usize>,
    /// of the longest name: longer beginnings of a path need not be looked up
    bytes_max: usize,
}

impl Finder {
    /// `/` is always one.
    pub fn new(mut names: Vec<String>) -> Self {
        names.push("/".to_owned());
        let mut finder = Finder::default();
        for name in names {
            let key = match name.trim_end_matches('/') {
                "" => "/",
                key => key,
            };
            if !finder.numbers.contains_key(key.as_bytes()) {
                finder.numbers.insert(key.into(), finder.names.len());
                finder.bytes_max = finder.bytes_max.max(key.len());
                finder.names.push(key.to_owned());
            }
        }
        finder
    }

    /// Number of the area in `names`.
    pub fn area_of(&self, path: &[u8]) -> usize {
        let mut at = path;
        loop {
            if at.len() <= self.bytes_max {
                if let Some(&number) = self.numbers.get(at) {
                    return number;
                }
            }
            match at.iter().rposition(|&byte| byte == b'/') {
                None | Some(0) => return self.numbers.get(&b"/"[..]).copied().unwrap_or(0),
                Some(slash) => at = &at[..slash],
            }
        }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// `lfs` waits for a file system that does not answer.
const LFS_WAIT_US: u64 = 10_000_000;
const LFS_BYTES_MAX: usize = 64 << 10;

/// How new files below a directory of a Lustre file system are striped; None where `lfs` is not there or says nothing.
pub fn stripe(directory: &str) -> Option<String> {
    let mut child = Command::new("lfs")
        .args(["getstripe", "-d", directory])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let text = child.stdout.take().map(|mut out| read_within(&mut out));
    let _ = child.kill(); // nothing is left to be said
    let _ = child.wait();
    stripe_of(&String::from_utf8_lossy(&text?), directory)
}

fn read_within(out: &mut std::process::ChildStdout) -> Vec<u8> {
    use std::os::fd::AsFd;
    let end_us = time::monotonic_us() + LFS_WAIT_US;
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while text.len() < LFS_BYTES_MAX {
        let left_us = end_us.saturating_sub(time::monotonic_us());
        let mut one = [Poll::new(out.as_fd(), READABLE)];
        if left_us == 0 || fd::poll(&mut one, Some(left_us)).is_err() {
            break;
        }
        if !one[0].readable() {
            continue;
        }
        match io::Read::read(out, &mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
        }
    }
    text
}

/// lfs-getstripe(1): the directory's name, then `stripe_count: 1 stripe_size: 1048576 ...`.
fn stripe_of(text: &str, directory: &str) -> Option<String> {
    let words: Vec<&str> = text
        .lines()
        .filter(|line| Path::new(line.trim()) != Path::new(directory))
        .flat_map(str::split_whitespace)
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_mounts_at_one_point_the_last_counts() {
        let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    41 22 0:36 / /lustre rw - lustre mds@tcp:/fs rw\n\
                    99 22 0:40 / /lustre rw - tmpfs tmpfs rw\n";
        let found = mounts(text);
        let told: Vec<(&str, &str)> = found
            .iter()
            .map(|m| (m.point.as_str(), m.kind.as_str()))
            .collect();
        assert_eq!(told, [("/", "ext4"), ("/lustre", "tmpfs")]);
    }

    #[test]
    fn the_longest_prefix_of_whole_names_is_the_area() {
        let finder = Finder::new(["/", "/sw", "/sw/rel1/"].map(str::to_owned).to_vec());
        let name = |path: &str| finder.names()[finder.area_of(path.as_bytes())].as_str();
        assert_eq!(name("/sw/rel1/bin/x"), "/sw/rel1");
        assert_eq!(name("/sw/rel12"), "/sw");
        assert_eq!(name("/sw"), "/sw");
        assert_eq!(name("/swx"), "/");
        assert_eq!(name("/"), "/");
    }

    #[test]
    fn a_stripe_is_one_line_without_the_name_of_the_directory() {
        let text = "/lustre\nstripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1\n\n";
        let expected = "stripe_count: 1 stripe_size: 1048576 pattern: 0 stripe_offset: -1";
        assert_eq!(stripe_of(text, "/lustre").as_deref(), Some(expected));
        assert_eq!(stripe_of("", "/lustre"), None);
    }
}
