//! The GPUs of a slot as its payloads find them: variables, and device files that they must not see. Pure.
//!
//! Each vendor has one variable. With AMD, ROCR_VISIBLE_DEVICES filters first and HIP_VISIBLE_DEVICES (for which HIP also
//! reads CUDA_VISIBLE_DEVICES) counts what is left (ROCm, "GPU isolation techniques"): only the first is set. Without the
//! files of the others, libraries count the slot's own GPUs from 0, so that indices are renumbered; UUIDs stay.

use std::path::PathBuf;

use crate::{SlotDevice, SlotSpec, Vendor};

/// Variables that choose GPUs; payloads get none of the pilot's.
const CHOOSING: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "NVIDIA_VISIBLE_DEVICES",
];
/// All GPUs of the slot, whosesoever they are.
const ALL: &str = "TIDEMILL_DEVICES_GPU";

impl SlotSpec {
    /// Files of GPUs that are not the slot's. None are hidden where those of one are not known: what is left could not be
    /// numbered.
    pub(crate) fn hidden_files(&self) -> Vec<PathBuf> {
        let mut all = self.devices.iter().chain(&self.other_devices);
        if self.directory.is_some() || all.any(|device| device.files.is_empty()) {
            return Vec::new();
        }
        // instances of one GPU share its files
        let own = |file: &&PathBuf| self.devices.iter().any(|device| device.files.contains(file));
        let others = self.other_devices.iter().flat_map(|device| &device.files);
        others.filter(|file| !own(file)).cloned().collect()
    }

    /// Whether the node has GPUs: then variables of the pilot that choose some are not the payloads'.
    pub(crate) fn chooses_devices(&self, variable: &str) -> bool {
        let any = !self.devices.is_empty() || !self.other_devices.is_empty();
        any && self.directory.is_none() && CHOOSING.contains(&variable)
    }

    /// Variables by which payloads find the slot's GPUs and no others. `hidden`: they cannot open those of others.
    pub(crate) fn device_variables(&self, hidden: bool) -> Vec<(&'static str, String)> {
        let first = self.devices.first().or(self.other_devices.first());
        let Some(vendor) = first.map(|device| device.vendor) else {
            return Vec::new();
        };
        let own = self.devices.iter().enumerate();
        let names: Vec<String> = own.map(|(place, device)| named(device, place, hidden)).collect();
        let list = names.join(",");
        let variable = match vendor {
            Vendor::Nvidia => "CUDA_VISIBLE_DEVICES",
            Vendor::Amd => "ROCR_VISIBLE_DEVICES",
            Vendor::Intel => "ZE_AFFINITY_MASK",
        };
        match (self.devices.is_empty(), vendor) {
            // payloads over nodes: their GPUs are the launcher's to give
            (true, _) if self.directory.is_some() => Vec::new(),
            (true, Vendor::Intel) => Vec::new(), // an empty mask is one that is not set
            (true, _) => vec![(variable, String::new())],
            (false, _) => vec![(variable, list.clone()), (ALL, list)],
        }
    }
}

fn named(device: &SlotDevice, place: usize, hidden: bool) -> String {
    match device.name.parse::<u32>() {
        Ok(_) if hidden => place.to_string(),
        _ => device.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(vendor: Vendor, name: &str, files: &[&str]) -> SlotDevice {
        SlotDevice {
            vendor,
            name: name.to_owned(),
            files: files.iter().map(PathBuf::from).collect(),
        }
    }

    fn spec(devices: Vec<SlotDevice>, other_devices: Vec<SlotDevice>) -> SlotSpec {
        SlotSpec {
            devices,
            other_devices,
            ..SlotSpec::default()
        }
    }

    #[test]
    fn each_vendor_has_one_variable() {
        for (vendor, variable) in [
            (Vendor::Nvidia, "CUDA_VISIBLE_DEVICES"),
            (Vendor::Amd, "ROCR_VISIBLE_DEVICES"),
            (Vendor::Intel, "ZE_AFFINITY_MASK"),
        ] {
            let spec = spec(
                vec![device(vendor, "2", &[]), device(vendor, "GPU-a", &[])],
                Vec::new(),
            );
            let list = "2,GPU-a".to_owned();
            assert_eq!(
                spec.device_variables(false),
                [(variable, list.clone()), (ALL, list)]
            );
        }
        assert!(spec(Vec::new(), Vec::new()).device_variables(true).is_empty());
    }

    #[test]
    fn indices_are_renumbered_where_other_files_are_hidden_and_uuids_stay() {
        let own = vec![
            device(Vendor::Nvidia, "6", &["/dev/nvidia6"]),
            device(Vendor::Nvidia, "GPU-b", &["/dev/nvidia7"]),
        ];
        let spec = spec(own, vec![device(Vendor::Nvidia, "0", &["/dev/nvidia0"])]);
        assert_eq!(spec.hidden_files(), [PathBuf::from("/dev/nvidia0")]);
        assert_eq!(spec.device_variables(true)[0].1, "0,GPU-b");
        assert_eq!(spec.device_variables(false)[0].1, "6,GPU-b");
    }

    #[test]
    fn nothing_is_hidden_where_the_files_of_one_gpu_are_not_known() {
        let instance = device(Vendor::Nvidia, "MIG-c7384736", &[]);
        let other = device(Vendor::Nvidia, "0", &["/dev/nvidia0"]);
        assert!(spec(vec![instance], vec![other.clone()])
            .hidden_files()
            .is_empty());
        let shared = device(Vendor::Nvidia, "MIG-GPU-a/1/0", &["/dev/nvidia0"]);
        assert!(
            spec(vec![shared], vec![other]).hidden_files().is_empty(),
            "instances share a file"
        );
    }

    #[test]
    fn a_slot_without_gpus_finds_none_and_a_payload_over_nodes_is_left_alone() {
        let others = vec![device(Vendor::Amd, "0", &["/dev/dri/renderD128"])];
        let mut spec = spec(Vec::new(), others);
        assert_eq!(
            spec.device_variables(true),
            [("ROCR_VISIBLE_DEVICES", String::new())]
        );
        assert!(spec.chooses_devices("HIP_VISIBLE_DEVICES") && !spec.chooses_devices("CUDA_PATH"));
        spec.directory = Some("/d".into());
        assert!(spec.device_variables(false).is_empty() && spec.hidden_files().is_empty());
        assert!(!spec.chooses_devices("HIP_VISIBLE_DEVICES"));
    }
}
