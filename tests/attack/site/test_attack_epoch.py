"""A stolen credential of a site: what it can do, and how an operator brings the site back. A site directory that others
can write: refused, with the command that mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.services.access_world import Certs, World, submission, sync
from tests.worlds.services.token_issuer import Issuer

from tidemill.errors import ConfigError
from tidemill.server.audit.audit_log import verify
from tidemill.site.applications.catalogue import Applications
from tidemill.site.setup import ownership
from tidemill.wire.api import EPOCH_JUMP_MAX, DoneReport, PayloadUsage

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
STRANGER = 65534


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(
        tmp_path_factory.mktemp("world"),
        Certs(tmp_path_factory.mktemp("certs")),
        Issuer(tmp_path_factory.mktemp("issuer")),
    )
    yield made
    assert made.stop() == 0


def run(world: World, who: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the command line by somebody's certificate."""
    home = world.folder / f"home-{who}"
    home.mkdir(mode=0o700, exist_ok=True)
    certificate, key = world.certs.pair(who)
    values = {
        "server": world.address,
        "certificate": certificate,
        "key": key,
        "ca": world.certs.own.certificate_path,
    }
    (home / "client.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    return subprocess.run(
        [*TIDEMILL, *words, "--home", str(home)], capture_output=True, text=True, timeout=60, check=False
    )


def spoken(world: World, **changes: Any) -> tuple[int, Any]:
    """A sync of site `lrz` in the version of whoever has its credential."""
    return world.call("lrz", "POST", "/v1/sync", sync("lrz", **changes))


def idle() -> Any:
    return msgspec.structs.replace(sync("x").capacity, want_core_s=0.0)


def test_no_epoch_takes_a_site_away_for_good(world: World) -> None:
    assert world.call("ada", "POST", "/v1/jobs", submission("ada-1", "k"))[0] == 200
    status, reply = spoken(world, epoch=7, host="login1", capacity=idle())
    assert status == 200, reply
    for epoch in (2**62, 2**63 - 1, 8 + EPOCH_JUMP_MAX):
        status, reply = spoken(world, epoch=epoch, host="thief")
        assert (status, "agents count by one" in str(reply["hint"])) == (409, True), reply
    status, reply = spoken(world, epoch=7, host="login1", capacity=idle())
    assert status == 200, "the agent is still the site's"

    # the thief does what passes: a jump, all orders acknowledged, a report with a number beyond the agent's
    report = DoneReport(n=2**50, lease=1, job=1, first=0, count=1, outputs=False, usage=PayloadUsage())
    status, reply = spoken(world, epoch=7 + EPOCH_JUMP_MAX, host="thief", reports=[report])
    taken = [each for each in reply["orders"] if each["t"] == "lease"]
    assert taken, "it gets what a site gets"
    status, reply = spoken(world, epoch=7, host="login1")
    assert status == 409
    assert "`tidemill site reset-epoch lrz`" in reply["hint"]

    for who in ("ada", "lrz"):
        refused = run(world, who, "site", "reset-epoch", "lrz", "--reason", "mine")
        assert refused.returncode != 0, refused.stdout
    done = run(world, "olga", "site", "reset-epoch", "lrz", "--reason", "the key was stolen")
    assert done.returncode == 0, done.stderr
    assert "certs revoke" in done.stderr
    status, reply = spoken(world, epoch=7, host="login1")
    assert status == 200, reply
    mine = [each for each in reply["orders"] if each["t"] == "lease"]
    assert sum(each["count"] for each in mine) == 10, "what the thief was given is the site's again"
    reports = [
        DoneReport(n=n, lease=each["lease"], job=each["job"], first=each["first"], count=each["count"], outputs=False,
                   usage=PayloadUsage())
        for n, each in enumerate(mine, 1)
    ]  # fmt: skip
    status, reply = spoken(world, epoch=7, host="login1", reports=reports, capacity=idle())
    assert (status, reply["acked"]) == (200, len(reports)), "reports of the agent are not taken for old ones"
    assert world.call("ada", "GET", "/v1/campaigns/ada-1")[1]["events_done"] == 10
    assert world.events("site.reset")[-1]["by"] == "olga"


