//! Append-only files of framed lines.
//!
//! The writer keeps what is not fsynced in memory, so that nothing is lost by a full disk or a failed fsync (after
//! which the kernel may have dropped the pages: fsync(2), "Errors"): it cuts the file back and writes again. The reader
//! opens the file anew each time, because network file systems cache. Lines that a file system has damaged are passed
//! over where whole ones follow, and reported; what no whole line follows is a torn tail, or still to come. Of a journal
//! that is being written a network file system may show a later page before an earlier one (as zeros): a patient reader
//! gives what follows at once, and reads such a gap again before it calls it damage.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use tidemill_sys::calls::{Calls, Kernel};
use tidemill_sys::file::{self, Append};

use crate::error::WireError;
use crate::frame::{self, Frames};

const MODE: u32 = 0o600;
const READ_BYTES: usize = 4 << 20;
/// Gaps that are read again; more are damage at once, and so are longer ones than a read takes.
const GAPS_MAX: usize = 100;

/// Appends framed lines to one file that has no other writer.
#[derive(Debug)]
pub struct JournalWriter<C = Kernel> {
    calls: C,
    path: PathBuf,
    file: File,
    /// What is not known to be fsynced; its first `written` bytes are in the file.
    unsynced: Vec<u8>,
    written: usize,
    synced_length: u64,
    /// A write or fsync failed: cut back to `synced_length` before the next write.
    broken: bool,
}

impl JournalWriter {
    /// Create a file that must not exist.
    pub fn create(path: &Path) -> Result<Self, WireError> {
        JournalWriter::create_by(Kernel, path)
    }

    /// Open or create a file; a torn tail is cut off, damage that whole lines follow stays.
    pub fn open(path: &Path) -> Result<Self, WireError> {
        JournalWriter::open_by(Kernel, path)
    }
}

impl<C: Calls> JournalWriter<C> {
    /// As `create`, by these calls.
    pub fn create_by(calls: C, path: &Path) -> Result<Self, WireError> {
        let file = file::open_to_append(&calls, path, Append::New, MODE);
        let file = file.map_err(WireError::file("create", path))?;
        Ok(Self::new(calls, path, file, 0))
    }

    /// As `open`, by these calls.
    pub fn open_by(calls: C, path: &Path) -> Result<Self, WireError> {
        let file = file::open_to_append(&calls, path, Append::Any, MODE);
        let file = file.map_err(WireError::file("open", path))?;
        let mut reader = JournalReader::new(path);
        while reader.read(|_| ())? > 0 {}
        let length = file.metadata().map_err(WireError::file("stat", path))?.len();
        if length == 0 {
            sync_parent(&calls, path)?; // it may be new
        }
        if length > reader.offset() {
            calls
                .cut(&file, reader.offset())
                .map_err(WireError::file("cut the torn tail of", path))?;
        }
        Ok(Self::new(calls, path, file, reader.offset()))
    }

