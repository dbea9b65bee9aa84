//! `tidemill-node frames FILE`: reads framed records and messages and writes them again, to compare with Python.

use std::ffi::OsString;
use std::io::Write;

use serde::{de::DeserializeOwned, Deserialize, Serialize};
use tidemill_wire::{
    frame, IndexEntry, LeadAddress, LeadMessage, Manifest, PilotMessage, Record, WireError, WorkFile,
};

/// The fields that identify the kind of a line.
#[derive(Deserialize)]
struct Shape {
    m: Option<String>,
    k: Option<String>,
    settings: Option<serde::de::IgnoredAny>,
    grants: Option<serde::de::IgnoredAny>,
}

pub fn run(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(path) = args.next() else {
        tidemill_wire::log::plain("tidemill-node frames: which file?\n");
        return 2;
    };
    let result = std::fs::read(&path)
        .map_err(WireError::file("read", &path))
        .and_then(|bytes| again(&bytes));
    match result.map(|text| std::io::stdout().write_all(&text)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => complain(&error),
        Err(error) => complain(&error),
    }
}

fn complain(error: &dyn std::error::Error) -> i32 {
    tidemill_wire::log::plain(&format!(
        "tidemill-node frames: {}\n",
        tidemill_wire::log::cause(error)
    ));
    1
}

/// Every line decoded and encoded again; a line that cannot be is an error.
fn again(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::new();
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.first() == Some(&b'{') {
            match shape(line)? {
                Shape { m: Some(m), .. } if is_of_pilots(&m) => {
                    json(&read::<PilotMessage>(line)?, &mut out)?;
                }
                Shape { m: Some(_), .. } => json(&read::<LeadMessage>(line)?, &mut out)?,
                Shape {
                    settings: Some(_), ..
                } => json(&read::<Manifest>(line)?, &mut out)?,
                Shape { grants: Some(_), .. } => json(&read::<WorkFile>(line)?, &mut out)?,
                _ => json(&read::<LeadAddress>(line)?, &mut out)?,
            }
        } else {
            let text = frame::check(line)?;
            match shape(text)? {
                Shape { k: Some(_), .. } => frame::encode(&read::<Record>(text)?, &mut out)?,
                _ => frame::encode(&read::<IndexEntry>(text)?, &mut out)?,
            }
        }
    }
    Ok(out)
}

fn is_of_pilots(message: &str) -> bool {
    matches!(
        message,
        "hello" | "ask" | "seek" | "holds" | "want" | "usage" | "sampled"
    )
}

fn shape(text: &[u8]) -> Result<Shape, WireError> {
    read(text)
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(text).map_err(|source| WireError::Json {
        what: "a record or message",
        quoted: String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned(),
        source,
    })
}

fn json<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), WireError> {
    let failed = |source| WireError::Json {
        what: "JSON",
        quoted: String::from("a message"),
        source,
    };
    serde_json::to_writer(&mut *out, value).map_err(failed)?;
    out.push(b'\n');
    Ok(())
}
