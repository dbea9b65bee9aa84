//! Tar archives as directories: plain files and the directories above them, nothing else.

use std::fs::File;
use std::io::{self, Read, Write};

const BLOCK: usize = 512;
const PIECE_BYTES: u64 = 4 << 20;
/// An output of a job has at most 100,000 files; inodes of the slot's memory are not endless.
const FILES_MAX: u64 = 200_000;
/// Of a member: no file is as large, and sums with it do not overflow.
const SIZE_MAX: u64 = 1 << 50;
/// Of an extended header: a path.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Where what is unpacked goes.
pub(super) trait Target {
    fn make_directory(&mut self, path: &str) -> io::Result<()>;
    fn create(&mut self, path: &str) -> io::Result<File>;
    /// Asked between pieces: false ends it.
    fn goes_on(&mut self) -> bool;
}

/// Unpacks an archive; how many files it had. Refuses names that lead out, links and devices.
pub(super) fn unpack(archive: &mut impl Read, target: &mut impl Target) -> io::Result<u64> {
    let (mut files, mut long_name) = (0, None);
    let mut header = [0; BLOCK];
    loop {
        archive.read_exact(&mut header)?;
        if !target.goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if header.iter().all(|&byte| byte == 0) {
            return Ok(files);
        }
        let size = number(&header[124..136])?;
        match header[156] {
            b'0' | 0 => {
                files += 1;
                if files > FILES_MAX {
                    return Err(wrong(&format!("it has more than {FILES_MAX} files")));
                }
                let name = long_name.take().map_or_else(|| name_of(&header), Ok)?;
                let path = inside(&name)?;
                make_parents(&path, target)?;
                write(archive, (&mut target.create(&path)?, size), target)?;
                skip(archive, padding(size))?;
            }
            b'x' => long_name = path_in(&extended(archive, size)?).or(long_name),
            b'5' | b'g' => {
                long_name = None;
                skip(archive, size + padding(size))?;
            }
            other => {
                let kind = other.escape_ascii();
                return Err(wrong(&format!(
                    "it holds something of kind `{kind}`, which is not a file"
                )));
            }
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

fn skip(archive: &mut impl Read, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut archive.take(bytes), &mut io::sink())?;
    if skipped < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn write(
    archive: &mut impl Read,
    (file, size): (&mut File, u64),
    target: &mut impl Target,
) -> io::Result<()> {
    let mut left = size;
    while left > 0 {
        let copied = io::copy(&mut archive.take(left.min(PIECE_BYTES)), file)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= copied;
        if !target.goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    file.flush()
}

fn make_parents(path: &str, target: &mut impl Target) -> io::Result<()> {
    for (at, _) in path.match_indices('/') {
        target.make_directory(&path[..at])?;
    }
    Ok(())
}

/// Octal digits, or a large number in base 256.
fn number(field: &[u8]) -> io::Result<u64> {
    let found = if field[0] & 0x80 != 0 {
        let last = field[field.len() - 8..].iter();
        Some(last.fold(0, |sum, &byte| (sum << 8) | u64::from(byte)))
    } else {
        let text = std::str::from_utf8(field).unwrap_or_default();
        let digits = text.trim_matches(|letter| letter == ' ' || letter == '\0');
        u64::from_str_radix(digits, 8).ok()
    };
    found
        .filter(|&size| size < SIZE_MAX)
        .ok_or_else(|| wrong("it is not a tar archive"))
}

fn text_of(field: &[u8]) -> io::Result<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).map_err(|_| wrong("a name in it is not UTF-8"))
}

fn name_of(header: &[u8; BLOCK]) -> io::Result<String> {
    if &header[257..262] != b"ustar" {
        return Err(wrong("it is not a tar archive"));
    }
    let (name, prefix) = (text_of(&header[..100])?, text_of(&header[345..500])?);
    Ok(if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}/{name}")
    })
}

fn extended(archive: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    if size > HEADER_BYTES_MAX {
        return Err(wrong("a header in it is too long"));
    }
    let mut content = vec![0; size as usize];
    archive.read_exact(&mut content)?;
    skip(archive, padding(size))?;
    Ok(content)
}

