//! Headers of plain tar members (POSIX.1-2017 pax, "ustar Interchange Format"; size records for members over 8 GiB).

pub const BLOCK: u64 = 512;
/// Two blocks of zeros end an archive.
pub const TRAILER_BYTES: u64 = 2 * BLOCK;

const USTAR_SIZE_MAX: u64 = 0o777_7777_7777;
const NAME_MAX: usize = 100;
const PREFIX_MAX: usize = 155;

/// Zeros after a member's bytes.
pub fn padding(length: u64) -> u64 {
    (BLOCK - length % BLOCK) % BLOCK
}

/// The header of a regular file: one block, or three when its size or name does not fit an ustar header.
pub fn header(name: &str, length: u64, mtime_s: u64) -> Vec<u8> {
    let split = split_name(name);
    let mut records = Vec::new();
    if length > USTAR_SIZE_MAX {
        push_record(&mut records, "size", &length.to_string());
    }
    if split.is_none() {
        push_record(&mut records, "path", name);
    }
    let mut out = Vec::new();
    if !records.is_empty() {
        out.extend_from_slice(&block("", "pax-header", records.len() as u64, mtime_s, b'x'));
        out.extend_from_slice(&records);
        out.resize(out.len() + padding(records.len() as u64) as usize, 0);
    }
    let (prefix, short) = split.unwrap_or(("", "member"));
    out.extend_from_slice(&block(prefix, short, length.min(USTAR_SIZE_MAX), mtime_s, b'0'));
    out
}

/// Prefix and name that together make the path; None if it does not fit.
fn split_name(name: &str) -> Option<(&str, &str)> {
    if name.len() <= NAME_MAX {
        return Some(("", name));
    }
    name.match_indices('/')
        .map(|(at, _)| (&name[..at], &name[at + 1..]))
        .find(|(prefix, rest)| prefix.len() <= PREFIX_MAX && rest.len() <= NAME_MAX && !rest.is_empty())
}

/// `LENGTH KEY=VALUE\n`, where LENGTH counts itself.
fn push_record(records: &mut Vec<u8>, key: &str, value: &str) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
}

fn block(prefix: &str, name: &str, length: u64, mtime_s: u64, kind: u8) -> [u8; BLOCK as usize] {
    let mut block = [0u8; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{length:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", mtime_s.min(USTAR_SIZE_MAX)).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists names and sizes with the system's tar: not our own expectations.
    fn listed(archive: &[u8]) -> Vec<(String, u64)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), archive).unwrap();
        let output = std::process::Command::new("tar")
            .arg("-tvf")
            .arg(file.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                (fields[5].to_owned(), fields[2].parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn tar_reads_members_with_short_and_long_names() {
        let names = [
            "7/hits/0-99".to_owned(),
            format!("18446744073709551615/{}/0-99", "n".repeat(100)),
            "x".repeat(300),
        ];
        let mut archive = Vec::new();
        for (k, name) in names.iter().enumerate() {
            let content = vec![b'c'; k * 700];
            archive.extend_from_slice(&header(name, content.len() as u64, 1_795_215_901));
            archive.extend_from_slice(&content);
            archive.resize(archive.len() + padding(content.len() as u64) as usize, 0);
        }
        archive.resize(archive.len() + TRAILER_BYTES as usize, 0);
        let expected: Vec<(String, u64)> = names
            .iter()
            .enumerate()
            .map(|(k, n)| (n.clone(), k as u64 * 700))
            .collect();
        assert_eq!(listed(&archive), expected);
    }

    #[test]
    fn a_member_over_8_gib_has_its_size_in_a_pax_record() {
        let head = header("7/hits/0-99", 10 << 30, 0);
        assert_eq!(head.len(), 3 * BLOCK as usize);
        let text = String::from_utf8_lossy(&head[512..540]);
        assert!(text.starts_with("20 size=10737418240\n"), "{text}");
    }

    #[test]
    fn padding_fills_the_block() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
