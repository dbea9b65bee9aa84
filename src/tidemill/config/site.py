"""The settings of a site: what `SITE/site.toml` may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from tidemill import extensions
from tidemill.config.caching import SiteCache
from tidemill.config.hidden import is_credential, why_hidden
from tidemill.config.io import Io
from tidemill.config.keys import HTTP, Addresses, Duration, Size, addresses, doc, name_of, refuse_password
from tidemill.config.outlets import ContactMail, Metrics
from tidemill.config.transfer import Endpoint, Transfer

STAGE_FILE_BYTES = 20_000_000_000
"""Bytes that one staged input may have in a stage of any size; a large file of data of an experiment has a few GB."""

STAGE_FILE_PART = 5
"""... and the part of a larger stage that one may take."""


class NodeUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Tidemill uses of each node; on the embedded batch system what an emulated node has."""

    cores: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None,
        doc("Cores of a node; none = all that it has (local: this machine's, divided by `local.nodes`)"),
    ] = None
    memory_mb: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        doc("Memory of a node; none = all that it has (local: this machine's, divided by `local.nodes`)"),
    ] = None
    gpus: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1024)] | None,
        doc(
            "GPUs of a node: Slurm and PBS are asked for them; none = ask for none, and use those that an allocation "
            "has anyway (local: all of this machine with one node, else 0, since emulated nodes would share them)"
        ),
    ] = None


class LocalBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded batch system: it emulates nodes of this machine."""

    nodes: Annotated[int, msgspec.Meta(ge=1, le=10_000), doc("Emulated nodes")] = 1


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Tidemill asks the centre's batch system (Slurm, PBS, Grid Engine) for nodes."""

    partition: Annotated[str, doc("Partition or queue; empty = the batch system's default")] = ""
    qos: Annotated[str, doc("Quality of service (Slurm); empty = the default")] = ""
    reservation: Annotated[str, doc("Reservation to run in; empty = none")] = ""
    features: Annotated[list[str], doc("Nodes must have all of these features")] = []
    exclude: Annotated[list[str], doc("Names of nodes that are never used")] = []
    server: Annotated[
        str, doc("Server for the commands of PBS (`PBS_DEFAULT`); empty = the one of pbs.conf")
    ] = ""
    directives: Annotated[
        list[str],
        doc(
            "Further options of the submit command, such as `--gres=gpu:4`, which win over Tidemill's. Slurm: those "
            "that begin with `#` are lines for the head of the batch script, such as `#BB create_persistent ...` or "
            "`#DW jobdw ...`"
        ),
    ] = []
    launcher: Annotated[
        Literal["auto", "srun", "pbsdsh", "mpiexec", "fork"],
        doc("What starts a command on several nodes; `auto` = the batch system's own, else mpiexec"),
    ] = "auto"
    calls_per_min_max: Annotated[
        int, msgspec.Meta(ge=2), doc("Commands that Tidemill runs in a minute at most; more wait")
    ] = 30

    def __post_init__(self) -> None:
        """Refuse what the shell would run."""
        for line in self.directives:
            if line.startswith("#") and ("\n" in line or "\r" in line):
                raise ValueError(f"`directives` holds `{line[:80]}`: expected one line")

    @property
    def submit_options(self) -> list[str]:
        """Of `directives`, those for the submit command."""
        return [line for line in self.directives if not line.startswith("#")]

    @property
    def script_head(self) -> list[str]:
        """Of `directives`, the lines for the head of the batch script."""
        return [line for line in self.directives if line.startswith("#")]


