"""What stands in deploy/ works: units that systemd accepts, a watchdog that starts one only, a container file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.server.watch.health import PROBLEMS

DEPLOY = Path(__file__).parents[3] / "deploy"
WATCHDOG = DEPLOY / "tidemill-watchdog"
#: stands for `tidemill`: notes that it was started, and lives
PROGRAM = '#!/bin/sh\necho "$$ $*" >>"{log}"\nexec sleep 60\n'


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"`{name}` is not installed: Debian's package {package} has it")
    return found


def test_somebody_is_woken_for_every_problem_with_which_a_server_does_not_work() -> None:
    alerts = (DEPLOY / "prometheus-alerts.yml").read_text()
    found = re.search(r'tidemill_server_health\{problem=~"([^"]*)"\}', alerts)
    assert found is not None
    assert set(found[1].split("|")) == {name for name, kind in PROBLEMS.items() if not kind.works}
    assert "tidemill_server_active" in alerts


@pytest.mark.parametrize("unit", sorted(path.name for path in (DEPLOY / "systemd").glob("*.service")))
def test_systemd_accepts_the_units(unit: str, tmp_path: Path) -> None:
    """A copy whose program exists, for `systemd-analyze verify` looks for it; with its drop-in."""
    program = tmp_path / ".local" / "bin" / "tidemill"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    place = tmp_path / unit.replace("@", "@hpc2")
    place.write_text((DEPLOY / "systemd" / unit).read_text().replace("%h", str(tmp_path)))
    for extra in (DEPLOY / "systemd").glob(f"{unit.removesuffix('.service')}-*.conf"):
        (tmp_path / f"{unit}.d").mkdir()
        (tmp_path / f"{unit}.d" / extra.name).write_text(extra.read_text().replace("%h", str(tmp_path)))
    for name in ("run", "run/systemd"):
        (tmp_path / name).mkdir(mode=0o700)

    done = subprocess.run(
        [tool("systemd-analyze", "systemd"), "verify", "--user", "--man=no", place],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    told = [line for line in done.stderr.splitlines() if unit.partition(".")[0].rstrip("@") in line]
    assert (done.returncode, told) == (0, [])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for the watchdog; what it has started is ended afterwards."""
    program = tmp_path / "tidemill"
    program.write_text(PROGRAM.format(log=tmp_path / "started"))
    program.chmod(0o755)
    yield tmp_path
    for pid in started(tmp_path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def started(place: Path) -> list[int]:
    """The processes that were started, in order."""
    log = place / "started"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def watch(place: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [WATCHDOG, *words],
        env={
            **os.environ, "TIDEMILL": str(place / "tidemill"), "TIDEMILL_LOGDIR": str(place / "log"),
            "XDG_RUNTIME_DIR": str(place / "run"), "TIDEMILL_LOG_BYTES_MAX": "100",
        },
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def until_started(place: Path, number: int) -> None:
    end = time.monotonic() + 20
    while len(started(place)) < number:
        assert time.monotonic() < end, started(place)
        time.sleep(0.02)


def test_the_watchdog_starts_one_however_often_and_at_once_it_is_called(place: Path) -> None:
    calls = [watch(place, "site", "/data/hpc2") for _ in range(8)]

    assert [call.wait(20) for call in calls] == [0] * 8
    until_started(place, 1)
    assert watch(place, "site", "/data/hpc2").wait(20) == 0
    assert len(started(place)) == 1
    assert (place / "started").read_text().split(maxsplit=1)[1] == "site run /data/hpc2\n"


def test_the_watchdog_starts_again_what_has_died_and_knows_several(place: Path) -> None:
    watch(place, "server", "/data/server.toml").wait(20)
    until_started(place, 1)  # the log has it first
    watch(place, "site", "/data/hpc2").wait(20)
    until_started(place, 2)
    os.kill(started(place)[0], signal.SIGKILL)
    end = time.monotonic() + 20
    while len(started(place)) < 3 and time.monotonic() < end:
        watch(place, "server", "/data/server.toml").wait(20)
        watch(place, "site", "/data/hpc2").wait(20)

    words = [line.split(maxsplit=1)[1] for line in (place / "started").read_text().splitlines()]
    assert words.count("server run --config /data/server.toml") == 2
    assert words.count("site run /data/hpc2") == 1


AGENT = """name = "here"
server = "unix:/nowhere/api.sock"
[local]
nodes = 1
"""


def agents(site: Path) -> list[int]:
    """The agents that took the site, in order."""
    owners = sorted((site / "epoch").glob("*.json"))
    return [int(json.loads(path.read_text())["pid"]) for path in owners]


@pytest.mark.timing(site={"HEARTBEAT_S": 0.2, "DEAD_AGENT_S": 2})
def test_the_watchdog_keeps_a_real_agent_alive_until_it_is_told_to_stop(place: Path) -> None:
    site = place / "hpc2"
    (site / "apps").mkdir(parents=True)
    (site / "site.toml").write_text(AGENT)
    (place / "tidemill").write_text(
        f'#!/bin/sh\necho "$$ $*" >>"{place}/started"\nexec "{sys.executable}" -m tidemill.cli.main "$@"\n'
    )

    def until(agents_started: int) -> None:
        end = time.monotonic() + 60
        while len(agents(site)) < agents_started:
            assert time.monotonic() < end, (place / "log" / "site-hpc2.log").read_text()
            assert (
                watch(place, "site", str(site)).wait(20) == 0
            )  # also while the one before is only just dying
            time.sleep(0.1)

    until(1)
    assert watch(place, "site", str(site)).wait(20) == 0
    assert started(place) == agents(site)  # the watchdog executes it: no second was even started
    os.kill(agents(site)[0], signal.SIGKILL)
    until(2)
    assert len(agents(site)) == len(set(agents(site))) == 2

    (place / "log" / "stop").touch()
    os.kill(agents(site)[1], signal.SIGKILL)
    before = started(place)
    for _ in range(3):
        assert watch(place, "site", str(site)).wait(20) == 0
    assert started(place) == before


def test_the_watchdog_rotates_its_log_and_keeps_still_when_it_is_told(place: Path) -> None:
    (place / "log").mkdir()
    (place / "log" / "server.log").write_text("x" * 200)
    (place / "log" / "stop").touch()
    watch(place, "server", "/data/server.toml").wait(20)
    assert started(place) == []

    (place / "log" / "stop").unlink()
    watch(place, "server", "/data/server.toml").wait(20)
    until_started(place, 1)

    assert (place / "log" / "server.log.1").read_text() == "x" * 200
    assert (place / "log" / "server.log").stat().st_mode & 0o077 == 0


def test_the_watchdog_says_how_it_is_called(place: Path) -> None:
    assert watch(place).wait(20) == 2
    assert watch(place, "lead", "/data").wait(20) == 2


def test_shellcheck_finds_nothing_in_the_watchdog() -> None:
    done = subprocess.run(
        [tool("shellcheck", "shellcheck"), WATCHDOG], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_file_is_read_by_its_builder_and_asks_for_no_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    instructions = [line.split(maxsplit=1)[0] for line in text.splitlines() if line[:1].isupper()]

    assert set(instructions) <= {
        "ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENV", "HEALTHCHECK", "STOPSIGNAL",
        "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")
    extras = re.findall(r"\[([a-z,0-9]+)\]\"", text)  # all extensions, and what any server.toml may ask for
    assert extras == ["all,certs,postgresql"]
    assert extras[0] in (DEPLOY.parent / "Makefile").read_text()
    assert "USER 0" not in text
    assert "root" not in text.partition("ENTRYPOINT")[2]
