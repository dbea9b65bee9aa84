//! `setup` lines of applications: work waits here until their environment is known, then continues with it.
//!
//! `STORE/KEY.NODETYPE.json` holds what the lines change. The first pilot that does not find it runs the lines in a
//! child (`child`), the only place where a shell starts; other pilots wait for its result. A failed set-up is retried a
//! few times, because the shared file system that it reads may have failed for a moment. Does not know slots or
//! records.

pub mod child;
mod nodetype;
mod stored;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidemill_sys::process::Waited;
use tidemill_wire::{Grant, SetupDef, Withdrawn, Work};

pub use child::run;
pub use nodetype::node_type;
use stored::{Claim, Stored};

use crate::time::{pause_after, seconds_us};
use crate::work::pieces_without;

/// How often a child's end, or another pilot's result, is checked.
const LOOK_US: u64 = 50_000;
const LOOK_OTHERS_US: u64 = 1_000_000;
/// Shortest time before a set-up that has failed too often is retried: other pilots may succeed in the meantime.
const TRY_AGAIN_US: u64 = 30_000_000;
/// Another pilot's claim counts for the time limit of the lines plus this margin.
const CLAIM_MARGIN_S: f64 = 15.0;

type Variables = BTreeMap<String, String>;

enum State {
    /// our child runs the lines
    Running {
        child: Child,
        claim: Option<Claim>,
        end_us: u64,
    },
    /// another pilot runs them
    Awaited {
        until_us: u64,
        look_us: u64,
    },
    /// it failed, and is tried again then
    Rests {
        until_us: u64,
    },
    Ready(Variables),
    /// too often; what waited fails, what comes later goes back until it is tried once more
    Failed {
        why: String,
        since_us: u64,
    },
}

impl State {
    /// Whether work waits for what comes next.
    fn is_open(&self) -> bool {
        !matches!(self, State::Ready(_) | State::Failed { .. })
    }
}

struct Known {
    def: SetupDef,
    state: State,
    failures: usize,
}

/// What there is to record of a set-up that is known now.
#[derive(Debug)]
pub struct News {
    pub key: String,
    /// `run`, `stored`, or `failed`; a message of the last says whether it is tried again
    pub mode: &'static str,
    pub message: String,
    pub variables: u64,
}

/// The pilot's set-ups, and the work that waits for them.
#[derive(Default)]
pub struct Setups {
    node_type: Option<String>,
    by_key: HashMap<String, Known>,
    /// program -> key, job -> program; of programs with set-up only
    programs: HashMap<u64, String>,
    jobs: HashMap<u64, u64>,
    /// with its definitions, until their set-up is ready
    waiting: Vec<Work>,
}

/// The outcome of checking work for its set-up.
#[derive(Default)]
pub struct Admitted {
    pub work: Option<Work>,
    /// work that waited for what failed, and why
    pub failed: Vec<(Grant, String)>,
    /// work whose set-up failed before it came, and is not tried again yet
    pub returned: Vec<Grant>,
    pub news: Vec<News>,
}

impl Setups {
    /// Whether work waits for a set-up.
    pub fn is_pending(&self) -> bool {
        self.waiting.iter().any(|work| !work.grants.is_empty())
    }

    /// When to look again.
    pub fn due_us(&self, now_us: u64) -> Option<u64> {
        self.is_pending().then_some(now_us + LOOK_US)
    }

    /// Grants that wait here.
    pub fn held(&self) -> Vec<Grant> {
        self.waiting.iter().flat_map(|work| work.grants.clone()).collect()
    }

    /// Let go of waiting work; its grants.
    pub fn drop_waiting(&mut self) -> Vec<Grant> {
        let held = self.held();
        for work in &mut self.waiting {
            work.grants.clear();
        }
        held
    }

    /// Drop waiting work of these jobs; their definitions stay.
    pub fn cancel(&mut self, jobs: &[u64]) {
        for work in &mut self.waiting {
            work.grants.retain(|grant| !jobs.contains(&grant.job));
        }
    }

    /// Drop events that were withdrawn.
    pub fn withdraw(&mut self, parts: &[Withdrawn]) {
        for part in parts {
            for work in &mut self.waiting {
                let grants = std::mem::take(&mut work.grants).into_iter();
                work.grants = grants.flat_map(|grant| pieces_without(&grant, part)).collect();
            }
        }
    }

    /// Take new work: pieces that need no set-up, or a known one, continue at once.
    pub fn take(&mut self, work: Work, now_us: u64) -> Admitted {
        let mut admitted = Admitted::default();
        for program in &work.programs {
            match &program.setup {
                Some(def) => {
                    self.programs.insert(program.program, def.key.clone());
                    if !self.by_key.contains_key(&def.key) {
                        let state = self.begin(def, now_us, &mut admitted.news);
                        let mut failures = 0;
                        let state = settle((def, state), (&mut failures, now_us), &mut admitted.news);
                        let known = Known {
                            def: def.clone(),
                            state,
                            failures,
                        };
                        self.by_key.insert(def.key.clone(), known);
                    }
                }
                None => drop(self.programs.remove(&program.program)),
            }
        }
        for job in &work.jobs {
            if self.programs.contains_key(&job.program) {
                self.jobs.insert(job.job, job.program);
            } else {
                self.jobs.remove(&job.job);
            }
        }
        self.try_again(&work, now_us, &mut admitted.news);
        self.waiting.push(work);
        self.release(&mut admitted, now_us);
        admitted
    }

