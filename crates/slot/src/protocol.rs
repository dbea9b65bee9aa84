//! The lines of a persistent payload. Pure. The protocol stands in the documentation, "Range protocol".

/// What a payload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Ready,
    Next {
        events_max: Option<u64>,
    },
    Done {
        first: u64,
        count: u64,
        outputs: Vec<(String, String)>,
    },
    Failed {
        event: u64,
        message: String,
    },
    Log {
        message: String,
    },
    Beat,
}

/// A payload's line is never longer: a `done` with a few outputs, a message.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

impl Line {
    /// Reads a line without its newline. The error says what is wrong.
    pub fn parse(line: &[u8]) -> Result<Line, &'static str> {
        let text = std::str::from_utf8(line).map_err(|_| "not UTF-8")?;
        let text = text.strip_suffix('\r').unwrap_or(text);
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        match verb {
            "ready" if rest.is_empty() => Ok(Line::Ready),
            "beat" if rest.is_empty() => Ok(Line::Beat),
            "next" if rest.is_empty() => Ok(Line::Next { events_max: None }),
            "next" => Ok(Line::Next {
                events_max: Some(positive(rest)?),
            }),
            "done" => done(rest),
            "failed" => {
                let (event, message) = rest.split_once(' ').unwrap_or((rest, ""));
                Ok(Line::Failed {
                    event: number(event)?,
                    message: message.to_owned(),
                })
            }
            "log" => Ok(Line::Log {
                message: rest.to_owned(),
            }),
            "ready" | "beat" => Err("takes no arguments"),
            _ => Err("unknown verb"),
        }
    }
}

fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "a number was expected")
}

fn positive(text: &str) -> Result<u64, &'static str> {
    match number(text)? {
        0 => Err("a number above 0 was expected"),
        value => Ok(value),
    }
}

fn done(rest: &str) -> Result<Line, &'static str> {
    let mut words = rest.split(' ').filter(|word| !word.is_empty());
    let (Some(first), Some(count)) = (words.next(), words.next()) else {
        return Err("`done FIRST COUNT` was expected");
    };
    let (first, count) = (number(first)?, positive(count)?);
    first.checked_add(count).ok_or("numbers too large")?;
    let mut outputs = Vec::new();
    for word in words {
        let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, path) = pair.ok_or("`NAME=PATH` was expected")?;
        outputs.push((name.to_owned(), percent_decoded(path)?));
    }
    Ok(Line::Done {
        first,
        count,
        outputs,
    })
}

fn percent_decoded(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "a `%` without two hex digits";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = tail
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .ok_or(WRONG)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| WRONG)?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| "a path that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        assert_eq!(Line::parse(b"ready"), Ok(Line::Ready));
        assert_eq!(Line::parse(b"next\r"), Ok(Line::Next { events_max: None }));
        assert_eq!(Line::parse(b"next 5"), Ok(Line::Next { events_max: Some(5) }));
        let outputs = vec![
            ("a".to_owned(), "x y%".to_owned()),
            ("b".to_owned(), "p/q".to_owned()),
        ];
        assert_eq!(
            Line::parse(b"done 3 4 a=x%20y%25 b=p/q"),
            Ok(Line::Done {
                first: 3,
                count: 4,
                outputs
            })
        );
        assert_eq!(
            Line::parse(b"failed 3 it is bad"),
            Ok(Line::Failed {
                event: 3,
                message: "it is bad".into()
            })
        );
    }

    #[test]
    fn anything_else_is_an_error() {
        for line in [
            &b""[..],
            b"hello",
            b"ready now",
            b"next 0",
            b"next x",
            b"done 1",
            b"done 1 0",
            b"done 1 2 x",
            b"done 18446744073709551615 1",
            b"done 1 1 a=%2",
            b"failed",
            b"failed x y",
            b"\xff",
        ] {
            assert!(Line::parse(line).is_err(), "{line:?}");
        }
    }
}
