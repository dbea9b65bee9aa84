"""A payload that tries to read keys, to reach server, lead, pilot and neighbours, and to kill: all refused, none hurt.

What is promised: a payload runs without capabilities in namespaces of its own; the site directory, the private
server beside it and the usual places of keys below HOME are covered. As an ordinary user the kernel's permissions
protect everything of other users. Real root keeps uid 0 (there is nobody else that it could become without losing
the submitter's files): what belongs to root and is not covered stays readable and writable, and is not promised.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import Options, World, world

HOSTILE = (Path(__file__).parent.parent / "payloads" / "hostile.py").resolve()
NOBODY, STRANGER = 65534, 65533
KEYS = (".ssh/id_ed25519", ".globus/userkey.pem", ".netrc", ".config/tidemill/secret", ".aws/credentials")
USERS = [pytest.param(NOBODY if os.geteuid() == 0 else None, id="ordinary-user")]
if os.geteuid() == 0:
    USERS.append(pytest.param(None, id="root"))


def plant(it: World) -> list[str]:
    """Keys in the user's home."""
    planted = []
    for name in KEYS:
        path = it.home / "me" / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("a secret\n")
        path.chmod(0o600)
        planted.append(path)
    if it.options.user is not None:
        for path in (it.home / "me").rglob("*"):
            os.chown(path, it.options.user, it.options.user)
    return [str(path) for path in planted]


@pytest.fixture
def strangers_key() -> Iterator[Path]:
    """A key of another user, where nothing covers it."""
    directory = Path(tempfile.mkdtemp(prefix="tm-", dir="/var/tmp"))
    key = directory / "id_rsa"
    key.write_text("a secret\n")
    key.chmod(0o600)
    if os.geteuid() == 0:
        for path in (directory, key):
            os.chown(path, STRANGER, STRANGER)
    yield key
    shutil.rmtree(directory)


def plan(it: World, keys: list[str], stranger: Path) -> Path:
    """What the payload is to try, where it can read it."""
    (fleet,) = it.home.glob("site/fleets/*/lead.json")
    address = json.loads(fleet.read_bytes())
    site = it.home / "site"
    inside = [path for path in site.rglob("*") if path.is_file()]
    server = [it.home / "server" / name for name in ("tidemill.db", "tidemill.db-wal", "server.lock")]
    strangers = [str(stranger)] if os.geteuid() == 0 else []
    path = it.home / "me" / "plan.json"
    path.write_text(
        json.dumps(
            {
                "read": [str(site), *map(str, inside), *map(str, server), *keys, *strangers],
                "write": [str(path) for path in (*inside, *server)],
                "sockets": [str(it.home / "server" / "api.sock")],
                "lead": [address["host"], address["port"]],
                "site": str(site),
            }
        )
    )
    path.chmod(0o644)
    return path


def living(it: World) -> dict[str, set[int]]:
    """Everybody who must survive, by role."""
    return {
        role: {each.pid for each in it.processes(role)}
        for role in ("pilot", "slot", "lead", "agent", "server")
    }


@pytest.mark.timeout(180)
@pytest.mark.parametrize("user", USERS)
def test_a_hostile_payload_gets_nowhere(user: int | None, strangers_key: Path) -> None:
    parent = Path("/var/tmp")  # /tmp is the payload's own: there it would find nothing anyway
    with world(options=Options(nodes=1, cores=2, user=user, parent=parent)) as it:
        keys = plant(it)
        flag = it.home / "me" / "flag"
        patient = f"while [ ! -e {flag} ]; do sleep 0.05; done; echo untouched"
        spec = ["run", "--name", "neighbour", "--", "/bin/sh", "-c", patient]
        with it.running(*spec) as neighbour:
            it.wait_for(lambda: alive(str(flag)), "the neighbour runs")
            before, neighbours = living(it), alive(str(flag))
            script = it.home / "me" / "hostile.py"
            shutil.copy(HOSTILE, script)
            script.chmod(0o644)
            done = it.run(
                "run",
                "--name",
                "hostile",
                "--",
                sys.executable,
                str(script),
                str(plan(it, keys, strangers_key)),
            )
            said = done.stdout + done.stderr
            assert done.returncode == 0, said + it.tails()
            lines = done.stdout.splitlines()
            assert lines[0] == f"uid {os.geteuid() if user is None else user}"
            assert lines[-1].startswith("kill -9 -1: done, our own child ended with -9"), said
            assert [line for line in lines if "SUCCEEDED" in line] == []
            assert len(lines) > 40
            assert all(": refused " in line for line in lines[1:-1]), said
            after = living(it)
            assert all(pids <= after[role] for role, pids in before.items()), (before, after)
            assert alive(str(flag)) == neighbours
            flag.touch()
            out, err = neighbour.communicate(timeout=60)
            assert (neighbour.returncode, out) == (0, "untouched\n"), err + it.tails()
        lead_log = [log.read_text() for log in it.home.glob("site/**/lead*.log") if log.is_file()]
        assert any("refused" in text for text in [*lead_log, (it.home / "site.log").read_text()])


def alive(mark: str) -> set[int]:
    """Payloads whose command line names the mark."""
    return {
        each.pid
        for each in snapshot().values()
        if each.argv[:2] == ("/bin/sh", "-c") and mark in each.argv[2]
    }
