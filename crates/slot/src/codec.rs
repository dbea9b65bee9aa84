//! Messages as bytes: a 4-byte length, a tag, fields. Both ends are the same binary, so there is no version.

use tidemill_wire::{JobDef, Program};

use crate::fields::{Garbled, Reader, Writer};
use crate::{Done, Failed, FromSlot, Isolated, PayloadLog, SlotOutput, ToSlot};

/// A message is never longer; a peer that says otherwise is broken.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;

/// What travels to the slot: the pilot's messages, and what the handle adds by itself.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // nearly all are the pilot's
pub(crate) enum Downward {
    Pilot(ToSlot),
    /// the files of this many Done messages have been removed
    Collected(u64),
}

/// What travels from the slot: the first message, and then what the pilot gets.
#[derive(Debug, PartialEq)]
pub(crate) enum Upward {
    Slot(FromSlot),
    /// namespaces or something else could not be had
    Refused(String),
}

/// Appends one frame whose content `write` makes.
fn frame(into: &mut Vec<u8>, tag: u64, write: impl FnOnce(&mut Writer<'_>)) {
    let start = into.len();
    into.extend_from_slice(&[0; 4]);
    let mut writer = Writer(into);
    writer.number(tag);
    write(&mut writer);
    let length = (into.len() - start - 4) as u32;
    into[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Takes one whole frame off the front: its content and the bytes it took. None when it is not whole yet.
pub(crate) fn next_frame(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Garbled> {
    let Some(&[a, b, c, d]) = bytes.get(..4) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Garbled(format!("a frame of {length} bytes")));
    }
    Ok(bytes.get(4..4 + length).map(|content| (content, 4 + length)))
}

pub(crate) fn put_downward(into: &mut Vec<u8>, message: &Downward) -> Result<(), serde_json::Error> {
    let message = match message {
        Downward::Collected(count) => {
            frame(into, 20, |w| {
                w.number(*count);
            });
            return Ok(());
        }
        Downward::Pilot(message) => message,
    };
    match message {
        ToSlot::Program(program) => {
            let text = serde_json::to_vec(program)?;
            frame(into, 1, |w| {
                w.bytes(&text);
            });
        }
        ToSlot::Job(job) => {
            let text = serde_json::to_vec(job)?;
            frame(into, 2, |w| {
                w.bytes(&text);
            });
        }
        &ToSlot::Run {
            ticket,
            job,
            first,
            count,
            chunk_max,
        } => {
            frame(into, 3, |w| {
                w.number(ticket)
                    .number(job)
                    .number(first)
                    .number(count)
                    .maybe(chunk_max);
            });
        }
        ToSlot::Deadline { monotonic_us } => frame(into, 4, |w| {
            w.maybe(*monotonic_us);
        }),
        ToSlot::Forget { job } => frame(into, 5, |w| {
            w.number(*job);
        }),
        ToSlot::Finish => frame(into, 6, |_| ()),
        ToSlot::Stop => frame(into, 7, |_| ()),
        ToSlot::CancelJob { job } => frame(into, 8, |w| {
            w.number(*job);
        }),
        &ToSlot::CancelEvents { ticket, first, count } => frame(into, 11, |w| {
            w.number(ticket).number(first).number(count);
        }),
        ToSlot::Permit { program, note } => frame(into, 9, |w| {
            w.number(*program).bytes(note.as_bytes());
        }),
        ToSlot::NodeCache { address, why } => frame(into, 10, |w| {
            w.bytes(address.as_bytes()).bytes(why.as_bytes());
        }),
    }
    Ok(())
}

pub(crate) fn get_downward(content: &[u8]) -> Result<Downward, Garbled> {
    let mut r = Reader(content);
    let garbled = |error: serde_json::Error| Garbled(error.to_string());
    Ok(Downward::Pilot(match r.number()? {
        1 => ToSlot::Program(serde_json::from_slice::<Program>(&r.bytes()?).map_err(garbled)?),
        2 => ToSlot::Job(serde_json::from_slice::<JobDef>(&r.bytes()?).map_err(garbled)?),
        3 => ToSlot::Run {
            ticket: r.number()?,
            job: r.number()?,
            first: r.number()?,
            count: r.number()?,
            chunk_max: r.maybe()?,
        },
        4 => ToSlot::Deadline {
            monotonic_us: r.maybe()?,
        },
        5 => ToSlot::Forget { job: r.number()? },
        6 => ToSlot::Finish,
        7 => ToSlot::Stop,
        8 => ToSlot::CancelJob { job: r.number()? },
        9 => ToSlot::Permit {
            program: r.number()?,
            note: r.text()?,
        },
        10 => ToSlot::NodeCache {
            address: r.text()?,
            why: r.text()?,
        },
        11 => ToSlot::CancelEvents {
            ticket: r.number()?,
            first: r.number()?,
            count: r.number()?,
        },
        20 => return Ok(Downward::Collected(r.number()?)),
        tag => return Err(Garbled(format!("message {tag}"))),
    }))
}

pub(crate) fn put_upward(into: &mut Vec<u8>, message: &Upward) {
    let message = match message {
        Upward::Refused(reason) => {
            return frame(into, 20, |w| {
                w.bytes(reason.as_bytes());
            })
        }
        Upward::Slot(message) => message,
    };
    match message {
        FromSlot::Up { isolated, note, pid } => frame(into, 1, |w| {
            w.number(u64::from(*isolated == Isolated::Namespaces))
                .bytes(note.as_bytes())
                .number(u64::from(*pid));
        }),
        FromSlot::Done(done) => frame(into, 2, |w| put_done(w, done)),
        FromSlot::Failed(failed) => frame(into, 3, |w| put_failed(w, failed)),
        FromSlot::Returned {
            ticket,
            job,
            first,
            count,
            reason,
        } => frame(into, 4, |w| {
            w.number(*ticket)
                .number(*job)
                .number(*first)
                .number(*count)
                .bytes(reason.as_bytes());
        }),
        FromSlot::Log(log) => frame(into, 5, |w| put_log(w, log)),
        FromSlot::Traced {
            program,
            ops,
            failed,
            log,
        } => frame(into, 9, |w| {
            put_log(w.number(*program).number(*ops).number(*failed), log);
        }),
        FromSlot::Idle => frame(into, 6, |_| ()),
        FromSlot::Want { program } => frame(into, 7, |w| {
            w.number(*program);
        }),
    }
}

pub(crate) fn get_upward(content: &[u8]) -> Result<Upward, Garbled> {
    let mut r = Reader(content);
    Ok(Upward::Slot(match r.number()? {
        1 => FromSlot::Up {
            isolated: if r.number()? == 1 {
                Isolated::Namespaces
            } else {
                Isolated::Subreaper
            },
            note: r.text()?,
            pid: r.number()? as u32,
        },
        2 => FromSlot::Done(get_done(&mut r)?),
        3 => FromSlot::Failed(get_failed(&mut r)?),
        4 => FromSlot::Returned {
            ticket: r.number()?,
            job: r.number()?,
            first: r.number()?,
            count: r.number()?,
            reason: r.text()?,
        },
        5 => FromSlot::Log(get_log(&mut r)?),
        9 => FromSlot::Traced {
            program: r.number()?,
            ops: r.number()?,
            failed: r.number()?,
            log: get_log(&mut r)?,
        },
        6 => FromSlot::Idle,
        7 => FromSlot::Want { program: r.number()? },
        20 => return Ok(Upward::Refused(r.text()?)),
        tag => return Err(Garbled(format!("message {tag}"))),
    }))
}

fn put_log(w: &mut Writer<'_>, log: &PayloadLog) {
    let numbers = [
        log.ticket,
        log.job,
        log.first,
        log.count,
        u64::from(log.truncated),
    ];
    for value in numbers {
        w.number(value);
    }
    w.bytes(&log.stdout).bytes(&log.stderr);
}

fn get_log(r: &mut Reader<'_>) -> Result<PayloadLog, Garbled> {
    Ok(PayloadLog {
        ticket: r.number()?,
        job: r.number()?,
        first: r.number()?,
        count: r.number()?,
        truncated: r.number()? == 1,
        stdout: r.bytes()?,
        stderr: r.bytes()?,
    })
}

fn put_done(w: &mut Writer<'_>, done: &Done) {
    for value in [
        done.ticket,
        done.job,
        done.first,
        done.count,
        done.payloads,
        done.started_us,
        done.ended_us,
        done.wall_us,
        done.setup_us,
        done.user_us,
        done.system_us,
        done.rss_kb,
    ] {
        w.number(value);
    }
    w.maybe(done.read_bytes)
        .maybe(done.write_bytes)
        .number(done.outputs.len() as u64);
    for output in &done.outputs {
        w.bytes(output.name.as_bytes()).bytes(output.path.as_bytes());
        match &output.inline {
            None => w.number(0),
            Some(bytes) => w.number(1).bytes(bytes),
        };
    }
    w.bytes(&done.stdout)
        .bytes(&done.stderr)
        .number(u64::from(done.truncated));
}

fn get_done(r: &mut Reader<'_>) -> Result<Done, Garbled> {
    let mut done = Done {
        ticket: r.number()?,
        job: r.number()?,
        first: r.number()?,
        count: r.number()?,
        payloads: r.number()?,
        started_us: r.number()?,
        ended_us: r.number()?,
        wall_us: r.number()?,
        setup_us: r.number()?,
        user_us: r.number()?,
        system_us: r.number()?,
        rss_kb: r.number()?,
        read_bytes: r.maybe()?,
        write_bytes: r.maybe()?,
        ..Done::default()
    };
    for _ in 0..r.number()? {
        let (name, path) = (r.text()?, r.text()?);
        let inline = if r.number()? == 1 { Some(r.bytes()?) } else { None };
        done.outputs.push(SlotOutput { name, path, inline });
    }
    done.stdout = r.bytes()?;
    done.stderr = r.bytes()?;
    done.truncated = r.number()? == 1;
    Ok(done)
}

fn put_failed(w: &mut Writer<'_>, failed: &Failed) {
    w.number(failed.ticket)
        .number(failed.job)
        .number(failed.first)
        .number(failed.count)
        .maybe(failed.event);
    w.bytes(failed.failure.as_bytes())
        .bytes(failed.message.as_bytes());
    w.maybe(failed.exit_status.map(|status| status as u64))
        .maybe(failed.signal.map(|signal| signal as u64));
    w.bytes(&failed.stderr).bytes(&failed.stdout);
    w.number(failed.at_us)
        .number(failed.wall_us)
        .number(failed.user_us)
        .number(failed.system_us);
}

fn get_failed(r: &mut Reader<'_>) -> Result<Failed, Garbled> {
    Ok(Failed {
        ticket: r.number()?,
        job: r.number()?,
        first: r.number()?,
        count: r.number()?,
        event: r.maybe()?,
        failure: r.text()?,
        message: r.text()?,
        exit_status: r.maybe()?.map(|status| status as i32),
        signal: r.maybe()?.map(|signal| signal as i32),
        stderr: r.bytes()?,
        stdout: r.bytes()?,
        at_us: r.number()?,
        wall_us: r.number()?,
        user_us: r.number()?,
        system_us: r.number()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_upward_arrive_as_they_were_sent() {
        let done = Done {
            ticket: 1,
            count: 3,
            read_bytes: Some(7),
            outputs: vec![SlotOutput {
                name: "a".into(),
                path: "out/1/0".into(),
                inline: Some(vec![0, 255]),
            }],
            stderr: b"x\n".to_vec(),
            truncated: true,
            ..Done::default()
        };
        let failed = Failed {
            event: Some(9),
            signal: Some(9),
            failure: "memory".into(),
            ..Failed::default()
        };
        for message in [
            Upward::Slot(FromSlot::Up {
                isolated: Isolated::Namespaces,
                note: "n".into(),
                pid: 4,
            }),
            Upward::Slot(FromSlot::Done(done)),
            Upward::Slot(FromSlot::Failed(failed)),
            Upward::Slot(FromSlot::Idle),
            Upward::Slot(FromSlot::Want { program: 8 }),
            Upward::Refused("no".into()),
        ] {
            let mut bytes = Vec::new();
            put_upward(&mut bytes, &message);
            let (content, taken) = next_frame(&bytes).unwrap().unwrap();
            assert_eq!(taken, bytes.len());
            assert_eq!(get_upward(content).unwrap(), message);
            assert_eq!(next_frame(&bytes[..bytes.len() - 1]).unwrap(), None);
        }
    }

    #[test]
    fn messages_downward_arrive_as_they_were_sent_and_cut_ones_are_garbled() {
        let run = ToSlot::Run {
            ticket: 1,
            job: 2,
            first: 3,
            count: 4,
            chunk_max: Some(5),
        };
        for message in [
            Downward::Pilot(run),
            Downward::Pilot(ToSlot::Deadline { monotonic_us: None }),
            Downward::Pilot(ToSlot::Stop),
            Downward::Pilot(ToSlot::Permit {
                program: 8,
                note: "n".into(),
            }),
            Downward::Collected(3),
        ] {
            let mut bytes = Vec::new();
            put_downward(&mut bytes, &message).unwrap();
            let (content, _) = next_frame(&bytes).unwrap().unwrap();
            assert_eq!(get_downward(content).unwrap(), message);
            assert!(get_downward(&content[..content.len() - 1]).is_err());
        }
    }
}
