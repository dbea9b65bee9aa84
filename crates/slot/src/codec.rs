//! The messages between a pilot and its slot as bytes: a tag, then fields in the order that stands here.

use std::io::Result;

use tidemill_sys::framed::put_frame;

use crate::field::{garbled, Field};
use crate::{Done, Failed, FromSlot, PayloadLog, SlotOutput, ToSlot};

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

/// Appends one frame that holds the message.
pub(crate) fn put(into: &mut Vec<u8>, message: &impl Field) {
    put_frame(into, |content| message.put(content));
}

/// The message that a frame holds.
pub(crate) fn get<T: Field>(mut content: &[u8]) -> Result<T> {
    T::get(&mut content)
}

macro_rules! record {
    ($name:ident { $($field:ident)* }) => {
        impl Field for $name {
            fn put(&self, into: &mut Vec<u8>) {
                $(self.$field.put(into);)*
            }

            fn get(from: &mut &[u8]) -> Result<Self> {
                Ok($name { $($field: Field::get(from)?),* })
            }
        }
    };
}

macro_rules! messages {
    ($name:ident { $($tag:literal $variant:ident $(($inner:ident))? $({ $($field:ident)* })?,)* }) => {
        impl Field for $name {
            fn put(&self, into: &mut Vec<u8>) {
                match self {
                    $($name::$variant $(($inner))? $({ $($field),* })? => {
                        into.push($tag);
                        $($inner.put(into);)?
                        $($($field.put(into);)*)?
                    })*
                }
            }

            fn get(from: &mut &[u8]) -> Result<Self> {
                match u8::get(from)? {
                    $($tag => {
                        $(let $inner = Field::get(from)?;)?
                        $($(let $field = Field::get(from)?;)*)?
                        Ok($name::$variant $(($inner))? $({ $($field),* })?)
                    })*
                    tag => Err(garbled(format!("message {tag}"))),
                }
            }
        }
    };
}

messages!(Downward {
    1 Pilot(message),
    2 Collected(count),
});

messages!(ToSlot {
    1 Program(program),
    2 Job(job),
    3 Run { ticket job first count chunk_max },
    4 Deadline { monotonic_us },
    5 Permit { program note },
    6 NodeCache { address why },
    7 Forget { job },
    8 Finish,
    9 Stop,
    10 CancelJob { job },
    11 CancelEvents { ticket first count },
});

messages!(Upward {
    1 Slot(message),
    2 Refused(reason),
});

messages!(FromSlot {
    1 Up { isolated note pid },
    2 Done(done),
    3 Failed(failed),
    4 Returned { ticket job first count reason },
    5 Log(log),
    6 Traced { program ops failed log },
    7 Want { program },
    8 Idle,
});

record!(SlotOutput { name path inline });

record!(PayloadLog { ticket job first count stdout stderr truncated });

record!(Done {
    ticket job first count payloads started_us ended_us wall_us setup_us user_us system_us rss_kb read_bytes write_bytes
    outputs stdout stderr truncated
});

record!(Failed {
    ticket job first count event failure message exit_status signal stderr stdout at_us wall_us user_us system_us
});

#[cfg(test)]
mod tests {
    use tidemill_sys::framed::next_frame;

    use super::*;
    use crate::Isolated;

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
            put(&mut bytes, &message);
            let (content, taken) = next_frame(&bytes).unwrap().unwrap();
            assert_eq!(taken, bytes.len());
            assert_eq!(get::<Upward>(content).unwrap(), message);
            assert!(next_frame(&bytes[..bytes.len() - 1]).unwrap().is_none());
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
            put(&mut bytes, &message);
            let (content, _) = next_frame(&bytes).unwrap().unwrap();
            assert_eq!(get::<Downward>(content).unwrap(), message);
            assert!(get::<Downward>(&content[..content.len() - 1]).is_err());
        }
    }
}
