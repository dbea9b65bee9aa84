//! Payloads say anything; arguments hold anything; the other end of a slot's socket may have been overwritten.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use tidemill_fuzz::hunt;
use tidemill_sys::framed::next_frame;

use crate::codec::{get, put, Downward, Upward};
use crate::protocol::Line;
use crate::template::{Template, Values};

#[test]
fn a_payloads_line_is_understood_or_refused() {
    hunt("range-lines", |bytes| {
        for line in bytes.split(|&byte| byte == b'\n') {
            if let Ok(Line::Done {
                first,
                count,
                outputs,
            }) = Line::parse(line)
            {
                assert!(count > 0 && first.checked_add(count).is_some());
                assert!(outputs.iter().all(|(name, _)| !name.is_empty()), "{outputs:?}");
            }
        }
    });
}

#[test]
fn an_argument_is_a_template_or_refused_and_what_is_filled_in_is_not_looked_at_again() {
    hunt("templates", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Ok(template) = Template::parse(&text) else {
            return;
        };
        let values = Values {
            first: u64::MAX - 10,
            count: 10,
            seed: u64::MAX,
            line: Some("{seed}"),
            written: None,
            rules: None,
            cores: 1,
            input: &|name| (name != "none").then(|| String::from("{line}")),
        };
        if let (Some(literal), Ok(filled)) = (template.literal(), template.fill(&values)) {
            assert_eq!(literal, filled);
        }
    });
}

#[test]
fn frames_of_a_slots_socket_are_read_or_garbled() {
    hunt("slot-frames", |bytes| {
        let mut rest = bytes;
        while let Ok(Some((content, taken))) = next_frame(rest) {
            let _ = get::<Downward>(content);
            if let Ok(message) = get::<Upward>(content) {
                let mut written = Vec::new();
                put(&mut written, &message);
                let (again, _) = next_frame(&written).unwrap().unwrap();
                assert_eq!(get::<Upward>(again).unwrap(), message);
            }
            rest = &rest[taken..];
        }
    });
}
