//! Members, groups and files of a bundle, with holes, and with calls that fail at every place.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

use tidemill_sys::calls::Failing;
use tidemill_wire::JournalReader;

use super::*;

fn member(name: &str, first: u64) -> Member<'_> {
    Member {
        kind: "output",
        name,
        job: 7,
        first,
        count: 10,
        truncated: false,
    }
}

#[test]
fn members_are_where_the_index_says_and_tar_reads_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a.r0.i1", 1 << 30)
        .unwrap()
        .unwrap();
    let content = vec![7u8; 3_000_001];
    let first = bundle
        .append(&member("hits", 0), &mut Cursor::new(&content))
        .unwrap();
    let log = Member {
        kind: "log",
        ..member("stderr", 0)
    };
    let second = bundle.append(&log, &mut Cursor::new(b"warning\n")).unwrap();
    bundle.sync().unwrap();
    assert_eq!(bundle.dirty_bytes(), 0);
    bundle.finish();
    let data = std::fs::read(directory.path().join("a.r0.i1.tar")).unwrap();
    assert_eq!(
        &data[first.offset as usize..][..first.length as usize],
        &content[..]
    );
    assert_eq!(
        &data[second.offset as usize..][..second.length as usize],
        b"warning\n"
    );
    let output = std::process::Command::new("tar")
        .arg("-tf")
        .arg(directory.path().join("a.r0.i1.tar"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "7/hits/0-9\n7/stderr.log/0-9\n"
    );
    assert!(output.stderr.is_empty());
    let index = std::fs::read_to_string(directory.path().join("a.r0.i1.idx")).unwrap();
    assert_eq!(index.lines().count(), 2);
    assert_eq!(first.sha256, hex::text(&Sha256::digest(&content)));
}

#[test]
fn a_name_is_used_once() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Bundle::create(directory.path(), "a", 1).unwrap().is_some());
    assert!(Bundle::create(directory.path(), "a", 1).unwrap().is_none());
}

#[test]
fn a_large_bundle_is_followed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a", 1000).unwrap().unwrap();
    assert!(!bundle.is_large());
    assert_eq!(
        bundle
            .append(&member("x", 0), &mut Cursor::new([1u8; 600]))
            .unwrap()
            .bundle,
        "a.tar"
    );
    assert!(bundle.is_large());
    bundle.sync().unwrap();
    bundle.start_next().unwrap();
    let next = bundle
        .append(&member("x", 10), &mut Cursor::new([1u8; 600]))
        .unwrap();
    assert_eq!((next.bundle.as_str(), next.offset), ("a.2.tar", 512));
    bundle.sync().unwrap();
    assert!(directory.path().join("a.2.idx").metadata().unwrap().len() > 0);
}

#[test]
fn a_source_that_breaks_leaves_no_trace() {
    struct Short;
    impl MemberSource for Short {
        fn length(&self) -> std::io::Result<u64> {
            Ok(10)
        }
        fn next(&mut self, _: &mut [u8]) -> std::io::Result<Stretch> {
            Ok(Stretch::Bytes(0))
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a", 1000).unwrap().unwrap();
    assert!(bundle.append(&member("x", 0), &mut Short).is_err());
    assert_eq!(bundle.dirty_bytes(), 0);
    assert_eq!(
        bundle
            .append(&member("x", 0), &mut Cursor::new(b"abc"))
            .unwrap()
            .offset,
        512
    );
}

#[test]
fn a_file_keeps_its_permission_bits_and_what_is_not_a_file_has_none() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a", 1 << 30).unwrap().unwrap();
    for mode in [0o755, 0o640, 0o4711] {
        let file = tempfile::tempfile().unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(mode))
            .unwrap();
        let output = bundle
            .append(&member("x", 0), &mut FileSource::new(file))
            .unwrap();
        assert_eq!(output.mode, Some(u64::from(mode & 0o777)));
    }
    let output = bundle.append(&member("x", 0), &mut Cursor::new(b"abc")).unwrap();
    assert_eq!(output.mode, None);
}

