//! What /proc shows of mounts. Pure.

/// A mount, as proc_pid_mountinfo(5) describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `MAJOR:MINOR`
    pub device: String,
    pub point: String,
    pub kind: String,
    pub source: String,
    /// of the file system, as mount(8) takes them after `-o`
    pub options: String,
}

/// The mounts of a text as in /proc/self/mountinfo, in its order; lines that do not fit are left out.
pub fn mounts(text: &str) -> Vec<Mount> {
    let one = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let device = before.next()?.to_owned();
        let point = unescaped(before.nth(1)?);
        let mut after = after.split(' ');
        Some(Mount {
            device,
            point,
            kind: after.next()?.to_owned(),
            source: unescaped(after.next()?),
            options: after.next().unwrap_or_default().to_owned(),
        })
    };
    text.lines().filter_map(one).collect()
}

/// Blanks, tabs, newlines and backslashes of names are octal there: `\040`.
pub fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_optional_fields_and_escapes() {
        let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    40 22 0:35 / /my\\040disk rw master:2 shared:3 - nfs4 server:/x rw\n\
                    nonsense\n";
        let mount = |device: &str, point: &str, kind: &str, source: &str| Mount {
            device: device.to_owned(),
            point: point.to_owned(),
            kind: kind.to_owned(),
            source: source.to_owned(),
            options: "rw".to_owned(),
        };
        let expected = [
            mount("8:1", "/", "ext4", "/dev/sda1"),
            mount("0:35", "/my disk", "nfs4", "server:/x"),
        ];
        assert_eq!(mounts(text), expected);
    }
}
