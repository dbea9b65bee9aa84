"""A job as its submitter writes it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
"""Names of campaigns, applications, outputs and inputs: fit for a file name on any system."""

EVENTS_MAX = 1_000_000_000


class InputKind(StrEnum):
    """Which events read an input."""

    SHARED = "shared"
    EACH = "each"


class OutputKind(StrEnum):
    """How the outputs of a job's ranges become the job's output."""

    EACH = "each"
    CONCAT = "concat"
    MERGE = "merge"


class Width(NamedTuple):
    """A payload that spans nodes: so many whole nodes, so many ranks (processes of one MPI program) on all of them."""

    nodes: int
    ranks: int


def rate_key(app: str, width: Width | None) -> str:
    """Under what an application's measured seconds per event are kept: apart for each width."""
    return app if width is None else f"{app}@{width.nodes}x{width.ranks}"


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one slot offers. None = the application's figure. `devices`: kind -> number, such as `{"gpu": 1}`.

    With `nodes` or `ranks` a payload is started by the site's MPI launcher in an allocation of its own; then `cores`
    are those of one rank and `devices` those of one node.
    """

    cores: int | None = None
    memory_mb: int | None = None
    devices: dict[str, int] | None = None
    event_s: float | None = None  #: estimated seconds of one event on one slot; replaced by what is measured
    timeout_s: int | None = None  #: a payload (command mode) or range (range mode) is killed after this
    scratch_mb: int | None = None  #: size of the slot's /tmp, work directory included
    nodes: int | None = None  #: a payload spans so many whole nodes; None = 1
    ranks: int | None = None  #: processes of a payload, alike on each node; None = one on each of `nodes`

    @property
    def width(self) -> Width | None:
        """How wide a payload is; None = an ordinary one, in a slot."""
        if self.nodes is None and self.ranks is None:
            return None
        nodes = 1 if self.nodes is None else self.nodes
        return Width(nodes, nodes if self.ranks is None else self.ranks)


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file the payload finds as `name` in its work directory.

    `shared`: the same for all events. `each`: `url` names a text file whose line k belongs to event k; a line that is
    itself a URL or path is staged under `name`, and the line's text fills `{line}`.
    `job:ID/OUTPUT` reads another job's output; it makes the job wait for that one.
    """

    name: str
    url: str
    kind: InputKind = InputKind.SHARED
    sha256: str | None = None


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that the payload leaves as `path` in its work directory (or names in its `done` message).

    `url` None = the campaign's output directory. `merge` names the approved application that joins the parts.
    """

    name: str
    path: str
    kind: OutputKind = OutputKind.EACH
    url: str | None = None
    merge: str | None = None


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job. `command` instead of `app` is an ad-hoc command: legal only where a site allows it."""

    app: str | None = None
    command: list[str] | None = None
    name: str | None = None
    params: dict[str, str | int | float | bool] = {}
    events: int = 1
    inputs: list[Input] = []
    outputs: list[Output] | None = None  #: None = the application's
    output_dir: str | None = None  #: where outputs without a URL go; None = the site's delivery directory
    resources: Resources = Resources()
    after: list[int | str] = []  #: job ids, or names of campaigns
    after_any: bool = False  #: run even if a job that it comes after failed
    failed_max: int = 0  #: so many failed events still make it PARTIAL, not FAILED
    retries: int = 2  #: an event that failed 1 + retries times enters the failed set
    priority: int = 0  #: within the campaign, higher first
    site: str | None = None  #: run only there
    keep_stdout: bool = False  #: stdout of every payload is an output named `stdout`, kind each
    env: dict[str, str] = {}
