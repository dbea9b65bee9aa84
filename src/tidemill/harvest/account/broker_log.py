"""What the broker did and why, one JSON line each in `SITE/harvest/YYYY-MM-DD.jsonl` (days of UTC). Pure data.

A plan is named `eEPOCH-NUMBER`; every act carries the name of the plan that caused it. Times are seconds since 1970.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tidemill.errors import UNDECODABLE, ProtocolError
from tidemill.model.figures.awaited import NodeCounts

QUOTED_CHARS_MAX = 200


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all lines have: when it was done."""

    at_s: float


class PlanMade(Record, frozen=True, kw_only=True, tag="plan"):
    """A decision for one pool and its inputs. Written if it acts, yields, or differs from the last one.

    `held` and `waiting` count nodes of Tidemill's allocations, `queue` counts regular jobs; `cancel`, `shorten` and
    `submit` count allocations.
    """

    plan: str
    pool: str
    snapshot_s: float  #: when the machine was polled
    nodes: int
    idle: int
    busy: int  #: nodes of regular jobs
    held: int
    waiting: int
    queue: int
    yields_to: list[str] = []
    cancel: int = 0
    shorten: int = 0
    submit: int = 0
    waits_for: str = ""
    why: str = ""
    counts: NodeCounts | None = (
        None  #: of the pool's nodes at that poll; None = of an agent that did not count them
    )


class PoolGone(Record, frozen=True, kw_only=True, tag="pool_gone"):
    """A pool disappeared: its last plan is out of date."""

    pool: str


class Submitted(Record, frozen=True, kw_only=True, tag="submit"):
    """`count` allocations asked for under one name (see `batch.contract.element_name`)."""

    plan: str
    name: str
    count: int
    width: int
    walltime_s: float
    account: str = ""


class Shortened(Record, frozen=True, kw_only=True, tag="shorten"):
    """New ends of running allocations, by name, as the batch system set them."""

    plan: str
    ends_s: dict[str, float]


class Canceled(Record, frozen=True, kw_only=True, tag="cancel"):
    """Allocations that we ended. `plan` is empty where no plan did it (stop, drain); `reason` says who then."""

    plan: str
    names: list[str]
    reason: str = ""


class RegularStarted(Record, frozen=True, kw_only=True, tag="regular"):
    """A regular job that has started, or that left the queue between two polls (`started_s` None).

    `could_start_s`: when it could first have started without Tidemill, None = Tidemill never blocked it; `share_s`: the
    part of its wait that Tidemill caused, estimated to within `uncertainty_s`; `plans`: those that yielded to it, as
    evidence. `limit_s`: its requested walltime; `nodes`, `machine_cores`: of the machine; `cores`: of a job that shares
    its nodes, else 0; `share_low_s`, `share_high_s`: bounds of `share_s`; `seen_s`: the last poll that saw a job wait
    that left the queue. Earlier agents did not write these.
    """

    id: str
    user: str
    width: int
    submitted_s: float | None
    could_start_s: float | None
    started_s: float | None
    share_s: float
    uncertainty_s: float
    plans: list[str] = []
    limit_s: float | None = None
    nodes: int = 0
    share_low_s: float | None = None
    share_high_s: float | None = None
    cores: int = 0
    machine_cores: int = 0
    seen_s: float | None = None


AnyRecord = PlanMade | PoolGone | Submitted | Shortened | Canceled | RegularStarted

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def plan_name(epoch: int, number: int) -> str:
    """`e17-301`; numbers count within an epoch."""
    return f"e{epoch}-{number}"


def file_name(at_s: float) -> str:
    """The name of the file that takes records of that time."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}.jsonl"


def encode(record: AnyRecord) -> bytes:
    """The record's line, its newline included."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> AnyRecord:
    """The record of a line. Raises ProtocolError that quotes the line."""
    try:
        return _decoder.decode(line)
    except UNDECODABLE as error:
        quoted = line[:QUOTED_CHARS_MAX].decode(errors="replace").strip()
        raise ProtocolError(f"no record of the broker: {error}: `{quoted}`") from error
