"""What a run recorded: its test, and for each step the payloads and time series. All that an analysis needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from tidemill.wire.api import SiteRow
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import Plan, StressStep

FORMAT = 1
Mode = Literal["run", "scan"]
Status = Literal["measured", "not reached", "stopped"]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over time. `points`: seconds since 1970 and values. `limit`: where it is full, None = not known."""

    title: str
    unit: str
    source: str  #: who measured it
    points: list[tuple[float, float]]
    limit: float | None = None


class SeriesSource(Protocol):
    """Where time series come from: nodes' monitors, caches, Prometheus. One that has none returns no series."""

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Called every few seconds while a level runs, with all sites as the server shows them: sources that know only
        the present take note of it."""

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """The series of an interval, of a site or (empty) of all. Raises TidemillError where there is no answer."""


class StepRun(msgspec.Struct, kw_only=True):
    """A step as it ran. Window: seconds since 1970; 0 = there is none."""

    step: StressStep
    campaign: str
    status: Status = "stopped"
    reason: str = ""
    submitted_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    payloads: list[Payload] = []
    series: list[Series] = []
    remarks: list[str] = []  #: such as a source that did not answer


class Run(msgspec.Struct, kw_only=True):
    """A run. `stopped`: why steps are missing; `exit_code`: what the command ended with. `open_campaigns`: campaigns
    whose jobs may still be there."""

    id: str
    mode: Mode
    plan: Plan
    digest: str
    version: str
    started_us: int
    ended_us: int = 0
    steps: list[StepRun] = []
    open_campaigns: list[str] = []
    stopped: str = ""
    exit_code: int = 0
    format: int = FORMAT
