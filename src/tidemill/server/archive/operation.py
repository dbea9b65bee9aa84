"""What sites reported, kept for good: hours of the machine, allocations, grants, caches, nodes, traces.

The database keeps minutes for a month and the newest allocations only. Files of a month are rewritten while its
records come in: what they hold and the database no longer has is kept.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.errors import UNDECODABLE
from tidemill.files import replaced
from tidemill.server.archive.parquet import (
    OPERATION,
    OPERATION_KEYS,
    Archive,
    make_durable,
    operation_path,
    schema_of,
)
from tidemill.server.database.store import Session
from tidemill.wire.api import AppOffer
from tidemill.wire.views import BAD_NODES, CACHES, GRANTS, STAGING, SiteViews

AGAIN_US = 8 * 86_400_000_000  #: how far back records are read: a site may be unreachable for a week
_OFFERS = msgspec.json.Decoder(list[AppOffer])
Rows = list[tuple[Any, ...]]


def update_files(session: Session, archive: Archive, *, now_us: int) -> list[str]:
    """Bring the files up to date; the names of those that changed. Cost: what eight days hold. Raises SiteError,
    OSError."""
    if archive.directory is None:
        return []
    is_first = not any(archive.directory.glob("*/operation-*.parquet"))
    found = _by_month(_records(session, 0 if is_first else now_us - AGAIN_US), now_us)
    changed = []
    for (month, table), rows in sorted(found.items()):
        path = operation_path(archive.directory, month, table)
        known = {row[: OPERATION_KEYS[table]]: row for row in _read(path, table)} if path.exists() else {}
        merged = {**known, **{row[: OPERATION_KEYS[table]]: row for row in rows}}
        if merged != known:
            make_durable(path.parent)
            with replaced(path) as file:
                write_operation(
                    file, table, sorted(merged.values(), key=lambda row: row[: OPERATION_KEYS[table]])
                )
            changed.append(f"{month}/{path.name}")
    return changed


def write_operation(file: Any, table: str, rows: Rows) -> None:
    """Write a table of a month, in the order of OPERATION."""
    import pyarrow.parquet

    schema = schema_of(OPERATION[table])
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), file, compression="zstd")


def _read(path: Any, table: str) -> Rows:
    import pyarrow.parquet

    names = [field.name for field in schema_of(OPERATION[table])]
    rows = pyarrow.parquet.read_table(path, columns=names).to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


def _records(session: Session, since_us: int) -> dict[str, Rows]:
    """All records since a time, by table."""
    names: dict[int, str] = dict(session.rows("site_names"))
    found: dict[str, Rows] = defaultdict(list)
    for site, hour, minutes, *means in session.rows("tide_hours", since=since_us // 3_600_000_000 * 60):
        found["hours"].append((names.get(site, ""), int(hour), int(minutes), *map(float, means)))
    for site, *rest in session.rows("ended_allocations", since_us=since_us):
        found["allocations"].append((names.get(site, ""), *rest))
    for site, at_us, body in session.rows("views"):
        if at_us >= since_us:
            _of_view(found, names.get(site, ""), at_us, bytes(body))
    for row in session.rows("sites"):
        if row.seen_us >= since_us:
            _of_offers(found, row.name, row.seen_us, row.offers)
    return found


def _of_view(found: dict[str, Rows], site: str, at_us: int, body: bytes) -> None:
    try:
        views = SiteViews.stored(body).raw
    except UNDECODABLE:  # of another version: pages leave it out, too
        return
    for grant in GRANTS.decode(views):
        found["grants"].append(
            (site, grant.account, at_us, grant.granted, grant.used, grant.open, grant.left)
        )
    for cache in CACHES.decode(views):
        total = cache.total
        if cache.state != "other":
            found["caches"].append((
                site, cache.name, at_us, cache.since_us, total.opens, total.served, total.hit, total.known,
                total.fetched,
                total.bypass, total.again, cache.wire_origin, cache.restarts,
            ))  # fmt: skip
    for line in STAGING.decode(views):
        sums = (line.files, line.bytes, line.ms, line.square_ms, line.max_ms)
        key = (site, line.nodes, line.way, line.since_us)
        found["staging"].append((*key, at_us, *sums))
        found["staging_times"] += [(*key, edge_ms, at_us, files) for edge_ms, files in line.times]
    for node in BAD_NODES.decode(views):
        found["quarantine"].append((site, node.node, node.since_us, node.until_us, node.why))


def _of_offers(found: dict[str, Rows], site: str, at_us: int, offers: str) -> None:
    for each in _OFFERS.decode(offers):
        cost = each.start
        if cost is not None:
            row = (each.name, each.version, at_us, cost.runs, cost.ops, cost.failed, cost.files)
            found["traces"].append((site, *row, cost.opens, cost.opens_failed, cost.closes))


def _by_month(records: dict[str, Rows], now_us: int) -> dict[tuple[str, str], Rows]:
    """Records by the month that they are of, and table."""
    when = {"hours": lambda line: line[1] * 3_600_000_000, "allocations": lambda line: line[11] or line[6],
            "quarantine": lambda line: line[2]}  # fmt: skip
    at_column = {"grants": 2, "caches": 2, "staging": 4, "staging_times": 5, "traces": 3}
    found: dict[tuple[str, str], Rows] = defaultdict(list)
    for table, rows in records.items():
        for row in rows:
            at_us = when[table](row) if table in when else row[at_column[table]]
            found[month_of(min(at_us, now_us)), table].append(row)
    return found


def month_of(at_us: int) -> str:
    """`2026-07`, of UTC."""
    return f"{datetime.fromtimestamp(max(0, at_us) // 1_000_000, UTC):%Y-%m}"