#[test]
fn a_source_that_is_written_to_while_it_is_copied_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a", 1 << 30).unwrap().unwrap();
    for (write, what) in [
        (
            &(|file: &mut File| file.set_len(9_000).unwrap()) as &dyn Fn(&mut File),
            "grew by 1000",
        ),
        (&|file: &mut File| file.set_len(6_000).unwrap(), "shrank by 2000"),
        (
            &|file: &mut File| file.set_modified(SystemTime::UNIX_EPOCH).unwrap(),
            "written to",
        ),
    ] {
        let mut file = sparse(8_000, &[(0, &[7; 8_000])]);
        let mut source = FileSource::new(file.try_clone().unwrap());
        bundle.begin();
        let mut part = bundle.start(&member("x", 0), 8_000).unwrap();
        assert!(!bundle.go_on(&mut part, &mut source, 5_000).unwrap());
        write(&mut file);
        let error = loop {
            match bundle.go_on(&mut part, &mut source, 5_000) {
                Ok(ended) => assert!(!ended, "what {what} is kept"),
                Err(error) => break error,
            }
        };
        assert!(error.is_of_output());
        assert!(tidemill_wire::log::cause(&error).contains(what), "{error:?}");
        bundle.roll_back();
    }
    assert_eq!(bundle.dirty_bytes(), 0);
}

#[test]
fn a_next_file_that_was_half_made_stops_none_that_follow() {
    let directory = tempfile::tempdir().unwrap();
    for n in 3..=4 {
        let name = format!("a{n}");
        let calls = Failing::nth(n, Some(tidemill_sys::calls::Call::Open), libc::EIO);
        let mut bundle = Bundle::create_by(&calls, directory.path(), &name, 1)
            .unwrap()
            .unwrap();
        assert!(bundle.start_next().is_err());
        bundle.start_next().unwrap();
        let output = bundle.append(&member("x", 0), &mut Cursor::new(b"abc")).unwrap();
        bundle.sync().unwrap();
        assert_eq!(output.bundle, format!("{name}.3.tar"));
    }
}

/// A file of this length that is all holes except for a few written bytes.
fn sparse(length: u64, written: &[(u64, &[u8])]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.set_len(length).unwrap();
    for (at, bytes) in written {
        file.seek(SeekFrom::Start(*at)).unwrap();
        file.write_all(bytes).unwrap();
    }
    file
}

fn digest_of(file: &Path, output: &OutputRef) -> String {
    let file = File::open(file).unwrap();
    let mut bytes = vec![0; output.length as usize];
    file.read_exact_at(&mut bytes, output.offset).unwrap();
    hex::text(&Sha256::digest(&bytes))
}

#[test]
fn holes_take_no_room_and_are_read_as_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.tar");
    let mut bundle = Bundle::create(directory.path(), "a", 1 << 40).unwrap().unwrap();
    for (first, length, written) in [
        (0, 6 << 20, vec![(3 << 20, &b"in the middle"[..])]),
        (10, (3 << 20) + 7, vec![(0, &b"at the beginning"[..])]),
        (20, 3 << 20, vec![]),
    ] {
        let mut source = FileSource::new(sparse(length, &written));
        let output = bundle.append(&member("x", first), &mut source).unwrap();
        bundle.sync().unwrap();
        let mut plain = vec![0; length as usize];
        for (at, bytes) in written {
            plain[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(output.sha256, hex::text(&Sha256::digest(&plain)));
        assert_eq!(digest_of(&path, &output), output.sha256);
    }
    bundle
        .append(&member("y", 0), &mut Cursor::new(b"behind"))
        .unwrap();
    bundle.finish();
    let metadata = path.metadata().unwrap();
    assert!(metadata.len() > 12 << 20);
    assert!(
        metadata.blocks() * 512 < 128 << 10,
        "{} blocks",
        metadata.blocks()
    );
    let listed = std::process::Command::new("tar")
        .arg("-tf")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "7/x/0-9\n7/x/10-19\n7/x/20-29\n7/y/0-9\n"
    );
}

#[test]
fn a_hole_is_written_where_something_else_stood() {
    let directory = tempfile::tempdir().unwrap();
    let calls = Failing::always(tidemill_sys::calls::Call::Cut, libc::EIO);
    let mut bundle = Bundle::create_by(&calls, directory.path(), "a", 1 << 40)
        .unwrap()
        .unwrap();
    bundle.begin();
    let mut part = bundle.start(&member("x", 0), 100_000).unwrap();
    assert!(!bundle
        .go_on(&mut part, &mut Cursor::new([7; 100_000]), 90_000)
        .unwrap());
    bundle.roll_back(); // which cannot cut it off
    let mut source = FileSource::new(sparse(50_000, &[]));
    let output = bundle.append(&member("x", 0), &mut source).unwrap();
    let path = directory.path().join("a.tar");
    assert_eq!(digest_of(&path, &output), output.sha256);
    assert_eq!(output.sha256, hex::text(&Sha256::digest([0; 50_000])));
}