    /// Work has come for a set-up that failed a while ago.
    fn try_again(&mut self, work: &Work, now_us: u64, news: &mut Vec<News>) {
        let programs = work.grants.iter().filter_map(|grant| self.jobs.get(&grant.job));
        let keys: BTreeSet<String> = programs
            .filter_map(|program| self.programs.get(program).cloned())
            .collect();
        for key in keys {
            let Some(mut known) = self.by_key.remove(&key) else {
                continue;
            };
            if matches!(known.state, State::Failed { since_us, .. } if now_us >= since_us + TRY_AGAIN_US) {
                let state = self.begin(&known.def, now_us, news);
                known.state = settle((&known.def, state), (&mut known.failures, now_us), news);
            }
            self.by_key.insert(key, known);
        }
    }

    /// What has become known since.
    pub fn look(&mut self, now_us: u64) -> Admitted {
        let mut admitted = Admitted::default();
        if !self.is_pending() {
            return admitted;
        }
        let keys: Vec<String> = self.by_key.keys().cloned().collect();
        for key in keys {
            if let Some(mut known) = self.by_key.remove(&key) {
                if known.state.is_open() {
                    let state = self.advance(&known.def, known.state, now_us, &mut admitted.news);
                    let told = (&mut known.failures, now_us);
                    known.state = settle((&known.def, state), told, &mut admitted.news);
                }
                self.by_key.insert(key, known);
            }
        }
        self.release(&mut admitted, now_us);
        admitted
    }

    fn begin(&mut self, def: &SetupDef, now_us: u64, news: &mut Vec<News>) -> State {
        let path = self.path(def);
        if let Some(known) = stored::read(&path) {
            news.push(told(def, "stored", &path, known.len()));
            return State::Ready(known);
        }
        match Claim::take(&path) {
            // the directory is not writable: each pilot runs the lines itself
            Err(_) => self.start(def, None, now_us),
            Ok(Some(claim)) => self.start(def, Some(claim), now_us),
            Ok(None) => State::Awaited {
                until_us: now_us + seconds_us(def.timeout_s + CLAIM_MARGIN_S),
                look_us: now_us + LOOK_OTHERS_US,
            },
        }
    }

    fn path(&mut self, def: &SetupDef) -> PathBuf {
        let kind = self.node_type.get_or_insert_with(node_type);
        Path::new(&def.store).join(format!("{}.{kind}.json", def.key))
    }

