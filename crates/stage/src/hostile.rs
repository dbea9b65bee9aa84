//! Other nodes, and any client that reaches a stage's port, may send anything.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::io::Cursor;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::Serialize;
use tidemill_fuzz::hunt;

use crate::control::{Order, Report};
use crate::peer::{self, Answer, Frame, Greeting, Wish, FRAME_BYTES};

fn one<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    let until = Instant::now() + Duration::from_secs(60);
    if let Ok(read) = peer::read_line::<T>(&mut Cursor::new(bytes), until) {
        let written = peer::line(&read).unwrap();
        let again: T = peer::read_line(&mut Cursor::new(&written), until).unwrap();
        assert_eq!(peer::line(&again).unwrap(), written);
    }
}

#[test]
fn greetings_between_nodes() {
    hunt("stage-greetings", |bytes| {
        one::<Greeting>(bytes);
        one::<Wish>(bytes);
        one::<Answer>(bytes);
    });
}

#[test]
fn frames_between_nodes() {
    hunt("stage-frames", |bytes| {
        for piece in bytes.chunks_exact(FRAME_BYTES) {
            let mut head = [0; FRAME_BYTES];
            head.copy_from_slice(piece);
            if let Some(frame) = Frame::read(head) {
                assert_eq!(Frame::read(frame.bytes()), Some(frame));
            }
        }
    });
}

#[test]
fn orders_and_reports_of_a_stage() {
    hunt("stage-orders", |bytes| {
        for line in bytes.split(|&byte| byte == b'\n') {
            if let Ok(order) = serde_json::from_slice::<Order>(line) {
                let written = serde_json::to_vec(&order).unwrap();
                assert_eq!(serde_json::from_slice::<Order>(&written).unwrap(), order);
            }
            let _ = serde_json::from_slice::<Report>(line);
        }
    });
}
