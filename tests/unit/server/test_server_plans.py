"""Statements as SQLite sees them: their columns have names, and none but pages reads a whole table that grows."""

from __future__ import annotations

import keyword
import re
import sqlite3
from pathlib import Path

import msgspec
import pytest

from tidemill.server.database.queries import Dialect, RowShapes, Statement, fields_of, load, parse
from tidemill.server.database.rows import SELECTED, StoredLease
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
    found = {name: scans(connection, each) for name, each in load(Dialect.SQLITE, SELECTED).items()}
    connection.close()
    assert {name: tables for name, tables in found.items() if tables and name not in PAGES} == {}


def columns(connection: sqlite3.Connection, statement: Statement) -> tuple[str, ...]:
    """The columns of a statement's answer; none of one that answers nothing."""
    if not statement.text.startswith(("SELECT", "WITH")) and "RETURNING" not in statement.text:
        return ()
    asked = {
        **dict.fromkeys(re.findall(r"(?<!:):([a-z_]+)", statement.text), 1),
        **dict.fromkeys(statement.lists, "[]"),
    }
    if statement.text.startswith(("SELECT", "WITH")):
        answer = connection.execute(statement.text, asked)
        return tuple(name for name, *_ in answer.description)
    returned = statement.text.rpartition("RETURNING ")[2]
    return tuple(re.split(r" AS |[ .]", each.strip())[-1] for each in returned.split(","))


def test_each_column_of_an_answer_has_a_name_of_its_own_and_a_record_has_its_fields(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    connection = sqlite3.connect(tmp_path / "t.db")
    known = load(Dialect.SQLITE, SELECTED)
    found = {name: columns(connection, each) for name, each in known.items()}
    connection.close()
    assert sum(map(bool, found.values())) > 100
    for name, names in found.items():
        assert all(
            each.isidentifier() and not keyword.iskeyword(each) and each[0] != "_" for each in names
        ), name
        assert len(set(names)) == len(names), name
        record = known[name].record
        assert record is None or fields_of(record) == names, name


def test_a_row_is_the_record_that_its_statement_names_else_a_named_tuple() -> None:
    text = "-- name: one\n-- Why.\nSELECT {StoredLease}\nFROM leases;\n"
    text += "-- name: two\n-- Why.\nSELECT a, b AS c FROM t;\n"
    one, two = parse(text, Dialect.SQLITE, SELECTED)
    assert "THEN jobs.ended_us ELSE leases.ended_us END AS ended_us, leases.reason" in one.text
    shapes = RowShapes({each.name: each for each in (one, two)})
    (row,) = shapes.shape("two", [(1, 2)], [("a", None), ("c", None)])
    assert (row.a, row.c, row) == (1, 2, (1, 2))
    names = [(name,) for name in fields_of(StoredLease)]
    (lease,) = shapes.shape("one", [tuple(range(12))], names)
    assert isinstance(lease, StoredLease)
    assert msgspec.structs.astuple(lease) == tuple(range(12))
    shapes = RowShapes({"one": one})
    with pytest.raises(ValueError, match=r"`one` returns .*, not those of StoredLease"):
        shapes.shape("one", [], [*names[1:], names[0]])  # an answer without rows is as much work
    assert shapes.shape("one", [], names) == []
