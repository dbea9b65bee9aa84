//! Changes of bytes, numbers, words, lines and nesting. The same random numbers make the same input.

const BYTES_MAX: usize = 128 << 10;
const WORDS: &[&[u8]] = &[
    b"",
    b"0",
    b"-1",
    b"1e400",
    b"nan",
    b"255",
    b"65536",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1.5",
    b"+1",
    b"007",
    b"null",
    b"true",
    b"..",
    b"../..",
    b"/",
    b"\0",
    b"\r\n",
    b"\n",
    b"\t",
    b" ",
    b"\xff",
    b"\xc3",
    b"\xe2\x80\xae",
    b"\xed\xa0\x80",
    b"'",
    b"\"",
    b"\\",
    b"\\777",
    b"\\+12",
    b"%",
    b"%2",
    b"%00",
    b"%zz",
    b"[",
    b"]",
    b"{",
    b"}",
    b"{{",
    b"}}",
    b"{seed}",
    b"=",
    b":",
    b",",
    b" - ",
    b"samples",
    b"device",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\x80",
    b"\x01\0\0\0\0\0\0\0",
];
const DEEP: &[(&[u8], &[u8])] = &[(b"[", b"]"), (b"{\"a\":", b"}"), (b"{", b"}"), (b"a/", b"")];

/// Numbers that look random and are always the same (xorshift64*, doi:10.1145/2845077).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 {
            0
        } else {
            (self.draw() >> 16) as usize % limit
        }
    }

    fn of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len())]
    }
}

/// A changed input: one to five changes.
pub fn mutate(random: &mut Random, input: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 + random.below(3) * random.below(3) {
        change(random, &mut bytes, others);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    let longest = 1 << random.below(8);
    let end = (at + 1 + random.below(longest)).min(bytes.len());
    match random.below(10) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 => drop(bytes.drain(at.min(end)..end)),
        2 => bytes.truncate(at),
        3 => {
            let times = *random.of(&[1, 2, 9, 999]);
            let piece = bytes[at.min(end)..end].repeat(times);
            bytes.splice(at..at, piece);
        }
        4 | 5 => {
            let word = *random.of(WORDS);
            bytes.splice(at..at, word.iter().copied());
        }
        6 | 7 => {
            let word = *random.of(WORDS);
            let (from, to) = word_at(bytes, at);
            bytes.splice(from..to, word.iter().copied());
        }
        8 => {
            let other = random.of(others);
            let from = random.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let &(open, close) = random.of(DEEP);
            let times = *random.of(&[1, 3, 150, 20_000]);
            bytes.splice(end..end, close.repeat(times));
            bytes.splice(at.min(end)..at.min(end), open.repeat(times));
        }
    }
}

/// Where the word or number around a place begins and ends.
fn word_at(bytes: &[u8], at: usize) -> (usize, usize) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let from = bytes[..at]
        .iter()
        .rposition(|byte| !is_word(byte))
        .map_or(0, |k| k + 1);
    let to = bytes[at..]
        .iter()
        .position(|byte| !is_word(byte))
        .map_or(bytes.len(), |k| at + k);
    (from, to)
}