class Account(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grant of the centre. Several are used up in the order of the file."""

    name: Annotated[str, doc("Account or project, as the batch system knows it")]
    node_hours: Annotated[
        float,
        msgspec.Meta(gt=0),
        doc(
            "Node-hours of it that Tidemill may use: what was left when the site began; a grant of core-hours divided "
            "by the cores of a node"
        ),
    ]


class Harvest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes we take. Every bound on what we may do is here."""

    policy: Annotated[
        Literal["yield", "preempt", "capped", "windows", "demand"] | None,
        doc(
            "`yield` releases nodes before regular jobs wait; `preempt` leaves that to the scheduler; `capped` fits "
            "its limits to the gaps and never yields; `windows` uses only what no plan needs; `demand` queues like "
            "any user's jobs. none = `demand` on the local batch system, `windows` where the batch system shows no "
            "plan, else `yield`"
        ),
    ] = None
    width: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        doc("Nodes of an allocation at least; none = 1"),
    ] = None
    node_hours_max: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None, doc("Node-hours in all, until raised; none = no bound")
    ] = None
    tcp: Annotated[
        Literal["open", "lead", "nodes", "closed"],
        doc(
            "What pilots reach by TCP. `open`: this host, where a lead gives them work, and each other, for files; "
            "`lead`: this host only; `nodes`: each other only; `closed`: nothing. Without a lead work travels by files"
        ),
    ] = "open"

    def __post_init__(self) -> None:
        """Refuse what cannot work together."""
        if not self.has_lead and (self.width or 1) > 1:
            raise ValueError(
                f'`tcp = "{self.tcp}"`: without a lead allocations have one node, and `width` asks for more: leave '
                "`width` out, or let pilots reach a lead"
            )

    @property
    def has_lead(self) -> bool:
        """Whether pilots reach a lead on the agent's host."""
        return self.tcp in ("open", "lead")

    @property
    def has_peers(self) -> bool:
        """Whether pilots reach each other."""
        return self.tcp in ("open", "nodes")


