//! Which GPUs this machine has, and which of them the allocation gives.
//!
//! Reads /sys, /proc/driver/nvidia and the rights of device files below a given root; opens no device, which would wake
//! it. Sources: NVIDIA driver README, "The /proc interface" (`gpus/*/information`); Linux, kfd_topology.c (properties of
//! /sys/class/kfd); Documentation/ABI/testing/sysfs-bus-pci (`numa_node`); CUDA C++ Programming Guide, "CUDA Environment
//! Variables"; ROCm, "GPU isolation techniques"; Level Zero specification, "Environment Variables" (ZE_AFFINITY_MASK);
//! sbatch(1) and srun(1), SLURM_JOB_GPUS, SLURM_STEP_GPUS, SLURM_GPUS_ON_NODE; gres.conf(5).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidemill_slot::{SlotDevice, Vendor};

use crate::error::PilotError;
use crate::node::facts::{self, Environ};

/// GPUs of a node that are counted; more are left alone.
const GPUS_MAX: usize = 1024;
/// Variables by which a process knows that a batch system started it, which then decides on GPUs.
const BATCH_JOB: [&str; 6] = [
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "JOB_ID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "COBALT_JOBID",
];
/// Variables that name the GPUs of each vendor, the first that is set counts.
const VARIABLES: [(Vendor, &[&str]); 3] = [
    (Vendor::Nvidia, &["CUDA_VISIBLE_DEVICES"]),
    (
        Vendor::Amd,
        &[
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES",
        ],
    ),
    (Vendor::Intel, &["ZE_AFFINITY_MASK"]),
];

/// A GPU, or an instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Memory domain beside it; None where the machine does not say.
    pub domain: Option<u32>,
    pub device: SlotDevice,
    /// Its number on this machine, in the order in which its vendor counts.
    number: usize,
}

impl Gpu {
    fn unknown(vendor: Vendor, name: &str) -> Gpu {
        Gpu {
            domain: None,
            device: SlotDevice {
                vendor,
                name: name.to_owned(),
                files: Vec::new(),
            },
            number: usize::MAX,
        }
    }

    /// For people and for the agent.
    pub fn described(&self) -> serde_json::Value {
        let vendor = match self.device.vendor {
            Vendor::Nvidia => "nvidia",
            Vendor::Amd => "amd",
            Vendor::Intel => "intel",
        };
        serde_json::json!({"vendor": vendor, "name": self.device.name, "domain": self.domain})
    }

    /// One of which only the name is known.
    #[cfg(test)]
    pub fn named(name: &str) -> Gpu {
        Gpu::unknown(Vendor::Nvidia, name)
    }
}

/// What was found: GPUs that this user may open, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    gpus: Vec<Gpu>,
    denied: usize,
}

/// The GPUs of the machine below `root`. `may_open`: whether a device file lets this process in, which the device
/// controller of a cgroup refuses as well (access(2) asks it too).
pub fn find(root: &Path, may_open: impl Fn(&Path) -> bool) -> Found {
    let machine = Machine { root };
    let of_one_vendor = [machine.nvidia(), machine.amd(), machine.intel()];
    let all = of_one_vendor.into_iter().max_by_key(Vec::len).unwrap_or_default();
    let count = all.len();
    let may_use = |gpu: &Gpu| gpu.device.files.first().is_none_or(|file| may_open(file));
    let gpus: Vec<Gpu> = all.into_iter().filter(may_use).take(GPUS_MAX).collect();
    Found {
        denied: count - gpus.len(),
        gpus,
    }
}

struct Machine<'a> {
    root: &'a Path,
}

