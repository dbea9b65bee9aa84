"""A job as its submitter writes it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
"""Names of campaigns, applications, outputs and inputs: fit for a file name on any system."""

EVENTS_MAX = 1_000_000_000
JOB_INPUT = "job:"
"""Begins the URL of an input that another job delivers."""


CATALOGUE = "rucio:"
"""Begins the name of a file in a catalogue."""


class InputKind(StrEnum):
    """Which events read an input."""

    SHARED = "shared"
    EACH = "each"


class ReadAs(StrEnum):
    """How payloads read an input: a file that is copied for them, or a URL that their program opens."""

    FILE = "file"
    URL = "url"


class OutputKind(StrEnum):
    """How the outputs of a job's ranges become the job's output."""

    EACH = "each"
    CONCAT = "concat"
    MERGE = "merge"


class Pack(StrEnum):
    """How the parts of an output of kind `each` are delivered: in one tar archive, or each as a file of its own."""

    TAR = "tar"
    FILES = "files"


class Deliver(StrEnum):
    """When the outputs of a job are delivered: what is done whenever the job ends, or only once it is complete."""

    DONE = "done"
    COMPLETE = "complete"


class Width(NamedTuple):
    """A payload that spans nodes: whole nodes, and ranks (processes of one MPI program) on all of them."""

    nodes: int
    ranks: int


def rate_key(app: str, width: Width | None) -> str:
    """Under what an application's measured seconds per event are kept: apart for each width."""
    return app if width is None else f"{app}@{width.nodes}x{width.ranks}"


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one slot offers. Where a key is left out, the application's figure applies.

    `devices`: kind -> number, such as `{"gpu": 1}`, or `{"gpu_percent": 25}` for a quarter of one GPU, which four such
    payloads share.

    With `nodes` or `ranks` a payload is started by the site's MPI launcher in an allocation of its own; then `cores`
    are those of one rank and `devices` those of one node.
    """

    cores: int | None = None  #: cores of a slot
    memory_mb: int | None = None  #: memory of a slot
    #: a payload that needs more runs again with more memory, up to this; none = it has `memory_mb` each time
    memory_mb_max: int | msgspec.UnsetType = msgspec.UNSET
    devices: dict[str, int] | None = None  #: devices of a slot by kind
    event_s: float | None = None  #: estimated seconds of one event on one slot; replaced by what is measured
    timeout_s: int | None = None  #: a payload (command mode) or range (range mode) is killed after this
    #: a payload that needs longer runs again with more time, up to this; none = it has `timeout_s` each time
    timeout_s_max: int | msgspec.UnsetType = msgspec.UNSET
    scratch_mb: int | None = None  #: size of the slot's /tmp, work directory included
    nodes: int | None = None  #: whole nodes that a payload spans; none = 1
    ranks: int | None = None  #: processes of a payload, alike on each node; none = one on each of `nodes`

    @property
    def grows(self) -> bool:
        """Whether memory or time of a payload may grow when it fails for lack of them."""
        return self.memory_mb_max is not msgspec.UNSET or self.timeout_s_max is not msgspec.UNSET

    @property
    def largest(self) -> Resources:
        """These resources with memory and time limit at the maxima to which they may grow."""
        if not self.grows:
            return self
        return msgspec.structs.replace(
            self,
            memory_mb=self.memory_mb if self.memory_mb_max is msgspec.UNSET else self.memory_mb_max,
            timeout_s=self.timeout_s if self.timeout_s_max is msgspec.UNSET else self.timeout_s_max,
            memory_mb_max=msgspec.UNSET,
            timeout_s_max=msgspec.UNSET,
        )

    @property
    def width(self) -> Width | None:
        """How wide a payload is; None = an ordinary one, in a slot."""
        if self.nodes is None and self.ranks is None:
            return None
        nodes = 1 if self.nodes is None else self.nodes
        return Width(nodes, nodes if self.ranks is None else self.ranks)


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that a command's payload finds as `name` in its work directory; an application's file says which names it
    takes, and its payload finds the path in `{input.NAME}` or `TIDEMILL_INPUT_NAME`.

    `shared`: the same for all events. `each`: `url` names a text file whose line k belongs to event k; a line that is
    itself a URL or path is staged under `name`, and the line's text fills `{line}`.
    `job:ID/OUTPUT` reads the output of another job, and waits for that job: ID is its number, or its name in the same
    job file. `rucio:SCOPE/NAME` is a file of the catalogue that the site asks (`[replicas]` of the extension
    `replicas`).

    An array's outputs are one tar archive. A job that reads it with `unpack = true` finds a directory:
    `inputs = [{ name = "parts", url = "job:split/parts", unpack = true }]`.
    """

    name: str  #: of the file
    url: str  #: where it is, or `job:ID/OUTPUT`
    kind: InputKind = InputKind.SHARED  #: which events read it
    sha256: str | None = None  #: 64 hex digits that the file must have; none = any
    #: `url`: the program opens it where the site says; none = `file`, it is copied before the payload starts
    read: ReadAs | msgspec.UnsetType = msgspec.UNSET
    #: it is a tar archive, such as the outputs of an array, and payloads find a directory `name` with its files
    unpack: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_opened(self) -> bool:
        """Whether the payload's program opens it by a URL, where the site finds a way for that."""
        return self.read is ReadAs.URL

    @property
    def is_routed(self) -> bool:
        """Whether a way to it has to be found: its program opens it, or a catalogue names it."""
        return self.is_opened or self.url.startswith(CATALOGUE)


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that the payload leaves as `path` in its work directory (or names in its `done` message).

    Without `url` it goes to the campaign's output directory. `merge` names the approved application that joins the
    parts.
    """

    name: str  #: what it is called in deliveries
    path: str  #: of the file in the work directory
    kind: OutputKind = OutputKind.EACH  #: how parts of ranges become the job's
    url: str | None = None  #: where it is delivered to
    merge: str | None = None  #: for kind `merge`
    #: of kind `each`: `files` delivers each part as a file named after `path`, at most 100,000; none = one tar archive
    pack: Pack | msgspec.UnsetType = msgspec.UNSET


STRESS_REASON = "stress test: "
"""Begins the reason for which a stress test cancels the rest of a level's job: why the level ended follows."""


class PlannedLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A level of a stress test before it runs."""

    title: str  #: as tables name it
    level: int  #: payloads at the same time
    site: str = ""  #: empty = where the server sends it


class StressLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which level of a stress test a job is: a page shows all levels of a run together. `number`: from 1."""

    run: str  #: identifier of the run
    number: int
    planned: list[PlannedLevel]  #: all levels of the run


class Shell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the submitter's shell sets for its programs. Applies to the payloads and delivered outputs of a command. At
    a site that serves several submitters, the site's own umask applies to outputs, too."""

    umask: int | None = None  #: permission bits that new files do not get, such as 0o027; none = the site's
    #: soft limits, in the units of setrlimit(2), by name: `as`, `core`, `cpu`, `data`, `fsize`, `memlock`, `nofile`,
    #: `nproc`, `rss`, `stack`; -1 = unlimited. A hard limit of the node bounds each; none = the site's
    limits: dict[str, int] = {}


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job. `command` instead of `app` is an ad-hoc command: legal only where a site allows it."""

    app: str | None = None  #: name of the application
    command: list[str] | None = None  #: program and arguments, instead of `app`
    name: str | None = None  #: of the job, for people and for names of outputs
    params: dict[str, str | int | float | bool] = {}  #: values of the application's parameters
    events: int = 1  #: how many there are to do
    inputs: list[Input] = []  #: files that payloads read
    outputs: list[Output] | None = None  #: none = the application's
    output_dir: str | None = None  #: where outputs without a URL go; none = the site's delivery directory
    resources: Resources = Resources()  #: of a slot
    #: job ids, names of other jobs of the same job file, or names of campaigns: their jobs at submission
    after: list[int | str] = []
    after_any: bool = False  #: run even if a job that it comes after failed
    #: up to N failed events make it PARTIAL, not FAILED; more end it
    failed_max: int = 0
    #: what is done at the end of the job, or nothing before it is complete; none = `done`
    deliver: Deliver | msgspec.UnsetType = msgspec.UNSET
    retries: int = 2  #: an event that failed 1 + retries times enters the failed set
    priority: int = 0  #: within the campaign, higher first
    site: str | None = None  #: run only there
    #: the site that the job belongs to: it runs there, unless a ward of the server's hospital lets it run elsewhere
    home: str | msgspec.UnsetType = msgspec.UNSET
    #: the server keeps the times of each payload (`tidemill stress`); none = sums only
    timed: bool | msgspec.UnsetType = msgspec.UNSET
    #: at most N of its events run at the same time, all at one site and each a payload of its own; none = as many
    #: as there are slots
    at_once: int | msgspec.UnsetType = msgspec.UNSET
    stress: StressLevel | msgspec.UnsetType = (
        msgspec.UNSET
    )  #: the level of a stress test that it is; none = of none
    #: stdout of every payload is an output named `stdout`, kind each; `run` and `submit --app` turn it on
    keep_stdout: bool = False
    env: dict[str, str] = {}  #: variables of its payloads: legal only where a site allows it
    #: umask and soft limits for `command`; `run` and `submit FILE` take those of the shell. None = the site's
    shell: Shell | msgspec.UnsetType = msgspec.UNSET
    #: image in which `command` runs: a directory, a file, or `NAME@sha256:...`; legal on a person's own site
    container: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def running_max(self) -> int | None:
        """How many of its events may run at the same time; None = all."""
        return running_max(self.at_once, self.events)


def running_max(at_once: int | msgspec.UnsetType, events: int) -> int | None:
    """How many of `events` may run at the same time; None = all."""
    return at_once if at_once is not msgspec.UNSET and at_once < events else None


def job_input(url: str) -> tuple[int, str] | None:
    """Job and output of `job:ID/NAME`; None for any other URL. Raises ValueError for a wrong one."""
    if not url.startswith(JOB_INPUT):
        return None
    number, slash, name = url[len(JOB_INPUT) :].partition("/")
    if not (number.isascii() and number.isdecimal()) or not slash or not name:
        raise ValueError(f"`{url}` is not an input such as `job:17/events`")
    return int(number), name
