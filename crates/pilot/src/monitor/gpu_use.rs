//! How busy GPUs are: NVIDIA's from its own program, at most once a minute and with a time limit; AMD's from files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidemill_sys::fd;
use tidemill_sys::spawn::{find_program, path_places};
use tidemill_sys::time::monotonic_us;

use crate::node::kernel_texts::KernelTexts;

/// Between two runs of nvidia-smi: it takes some tenths of a second of CPU time.
const PAUSE_US: u64 = 60_000_000;
/// A driver in trouble lets it hang.
const LIMIT_US: u64 = 10_000_000;
const LOOK_US: u64 = 20_000;
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
const QUERY: [&str; 2] = [
    "--query-gpu=utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
];

/// What was found last.
#[derive(Debug, Default)]
pub struct GpuUse {
    found: Vec<(u64, u64)>,
    asked_us: Option<u64>,
    program: Program,
}

/// nvidia-smi. It is looked for where there is a driver only: a directory of PATH may be on a file system that hangs.
#[derive(Debug, Default)]
enum Program {
    #[default]
    Unknown,
    At(PathBuf),
    /// there is no such program, or it hung and is not started again
    None,
}

impl GpuUse {
    /// Number, mean use in percent and memory in MB; empty where there is no GPU or its use is unknown.
    pub fn figures(&mut self, kernel: &KernelTexts, now_us: u64) -> Vec<(&'static str, u64)> {
        let found = if kernel.exists("proc/driver/nvidia/gpus") {
            self.of_nvidia(now_us)
        } else {
            of_amd(kernel)
        };
        let count = found.len() as u64;
        if count == 0 {
            return Vec::new();
        }
        let sum = found.iter().fold((0_u64, 0_u64), |sum, each| {
            (sum.0.saturating_add(each.0), sum.1.saturating_add(each.1))
        });
        vec![
            ("gpus", count),
            ("gpu_busy", sum.0 / count),
            ("gpu_memory_mb", sum.1),
        ]
    }

    fn of_nvidia(&mut self, now_us: u64) -> Vec<(u64, u64)> {
        if let Program::Unknown = self.program {
            let found = find_program("nvidia-smi".as_ref(), path_places());
            self.program = found.map_or(Program::None, Program::At);
        }
        let is_due = self.asked_us.is_none_or(|asked_us| now_us >= asked_us + PAUSE_US);
        if let (Program::At(path), true) = (&self.program, is_due) {
            self.asked_us = Some(now_us);
            let answer = ask(path, LIMIT_US);
            if answer.is_none() {
                self.program = Program::None;
            }
            self.found = answer.map(|text| nvidia(&text)).unwrap_or_default();
        }
        self.found.clone()
    }
}

/// What it prints; None: it did not end in time.
fn ask(program: &Path, limit_us: u64) -> Option<String> {
    let mut command = Command::new(program);
    command.args(QUERY).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let until_us = monotonic_us() + limit_us;
    while matches!(child.try_wait(), Ok(None)) {
        if monotonic_us() >= until_us {
            let _ = child.kill(); // without waiting: it may block in the kernel
            return None;
        }
        let _ = fd::poll(&mut [], Some(LOOK_US));
    }
    Some(output(child))
}

fn output(mut child: Child) -> String {
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(OUTPUT_BYTES_MAX).read_to_string(&mut text); // output that is not UTF-8 is ignored
    }
    text
}

/// A line `PERCENT, MIB` for each GPU; a GPU that does not report its use, such as a MIG part, is left out.
fn nvidia(text: &str) -> Vec<(u64, u64)> {
    let one = |line: &str| {
        let (percent, mib) = line.split_once(',')?;
        let percent = percent.trim().parse::<u64>().ok()?;
        Some((percent.min(100), mib.trim().parse().unwrap_or(0)))
    };
    text.lines().filter_map(one).collect()
}

/// Linux, Documentation/gpu/amdgpu/thermal: percent and bytes.
fn of_amd(kernel: &KernelTexts) -> Vec<(u64, u64)> {
    let cards = kernel.names("sys/class/drm").into_iter();
    let one = |card: String| {
        let number = |file: &str| {
            let text = kernel.text(&format!("sys/class/drm/{card}/device/{file}"));
            text.trim().parse::<u64>().ok()
        };
        let percent = number("gpu_busy_percent")?;
        Some((percent.min(100), number("mem_info_vram_used").unwrap_or(0) >> 20))
    };
    cards
        .filter(|card| card.starts_with("card") && !card.contains('-'))
        .filter_map(one)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), text).unwrap();
    }

    #[test]
    fn what_nvidia_smi_prints_is_read_and_parts_that_say_nothing_are_left_out() {
        assert_eq!(
            nvidia("97, 30012\n 3, 4\n[N/A], 10\nrubbish\n"),
            [(97, 30012), (3, 4)]
        );
    }

    fn program(root: &Path, script: &str) -> PathBuf {
        let path = root.join("nvidia-smi");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn one_that_hangs_is_ended() {
        let root = tempfile::tempdir().unwrap();
        let began_us = monotonic_us();
        assert_eq!(
            ask(&program(root.path(), "#!/bin/sh\nexec sleep 60\n"), 100_000),
            None
        );
        assert!(monotonic_us() - began_us < 10_000_000);
    }

    #[test]
    fn it_is_asked_once_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia/gpus")).unwrap();
        let script = format!(
            "#!/bin/sh\necho x >>{}\necho '40, 100'\necho '60, 300'\n",
            log.display()
        );
        let mut gpus = GpuUse {
            program: Program::At(program(root.path(), &script)),
            ..GpuUse::default()
        };
        let kernel = KernelTexts::below(root.path());
        let expected = [("gpus", 2), ("gpu_busy", 50), ("gpu_memory_mb", 400)];
        for now_us in [1, 2, PAUSE_US, PAUSE_US + 1] {
            assert_eq!(gpus.figures(&kernel, now_us), expected);
        }
        assert_eq!(std::fs::read_to_string(log).unwrap(), "x\nx\n");
    }

    #[test]
    fn amd_tells_by_files_and_a_node_without_gpus_tells_nothing() {
        let root = tempfile::tempdir().unwrap();
        let kernel = KernelTexts::below(root.path());
        assert!(GpuUse::default().figures(&kernel, 1).is_empty());
        write(root.path(), "sys/class/drm/card0/device/gpu_busy_percent", "30\n");
        write(
            root.path(),
            "sys/class/drm/card0/device/mem_info_vram_used",
            "2097152\n",
        );
        write(root.path(), "sys/class/drm/card1/device/gpu_busy_percent", "51\n");
        write(
            root.path(),
            "sys/class/drm/card1-HDMI/device/gpu_busy_percent",
            "99\n",
        );
        let expected = [("gpus", 2), ("gpu_busy", 40), ("gpu_memory_mb", 2)];
        assert_eq!(GpuUse::default().figures(&kernel, 1), expected);
    }
}