    fn start(&mut self, def: &SetupDef, claim: Option<Claim>, now_us: u64) -> State {
        let text = match serde_json::to_vec(def) {
            Ok(text) => text,
            Err(error) => return failed(format!("set-up `{}`: {error}", def.key)),
        };
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("setup")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let started = command.spawn().and_then(|mut child| {
            use std::io::Write;
            // less than a pipe holds (100 lines of 4 KiB would not be): the child reads at once
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(&text)?;
            }
            Ok(child)
        });
        match started {
            Ok(child) => State::Running {
                child,
                claim,
                end_us: now_us + seconds_us(def.timeout_s + CLAIM_MARGIN_S / 2.0),
            },
            Err(error) => failed(format!("failed to start the set-up's shell: {error}")),
        }
    }

    fn advance(&mut self, def: &SetupDef, state: State, now_us: u64, news: &mut Vec<News>) -> State {
        match state {
            State::Running {
                mut child,
                claim,
                end_us,
            } => match child.try_wait() {
                Ok(None) if now_us < end_us => State::Running { child, claim, end_us },
                Ok(None) => {
                    end(&mut child);
                    failed(format!("the set-up did not end within {} s", def.timeout_s))
                }
                Ok(Some(_)) => self.finish(def, &mut child, news),
                Err(error) => failed(format!("failed to wait for the set-up: {error}")),
            },
            State::Rests { until_us } if now_us >= until_us => self.begin(def, now_us, news),
            State::Awaited { until_us, look_us } if now_us >= look_us => {
                let path = self.path(def);
                if let Some(known) = stored::read(&path) {
                    news.push(told(def, "stored", &path, known.len()));
                    return State::Ready(known);
                }
                match Claim::take(&path) {
                    // its owner failed, and has let go: perhaps that was its node
                    Ok(Some(claim)) => self.start(def, Some(claim), now_us),
                    _ if now_us >= until_us => self.start(def, None, now_us),
                    _ => State::Awaited {
                        until_us,
                        look_us: now_us + LOOK_OTHERS_US,
                    },
                }
            }
            other => other,
        }
    }

    /// The child has ended: what it printed is the environment or what went wrong.
    fn finish(&mut self, def: &SetupDef, child: &mut Child, news: &mut Vec<News>) -> State {
        let mut text = Vec::new();
        let read = child.stdout.take().map(|mut out| out.read_to_end(&mut text));
        let answer: Result<Stored, String> = match (read, serde_json::from_slice(&text)) {
            (
                Some(Ok(_)),
                Ok(child::Answer {
                    stored: Some(found), ..
                }),
            ) => Ok(found),
            (
                _,
                Ok(child::Answer {
                    error: Some(error), ..
                }),
            ) => Err(error),
            _ => Err("the set-up's shell ended without an answer".to_owned()),
        };
        match answer {
            Ok(found) => {
                let path = self.path(def);
                // without the file the next start runs the lines again, which is all that is lost
                let kept = stored::write(&path, &found);
                let mut one = told(def, "run", &path, found.variables.len());
                if let Err(error) = kept {
                    one.message = format!("not stored in `{}`: {error}", path.display());
                }
                news.push(one);
                State::Ready(found.variables)
            }
            Err(message) => failed(message),
        }
    }

    /// Move on what no longer waits.
    fn release(&mut self, admitted: &mut Admitted, now_us: u64) {
        let mut ready = Work::default();
        for mut work in std::mem::take(&mut self.waiting) {
            for program in &mut work.programs {
                if let Some(State::Ready(variables)) = self.state_of(program.program) {
                    let mut env = variables.clone();
                    env.append(&mut program.env); // what the application says itself counts
                    program.env = env;
                    program.setup = None;
                }
            }
            let (mut later, mut now) = (Vec::new(), Vec::new());
            for grant in work.grants {
                let state = self
                    .jobs
                    .get(&grant.job)
                    .and_then(|program| self.state_of(*program));
                match state {
                    Some(State::Failed { why, since_us }) if *since_us == now_us => {
                        admitted.failed.push((grant, why.clone()));
                    }
                    Some(State::Failed { .. }) => admitted.returned.push(grant),
                    Some(state) if state.is_open() => later.push(grant),
                    _ => now.push(grant),
                }
            }
            let waits = |program: u64| {
                let state = self.state_of(program);
                state.is_some_and(|state| !matches!(state, State::Ready(_)))
            };
            let (wait, go): (Vec<_>, Vec<_>) =
                work.programs.into_iter().partition(|each| waits(each.program));
            let (jobs_wait, jobs_go): (Vec<_>, Vec<_>) =
                work.jobs.into_iter().partition(|job| waits(job.program));
            ready.programs.extend(go);
            ready.jobs.extend(jobs_go);
            ready.grants.extend(now);
            if !(later.is_empty() && wait.is_empty() && jobs_wait.is_empty()) {
                self.waiting.push(Work {
                    programs: wait,
                    jobs: jobs_wait,
                    grants: later,
                });
            }
        }
        if !(ready.programs.is_empty() && ready.jobs.is_empty() && ready.grants.is_empty()) {
            admitted.work = Some(ready);
        }
    }

    fn state_of(&self, program: u64) -> Option<&State> {
        let key = self.programs.get(&program)?;
        self.by_key.get(key).map(|known| &known.state)
    }
}

impl Drop for Setups {
    fn drop(&mut self) {
        for known in self.by_key.values_mut() {
            if let State::Running { child, .. } = &mut known.state {
                end(child);
            }
        }
    }
}

/// End a child with its shell and its files: it sees that its stdout is closed.
fn end(child: &mut Child) {
    drop(child.stdout.take());
    let pid = child.id() as i32;
    if matches!(tidemill_sys::child::wait_a_moment(pid), Ok(Waited::Running)) {
        tidemill_sys::child::end(pid);
    }
}

/// The state after one failed try; `settle` decides what follows.
fn failed(why: String) -> State {
    State::Failed { why, since_us: 0 }
}

fn told(def: &SetupDef, mode: &'static str, path: &Path, variables: usize) -> News {
    News {
        key: def.key.clone(),
        mode,
        message: path.display().to_string(),
        variables: variables as u64,
    }
}

/// Report a failed try; a pause follows or, after too many tries, `State::Failed`.
fn settle(
    (def, state): (&SetupDef, State),
    (failures, now_us): (&mut usize, u64),
    news: &mut Vec<News>,
) -> State {
    let State::Failed { why, .. } = state else {
        return state;
    };
    *failures += 1;
    // the pause is at most as long as the lines themselves may take
    let (pause_us, next) = pause_after(*failures, seconds_us(def.timeout_s));
    let message = format!("{why} ({next})");
    news.push(News {
        key: def.key.clone(),
        mode: "failed",
        message: message.clone(),
        variables: 0,
    });
    match pause_us {
        Some(pause_us) => State::Rests {
            until_us: now_us + pause_us,
        },
        None => State::Failed {
            why: message,
            since_us: now_us,
        },
    }
}

#[cfg(test)]
mod tests;