def noted(world: World, word: str) -> list[Any]:
    """Lines of the log of changes with this word, once they are written: the server moves them every second."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        texts = [path.read_text() for path in (world.folder / "server").rglob("*.jsonl")]
        lines = [
            json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line[-1] == "\n"
        ]
        if found := [each for each in lines if f'"{word}"' in json.dumps(each)]:
            return found
        time.sleep(0.1)
    return []


def test_a_reset_is_in_the_log_of_changes(world: World) -> None:
    assert spoken(world, epoch=7, host="login1", capacity=idle())[0] == 200
    assert run(world, "olga", "site", "reset-epoch", "lrz", "--reason", "audited").returncode == 0
    assert run(world, "olga", "site", "reset-epoch", "nil", "--reason", "x").returncode == 2
    told = noted(world, "audited")
    verify(world.folder / "server")
    assert len(told) == 1
    assert '"reset"' in json.dumps(told[0])


# ---- site directories ------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site directory as `site init` leaves it, but readable by everybody."""
    made = tmp_path / "site"
    (made / "apps").mkdir(parents=True)
    (made / "site.toml").write_text('name = "x"\nserver = "unix:/nowhere"\nbatch = "local"\nnodes_max = 1\n')
    (made / "apps" / "sim.toml").write_text('name = "sim"\nexecutable = "/bin/true"\n')
    for path, mode in ((made, 0o755), (made / "apps", 0o755), (made / "site.toml", 0o644)):
        path.chmod(mode)
    (made / "apps" / "sim.toml").chmod(0o644)
    return made


@pytest.mark.parametrize(
    ("name", "mode"),
    [("", 0o777), ("", 0o1777), ("site.toml", 0o666), ("apps", 0o777), ("apps", 0o757), ("epoch", 0o777)],
)
def test_a_site_directory_that_others_can_write_is_refused(site: Path, name: str, mode: int) -> None:
    path = site / name
    if not path.exists():
        path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        ownership.check_site_directory(site)
    assert refused.value.message == f"`{path}` can be changed by others: mode {mode:04o}"
    assert refused.value.hint == f"`chmod go-w {path}`"


def test_the_agent_and_the_check_refuse_it(site: Path) -> None:
    (site / "site.toml").chmod(0o666)
    for words in (["site", "run", str(site), "--once"], ["site", "check", str(site)]):
        done = subprocess.run([*TIDEMILL, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 or words[1] == "check", done.stderr
        said = "".join((done.stdout + done.stderr).split())
        assert f"chmod go-w {site / 'site.toml'}".replace(" ", "") in said
    assert not list((site / "epoch").glob("*")), "no agent has begun"


def test_an_application_file_that_others_can_write_is_not_offered(site: Path) -> None:
    path = site / "apps" / "sim.toml"
    found = Applications(site / "apps")
    found.refresh()
    assert list(found.by_name) == ["sim"]
    path.chmod(0o666)
    assert found.refresh()
    assert not found.by_name
    assert f"chmod go-w {path}" in found.problems["sim.toml"]
    path.chmod(0o644)
    assert found.refresh()
    assert list(found.by_name) == ["sim"]


def test_what_nobody_else_can_reach_needs_no_mode_of_its_own(site: Path) -> None:
    """A site that was started with umask 000 keeps working."""
    site.chmod(0o700)
    (site / "apps" / "sim.toml").chmod(0o666)
    (site / "metrics.prom").touch()
    (site / "metrics.prom").chmod(0o666)
    ownership.check_site_directory(site)
    found = Applications(site / "apps")
    found.refresh()
    assert list(found.by_name) == ["sim"]


def test_links_are_followed_to_where_others_write(site: Path, tmp_path: Path) -> None:
    site.chmod(0o700)
    elsewhere = tmp_path / "apps"
    (site / "apps").rename(elsewhere)
    (site / "apps").symlink_to(elsewhere)
    ownership.check_site_directory(site)
    elsewhere.chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by others"):
        ownership.check_site_directory(site)
    found = Applications(site / "apps")
    found.refresh()
    assert not found.by_name


def test_an_access_list_is_no_private_group(site: Path) -> None:
    """`setfacl` shows in the mode as a right of the group."""
    words = ["setfacl", "-m", f"u:{STRANGER}:rw", str(site / "site.toml")]
    if shutil.which("setfacl") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs setfacl and a file system with access lists")
    with pytest.raises(ConfigError, match="can be changed by others"):
        ownership.check_site_directory(site)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
@pytest.mark.parametrize("name", ["", "site.toml", "apps", "apps/sim.toml"])
def test_what_belongs_to_another_user_is_refused(site: Path, name: str) -> None:
    os.chown(site / name, STRANGER, STRANGER)
    if name == "apps/sim.toml":
        found = Applications(site / "apps")
        found.refresh()
        assert not found.by_name
        assert f"belongs to user {STRANGER}" in found.problems["sim.toml"]
        return
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        ownership.check_site_directory(site)
