"""Server and site with secrets of every kind: none is told anywhere; logs follow one job from submit to its end."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.worlds.home.watched_world import SECRETS, Watched, watched

from tidemill.client.client import Wishes
from tidemill.confidential import CUT
from tidemill.log import JOINED
from tidemill.model.job import Input, JobSpec
from tidemill.model.notification import Subscription
from tidemill.node.framed import decode_lines

GOOD = JobSpec(command=["/bin/sh", "-c", "exit 0"], events=20)
FAR = ("s3://bucket/geometry", "https://127.0.0.1:1/geometry")
WAITS = ("site_trouble", "site_refused")
LOOK_S = 0.02


class Seen(NamedTuple):
    """A world in which everything has happened, and the command lines of all processes meanwhile."""

    world: Watched
    command_lines: set[bytes]
    job: int


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    lines: set[bytes] = set()
    ended = threading.Event()
    watcher = threading.Thread(target=look, args=(lines, ended))
    with watched() as world:
        watcher.start()
        try:
            world.mail.start()
            world.hook.start()
            world.start_server()
            world.start_agent()
            wants = [Subscription(to="mail:me@example.org"), Subscription(to="hook:chat")]
            jobs = world.client.submit([GOOD, GOOD], campaign="good", wishes=Wishes(notify=wants)).jobs
            far = [JobSpec(command=["/bin/true"], inputs=[Input(name="geometry", url=url)]) for url in FAR]
            waiting = world.client.submit(far, campaign="far").jobs
            assert world.get("/v1/jobs", world.port, SECRETS["token"]) is None  # a token of nobody known
            world.until(lambda: bool(world.mail.mails() and world.hook.posts()), "all is told")
            world.until(
                lambda: all(world.client.job(each).waits_for in WAITS for each in waiting),
                "what the site cannot fetch waits, and says so",
            )
        finally:
            ended.set()
            watcher.join()
        yield Seen(world, lines, jobs[1])


def look(lines: set[bytes], ended: threading.Event) -> None:
    """Note the command lines of all processes, as `ps` shows them to everybody."""
    while not ended.wait(LOOK_S):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.add(path.read_bytes())
            except OSError:  # it has ended
                continue


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """All files below it and what they hold. Server and agent still write, and replace files by new ones."""
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names):
            if path.is_file():
                with suppress(FileNotFoundError):
                    yield path, path.read_bytes()


def planted(world: Watched) -> dict[str, bytes]:
    """Every secret, and a line of the private key."""
    key = (world.home / "localhost.key").read_text().splitlines()[3]
    return {name: secret.encode() for name, secret in {**SECRETS, "key": key}.items()}


def logged(world: Watched, *names: str) -> list[dict[str, Any]]:
    texts = [(world.home / f"{name}.log").read_text() for name in names or ("server", "agent")]
    texts = [text.rpartition("\n")[0] for text in texts]  # the last line may be half written
    return [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_no_secret_is_in_any_file_but_its_own(seen: Seen) -> None:
    """Logs, database, audit, work files, journals, stage, metrics: whatever server and agent have written."""
    world = seen.world
    own = {"server.secret", "agent.secret", "hook.secret", "mail.login", "dav.token", "s3.credentials"}
    written = {
        path.relative_to(world.home): content
        for path, content in contents(world.home)
        if path.name not in own | {"localhost.key"}
    }

    assert {"tidemill.db", "server.log", "agent.log", "metrics.prom"} <= {path.name for path in written}
    for name, secret in planted(world).items():
        assert [path for path, content in written.items() if secret in content] == [], f"secret of the {name}"


def test_no_secret_is_on_a_command_line(seen: Seen) -> None:
    assert any(b"site\0run" in line for line in seen.command_lines)
    for name, secret in planted(seen.world).items():
        assert not any(secret in line for line in seen.command_lines), f"secret of the {name}"


def test_a_support_bundle_tells_much_and_no_secret(seen: Seen, tmp_path: Path) -> None:
    world = seen.world
    slip = tmp_path / "slip.log"  # as if somebody had let them slip into a log, bare and as JSON
    slips = [
        line for secret in planted(world).values() for line in (secret, json.dumps(secret.decode()).encode())
    ]
    slip.write_bytes(b"\n".join([b'{"event":"slip"}', *slips, b""]))
    config = tmp_path / "server.toml"
    config.write_text(
        f'database = "postgresql://tm:{SECRETS["database"]}@db.example.org/tm"\n'
        + (world.home / "server" / "server.toml").read_text()
        + f'[amqp]\nurl = "amqps://tm:{SECRETS["broker"]}@mq.example.org/"\nkey = "{world.home}/localhost.key"\n'
    )
    target = tmp_path / "bundle.tar.gz"

    done = world.run(
        "support", "-o", str(target), "--site", f"{world.home}/site", "--config", str(config), "--log", str(slip),
        "--log", f"{world.home}/agent.log", "--log", f"{world.home}/server.log",
        "--server", f"http://127.0.0.1:{world.port}", "--secret-file", f"{world.home}/server.secret",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    with tarfile.open(target) as bundle:
        contents = {
            member.name.partition("/")[2]: bundle.extractfile(member) for member in bundle if member.isfile()
        }
        texts = {name: file.read() for name, file in contents.items() if file}
    assert target.stat().st_mode & 0o077 == 0
    assert target.stat().st_size < 5_000_000
    for name, secret in planted(world).items():
        assert [member for member, text in texts.items() if secret in text] == [], f"secret of the {name}"
    assert {
        "README.txt", "manifest.json", "versions.json", "doctor.json", "server/server.toml", "server/health.json",
        "server/metrics.prom", "site/site.toml", "site/status.json", "site/metrics.prom", "logs/agent.log",
    } <= set(texts)  # fmt: skip
    assert texts["logs/slip.log"].count(CUT.encode()) == len(slips)
    assert b'"event":"slip"' in texts["logs/slip.log"]


# ---- one job -------------------------------------------------------------------------------------------------------


def test_lines_of_all_logs_have_the_same_form(seen: Seen) -> None:
    lines = logged(seen.world)

    assert all({"at", "level", "component", "event"} <= set(line) for line in lines)
    assert all(
        isinstance(line[name], int) for line in lines for name in ("job", "lease", "epoch") if name in line
    )
    assert all({"site", "epoch"} <= set(line) for line in logged(seen.world, "agent"))
    used = {name for line in lines for name in line}
    assert set(JOINED) <= used


def test_one_job_can_be_followed_through_server_agent_and_pilot(seen: Seen) -> None:
    world, job = seen.world, seen.job
    server = [line for line in logged(world, "server") if line.get("job") == job]
    agent = [line for line in logged(world, "agent") if line.get("job") == job]
    (submitted,) = [
        line
        for line in logged(world, "server")
        if line["event"] == "jobs.submitted" and line["job"] <= job < line["job"] + line["jobs"]
    ]
    made = [line for line in server if line["event"] == "lease.made"]
    received = [line for line in agent if line["event"] == "lease.received"]
    granted = [line for line in agent if line["event"] == "range.granted"]
    kept = [line for line in agent if line["event"] == "range.kept"]
    ids = ("campaign", "job", "first", "count", "lease", "site", "epoch")

    assert submitted["campaign"] == "good"
    assert [[line[name] for name in ids] for line in made] == [
        [line[name] for name in ids] for line in received
    ]
    assert sum(line["count"] for line in made) == sum(line["count"] for line in kept) == GOOD.events
    assert {line["fleet"] for line in granted} == {line["fleet"] for line in kept}
    assert [line["state"] for line in server if line["event"] == "job.changed"][-1] == "COMPLETED"
    for line in kept:
        (pilot,) = [
            each
            for each in logged(world, "agent")
            if each["event"] == "pilot.started" and each["pilot"] == line["pilot"]
        ]
        assert pilot["node"]
        assert line["allocation"] in {
            each["allocation"] for each in logged(world, "agent") if each["event"] == "allocation.submitted"
        }
    of_pilots = {
        (each["p"], each["first"], each["count"]) for each in records(world) if each.get("job") == job
    }
    assert {(line["pilot"], line["first"], line["count"]) for line in kept} == of_pilots


def records(world: Watched) -> list[dict[str, Any]]:
    """What pilots have written: one record a line behind its checksum."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in (world.home / "site" / "fleets").rglob("journal/*.log"):
        for each in decode_lines(path.read_bytes(), json.loads)[0]:
            found[each["p"], each["s"]] = each
    return list(found.values())
