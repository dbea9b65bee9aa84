//! The writer with calls that fail at every place: what it says is safe is there, and what it refuses can be sent again.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sha2::{Digest, Sha256};
use tidemill_sys::calls::{Call, Failing};
use tidemill_wire::hex;

use super::*;

fn origin(directory: &Path) -> Origin {
    Origin {
        directory: directory.to_owned(),
        pilot: String::from("a"),
        bytes_max: 3_000,
    }
}

fn group(number: u64) -> (Group, Vec<u8>) {
    let text = vec![number as u8; 700];
    let output = Output {
        name: String::from("x"),
        path: String::new(),
        inline: Some(text.len()),
    };
    let group = Group {
        number,
        job: 1,
        first: number,
        count: 1,
        has_files: false,
        outputs: vec![output],
    };
    (group, text)
}

/// The writer's end, and the pilot's, which reads answers.
fn alone() -> (Served, Served) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Served::new(theirs), Served::new(ours))
}

fn answers(mut from: Served) -> Vec<Answer> {
    std::iter::from_fn(|| from.request().unwrap())
        .map(|(answer, _)| answer)
        .collect()
}

/// What the writer answers to a request for these groups, and to one to make them safe.
fn ask(writer: &mut Writer<&Failing>, numbers: &[u64]) -> Vec<Answer> {
    let (mut served, other) = alone();
    let (groups, texts): (Vec<Group>, Vec<Vec<u8>>) = numbers.iter().map(|&number| group(number)).unzip();
    assert!(writer.copy_all(&mut served, &groups, &texts.concat()));
    writer.sync(&mut served);
    drop(served);
    answers(other)
}

#[test]
fn whichever_call_fails_every_group_is_safe_once_in_the_end_and_where_it_is_said_to_be() {
    for errno in [libc::ESTALE, libc::ENOSPC] {
        for n in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let calls = Failing::nth(n, None, errno).writes_at_most(500);
            let mut writer = Writer::new(&calls, None, origin(directory.path()), 1 << 30);
            let mut waiting: VecDeque<u64> = (1..=6).collect();
            let (mut copied, mut safe) = (BTreeMap::new(), BTreeMap::new());
            for _ in 0..6 {
                let batch: Vec<u64> = waiting.drain(..waiting.len().min(3)).collect();
                for answer in ask(&mut writer, &batch) {
                    match answer {
                        Answer::Copied { number, refs, .. } => drop(copied.insert(number, refs)),
                        Answer::Failed { number, cause } => {
                            assert!(!cause.of_output, "{}", cause.text);
                            waiting.push_back(number);
                        }
                        Answer::Safe => safe.append(&mut copied),
                        Answer::Unsafe { .. } => waiting.extend(std::mem::take(&mut copied).keys()),
                        _ => {}
                    }
                }
            }
            assert_eq!(safe.len(), 6, "call {n}, error {errno}");
            for (number, refs) in safe {
                let mut bytes = vec![0; refs[0].length as usize];
                let file = std::fs::File::open(directory.path().join(&refs[0].bundle)).unwrap();
                file.read_exact_at(&mut bytes, refs[0].offset).unwrap();
                assert_eq!(bytes, group(number).1, "call {n}, error {errno}");
                assert_eq!(hex::text(&Sha256::digest(&bytes)), refs[0].sha256);
            }
            if !calls.has_failed() {
                assert!(n > 25, "only {n} calls were made");
                break;
            }
        }
    }
}

#[test]
fn what_was_copied_before_an_fsync_failed_in_a_copy_is_never_said_to_be_safe() {
    for errno in [libc::ENOSPC, libc::EIO] {
        let directory = tempfile::tempdir().unwrap();
        let calls = Failing::nth(1, Some(Call::Sync), errno);
        let place = Origin {
            bytes_max: 1 << 30,
            ..origin(directory.path())
        };
        let mut writer = Writer::new(&calls, None, place, 1 << 30);
        let (mut served, other) = alone();
        let ((small, mut body), (mut large, _), (next, text)) = (group(1), group(2), group(3));
        large.outputs[0].inline = Some(65 << 20); // above 64 MiB: part is fsynced before it is complete
        body.resize(700 + (65 << 20), 7);
        assert!(writer.copy_all(&mut served, &[small, large], &body));
        assert!(writer.copy_all(&mut served, &[next], &text));
        writer.sync(&mut served);
        drop(served);
        let answers = answers(other);
        let place_of = |wanted: &dyn Fn(&Answer) -> bool| answers.iter().position(wanted);
        let copied = |wanted: u64| {
            place_of(&|answer| matches!(answer, Answer::Copied { number, .. } if *number == wanted))
        };
        let lost = place_of(&|answer| matches!(answer, Answer::Unsafe { .. }));
        let safe = place_of(&|answer| matches!(answer, Answer::Safe));
        assert!(copied(1).is_some() && copied(1) < lost, "{errno}: {answers:?}");
        assert!(
            lost.is_some() && lost < copied(3) && copied(3) < safe,
            "{errno}: {answers:?}"
        );
    }
}

#[test]
fn an_output_that_is_too_large_is_its_payloads_fault_and_stops_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let calls = Failing::nth(u64::MAX, None, libc::EIO);
    let mut writer = Writer::new(&calls, None, origin(directory.path()), 699);
    let (mut small, mut text) = group(2);
    (small.outputs[0].inline, small.number) = (Some(5), 2);
    text.truncate(5);
    let (large, mut body) = group(1);
    body.extend(text);
    let (mut served, other) = alone();
    writer.copy_all(&mut served, &[large, small], &body);
    drop(served);
    let answers = answers(other);
    assert!(
        matches!(&answers[0], Answer::Failed { number: 1, cause } if cause.of_output && cause.text.contains("700"))
    );
    assert!(matches!(
        &answers[1],
        Answer::Copied {
            number: 2,
            bytes: 5,
            ..
        }
    ));
}

#[test]
fn an_output_that_the_node_cannot_open_now_is_no_fault_of_its_payload_and_is_kept_later() {
    for (errno, of_output) in [
        (libc::EMFILE, false),
        (libc::ENFILE, false),
        (libc::ENOMEM, false),
        (libc::EIO, true),
        (libc::ENOENT, true),
        (libc::ELOOP, true),
    ] {
        let (directory, slot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(slot.path().join("hits"), b"hits").unwrap();
        let scratch = OwnedFd::from(std::fs::File::open(slot.path()).unwrap());
        let calls = Failing::nth(1, Some(Call::OpenResolved), errno);
        let mut writer = Writer::new(&calls, None, origin(directory.path()), 1 << 30);
        let (mut served, _other) = alone();
        let (mut wanted, _) = group(1);
        wanted.outputs[0].path = String::from("hits");
        wanted.outputs[0].inline = None;
        let answer = writer.copy(&mut served, &wanted, (Some(&scratch), &[]));
        assert!(
            matches!(&answer, Answer::Failed { number: 1, cause } if cause.of_output == of_output),
            "{errno}: {answer:?}"
        );
        assert!(!writer.suspect, "what is kept is not in doubt");
        let again = writer.copy(&mut served, &wanted, (Some(&scratch), &[]));
        assert!(
            matches!(again, Answer::Copied { bytes: 4, .. }),
            "{errno}: {again:?}"
        );
    }
}
