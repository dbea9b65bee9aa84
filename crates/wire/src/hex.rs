//! Bytes as lower-case hexadecimal digits. Pure.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The digits of `bytes`.
pub fn text(bytes: &[u8]) -> String {
    let digits = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    bytes.iter().flat_map(digits).map(char::from).collect()
}

/// The bytes that digits (of either case) stand for; None where something else is there.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{bytes, text};

    #[test]
    fn digits_and_bytes_become_each_other() {
        assert_eq!(text(&[0, 0x9f, 0xff]), "009fff");
        assert_eq!(bytes("009fFF"), Some(vec![0, 0x9f, 0xff]));
        assert_eq!(bytes(""), Some(Vec::new()));
        assert_eq!((bytes("0"), bytes("0g"), bytes("é")), (None, None, None));
    }
}
