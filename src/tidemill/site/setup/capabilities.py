"""What `tidemill-node doctor --json` says of a node: read, checked. Pure; `lacks` says what it means."""

from __future__ import annotations

import msgspec

from tidemill.errors import UNDECODABLE, SiteError

FORMAT = 1


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something works, and why not."""

    ok: bool
    why: str


class NodeDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory for data of the node."""

    path: str
    kind: str  #: of its file system, such as `tmpfs`
    bytes: int
    free_bytes: int
    free_inodes: int
    writable: bool
    no_exec: bool


class CGroups(msgspec.Struct, frozen=True, kw_only=True):
    """How control groups are there for us."""

    version: str  #: `v2`, `v1`, `hybrid` or `none`
    path: str
    delegated: bool  #: may we make groups of our own there?
    controllers: list[str]


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; `limit` is that of our control group, None = none."""

    total: int
    available: int
    limit: int | None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way, why this one, and what it costs against the best one (empty = nothing)."""

    way: str
    why: str
    cost: str


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """Which ways are taken on the node; decided in `crates/doctor/src/ways.rs`."""

    images: Way  #: `fuse`, `unpack` or `relocate`
    isolation: Way  #: `namespaces` or `subreaper`
    tracing: Way  #: `ptrace` or `none`
    containers: Way  #: `rootless` or `none`
    scratch: Way  #: `tmpfs` or `directory`


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a node can do."""

    format: int
    host: str
    kernel: str
    machine: str
    uid: int
    gid: int
    no_new_privs: bool
    address: str  #: from which it would reach other nodes; empty = it has none
    sysctl: dict[str, str]
    confined: str  #: AppArmor profile or SELinux context
    tried: dict[str, Tried]
    programs: dict[str, str]  #: helper programs, and where they are
    setuid: list[str]  #: those of them that are set-user-id root
    cgroups: CGroups
    limits: dict[str, tuple[int | None, int | None]]  #: soft and hard; None = unlimited
    memory: NodeMemory
    places: list[NodeDirectory]
    ways: Ways

    def can(self, what: str) -> bool:
        """Whether something that was tried works."""
        tried = self.tried.get(what)
        return tried is not None and tried.ok


def without_limit(node: Abilities) -> Abilities:
    """The abilities as a job of the whole node has them, by those that a probe with a part of its memory found."""
    memory = msgspec.structs.replace(node.memory, limit=None)
    return msgspec.structs.replace(node, memory=memory)


def parse_abilities(text: str | bytes) -> Abilities:
    """What the binary printed. Raises SiteError where that is something else."""
    try:
        read = msgspec.json.decode(text, type=Abilities)
    except UNDECODABLE as error:
        shown = (text if isinstance(text, str) else text.decode(errors="replace")).strip()[:200]
        raise SiteError(
            f"`tidemill-node doctor --json` printed an invalid answer ({error}): `{shown}`",
            hint="is it of the same version as tidemill? `tidemill-node --version`",
            transient=False,
        ) from error
    if read.format > FORMAT:
        raise SiteError(
            f"`tidemill-node doctor --json` writes format {read.format}, this tidemill reads {FORMAT}",
            hint="install both of the same version",
            transient=False,
        )
    return read