impl Machine<'_> {
    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Of a PCI address: the domain, and the files of its graphics devices.
    fn pci(&self, address: &str) -> (Option<u32>, Vec<PathBuf>) {
        let directory = format!("sys/bus/pci/devices/{address}");
        let domain = self.text(&format!("{directory}/numa_node")).trim().parse().ok(); // -1 = unknown
        let mut nodes = self.names(&format!("{directory}/drm"));
        nodes.retain(|name| name.starts_with("card") || name.starts_with("renderD"));
        nodes.reverse(); // programs that compute open renderD*
        let files = nodes.iter().map(|name| self.root.join("dev/dri").join(name));
        (domain, files.filter(|file| file.exists()).collect())
    }

    fn gpu(&self, vendor: Vendor, address: &str, number: usize) -> Gpu {
        let (domain, files) = self.pci(address);
        let device = SlotDevice {
            vendor,
            name: number.to_string(),
            files,
        };
        Gpu {
            domain,
            device,
            number,
        }
    }

    /// In the order of PCI addresses, as CUDA counts GPUs of one kind.
    fn nvidia(&self) -> Vec<Gpu> {
        let addresses = self.names("proc/driver/nvidia/gpus");
        let known = addresses.iter().enumerate().map(|(number, address)| {
            let text = self.text(&format!("proc/driver/nvidia/gpus/{address}/information"));
            let mut gpu = self.gpu(Vendor::Nvidia, address, number);
            // `GPU-????????-...` before the driver has talked to it
            if let Some(uuid) = value(&text, "GPU UUID").filter(|uuid| is_uuid(uuid)) {
                uuid.clone_into(&mut gpu.device.name);
            }
            let minor = value(&text, "Device Minor").and_then(|minor| minor.parse::<u32>().ok());
            let file = self
                .root
                .join(format!("dev/nvidia{}", minor.unwrap_or(number as u32)));
            gpu.device.files.insert(0, file);
            gpu
        });
        let known: Vec<Gpu> = known.filter(|gpu| gpu.device.files[0].exists()).collect();
        if !known.is_empty() {
            return known;
        }
        // a container without the driver's part of /proc
        let minors = self.names("dev");
        let mut minors: Vec<u32> = minors
            .iter()
            .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
            .collect();
        minors.sort_unstable();
        let bare = minors.into_iter().enumerate().map(|(number, minor)| {
            let mut gpu = Gpu::unknown(Vendor::Nvidia, &number.to_string());
            gpu.device
                .files
                .push(self.root.join(format!("dev/nvidia{minor}")));
            gpu.number = number;
            gpu
        });
        bare.collect()
    }

    /// In the order of the kernel's compute nodes, as ROCm counts. A processor with graphics on its chip is one node with
    /// both, and no GPU to compute on.
    fn amd(&self) -> Vec<Gpu> {
        let nodes = self.names("sys/class/kfd/kfd/topology/nodes");
        let mut nodes: Vec<u32> = nodes.iter().filter_map(|name| name.parse().ok()).collect();
        nodes.sort_unstable();
        let mut found = Vec::new();
        for node in nodes {
            let text = self.text(&format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"));
            let number = |name: &str| property(&text, name).unwrap_or(0);
            if number("simd_count") == 0 || number("cpu_cores_count") > 0 {
                continue;
            }
            let (place, domain) = (number("location_id"), number("domain"));
            let (bus, slot, function) = (place >> 8 & 0xff, place >> 3 & 0x1f, place & 7);
            let address = format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}");
            let mut gpu = self.gpu(Vendor::Amd, &address, found.len());
            if number("unique_id") != 0 {
                gpu.device.name = format!("GPU-{:016x}", number("unique_id"));
            }
            let render = self
                .root
                .join(format!("dev/dri/renderD{}", number("drm_render_minor")));
            if gpu.device.files.is_empty() && render.exists() {
                gpu.device.files.push(render);
            }
            found.push(gpu);
        }
        found
    }

    /// In the order of PCI addresses. Graphics on the processor's chip is always 0000:00:02.0 (Intel, "Volume 1: Processor
    /// Registers": bus 0, device 2).
    fn intel(&self) -> Vec<Gpu> {
        let addresses = self.names("sys/bus/pci/devices");
        let is_gpu = |address: &&String| {
            let text = |name: &str| self.text(&format!("sys/bus/pci/devices/{address}/{name}"));
            address.as_str() != "0000:00:02.0"
                && text("vendor").trim() == "0x8086"
                && text("class").starts_with("0x03")
        };
        let gpus = addresses.iter().filter(is_gpu).enumerate();
        gpus.map(|(number, address)| self.gpu(Vendor::Intel, address, number))
            .collect()
    }
}

