//! `tidemill-node setup`: runs set-up lines in a shell with a clean environment and prints what they changed.
//!
//! It reads a SetupDef from stdin and writes an Answer to stdout, both JSON. At its end, the shell runs
//! `tidemill-node setup environment FILE`, which writes the environment. The program is static, so it runs whatever the
//! lines did to the library path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tidemill_sys::fd::{self, Poll};
use tidemill_sys::{security, signal, time};
use tidemill_wire::SetupDef;

use super::stored::{Stored, FORMAT};

const DEF_BYTES_MAX: u64 = 1 << 20;
/// Kept of what the lines print: the end, where the error is.
const STDERR_TAIL_BYTES: usize = 4096;
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
const LOOK_US: u64 = 5_000;
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// $1 our binary, $2 the directory for the two environments, then the lines. `module` is a function that login shells
/// have: where /etc/profile does not bring it, the usual places are tried (Environment Modules 5, Lmod 8).
const SCRIPT: &str = r#"
_tm_node=$1; _tm_to=$2; shift 2
{ . /etc/profile; } >/dev/null 2>&1 </dev/null
if ! command -v module >/dev/null 2>&1; then
  for _tm_file in "$MODULESHOME/init/bash" /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash \
    /etc/profile.d/modules.sh /opt/cray/pe/modules/default/init/bash; do
    if [ -r "$_tm_file" ]; then . "$_tm_file" >/dev/null 2>&1; break; fi
  done
fi
"$_tm_node" setup environment "$_tm_to/before" || exit 125
for _tm_line in "$@"; do
  eval "$_tm_line"
  _tm_status=$?
  if [ $_tm_status -ne 0 ]; then
    printf '%s\n%s\n' "$_tm_status" "$_tm_line" >"$_tm_to/failed"
    exit 1
  fi
done
"$_tm_node" setup environment "$_tm_to/after" || exit 125
"#;

/// What the child sends to the pilot.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub stored: Option<Stored>,
    pub error: Option<String>,
}

/// Run with the arguments after `tidemill-node setup`; returns the exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    let words: Vec<OsString> = args.collect();
    match words.as_slice() {
        [] => answer(),
        [verb, parent, rest @ ..] if verb == "shell" => shell(parent, rest),
        [verb, file] if verb == "environment" => match write_environment(Path::new(file)) {
            Ok(()) => 0,
            Err(_) => 3,
        },
        _ => {
            tidemill_wire::log::plain(
                "tidemill-node setup: run by pilots only\nhint: tidemill-node run --help\n",
            );
            2
        }
    }
}

/// Become the lines' shell, which ends with its parent.
fn shell(parent: &OsString, args: &[OsString]) -> i32 {
    let _ = security::set_parent_death_signal(signal::KILL);
    if parent.to_str() != Some(&tidemill_sys::process::parent_id().to_string()) {
        return 3; // it has ended already
    }
    let error = Command::new("bash").args(args).exec();
    tidemill_wire::log::plain(&format!("failed to start `bash` for the set-up: {error}\n"));
    127
}

/// A new file that this user alone reads, whatever the umask.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

fn write_environment(path: &Path) -> std::io::Result<()> {
    let mut text = Vec::new();
    for (name, value) in std::env::vars_os() {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
        text.push(0);
    }
    create_private(path)?.write_all(&text)
}

fn answer() -> i32 {
    let mut text = Vec::new();
    let read = std::io::stdin().take(DEF_BYTES_MAX).read_to_end(&mut text);
    let told = match (read, serde_json::from_slice::<SetupDef>(&text)) {
        (Ok(_), Ok(def)) => match prepare(&def) {
            Ok(stored) => Answer {
                stored: Some(stored),
                error: None,
            },
            Err(error) => Answer {
                stored: None,
                error: Some(error),
            },
        },
        _ => Answer {
            stored: None,
            error: Some("the set-up could not be read".to_owned()),
        },
    };
    let Ok(text) = serde_json::to_vec(&told) else {
        return 70;
    };
    i32::from(std::io::stdout().write_all(&text).is_err()) * 3
}

