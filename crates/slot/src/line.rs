//! Lines of inputs that become parts of an approved program's arguments: checked where they are put in. Pure.
//!
//! A submitter writes the lines, and the site's staff approved what the program is started with. So a line, or a field
//! of it, must match whole what the application's file says, by default what a text parameter may be. The site reads
//! lines as well, but the file may have changed since: what counts is the text that is about to be passed on.

use std::borrow::Cow;
use std::collections::BTreeMap;

use regex_lite::Regex;
use tidemill_wire::LineRule;

/// The rule of every line and column that has none of its own.
const OTHERS: &str = "*";
const LEGAL: &str =
    "letters, digits and `_.,:=+@%/~^-` are allowed, no leading `-` or `~`, and no `..` in a path; the site may allow \
     more in the application's file";
/// Of a text that is refused, in the message.
const SHOWN_CHARACTERS_MAX: usize = 100;

#[derive(Clone, Debug)]
struct Rule {
    /// the pattern as written, and compiled so that it matches whole texts; None = as a text parameter without one
    pattern: Option<(String, Regex)>,
    bytes_max: usize,
}

/// What lines and their fields must be.
#[derive(Clone, Debug)]
pub(crate) struct LineRules(BTreeMap<String, Rule>);

/// A line, or the field of it that follows this number of tabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Line,
    Column(usize),
}

impl Part {
    /// This part of a line; None where it has too few fields.
    pub fn of(self, line: &str) -> Option<&str> {
        match self {
            Part::Line => Some(line),
            Part::Column(number) => line.split('\t').nth(number),
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Line => to.write_str("line"),
            Part::Column(number) => write!(to, "column {number}"),
        }
    }
}

impl LineRules {
    /// The error says which rule cannot be used, and why.
    pub fn new(defined: &BTreeMap<String, LineRule>) -> Result<LineRules, String> {
        let rule = |(name, rule): (&String, &LineRule)| {
            let compiled = |text: &String| match Regex::new(&format!("^(?:{text})$")) {
                Ok(regex) => Ok((text.clone(), regex)),
                Err(error) => Err(format!(
                    "the pattern `{text}` for `{name}` cannot be used: {error}"
                )),
            };
            let pattern = rule.pattern.as_ref().map(compiled).transpose()?;
            let bytes_max = usize::try_from(rule.bytes_max).unwrap_or(usize::MAX);
            Ok((name.clone(), Rule { pattern, bytes_max }))
        };
        defined
            .iter()
            .map(rule)
            .collect::<Result<_, String>>()
            .map(LineRules)
    }

    /// The error says what is wrong with the text.
    pub fn check(&self, part: Part, text: &str) -> Result<(), String> {
        let name = match part {
            Part::Line => Cow::Borrowed("line"),
            Part::Column(number) => Cow::Owned(number.to_string()),
        };
        let Some(rule) = self.0.get(&*name).or_else(|| self.0.get(OTHERS)) else {
            return Err("is not among those that the application takes".to_owned());
        };
        if text.len() > rule.bytes_max {
            return Err(format!(
                "has {} bytes, and this application takes at most {}",
                text.len(),
                rule.bytes_max
            ));
        }
        match &rule.pattern {
            None if !is_plain(text) => Err(format!("is `{}`: {LEGAL}", shown(text))),
            Some((pattern, regex)) if text.contains('\0') || !regex.is_match(text) => Err(format!(
                "is `{}`, which does not match the application's pattern `{pattern}`",
                shown(text)
            )),
            _ => Ok(()),
        }
    }
}

/// Whether a text parameter without a pattern may have this value, apart from its length (`model/parameter.py`).
fn is_plain(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_.,:=+@%/~^-".contains(&byte);
    text.bytes().all(is_legal) && !text.starts_with(['-', '~']) && !text.split('/').any(|part| part == "..")
}

/// A foreign text in a message: short, on one line.
fn shown(text: &str) -> String {
    let visible = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    text.chars().take(SHOWN_CHARACTERS_MAX).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python's side says of the same patterns and texts: `tests/unit/model/test_model_handed.py` reads it, too.
    const AGREED: &str = include_str!("lines.json");

    #[derive(serde::Deserialize)]
    struct Case {
        pattern: Option<String>,
        matches: Vec<String>,
        differs: Vec<String>,
    }

    fn rules(pattern: Option<&str>) -> LineRules {
        let rule = LineRule {
            pattern: pattern.map(str::to_owned),
            bytes_max: 255,
        };
        LineRules::new(&BTreeMap::from([(OTHERS.to_owned(), rule)])).unwrap()
    }

    #[test]
    fn lines_are_judged_as_python_judges_parameters() {
        let cases: Vec<Case> = serde_json::from_str(AGREED).unwrap();
        assert!(cases.len() > 20, "a case each for what patterns may hold");
        for case in cases {
            let rules = rules(case.pattern.as_deref());
            for text in &case.matches {
                let said = rules.check(Part::Line, text);
                assert_eq!(said, Ok(()), "{:?} matches {text:?}", case.pattern);
            }
            for text in &case.differs {
                assert!(
                    rules.check(Part::Line, text).is_err(),
                    "{:?} {text:?}",
                    case.pattern
                );
            }
        }
    }

    #[test]
    fn a_column_has_a_rule_of_its_own_or_that_of_all_others() {
        let rule = |pattern: &str| LineRule {
            pattern: Some(pattern.to_owned()),
            bytes_max: 5,
        };
        let defined = BTreeMap::from([
            ("1".to_owned(), rule("[0-9]+")),
            (OTHERS.to_owned(), rule("[a-z]+")),
        ]);
        let rules = LineRules::new(&defined).unwrap();
        assert_eq!(rules.check(Part::Column(0), "abc"), Ok(()));
        assert_eq!(rules.check(Part::Column(1), "123"), Ok(()));
        assert!(rules
            .check(Part::Column(1), "abc")
            .unwrap_err()
            .contains("`[0-9]+`"));
        assert!(rules.check(Part::Line, "123").is_err());
        assert!(rules.check(Part::Line, "abcdef").unwrap_err().contains("6 bytes"));
        assert!(LineRules::new(&BTreeMap::new())
            .unwrap()
            .check(Part::Line, "")
            .is_err());
        let wrong = BTreeMap::from([("2".to_owned(), rule("("))]);
        assert!(LineRules::new(&wrong).unwrap_err().contains("`(` for `2`"));
    }
}
