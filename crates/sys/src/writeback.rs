//! Early write-out of file content, so that a later fsync finds little left.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{check, Result};

/// Asks the kernel to start writing these bytes to storage and does not wait for it; no promise of durability
/// (sync_file_range(2), "Warning").
pub fn start(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<()> {
    let (offset, length) = (offset as i64, length as i64);
    // SAFETY: plain call on a borrowed, open descriptor.
    let result =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
    check(result, "start writing out", "")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn written_bytes_can_be_pushed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        super::start(file.as_fd(), 0, 10_000).unwrap();
    }
}
