//! Framed lines: 8 hex digits of CRC-32, a space, JSON, a newline.

use serde::Serialize;

use crate::error::{quote, WireError};

/// Checksum and space before the JSON text.
const HEAD_BYTES: usize = 9;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Append a value as one framed line; nothing is appended if it cannot be written as JSON.
pub fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(b"00000000 ");
    if let Err(source) = serde_json::to_writer(&mut *out, value) {
        out.truncate(start);
        return Err(WireError::Json {
            what: "JSON",
            quoted: String::from("a value"),
            source,
        });
    }
    let crc = crc32fast::hash(&out[start + HEAD_BYTES..]);
    put_crc(&mut out[start..start + 8], crc);
    out.push(b'\n');
    Ok(())
}

/// Append JSON text, which holds no newline, as one framed line.
pub fn encode_json(json: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(b"00000000 ");
    put_crc(&mut out[start..], crc32fast::hash(json));
    out.extend_from_slice(json);
    out.push(b'\n');
}

/// The JSON text of a framed line without its newline, if the checksum is right.
pub fn check(line: &[u8]) -> Result<&[u8], WireError> {
    let wrong = || WireError::Checksum { quoted: quote(line) };
    if line.len() < HEAD_BYTES || line[8] != b' ' {
        return Err(wrong());
    }
    let mut crc = 0u32;
    for &digit in &line[..8] {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return Err(wrong()),
        };
        crc = crc << 4 | u32::from(value);
    }
    let json = &line[HEAD_BYTES..];
    if crc32fast::hash(json) == crc {
        Ok(json)
    } else {
        Err(wrong())
    }
}

/// The whole framed lines at the start of `bytes`; stops before a torn tail.
pub struct Frames<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Frames<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Frames { bytes, taken: 0 }
    }

    /// Length of the frames given so far, newlines included.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether bytes are left that do not form a whole frame (after the iterator has ended).
    pub fn torn(&self) -> bool {
        self.taken < self.bytes.len()
    }
}

/// Where the first whole framed line begins behind the first newline of `bytes`, which does not end one. None: there is
/// none (yet).
pub fn next_whole(bytes: &[u8]) -> Option<usize> {
    let mut from = bytes.iter().position(|&byte| byte == b'\n')? + 1;
    while let Some(length) = bytes[from..].iter().position(|&byte| byte == b'\n') {
        if check(&bytes[from..from + length]).is_ok() {
            return Some(from);
        }
        from += length + 1;
    }
    None
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.taken..];
        let length = rest.iter().position(|&byte| byte == b'\n')?;
        let json = check(&rest[..length]).ok()?;
        self.taken += length + 1;
        Some(json)
    }
}

fn put_crc(place: &mut [u8], crc: u32) {
    for (k, digit) in place[..8].iter_mut().enumerate() {
        *digit = HEX[(crc >> (28 - 4 * k) & 15) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_what_zlib_says() {
        let mut out = Vec::new();
        encode_json(b"{\"k\":1}", &mut out);
        // python: f"{zlib.crc32(b'{\"k\":1}'):08x}"
        assert_eq!(out, b"1cabb40e {\"k\":1}\n");
    }

    #[test]
    fn a_line_with_a_wrong_digit_or_upper_case_is_refused() {
        let mut out = Vec::new();
        encode_json(b"\"abc\"", &mut out);
        out.pop();
        assert!(check(&out).is_ok());
        let mut upper = out.clone();
        upper[..8].make_ascii_uppercase();
        assert_eq!(check(&upper).is_ok(), upper == out);
        out[10] ^= 1;
        assert!(check(&out).is_err());
        assert!(check(b"").is_err());
        assert!(check(b"0000000z {}").is_err());
    }

    proptest! {
        #[test]
        fn every_cut_of_a_file_gives_a_prefix_of_its_frames(
            texts in proptest::collection::vec("[ -~]{0,40}", 0..8), cut in 0usize..400, noise in any::<u8>()
        ) {
            let mut bytes = Vec::new();
            for text in &texts {
                encode(text, &mut bytes).unwrap();
            }
            let cut = cut.min(bytes.len());
            let mut torn = bytes[..cut].to_vec();
            let whole = torn.iter().filter(|&&byte| byte == b'\n').count();
            torn.push(noise);
            let mut frames = Frames::new(&torn);
            let mut read: Vec<String> = Vec::new();
            for json in frames.by_ref() {
                read.push(serde_json::from_slice(json).unwrap());
            }
            // the noise byte can complete a line only by being its newline
            prop_assert!(read.len() == whole || (noise == b'\n' && read.len() == whole + 1));
            prop_assert_eq!(&read[..], &texts[..read.len()]);
            prop_assert!(frames.taken() <= cut + 1);
        }
    }
}
