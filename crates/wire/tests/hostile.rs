//! What peers and files say is read or refused, whatever it is: nothing panics, and what is read is written as it was.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use serde::de::DeserializeOwned;
use serde::Serialize;
use tidemill_fuzz::hunt;
use tidemill_wire::{frame, LeadMessage, LineBuffer, Manifest, PilotMessage, Record, WorkFile};

const LINE_MAX: usize = 4096;

/// Each line as the type; one that is read comes back the same.
fn again<T: DeserializeOwned + Serialize>(text: &[u8]) {
    for line in text.split(|&byte| byte == b'\n') {
        if let Ok(read) = serde_json::from_slice::<T>(line) {
            let written = serde_json::to_vec(&read).unwrap();
            let same: T = serde_json::from_slice(&written).unwrap();
            assert_eq!(serde_json::to_vec(&same).unwrap(), written);
        }
    }
}

#[test]
fn messages_of_pilots_and_leads() {
    hunt("pilot-messages", again::<PilotMessage>);
    hunt("lead-messages", again::<LeadMessage>);
}

#[test]
fn records_work_files_and_manifests() {
    hunt("records", again::<Record>);
    hunt("work-file", again::<WorkFile>);
    hunt("manifest", again::<Manifest>);
}

#[test]
fn a_number_of_a_manifest_stays_the_same_number() {
    let text = include_str!("../../fuzz/corpus/manifest/ok");
    let mut manifest: Manifest = serde_json::from_str(text).unwrap();
    manifest.settings.drain_s = 0.0;
    let zero = serde_json::to_string(&manifest).unwrap();
    let told = zero.replace("\"drain_s\":0.0", "\"drain_s\":11844674407370955616");
    assert_ne!(told, zero);
    again::<Manifest>(told.as_bytes());
    let read: Manifest = serde_json::from_str(&told).unwrap();
    assert_eq!(
        read.settings.drain_s.to_bits(),
        11_844_674_407_370_955_616_f64.to_bits()
    );
}

#[test]
fn frames_of_journals() {
    hunt("frames", |bytes| {
        let mut frames = frame::Frames::new(bytes);
        let mut out = Vec::new();
        for json in frames.by_ref() {
            frame::encode_json(json, &mut out);
        }
        assert_eq!(out, bytes[..frames.taken()], "what is read is what was written");
        assert!(frames.taken() <= bytes.len());
    });
}

#[test]
fn lines_of_a_socket_are_those_that_were_sent_and_memory_is_bounded() {
    hunt("pilot-messages", |bytes| {
        let mut lines = LineBuffer::new(LINE_MAX);
        let mut read: Vec<Vec<u8>> = Vec::new();
        for mut piece in bytes.chunks(777) {
            while !piece.is_empty() {
                if lines.fill(&mut piece).is_err() {
                    let longest = bytes.split(|&byte| byte == b'\n').map(<[u8]>::len).max();
                    assert!(longest >= Some(LINE_MAX - 1), "no line was too long");
                    return;
                }
                while let Some(line) = lines.next_line() {
                    read.push(line.to_vec());
                }
            }
        }
        let mut sent: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
        sent.pop();
        assert_eq!(read, sent);
    });
}