/// `Name:  value`
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text
        .lines()
        .find(|line| line.split(':').next().map(str::trim) == Some(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// `name 12`
fn property(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn is_uuid(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    name.strip_prefix("GPU-").is_some_and(digits)
}

/// The GPUs that this allocation gives on this node. `expected`: how many the site says that a node has for us; None = it
/// says nothing. What is there and cannot be used is noted.
pub fn allotted(
    environ: &Environ,
    found: Found,
    expected: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<Vec<Gpu>, PilotError> {
    if expected == Some(0) {
        return Ok(Vec::new());
    }
    let mut gpus = match named(environ, &found, notes) {
        Some(gpus) => gpus,
        None => unnamed(environ, found, expected, notes)?,
    };
    if let Some(expected) = expected {
        gpus.truncate(usize::try_from(expected).unwrap_or(GPUS_MAX));
    }
    Ok(gpus)
}

/// By the variable of a vendor: of that whose GPUs are here, else of any.
fn named(environ: &Environ, found: &Found, notes: &mut Vec<String>) -> Option<Vec<Gpu>> {
    let here = found.gpus.first().map(|gpu| gpu.device.vendor);
    let of_vendor = |&&(vendor, _): &&(Vendor, &[&'static str])| here.is_none_or(|here| here == vendor);
    let (vendor, variable, list) = VARIABLES
        .iter()
        .filter(of_vendor)
        .find_map(|&(vendor, variables)| {
            let (variable, list) = variables
                .iter()
                .find_map(|&variable| Some((variable, environ.get(variable)?)))?;
            Some((vendor, variable, list))
        })?;
    let mut gpus: Vec<Gpu> = Vec::new();
    for name in list.split(',').map(str::trim).take(GPUS_MAX) {
        // the CUDA library stops at the first -1; `NoDevFiles` is Slurm's word for none
        if name.is_empty() || name == "-1" || name == "NoDevFiles" {
            break;
        }
        match resolve(vendor, name, found) {
            Some(gpu) if gpus.iter().all(|known| known.device.name != gpu.device.name) => gpus.push(gpu),
            Some(_) => {}
            None => notes.push(format!(
                "{variable}={list}: `{name}` names no GPU of this node: it is not used"
            )),
        }
    }
    Some(gpus)
}

/// A GPU by index, UUID (or its beginning), instance or tile.
fn resolve(vendor: Vendor, name: &str, found: &Found) -> Option<Gpu> {
    if name.starts_with("GPU-") {
        let known = found.gpus.iter().find(|gpu| gpu.device.name.starts_with(name));
        return Some(known.cloned().unwrap_or_else(|| Gpu::unknown(vendor, name)));
    }
    if let Some(instance) = name.strip_prefix("MIG-") {
        // `MIG-GPU-uuid/instance/compute instance` before driver 470; a plain UUID does not say whose instance it is
        let parent = instance.split('/').next().unwrap_or(instance);
        let parent = found.gpus.iter().find(|gpu| gpu.device.name == parent);
        return Some(Gpu {
            domain: parent.and_then(|gpu| gpu.domain),
            ..Gpu::unknown(vendor, name)
        });
    }
    let (index, is_tile) = match name.split_once('.') {
        Some((index, tile)) if vendor == Vendor::Intel && tile.parse::<u32>().is_ok() => (index, true),
        Some(_) => return None,
        None => (name, false),
    };
    let index: usize = index.parse().ok()?;
    if found.gpus.is_empty() {
        return Some(Gpu::unknown(vendor, name));
    }
    // an index counts the GPUs that this process may open (gres.conf(5), cgroup.conf(5) ConstrainDevices); some sites
    // restrict the files and name the GPU by its number on the machine
    let by_number = || found.gpus.iter().find(|gpu| gpu.number == index);
    let gpu = found.gpus.get(index).or_else(by_number)?;
    if is_tile {
        return Some(Gpu {
            domain: gpu.domain,
            ..Gpu::unknown(vendor, name)
        });
    }
    Some(gpu.clone())
}

/// Where no variable of a vendor is set.
fn unnamed(
    environ: &Environ,
    found: Found,
    expected: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<Vec<Gpu>, PilotError> {
    let numbers = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"]
        .iter()
        .find_map(|&name| environ.get(name))
        .map(|list| crate::node::topology::cpu_list(list)) // `0-3,6`: numbers on this machine
        .unwrap_or_default();
    let by_number: Vec<Gpu> = found
        .gpus
        .iter()
        .filter(|gpu| numbers.contains(&gpu.number))
        .cloned()
        .collect();
    if !by_number.is_empty() {
        return Ok(by_number);
    }
    let count = facts::number(environ, "SLURM_GPUS_ON_NODE")?.or(expected);
    if let Some(count) = count.map(|count| count.min(GPUS_MAX as u64) as usize) {
        if found.gpus.is_empty() && expected.is_none() {
            return Ok((0..count)
                .map(|index| Gpu::unknown(Vendor::Nvidia, &index.to_string()))
                .collect());
        }
        return Ok(found.gpus.into_iter().take(count).collect());
    }
    let in_batch = BATCH_JOB.iter().any(|&name| environ.contains_key(name));
    if in_batch && found.denied == 0 {
        if !found.gpus.is_empty() {
            notes.push(format!(
                "the batch system gives this allocation no GPU: the {} of this node are not used; if they are the \
                 allocation's, set `gpus_per_node`",
                found.gpus.len()
            ));
        }
        return Ok(Vec::new());
    }
    Ok(found.gpus)
}

/// The devices of these GPUs, and those of all others.
pub fn divided(gpus: &[Gpu], mine: &[usize]) -> (Vec<SlotDevice>, Vec<SlotDevice>) {
    let by_whose = gpus.iter().enumerate().fold(
        BTreeMap::from([(true, Vec::new()), (false, Vec::new())]),
        |mut lists: BTreeMap<bool, Vec<SlotDevice>>, (number, gpu)| {
            lists
                .entry(mine.contains(&number))
                .or_default()
                .push(gpu.device.clone());
            lists
        },
    );
    let of = |whose: bool| by_whose.get(&whose).cloned().unwrap_or_default();
    (of(true), of(false))
}

#[cfg(test)]
mod tests;