/// A directory of our own for the shell's files, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!(
            "tidemill-setup-{}-{}",
            tidemill_sys::process::id(),
            time::monotonic_us()
        );
        let mut last = None;
        for base in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            let path = base.join(&name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
    }

    fn read(&self, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        let file = File::open(self.0.join(name)).ok()?;
        file.take(bytes_max).read_to_end(&mut text).ok()?;
        Some(text)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Run the lines while the pilot waits for them. The error is written for the author of the lines.
fn prepare(def: &SetupDef) -> Result<Stored, String> {
    let scratch = Scratch::make().map_err(|error| format!("no room for the set-up's files: {error}"))?;
    let file = |name: &str| create_private(&scratch.0.join(name)).map_err(|error| format!("set-up: {error}"));
    let (stdout, stderr) = (file("stdout")?, file("stderr")?);
    let node = std::fs::read_link("/proc/self/exe").map_err(|error| format!("set-up: {error}"))?;
    let mut command = Command::new(&node);
    command
        .args(["setup", "shell"])
        .arg(tidemill_sys::process::id().to_string())
        .args(["--noprofile", "--norc", "-c", SCRIPT, "tidemill-setup"])
        .arg(&node)
        .arg(&scratch.0)
        .args(&def.lines)
        .env_clear()
        .envs(clean())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    let mut shell = command
        .spawn()
        .map_err(|error| format!("failed to start `bash` for the set-up: {error}"))?;
    let ended = wait(&mut shell, def.timeout_s, &scratch);
    // whatever the lines left running
    let _ = signal::kill(-(shell.id() as i32), signal::KILL);
    let _ = shell.wait();
    let said = tail(&scratch);
    ended.map_err(|why| format!("{why}{said}"))?;
    if let Some(text) = scratch.read("failed", OUTPUT_BYTES_MAX) {
        let text = String::from_utf8_lossy(&text).into_owned();
        let (status, line) = text.trim_end().split_once('\n').unwrap_or(("?", text.trim_end()));
        return Err(format!("set-up line `{line}` ended with status {status}{said}"));
    }
    if said.contains(":ERROR:") {
        // Environment Modules 3.2 (the C version) prints this and returns 0
        return Err(format!("a set-up line failed{said}"));
    }
    let both = scratch
        .read("before", ENVIRONMENT_BYTES_MAX + 1)
        .zip(scratch.read("after", ENVIRONMENT_BYTES_MAX + 1));
    let Some((before, after)) = both else {
        return Err(format!("the set-up's shell ended early{said}"));
    };
    if after.len() as u64 > ENVIRONMENT_BYTES_MAX {
        // the last variable would be cut
        return Err(format!(
            "the set-up's environment has more than {ENVIRONMENT_BYTES_MAX} bytes"
        ));
    }
    let (variables, left_out) = difference(&parse(&before), &parse(&after));
    Ok(Stored {
        format: FORMAT,
        lines: def.lines.clone(),
        host: crate::node::host(),
        variables,
        left_out,
    })
}

fn wait(shell: &mut std::process::Child, timeout_s: f64, scratch: &Scratch) -> Result<(), String> {
    let end_us = time::monotonic_us() + (timeout_s.max(0.0) * 1e6) as u64;
    loop {
        match shell.try_wait() {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if time::monotonic_us() >= end_us => {
                return Err(format!("the set-up did not end within {timeout_s} s"))
            }
            Ok(None) if printed(scratch) > OUTPUT_BYTES_MAX => {
                return Err(format!("the set-up printed more than {OUTPUT_BYTES_MAX} bytes"))
            }
            Ok(None) => {
                let mut answer = [Poll::new(std::io::stdout().as_fd(), 0)]; // 0: hung up, nothing else
                let _ = fd::poll(&mut answer, Some(LOOK_US));
                if answer[0].readable() {
                    return Err("nothing waits for the set-up any more".to_owned());
                }
            }
            Err(error) => return Err(format!("failed to wait for the set-up: {error}")),
        }
    }
}

fn printed(scratch: &Scratch) -> u64 {
    ["stdout", "stderr"]
        .iter()
        .filter_map(|name| std::fs::metadata(scratch.0.join(name)).ok())
        .map(|found| found.len())
        .sum()
}

/// `: ` and the end of what the lines wrote to stderr; empty where they wrote nothing.
fn tail(scratch: &Scratch) -> String {
    let text = scratch.read("stderr", 2 * OUTPUT_BYTES_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(STDERR_TAIL_BYTES)..]).into_owned();
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!(": {text}")
    }
}

/// What a login shell of this user starts with.
fn clean() -> BTreeMap<String, OsString> {
    let mut found = BTreeMap::from([
        ("PATH".to_owned(), OsString::from(PATH)),
        ("SHELL".to_owned(), OsString::from("/bin/bash")),
        ("TERM".to_owned(), OsString::from("dumb")),
    ]);
    for name in ["HOME", "USER", "LOGNAME"] {
        if let Some(value) = std::env::var_os(name) {
            found.insert(name.to_owned(), value);
        }
    }
    found
}

/// Variables of an `environment` file; those that are not UTF-8 cannot be reported and are left out.
fn parse(text: &[u8]) -> BTreeMap<String, String> {
    let one = |entry: &[u8]| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.split(|&byte| byte == 0).filter_map(one).collect()
}

/// Variables that the shell or the slot sets; changes by the lines do not count.
const OTHERS: [&str; 9] = [
    "_", "SHLVL", "PWD", "OLDPWD", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL",
];

/// A name with one of these parts counts as secret.
const SECRETS: [&str; 10] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "SSH_AUTH",
];

/// Variables that were set or changed, and the names left out as secrets. Functions (`BASH_FUNC_...`) and TIDEMILL_*
/// never count.
fn difference(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut changed, mut left_out) = (BTreeMap::new(), Vec::new());
    for (name, value) in after {
        let skipped = OTHERS.contains(&name.as_str())
            || name.starts_with("BASH_FUNC_")
            || name.starts_with("TIDEMILL_")
            || before.get(name) == Some(value);
        if skipped {
            continue;
        }
        let upper = name.to_ascii_uppercase();
        if SECRETS.iter().any(|part| upper.contains(part)) {
            left_out.push(name.clone());
        } else {
            changed.insert(name.clone(), value.clone());
        }
    }
    (changed, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_difference_holds_variables_only_and_no_secret() {
        let before = map(&[("PATH", "/bin"), ("SAME", "1"), ("HOME", "/h")]);
        let after = map(&[
            ("PATH", "/sw/bin:/bin"),
            ("SAME", "1"),
            ("HOME", "/elsewhere"),
            ("BASH_FUNC_module%%", "() { :; }"),
            ("TIDEMILL_JOB", "1"),
            ("DB_PASSWORD", "x"),
            ("SHLVL", "2"),
            ("ROOTSYS", "/sw/root"),
        ]);
        let (changed, left_out) = difference(&before, &after);
        assert_eq!(changed, map(&[("PATH", "/sw/bin:/bin"), ("ROOTSYS", "/sw/root")]));
        assert_eq!(left_out, ["DB_PASSWORD"]);
    }

    #[test]
    fn an_environment_is_read_with_its_line_ends() {
        assert_eq!(parse(b"A=1\n2\0B==\0\xff=1\0"), map(&[("A", "1\n2"), ("B", "=")]));
    }
}