/// The path of an extended header: lines `LENGTH path=VALUE`.
fn path_in(mut content: &[u8]) -> Option<String> {
    let mut found = None;
    while let Some(at) = content.iter().position(|&byte| byte == b' ') {
        let length: usize = std::str::from_utf8(&content[..at]).ok()?.parse().ok()?;
        let line = content.get(at + 1..length.checked_sub(1)?)?;
        if let Some(path) = line.strip_prefix(b"path=") {
            found = Some(String::from_utf8(path.to_vec()).ok()?);
        }
        content = content.get(length..)?;
    }
    found
}

/// The path below the directory.
fn inside(name: &str) -> io::Result<String> {
    let parts: Vec<&str> = name
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if name.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
        return Err(wrong(&format!(
            "the name `{}` in it leads out",
            name.escape_debug()
        )));
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Where it is, and how often it goes on.
    struct Folder(PathBuf, usize);

    impl Target for Folder {
        fn make_directory(&mut self, path: &str) -> io::Result<()> {
            std::fs::create_dir_all(self.0.join(path))
        }
        fn create(&mut self, path: &str) -> io::Result<File> {
            File::create(self.0.join(path))
        }
        fn goes_on(&mut self) -> bool {
            self.1 = self.1.saturating_sub(1);
            self.1 > 0
        }
    }

    fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..262].copy_from_slice(b"ustar");
        let mut all = header.to_vec();
        all.extend(content);
        all.resize(all.len().next_multiple_of(BLOCK), 0);
        all
    }

    fn unpacked(members: &[Vec<u8>]) -> (tempfile::TempDir, io::Result<u64>) {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = members.concat();
        archive.resize(archive.len() + 2 * BLOCK, 0);
        let files = unpack(
            &mut archive.as_slice(),
            &mut Folder(dir.path().to_owned(), usize::MAX),
        );
        (dir, files)
    }

    #[test]
    fn files_lie_below_the_directory_under_their_names() {
        let long = format!("{}/end.txt", "d".repeat(150));
        let line = format!("{} path={long}\n", long.len() + 10);
        let (dir, files) = unpacked(&[
            member("1.txt", b'0', b"one"),
            member("sub/2.txt", b'0', &[7; 1000]),
            member("pax", b'x', line.as_bytes()),
            member("short", b'0', b"long"),
        ]);
        assert_eq!(files.unwrap(), 3);
        assert_eq!(std::fs::read(dir.path().join("1.txt")).unwrap(), b"one");
        assert_eq!(std::fs::read(dir.path().join("sub/2.txt")).unwrap(), [7; 1000]);
        assert_eq!(std::fs::read(dir.path().join(long)).unwrap(), b"long");
    }

    #[test]
    fn what_leads_out_and_what_is_no_file_is_refused() {
        for (name, kind) in [
            ("../x", b'0'),
            ("/etc/x", b'0'),
            ("a/../../x", b'0'),
            ("x", b'2'),
            ("x", b'1'),
        ] {
            let (_, files) = unpacked(&[member(name, kind, b"")]);
            assert!(files.is_err(), "{name}");
        }
        let (_, files) = unpacked(&[vec![b'q'; BLOCK]]);
        assert!(files.is_err());
        for kind in [b'0', b'5', b'g', b'x'] {
            let mut endless = member("a", kind, b"");
            endless[124..136].fill(0xff);
            assert!(unpacked(&[endless]).1.is_err(), "{kind}: a size that overflows");
        }
    }

    #[test]
    fn files_without_bytes_can_be_broken_off_too() {
        let dir = tempfile::tempdir().unwrap();
        let archive = [member("1.txt", b'0', b""), member("2.txt", b'0', b"")].concat();
        let broken = unpack(&mut archive.as_slice(), &mut Folder(dir.path().to_owned(), 2));
        assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!(dir.path().join("1.txt").exists() && !dir.path().join("2.txt").exists());
    }

    #[test]
    fn archives_that_are_cut_are_refused() {
        let honest = [member("1.txt", b'0', b"one"), member("2.txt", b'0', b"two")].concat();
        for cut in 0..honest.len() {
            let dir = tempfile::tempdir().unwrap();
            let _ = unpack(
                &mut &honest[..cut],
                &mut Folder(dir.path().to_owned(), usize::MAX),
            );
        }
    }
}
