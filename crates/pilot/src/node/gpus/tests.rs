use super::*;
use crate::node::machines::{unpacked_devices, DGX, LAPTOP, MI250X, POWER9};

fn environ(pairs: &[(&str, &str)]) -> Environ {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Names and domains of what a machine gives under these variables; `denied`: numbers in device files that are closed.
fn given(machine: &str, denied: &[u32], pairs: &[(&str, &str)]) -> Vec<(String, Option<u32>)> {
    let root = unpacked_devices(machine);
    let closed: Vec<PathBuf> = denied
        .iter()
        .flat_map(|number| [format!("dev/nvidia{number}"), format!("dev/dri/renderD{number}")])
        .map(|file| root.path().join(file))
        .collect();
    let found = find(root.path(), |file| !closed.iter().any(|each| each == file));
    let gpus = allotted(&environ(pairs), found, None, &mut Vec::new()).unwrap();
    gpus.into_iter()
        .map(|gpu| (gpu.device.name, gpu.domain))
        .collect()
}

fn uuid(number: usize) -> String {
    format!("GPU-{number:08x}-0000-4000-8000-{:012x}", number + 1)
}

#[test]
fn gpus_are_found_with_their_domains_where_no_batch_system_gives_any() {
    let domains = [3, 3, 1, 1, 7, 7, 5, 5];
    let all: Vec<_> = (0..8)
        .map(|number| (uuid(number), Some(domains[number])))
        .collect();
    assert_eq!(given(DGX, &[], &[]), all);
    let power: Vec<_> = given(POWER9, &[], &[])
        .into_iter()
        .map(|(_, domain)| domain)
        .collect();
    assert_eq!(power, [0, 0, 0, 8, 8, 8].map(Some));
    assert_eq!(
        given(LAPTOP, &[], &[]),
        [],
        "graphics on the chip is no GPU to compute on"
    );
}

#[test]
fn the_device_files_of_a_gpu_are_its_own_and_none_that_all_share() {
    let root = unpacked_devices(DGX);
    let found = find(root.path(), |_| true);
    let files = ["dev/nvidia2", "dev/dri/renderD131", "dev/dri/card3"].map(|file| root.path().join(file));
    assert_eq!(found.gpus[2].device.files, files);
    let amd = unpacked_devices(MI250X);
    let files = ["dev/dri/renderD129", "dev/dri/card1"].map(|file| amd.path().join(file));
    assert_eq!(find(amd.path(), |_| true).gpus[1].device.files, files);
}

#[test]
fn indices_count_what_may_be_opened() {
    assert_eq!(
        given(DGX, &[], &[("CUDA_VISIBLE_DEVICES", "2,3")]),
        [(uuid(2), Some(1)), (uuid(3), Some(1))]
    );
    let constrained = [0, 1, 2, 3, 6, 7];
    let both = [(uuid(4), Some(7)), (uuid(5), Some(7))];
    assert_eq!(given(DGX, &constrained, &[("CUDA_VISIBLE_DEVICES", "0,1")]), both);
    assert_eq!(
        given(DGX, &constrained, &[("CUDA_VISIBLE_DEVICES", "4,5")]),
        both,
        "numbers of the machine"
    );
    assert_eq!(
        given(DGX, &constrained, &[("SLURM_JOB_ID", "7")]),
        both,
        "closed files say it"
    );
}

#[test]
fn uuids_and_instances_are_used() {
    let second = uuid(1);
    let named = |list: &str| given(DGX, &[], &[("CUDA_VISIBLE_DEVICES", list)]);
    assert_eq!(named(&second), [(second.clone(), Some(3))]);
    assert_eq!(
        named("GPU-00000001"),
        [(second.clone(), Some(3))],
        "its beginning is enough for CUDA"
    );
    assert_eq!(
        named("GPU-8932f937"),
        [("GPU-8932f937".to_owned(), None)],
        "of a machine that does not show it"
    );
    let old = format!("MIG-{second}/1/0");
    let new = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd";
    assert_eq!(
        named(&format!("{old},{new}")),
        [(old, Some(3)), (new.to_owned(), None)]
    );
}

#[test]
fn slurm_gives_numbers_of_the_machine_or_a_count() {
    let job = ("SLURM_JOB_ID", "7");
    assert_eq!(
        given(DGX, &[], &[job, ("SLURM_JOB_GPUS", "6-7")]),
        [(uuid(6), Some(5)), (uuid(7), Some(5))]
    );
    let step = [job, ("SLURM_JOB_GPUS", "0-7"), ("SLURM_STEP_GPUS", "4")];
    assert_eq!(given(DGX, &[], &step), [(uuid(4), Some(7))]);
    assert_eq!(
        given(DGX, &[], &[job, ("SLURM_GPUS_ON_NODE", "1")]),
        [(uuid(0), Some(3))]
    );
    assert_eq!(
        given("", &[], &[("SLURM_GPUS_ON_NODE", "2")]),
        [("0".to_owned(), None), ("1".to_owned(), None)]
    );
}

#[test]
fn an_allocation_without_gpus_takes_none_and_says_so() {
    assert_eq!(given(DGX, &[], &[("SLURM_JOB_ID", "7")]), []);
    for none in ["", "-1", "NoDevFiles"] {
        let pairs = [("CUDA_VISIBLE_DEVICES", none), ("SLURM_GPUS_ON_NODE", "2")];
        assert_eq!(given(DGX, &[], &pairs), [], "`{none}`");
    }
    let root = unpacked_devices(DGX);
    let mut notes = Vec::new();
    let pbs = environ(&[("PBS_JOBID", "7")]);
    let found = find(root.path(), |_| true);
    assert!(allotted(&pbs, found.clone(), None, &mut notes)
        .unwrap()
        .is_empty());
    assert!(notes[0].contains("the 8 of this node are not used"), "{notes:?}");
    assert_eq!(
        allotted(&pbs, found.clone(), Some(4), &mut notes).unwrap().len(),
        4,
        "the site says that it has"
    );
    assert_eq!(allotted(&environ(&[]), found, Some(0), &mut notes).unwrap(), []);
}

#[test]
fn amd_gpus_are_named_by_unique_ids_and_found_by_either_variable() {
    let id = |number: u64| format!("GPU-{:016x}", 0x1000_0000_0000_0000 + number);
    for variable in [
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ] {
        assert_eq!(
            given(MI250X, &[], &[(variable, "0, 4,4")]),
            [(id(0), Some(3)), (id(4), Some(0))]
        );
    }
    let both = [("ROCR_VISIBLE_DEVICES", "4,5"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    assert_eq!(
        given(MI250X, &[], &both),
        [(id(4), Some(0)), (id(5), Some(0))],
        "ROCR filters first"
    );
    assert_eq!(given(MI250X, &[128, 129], &[]).len(), 6);
}

const TWO_INTEL: &str =
    "sys/bus/pci/devices/0000:00:02.0/vendor\t0x8086\nsys/bus/pci/devices/0000:00:02.0/class\t0x030000\n\
    sys/bus/pci/devices/0000:18:00.0/vendor\t0x8086\nsys/bus/pci/devices/0000:18:00.0/class\t0x038000\n\
    sys/bus/pci/devices/0000:18:00.0/numa_node\t0\nsys/bus/pci/devices/0000:9a:00.0/vendor\t0x8086\n\
    sys/bus/pci/devices/0000:9a:00.0/class\t0x038000\nsys/bus/pci/devices/0000:9a:00.0/numa_node\t1\n\
    sys/bus/pci/devices/0000:9b:00.0/vendor\t0x8086\nsys/bus/pci/devices/0000:9b:00.0/class\t0x020000\n";

#[test]
fn intel_gpus_are_those_beside_the_processor_and_may_be_tiles() {
    let one = |name: &str, domain| (name.to_owned(), Some(domain));
    assert_eq!(given(TWO_INTEL, &[], &[]), [one("0", 0), one("1", 1)]);
    assert_eq!(
        given(TWO_INTEL, &[], &[("ZE_AFFINITY_MASK", "1.0,1.1")]),
        [one("1.0", 1), one("1.1", 1)]
    );
}

#[test]
fn without_sys_the_variable_that_is_set_says_whose_they_are() {
    let of = |variable: &str| {
        let gpus = allotted(
            &environ(&[(variable, "2,3")]),
            Found::default(),
            None,
            &mut Vec::new(),
        )
        .unwrap();
        gpus.into_iter()
            .map(|gpu| (gpu.device.vendor, gpu.device.name))
            .collect::<Vec<_>>()
    };
    let both = |vendor| vec![(vendor, "2".to_owned()), (vendor, "3".to_owned())];
    assert_eq!(of("CUDA_VISIBLE_DEVICES"), both(Vendor::Nvidia));
    assert_eq!(of("ROCR_VISIBLE_DEVICES"), both(Vendor::Amd));
    assert_eq!(of("ZE_AFFINITY_MASK"), both(Vendor::Intel));
}

#[test]
fn a_driver_that_has_not_read_its_uuid_yet_leaves_the_index() {
    let machine = "proc/driver/nvidia/gpus/0000:07:00.0/information\tGPU UUID: \\t GPU-????????-????-????-????-????????????\\nDevice \
                   Minor: \\t 3\ndev/nvidia3";
    assert_eq!(given(machine, &[], &[]), [("0".to_owned(), None)]);
    assert_eq!(
        given("dev/nvidia1\ndev/nvidia10\ndev/nvidiactl\n", &[], &[]).len(),
        2,
        "no driver in /proc"
    );
}

#[test]
fn what_is_broken_is_noted_and_skipped() {
    let root = unpacked_devices(DGX);
    let mut notes = Vec::new();
    let found = find(root.path(), |_| true);
    let gpus = allotted(
        &environ(&[("CUDA_VISIBLE_DEVICES", "x,99,1.0,5")]),
        found,
        None,
        &mut notes,
    )
    .unwrap();
    assert_eq!(gpus.len(), 1);
    assert_eq!(notes.len(), 3, "{notes:?}");
}
