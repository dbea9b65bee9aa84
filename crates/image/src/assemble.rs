//! An image file from its pieces.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tidemill_wire::{hex, Piece, StagedFile};

use crate::ImageError;

/// Read and written at once.
const STEP_BYTES: usize = 1 << 20;

/// Writes the pieces, one after the other, to `out` (new, read-only when done) and compares length and digest; what is
/// wrong is removed again. Opens each pack once for neighbouring pieces. Reads `bytes` of the shared file system.
/// `go_on` is asked every MiB.
pub fn assemble(
    name: &str,
    staged: &StagedFile,
    out: &Path,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), ImageError> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .open(out)
        .map_err(ImageError::file("create", out))?;
    let result = fill(name, staged, (&mut file, out), go_on);
    if result.is_err() {
        let _ = std::fs::remove_file(out); // the first error says more
    }
    result
}

fn fill(
    name: &str,
    staged: &StagedFile,
    (file, out): (&mut File, &Path),
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), ImageError> {
    let mut hash = Sha256::new();
    let mut bytes = 0_u64;
    let mut pack: Option<(&str, File)> = None;
    let mut buffer = vec![0; STEP_BYTES];
    for Piece { path, offset, length } in &staged.pieces {
        if pack.as_ref().is_none_or(|(open, _)| open != path) {
            let opened = File::open(path).map_err(ImageError::file("open", Path::new(path)))?;
            pack = Some((path, opened));
        }
        let Some((_, from)) = &mut pack else { continue };
        let wrong = || ImageError::file("read", Path::new(path));
        from.seek(SeekFrom::Start(*offset)).map_err(wrong())?;
        let mut left = *length;
        while left > 0 {
            if !go_on() {
                return Err(ImageError::Stopped("reading an image"));
            }
            let step = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = from.read(&mut buffer[..step]).map_err(wrong())?;
            if got == 0 {
                break; // the digest will not fit; its message says how much there was
            }
            hash.update(&buffer[..got]);
            file.write_all(&buffer[..got])
                .map_err(ImageError::file("write", out))?;
            left -= got as u64;
            bytes += got as u64;
        }
    }
    compare(name, staged, &hex::text(&hash.finalize()), bytes)?;
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o444))
        .map_err(ImageError::file("protect", out))
}

fn compare(name: &str, staged: &StagedFile, found: &str, bytes: u64) -> Result<(), ImageError> {
    if found == staged.sha256 && bytes == staged.bytes {
        return Ok(());
    }
    Err(ImageError::Digest {
        name: name.to_owned(),
        expected: staged.sha256.clone(),
        expected_bytes: staged.bytes,
        found: found.to_owned(),
        bytes,
    })
}

/// Digest and length of a file.
pub fn digest(path: &Path) -> Result<(String, u64), ImageError> {
    let mut file = File::open(path).map_err(ImageError::file("open", path))?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; STEP_BYTES]);
    loop {
        let got = file.read(&mut buffer).map_err(ImageError::file("read", path))?;
        if got == 0 {
            return Ok((hex::text(&hash.finalize()), bytes));
        }
        hash.update(&buffer[..got]);
        bytes += got as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(dir: &Path, digest: &str, bytes: u64) -> StagedFile {
        let path = dir.join("a.pack").to_string_lossy().into_owned();
        let piece = |offset, length| Piece {
            path: path.clone(),
            offset,
            length,
        };
        StagedFile {
            sha256: digest.into(),
            bytes,
            pieces: vec![piece(4, 3), piece(0, 2)],
        }
    }

    #[test]
    fn pieces_are_joined_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.pack"), "0123456789").unwrap();
        let out = dir.path().join("image");
        let good = hex::text(&Sha256::digest("45601"));
        assemble("x", &staged(dir.path(), &good, 5), &out, &mut || true).unwrap();
        assert_eq!(std::fs::read(&out).unwrap(), b"45601");
    }

    #[test]
    fn a_truncated_pack_is_told_with_both_digests_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.pack"), "01234").unwrap();
        let out = dir.path().join("image");
        let good = hex::text(&Sha256::digest("45601"));
        let error = assemble("x", &staged(dir.path(), &good, 5), &out, &mut || true).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&good)
                && text.contains(&hex::text(&Sha256::digest("401")))
                && text.contains("3 bytes")
        );
        assert!(!out.exists());
    }
}
