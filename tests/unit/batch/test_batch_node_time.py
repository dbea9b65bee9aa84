"""The time of nodes in the last day, by the jobs that ran on them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemill import clock
from tidemill.batch.run import CommandResult, LongReplyError
from tidemill.batch.slurm.node_time import HeldNode, NodeTime, read, recent, shares
from tidemill.batch.slurm.text import FIELD
from tidemill.errors import ProtocolError, SiteError

CORES = {"n1": 8, "n2": 8}
HOUR_S = 3600


def at(hours: float) -> str:
    return datetime.fromtimestamp(hours * HOUR_S, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def row(start: str, end: str, cpus: int, nodes: str) -> str:
    return FIELD.join([start, end, str(cpus), nodes]) + "\n"


def reply(text: str, status: int = 0, errors: str = "") -> CommandResult:
    return CommandResult(command="sacct", status=status, output=text.encode(), errors=errors, seconds=0.1)


def used(*held: HeldNode, idle: tuple[str, ...] = (), cores: dict[str, int] | None = None) -> NodeTime:
    return shares(held, cores or CORES, idle, (0, 10 * HOUR_S))


def test_rows_become_the_cores_that_jobs_held_on_the_nodes_asked_for() -> None:
    text = row(at(1), at(2), 10, "n[1-2]") + row(at(3), "Unknown", 4, "n2,other")
    text += row("Unknown", "Unknown", 0, "None assigned")
    assert list(read(text, CORES)) == [
        HeldNode("n1", 5, HOUR_S, 2 * HOUR_S),
        HeldNode("n2", 5, HOUR_S, 2 * HOUR_S),
        HeldNode("n2", 2, 3 * HOUR_S, None),
    ]


def test_rows_of_another_form_are_an_error_and_a_few_are_not() -> None:
    good = row(at(1), at(2), 8, "n1") * 40
    assert len(list(read(good + "stray\n", CORES))) == 40
    with pytest.raises(ProtocolError, match="20 of 60 rows"):
        list(read(good + "stray\n" * 20, CORES))


def test_a_node_is_idle_full_or_partly_used() -> None:
    whole = used(HeldNode("n1", 8, 0, 5 * HOUR_S), HeldNode("n2", 5, 0, 10 * HOUR_S))
    assert (whole.idle, whole.part) == (0.25, 0.5)
    # two jobs that overlap fill the node while both run
    both = used(HeldNode("n1", 4, 0, 4 * HOUR_S), HeldNode("n1", 4, 2 * HOUR_S, 6 * HOUR_S), cores={"n1": 8})
    assert (both.idle, both.part) == (0.4, 0.4)


def test_jobs_count_within_the_span_only_and_those_that_run_until_its_end() -> None:
    found = used(
        HeldNode("n1", 8, -5 * HOUR_S, HOUR_S),
        HeldNode("n2", 8, 9 * HOUR_S, None),
        HeldNode("n2", 8, 20 * HOUR_S, None),
    )
    assert found.idle == pytest.approx(0.9)


def test_a_job_without_an_end_on_an_idle_node_has_ended_unseen() -> None:
    assert used(HeldNode("n1", 8, 0, None), idle=("n1",)).idle == 1.0
    assert used(HeldNode("n1", 8, 0, None)).idle == 0.5


def test_without_jobs_all_of_the_time_was_idle() -> None:
    assert (used().idle, used().part) == (1.0, 0.0)


def test_the_last_day_is_asked_for_and_a_shorter_time_where_it_is_too_long() -> None:
    spans: list[float] = []

    def asked(command: list[str], timeout_s: float) -> CommandResult:
        begin, end = (datetime.fromisoformat(command[command.index(flag) + 1]) for flag in ("-S", "-E"))
        spans.append((end - begin).total_seconds())
        assert 0 < timeout_s <= 20
        if len(spans) == 1:
            raise LongReplyError("too long")
        now = clock.now_s() / HOUR_S
        return reply(row(at(now - 48), "Unknown", 8, "n1"))

    found = recent(CORES, idle=["n2"], busy=["n1"], asked=asked)
    assert spans == [86_400, 21_600]
    assert (found.until_s - found.since_s, found.idle, found.nodes) == (21_600, 0.5, 2)


def test_a_day_that_never_fits_is_an_error() -> None:
    def asked(command: list[str], timeout_s: float) -> CommandResult:
        raise LongReplyError("printed 40 MB")

    with pytest.raises(SiteError, match="too much even for 1 h"):
        recent(CORES, idle=[], busy=[], asked=asked)


def test_an_accounting_that_hides_other_users_jobs_gives_no_share() -> None:
    with pytest.raises(SiteError, match="on 0 of 2 busy nodes: it hides other users' jobs, or is behind"):
        recent(CORES, idle=[], busy=["n1", "n2"], asked=lambda command, timeout_s: reply(""))


def test_an_accounting_that_fails_is_an_error_that_quotes_it() -> None:
    with pytest.raises(SiteError, match="slurm_persist_conn_open"):
        recent(
            CORES, idle=[], busy=[], asked=lambda *_: reply("", 1, "sacct: error: slurm_persist_conn_open")
        )
