//! Which covered paths a program needs to see again. Looks at the pilot's own view of the file system.
//!
//! A slot has a /tmp of its own, so a program in the old one would be gone. Shown again (writable where it was) are
//! the executable's directory - the one above where that is named `bin`, so that a relocatable installation or a
//! virtual environment is whole -, the directory of a first argument that is a file (a script), every directory named
//! in an environment variable, and other arguments that are paths. Never /tmp itself: there the file alone. Beneath a
//! masked path only the executable comes back, and that alone; masked paths below what comes back are masked again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidemill_wire::{JobDef, Program};

const TMP: &str = "/tmp";

/// Paths that `program` needs, as they must be seen.
/// Beneath `areas` an image is seen, and the shared file system is not to be asked.
pub(crate) fn of_program(program: &Program, masks: &[PathBuf], areas: &[PathBuf]) -> Vec<String> {
    let executable = Path::new(&program.executable);
    if areas.iter().any(|area| executable.starts_with(area)) {
        return finish(of_environment(&program.env, masks));
    }
    let mut paths = vec![with_surroundings(executable, masks)];
    if let Ok(real) = executable.canonicalize() {
        if real != executable {
            paths.push(with_surroundings(&real, masks));
        }
    }
    paths.extend(of_wrap(&program.wrap, masks));
    paths.extend(of_environment(&program.env, masks));
    finish(paths)
}

/// A container's runtime, its image and what it binds (`--bind=SOURCE:TARGET`).
fn of_wrap(wrap: &[String], masks: &[PathBuf]) -> Vec<Option<PathBuf>> {
    let mut paths = Vec::new();
    if let Some(runtime) = wrap.first() {
        paths.push(with_surroundings(Path::new(runtime), masks));
    }
    let values = wrap.iter().skip(1).map(|word| match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => value,
        _ => word,
    });
    let sources = values.map(|value| Path::new(value.split(':').next().unwrap_or(value)));
    let wanted = sources.filter(|path| in_tmp(path) && !masked(path, masks));
    paths.extend(wanted.map(itself));
    paths
}

/// Paths that `job` needs beyond its program's.
pub(crate) fn of_job(job: &JobDef, masks: &[PathBuf]) -> Vec<String> {
    let mut paths = Vec::new();
    for (index, argument) in job.argv.iter().enumerate() {
        let path = Path::new(argument);
        if !in_tmp(path) || masked(path, masks) {
            continue;
        }
        let script = index == 0 && path.is_file();
        paths.push(if script {
            with_surroundings(path, masks)
        } else {
            itself(path)
        });
    }
    paths.extend(of_environment(&job.env, masks));
    finish(paths)
}

fn of_environment(env: &BTreeMap<String, String>, masks: &[PathBuf]) -> Vec<Option<PathBuf>> {
    let parts = env.values().flat_map(|value| value.split(':')).map(Path::new);
    parts
        .filter(|path| in_tmp(path) && !masked(path, masks))
        .map(itself)
        .collect()
}

fn finish(paths: Vec<Option<PathBuf>>) -> Vec<String> {
    let mut texts: Vec<String> = paths
        .into_iter()
        .flatten()
        .filter_map(|path| path.to_str().map(str::to_owned))
        .collect();
    texts.sort();
    texts.dedup();
    texts
}

fn in_tmp(path: &Path) -> bool {
    path.starts_with(TMP) && path != Path::new(TMP)
}

fn masked(path: &Path, masks: &[PathBuf]) -> bool {
    masks.iter().any(|mask| path.starts_with(mask))
}

fn itself(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| path.to_owned())
}

fn with_surroundings(file: &Path, masks: &[PathBuf]) -> Option<PathBuf> {
    if masked(file, masks) {
        return Some(file.to_owned());
    }
    if !in_tmp(file) {
        return None;
    }
    let directory = file.parent()?;
    let named_bin = directory.file_name().is_some_and(|name| name == "bin");
    let around = if named_bin { directory.parent()? } else { directory };
    match [around, directory].into_iter().find(|path| in_tmp(path)) {
        Some(directory) => Some(directory.to_owned()),
        None => Some(file.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(path: &str, masks: &[&str]) -> Option<String> {
        let masks: Vec<PathBuf> = masks.iter().map(PathBuf::from).collect();
        with_surroundings(Path::new(path), &masks).map(|path| path.to_string_lossy().into_owned())
    }

    #[test]
    fn an_installation_comes_back_whole_and_a_masked_program_alone() {
        assert_eq!(around("/usr/bin/true", &[]), None);
        assert_eq!(around("/tmp/prog", &[]).as_deref(), Some("/tmp/prog"));
        assert_eq!(around("/tmp/bin/prog", &[]).as_deref(), Some("/tmp/bin"));
        assert_eq!(around("/tmp/a/prog", &[]).as_deref(), Some("/tmp/a"));
        assert_eq!(
            around("/tmp/a/venv/bin/python", &[]).as_deref(),
            Some("/tmp/a/venv")
        );
        assert_eq!(around("/tmp/a/prog", &["/tmp/a"]).as_deref(), Some("/tmp/a/prog"));
        assert_eq!(
            around("/home/me/site/prog", &["/home/me/site"]).as_deref(),
            Some("/home/me/site/prog")
        );
    }
}
