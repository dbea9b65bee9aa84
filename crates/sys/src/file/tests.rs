//! Files and directories, with calls that fail at every place.

use super::*;
use crate::calls::{Call, Failing};

#[test]
fn empty_removes_all_but_the_kept_and_follows_no_link() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    let inside = tempfile::tempdir().unwrap();
    let root = inside.path();
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    std::fs::write(root.join("a/b/c/file"), "x").unwrap();
    std::fs::write(root.join("kept"), "x").unwrap();
    std::os::unix::fs::symlink(outside.path(), root.join("a/link")).unwrap();
    let dir = open_dir(root).unwrap();
    empty(dir.as_fd(), &["kept"]).unwrap();
    let left: Vec<_> = entries(dir.as_fd()).unwrap();
    assert_eq!(left, vec![(c"kept".to_owned(), false)]);
    assert!(outside.path().join("precious").exists());
}

#[test]
fn empty_removes_deep_trees_and_forbidden_directories() {
    use std::os::unix::fs::PermissionsExt;
    let inside = tempfile::tempdir().unwrap();
    let mut at = open_dir(inside.path()).unwrap();
    for _ in 0..700 {
        make_dir_at(at.as_fd(), "d", 0o755).unwrap();
        at = open_dir_at(at.as_fd(), "d").unwrap();
    }
    let shut = inside.path().join("shut");
    std::fs::create_dir_all(shut.join("in")).unwrap();
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o0)).unwrap();
    let dir = open_dir(inside.path()).unwrap();
    empty(dir.as_fd(), &[]).unwrap();
    assert_eq!(entries(dir.as_fd()).unwrap(), vec![]);
}

#[test]
fn a_link_on_the_way_to_a_file_beneath_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("real")).unwrap();
    std::fs::write(dir.path().join("real/file"), "x").unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
    let fd = open_dir(dir.path()).unwrap();
    assert!(open_beneath(fd.as_fd(), "real/file").is_ok());
    for bad in ["link/file", "../etc/passwd", "/etc/passwd", "real"] {
        assert!(open_beneath(fd.as_fd(), bad).is_err(), "{bad}");
    }
    assert!(open_step_by_step(Kernel, fd.as_fd(), "real/file").is_ok());
    for bad in ["link/file", "../etc/passwd", "/etc/passwd"] {
        assert!(open_step_by_step(Kernel, fd.as_fd(), bad).is_err(), "{bad}");
    }
}

/// A tree with a file, a directory and a link; the numbers of calls that emptying it makes are few.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    std::fs::write(dir.path().join("a/b/file"), "x").unwrap();
    std::fs::write(dir.path().join("top"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("a/link")).unwrap();
    dir
}

#[test]
fn emptying_names_the_call_that_failed_whichever_it_is_and_is_done_by_the_next_time() {
    for n in 1.. {
        let dir = tree();
        let fd = open_dir(dir.path()).unwrap();
        let calls = Failing::nth(n, None, libc::EIO);
        let result = empty_by(&calls, fd.as_fd(), &[]);
        assert_eq!(result.is_err(), calls.has_failed(), "call {n}");
        empty(fd.as_fd(), &[]).unwrap();
        assert_eq!(entries(fd.as_fd()).unwrap(), vec![]);
        if let Err(error) = result {
            assert_eq!(error.os_error(), libc::EIO);
        } else {
            assert!(n > 8, "only {n} calls were made");
            return;
        }
    }
}

#[test]
fn where_directories_do_not_say_what_is_in_them_it_is_found_out() {
    for n in 1.. {
        let dir = tree();
        let fd = open_dir(dir.path()).unwrap();
        let silent = Failing::nth(n, Some(Call::Status), libc::EIO).directories_say_nothing();
        let mut found = entries_by(&silent, fd.as_fd()).unwrap_or_default();
        found.sort();
        if !silent.has_failed() {
            assert_eq!(found, [(c"a".to_owned(), true), (c"top".to_owned(), false)]);
            let silent = Failing::nth(0, None, 0).directories_say_nothing();
            empty_by(silent, fd.as_fd(), &[]).unwrap();
            assert_eq!(entries(fd.as_fd()).unwrap(), vec![]);
            return;
        }
        assert!(found.is_empty(), "a listing with a hole is not given");
    }
}

#[test]
fn a_name_whose_status_cannot_be_read_does_not_keep_the_others() {
    let dir = tree();
    let fd = open_dir(dir.path()).unwrap();
    let silent = Failing::nth(1, Some(Call::Status), libc::EIO).directories_say_nothing();
    let result = empty_by(&silent, fd.as_fd(), &[]);
    assert!(silent.has_failed());
    let left = entries(fd.as_fd()).unwrap();
    assert_eq!(result.is_err(), !left.is_empty(), "what stays is reported");
    assert!(left.len() <= 1, "{left:?}");
}

#[test]
fn a_replaced_file_is_whole_whichever_call_fails() {
    let (old, new) = ("what was there before", "what comes in its place");
    for n in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let read = || std::fs::read_to_string(dir.path().join("file")).unwrap();
        replace(dir.path(), "file", ".file.tmp", old.as_bytes()).unwrap();
        let calls = Failing::nth(n, None, libc::ENOSPC).writes_at_most(5);
        let result = replace_by(&calls, dir.path(), "file", ".file.tmp", new.as_bytes());
        match result {
            Ok(()) => {
                assert!(!calls.has_failed() && n > 9, "only {n} calls were made");
                assert_eq!(read(), new);
                return;
            }
            Err(error) => {
                assert_eq!(error.os_error(), libc::ENOSPC);
                assert!([old, new].contains(&read().as_str()), "call {n}: {}", read());
            }
        }
        replace(dir.path(), "file", ".file.tmp", new.as_bytes()).unwrap();
        assert_eq!(read(), new);
    }
}

