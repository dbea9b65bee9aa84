//! Arguments with templates: parsed once per job, filled per payload. Pure.

/// A piece of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    First,
    Last,
    Count,
    Seed,
    Line,
    Cores,
    Input(String),
}

/// One argument (or output path) with its templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

/// What templates stand for.
pub(crate) struct Values<'a> {
    pub first: u64,
    pub count: u64,
    pub seed: u64,
    pub line: Option<&'a str>,
    pub cores: u64,
    /// path of an input by its name
    pub input: &'a dyn Fn(&str) -> Option<String>,
}

impl Template {
    /// `{{` and `}}` are braces. The error says what is wrong with which template.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, tail) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(after) = tail.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            let name_end = tail.find('}').filter(|_| brace == "{");
            let Some(end) = name_end else {
                return Err(format!(
                    "a `{brace}` without its partner in `{text}` (write it twice for a brace)"
                ));
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(
                piece(&tail[..end])
                    .ok_or_else(|| format!("unknown template `{{{}}}` in `{text}`", &tail[..end]))?,
            );
            rest = &tail[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Template(pieces))
    }

    /// The text where there is no template in it.
    pub fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn fill(&self, values: &Values<'_>) -> Result<String, String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::First => text.push_str(&values.first.to_string()),
                Piece::Last => text.push_str(&(values.first + values.count - 1).to_string()),
                Piece::Count => text.push_str(&values.count.to_string()),
                Piece::Seed => text.push_str(&values.seed.to_string()),
                Piece::Cores => text.push_str(&values.cores.to_string()),
                Piece::Line => {
                    let line = values
                        .line
                        .ok_or_else(|| format!("no input line for event {}", values.first))?;
                    text.push_str(line);
                }
                Piece::Input(name) => {
                    let path = (values.input)(name).ok_or_else(|| format!("no input named `{name}`"))?;
                    text.push_str(&path);
                }
            }
        }
        Ok(text)
    }
}

fn piece(name: &str) -> Option<Piece> {
    Some(match name {
        "event" | "first_event" => Piece::First,
        "last_event" => Piece::Last,
        "events" => Piece::Count,
        "seed" => Piece::Seed,
        "line" => Piece::Line,
        "cores" => Piece::Cores,
        _ => Piece::Input(name.strip_prefix("input.")?.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        let input = |name: &str| (name == "cards").then(|| "/in/cards".to_owned());
        let values = Values {
            first: 10,
            count: 5,
            seed: 77,
            line: Some("l"),
            cores: 2,
            input: &input,
        };
        Template::parse(text)?.fill(&values)
    }

    #[test]
    fn templates_are_filled_and_doubled_braces_are_braces() {
        let text = "{event}-{first_event}-{last_event}/{events} {seed}{line}{cores} {input.cards} {{x}}";
        assert_eq!(fill(text).unwrap(), "10-10-14/5 77l2 /in/cards {x}");
        assert_eq!(fill("").unwrap(), "");
    }

    #[test]
    fn wrong_templates_are_named() {
        for (text, quoted) in [
            ("a{evnt}", "`{evnt}`"),
            ("{", "`{`"),
            ("}", "`}`"),
            ("{input.x}", "`x`"),
        ] {
            assert!(fill(text).unwrap_err().contains(quoted), "{text}");
        }
    }
}
