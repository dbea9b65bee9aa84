"""Types of file systems, as /proc/self/mountinfo and /proc/mounts name them (proc_pid_mountinfo(5))."""

from __future__ import annotations

from pathlib import Path

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "ceph", "beegfs", "afs", "glusterfs", "panfs", "pvfs2",
     "orangefs", "9p", "ocfs2", "gfs2", "dvs", "wekafs", "daos", "cvmfs2"}
)  # fmt: skip
"""What other machines serve. The Rust side gets this list by `make gen`, and has `is_shared` in crates/wire."""


def is_shared(kind: str) -> bool:
    """Whether many nodes may share file systems of this type. Those in user space may be that, too: CVMFS, sshfs."""
    return kind in NETWORK_TYPES or kind == "fuse" or kind.startswith("fuse.")


KERNEL_TYPES = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "pstore", "bpf", "devpts", "configfs",
     "efivarfs", "binfmt_misc", "selinuxfs", "fusectl", "nsfs"}
)  # fmt: skip
"""Views of the kernel: no user can create files there, although root seems to have the permission."""

MOUNTINFO = Path("/proc/self/mountinfo")


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """Type of the file system below `path` (or below its nearest parent that exists), such as `ext4`; `` if unknown.

    The format is that of proc_pid_mountinfo(5): field 5 is the mount point, the type follows the lone dash.
    """
    real = path.resolve()
    text = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape") if mountinfo is None else mountinfo
    best, result = -1, ""
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_unescape(fields[4]))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, result = len(point.parts), right.split(" ", 1)[0]
    return result


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
