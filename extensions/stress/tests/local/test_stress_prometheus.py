"""Outside sources of a stress test, asked of a real Prometheus that watches itself."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.services.ports import free_port

from tidemill.errors import SiteError
from tidemill_stress.plan import GuardPlan, OutsidePlan
from tidemill_stress.series import prometheus


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("`prometheus` is not installed: Debian's package prometheus has it")
    home, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (home / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s, scrape_timeout: 1s }\nscrape_configs:\n"
        f'  - job_name: self\n    static_configs: [{{ targets: ["127.0.0.1:{port}"] }}]\n'
    )
    options = [
        f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until_scraped(address, home / "log")
        yield address
    finally:
        process.terminate()
        process.wait()


def until_scraped(address: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, log.read_text()
        try:
            if prometheus.over(GuardPlan(title="it is up", url=address, query="up", above=0.5)):
                return
        except SiteError:
            pass
        time.sleep(0.3)


def query(url: str, text: str) -> OutsidePlan:
    return OutsidePlan(title="t", url=url, query=text, unit="1", limit=2.0)


def test_a_range_becomes_series_with_their_instances(url: str) -> None:
    now = time.time()
    (found,) = prometheus.PrometheusSource([query(url, "up")]).series("", now - 10, now)
    assert found.source == url.removeprefix("http://")
    assert (found.title, found.unit, found.limit) == ("t", "1", 2.0)
    assert found.points[-1][1] == 1.0
    assert all(now - 11 <= at <= now + 1 for at, _ in found.points)


def test_a_guard_speaks_above_its_limit_only(url: str) -> None:
    assert prometheus.over(GuardPlan(title="up", url=url, query="up", above=0.5)) == "up is 1, above 0.5"
    assert prometheus.over(GuardPlan(title="up", url=url, query="up", above=1)) == ""
    assert prometheus.over(GuardPlan(title="none", url=url, query="nothing_of_this_name", above=0)) == ""


def test_a_refused_query_and_a_server_that_is_away_are_named(url: str) -> None:
    with pytest.raises(SiteError, match=r"for `sum\(`: .*parse error"):
        prometheus.ask_range(query(url, "sum("), 1, 2)
    with pytest.raises(SiteError, match=r"failed to ask Prometheus at `http://127\.0\.0\.1:1`"):
        prometheus.ask_range(query("http://127.0.0.1:1", "up"), 1, 2)


def test_not_a_number_is_no_point_and_too_many_series_are_refused(url: str) -> None:
    now = time.time()
    (found,) = prometheus.ask_range(query(url, "up * NaN"), now - 5, now)
    assert found.points == []
    with pytest.raises(SiteError, match="series for"):
        prometheus.ask_range(query(url, '{__name__=~".+"}'), now - 5, now)
