//! Machines of which /sys, /proc and /dev are in `tests/machines`, laid out below a directory. For tests.

use std::path::Path;

use crate::node::topology::cpu_list;

pub const DGX: &str = include_str!("../../tests/machines/dgx-a100.txt");
pub const GRACE: &str = include_str!("../../tests/machines/grace.txt");
pub const POWER9: &str = include_str!("../../tests/machines/power9.txt");
pub const LAPTOP: &str = include_str!("../../tests/machines/laptop.txt");
pub const MI250X: &str = include_str!("../../tests/machines/mi250x.txt");

/// The machine's files below a directory of their own.
pub fn unpacked(machine: &str) -> tempfile::TempDir {
    laid_out(machine, "")
}

/// Those of its devices: the CPUs have ten times as many.
pub fn unpacked_devices(machine: &str) -> tempfile::TempDir {
    laid_out(machine, "sys/devices/system/")
}

/// All files but those that begin so; an empty beginning leaves none out.
fn laid_out(machine: &str, but: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let left_out = |line: &str| line.starts_with('#') || (!but.is_empty() && line.starts_with(but));
    for line in machine.lines().filter(|line| !left_out(line)) {
        let (path, text) = line.split_once('\t').unwrap_or((line, ""));
        let text = text.replace("\\n", "\n").replace("\\t", "\t") + "\n";
        match (path.split_once('{'), path.split_once('}')) {
            (Some((head, _)), Some((before, tail))) => {
                for number in cpu_list(&before[head.len() + 1..]) {
                    write(&root.path().join(format!("{head}{number}{tail}")), &text);
                }
            }
            _ => write(&root.path().join(path), &text),
        }
    }
    root
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