    fn new(calls: C, path: &Path, file: File, synced_length: u64) -> Self {
        JournalWriter {
            calls,
            path: path.to_owned(),
            file,
            unsynced: Vec::new(),
            written: 0,
            synced_length,
            broken: false,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Add a value; it is in memory only until `write` and `sync`.
    pub fn append<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), WireError> {
        frame::encode(value, &mut self.unsynced)
    }

    /// Add a framed line that was checked, without its newline.
    pub fn append_line(&mut self, line: &[u8]) {
        self.unsynced.extend_from_slice(line);
        self.unsynced.push(b'\n');
    }

    /// Bytes that are not known to be fsynced.
    pub fn unsynced_bytes(&self) -> usize {
        self.unsynced.len()
    }

    /// Write what is in memory to the file. After an error nothing is lost: call again later.
    pub fn write(&mut self) -> Result<(), WireError> {
        self.repair()?;
        while self.written < self.unsynced.len() {
            match self.calls.write(&self.file, &self.unsynced[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.broken = true;
                    return Err(WireError::file("append to", &self.path)(error));
                }
            }
        }
        Ok(())
    }

    /// Write and fsync; afterwards everything appended so far is safe. After an error nothing is lost: call again later.
    pub fn sync(&mut self) -> Result<(), WireError> {
        self.write()?;
        if self.written == 0 {
            return Ok(());
        }
        let result = self.calls.sync_data(&self.file);
        self.finish_sync(self.written, result)
    }

    /// A second handle for an fsync elsewhere: after `write`, sync it, then pass the result and the `written_bytes`
    /// from before the fsync to `finish_sync`.
    pub fn handle(&self) -> Result<File, WireError> {
        self.file
            .try_clone()
            .map_err(WireError::file("duplicate the handle of", &self.path))
    }

    /// Bytes that are in the file and not known to be fsynced.
    pub fn written_bytes(&self) -> usize {
        self.written
    }

    /// Take note of an fsync that covered the first `bytes` bytes of what was not fsynced; nothing may have been written
    /// since it began.
    pub fn finish_sync(&mut self, bytes: usize, result: io::Result<()>) -> Result<(), WireError> {
        match result {
            Ok(()) => {
                self.unsynced.drain(..bytes);
                self.written -= bytes;
                self.synced_length += bytes as u64;
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                Err(WireError::file("fsync", &self.path)(error))
            }
        }
    }

    /// The open file.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Bytes that are known to be fsynced.
    pub fn synced_bytes(&self) -> u64 {
        self.synced_length
    }

    /// Make the file's name survive a crash: once, before anything in it counts.
    pub fn sync_name(&self) -> Result<(), WireError> {
        sync_parent(&self.calls, &self.path)
    }

    fn repair(&mut self) -> Result<(), WireError> {
        if self.broken {
            self.calls
                .cut(&self.file, self.synced_length)
                .map_err(WireError::file("cut back", &self.path))?;
            self.written = 0;
            self.broken = false;
        }
        Ok(())
    }
}

/// Make the names in the file's directory survive a crash.
fn sync_parent(calls: &impl Calls, path: &Path) -> Result<(), WireError> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(directory)
        .and_then(|open| calls.sync_all(&open))
        .map_err(WireError::file("fsync", directory))
}

/// Reads the frames of a file that may grow.
#[derive(Debug)]
pub struct JournalReader {
    path: PathBuf,
    offset: u64,
    /// Up to here nothing whole follows `offset`.
    searched: u64,
    damage: Vec<Range<u64>>,
    buffer: Vec<u8>,
    patience: Duration,
    gaps: Vec<Gap>,
}

/// Bytes that do not form whole frames, while whole ones follow.
#[derive(Debug)]
struct Gap {
    place: Range<u64>,
    until: Instant,
}

impl JournalReader {
    pub fn new(path: &Path) -> Self {
        JournalReader {
            path: path.to_owned(),
            offset: 0,
            searched: 0,
            damage: Vec::new(),
            buffer: Vec::new(),
            patience: Duration::ZERO,
            gaps: Vec::new(),
        }
    }

    /// As `new`, for a journal that is being written: a gap is damage when it has stayed one for this long.
    pub fn patient(path: &Path, patience: Duration) -> Self {
        JournalReader {
            patience,
            ..JournalReader::new(path)
        }
    }

    /// How many places are read again by the next `read`.
    pub fn gaps(&self) -> usize {
        self.gaps.len()
    }

