//! Arguments with templates: parsed once per job, filled per payload. Pure.

use crate::line::{LineRules, Part};

/// What execve(2) takes as one argument (MAX_ARG_STRLEN, 32 pages, with the closing NUL), and as all of them (three
/// quarters of the largest stack that counts, 8 MiB). One `{line}` may stand for megabytes, and a job may write it often.
const ARGUMENT_BYTES_MAX: usize = 131_071;
pub(crate) const ARGUMENTS_BYTES_MAX: usize = 6 << 20;

/// A piece of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    First,
    Last,
    Count,
    Seed,
    Line,
    /// a field of the line, between tabs; 0 is what stands before the first one
    Column(usize),
    Cores,
    Input(String),
}

/// One argument (or output path) with its templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<TemplatePart>);

/// What templates stand for.
pub(crate) struct Values<'a> {
    pub first: u64,
    pub count: u64,
    pub seed: u64,
    pub line: Option<&'a str>,
    /// the line as it was written, where `line` is the URL that the site put in its place
    pub written: Option<&'a str>,
    /// what lines must be; None = anything
    pub rules: Option<&'a LineRules>,
    pub cores: u64,
    /// path of an input by its name
    pub input: &'a dyn Fn(&str) -> Option<String>,
}

impl Values<'_> {
    /// The line, or a field of it, once what was written is known to be legal.
    fn part(&self, part: Part) -> Result<&str, String> {
        let event = self.first;
        let line = self
            .line
            .ok_or_else(|| format!("no input line for event {event}"))?;
        let of = |line| part.of(line);
        let missing = || format!("the line of event {event} has no {part}");
        let text = of(line).ok_or_else(missing)?;
        if let Some(rules) = self.rules {
            let written = self.written.map_or(Some(text), of).ok_or_else(missing)?;
            let wrong = |what| format!("{part} of event {event} cannot become an argument: it {what}");
            rules.check(part, written).map_err(wrong)?;
        }
        Ok(text)
    }
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
                pieces.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            pieces.push(
                piece(&tail[..end])
                    .ok_or_else(|| format!("unknown template `{{{}}}` in `{text}`", &tail[..end]))?,
            );
            rest = &tail[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(TemplatePart::Text(plain));
        }
        Ok(Template(pieces))
    }

    /// The text where there is no template in it.
    pub fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn fill(&self, values: &Values<'_>) -> Result<String, String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePart::Text(plain) => text.push_str(plain),
                TemplatePart::First => text.push_str(&values.first.to_string()),
                TemplatePart::Last => text.push_str(&(values.first + values.count - 1).to_string()),
                TemplatePart::Count => text.push_str(&values.count.to_string()),
                TemplatePart::Seed => text.push_str(&values.seed.to_string()),
                TemplatePart::Cores => text.push_str(&values.cores.to_string()),
                TemplatePart::Line => text.push_str(values.part(Part::Line)?),
                TemplatePart::Column(number) => text.push_str(values.part(Part::Column(*number))?),
                TemplatePart::Input(name) => {
                    let path = (values.input)(name).ok_or_else(|| format!("no input named `{name}`"))?;
                    text.push_str(&path);
                }
            }
            if text.len() > ARGUMENT_BYTES_MAX {
                return Err(format!(
                    "filled in it has more than {ARGUMENT_BYTES_MAX} bytes, which no program can be given"
                ));
            }
        }
        Ok(text)
    }
}

fn piece(name: &str) -> Option<TemplatePart> {
    Some(match name {
        "event" | "first_event" => TemplatePart::First,
        "last_event" => TemplatePart::Last,
        "events" => TemplatePart::Count,
        "seed" => TemplatePart::Seed,
        "line" => TemplatePart::Line,
        "cores" => TemplatePart::Cores,
        _ if name.starts_with("column.") => TemplatePart::Column(name["column.".len()..].parse().ok()?),
        _ => TemplatePart::Input(name.strip_prefix("input.")?.to_owned()),
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
            written: None,
            rules: None,
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
    fn a_column_is_a_field_of_the_line_between_tabs() {
        let values = Values {
            first: 3,
            count: 1,
            seed: 0,
            line: Some("\ta b\t{seed}\t"),
            written: None,
            rules: None,
            cores: 1,
            input: &|_| None,
        };
        let fill = |text: &str| Template::parse(text)?.fill(&values);
        assert_eq!(
            fill("{column.0}|{column.1}|{column.2}|{column.3}").unwrap(),
            "|a b|{seed}|"
        );
        assert!(fill("{column.4}")
            .unwrap_err()
            .contains("event 3 has no column 4"));
        assert!(fill("{column.x}").unwrap_err().contains("`{column.x}`"));
    }

    #[test]
    fn what_grows_beyond_an_argument_is_refused_before_it_is_there() {
        let line = "x".repeat(100_000);
        let values = Values {
            first: 0,
            count: 1,
            seed: 0,
            line: Some(&line),
            written: None,
            rules: None,
            cores: 1,
            input: &|_| None,
        };
        let fill = |text: &str| Template::parse(text).unwrap().fill(&values);
        assert_eq!(fill("{line}").unwrap().len(), 100_000);
        assert!(fill(&"{line}".repeat(20_000)).unwrap_err().contains("131071"));
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
