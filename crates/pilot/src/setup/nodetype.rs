//! Nodes on which a set-up gives the same environment.

use std::path::Path;

/// Such as `x86_64-25.17-debian12-gpu`: modules choose by architecture, processor, system and accelerators.
pub fn node_type() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let has_gpu = ["/dev/nvidiactl", "/dev/kfd"]
        .iter()
        .any(|path| Path::new(path).exists());
    named(std::env::consts::ARCH, &cpu, &system, has_gpu)
}

/// Pure. Family and model of cpuinfo on x86, implementer and part on ARM (proc(5)); ID and VERSION_ID of os-release(5).
fn named(machine: &str, cpu: &str, system: &str, has_gpu: bool) -> String {
    let field = |names: [&str; 2]| {
        names.into_iter().find_map(|name| {
            let line = cpu
                .lines()
                .find(|line| line.split(':').next().map(str::trim) == Some(name))?;
            Some(line.split(':').nth(1)?.trim().to_owned())
        })
    };
    let value = |name: &str| {
        let line = system
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    let mut words = vec![machine.to_owned()];
    let family = field(["cpu family", "CPU implementer"]);
    let model = field(["model", "CPU part"]);
    if let (Some(family), Some(model)) = (family, model) {
        words.push(format!("{family}.{model}"));
    }
    if let Some(id) = value("ID") {
        words.push(format!("{id}{}", value("VERSION_ID").unwrap_or_default()));
    }
    if has_gpu {
        words.push("gpu".to_owned());
    }
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || "._-".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    words.join("-").chars().map(safe).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_tells_architecture_processor_system_and_accelerators() {
        let cpu = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n";
        let system = "PRETTY_NAME=\"Debian\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(named("x86_64", cpu, system, false), "x86_64-25.17-debian12");
        assert_eq!(named("x86_64", cpu, "ID=\"a/b\"\n", true), "x86_64-25.17-a_b-gpu");
        let arm = "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        assert_eq!(named("aarch64", arm, "", false), "aarch64-0x41.0xd40");
    }
}