#[test]
fn what_is_on_its_way_is_not_made_safe_and_can_be_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut bundle = Bundle::create(directory.path(), "a", 1 << 40).unwrap().unwrap();
    let before = bundle
        .append(&member("x", 0), &mut Cursor::new(b"before"))
        .unwrap();
    bundle.begin();
    bundle.start(&member("x", 10), 5).unwrap();
    bundle.roll_back();
    bundle.begin();
    for (name, text) in [("x", "one"), ("y", "two")] {
        let mut part = bundle.start(&member(name, 20), 3).unwrap();
        assert!(bundle.go_on(&mut part, &mut Cursor::new(text), 3).unwrap());
        bundle.complete(part).unwrap();
        bundle.sync().unwrap(); // of `before`: the group is not whole yet
        assert_eq!(bundle.dirty_bytes(), 0);
    }
    bundle.roll_back();
    let after = bundle
        .append(&member("x", 20), &mut Cursor::new(b"after"))
        .unwrap();
    bundle.sync().unwrap();
    let path = directory.path().join("a.tar");
    assert_eq!(
        indexed(&path).iter().map(|each| each.offset).collect::<Vec<_>>(),
        [before.offset, after.offset]
    );
    for output in [before, after] {
        assert_eq!(digest_of(&path, &output), output.sha256);
    }
}

/// The members that the index of an archive has.
fn indexed(archive: &Path) -> Vec<OutputRef> {
    let mut found = Vec::new();
    let mut reader = JournalReader::new(&archive.with_extension("idx"));
    let mut take = |line: &[u8]| {
        let entry: IndexEntry = serde_json::from_slice(line).unwrap();
        found.push(OutputRef {
            name: entry.name,
            bundle: archive.file_name().unwrap().to_string_lossy().into_owned(),
            offset: entry.offset,
            length: entry.length,
            sha256: entry.sha256,
            mode: None,
        });
    };
    while reader.read(&mut take).unwrap() > 0 {}
    found
}

/// A pilot's life in short: groups of two outputs, one of them sparse, and a sync after every second group, which
/// acknowledges them. What was acknowledged.
fn keep_some(calls: &Failing, directory: &Path) -> Vec<OutputRef> {
    let mut acknowledged = Vec::new();
    let Ok(Some(mut bundle)) = Bundle::create_by(calls, directory, "a", 30_000) else {
        return acknowledged;
    };
    let mut pending = Vec::new();
    for first in 0..6 {
        if bundle.is_large() && bundle.dirty_bytes() == 0 {
            let _ = bundle.start_next(); // on a full disk the next is tried later
        }
        bundle.begin();
        let kept = [(0, b'x'), (9_000, b'y')].map(|(at, byte)| {
            let text = [byte + first; 700];
            let mut source = FileSource::new(sparse(10_240, &[(at, &text)]));
            let mut part = bundle.start(&member("x", u64::from(first)), 10_240)?;
            while !bundle.go_on(&mut part, &mut source, 4_000)? {}
            bundle.complete(part)
        });
        match kept.into_iter().collect::<Result<Vec<_>, PilotError>>() {
            Ok(outputs) => {
                bundle.commit();
                pending.extend(outputs);
            }
            Err(_) => bundle.roll_back(),
        }
        if first % 2 == 1 {
            let outputs = std::mem::take(&mut pending);
            match bundle.sync() {
                Ok(()) => acknowledged.extend(outputs),
                Err(_) => drop(bundle.start_next()),
            }
        }
    }
    bundle.finish();
    acknowledged
}

#[test]
fn whichever_call_fails_what_is_acknowledged_is_there_and_what_is_kept_is_whole() {
    for errno in [libc::ENOSPC, libc::EIO] {
        for n in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let calls = Failing::nth(n, None, errno).writes_at_most(1_000);
            let acknowledged = keep_some(&calls, directory.path());
            let archives = std::fs::read_dir(directory.path())
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|extension| extension == "tar"));
            let mut kept = Vec::new();
            for archive in archives {
                for output in indexed(&archive) {
                    assert_eq!(digest_of(&archive, &output), output.sha256, "call {n}");
                    kept.push(output);
                }
            }
            for output in &acknowledged {
                let indexed = OutputRef {
                    mode: None,
                    ..output.clone()
                };
                assert!(kept.contains(&indexed), "call {n}: {output:?}");
            }
            if !calls.has_failed() {
                assert_eq!(acknowledged.len(), 12);
                assert!(n > 60, "only {n} calls were made");
                break;
            }
            // one call that fails costs the groups of one sync, but for that which makes the first file
            assert!(
                acknowledged.len() >= 8 || n <= 2,
                "call {n}: {} are kept",
                acknowledged.len()
            );
        }
    }
}
