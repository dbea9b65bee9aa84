//! Types of file systems, as /proc/self/mountinfo names them (proc_pid_mountinfo(5)).

use crate::generated::NETWORK_TYPES;

/// Whether many nodes may share file systems of this type: `is_shared` of `src/tidemill/model/file_systems.py`.
pub fn is_shared(kind: &str) -> bool {
    NETWORK_TYPES.contains(&kind) || kind == "fuse" || kind.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_machines_serve_and_what_programs_serve_is_a_network_file_system() {
        for kind in ["nfs4", "lustre", "gpfs", "cvmfs2", "fuse.sshfs", "fuse"] {
            assert!(is_shared(kind), "{kind}");
        }
        for kind in ["ext4", "xfs", "tmpfs", "fuseblk", "overlay", "nfsd", ""] {
            assert!(!is_shared(kind), "{kind}");
        }
    }
}
