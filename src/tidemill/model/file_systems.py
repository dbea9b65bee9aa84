"""Types of file systems, as /proc/self/mountinfo and /proc/mounts name them (proc_pid_mountinfo(5))."""

from __future__ import annotations

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "ceph", "beegfs", "afs", "glusterfs", "panfs", "pvfs2",
     "orangefs", "9p", "ocfs2", "gfs2", "dvs", "wekafs", "daos", "cvmfs2"}
)  # fmt: skip
"""What other machines serve. The Rust side gets this list by `make gen`, and has `is_shared` in crates/wire."""


def is_shared(kind: str) -> bool:
    """Whether many nodes may share file systems of this type. Those in user space may be that, too: CVMFS, sshfs."""
    return kind in NETWORK_TYPES or kind == "fuse" or kind.startswith("fuse.")
