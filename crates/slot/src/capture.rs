//! What a payload prints, bounded: the first half and the last half of the limit are kept. Pure.

/// Bytes of one stream.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    limit: usize,
    head: Vec<u8>,
    /// ring of the last bytes once the head is full; `tail_at` is its oldest byte
    tail: Vec<u8>,
    tail_at: usize,
    total: u64,
}

impl Capture {
    /// Forgets everything; keeps memory up to 64 KiB.
    pub fn reset(&mut self, limit: usize) {
        self.limit = limit;
        self.head.clear();
        self.tail.clear();
        self.head.shrink_to(64 << 10);
        self.tail.shrink_to(64 << 10);
        self.tail_at = 0;
        self.total = 0;
    }

    /// Bytes seen so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn truncated(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let head_max = self.limit.div_ceil(2);
        let tail_max = self.limit - head_max;
        let room = head_max - self.head.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(first);
        bytes = rest;
        if bytes.len() > tail_max {
            bytes = &bytes[bytes.len() - tail_max..];
        }
        let grow = (tail_max - self.tail.len()).min(bytes.len());
        self.tail.extend_from_slice(&bytes[..grow]);
        let mut rest = &bytes[grow..];
        while !rest.is_empty() {
            let fits = rest.len().min(tail_max - self.tail_at);
            self.tail[self.tail_at..self.tail_at + fits].copy_from_slice(&rest[..fits]);
            self.tail_at = (self.tail_at + fits) % tail_max;
            rest = &rest[fits..];
        }
    }

    /// Everything that is kept, in order; where bytes are missing in the middle a line says how many.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.head.clone();
        let kept = (self.head.len() + self.tail.len()) as u64;
        if self.total > kept {
            let note = format!("\n... {} bytes left out ...\n", self.total - kept);
            text.extend_from_slice(note.as_bytes());
        }
        text.extend_from_slice(&self.tail[self.tail_at..]);
        text.extend_from_slice(&self.tail[..self.tail_at]);
        text
    }

    /// The last bytes at most.
    pub fn last(&self, count: usize) -> Vec<u8> {
        let text = self.text();
        text[text.len().saturating_sub(count)..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_and_last_bytes_are_kept(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20), limit in 0_usize..64) {
            let all: Vec<u8> = pieces.concat();
            let mut capture = Capture::default();
            capture.reset(limit);
            for piece in &pieces {
                capture.push(piece);
            }
            let text = capture.text();
            prop_assert_eq!(capture.total(), all.len() as u64);
            prop_assert_eq!(capture.truncated(), all.len() > limit);
            if all.len() <= limit {
                prop_assert_eq!(text, all);
            } else {
                let head = limit.div_ceil(2);
                let tail = limit - head;
                prop_assert_eq!(&text[..head], &all[..head]);
                prop_assert_eq!(&text[text.len() - tail..], &all[all.len() - tail..]);
            }
        }
    }
}