class ContainerRuntime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A container runtime of the centre that applications may use."""

    command: Annotated[
        list[str],
        doc(
            "Its program, as compute nodes see it, and options before its verb, such as "
            '`["/usr/bin/podman", "--storage-driver=vfs"]`'
        ),
    ]
    options: Annotated[list[str], doc("Options behind its verb that every application gets")] = []

    def __post_init__(self) -> None:
        """Refuse a program that is looked for on PATH: nodes have another one."""
        if not self.command or not self.command[0].startswith("/"):
            told = " ".join(self.command) or "empty"
            raise ValueError(f"`command` is `{told}`, expected a program's absolute path and its options")

    @property
    def program(self) -> Path:
        """The path of its program."""
        return Path(self.command[0])


class SiteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site: `SITE/site.toml`."""

    FILE: ClassVar[str] = "site.toml"

    name: Annotated[str, name_of(31, "_.-"), doc("Name of the site")]
    server: Annotated[
        Addresses,
        doc(
            "The server's address: `unix:/path/api.sock`, `https://host:port`, `http://host:port` or that of an "
            "extension's transport, such as `amqps://broker:port/vhost`; of a pair both, as a list"
        ),
    ]
    secret_file: Annotated[
        Path | None, doc("File (mode 0600) with the secret of the server's TCP listener")
    ] = None
    certificate: Annotated[
        Path | None, doc("The site's certificate (PEM), as `tidemill certs issue site NAME` makes it")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600); none = in the same file")] = (
        None
    )
    ca: Annotated[
        Path | None,
        doc("CA of the server's certificate: a PEM file, or a directory by hash; none = the system's CAs"),
    ] = None
    token_file: Annotated[
        Path | None,
        doc("File (mode 0600) with a bearer token that something else renews, as htgettoken does"),
    ] = None
    mode: Annotated[
        Literal["run", "observe"],
        doc(
            "`observe` takes no work and submits nothing, it only shows what it sees: `site init` writes it, with "
            "`nodes_max = 4` and `harvest.node_hours_max = 100`"
        ),
    ] = "run"
    batch: Annotated[
        str,
        doc("The batch system: `local`, `slurm`, `pbs` or an extension's, such as `gridengine`"),
    ] = "local"
    node: Annotated[NodeUse, doc("What Tidemill uses of each node")] = NodeUse()
    local: Annotated[LocalBatch, doc("The embedded batch system")] = LocalBatch()
    cluster: Annotated[Cluster, doc("How the centre's batch system is asked")] = Cluster()
    harvest: Annotated[Harvest, doc("Which nodes Tidemill takes")] = Harvest()
    accounts: Annotated[list[Account], doc("Grants of the centre, used in this order; none = no ledger")] = []
    io: Annotated[
        list[Io], doc("Areas of shared file systems with a budget; starts are paced to keep it")
    ] = []
    contact: Annotated[
        str, doc("Mail address of the operator: in every job's comment, notified when staff stop the site")
    ] = ""
    stop_file: Annotated[
        Path | None, doc("A path agreed with the centre's staff: a file there stops the site")
    ] = None
    mail: Annotated[ContactMail, doc("Where mail goes out")] = ContactMail()
    metrics: Annotated[Metrics, doc("Who may read the agent's metrics")] = Metrics()
    nodes_max: Annotated[
        int, msgspec.Meta(ge=1, le=100_000), doc("Nodes that Tidemill holds or asks for at most")
    ] = 100
    walltime_s: Annotated[Duration, msgspec.Meta(ge=10), doc("Time that an allocation asks for")] = 3600.0
    data_roots: Annotated[
        list[Path],
        doc(
            "`file:` inputs and outputs must lie below one of these directories; delivered outputs of other owners "
            "cannot be inputs"
        ),
    ] = []
    output_dir: Annotated[
        Path | None,
        doc("Where outputs go that name no place, apart for each owner; none = `out` in the site directory"),
    ] = None
    allow_adhoc: Annotated[bool, doc("May submitters run commands that no application file approves?")] = (
        False
    )
    shared: Annotated[
        bool | None,
        doc(
            "Does the site run jobs of others than its owner? Then payloads must be isolated, see no home directory "
            "and change no file outside of their slot; none = yes, unless the server is your own (`unix:`)"
        ),
    ] = None
    isolation: Annotated[
        Literal["auto", "optional", "off"],
        doc(
            "`auto`: slots have namespaces where the kernel gives them, and a `shared` site runs payloads only there; "
            "`optional`: a `shared` site runs payloads without them, too, where the kernel gives none; `off`: no slot "
            "has them, and programs may gain rights by set-user-id bits, which setuid container runtimes need"
        ),
    ] = "auto"
    network: Annotated[
        Literal["auto", "open", "closed"],
        doc(
            "What payloads reach whose application does not say `network`. `open`: the network of the node, and its "
            "abstract sockets; `closed`: their own loopback, and pilots refuse where the kernel has no network "
            "namespaces; `auto`: `open` on a person's own site; on a `shared` one their own loopback, where the kernel "
            "has that"
        ),
    ] = "auto"
    containers: Annotated[
        dict[str, ContainerRuntime],
        doc(
            "Container runtimes that applications may use: apptainer, shifter, podman-hpc, podman, charliecloud"
        ),
    ] = {}
    affinity: Annotated[
        Literal["spread", "compact", "core", "none"],
        doc(
            "How slots are laid over cores: `compact` fills one memory domain before the next, `spread` takes the "
            "emptiest, `core` is `compact` by physical cores, `none` binds nothing"
        ),
    ] = "compact"
    mask: Annotated[
        list[Path], doc("Paths that payloads must not see, besides the site directory and its secrets")
    ] = []
    show: Annotated[
        list[Path],
        doc(
            "Paths that payloads see, read-only, although slots hide what lies there: below /tmp or a home directory. "
            "On your own site also credentials of yours, such as `~/.aws`, which programs then may change; others stay "
            "hidden by their usual names"
        ),
    ] = []
    write: Annotated[
        list[Path], doc("Paths that payloads see and may write to, as far as the site's user may")
    ] = []
    fast_dir: Annotated[
        str,
        doc(
            "A fast directory of each node, such as `/local/scratch`, or by a variable (`$DW_JOB_STRIPED`) the burst "
            "buffer of the allocation, which a line `#DW ...` or `#BB ...` in `cluster.directives` asks for: inputs of "
            "1 GB and more are held there instead of in memory, and work directories that do not fit into memory; "
            "empty = none, and jobs with such directories are refused"
        ),
    ] = ""
    output_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=1),
        doc(
            "Bytes of the outputs of one payload (of one range, where it takes ranges) at most, holes of sparse files "
            "included; a payload that leaves more has failed"
        ),
    ] = 20_000_000_000
    lead_listen: Annotated[str, doc("Address that the lead listens on; port 0 = any free one")] = (
        "127.0.0.1:0"
    )
    stage_bytes_max: Annotated[
        Size,
        msgspec.Meta(ge=1),
        doc("Bytes of staged inputs at most, of all jobs together; one of them may have a fifth, or 20 GB"),
    ] = 100_000_000_000
    transfer: Annotated[
        Transfer, doc("How data are moved from and to other sites, and what is kept of them")
    ] = Transfer()
    endpoints: Annotated[
        list[Endpoint], doc("Places outside the site that inputs may come from and outputs may go to")
    ] = []
    caches: Annotated[
        list[SiteCache], doc("Caches of far files that this site's payloads may read through")
    ] = []

    def __post_init__(self) -> None:
        """Refuse what cannot work together, and a password."""
        refuse_password(self.server)
        if self.cluster.script_head and self.batch not in ("slurm", "local"):
            raise ValueError(
                f"`cluster.directives` holds `{self.cluster.script_head[0][:80]}`: only Slurm reads lines of the batch "
                f"script; give {self.batch} options of its submit command"
            )
        if self.isolation == "off" and self.network == "closed":
            raise ValueError(
                '`isolation = "off"` leaves payloads without namespaces, so none can have a network of its own: leave '
                '`network = "closed"` out'
            )
        schemes = {each.partition(":")[0].lower() for each in addresses(self.server)}
        alone = schemes & extensions.names(extensions.TRANSPORTS) - HTTP
        if alone and len(addresses(self.server)) > 1:
            scheme = min(alone)
            raise ValueError(
                f"`server`: `{scheme}:` is the only address: both servers of a pair are reached by it"
            )
        if self.fast_dir and not self.fast_dir.startswith(("/", "$")):
            raise ValueError(
                f"`fast_dir` is `{self.fast_dir}`: expected an absolute path, which may begin with a variable of the "
                "allocation, such as `$DW_JOB_STRIPED`"
            )
        for key, paths in (("show", self.show), ("write", self.write)):
            for path in paths:
                why = why_hidden(path)
                if key == "show" and is_credential(path):
                    why = self._why_not_shown(path)
                if why is not None:
                    raise ValueError(f"`{key}`: `{path}` {why}")

    def _why_not_shown(self, path: Path) -> str | None:
        """Why payloads may not see a credential that `show` names; None on the owner's site."""
        if ".." in path.parts:
            return why_hidden(path)
        if self.serves_others:
            return (
                "is a credential or a session by its name: it would show your keys to the programs of all users whose "
                "jobs this site runs, which is for your own site (`shared = false`)"
            )
        return None

    @property
    def stage_file_bytes_max(self) -> int:
        """Bytes of one staged input at most: a fifth of the stage, so that a few jobs with large inputs go on side by
        side; a small stage may be filled by one file of an ordinary size."""
        return max(STAGE_FILE_BYTES, self.stage_bytes_max // STAGE_FILE_PART)

    @property
    def serves_others(self) -> bool:
        """Whether it runs jobs of others than its owner."""
        return not self.is_its_own if self.shared is None else self.shared

    @property
    def needs_namespaces(self) -> bool:
        """Whether payloads run only where the kernel gives them namespaces."""
        return self.serves_others and self.isolation == "auto"

    @property
    def is_its_own(self) -> bool:
        """Whether every server that it talks to is on a Unix socket of this machine."""
        return all(each.startswith("unix:") for each in addresses(self.server))
