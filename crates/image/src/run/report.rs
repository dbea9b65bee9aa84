//! Reports of the process inside to the one outside: lines in a pipe.

use std::os::fd::{AsFd, OwnedFd};

use tidemill_sys::fd;
use tidemill_sys::process::Exit;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// namespaces are not available here; nothing was started
    Refused(String),
    /// a warning for the user; the command runs nevertheless
    Note(String),
    /// the image could not be had, or was lost while the command ran
    Failed(String),
    /// the command could not be started: exit status and why
    NotStarted(i32, String),
    Ended(Exit),
}

/// Our end of the pipe.
pub(super) struct Reporter {
    pub pipe: OwnedFd,
}

impl Reporter {
    pub fn send(&self, report: &Report) {
        let line = match report {
            Report::Refused(what) => format!("refused {}", one_line(what)),
            Report::Note(what) => format!("note {}", one_line(what)),
            Report::Failed(what) => format!("failed {}", one_line(what)),
            Report::NotStarted(status, what) => format!("unstarted {status} {}", one_line(what)),
            Report::Ended(exit) => exit.to_string(),
        };
        // the process outside may have ended: then the report is lost
        let _ = fd::write(self.pipe.as_fd(), format!("{line}\n").as_bytes());
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads the lines; a malformed line becomes a failure that quotes it.
pub(super) fn read(text: &str) -> Vec<Report> {
    text.lines().map(read_line).collect()
}

fn read_line(line: &str) -> Report {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let number = |text: &str| text.parse::<i32>().ok();
    let report = match word {
        "refused" => Some(Report::Refused(rest.into())),
        "note" => Some(Report::Note(rest.into())),
        "failed" => Some(Report::Failed(rest.into())),
        "unstarted" => rest
            .split_once(' ')
            .and_then(|(status, what)| Some(Report::NotStarted(number(status)?, what.into()))),
        "status" => number(rest).map(|status| Report::Ended(Exit::Status(status))),
        "signal" => number(rest).map(|number| Report::Ended(Exit::Signal(number))),
        _ => None,
    };
    report.unwrap_or_else(|| Report::Failed(format!("a report that cannot be read: `{line}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let (from, pipe) = fd::pipe().unwrap();
        let reports = [
            Report::Note("a b".into()),
            Report::Failed("x: y".into()),
            Report::NotStarted(127, "no such file".into()),
            Report::Ended(Exit::Status(7)),
            Report::Ended(Exit::Signal(9)),
        ];
        let reporter = Reporter { pipe };
        reports.iter().for_each(|report| reporter.send(report));
        drop(reporter);
        let mut text = String::new();
        std::fs::File::from(from).read_to_string(&mut text).unwrap();
        assert_eq!(read(&text), reports);
        assert!(matches!(&read("status x")[0], Report::Failed(what) if what.contains("status x")));
    }
}
