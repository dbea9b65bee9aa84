"""What all tests share: hypothesis profiles, seeds of fault tests, short temporary folders."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from tests.groups import group_of
from tests.timing import timing

pytest.register_assert_rewrite("tests.worlds")

#: folders whose tests leave their process as it was; in the others, tests share servers, clusters and helpers
LEAVES_NOTHING = ("unit", "property", "contract")
ENDS_S = 10.0  #: threads and programs of a test end within this time after it

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# `make test` tries the same examples each time; `make fuzz` others, and many (`--hypothesis-profile=soak`). There is no
# deadline: the machine is shared, and an example may be slow.
settings.register_profile("seeded", max_examples=60, derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "soak", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("seeded")


#: the only reasons for which a test may be skipped in CI, as the beginnings of what they say
SKIPPED_IN_CI = (
    "local: not ", "slurm: not ", "gridengine: not ", "pbs: not ",  # what a batch system cannot do
    "no Python 3.6 on this machine",  # its syntax is checked in any case
    "slurmctld saved every submission",  # a race that the test tries four times to win
)  # fmt: skip


def skip_is_forgiven(why: str) -> bool:
    """Whether a skip with this reason is none that hides a missing service, tool or right: those fail in CI."""
    return os.environ.get("CI") != "true" or why.removeprefix("Skipped: ").startswith(SKIPPED_IN_CI)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped for want of something has failed."""
    report = yield
    return refused(report) if isinstance(report, pytest.TestReport) else report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pass a test marked `timing` other times and bounds, its fixtures and the processes that it starts, too."""
    with ExitStack() as stack:
        for mark in reversed(list(item.iter_markers("timing"))):  # the closest one wins
            stack.enter_context(timing(**mark.kwargs))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for whole files."""
    report = yield
    return refused(report)


def refused(report: Report) -> Report:
    """The report, as a failure where it is a skip that CI does not forgive."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not skip_is_forgiven(why):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where nothing may be missing: {why}"
    return report


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start: a shell that runs pytest with `&` has it ignored, which programs inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fault-seeds N --fault-first S`: fault tests run with the seeds S, S + 1, ..., S + N - 1, with a tenth of them
    where services start and end with each; others: --help."""
    parser.addoption("--fuzz-of", default="", help="only the parsers of this extension")
    parser.addoption("--fault-seeds", type=int, default=3, help="number of seeds of each fault test")
    parser.addoption(
        "--api-examples", type=int, default=10, help="calls of each route of the API, by its document"
    )
    parser.addoption("--api-seed", type=int, default=1, help="another seed makes other calls")
    parser.addoption(
        "--fuzz-mutations", type=int, default=100, help="inputs for each parser, after the corpus"
    )
    parser.addoption("--fuzz-seed", type=int, default=1, help="another seed makes other inputs")
    parser.addoption(
        "--fault-first", type=int, default=1, help="first seed; to replay one: its number, with 1 seed"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the node's program where tests need it, before a test's time runs. What does not build the tests tell."""
    gc.freeze()  # what collecting tests has made stays to the end: searched for garbage, it costs a tenth of the time
    node = sys.modules.get("tests.worlds.node.pilot_fleet")
    if node is not None and not session.config.option.collectonly:
        with suppress(subprocess.SubprocessError):
            node.binary()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `fault_seed` or `rare_seed` runs once per seed; the seed is part of its name, so a failure
    prints it."""
    first: int = metafunc.config.getoption("--fault-first")
    number: int = metafunc.config.getoption("--fault-seeds")
    for name, count in (("fault_seed", number), ("rare_seed", max(min(2, number), number // 10))):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(first, first + count), ids=lambda seed: f"seed{seed}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private temporary folder whose path is short enough for Unix sockets (107 bytes, unix(7))."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread or program behind: another test would count it, or fail by it."""
    if group_of(request.path, request.config.rootpath) not in LEAVES_NOTHING:
        yield
        return
    threads, programs, here = set(threading.enumerate()), children(), Path.cwd()
    yield
    os.chdir(here)
    end_s = time.monotonic() + ENDS_S
    while left := [
        *(f"the thread {each.name}" for each in threading.enumerate() if each not in threads),
        *(f"the program {each}" for each in children() - programs),
    ]:
        gc.collect()  # a caught error keeps the objects of its functions alive
        if time.monotonic() > end_s:
            pytest.fail(f"this test leaves {' and '.join(left)} behind")
        time.sleep(0.01)


def children() -> set[int]:
    """The child processes that run, or that have ended without a wait(2)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found.update(map(int, (task / "children").read_text().split()))
    return found
