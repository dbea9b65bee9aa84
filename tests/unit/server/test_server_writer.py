"""The writer's thread survives what others raise in it, and a thread that is gone is seen, and hangs nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tidemill.errors import SiteError
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.watch.health import Watched, health


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    store = Store(path=tmp_path / "t.db")
    store.init()
    made = Dispatcher(store)
    made.start()
    yield made
    made.close()


def answer(work: UnitOfWork) -> int:
    return len(work.session.rows("site_names"))


def test_the_writer_survives_a_listener_that_raises(dispatcher: Dispatcher) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    heard = threading.Event()
    dispatcher.writer.listeners += [closed, heard.set]

    assert dispatcher.writer.write(answer) == 0
    assert dispatcher.writer.write(answer) == 0
    assert heard.wait(10), "a listener after the failing one hears of the commit"
    assert dispatcher.writer.lives


def test_the_writer_survives_a_request_that_nobody_waits_for_any_more(dispatcher: Dispatcher) -> None:
    free = threading.Event()
    first = dispatcher.writer.submit(lambda work: free.wait(10))
    second: Future[int] = dispatcher.writer.submit(answer)
    assert second.cancel()
    free.set()

    assert first.result(10)
    assert dispatcher.writer.write(answer) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_has_ended_is_told_by_health_and_hangs_nobody(dispatcher: Dispatcher) -> None:
    def leave(work: UnitOfWork) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        dispatcher.writer.write(leave)
    dispatcher.writer._thread.join(10)  # type: ignore[union-attr]

    with pytest.raises(SiteError, match="the server's writer has ended"):
        dispatcher.writer.write(answer)
    found = health(None, Watched(dispatcher))
    assert found.status == "failing"
    assert found.problems[0].name == "writer_ended"


def together(dispatcher: Dispatcher, *acts: Callable[[UnitOfWork], int]) -> list[Future[int]]:
    """These requests in one commit."""
    free = threading.Event()
    first = dispatcher.writer.submit(lambda work: free.wait(10))
    found = [dispatcher.writer.submit(each) for each in acts]
    free.set()
    assert first.result(10)
    return found


def test_a_request_that_the_database_refuses_takes_no_other_with_it(dispatcher: Dispatcher) -> None:
    def poison(work: UnitOfWork) -> int:
        raise SiteError("database refused `insert_jobs`: the index row is too large")

    good, bad, other = together(dispatcher, answer, poison, answer)
    assert (good.result(10), other.result(10)) == (0, 0)
    with pytest.raises(SiteError, match="too large"):
        bad.result(10)
    assert dispatcher.writer.write(answer) == 0


def test_while_the_database_is_away_those_who_wait_together_wait_for_one_try(dispatcher: Dispatcher) -> None:
    tries = 0

    def away(work: UnitOfWork) -> int:
        nonlocal tries
        tries += 1
        raise SiteError("PostgreSQL refused `jobs_by_id`: connection lost")

    found = together(dispatcher, *[away] * 20)
    for each in found:
        with pytest.raises(SiteError):
            each.result(10)
    assert tries <= 6
    assert dispatcher.writer.full
