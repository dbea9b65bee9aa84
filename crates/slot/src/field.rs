//! Values as bytes: numbers little-endian, texts with their length before them. Both ends of a slot's socket are the
//! same binary, so messages carry no version.

use std::io::{Error, ErrorKind, Result};

use tidemill_wire::{JobDef, Program};

use crate::{Isolated, SlotOutput};

/// A value that stands in messages.
pub(crate) trait Field: Sized {
    fn put(&self, into: &mut Vec<u8>);

    /// Cuts the value off the front.
    fn get(from: &mut &[u8]) -> Result<Self>;
}

pub(crate) fn garbled(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

fn cut<'a>(from: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let wrong = || garbled(format!("{length} bytes wanted, {} left", from.len()));
    let (head, rest) = from.split_at_checked(length).ok_or_else(wrong)?;
    *from = rest;
    Ok(head)
}

macro_rules! numbers {
    ($($number:ident)*) => { $(
        impl Field for $number {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            fn get(from: &mut &[u8]) -> Result<Self> {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(cut(from, size_of::<$number>())?);
                Ok($number::from_le_bytes(bytes))
            }
        }
    )* };
}

numbers!(u8 u32 u64 i32);

impl Field for bool {
    fn put(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        Ok(u8::get(from)? == 1)
    }
}

impl Field for Vec<u8> {
    fn put(&self, into: &mut Vec<u8>) {
        put_bytes(self, into);
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        let length = u64::get(from)?;
        let length = usize::try_from(length).map_err(|_| garbled(format!("length {length}")))?;
        Ok(cut(from, length)?.to_vec())
    }
}

fn put_bytes(bytes: &[u8], into: &mut Vec<u8>) {
    (bytes.len() as u64).put(into);
    into.extend_from_slice(bytes);
}

impl Field for String {
    fn put(&self, into: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), into);
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        String::from_utf8(Field::get(from)?).map_err(|error| garbled(error.to_string()))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        self.iter().for_each(|value| value.put(into));
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl Field for Vec<SlotOutput> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u64).put(into);
        self.iter().for_each(|output| output.put(into));
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        (0..u64::get(from)?).map(|_| Field::get(from)).collect()
    }
}

impl Field for Isolated {
    fn put(&self, into: &mut Vec<u8>) {
        (*self == Isolated::Namespaces).put(into);
    }

    fn get(from: &mut &[u8]) -> Result<Self> {
        let is_isolated = bool::get(from)?;
        Ok(if is_isolated {
            Isolated::Namespaces
        } else {
            Isolated::Subreaper
        })
    }
}

/// What the lead sends as JSON goes on as JSON: once for a program or a job, not for each payload.
macro_rules! json {
    ($($name:ident)*) => { $(
        impl Field for $name {
            fn put(&self, into: &mut Vec<u8>) {
                // it was read from JSON; the other end would say what it could not read
                put_bytes(&serde_json::to_vec(self).unwrap_or_default(), into);
            }

            fn get(from: &mut &[u8]) -> Result<Self> {
                Ok(serde_json::from_slice(&Vec::get(from)?)?)
            }
        }
    )* };
}

json!(Program JobDef);
