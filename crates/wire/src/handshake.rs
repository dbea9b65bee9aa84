//! Each side of a connection proves that it knows the fleet's secret, without revealing it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::WireError;
use crate::hex;

const SECRET_DIGITS_MIN: usize = 32;

/// The text of the secret file without its newline.
pub fn read_secret(path: &Path) -> Result<String, WireError> {
    let mut text = String::new();
    let mut file = File::open(path).map_err(WireError::file("open the secret", path))?;
    let mode = file
        .metadata()
        .map_err(WireError::file("stat the secret", path))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        let source = std::io::Error::other(format!(
            "its mode is {mode:04o}: others may read it, expected 0600"
        ));
        return Err(WireError::file("use the secret", path)(source));
    }
    file.read_to_string(&mut text)
        .map_err(WireError::file("read the secret", path))?;
    let secret = text.trim_end_matches('\n');
    if secret.len() < SECRET_DIGITS_MIN {
        let source = std::io::Error::other(format!("{} characters, expected 64", secret.len()));
        return Err(WireError::file("use the secret", path)(source));
    }
    Ok(secret.to_owned())
}

/// 32 unpredictable hex digits, from the kernel.
pub fn nonce() -> Result<String, WireError> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(WireError::Random)?;
    Ok(hex::text(&bytes))
}

/// What the pilot sends in Hello.
pub fn pilot_proof(secret: &str, lead_nonce: &str, pilot_nonce: &str, pilot: &str) -> String {
    prove(secret, ["pilot", lead_nonce, pilot_nonce, pilot])
}

/// What the lead sends in Welcome.
pub fn lead_proof(secret: &str, lead_nonce: &str, pilot_nonce: &str, pilot: &str) -> String {
    prove(secret, ["lead", pilot_nonce, lead_nonce, pilot])
}

/// Whether a Hello's proof is right, in constant time.
pub fn pilot_is_known(secret: &str, lead_nonce: &str, pilot_nonce: &str, pilot: &str, proof: &str) -> bool {
    is_proved(secret, ["pilot", lead_nonce, pilot_nonce, pilot], proof)
}

/// Whether a Welcome's proof is right, in constant time.
pub fn lead_is_known(secret: &str, lead_nonce: &str, pilot_nonce: &str, pilot: &str, proof: &str) -> bool {
    is_proved(secret, ["lead", pilot_nonce, lead_nonce, pilot], proof)
}

/// What a node that wants the file `sha256` sends to the one that has it.
pub fn taker_proof(secret: &str, giver_nonce: &str, taker_nonce: &str, sha256: &str) -> String {
    prove(secret, ["taker", giver_nonce, taker_nonce, sha256])
}

/// What the node that has it answers.
pub fn giver_proof(secret: &str, giver_nonce: &str, taker_nonce: &str, sha256: &str) -> String {
    prove(secret, ["giver", taker_nonce, giver_nonce, sha256])
}

/// Whether a taker's proof is right, in constant time.
pub fn taker_is_known(secret: &str, giver_nonce: &str, taker_nonce: &str, sha256: &str, proof: &str) -> bool {
    is_proved(secret, ["taker", giver_nonce, taker_nonce, sha256], proof)
}

/// Whether a giver's proof is right, in constant time.
pub fn giver_is_known(secret: &str, giver_nonce: &str, taker_nonce: &str, sha256: &str, proof: &str) -> bool {
    is_proved(secret, ["giver", taker_nonce, giver_nonce, sha256], proof)
}

fn prove(secret: &str, parts: [&str; 4]) -> String {
    hex::text(&mac(secret, parts).finalize().into_bytes())
}

fn is_proved(secret: &str, parts: [&str; 4], proof: &str) -> bool {
    let bytes = hex::bytes(proof).filter(|bytes| bytes.len() == 32);
    bytes.is_some_and(|bytes| mac(secret, parts).verify_slice(&bytes).is_ok())
}

#[allow(clippy::expect_used)] // HMAC takes a key of any length: the error cannot happen
fn mac(secret: &str, parts: [&str; 4]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any key length");
    mac.update(parts.join(":").as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

    #[test]
    fn both_sides_know_each_other_and_nobody_else() {
        let (lead, pilot) = (nonce().unwrap(), nonce().unwrap());
        assert_eq!(lead.len(), 32);
        assert_ne!(lead, pilot);
        let proof = pilot_proof(SECRET, &lead, &pilot, "a.r0.i1");
        assert!(pilot_is_known(SECRET, &lead, &pilot, "a.r0.i1", &proof));
        assert!(!pilot_is_known(SECRET, &lead, &pilot, "a.r1.i1", &proof));
        assert!(!pilot_is_known("other", &lead, &pilot, "a.r0.i1", &proof));
        assert!(!pilot_is_known(SECRET, &lead, &pilot, "a.r0.i1", &proof[..63]));
        assert!(!pilot_is_known(SECRET, &lead, &pilot, "a.r0.i1", ""));
        let answer = lead_proof(SECRET, &lead, &pilot, "a.r0.i1");
        assert!(lead_is_known(SECRET, &lead, &pilot, "a.r0.i1", &answer));
        assert!(!lead_is_known(SECRET, &lead, &pilot, "a.r0.i1", &proof));
    }

    #[test]
    fn giver_and_taker_of_a_file_know_each_other_and_no_proof_serves_for_anything_else() {
        let (giver, taker) = (nonce().unwrap(), nonce().unwrap());
        let proof = taker_proof(SECRET, &giver, &taker, "f1");
        assert!(taker_is_known(SECRET, &giver, &taker, "f1", &proof));
        assert!(!taker_is_known(SECRET, &giver, &taker, "f2", &proof));
        assert!(!taker_is_known("other", &giver, &taker, "f1", &proof));
        assert!(!giver_is_known(SECRET, &giver, &taker, "f1", &proof));
        assert!(!pilot_is_known(SECRET, &giver, &taker, "f1", &proof));
        let answer = giver_proof(SECRET, &giver, &taker, "f1");
        assert!(giver_is_known(SECRET, &giver, &taker, "f1", &answer));
    }

    #[test]
    fn a_proof_is_what_python_computes() {
        // hmac.new(b"ab" * 32, b"pilot:11:22:p", "sha256").hexdigest()
        let secret = "ab".repeat(32);
        assert_eq!(
            pilot_proof(&secret, "11", "22", "p"),
            "71a3ec1f31ef9bf75d569af813bf14842efc3d54d0098cefb73b6b0d5efa40f4"
        );
    }

    #[test]
    fn a_short_secret_is_refused_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "abc\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_secret(&path)
            .unwrap_err()
            .source()
            .unwrap()
            .to_string()
            .contains("0644"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = read_secret(&path).unwrap_err();
        assert!(error.to_string().contains("secret"), "{error}");
        std::fs::write(&path, format!("{SECRET}\n")).unwrap();
        assert_eq!(read_secret(&path).unwrap(), SECRET);
    }
}
