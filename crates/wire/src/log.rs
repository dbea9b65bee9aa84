//! One event per line, as JSON, to stderr, in the shape of `src/tidemill/log.py`.

use std::fmt::Display;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};

/// Writes events of one component: `log.info("lead.listens", &[("port", &port)])`.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    component: &'static str,
    silent: bool,
}

/// A named value of an event.
pub type Field<'a> = (&'a str, &'a dyn Text);

/// A value that can stand in an event: as JSON.
pub trait Text {
    fn json(&self) -> Value;
}

impl<T: Serialize> Text for T {
    fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}

impl Log {
    pub const fn new(component: &'static str) -> Self {
        Log {
            component,
            silent: false,
        }
    }

    /// Writes nothing; for tests.
    pub const fn silent(component: &'static str) -> Self {
        Log {
            component,
            silent: true,
        }
    }

    /// The life of a job, allocation or service.
    pub fn info(&self, event: &str, fields: &[Field<'_>]) {
        self.write("info", event, fields);
    }

    /// An operator should know; the program goes on.
    pub fn warning(&self, event: &str, fields: &[Field<'_>]) {
        self.write("warning", event, fields);
    }

    /// Something was given up.
    pub fn error(&self, event: &str, fields: &[Field<'_>]) {
        self.write("error", event, fields);
    }

    fn write(&self, level: &str, event: &str, fields: &[Field<'_>]) {
        if self.silent {
            return;
        }
        let line = self.line(level, event, fields, now_us());
        // stderr may be a closed pipe or a full disk: there is nowhere else to say so
        let _ = std::io::stderr().lock().write_all(&line);
    }

    fn line(&self, level: &str, event: &str, fields: &[Field<'_>], at_us: u64) -> Vec<u8> {
        // Map keeps keys in alphabetic order, so the fixed ones are written by hand
        let mut line = format!(
            r#"{{"at":"{}","level":"{level}","component":"{}","event":"{event}""#,
            utc_text(at_us),
            self.component
        )
        .into_bytes();
        let rest: Map<String, Value> = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.json()))
            .collect();
        let text = Value::Object(rest).to_string();
        if text.len() > 2 {
            line.push(b',');
            line.extend_from_slice(&text.as_bytes()[1..]);
        } else {
            line.push(b'}');
        }
        line.push(b'\n');
        line
    }
}

/// Text for a person, to stderr.
pub fn plain(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes()); // as above
}

/// An error as text with its causes, for a field of an event.
pub fn cause(error: &dyn std::error::Error) -> String {
    crate::error::chain(error)
}

/// Anything displayable as text, for a field of an event.
pub fn text(value: impl Display) -> String {
    value.to_string()
}

/// Wall clock, microseconds since 1970 UTC; may jump.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

/// `2026-11-20T23:05:01Z`; days to date after Howard Hinnant, "chrono-compatible low-level date algorithms".
pub fn utc_text(at_us: u64) -> String {
    let seconds = at_us / 1_000_000;
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era_day = days % 146_097;
    let era_year = (era_day - era_day / 1_460 + era_day / 36_524 - era_day / 146_096) / 365;
    let year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
    let month_from_march = (5 * year_day + 2) / 153;
    let day = year_day - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era_year + days / 146_097 * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc_text(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc_text(951_782_400_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc_text(1_795_215_901_999_999), "2026-11-20T23:05:01Z");
        assert_eq!(utc_text(4_107_542_399_000_000), "2100-02-28T23:59:59Z");
    }

    #[test]
    fn a_line_has_the_shape_of_the_python_log() {
        let line = Log::new("lead").line("info", "lead.listens", &[("port", &7), ("host", &"a\"b")], 0);
        let text = String::from_utf8(line).unwrap();
        assert!(text.starts_with(
            r#"{"at":"1970-01-01T00:00:00Z","level":"info","component":"lead","event":"lead.listens","#
        ));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["port"], &value["host"]),
            (&Value::from(7), &Value::from("a\"b"))
        );
        assert!(text.ends_with("}\n"));
        let bare = Log::new("lead").line("info", "lead.left", &[], 0);
        assert!(serde_json::from_slice::<Value>(&bare).is_ok());
    }
}
