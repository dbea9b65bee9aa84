//! `tidemill-node stage`: a node's store of files in memory, and its exchange of them with other nodes.
//!
//! A child of the pilot: it has threads, the pilot has none. Orders come as frames of JSON on descriptor 0, a socket whose
//! end is the end of this process. Each file is read from the shared file system by one node and handed on block by
//! block while it comes, so that a tree of nodes gets it in little more time than the first.

mod control;
mod digest;
mod entry;
mod error;
mod fetch;
mod give;
#[cfg(test)]
mod hostile;
mod peer;
mod shared;
mod store;
mod take;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use tidemill_sys::{process, security, signal};
use tidemill_wire::log::{cause, Log};
use tidemill_wire::worker::Served;

pub use control::{FailureKind, Order, Report};
pub use entry::BLOCK_BYTES;
use error::StageError;

const LOG: Log = Log::new("stage");

/// What `--help` says.
pub const USAGE: &str = "\
Usage: tidemill-node stage

Started by a pilot: holds files in the node's memory and exchanges them with other nodes.
Takes orders as frames of JSON on descriptor 0, a socket, and ends with it.
";

/// This process.
pub(crate) struct Node {
    pub name: String,
    pub secret: String,
    pub store: store::Store,
    pub fetches: fetch::Fetches,
    pub pilot: control::Pilot,
}

/// Serve the pilot at descriptor 0 until it closes it; the exit code. Call while single-threaded.
pub fn run(mut args: impl Iterator<Item = OsString>) -> i32 {
    let result = match args.next() {
        None => stage(),
        Some(help) if help == "--help" || help == "-h" => {
            let _ = std::io::stdout().write_all(USAGE.as_bytes()); // a closed pipe is the reader's choice
            Ok(())
        }
        Some(other) => Err(StageError::Usage(format!(
            "unexpected argument `{}`",
            other.to_string_lossy()
        ))),
    };
    match result {
        Ok(()) => 0,
        Err(StageError::Usage(text)) => {
            tidemill_wire::log::plain(&format!(
                "tidemill-node stage: {text}\nhint: tidemill-node stage --help\n"
            ));
            2
        }
        Err(error) => {
            LOG.error("stage.failed", &[("cause", &cause(&error))]);
            3
        }
    }
}

fn stage() -> Result<(), StageError> {
    signal::shrug_off(&signal::SENT_TO_ALL)?;
    security::set_dumpable(false)?; // it knows the fleet's secret
    process::raise_open_files()?;
    let socket = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from)
        .map_err(|error| StageError::Control {
            message: error.to_string(),
        })?;
    serve(socket)
}

/// Obey the orders that come through this socket until its end.
pub(crate) fn serve(socket: UnixStream) -> Result<(), StageError> {
    let wrong = |message: String| StageError::Control { message };
    let answers = socket.try_clone().map_err(|error| wrong(error.to_string()))?;
    let mut pilot = Served::new(socket);
    let mut next = || pilot.request().map_err(|error| wrong(cause(&error)));
    let Some((first, _)) = next()? else {
        return Ok(());
    };
    let Order::Start {
        secret,
        name,
        directory,
        bytes_max,
        fast,
        host,
    } = first
    else {
        return Err(wrong(String::from("its first order was not `start`")));
    };
    let node = Arc::new(Node {
        name,
        secret,
        store: store::Store::new(Path::new(&directory), bytes_max, fast.as_deref().map(Path::new)),
        fetches: fetch::Fetches::default(),
        pilot: control::Pilot::new(answers),
    });
    node.pilot.tell(&listen(&node, host.as_deref()));
    while let Some((order, _)) = next()? {
        match order {
            Order::Fetch { file, peers, fast } => fetch::start(&node, (file, fast), peers),
            Order::Adopt { sha256, bytes, fast } => fetch::adopt(&node, sha256, bytes, fast),
            Order::Drop { sha256 } => node.store.remove(&sha256),
            Order::Start { .. } => return Err(wrong(String::from("it said `start` twice"))),
        }
    }
    node.store.clear();
    Ok(())
}

/// Serve other nodes at this address, on any port.
fn listen(node: &Arc<Node>, host: Option<&str>) -> Report {
    let Some(host) = host else {
        return Report::Listens {
            address: None,
            message: String::from("nodes do not serve each other here"),
        };
    };
    let listener = host
        .parse::<IpAddr>()
        .map_err(|error| error.to_string())
        .and_then(|ip| TcpListener::bind((ip, 0)).map_err(|error| error.to_string()));
    let bound = listener.and_then(|listener| {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        Ok((listener, address.to_string()))
    });
    match bound {
        Ok((listener, address)) => {
            let node = Arc::clone(node);
            let thread = std::thread::Builder::new().spawn(move || give::serve(&node, &listener));
            match thread {
                Ok(_) => Report::Listens {
                    address: Some(address),
                    message: String::new(),
                },
                Err(error) => Report::Listens {
                    address: None,
                    message: format!("failed to start a thread for other nodes: {error}"),
                },
            }
        }
        Err(cause) => Report::Listens {
            address: None,
            message: format!("failed to listen on `{host}`: {cause}"),
        },
    }
}
