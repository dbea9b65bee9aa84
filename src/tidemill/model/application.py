"""An approved application of a site, as written in its TOML file, and its validated arguments. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidemill.model.job import Output, Resources


class Mode(StrEnum):
    """How a payload gets its events: as arguments of a command, or by asking over the range protocol."""

    COMMAND = "command"
    RANGE = "range"


class ParameterType(StrEnum):
    """Types of parameters."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    CHOICE = "choice"


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A typed parameter with limits. A string must match `pattern` whole (default: no white space, no control
    character, no leading dash, at most 255 characters) unless the site gives another."""

    type: ParameterType = ParameterType.STRING
    default: str | int | float | bool | None = None
    min: float | None = None
    max: float | None = None
    choices: list[str] | None = None
    pattern: str | None = None
    help: str = ""


class Runtime(StrEnum):
    """What starts a container."""

    APPTAINER = "apptainer"
    SHIFTER = "shifter"
    PODMAN_HPC = "podman-hpc"
    PODMAN = "podman"
    CHARLIECLOUD = "charliecloud"


class Container(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The container in which the executable is; `image` ends in `@sha256:...` unless it is a directory."""

    image: str
    runtime: Runtime
    gpu: bool = False  #: show the devices of the slot and the host's driver libraries
    bind: list[str] = []  #: `PATH` or `SOURCE:TARGET`, with `:ro` where it must not be written
    options: list[str] = []  #: further options of the runtime, each beginning with `-`


class Application(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the site's staff approved. `arguments` are templates: `{event}` `{first_event}` `{last_event}` `{events}`
    `{seed}` `{line}` `{cores}` `{input.NAME}` and parameters `{NAME}`; each becomes exactly one argument."""

    name: str
    version: str = "1"
    executable: str
    digest: str | None = None  #: `sha256:...` of the executable, checked at every fleet
    script: str | None = None  #: a file the executable interprets, digest-checked too; first argument
    script_digest: str | None = None
    mode: Mode = Mode.COMMAND
    arguments: list[str] = []
    parameters: dict[str, Parameter] = {}
    environment: dict[str, str] = {}
    pass_environment: list[str] = []  #: names copied from the site agent's environment
    images: list[
        str
    ] = []  #: what its payloads see out of memory: `NAME` in SITE/images or a recipe's path, `@sha256:...` pins it
    start_ops: dict[
        str, int
    ] = {}  #: metadata operations that one start costs an `[[io]]` area of the site, until it was traced
    resources: Resources = Resources()
    outputs: list[Output] = []
    events_per_range_max: int | None = None  #: None = 1 unless `{events}` is among the arguments
    range_s: float = 10.0  #: aimed length of one range in range mode and of one chunk in command mode
    trace_every: int = (
        1000  #: the first payload of a version, and of each slot every so many-th, is traced; 0 = none
    )
    looping_s: int | None = None  #: kill a payload that used no CPU and wrote nothing for so long
    log_bytes_max: int = 65536  #: stdout and stderr kept per payload, each
    batch_commands: bool = False  #: may the payload reach the batch system?
    nodes_max: int = 1  #: a job may ask for a payload that spans so many nodes
    ranks_max: int = (
        0  #: a job may ask for so many ranks (MPI) of a payload; 0 = it is never started by a launcher
    )
    container: Container | None = None  #: then `executable` and `script` are paths in the image
    setup: list[
        str
    ] = []  #: shell lines such as `module load x`: run once per version and node type, kept as data
    setup_timeout_s: int = 120
    ready_timeout_s: int = 600  #: range mode: a payload that is not `ready` by then failed its set-up
    help: str = ""


DEFAULT_CORES = 1
DEFAULT_MEMORY_MB = 2000
DEFAULT_EVENT_S = 60.0
DEFAULT_SCRATCH_MB = 1000
