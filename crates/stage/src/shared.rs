//! Reading a file from the shared file system: its pieces in order, in large reads, one open for neighbours.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tidemill_wire::StagedFile;

use crate::entry::Entry;
use crate::error::FetchError;

/// Fills blocks from the pieces, one after the other.
struct Pieces<'a> {
    file: &'a StagedFile,
    piece: usize,
    /// within the piece
    at: u64,
    open: Option<(&'a str, File)>,
}

impl<'a> Pieces<'a> {
    /// From byte `start` of the whole on.
    fn new(file: &'a StagedFile, start: u64) -> Self {
        let (mut piece, mut at) = (0, start);
        while file.pieces.get(piece).is_some_and(|one| at >= one.length) {
            at -= file.pieces[piece].length;
            piece += 1;
        }
        Pieces {
            file,
            piece,
            at,
            open: None,
        }
    }

    fn fill(&mut self, content: &mut [u8]) -> Result<(), FetchError> {
        let mut filled = 0;
        while filled < content.len() {
            let Some(piece) = self.file.pieces.get(self.piece) else {
                return Err(self.wrong_sum());
            };
            let length = (piece.length - self.at).min((content.len() - filled) as u64);
            let failed = |source: io::Error| FetchError::Shared {
                path: piece.path.clone(),
                offset: piece.offset + self.at,
                length,
                source,
            };
            let file = match &self.open {
                Some((path, file)) if *path == piece.path => file,
                _ => {
                    let file = File::open(&piece.path).map_err(failed)?;
                    &self.open.insert((&piece.path, file)).1
                }
            };
            let part = &mut content[filled..filled + length as usize];
            file.read_exact_at(part, piece.offset + self.at)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => failed(io::Error::other("the file ends before")),
                    _ => failed(error),
                })?;
            filled += length as usize;
            self.at += length;
            if self.at == piece.length {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
        }
        Ok(())
    }

    fn wrong_sum(&self) -> FetchError {
        FetchError::Pieces {
            found: self.file.pieces.iter().map(|piece| piece.length).sum(),
            expected: self.file.bytes,
        }
    }
}

/// Read what is missing of `entry`.
pub fn read(file: &StagedFile, entry: &Entry) -> Result<(), FetchError> {
    let mut pieces = Pieces::new(file, entry.here() * crate::entry::BLOCK_BYTES);
    let sum = file
        .pieces
        .iter()
        .try_fold(0_u64, |sum, piece| sum.checked_add(piece.length));
    if sum != Some(file.bytes) {
        return Err(pieces.wrong_sum());
    }
    let mut content = Vec::new();
    while entry.here() < entry.blocks() {
        content.resize(entry.length(entry.here()) as usize, 0);
        pieces.fill(&mut content)?;
        let checksum = crc32fast::hash(&content);
        content = entry.append(content, checksum, None)?;
    }
    Ok(())
}
