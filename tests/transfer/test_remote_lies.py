"""Origins and URLs that are wrong, on real servers: each job ends with a clear sentence, none with a wrong byte, and no
secret of a URL is shown."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.contract.transfer_world import Server
from tests.transfer.opened_world import READ, Ran, endpoint, run_all

FIRST, SECOND = b"as it was first\n", b"as it is second\n"
CURL = READ.replace(
    'xrdcp --silent --nopbar "$1" got', 'curl --silent --show-error --cacert "$2" --output got "$1"'
)
COPY = READ.replace("xrdcp --silent --nopbar", "cp")


class Far(NamedTuple):
    """The servers. Of the managers one sends clients to another host, the other one to itself."""

    root: Server
    https: Server
    away: Server
    circle: Server


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp")))
        folder.chmod(0o711)
        made = []
        for name, scheme in (("root", "root"), ("https", "https"), ("away", "root"), ("circle", "root")):
            (folder / name).mkdir(mode=0o711)
            made.append(Server(scheme, folder / name))
            stack.callback(made[-1].stop)
        found = Far(*made)
        found.root.make("f", SECOND)
        for manager, host, to in (
            (found.away, "127.0.0.2", found.root),
            (found.circle, "127.0.0.1", found.circle),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XROOTD_OPTIONS", f"xrootd.redirect {host}:{_port(to)} all")
                manager.stop()
                manager.start()  # with the same port
        yield found


@pytest.fixture(scope="module")
def ran(far: Far) -> dict[str, Ran]:
    """All jobs, in one home. Each content has a digest of its own: copies of one digest serve all jobs."""
    jobs = {**_lines(far), **_files(far), **_https(far)}
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as home:
        config = "".join(endpoint(each) for each in far)
        found = run_all(Path(home), config, [{"events": 1, **job} for job in jobs.values()])
        logs = "".join(path.read_text() for path in Path(home).glob("*.log"))
    assert "hunter" not in logs
    return dict(zip(jobs, found, strict=True))


def _lines(far: Far) -> dict[str, dict[str, object]]:
    authority = f"127.0.0.1:{_port(far.root)}"
    lines = {
        "dots": f"root://{authority}//lists/../f",
        "user": f"root://someone:hunter2@{authority}//f",
        "opaque": f"root://{authority}//f?authz=hunter3",
        "proxied": f"root://{authority}//root://127.0.0.2//f",
    }
    urls = {name: far.root.make(f"lists/{name}", f"{line}\n".encode()) for name, line in lines.items()}
    return {name: _one(url, kind="each") for name, url in urls.items()}


def _files(far: Far) -> dict[str, dict[str, object]]:
    changed = far.root.make("changed", SECOND)
    return {
        "changed": _one(changed, sha256=_digest(FIRST)),
        "away": _one(far.away.address("f"), sha256=_digest(b"away")),
        "circle": _one(far.circle.address("f"), sha256=_digest(b"circle")),
        "opened circle": _one(far.circle.address("f")),
    }


def _https(far: Far) -> dict[str, dict[str, object]]:
    def by(script: str) -> dict[str, object]:
        return {"command": ["/bin/sh", "-c", script, "read", "{input.data}", str(far.https.endpoint.ca)]}

    base = far.https.base
    return {
        "https changed": _one(far.https.make("changed", SECOND), sha256=_digest(b"https")),
        "https away": _one(f"{base}far/f", sha256=_digest(b"https away")),
        "https circle": _one(f"{base}round/f", sha256=_digest(b"https circle")),
        "https": _one(far.https.make("f", SECOND)) | by(CURL),
        "https copied": _one(far.https.make("g", b"copied\n"), sha256=_digest(b"copied\n")) | by(COPY),
    }


def _one(url: str, **more: object) -> dict[str, object]:
    return {"inputs": [{"name": "data", "url": url, "read": "url", **more}]}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _port(server: Server) -> str:
    return server.base.rstrip("/").rpartition(":")[2]


SENTENCES = {
    "dots": "line 1 of input `data`: `root://127.0.0.1:PORT//lists/../f` cannot be opened: `.` and `..` may not",
    "user": "`root://127.0.0.1:PORT//f` cannot be opened: a URL may not hold a user name, a password or a token",
    "opaque": "`root://127.0.0.1:PORT//f` cannot be opened: it has an opaque part after `?`",
    "proxied": "`root://127.0.0.1:PORT//root://127.0.0.2//f` cannot be opened: its path holds another URL",
    "changed": f"changed` has checksum {_digest(SECOND)}, the job expects {_digest(FIRST)}",
    "away": "//f` sends us on to another server, which this site does not permit",
    "circle": "//f` sends us on to another server, which this site does not permit",
    "https changed": f"changed` has checksum {_digest(SECOND)}, the job expects {_digest(b'https')}",
    "https away": "/far/f` sends us on to `https://127.0.0.2:443`, which this site does not permit",
    "https circle": "/round/f`: more than 8 redirections",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SENTENCES)
def test_a_job_with_a_wrong_url_or_origin_fails_with_the_cause_and_reads_nothing(
    far: Far, ran: dict[str, Ran], name: str
) -> None:
    job = ran[name]

    assert job.state == "FAILED"
    assert not job.outputs, "nothing ran"
    assert {each["evidence"]["failure"] for each in job.detail["failures"]} == {"stage_in"}
    sentence = SENTENCES[name].replace("PORT", _port(far.root))
    assert all(sentence in each for each in job.evidence.splitlines())
    assert sentence in job.explained
    assert "hunter" not in json.dumps(job.detail) + job.explained


@pytest.mark.timeout(300)
def test_a_program_in_a_circle_of_redirections_is_stopped_and_its_way_is_named(
    far: Far, ran: dict[str, Ran]
) -> None:
    """The program's client gives up, the copy of the next try is refused."""
    job = ran["opened circle"]

    assert job.state == "FAILED"
    assert not job.outputs
    assert f"input `data` was read directly from root://127.0.0.1:{_port(far.circle)}" in job.evidence
    assert "sends us on to another server" in job.explained


@pytest.mark.timeout(300)
def test_an_https_origin_is_read_directly_and_as_a_copy(far: Far, ran: dict[str, Ran]) -> None:
    direct, copied = ran["https"], ran["https copied"]

    assert (direct.state, copied.state) == ("COMPLETED", "COMPLETED"), direct.evidence + copied.evidence
    (output,) = direct.outputs
    assert output.startswith(SECOND.decode())
    assert f"url {far.https.address('f')}\n" in output
    assert "directly from https://localhost:" in direct.explained
    (output,) = copied.outputs
    assert output.startswith("copied\nurl /")
    assert "as a copy from https://localhost:" in copied.explained
