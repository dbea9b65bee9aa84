"""No statement reads a whole table that grows with work, but for pages that stop after some rows."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from tidemill.server.database.queries import Dialect, Statement, load
from tidemill.server.database.store import Store

GROWING = {
    "archived_campaigns", "archived_jobs", "campaigns", "core_use", "counts", "deps", "failures", "jobs", "kinds",
    "leases", "lost_results", "needs", "orders", "outputs", "specs", "stays", "submits", "subscriptions",
}  # fmt: skip
PAGES = {"campaign_known", "campaigns_newest", "campaigns_sorted", "deps_any", "subscriptions_any"}
"""They have a limit, and begin at one end."""


def scans(connection: sqlite3.Connection, statement: Statement) -> set[str]:
    """The growing tables that a statement reads from one end to the other."""
    values: list[int] | dict[str, int] = [0] * len(statement.columns)
    if not values:
        values = dict.fromkeys(re.findall(r"(?<!:):([a-z_]+)", statement.text), 0)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)
    found = {each[3].split()[1] for each in plan if each[3].startswith("SCAN ")}
    return found & GROWING


def test_no_statement_reads_a_growing_table_from_one_end_to_the_other(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    connection = sqlite3.connect(tmp_path / "t.db")
    found = {name: scans(connection, each) for name, each in load(Dialect.SQLITE).items()}
    connection.close()
    assert {name: tables for name, tables in found.items() if tables and name not in PAGES} == {}
