//! Which files this node gets, from where, and what waits for them. Pure: takes messages and reports, returns steps.
//!
//! The pilot asks the lead for a file (`Seek`). The lead names a node that has it or is getting it, or permits a read
//! from the shared file system; the stage, a separate process, does the work. Without a lead, the node reads the shared
//! file system itself. If there is no room to hold a file, each slot reads it directly, as it does small inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tidemill_stage::{FailureKind, Order, Report};
use tidemill_wire::{Holds, IoArea, JobDef, PilotMessage, Seek, Source, StagedFile};

use crate::permits::usage::bytes_in;

/// Longest wait for a lead that is unreachable.
pub const ALONE_US: u64 = 30_000_000;
/// Reads from the shared file system before a file counts as unavailable.
const READS_MAX: u32 = 2;
/// Most sources tried in all.
const TRIES_MAX: u32 = 12;
/// Most messages that a failure reports.
const SAID_MAX: usize = 6;

/// What needs a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    Job(u64),
    /// The memory that the image may take in all, and whether squashfuse has failed here.
    Image {
        limit_mb: u64,
        by_files: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq)]
enum State {
    /// The lead has been asked.
    Asks {
        since_us: u64,
    },
    /// The stage is at it.
    #[default]
    Comes,
    Held(PathBuf),
    /// Slots read it themselves.
    Direct,
    /// It cannot be had.
    Failed,
}

#[derive(Debug, Default)]
struct Want {
    file: StagedFile,
    fast: bool,
    users: BTreeSet<User>,
    state: State,
    avoid: Vec<String>,
    said: Vec<String>,
    reads: u32,
    tries: u32,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Tell(PilotMessage),
    Order(Order),
    /// The file is held; how it came.
    Ready {
        sha256: String,
        users: Vec<User>,
        came: Came,
    },
    /// No room for it: users that can read it directly do so.
    Direct {
        sha256: String,
        users: Vec<User>,
        message: String,
    },
    Failed {
        sha256: String,
        users: Vec<User>,
        message: String,
    },
}

/// How a file came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Came {
    pub bytes: u64,
    pub ms: u64,
    pub shared_bytes: u64,
    pub from: Vec<String>,
}

/// All files that are needed here.
#[derive(Debug, Default)]
pub struct Stager {
    wants: BTreeMap<String, Want>,
    /// There is a source to ask: a lead, or peers files.
    asks: bool,
    /// The areas for which a `Seek` states the bytes to be read.
    areas: Vec<IoArea>,
    /// The stage has reported its address. No file is sought before that, because other nodes may be sent here at once.
    listens: bool,
    /// The address at which other nodes get files from this one.
    pub serves: Option<String>,
}

impl Stager {
    pub fn new(asks: bool, areas: &[IoArea]) -> Self {
        Stager {
            asks,
            areas: areas.to_vec(),
            ..Stager::default()
        }
    }

    /// A job or an image needs a file.
    pub fn want(&mut self, file: &StagedFile, fast: bool, user: User, now_us: u64) -> Vec<Step> {
        let sha256 = file.sha256.clone();
        if let Some(want) = self
            .wants
            .get_mut(&sha256)
            .filter(|want| want.state != State::Failed)
        {
            let is_new = want.users.insert(user.clone());
            let users = vec![user]; // the others know
            return match &want.state {
                State::Held(_) if !is_new => Vec::new(),
                State::Held(_) => vec![Step::Ready {
                    sha256,
                    users,
                    came: Came::default(),
                }],
                State::Direct => vec![Step::Direct {
                    sha256,
                    users,
                    message: String::new(),
                }],
                _ => Vec::new(),
            };
        }
        let want = Want {
            file: file.clone(),
            fast,
            users: BTreeSet::from([user]),
            ..Want::default()
        };
        self.wants.insert(sha256.clone(), want);
        self.seek(&sha256, now_us)
    }

    fn seek(&mut self, sha256: &str, now_us: u64) -> Vec<Step> {
        let Some(want) = self.wants.get_mut(sha256) else {
            return Vec::new();
        };
        want.state = State::Asks { since_us: now_us };
        if !self.listens {
            return Vec::new();
        }
        if !self.asks {
            return self.fetch(sha256, Vec::new());
        }
        vec![Step::Tell(PilotMessage::Seek(Seek {
            sha256: sha256.to_owned(),
            bytes: want.file.bytes,
            areas: bytes_in(&want.file, &self.areas),
            avoid: want.avoid.clone(),
            serves: self.serves.clone(),
        }))]
    }

