"""Python calls in workers, through real processes."""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home, started_home, wait_for

from tidemill import Client, Executor
from tidemill_calls.executor import CallError, CallTimeoutError


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.fixture
def pool(home: Home) -> Iterator[Executor]:
    running = Executor(Client(home=home.path))
    yield running
    running.shutdown(cancel_futures=True)


def _pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def _pid_when(gate: Path) -> int:
    while not gate.exists():
        time.sleep(0.01)
    return os.getpid()


def test_map_of_200_calls_keeps_their_order_and_needs_no_job_for_each(pool: Executor) -> None:
    assert list(pool.map(math.sqrt, [k * k for k in range(200)], timeout=60)) == list(range(200))
    assert pool.client.campaign(pool.campaign).jobs <= (os.cpu_count() or 1)


def test_a_worker_keeps_its_process_from_call_to_call(home: Home) -> None:
    with Executor(Client(home=home.path), workers=1) as pool:
        assert len({pool.submit(os.getpid).result(60) for _ in range(20)}) == 1


def test_each_future_resolves_when_its_own_call_ends(home: Home) -> None:
    with Executor(Client(home=home.path), workers=2) as pool:
        slow, quick = pool.submit(time.sleep, 600), pool.submit(operator.add, 1, 1)
        done, left = wait([slow, quick], timeout=60, return_when=FIRST_COMPLETED)
        assert (done, left) == ({quick}, {slow})
        wait_for(slow.running, home.logs)
        assert not quick.running()
        assert slow.cancel()


