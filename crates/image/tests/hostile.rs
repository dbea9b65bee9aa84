//! Images that lie: the reader ends with an error or with a tree, in bounded time, and writes nothing outside.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tidemill_image::{check, unpack, ImageError, Limits, Links};

const LIMITS_MB: u64 = 16;

fn limits() -> Limits {
    Limits {
        entries: 1000,
        ..Limits::memory(LIMITS_MB << 20)
    }
}

/// A small image with everything in it; None where there is no mksquashfs (which CI has).
fn image(options: &[&str]) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
    std::fs::create_dir(tree.join("empty")).unwrap();
    std::fs::write(tree.join("a/small"), "small").unwrap();
    std::fs::write(tree.join("a/b/none"), "").unwrap();
    let noise: Vec<u8> = (0..300_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    std::fs::write(tree.join("a/large"), &noise).unwrap();
    std::fs::hard_link(tree.join("a/large"), tree.join("a/b/again")).unwrap();
    std::os::unix::fs::symlink("../small", tree.join("a/b/link")).unwrap();
    let hole = std::fs::File::create(tree.join("a/hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    squashed(&tree, options)
}

fn squashed(tree: &Path, options: &[&str]) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("image");
    let made = Command::new("mksquashfs")
        .args([tree.as_os_str(), out.as_os_str()])
        .args([
            "-comp",
            "zstd",
            "-noappend",
            "-quiet",
            "-no-progress",
            "-b",
            "16384",
        ])
        .args(["-Xcompression-level", "1"])
        .args(options)
        .stdout(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => Some(std::fs::read(out).unwrap()),
        _ => {
            assert!(std::env::var_os("CI").is_none(), "CI has mksquashfs");
            None
        }
    }
}

fn try_unpack(bytes: &[u8], limits: &Limits) -> (tempfile::TempDir, Result<(), ImageError>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image");
    std::fs::write(&file, bytes).unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let result = unpack(&file, &tree, Links::Keep, limits).map(|_| ());
    (dir, result)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn files_in_fragments_and_without_compression_are_read() {
    for options in [
        &[][..],
        &["-no-fragments"],
        &["-noI", "-noD", "-noF", "-noX"],
        &["-no-exports"],
    ] {
        let Some(bytes) = image(options) else { return };
        let (dir, result) = try_unpack(&bytes, &limits());
        result.unwrap();
        let tree = dir.path().join("tree");
        assert_eq!(names(&tree), ["a", "empty"]);
        assert_eq!(std::fs::read(tree.join("a/b/link")).unwrap(), b"small");
        assert_eq!(
            std::fs::read(tree.join("a/b/again")).unwrap(),
            std::fs::read(tree.join("a/large")).unwrap()
        );
        assert_eq!(std::fs::metadata(tree.join("a/hole")).unwrap().len(), 1 << 20);
    }
}

#[test]
fn large_files_and_their_ends_come_back_with_mode_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let content: Vec<u8> = (0..9_000_001_u32).map(|n| (n >> 7) as u8).collect();
    std::fs::write(tree.join("large"), &content).unwrap();
    let tailed = std::fs::File::create(tree.join("tailed")).unwrap();
    std::io::Write::write_all(&mut &tailed, &content[..5_000_000]).unwrap();
    tailed.set_len(10_000_000).unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["large", "tailed"] {
        let file = std::fs::File::options()
            .write(true)
            .open(tree.join(name))
            .unwrap();
        file.set_modified(then).unwrap();
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o555))
            .unwrap();
    }
    for options in [&["-no-fragments"][..], &["-always-use-fragments"]] {
        let Some(bytes) = squashed(&tree, options) else {
            return;
        };
        let (unpacked, result) = try_unpack(&bytes, &Limits::memory(LIMITS_MB << 20));
        result.unwrap();
        let at = unpacked.path().join("tree");
        assert!(std::fs::read(at.join("large")).unwrap() == content);
        let tailed = std::fs::read(at.join("tailed")).unwrap();
        assert!(tailed[..5_000_000] == content[..5_000_000] && tailed[5_000_000..] == [0; 5_000_000]);
        for name in ["large", "tailed"] {
            let status = std::fs::metadata(at.join(name)).unwrap();
            assert_eq!(status.modified().unwrap(), then);
            assert_eq!(std::os::unix::fs::MetadataExt::mode(&status) & 0o7777, 0o555);
        }
    }
}

#[test]
fn an_image_cut_anywhere_is_damaged() {
    let Some(bytes) = image(&[]) else { return };
    for length in (0..bytes.len()).step_by(bytes.len() / 50) {
        let (_dir, result) = try_unpack(&bytes[..length], &limits());
        // mksquashfs pads to 4096 bytes, and no reader needs the padding
        assert!(
            result.is_err() || length + 4096 > bytes.len(),
            "{length} of {}",
            bytes.len()
        );
    }
}

#[test]
fn limits_are_kept_and_named() {
    let Some(bytes) = image(&[]) else { return };
    let few = Limits {
        entries: 5,
        ..limits()
    };
    let (_dir, result) = try_unpack(&bytes, &few);
    assert!(result.unwrap_err().to_string().contains("more than 5 entries"));
    let (dir, result) = try_unpack(&bytes, &Limits::memory(100_000));
    assert!(matches!(result, Err(ImageError::TooBig { .. })));
    assert!(names(&dir.path().join("tree")).is_empty());
}

#[test]
fn another_compression_is_named() {
    let Some(mut bytes) = image(&[]) else { return };
    bytes[20] = 4;
    let (_dir, result) = try_unpack(&bytes, &limits());
    assert!(result
        .unwrap_err()
        .to_string()
        .contains("compressed with xz, not zstd"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_bytes_never_do_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        // plain metadata, so that a change reaches the reader and not just the decompressor's checks
        static IMAGE: std::sync::OnceLock<Option<Vec<u8>>> = std::sync::OnceLock::new();
        let Some(bytes) = IMAGE.get_or_init(|| image(&["-noI", "-no-fragments"])) else { return Ok(()) };
        let mut bytes = bytes.clone();
        let length = bytes.len();
        for (index, value) in changes {
            // the tables are at the end, the superblock at the beginning
            let at = index.index(1700);
            let at = if at < 96 { at } else { length - at };
            bytes[at] = value;
        }
        let (dir, _) = try_unpack(&bytes, &limits());
        prop_assert_eq!(names(dir.path()), ["image", "tree"]);
        let _ = check(&dir.path().join("image"), &limits());
    }
}
