//! Where the lead listens: a child reads lead.json, since the fleet's file system may hang.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use tidemill_sys::fd::Poll;
use tidemill_wire::worker::Worker;
use tidemill_wire::{log::cause, LeadAddress};

use super::read_fleet_file;
use crate::error::PilotError;
use crate::FILES;

/// The pilot's side. One child at most, also where the file system hangs.
pub struct AddressReader {
    path: PathBuf,
    worker: Option<Worker<Result<SocketAddr, String>>>,
    asked_us: Option<u64>,
}

impl AddressReader {
    pub fn new(path: PathBuf) -> Self {
        AddressReader {
            path,
            worker: None,
            asked_us: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Since when an answer is awaited.
    pub fn asked_us(&self) -> Option<u64> {
        self.asked_us
    }

    /// Let the file be read; `hear` gives the answer. Forks: call while single-threaded.
    pub fn ask(&mut self, now_us: u64) -> Result<(), PilotError> {
        if self.worker.is_none() {
            let path = self.path.clone();
            self.worker = Some(Worker::start(FILES, &[], |mut served| {
                served.answer_all(|(), _| read_address(&path).map_err(|error| cause(&error)));
            })?);
        }
        if let Some(worker) = &mut self.worker {
            worker.send(&(), &[])?;
            self.asked_us = Some(now_us);
        }
        Ok(())
    }

    /// The answer, once; never waits.
    pub fn hear(&mut self) -> Option<Result<SocketAddr, String>> {
        self.asked_us?;
        let answer = match self.worker.as_mut()?.hear() {
            Ok(answers) => answers.into_iter().last()?,
            Err(how) => {
                self.worker = None;
                Err(how)
            }
        };
        self.asked_us = None;
        Some(answer)
    }

    /// End the child, unless it is still at it.
    pub fn rest(&mut self) {
        if self.asked_us.is_none() {
            self.worker = None;
        }
    }

    /// Readable when there is an answer to `hear`.
    pub fn poll(&self) -> Option<Poll> {
        let worker = self.worker.as_ref();
        worker.filter(|_| self.asked_us.is_some()).map(Worker::poll)
    }
}

fn read_address(path: &Path) -> Result<SocketAddr, PilotError> {
    let format = |read: &LeadAddress| read.format;
    let address = read_fleet_file(path, "the lead's address", format)?;
    let wrong = |message: String| PilotError::Lead { message };
    let port = u16::try_from(address.port).map_err(|_| wrong(format!("its port is {}", address.port)))?;
    // leads write numbers; looking a name up would load libraries of the site into a static program
    let host: IpAddr = address
        .host
        .parse()
        .map_err(|_| wrong(format!("its host is `{}`, not a numeric address", address.host)))?;
    Ok(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_is_reached_by_numbers_and_no_name_is_looked_up() {
        let fleet = tempfile::tempdir().unwrap();
        let path = fleet.path().join("lead.json");
        let read = |host: &str| {
            let told = LeadAddress {
                format: tidemill_wire::FORMAT,
                incarnation: 1,
                host: host.to_owned(),
                port: 4000,
                pid: 1,
            };
            std::fs::write(&path, serde_json::to_vec(&told).unwrap()).unwrap();
            read_address(&path)
        };
        assert_eq!(read("10.1.2.3").unwrap().to_string(), "10.1.2.3:4000");
        assert_eq!(read("fe80::1").unwrap().to_string(), "[fe80::1]:4000");
        let error = read("localhost").unwrap_err();
        assert!(error.to_string().contains("not a numeric address"), "{error}");
    }
}
