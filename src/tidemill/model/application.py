"""An approved application of a site, as written in its TOML file, and its validated arguments. Pure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Size
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
    """A typed parameter with limits. A string must match `pattern` whole (default: ASCII letters, digits and
    `_.,:=+@%/~^-`, at most 255, no leading `-` or `~`, no `..` in a path) unless the site gives another."""

    type: ParameterType = ParameterType.STRING  #: what a value must be
    default: str | int | float | bool | None = None  #: where a job gives no value; none = it has to give one
    min: int | float | None = None  #: of a number: the smallest that is legal
    max: int | float | None = None  #: of a number: the largest that is legal
    choices: list[str] | None = None  #: of a `choice`: the words that are legal
    pattern: str | None = None  #: of a `string`: a regular expression, in the syntax of RE2
    help: str = ""  #: what it is for, shown to submitters


class LineText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line of an `each` input, or a field of it, must be to become part of an argument."""

    pattern: str  #: a regular expression in the syntax of RE2 that the whole line or field must match


class Runtime(StrEnum):
    """A program that starts containers."""

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
    `{seed}` `{line}` `{column.K}` (field K of the line, between tabs, from 0) `{cores}` `{input.NAME}` and parameters
    `{NAME}`; each becomes exactly one argument. Inputs are in their own directory, `TIDEMILL_INPUTS`."""

    name: str  #: what jobs call it
    version: str = "1"  #: measured times and profiles are kept for each
    executable: str  #: path of the program
    digest: str | None = None  #: `sha256:...` of the executable, checked at every fleet
    script: str | None = None  #: a file the executable interprets, digest-checked too; first argument
    script_digest: str | None = None  #: `sha256:...` of the script
    mode: Mode = Mode.COMMAND  #: events are arguments, or asked for by the range protocol
    arguments: list[str] = []  #: templates, see above
    parameters: dict[str, Parameter] = {}  #: what jobs may choose, each within limits
    #: names of the inputs that jobs may give, with `*` for any characters (`part-*`); none = those in `{input.NAME}`,
    #: and `part-*` with an argument `{inputs}`
    inputs: list[str] | None = None
    #: what `{line}` may be, such as `{ pattern = "[a-z]{1,20}" }`; none = as a text parameter without a pattern
    line: LineText | None = None
    #: what `{column.K}` may be, by K, such as `{ 1 = { pattern = "[0-9]{1,9}" } }`; none = as for `line`
    columns: dict[str, LineText] = {}
    environment: dict[str, str] = {}  #: variables of its payloads
    #: schemes of URLs that its program opens by itself, such as `["root", "https"]`: for inputs with `read = "url"`
    opens: list[Literal["root", "roots", "xroot", "xroots", "http", "https", "dav", "davs"]] = []
    pass_environment: list[str] = []  #: names copied from the site agent's environment
    #: what its payloads see out of memory: `NAME` in SITE/images or a recipe's path, `@sha256:...` pins it
    images: list[str] = []
    #: metadata operations that one start costs an `[[io]]` area of the site, until it was traced
    start_ops: dict[str, int] = {}
    #: bytes that one start reads there, such as `"300MB"`, until it was traced
    start_bytes: dict[str, Size] = {}
    resources: Resources = Resources()  #: of a slot, where a job gives none
    outputs: list[Output] = []  #: of a job that gives none
    events_per_range_max: int | None = None  #: at most; none = 1 unless `{events}` is among the arguments
    range_s: float = 10.0  #: aimed length of one range in range mode and of one chunk in command mode
    #: the first payload of a version, and of each slot every N-th, is traced; 0 = none
    trace_every: int = 1000
    looping_s: int | None = None  #: kill a payload that used no CPU and wrote nothing for this time
    log_bytes_max: int = 65536  #: stdout and stderr kept per payload, each
    #: paths that its payloads see, read-only, although slots hide them: below /tmp or a home directory
    show: list[Path] = []
    write: list[Path] = []  #: paths that its payloads see and may write to, as far as the site's user may
    #: its programs mount something themselves, such as a script that starts Apptainer: Landlock then bounds no files,
    #: and they may make namespaces; implied by `container`
    mounts: bool = False
    batch_commands: bool = False  #: may the payload reach the batch system?
    #: does it need the network (a conditions database, a licence server)? none = as the site's `network` says
    network: bool | None = None
    #: processes and threads of a slot at most; none = 256, and 32 more for each core
    processes_max: Annotated[int, msgspec.Meta(ge=8)] | None = None
    nodes_max: int = 1  #: most nodes that a payload of a job may span
    #: most ranks (MPI) that a payload of a job may have; 0 = it is never started by a launcher
    ranks_max: int = 0
    container: Container | None = None  #: then `executable` and `script` are paths in the image
    #: shell lines such as `module load x`: run once per version and node type, kept as data
    setup: list[str] = []
    setup_timeout_s: int = 120  #: give up the lines of `setup` after this time
    ready_timeout_s: int = 600  #: range mode: a payload that is not `ready` by then failed its set-up
    help: str = ""  #: what it does, shown to submitters


DEFAULT_CORES = 1
DEFAULT_MEMORY_MB = 2000
DEFAULT_EVENT_S = 60.0
DEFAULT_SCRATCH_MB = 1000