    fn fetch(&mut self, sha256: &str, peers: Vec<String>) -> Vec<Step> {
        let Some(want) = self.wants.get_mut(sha256) else {
            return Vec::new();
        };
        want.state = State::Comes;
        want.tries += 1;
        want.reads += u32::from(peers.is_empty());
        vec![Step::Order(Order::Fetch {
            file: want.file.clone(),
            peers,
            fast: want.fast,
        })]
    }

    /// The lead's answer.
    pub fn told(&mut self, source: Source) -> Vec<Step> {
        match self.wants.get(&source.sha256).map(|want| &want.state) {
            Some(State::Asks { .. }) if self.listens => self.fetch(&source.sha256, source.peers),
            _ => Vec::new(), // of an earlier connection or stage
        }
    }

    /// A new connection to the lead, which knows nothing of us: say what we have and what we seek.
    pub fn connected(&mut self, now_us: u64) -> Vec<Step> {
        if !self.listens {
            return Vec::new();
        }
        let state = |want: &Want| want.state.clone();
        let known: Vec<(String, State)> = self
            .wants
            .iter()
            .map(|(sha, want)| (sha.clone(), state(want)))
            .collect();
        let say = |(sha256, state): (String, State)| match state {
            State::Held(_) => vec![self.holds(&sha256)],
            State::Asks { .. } => self.seek(&sha256, now_us),
            _ => Vec::new(),
        };
        known.into_iter().flat_map(say).collect()
    }

    /// Time has passed; `up`: whom we ask is there.
    pub fn tick(&mut self, up: bool, now_us: u64) -> Vec<Step> {
        let late =
            |want: &Want| matches!(want.state, State::Asks { since_us } if now_us >= since_us + ALONE_US);
        let alone = self.listens && !up;
        let wants = self.wants.iter().filter(|(_, want)| alone && late(want));
        let alone: Vec<String> = wants.map(|(sha256, _)| sha256.clone()).collect();
        alone
            .iter()
            .flat_map(|sha256| self.fetch(sha256, Vec::new()))
            .collect()
    }

    /// What the stage reports.
    pub fn heard(&mut self, report: Report, now_us: u64) -> Vec<Step> {
        match report {
            Report::Listens { address, .. } => {
                (self.serves, self.listens) = (address, true);
                let mut steps = self.adopt();
                steps.extend(self.connected(now_us));
                steps
            }
            Report::Held {
                sha256,
                path,
                bytes,
                ms,
                shared_bytes,
                from,
            } => {
                let came = Came {
                    bytes,
                    ms,
                    shared_bytes,
                    from,
                };
                let holds = self.holds(&sha256);
                let Some(want) = self.wants.get_mut(&sha256).filter(|want| !want.users.is_empty()) else {
                    return self.let_go(&sha256);
                };
                let before = std::mem::replace(&mut want.state, State::Held(PathBuf::from(path)));
                if matches!(before, State::Held(_)) {
                    return Vec::new(); // a new stage has found it as it was
                }
                vec![holds, ready(want, came)]
            }
            Report::Failed {
                sha256,
                kind,
                message,
                avoid,
            } => self.failed(&sha256, kind, (message, avoid), now_us),
        }
    }

    /// Drop a file that has come and is not needed.
    fn let_go(&mut self, sha256: &str) -> Vec<Step> {
        match self.wants.remove(sha256) {
            Some(_) => vec![not_held(sha256), drop_order(sha256)],
            None => vec![drop_order(sha256)],
        }
    }

    /// There is room now for a file that found none.
    pub fn again(&mut self, sha256: &str, now_us: u64) -> Vec<Step> {
        let Some(want) = self.wants.get_mut(sha256).filter(|want| !want.users.is_empty()) else {
            return self.let_go(sha256);
        };
        (want.reads, want.tries) = (0, 0);
        self.seek(sha256, now_us)
    }

    fn failed(
        &mut self,
        sha256: &str,
        kind: FailureKind,
        (message, avoid): (String, Vec<String>),
        now_us: u64,
    ) -> Vec<Step> {
        let Some(want) = self.wants.get_mut(sha256) else {
            return Vec::new();
        };
        if matches!(want.state, State::Held(_)) {
            (want.reads, want.tries) = (0, 0); // it was here, and has to come again
        }
        want.avoid.extend(avoid);
        want.avoid.sort();
        want.avoid.dedup();
        if want.said.len() < SAID_MAX {
            want.said.push(message);
        }
        if kind == FailureKind::Full {
            want.state = State::Direct;
            let message = want.said.join("; ");
            return vec![not_held(sha256), direct(want, &message)];
        }
        if want.reads >= READS_MAX || want.tries >= TRIES_MAX {
            want.state = State::Failed;
            let failed = Step::Failed {
                sha256: sha256.to_owned(),
                users: want.users.iter().cloned().collect(),
                message: want.said.join("; "),
            };
            return vec![not_held(sha256), drop_order(sha256), failed];
        }
        self.seek(sha256, now_us)
    }

