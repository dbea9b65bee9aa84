"""Python calls as events of jobs, through real processes."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed

import pytest
from tests.fault.world import World, world

from tidemill.client import Client, Executor
from tidemill.client.executor import CallError


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=2) as running:
        yield running


@pytest.fixture
def pool(it: World) -> Iterator[Executor]:
    with Executor(Client(f"unix:{it.home}/server/api.sock", home=it.home)) as running:
        yield running


def test_map_of_200_calls_keeps_their_order(pool: Executor) -> None:
    assert list(pool.map(math.sqrt, [k * k for k in range(200)], timeout=60)) == list(range(200))


def test_calls_made_together_are_one_job(it: World, pool: Executor) -> None:
    futures = [pool.submit(operator.add, k, 1) for k in range(30)]
    assert [future.result(timeout=60) for future in as_completed(futures, timeout=60)].__len__() == 30
    assert it.client.campaign(pool.campaign).jobs == 1


def test_an_exception_travels_back_with_its_traceback(pool: Executor) -> None:
    future = pool.submit(operator.truediv, 1, 0)
    error = future.exception(timeout=60)
    assert isinstance(error, ZeroDivisionError)
    assert "Traceback" in str(error.__cause__)


def test_a_call_whose_process_dies_is_an_error_and_others_are_not(pool: Executor) -> None:
    bad = pool.submit(os._exit, 7)
    assert isinstance(bad.exception(timeout=60), CallError)
    assert pool.submit(operator.add, 1, 1).result(timeout=60) == 2


def test_calls_that_nobody_waits_for_are_canceled(it: World, pool: Executor) -> None:
    future = pool.submit(time.sleep, 600)
    deadline = time.monotonic() + 30
    while not list(it.client.jobs(campaign=pool.campaign)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(timeout=1)
    (row,) = it.client.wait(pool.campaign, timeout_s=60)
    assert row.state == "CANCELED"


def test_shutdown_takes_no_more_calls(it: World) -> None:
    running = Executor(Client(f"unix:{it.home}/server/api.sock", home=it.home))
    running.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        running.submit(math.sqrt, 4)
