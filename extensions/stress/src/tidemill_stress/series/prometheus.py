"""Time series and guards from Prometheus servers that a test names: range and instant queries, bounded."""

from __future__ import annotations

import math
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill.errors import SiteError
from tidemill.net.http_exchange import ExchangeError, HttpServer, TimeLimit
from tidemill.wire.api import SiteRow
from tidemill_stress.plan import GuardPlan, OutsidePlan
from tidemill_stress.run import Series

ASK_S = 20.0
BYTES_MAX = 16_000_000
POINTS_MAX = 1_000  #: of a series: the step follows from it
SERIES_MAX = 50  #: of one query
STEP_S_MIN = 1.0


class _Result(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[_Result] = []


class _Reply(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


class PrometheusSource:
    """Range queries of a test."""

    def __init__(self, queries: Sequence[OutsidePlan]) -> None:
        self._queries = queries

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Nothing to note: Prometheus keeps its samples."""

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """Every series of every query, in an interval. Raises SiteError that names the server and the query."""
        return [each for query in self._queries for each in ask_range(query, start_s, end_s)]


def ask_range(query: OutsidePlan, start_s: float, end_s: float) -> list[Series]:
    """The series of one query. Raises SiteError."""
    step = max(STEP_S_MIN, (end_s - start_s) / POINTS_MAX)
    words = {"query": query.query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step:.3f}"}
    found = _ask(query.url, "query_range", words)
    if len(found) > SERIES_MAX:
        raise SiteError(
            f"`{query.url}` returned {len(found)} series for `{query.query}`, at most {SERIES_MAX} are taken",
            hint="sum them in the query: `sum by (instance) (...)`",
            transient=False,
        )
    return [
        Series(
            title=query.title, unit=query.unit, source=_name(each.metric) or query.url, limit=query.limit,
            points=[(at, value) for at, text in each.values if (value := _number(text)) is not None],
        )
        for each in found
    ]  # fmt: skip


def over(guard: GuardPlan) -> str:
    """What a guard has against going on; empty = nothing. Raises SiteError."""
    values = [
        _number(each.value[1]) for each in _ask(guard.url, "query", {"query": guard.query}) if each.value
    ]
    top = max((each for each in values if each is not None), default=None)
    if top is None or top <= guard.above:
        return ""
    return f"{guard.title} is {top:.4g}, above {guard.above:.4g}"


def _ask(url: str, verb: str, words: dict[str, str]) -> list[_Result]:
    parts = urlsplit(url)
    target = f"{parts.path.rstrip('/')}/api/v1/{verb}?{urlencode(words)}"
    try:
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        server = HttpServer(parts.hostname or "", parts.port, timeout_s=ASK_S, tls=tls)
        answer = server.ask("GET", target, headers={"Accept": "application/json"}, bound=TimeLimit(ASK_S))
        body = answer.body(BYTES_MAX)
        server.close()
    except (ExchangeError, OSError, ValueError) as error:
        raise SiteError(f"failed to ask Prometheus at `{url}`: {error}") from error
    return _results(url, words["query"], answer.status, body)


def _results(url: str, query: str, status: int, body: bytes) -> list[_Result]:
    what = f"failed to ask Prometheus at `{url}` for `{query}`"
    try:
        reply: _Reply = msgspec.json.decode(body, type=_Reply)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise SiteError(f"{what}: status {status}, and its answer cannot be read: {error}") from error
    if reply.status != "success":
        raise SiteError(f"{what}: {reply.error or f'status {status}'}", transient=status >= 500)
    return reply.data.result


def _name(metric: dict[str, str]) -> str:
    known: Any = {key: value for key, value in metric.items() if key != "__name__"}
    return known.get("instance", "") or ", ".join(f"{key}={value}" for key, value in sorted(known.items()))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