    /// The stage is gone, and another one follows. Until then no node is sent here, held files stay where they are, and
    /// the rest is sought again.
    pub fn lost_stage(&mut self, now_us: u64) -> Vec<Step> {
        (self.serves, self.listens) = (None, false);
        let mut steps = Vec::new();
        for (sha256, want) in &mut self.wants {
            match want.state {
                State::Asks { .. } | State::Comes => want.state = State::Asks { since_us: now_us },
                State::Held(_) => {}
                State::Direct | State::Failed => continue,
            }
            steps.push(not_held(sha256));
        }
        steps
    }

    /// Orders for a new stage to adopt what an earlier one has left here.
    fn adopt(&self) -> Vec<Step> {
        let held = self
            .wants
            .iter()
            .filter(|(_, want)| matches!(want.state, State::Held(_)));
        held.map(|(sha256, want)| {
            Step::Order(Order::Adopt {
                sha256: sha256.clone(),
                bytes: want.file.bytes,
                fast: want.fast,
            })
        })
        .collect()
    }

    /// Whether this file is whole here, as far as we know.
    pub fn is_held(&self, sha256: &str) -> bool {
        let want = self.wants.get(sha256);
        want.is_some_and(|want| matches!(want.state, State::Held(_)))
    }

    /// There is no stage any more: what it was at is read directly.
    pub fn without_stage(&mut self, cause: &str) -> Vec<Step> {
        let mut steps = Vec::new();
        for (sha256, want) in &mut self.wants {
            if matches!(want.state, State::Asks { .. } | State::Comes) {
                want.state = State::Direct;
                steps.extend([not_held(sha256), direct(want, cause)]);
            }
        }
        steps
    }

    /// Remove the users for which `gone` holds, and drop the files that only they needed.
    pub fn release(&mut self, gone: &dyn Fn(&str, &User) -> bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for (sha256, want) in &mut self.wants {
            want.users.retain(|user| !gone(sha256, user));
            if want.users.is_empty() && matches!(want.state, State::Held(_)) {
                steps.extend([not_held(sha256), drop_order(sha256)]);
            }
        }
        let unused =
            |want: &Want| want.users.is_empty() && !matches!(want.state, State::Comes | State::Asks { .. });
        self.wants.retain(|_, want| !unused(want));
        steps
    }

    /// Whether the file is here, or will not come.
    pub fn is_settled(&self, sha256: &str) -> bool {
        let want = self.wants.get(sha256);
        want.is_some_and(|want| matches!(want.state, State::Held(_) | State::Direct))
    }

    /// Jobs whose work cannot begin yet.
    pub fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        let on_its_way = |want: &&Want| matches!(want.state, State::Asks { .. } | State::Comes);
        let users = self
            .wants
            .values()
            .filter(on_its_way)
            .flat_map(|want| &want.users);
        users.filter_map(|user| match user {
            User::Job(job) => Some(*job),
            User::Image { .. } => None,
        })
    }

    /// A job with the paths of what is held here in place of those on the shared file system.
    pub fn with_held(&self, mut job: JobDef) -> JobDef {
        for input in job.inputs.iter_mut().filter(|input| input.kind == "shared") {
            let want = input.sha256.as_ref().and_then(|sha256| self.wants.get(sha256));
            if let Some(State::Held(path)) = want.map(|want| &want.state) {
                input.path = Some(path.display().to_string());
            }
        }
        job
    }

    fn holds(&self, sha256: &str) -> Step {
        Step::Tell(PilotMessage::Holds(Holds {
            sha256: sha256.to_owned(),
            held: true,
            serves: self.serves.clone(),
        }))
    }

    /// When `tick` is due.
    pub fn due_us(&self) -> Option<u64> {
        let asks = |want: &Want| match want.state {
            State::Asks { since_us } => Some(since_us + ALONE_US),
            _ => None,
        };
        self.wants.values().filter_map(asks).min()
    }
}

fn not_held(sha256: &str) -> Step {
    Step::Tell(PilotMessage::Holds(Holds {
        sha256: sha256.to_owned(),
        held: false,
        serves: None,
    }))
}

fn drop_order(sha256: &str) -> Step {
    Step::Order(Order::Drop {
        sha256: sha256.to_owned(),
    })
}

fn ready(want: &Want, came: Came) -> Step {
    Step::Ready {
        sha256: want.file.sha256.clone(),
        users: want.users.iter().cloned().collect(),
        came,
    }
}

fn direct(want: &Want, message: &str) -> Step {
    Step::Direct {
        sha256: want.file.sha256.clone(),
        users: want.users.iter().cloned().collect(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
#[path = "stager_tests.rs"]
mod tests;
