"""What a node's abilities mean: one finding each, and what every lack costs, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.model.quantities import bytes_text
from tidemill.site.setup.capabilities import Abilities, NodeDirectory, Way
from tidemill.site.setup.finding import Finding

OPEN_FILES_MIN = 1024
PROCESSES_MIN = 1024
STACK_BYTES_MIN = 8 << 20  # what programs are linked for by default, ld(1) and getrlimit(2)
SHM_BYTES_MIN = 1_000_000_000


WITHOUT_NAMESPACES = (
    "payloads see each other, /tmp and all files of the site's user, keys too, and may change them"
)
"""What is open where the kernel gives no namespaces, in one line."""


class ImageSize(NamedTuple):
    """An image of the site: what it takes packed and unpacked, in bytes."""

    name: str
    packed: int
    unpacked: int


class Uses(NamedTuple):
    """What a site uses of its nodes; it is warned of no other lack.

    `containers`: it has runtimes configured, or applications with an image of theirs; `peers`: nodes read inputs and
    images from each other.
    """

    images: Sequence[ImageSize] = ()
    containers: bool = False
    peers: bool = False


def of_abilities(node: Abilities, uses: Uses) -> list[Finding]:
    """All findings, the ways first."""
    return [
        *_ways(node, uses.images),
        _containers(node, is_used=uses.containers),
        _cgroups(node),
        *_limits(node),
        *_memory(node),
        _network(node, is_used=uses.peers),
        *_confinement(node),
    ]


def _ways(node: Abilities, images: Sequence[ImageSize]) -> list[Finding]:
    ways = node.ways
    said = {
        "fuse": "packed in memory, shown by squashfuse",
        "unpack": "unpacked into memory",
        "relocate": "unpacked into memory, paths rewritten",
    }
    about = said.get(ways.images.way, ways.images.way)
    isolated = "payloads get their own processes, /tmp and home directory"
    return [
        _way(
            "isolation",
            (isolated if ways.isolation.way == "namespaces" else WITHOUT_NAMESPACES, ""),
            ways.isolation,
        ),
        _way("images", (about, _image_cost(ways.images.way, images)), ways.images)
        if images
        else Finding("images", "ok", f"none yet; they would be {about}"),
        Finding("tracing", "ok", f"exact, by ptrace: {ways.tracing.why}")
        if ways.tracing.way == "ptrace"
        else Finding("tracing", "ok", f"`tidemill trace` does not work here: {ways.tracing.why}"),
        _way(
            "work dirs",
            (
                "in memory, each with a hard cap"
                if ways.scratch.way == "tmpfs"
                else "directories of the node",
                "",
            ),
            ways.scratch,
        ),
    ]


def _way(check: str, words: tuple[str, str], way: Way) -> Finding:
    """A finding: what is done and why; its cost is the hint."""
    found, cost = words
    return Finding(
        check,
        "warn" if way.cost else "ok",
        f"{found}: {way.why}" if way.why else found,
        "; ".join(each for each in (way.cost, cost) if each),
    )


def _image_cost(way: str, images: Sequence[ImageSize]) -> str:
    """How much more memory a node needs for the site's images."""
    if way == "fuse" or not images:
        return ""
    worst = max(images, key=lambda each: each.unpacked - each.packed)
    more_mb = max(0, worst.unpacked - worst.packed) // 1_000_000
    return f"`{worst.name}` needs {more_mb} MB more per node"


def _containers(node: Abilities, *, is_used: bool) -> Finding:
    names = ("apptainer", "singularity", "shifter", "podman-hpc", "podman", "ch-run")
    there = [f"{name} ({node.programs[name]})" for name in names if name in node.programs]
    way = node.ways.containers
    if not there:
        return Finding(
            "containers", "ok", "no container runtime on PATH: applications cannot say `container`"
        )
    found = ", ".join(there)
    if way.cost:
        return Finding("containers", "warn" if is_used else "ok", f"{found}; {way.why}", way.cost)
    return Finding("containers", "ok", f"{found}: rootless ones start inside slots")


def _cgroups(node: Abilities) -> Finding:
    groups = node.cgroups
    if groups.delegated:
        words = " ".join(groups.controllers) or "no controllers"
        return Finding(
            "cgroups", "ok", f"{groups.version}, {groups.path} may be divided by Tidemill ({words})"
        )
    where = f"{groups.version}, {groups.path} is not Tidemill's" if groups.path else "none are mounted"
    return Finding(
        "cgroups", "ok", f"{where}: memory of payloads is sampled, not bounded by the kernel",
        "a payload that grows fast may take more than its share for a second before it is ended",
    )  # fmt: skip