    /// The end of the last whole frame that was read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The damaged places that were passed over since the last call.
    pub fn take_damage(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.damage)
    }

    /// Open the file, give each whole new frame's JSON text, return how many; call again until it returns 0. A file
    /// that does not exist gives none. Frames of a gap that has become whole come after those that follow it.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> Result<usize, WireError> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(WireError::file("open", &self.path)(error)),
        };
        let filled = self.read_gaps(&mut file, &mut each)?;
        Ok(filled + self.read_on(&mut file, &mut each)?)
    }

    /// What is new behind all that was read.
    fn read_on(&mut self, mut file: &mut File, each: &mut impl FnMut(&[u8])) -> Result<usize, WireError> {
        file.seek(SeekFrom::Start(self.searched))
            .map_err(WireError::file("seek in", &self.path))?;
        let mut limit = READ_BYTES;
        self.buffer.clear();
        loop {
            let wanted = limit.saturating_sub(self.buffer.len()) as u64;
            let got = (&mut file)
                .take(wanted)
                .read_to_end(&mut self.buffer)
                .map_err(WireError::file("read", &self.path))?;
            if let Some(count) = self.take_frames(each) {
                return Ok(count);
            }
            match frame::next_whole(&self.buffer) {
                Some(length) => self.pass_over(length),
                None if (got as u64) < wanted => return Ok(0),
                None if limit > crate::LINE_BYTES_MAX => {
                    // nothing that long is a line: search behind it
                    let last = self.buffer.iter().rposition(|&byte| byte == b'\n');
                    self.pass_over(last.map_or(self.buffer.len(), |at| at + 1));
                    limit = READ_BYTES;
                }
                None => limit *= 2, // one line is longer than the buffer
            }
        }
    }

    /// The whole frames at the start of the buffer; None where there is none.
    fn take_frames(&mut self, each: &mut impl FnMut(&[u8])) -> Option<usize> {
        let mut frames = Frames::new(&self.buffer);
        let mut count = 0;
        for json in frames.by_ref() {
            each(json);
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let taken = frames.taken() as u64;
        if self.searched > self.offset {
            self.miss(self.offset..self.searched);
        }
        self.searched += taken;
        self.offset = self.searched;
        Some(count)
    }

    fn miss(&mut self, place: Range<u64>) {
        let length = place.end - place.start;
        if self.patience.is_zero() || self.gaps.len() == GAPS_MAX || length > READ_BYTES as u64 {
            self.damage.push(place);
        } else {
            let until = Instant::now() + self.patience;
            self.gaps.push(Gap { place, until });
        }
    }

    /// What has become whole of the gaps. What has not in time is damage.
    fn read_gaps(&mut self, file: &mut File, each: &mut impl FnMut(&[u8])) -> Result<usize, WireError> {
        let mut count = 0;
        for number in (0..self.gaps.len()).rev() {
            let Range { start, end } = self.gaps[number].place;
            self.buffer.clear();
            file.seek(SeekFrom::Start(start))
                .and_then(|_| file.take(end - start).read_to_end(&mut self.buffer))
                .map_err(WireError::file("read", &self.path))?;
            let mut at = 0;
            loop {
                let mut frames = Frames::new(&self.buffer[at..]);
                for json in frames.by_ref() {
                    each(json);
                    count += 1;
                }
                at += frames.taken();
                self.gaps[number].place.start = start + at as u64;
                let left = start + at as u64..end;
                if left.is_empty() {
                    self.gaps.swap_remove(number);
                    break;
                }
                if Instant::now() < self.gaps[number].until {
                    break;
                }
                let Some(length) = frame::next_whole(&self.buffer[at..]) else {
                    self.damage.push(left);
                    self.gaps.swap_remove(number);
                    break;
                };
                self.damage.push(left.start..left.start + length as u64);
                at += length;
            }
        }
        Ok(count)
    }

    fn pass_over(&mut self, length: usize) {
        self.buffer.drain(..length);
        self.searched += length as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;
    use tidemill_sys::calls::Failing;

    fn all(path: &Path) -> Vec<String> {
        let mut reader = JournalReader::new(path);
        let mut read = Vec::new();
        while reader
            .read(|json| read.push(String::from_utf8(json.to_vec()).unwrap()))
            .unwrap()
            > 0
        {}
        read
    }

    #[test]
    fn what_is_synced_is_read_and_the_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut writer = JournalWriter::create(&path).unwrap();
        assert!(JournalWriter::create(&path).is_err());
        writer.append(&1).unwrap();
        writer.append(&"two").unwrap();
        assert!(writer.unsynced_bytes() > 0);
        writer.sync().unwrap();
        assert_eq!(writer.unsynced_bytes(), 0);
        assert_eq!(all(&path), ["1", "\"two\""]);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn a_file_that_does_not_exist_yet_gives_nothing_and_then_its_frames() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut reader = JournalReader::new(&path);
        assert_eq!(reader.read(|_| ()).unwrap(), 0);
        let mut writer = JournalWriter::open(&path).unwrap();
        for k in 0..3 {
            writer.append(&k).unwrap();
            writer.sync().unwrap();
            let mut read = Vec::new();
            assert_eq!(reader.read(|json| read.push(json.to_vec())).unwrap(), 1);
            assert_eq!(read, [k.to_string().into_bytes()]);
        }
    }

    #[test]
    fn a_frame_longer_than_the_read_buffer_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut writer = JournalWriter::open(&path).unwrap();
        writer.append(&"x".repeat(READ_BYTES + 5)).unwrap();
        writer.append(&1).unwrap();
        writer.sync().unwrap();
        assert_eq!(
            all(&path).iter().map(String::len).collect::<Vec<_>>(),
            [READ_BYTES + 7, 1]
        );
    }

    #[test]
    fn after_a_failed_fsync_everything_is_written_again_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut writer = JournalWriter::open(&path).unwrap();
        writer.append(&0).unwrap();
        writer.sync().unwrap();
        writer.append(&1).unwrap();
        writer.write().unwrap();
        let written = writer.written_bytes();
        assert!(writer
            .finish_sync(written, Err(io::Error::from_raw_os_error(28)))
            .is_err());
        writer.append(&2).unwrap();
        writer.sync().unwrap();
        assert_eq!(all(&path), ["0", "1", "2"]);
    }

    #[test]
    fn whichever_call_fails_every_record_is_in_the_file_once_in_the_end() {
        for n in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.log");
            std::fs::write(&path, "torn").unwrap();
            let calls = Failing::nth(n, None, 28).writes_at_most(7); // ENOSPC
            let Ok(mut writer) = JournalWriter::open_by(&calls, &path) else {
                assert!(calls.has_failed());
                continue;
            };
            for k in 0..3 {
                writer.append(&format!("record {k}")).unwrap();
                let failed = calls.has_failed();
                if writer.sync().is_err() {
                    assert!(!failed && calls.has_failed());
                    assert!(writer.unsynced_bytes() > 0);
                }
            }
            writer.sync().unwrap();
            assert_eq!(
                all(&path),
                ["\"record 0\"", "\"record 1\"", "\"record 2\""],
                "call {n}"
            );
            if !calls.has_failed() {
                assert!(n > 10, "only {n} calls were made");
                return;
            }
        }
    }

    #[test]
    fn a_damaged_line_is_passed_over_reported_and_never_cut_off_with_what_follows_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for k in 0..5 {
            frame::encode(&format!("record {k}"), &mut bytes).unwrap();
            ends.push(bytes.len() as u64);
        }
        bytes[ends[1] as usize + 12] ^= 1; // record 2
        bytes.extend_from_slice(b"torn");
        std::fs::write(&path, &bytes).unwrap();
        let mut writer = JournalWriter::open(&path).unwrap();
        writer.append(&"last").unwrap();
        writer.sync().unwrap();
        let whole = [
            "\"record 0\"",
            "\"record 1\"",
            "\"record 3\"",
            "\"record 4\"",
            "\"last\"",
        ];
        assert_eq!(all(&path), whole);
        let mut reader = JournalReader::new(&path);
        while reader.read(|_| ()).unwrap() > 0 {}
        let damage = reader.take_damage();
        assert_eq!((damage.len(), &damage[0]), (1, &(ends[1]..ends[2])));
        assert!(reader.take_damage().is_empty());
        assert_eq!(reader.offset(), std::fs::metadata(&path).unwrap().len());
    }

    #[test]
    fn damage_without_a_newline_that_is_longer_than_any_line_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut bytes = Vec::new();
        frame::encode(&"before", &mut bytes).unwrap();
        bytes.resize(bytes.len() + crate::LINE_BYTES_MAX + 3 * READ_BYTES, 0);
        bytes.push(b'\n');
        frame::encode(&"behind", &mut bytes).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(all(&path), ["\"before\"", "\"behind\""]);
        drop(JournalWriter::open(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes.len() as u64);
    }

    #[test]
    fn a_line_that_is_still_being_written_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut bytes = Vec::new();
        frame::encode(&"first", &mut bytes).unwrap();
        frame::encode(&"second", &mut bytes).unwrap();
        let mut reader = JournalReader::new(&path);
        let mut read = 0;
        for end in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            read += reader.read(|_| ()).unwrap();
        }
        assert_eq!((read, reader.take_damage().len()), (2, 0));
    }

    /// Five frames and where each ends.
    fn five() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for k in 0..5 {
            frame::encode(&k, &mut bytes).unwrap();
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn next(reader: &mut JournalReader) -> Vec<u8> {
        let mut read = Vec::new();
        while reader.read(|json| read.push(json[0] - b'0')).unwrap() > 0 {}
        read
    }

    #[test]
    fn a_gap_in_a_live_journal_that_fills_later_is_read_then_and_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let (bytes, ends) = five();
        let with_zeros = |place: Range<usize>| {
            let mut holed = bytes.clone();
            holed[place].fill(0);
            std::fs::write(&path, &holed).unwrap();
        };
        with_zeros(ends[0] + 3..ends[2] + 2);
        let mut reader = JournalReader::patient(&path, Duration::from_secs(1000));
        assert_eq!(next(&mut reader), [0, 4], "what follows is not kept waiting");
        assert_eq!((reader.gaps(), next(&mut reader).len()), (1, 0));
        with_zeros(ends[1] + 3..ends[2] + 2);
        assert_eq!(next(&mut reader), [1], "a part of it has come");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(next(&mut reader), [2, 3]);
        assert_eq!((reader.gaps(), reader.take_damage().len()), (0, 0));
        assert_eq!(reader.offset(), bytes.len() as u64);
    }

    #[test]
    fn a_gap_that_stays_is_damage_in_the_end_and_what_is_whole_in_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let (bytes, ends) = five();
        let mut holed = bytes.clone();
        holed[ends[0] + 3..ends[2] + 2].fill(0);
        std::fs::write(&path, &holed).unwrap();
        let mut reader = JournalReader::patient(&path, Duration::from_nanos(1));
        let mut read = 0;
        reader.read(|_| read += 1).unwrap();
        assert_eq!(read, 1, "up to the gap");
        reader.read(|_| read += 1).unwrap();
        assert_eq!((read, reader.gaps()), (2, 1), "and behind it");
        let mut partly = bytes.clone();
        partly[ends[0] + 3] ^= 1;
        partly[ends[2] + 3] ^= 1;
        std::fs::write(&path, &partly).unwrap();
        assert_eq!(next(&mut reader), [2]);
        let damage: Vec<Range<usize>> = reader
            .take_damage()
            .into_iter()
            .map(|place| place.start as usize..place.end as usize)
            .collect();
        assert_eq!(damage, [ends[0]..ends[1], ends[2]..ends[3]]);
        assert_eq!((reader.gaps(), next(&mut reader).len()), (0, 0));
    }

    #[test]
    fn gaps_are_bounded_in_number_and_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let mut bytes = Vec::new();
        for k in 0..GAPS_MAX + 5 {
            frame::encode(&k, &mut bytes).unwrap();
            bytes.extend_from_slice(b"damaged\n");
        }
        bytes.resize(bytes.len() + READ_BYTES + 1, 0);
        bytes.push(b'\n');
        frame::encode(&0, &mut bytes).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = JournalReader::patient(&path, Duration::from_secs(1000));
        while reader.read(|_| ()).unwrap() > 0 {}
        assert_eq!((reader.gaps(), reader.take_damage().len()), (GAPS_MAX, 5));
        assert_eq!(reader.offset(), bytes.len() as u64);
    }

    proptest! {
        #[test]
        fn a_torn_tail_is_cut_when_the_file_is_opened_to_write(count in 0usize..5, cut in 0usize..200) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.log");
            let mut bytes = Vec::new();
            for k in 0..count {
                frame::encode(&format!("record {k}"), &mut bytes).unwrap();
            }
            bytes.truncate(cut);
            std::fs::write(&path, &bytes).unwrap();
            let whole = bytes.iter().filter(|&&byte| byte == b'\n').count();
            let mut writer = JournalWriter::open(&path).unwrap();
            writer.append(&"last").unwrap();
            writer.sync().unwrap();
            let read = all(&path);
            prop_assert_eq!(read.len(), whole + 1);
            prop_assert_eq!(&read[whole], "\"last\"");
        }
    }
}
