"""Types of file systems, as /proc/self/mountinfo and /proc/mounts name them (proc_pid_mountinfo(5))."""

from __future__ import annotations

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "ceph", "beegfs", "afs", "glusterfs", "panfs", "pvfs2",
     "orangefs", "9p", "ocfs2", "gfs2", "dvs", "wekafs", "daos", "cvmfs2"}
)  # fmt: skip
"""What other machines serve. File systems in user space (`fuse.*`) may be that, too: CVMFS, sshfs, JuiceFS."""