#[test]
fn without_openat2_a_path_is_opened_step_by_step_and_any_step_may_fail() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    std::fs::write(dir.path().join("a/b/file"), "x").unwrap();
    std::os::unix::fs::symlink("b", dir.path().join("a/link")).unwrap();
    let fd = open_dir(dir.path()).unwrap();
    let old_kernel = || Failing::always(Call::OpenResolved, libc::ENOSYS);
    assert!(open_beneath_by(old_kernel(), fd.as_fd(), "a/b/file").is_ok());
    for bad in ["a/link/file", "a/../a/b/file", "/etc/passwd", "a/b"] {
        assert!(open_beneath_by(old_kernel(), fd.as_fd(), bad).is_err(), "{bad}");
    }
    assert!(open_in_root_by(old_kernel(), fd.as_fd(), "/a/b/file").is_ok());
    for n in 1..=3 {
        let calls = BothFail(old_kernel(), Failing::nth(n, Some(Call::Open), libc::EMFILE));
        let error = open_beneath_by(&calls, fd.as_fd(), "a/b/file").unwrap_err();
        assert_eq!(error.os_error(), libc::EMFILE, "step {n}");
    }
    let container = Failing::always(Call::OpenResolved, libc::EPERM);
    assert!(open_beneath_by(container, fd.as_fd(), "a/b/file").is_ok());
    let other = Failing::always(Call::OpenResolved, libc::EACCES);
    let error = open_beneath_by(other, fd.as_fd(), "a/b/file").unwrap_err();
    assert_eq!(error.os_error(), libc::EACCES);
}

struct BothFail(Failing, Failing);

impl Calls for BothFail {
    fn admit(&self, call: Call) -> io::Result<()> {
        self.0.admit(call).and_then(|()| self.1.admit(call))
    }
}

#[test]
fn limits_of_a_file_system_are_found_and_a_missing_place_is_an_error() {
    assert_eq!(file_system(Path::new("/proc")).unwrap().magic, 0x9fa0);
    assert!(file_system(Path::new("/no/such/place")).is_err());
    assert!(!may_write(Path::new("/no/such/place")));
    let (soft, _) = crate::process::limit(crate::process::Limit::OpenFiles);
    assert!(soft.is_none_or(|files| files > 0));
}

#[test]
fn what_is_pushed_to_storage_stays_as_it_was_written() {
    use std::io::{Read, Seek, Write};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    start_writing_out(file.as_fd(), 0, 10_000).unwrap();
    let mut read = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut read).unwrap();
    assert_eq!(read, [7; 10_000]);
    let (pipe, _other) = crate::fd::pipe().unwrap();
    let error = start_writing_out(pipe.as_fd(), 0, 1).unwrap_err();
    assert_eq!(error.os_error(), libc::ESPIPE);
}

#[test]
fn holes_of_a_file_are_told_from_its_bytes() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 512 << 10).unwrap();
    let all = |is_hole| move |until| Extent { until, is_hole };
    let (hole, bytes) = (all(true), all(false));
    assert_eq!(extent(&file, 0, 1 << 20).unwrap(), hole(512 << 10));
    assert_eq!(extent(&file, 0, 100).unwrap(), hole(100));
    let written = extent(&file, 512 << 10, 1 << 20).unwrap();
    assert!(!written.is_hole && written.until < 1 << 20);
    assert_eq!(extent(&file, written.until, 2 << 20).unwrap(), hole(1 << 20));
    assert_eq!(extent(&file, 1 << 20, 2 << 20).unwrap(), bytes(2 << 20)); // a read finds the end
}

#[test]
fn a_tree_is_counted_whatever_its_modes_and_depth_up_to_a_number_of_files() {
    use std::os::unix::fs::PermissionsExt;
    let top = tempfile::tempdir().unwrap();
    let mut path = top.path().to_owned();
    for level in 0..50 {
        path.push(format!("d{level}"));
    }
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("x"), vec![1; 1 << 20]).unwrap();
    let closed = top.path().join("d0");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    let dir = open_dir(top.path()).unwrap();
    let all = super::tree(dir.as_fd(), 1000);
    assert!(all.files == 51 && all.bytes >= 1 << 20 && !all.partly, "{all:?}");
    assert_eq!(
        std::fs::metadata(&closed).unwrap().permissions().mode() & 0o777,
        0
    );
    let some = super::tree(dir.as_fd(), 20);
    assert!(some.files == 20 && some.partly, "{some:?}");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).unwrap();
    for level in 50..DEPTH_MAX + 2 {
        path.push(format!("d{level}"));
    }
    std::fs::create_dir_all(&path).unwrap();
    assert!(super::tree(dir.as_fd(), 1000).partly, "too deep to be counted");
}

#[test]
fn names_that_a_payload_took_do_not_keep_a_deep_tree() {
    let top = tempfile::tempdir().unwrap();
    let mut path = top.path().to_owned();
    for level in 0..DEPTH_MAX + 20 {
        path.push(format!("d{level}"));
    }
    std::fs::create_dir_all(path).unwrap();
    std::fs::write(
        top.path().join(".deep-1"),
        "a file, over which no directory is renamed",
    )
    .unwrap();
    std::fs::create_dir_all(top.path().join(".deep-2/full")).unwrap();
    let dir = open_dir(top.path()).unwrap();
    super::empty(dir.as_fd(), &[".deep-1", ".deep-2"]).unwrap();
    let mut left: Vec<_> = std::fs::read_dir(top.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, [".deep-1", ".deep-2"]);
    super::empty(dir.as_fd(), &[]).unwrap();
    assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
}
