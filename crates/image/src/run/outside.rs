//! The process that was started: starts a process inside, forwards signals and reports how it ended.

use std::os::fd::{AsFd, OwnedFd};

use tidemill_sys::fd::{self, Poll, READABLE};
use tidemill_sys::process::{self, Exit, Fork, Namespaces, Waited};
use tidemill_sys::{own, security, signal, SysError};

use super::alias::Alias;
use super::offspring::{self, watched_signals};
use super::options::Mode;
use super::report::{self, Report, Reporter};
use super::{inside, relocated, say, Order, SITE_ERROR};
use crate::ImageError;

/// What the process inside is born with, besides the order.
pub(super) struct Birth {
    pub reporter: Reporter,
    /// hangs up when we have ended
    pub life: OwnedFd,
    pub signals: OwnedFd,
    /// user and group; they stay the same
    pub identity: (u32, u32),
    pub user_namespace: bool,
}

/// What came of one try.
enum Tried {
    /// what the process inside reported, and how it ended
    Over(Vec<Report>, Exit),
    /// no namespaces
    Refused(String),
}

/// Runs the command; returns the exit code, or ends as the command did.
pub(super) fn run(order: Order) -> Result<i32, ImageError> {
    let refused = if order.mode == Mode::Relocate {
        "asked for".to_owned()
    } else {
        match in_namespaces(&order)? {
            Tried::Over(reports, exit) => return Ok(conclude(&reports, exit)),
            Tried::Refused(why) if order.mode != Mode::Auto => {
                return Err(ImageError::Fuse(format!(
                    "no namespaces: {why}; `--mode relocate` does without"
                )));
            }
            Tried::Refused(why) => format!("no namespaces: {why}"),
        }
    };
    relocate(&order, &refused)
}

fn in_namespaces(order: &Order) -> Result<Tried, ImageError> {
    let alias = match Alias::take() {
        Ok(alias) => alias,
        Err(error) => return Ok(Tried::Refused(error.chain())),
    };
    let root = process::user_and_group().0 == 0;
    let mut result = Ok(Tried::Refused("none were tried".into()));
    // user 0 may have the right to mount; users always need a user namespace
    for user_namespace in [false, true] {
        if !user_namespace && !root {
            continue;
        }
        let namespaces = Namespaces {
            user: user_namespace,
            mount: true,
            pid: true,
            ..Namespaces::NONE
        };
        result = try_once(namespaces, |birth| inside::run(order, &birth, &alias));
        if !matches!(result, Ok(Tried::Refused(_))) {
            break;
        }
    }
    alias.give_back();
    result
}

fn relocate(order: &Order, why: &str) -> Result<i32, ImageError> {
    say(&format!(
        "relocated ({why}): the image is unpacked elsewhere, and paths in command and environment are rewritten"
    ));
    let place = super::temporary()?;
    // if the process inside is killed, this one inherits its children
    security::become_subreaper()?;
    let before = offspring::children();
    let result = try_once(Namespaces::NONE, |birth| {
        relocated::run(order, &birth, place.path());
    });
    offspring::end_all(&before);
    own::remove(place.path()); // what stays is removed by a later start
    match result? {
        Tried::Over(reports, exit) => Ok(conclude(&reports, exit)),
        Tried::Refused(why) => Err(ImageError::Fuse(why)),
    }
}

/// Forks the process inside and stays with it until its end.
fn try_once(namespaces: Namespaces, be_inside: impl FnOnce(Birth)) -> Result<Tried, ImageError> {
    let (reports, pipe) = fd::pipe()?;
    let (life, our_life) = fd::pipe()?;
    let identity = process::user_and_group();
    let signals = watched_signals()?;
    let child = match process::fork(namespaces) {
        Ok(Fork::Parent { child }) => child,
        Ok(Fork::Child) => {
            drop((reports, our_life, signals));
            // a descriptor of signals shows those of the process that made it
            let Ok(signals) = watched_signals() else {
                process::exit_now(SITE_ERROR)
            };
            be_inside(Birth {
                reporter: Reporter { pipe },
                life,
                signals,
                identity,
                user_namespace: namespaces.user,
            });
            process::exit_now(0)
        }
        Err(error) => {
            signal::block_only(&[])?;
            return Ok(Tried::Refused(tidemill_wire::log::cause(&error)));
        }
    };
    drop((pipe, life));
    let (text, exit) = stay(child, &reports, &signals)?;
    drop(our_life);
    signal::block_only(&[])?;
    let reports = report::read(&text);
    match reports.first() {
        Some(Report::Refused(why)) => Ok(Tried::Refused(why.clone())),
        _ => Ok(Tried::Over(reports, exit)),
    }
}

/// Collects reports and passes signals on until the child has ended.
fn stay(child: i32, reports: &OwnedFd, signals: &OwnedFd) -> Result<(String, Exit), SysError> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    fd::set_nonblocking(reports.as_fd(), true)?;
    let exit = loop {
        let mut polls = [
            Poll::new(signals.as_fd(), READABLE),
            Poll::new(reports.as_fd(), READABLE),
        ];
        fd::poll(&mut polls, None)?;
        while let Some((number, from_process)) = signal::take_with_origin(signals.as_fd()) {
            if number != signal::CHILD && from_process {
                let _ = signal::kill(child, number); // it may have ended just now
            }
        }
        while let Ok(got @ 1..) = fd::read(reports.as_fd(), &mut buffer) {
            bytes.extend_from_slice(&buffer[..got]);
        }
        if let Waited::Ended { exit, .. } = process::wait(child, false)? {
            break exit;
        }
        if polls[1].readable() && bytes.is_empty() {
            fd::poll(&mut [], Some(1000))?; // it closed the pipe and is about to end
        }
    };
    while let Ok(got @ 1..) = fd::read(reports.as_fd(), &mut buffer) {
        bytes.extend_from_slice(&buffer[..got]);
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), exit))
}

/// Says what is to be said and finds the exit code; a command that died of a signal takes us with it, so this is the last
/// thing to do.
fn conclude(reports: &[Report], exit: Exit) -> i32 {
    let mut ended = None;
    let (mut failed, mut unstarted) = (false, None);
    for report in reports {
        match report {
            Report::Refused(what) | Report::Note(what) => say(what),
            Report::Failed(what) => {
                say(&format!("failed (class `image`): {what}"));
                failed = true;
            }
            Report::NotStarted(status, what) => {
                say(what);
                unstarted = Some(*status);
            }
            Report::Ended(exit) => ended = Some(*exit),
        }
    }
    match (failed, unstarted, ended) {
        (true, ..) => SITE_ERROR,
        (_, Some(status), _) => status,
        (_, _, Some(Exit::Status(status))) => status,
        (_, _, Some(Exit::Signal(number))) => {
            // as it did, so that shells and batch systems see it
            let _ = process::forbid_core_dumps();
            let _ = signal::reset_all();
            let _ = signal::kill(process::id(), number);
            128 + number
        }
        _ => {
            say(&format!(
                "failed (class `image`): the process that watched over the command ended with {exit}"
            ));
            SITE_ERROR
        }
    }
}