def _limits(node: Abilities) -> list[Finding]:
    def hard(name: str) -> int | None:
        return node.limits.get(name, (None, None))[1]

    found = []
    files, processes, locked = hard("open_files"), hard("processes"), hard("locked_memory")
    stack = node.limits.get("stack", (None, None))[0]
    if files is not None and files < OPEN_FILES_MIN:
        found.append(
            Finding(
                "open files",
                "warn",
                f"limit {files}: a pilot holds about 20 for each slot, image servers one for each open file",
                f"ask for a hard limit of {OPEN_FILES_MIN} or more",
            )
        )
    if processes is not None and processes < PROCESSES_MIN:
        found.append(
            Finding(
                "processes",
                "warn",
                f"limit {processes} for all of yours on the node: forks fail beyond it",
                f"ask for {PROCESSES_MIN} or more",
            )
        )
    if stack is not None and stack < STACK_BYTES_MIN:
        found.append(
            Finding(
                "stack",
                "warn",
                f"limit {bytes_text(stack)}: programs with deep recursion crash",
                "ulimit -s in the site's shell start-up files",
            )
        )
    told = ", ".join(
        f"{name} {'unlimited' if value is None else value}"
        for name, value in (
            ("open files", files),
            ("processes", processes),
            ("locked memory", None if locked is None else bytes_text(locked)),
            ("stack", None if stack is None else bytes_text(stack)),
        )
    )
    return found or [Finding("limits", "ok", told)]


def _memory(node: Abilities) -> list[Finding]:
    room = min(each for each in (node.memory.total, node.memory.limit) if each is not None)
    shm = next((each for each in node.places if each.path == "/dev/shm"), None)
    result = [_shm(shm, room)]
    if node.memory.limit is not None:
        result.append(
            Finding(
                "memory",
                "ok",
                f"the control group may use {bytes_text(node.memory.limit)} of {bytes_text(node.memory.total)}; "
                "images, inputs and work directories in memory count",
            )
        )
    return result


def _shm(shm: NodeDirectory | None, room: int) -> Finding:
    if shm is None or not shm.writable:
        lack = "there is none" if shm is None else "you may not write to it"
        return Finding(
            "/dev/shm",
            "warn",
            lack,
            "without user namespaces, work directories and images go to /tmp instead",
        )
    about = (
        f"{shm.kind}, {bytes_text(shm.free_bytes)} free of {bytes_text(shm.bytes)}; memory {bytes_text(room)}"
    )
    if shm.kind not in ("tmpfs", "ramfs"):
        return Finding("/dev/shm", "warn", f"{about}: it is not memory", "work directories cost disk traffic")
    if shm.no_exec:
        return Finding(
            "/dev/shm", "warn", f"{about}; mounted noexec",
            "without user namespaces, programs of images cannot be started from it",
        )  # fmt: skip
    if shm.free_bytes < SHM_BYTES_MIN:
        return Finding(
            "/dev/shm", "warn", about, "what other jobs left there takes memory: report it to the staff"
        )
    return Finding("/dev/shm", "ok", about)


def _network(node: Abilities, *, is_used: bool) -> Finding:
    if node.can("tcp") and not node.address.startswith("127."):
        return Finding(
            "node to node", "ok",
            f"this node can serve files at {node.address}; whether others reach it shows when two pilots meet: where "
            "TCP is closed each reads the shared file system for itself",
        )  # fmt: skip
    why = node.tried["tcp"].why if "tcp" in node.tried else "it was not tried"
    return Finding(
        "node to node",
        "warn" if is_used else "ok",
        f"this node cannot serve files to others: {why or 'its only address is loopback'}",
        "each node reads images and inputs from the shared file system: set `harvest.tcp` to `lead` or `closed`",
    )


def _confinement(node: Abilities) -> list[Finding]:
    result = []
    if node.no_new_privs:
        result.append(
            Finding(
                "privileges",
                "ok",
                "set-user-id programs have no effect here (no_new_privs): setuid runtimes fail",
            )
        )
    if node.confined and "unconfined" not in node.confined:
        result.append(Finding("confined", "ok", f"Tidemill runs in `{node.confined}`"))
    return result