def test_calls_do_not_wait_behind_a_long_one_while_another_worker_is_free(home: Home, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Executor(Client(home=home.path), workers=2) as pool:
        held = [pool.submit(_pid_when, gate) for _ in range(2)]  # one worker could end short calls alone
        wait_for(lambda: pool.workers == 2, home.logs)
        gate.touch()
        assert len({each.result(60) for each in held}) == 2
        assert sum(pool.map(int, range(500), timeout=60)) == sum(
            range(500)
        )  # calls are short, as far as it knows
        futures = [pool.submit(time.sleep, 600 if k == 50 else 0) for k in range(200)]
        long = futures.pop(50)
        assert wait(futures, timeout=60).not_done == set()
        assert long.running()
        assert long.cancel()


def test_results_come_as_they_are_ready(pool: Executor) -> None:
    futures = [pool.submit(operator.add, k, 1) for k in range(30)]
    assert sorted(future.result() for future in as_completed(futures, timeout=60)) == list(range(1, 31))


def test_an_exception_travels_back_with_its_traceback(pool: Executor) -> None:
    future = pool.submit(operator.truediv, 1, 0)
    error = future.exception(timeout=60)
    assert isinstance(error, ZeroDivisionError)
    assert "Traceback" in str(error.__cause__)


def test_a_call_whose_process_dies_is_an_error_with_its_last_words_and_others_are_not(pool: Executor) -> None:
    bad = pool.submit(lambda: (os.write(2, b"what it said"), os.abort()))
    error = bad.exception(timeout=60)
    assert isinstance(error, CallError)
    assert f"killed by signal {signal.SIGABRT.value}" in str(error)
    assert "what it said" in str(error)
    assert pool.submit(operator.add, 1, 1).result(timeout=60) == 2


def test_a_process_that_died_is_tried_again_as_often_as_wished(home: Home, tmp_path: Path) -> None:
    with Executor(Client(home=home.path), workers=1, retries=1) as pool:
        once = "import os, pathlib; p = pathlib.Path('/tmp/was-here'); p.exists() or (p.touch(), os._exit(7))"
        assert pool.submit(exec, once).result(60) is None
        assert isinstance(pool.submit(os._exit, 7).exception(60), CallError)


def test_cancel_ends_a_call_that_runs_and_what_it_started(home: Home) -> None:
    with Executor(Client(home=home.path), workers=1) as pool:
        future = pool.submit(subprocess.run, ["sleep", "600"])
        wait_for(future.running, home.logs)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(timeout=1)
        assert wait([future], timeout=30).done == {future}
        assert pool.submit(operator.add, 1, 1).result(60) == 2
        assert pool.client.campaign(pool.campaign).jobs == 1


def test_a_call_that_waits_is_cancelled_without_a_worker_being_disturbed(home: Home, tmp_path: Path) -> None:
    with Executor(Client(home=home.path), workers=1) as pool:
        before = pool.submit(os.getpid).result(60)
        first = pool.submit(_pid_when, tmp_path / "gate")
        second, third = (pool.submit(_pid_after, seconds) for seconds in (600, 0))
        wait_for(first.running, home.logs)
        assert second.cancel()
        # a process whose first call ends takes the next one before it can hear of its cancel: open the gate once the
        # worker has returned the third call, which it was asked for after that
        wait_for(lambda: [len(each.calls) for each in list(pool._board._workers.values())] == [1], home.logs)
        (tmp_path / "gate").touch()
        assert (first.result(60), third.result(60)) == (before, before)


def test_a_call_that_takes_too_long_is_killed(home: Home) -> None:
    with Executor(Client(home=home.path), workers=1, timeout_s=3) as pool:  # the next one needs a new process
        error = pool.submit(time.sleep, 600).exception(60)
        assert isinstance(error, CallTimeoutError)
        assert pool.submit(operator.add, 1, 1).result(60) == 2


def test_arguments_and_results_of_many_megabytes_travel(pool: Executor) -> None:
    content = os.urandom(30_000_000)
    digest = pool.submit(lambda data: hashlib.sha256(data).hexdigest(), content)
    assert digest.result(60) == hashlib.sha256(content).hexdigest()
    assert pool.submit(operator.mul, b"x", 30_000_000).result(60) == b"x" * 30_000_000


def _peak_of_parent(data: bytes) -> tuple[int, int]:
    """The size of an argument, and the peak memory of the process that passed it on, in kB."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return len(data), int(peak)


def test_a_large_argument_is_nowhere_whole_in_memory_but_in_its_call(home: Home) -> None:
    size = 128 << 20
    with Executor(Client(home=home.path), workers=1) as pool:
        _, before = pool.submit(_peak_of_parent, b"").result(60)
        length, after = pool.submit(_peak_of_parent, bytes(size)).result(100)
    assert length == size
    assert 1024 * (after - before) < size / 4


def test_lambdas_and_functions_and_classes_of_main_travel(home: Home, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent("""
        from tidemill import Executor

        class Point:
            def __init__(self, x):
                self.x = x

        def double(point):
            return Point(2 * point.x)

        if __name__ == "__main__":
            with Executor(workers=1) as pool:
                print(pool.submit(double, Point(3)).result(60).x, pool.submit(lambda: 7).result(60))
    """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=home.env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split() == ["6", "7"], done.stderr


def test_a_result_that_cannot_be_pickled_is_an_exception(pool: Executor) -> None:
    error = pool.submit(threading.Lock).exception(60)
    assert "pickle" in str(error)


def test_sys_exit_in_a_call_is_its_exception(pool: Executor) -> None:
    assert isinstance(pool.submit(sys.exit, 3).exception(60), SystemExit)


def test_workers_without_calls_leave_and_come_back(home: Home) -> None:
    with Executor(Client(home=home.path), workers=1, idle_s=0.1) as pool:
        first = pool.submit(os.getpid).result(60)
        (job,) = home.jobs(pool.campaign)
        wait_for(lambda: pool.client.job(job.id).row.state == "COMPLETED", home.logs)
        assert pool.submit(os.getpid).result(60)
        assert first
        assert len(home.jobs(pool.campaign)) == 2


def test_a_shut_down_executor_takes_no_more_calls_and_leaves_no_worker(home: Home) -> None:
    running = Executor(Client(home=home.path), workers=1)
    assert running.submit(math.sqrt, 4).result(60) == 2
    running.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        running.submit(math.sqrt, 4)
    wait_for(lambda: all(job.state in ("COMPLETED", "CANCELED") for job in home.jobs(running.campaign)))


def test_workers_that_no_call_was_left_for_are_completed_and_the_campaign_with_them(
    home: Home, tmp_path: Path
) -> None:
    client, gate = Client(home=home.path), tmp_path / "gate"
    with Executor(client, workers=40) as pool:  # more than there are slots
        calls = [pool.submit(_pid_when, gate) for _ in range(200)]
        # the first few workers could end short calls before the others are asked for
        wait_for(lambda: len(home.jobs(pool.campaign)) == 40, home.logs)
        gate.touch()
        assert wait(calls, timeout=60).not_done == set()
    rows = client.wait(pool.campaign, timeout_s=60)
    assert len(rows) == 40
    assert {row.state for row in rows} == {"COMPLETED"}
    (reason,) = {row.reason for row in rows if not row.events_done}
    assert reason == "its executor was shut down, and all calls had ended"


def test_workers_of_an_executor_whose_calls_are_canceled_are_canceled(home: Home) -> None:
    client = Client(home=home.path)
    pool = Executor(client, workers=40)
    calls = [pool.submit(time.sleep, 600) for _ in range(40)]
    wait_for(lambda: len(home.jobs(pool.campaign)) == 40, home.logs)
    pool.shutdown(cancel_futures=True)
    assert all(each.cancelled() for each in calls)
    rows = client.wait(pool.campaign, timeout_s=60)
    assert "CANCELED" in {row.state for row in rows}
    assert {row.reason for row in rows if row.state == "CANCELED"} == {"its executor was shut down"}


def test_strangers_get_no_byte(pool: Executor) -> None:
    assert pool.submit(operator.add, 1, 1).result(60) == 2
    (address,) = [f"127.0.0.1:{each.getsockname()[1]}" for each in pool._board._listeners]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"x" * 200)
        stranger.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    assert pool.submit(operator.add, 2, 2).result(60) == 4


def test_calls_outlive_a_restart_of_server_and_site_for_which_their_client_does_not_wait(
    tmp_path: Path,
) -> None:
    home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        home.start()
        client = Client(home=home.path)
        client.retry_s = 0.2
        with Executor(client, workers=1) as pool:
            before = pool.submit(_pid_when, tmp_path / "gate")
            wait_for(before.running, home.logs)
            home.stop()
            during = pool.submit(operator.add, 1, 1)
            wait_for(lambda: not before.running())
            assert not before.done()
            assert not during.done()
            (tmp_path / "gate").touch()
            home.start()
            assert before.result(60) > 0
            assert during.result(60) == 2
    finally:
        home.end()
