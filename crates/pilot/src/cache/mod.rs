//! The cache of this node: XRootD's XCache, its files in the node's memory, for payloads of this pilot.
//!
//! A separate process (`server`) runs xrootd, restarts it, and cleans up after the pilot has ended; this module is the
//! pilot's view of it. The agent has written the configuration. Callers decide which jobs use the cache.

mod server;

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use tidemill_slot::ToSlot;
use tidemill_sys::fd::Poll;
use tidemill_sys::{own, process, spawn};
use tidemill_wire::log::cause;
use tidemill_wire::worker::Worker;
use tidemill_wire::NodeCacheDef;

use server::{Order, Told};

#[derive(Default)]
enum State {
    /// Not started: no job has read through it yet.
    #[default]
    None,
    Runs {
        child: Worker<Told>,
        memory_mb: u64,
    },
    /// It cannot run here.
    Over,
}

/// Changes that the pilot must act on or report.
#[derive(Debug, PartialEq)]
pub enum News {
    Runs(String),
    /// It has another port.
    Moved,
    /// It is started again.
    Died(String),
    Failed(String),
}

pub struct NodeCache {
    isolated: bool,
    state: State,
    address: String,
    why: String,
    /// Bytes fetched, and bytes sent to payloads.
    figures: Option<(u64, u64)>,
    /// Not in memory of its own: to be removed.
    directory: Option<PathBuf>,
}

impl NodeCache {
    /// `isolated`: slots get namespaces, and so does it.
    pub fn new(isolated: bool) -> Self {
        NodeCache {
            isolated,
            state: State::None,
            address: String::new(),
            why: String::new(),
            figures: None,
            directory: None,
        }
    }

    pub fn runs(&self) -> bool {
        matches!(self.state, State::Runs { .. })
    }

    /// It will not run any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    pub fn poll(&self) -> Option<Poll> {
        match &self.state {
            State::Runs { child, .. } => Some(child.poll()),
            _ => None,
        }
    }

    /// Where slots find it.
    pub fn message(&self) -> ToSlot {
        ToSlot::NodeCache {
            address: self.address.clone(),
            why: self.why.clone(),
        }
    }

    /// There is no room for it now.
    pub fn wait(&mut self, why: &str) {
        self.why = why.to_owned();
    }

    /// Start it. Its memory is held already.
    pub fn start(&mut self, def: &NodeCacheDef) -> Result<(), String> {
        let memory_mb = def.memory_mb;
        self.state = State::Over; // until it runs
        let started = order(def, self.isolated).and_then(|order| {
            let address = format!("127.0.0.1:{}", order.port);
            let child = Worker::start(server::NAME, &[], |pilot| server::serve(order, pilot));
            Ok((child.map_err(|error| cause(&error))?, address))
        });
        match started {
            Ok((child, address)) => {
                self.address = address;
                self.state = State::Runs { child, memory_mb };
                Ok(())
            }
            Err(why) => {
                self.state = State::None;
                Err(why)
            }
        }
    }

    /// The news since the last call; never blocks.
    pub fn hear(&mut self) -> Vec<News> {
        let State::Runs { child, .. } = &mut self.state else {
            return Vec::new();
        };
        match child.hear() {
            Ok(told) => told.into_iter().filter_map(|each| self.take(each)).collect(),
            Err(how) => vec![News::Failed(how)],
        }
    }

    fn take(&mut self, told: Told) -> Option<News> {
        match told {
            Told::Directory(directory) => self.directory = Some(directory),
            Told::Sums {
                origin_bytes,
                client_bytes,
            } => self.figures = Some((origin_bytes, client_bytes)),
            Told::Port(port) => {
                self.address = format!("127.0.0.1:{port}");
                return Some(News::Moved);
            }
            Told::Runs(place) => return Some(News::Runs(format!("{} in {place}", self.address))),
            Told::Died(why) => return Some(News::Died(why)),
            Told::Failed(why) => return Some(News::Failed(why)),
        }
        None
    }

    /// It cannot run here; memory that is free with it.
    pub fn refuse(&mut self, why: &str) -> u64 {
        self.address = String::new();
        self.why = why.to_owned();
        let memory_mb = match std::mem::replace(&mut self.state, State::Over) {
            State::Runs { child, memory_mb } => {
                drop(child); // its process ends, and xrootd with it
                memory_mb
            }
            _ => 0,
        };
        if let Some(directory) = self.directory.take() {
            own::remove(&directory);
        }
        memory_mb
    }

    pub fn figures(&mut self) -> Option<(u64, u64)> {
        self.hear(); // what else it says changes nothing any more
        self.figures.take()
    }

    /// End it; the child that still removes what it held.
    pub fn leave(&mut self) -> Option<i32> {
        self.state = State::Over;
        let directory = self.directory.take()?;
        own::remove_aside(&directory)
    }
}

/// What to start; or why that is not possible here.
fn order(def: &NodeCacheDef, isolated: bool) -> Result<Order, String> {
    if process::user_and_group().0 == 0 {
        return Err(String::from("xrootd does not run as root"));
    }
    let named = Path::new(&def.program);
    let found = if named.is_absolute() {
        spawn::first_program([named.to_owned()])
    } else {
        spawn::find_program(OsStr::new(&def.program), spawn::path_places())
    };
    let program = found.ok_or_else(|| {
        let place = if named.is_absolute() { "" } else { " on its PATH" };
        format!("`{}` is not there{place}", def.program)
    })?;
    Ok(Order {
        def: def.clone(),
        program,
        port: free_port()?,
        isolated,
    })
}

/// A port that is free at present.
fn free_port() -> Result<u16, String> {
    let bound = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    let address = bound.map_err(|error| format!("failed to find a free port: {error}"))?;
    Ok(address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_says_becomes_figures_and_news() {
        let mut cache = NodeCache::new(true);
        assert_eq!(cache.take(Told::Port(77)), Some(News::Moved));
        assert_eq!(
            cache.message(),
            ToSlot::NodeCache {
                address: "127.0.0.1:77".into(),
                why: String::new()
            }
        );
        let sums = Told::Sums {
            origin_bytes: 5,
            client_bytes: 7,
        };
        assert_eq!(cache.take(sums), None);
        assert_eq!(cache.figures(), Some((5, 7)));
        assert_eq!(cache.figures(), None, "they are noted once");
        assert_eq!(cache.refuse("it is over"), 0);
        assert!(cache.is_over());
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let def = NodeCacheDef {
            program: "/no/xrootd".into(),
            ..NodeCacheDef::default()
        };
        let why = order(&def, true).err().unwrap();
        assert!(why.contains("/no/xrootd") || why.contains("root"), "{why}");
    }
}
