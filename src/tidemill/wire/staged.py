"""What nodes take from shared file systems, and how much of it they may. All names are in `wire/node.py` too."""

from __future__ import annotations

import msgspec


class IoArea(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a shared file system and what the centre allows us there; None = no bound."""

    name: str
    prefixes: list[str]
    ops_per_s: float | None  #: metadata operations
    bytes_per_s: float | None


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """`length` bytes at `offset` of a file on the shared file system."""

    path: str
    offset: int
    length: int


class StagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that nodes hold in memory: its pieces, one after the other."""

    sha256: str  #: 64 hex digits, of the whole; also its name among nodes
    bytes: int
    pieces: list[Piece]


class ImageUse(msgspec.Struct, frozen=True, kw_only=True):
    """A squashfs image that payloads see in place of `areas` of the shared file system; `/sw/a` is `sw/a` in it. Names
    that exist there and are not in it are links to `/tmp/.tidemill/real` + path, where payloads see the real tree."""

    name: str
    file: StagedFile
    areas: list[str]
    unpacked_bytes: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What payloads of a site see of a node's file system besides their slot, and what they may change there."""

    #: the site runs jobs of others than its owner: everything outside of the slot is read-only
    shared: bool
    #: of a person's own site: what is theirs below /tmp is shown, and writable
    own_tmp: bool
    veils: list[str]  #: hidden, but for what is named: home directories, Tidemill's installation
    keep: list[str]  #: shown, and not to be written: Tidemill's installation
    show: list[str]  #: named by the site: shown read-only where they would be hidden
    write: list[str]  #: named by the site: shown, and as writable as they are
    credentials: list[str]  #: hidden by their usual names: `~/.ssh`, `/tmp/krb5cc_*`
    allowed: list[str]  #: credentials that the owner of the site shows to their own programs


class NamedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What an application file names, and what follows from it: its slot shows this, too."""

    show: list[str]  #: read-only
    write: list[str]  #: as writable as they are
    may_mount: bool  #: it mounts something itself, as runtimes of containers do: Landlock bounds no files


class SetupDef(msgspec.Struct, frozen=True, kw_only=True):
    """Shell lines that the site approved, such as `module load`. Run once per `key` and type of node, by the first
    pilot that finds no `STORE/KEY.NODETYPE.json`; what they change in the environment is data for all later starts."""

    key: str
    lines: list[str]
    store: str
    timeout_s: float


class ApprovedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a program, as the site's staff approved it: the slot checks it before every start. `mtime_ns` and
    `ctime_ns`: of a file that is too large for every slot to read; its owner can set the first, no user the second.
    None: it was not noted, and is not compared."""

    path: str
    sha256: str
    bytes: int
    mtime_ns: int
    ctime_ns: int | None = None


class NodeCacheDef(msgspec.Struct, frozen=True, kw_only=True):
    """XRootD as the cache of each node: pilots start it when a job reads through it.

    `config` and `authdb` hold `{dir}`, the cache's directory in node memory, and `{report}`, the UDP port on which the
    pilot hears what it served.
    """

    name: str
    program: str  #: `xrootd` by name or path
    memory_mb: int  #: of the node, in all
    ram_mb: int  #: part of it for blocks on their way; the rest is for files
    config: str
    authdb: str
    environment: dict[str, str]
