//! Reads the manifest; chooses and publishes the lead's address.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use tidemill_sys::file;
use tidemill_wire::{LeadAddress, Manifest, WireError, FORMAT};

use crate::error::LeadError;

/// FLEET/manifest.json, checked.
pub fn read_manifest(fleet: &Path) -> Result<Manifest, LeadError> {
    let path = fleet.join("manifest.json");
    let text = std::fs::read(&path).map_err(WireError::file("read the manifest", &path))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|source| WireError::Json {
        what: "a manifest",
        quoted: path.display().to_string(),
        source,
    })?;
    let wrong = |what, value: String, reason: String| LeadError::Config { what, value, reason };
    if manifest.format != FORMAT {
        let reason = format!(
            "`{}` was written for another version, this is format {FORMAT}",
            path.display()
        );
        return Err(wrong("format", manifest.format.to_string(), reason));
    }
    if manifest.lead != "beside" {
        return Err(wrong(
            "lead",
            manifest.lead,
            format!("`{}` should say `beside`", path.display()),
        ));
    }
    Ok(manifest)
}

/// Listen on the port of the lead before us where any will do and it is free: pilots find us there without reading
/// lead.json again.
pub fn listen_again(text: &str, fleet: &Path) -> Result<TcpListener, LeadError> {
    if let (Ok(mut address), Some(former)) = (text.parse::<SocketAddr>(), told(fleet)?) {
        if let (0, Ok(port)) = (address.port(), u16::try_from(former.port)) {
            address.set_port(port);
            if let Ok(listener) = listen(&address.to_string()) {
                return Ok(listener);
            }
        }
    }
    listen(text)
}

/// Listen on a numeric address: a static program has no name service.
pub fn listen(text: &str) -> Result<TcpListener, LeadError> {
    let address: SocketAddr = text.parse().map_err(|_| LeadError::Config {
        what: "listen address",
        value: text.to_owned(),
        reason: String::from("expected numbers such as `127.0.0.1:0` or `[::]:0`"),
    })?;
    let failed = |operation| {
        move |source| LeadError::Socket {
            operation,
            address: text.to_owned(),
            source,
        }
    };
    let listener = TcpListener::bind(address).map_err(failed("listen on"))?;
    listener
        .set_nonblocking(true)
        .map_err(failed("set up the listener on"))?;
    Ok(listener)
}

/// What pilots should connect to: the listening address, or where it is any, the one towards other machines.
pub fn host_for_others(listening: IpAddr, outbound: impl FnOnce() -> Option<IpAddr>) -> String {
    if listening.is_unspecified() {
        outbound().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_string()
    } else {
        listening.to_string()
    }
}

/// Put FLEET/lead.json in place unless a newer lead has done so; false then.
pub fn publish(fleet: &Path, told: &LeadAddress) -> Result<bool, LeadError> {
    if published(fleet)? > told.incarnation {
        return Ok(false);
    }
    let text = serde_json::to_vec(told).map_err(|source| WireError::Json {
        what: "JSON",
        quoted: String::from("the lead's address"),
        source,
    })?;
    let temporary = format!(".lead.json.{}.tmp", told.incarnation);
    file::replace(fleet, "lead.json", &temporary, &text)?;
    Ok(true)
}

/// The incarnation in FLEET/lead.json; 0 where there is none or it cannot be understood.
pub fn published(fleet: &Path) -> Result<u64, LeadError> {
    Ok(told(fleet)?.map_or(0, |told| told.incarnation))
}

/// FLEET/lead.json; None where there is none or it cannot be understood.
fn told(fleet: &Path) -> Result<Option<LeadAddress>, LeadError> {
    let path = fleet.join("lead.json");
    match File::open(&path) {
        Ok(file) => Ok(serde_json::from_reader(io::BufReader::new(file)).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(WireError::file("open", &path)(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_lead_never_replaces_the_address_of_a_newer_one() {
        let fleet = tempfile::tempdir().unwrap();
        let told = |incarnation| LeadAddress {
            format: 1,
            incarnation,
            host: String::from("127.0.0.1"),
            port: 1,
            pid: 1,
        };
        assert_eq!(published(fleet.path()).unwrap(), 0);
        assert!(publish(fleet.path(), &told(2)).unwrap());
        assert!(!publish(fleet.path(), &told(1)).unwrap());
        assert_eq!(published(fleet.path()).unwrap(), 2);
    }

    #[test]
    fn a_name_instead_of_an_address_is_refused_with_an_example() {
        let error = listen("localhost:0").unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:0"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
