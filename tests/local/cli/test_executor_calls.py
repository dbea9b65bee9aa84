"""Python calls as events of jobs, through real processes."""

from __future__ import annotations

import math
import operator
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home, wait_for

from tidemill.client import Client, Executor
from tidemill.client.executor import CallError


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    it = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        it.start()
        yield it
    finally:
        it.end()


@pytest.fixture
def pool(home: Home) -> Iterator[Executor]:
    running = Executor(Client(home=home.path))
    yield running
    running.shutdown(cancel_futures=True)


def test_map_of_200_calls_keeps_their_order(pool: Executor) -> None:
    assert list(pool.map(math.sqrt, [k * k for k in range(200)], timeout=60)) == list(range(200))


def test_calls_made_together_are_one_job(home: Home, pool: Executor) -> None:
    futures = [pool.submit(operator.add, k, 1) for k in range(30)]
    assert sorted(future.result() for future in as_completed(futures, timeout=60)) == list(range(1, 31))
    assert pool.client.campaign(pool.campaign).jobs == 1


def test_an_exception_travels_back_with_its_traceback(pool: Executor) -> None:
    future = pool.submit(operator.truediv, 1, 0)
    error = future.exception(timeout=60)
    assert isinstance(error, ZeroDivisionError)
    assert "Traceback" in str(error.__cause__)


def test_a_call_whose_process_dies_is_an_error_and_others_are_not(pool: Executor) -> None:
    bad = pool.submit(os._exit, 7)
    assert isinstance(bad.exception(timeout=60), CallError)
    assert pool.submit(operator.add, 1, 1).result(timeout=60) == 2


def test_calls_that_nobody_waits_for_are_canceled(home: Home, pool: Executor) -> None:
    future = pool.submit(time.sleep, 600)
    deadline = time.monotonic() + 30
    while not home.jobs(pool.campaign) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(timeout=1)
    (row,) = pool.client.wait(pool.campaign, timeout_s=60)
    assert row.state == "CANCELED"


def test_shutdown_takes_no_more_calls(home: Home) -> None:
    running = Executor(Client(home=home.path))
    running.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        running.submit(math.sqrt, 4)


def test_calls_outlive_a_server_that_is_away_for_longer_than_its_client_waits() -> None:
    home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        home.start()
        client = Client(home=home.path)
        client.retry_s = 0.2
        with Executor(client) as pool:
            before = pool.submit(time.sleep, 1)
            wait_for(lambda: bool(home.jobs(pool.campaign)), home.logs)
            home.stop()
            during = pool.submit(operator.add, 1, 1)
            time.sleep(1.5)
            assert not before.done()
            assert not during.done()
            home.start()
            assert (before.result(60), during.result(60)) == (None, 2)
            assert pool.client.campaign(pool.campaign).jobs == 2
    finally:
        home.end()
