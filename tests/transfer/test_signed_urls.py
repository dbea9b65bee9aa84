"""URLs that carry their own signature, made by boto3 for a real S3 service: in moves, and as inputs of jobs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.transfer_world import SETTINGS, Server
from tests.transfer.opened_world import run_all

from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.site.fleet.troubles import read_troubles
from tidemill.site.state.status import read_status
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover

boto3 = pytest.importorskip("boto3")
CONTENT = os.urandom(3_000_000)
NAMES = [
    "plain.txt",
    "a+b=c.txt",
    "sp ace.txt",
    "f\N{LATIN SMALL LETTER U WITH DIAERESIS}r.txt",
    "d/e/deep.txt",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        made = Server("s3", Path(folder))
        yield made
        made.stop()


def signed(server: Server, method: str, name: str, *, seconds: int = 600) -> str:
    from botocore.config import Config

    client: Any = boto3.client(
        "s3", endpoint_url=server.started[0], aws_access_key_id="tests", aws_secret_access_key="tests-of-tidemill",
        region_name="us-east-1", config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )  # fmt: skip
    found = client.generate_presigned_url(method, Params={"Bucket": "tests", "Key": name}, ExpiresIn=seconds)
    client.close()
    return str(found)


def mover(server: Server) -> Mover:
    return Mover([Endpoint(url=server.base + "tests/", access="both")], SETTINGS, size_max=10**9)


@pytest.mark.parametrize("name", NAMES)
def test_a_signed_url_is_read_and_written(server: Server, tmp_path: Path, name: str) -> None:
    server.make(name, CONTENT)
    by = mover(server)

    by.get(signed(server, "get_object", name), tmp_path / "in", by.watch())
    by.put(tmp_path / "in", signed(server, "put_object", f"out/{name}"), by.watch())

    assert (tmp_path / "in").read_bytes() == CONTENT
    assert server.content(f"out/{name}") == CONTENT


@pytest.mark.parametrize("out", [False, True], ids=["in", "out"])
def test_a_signature_that_has_ended_fails_the_move_for_good_and_is_no_credential_of_the_endpoint(
    server: Server, tmp_path: Path, out: bool
) -> None:
    server.make("plain.txt", CONTENT)
    (tmp_path / "out").write_bytes(CONTENT)
    url = signed(server, "put_object" if out else "get_object", "plain.txt", seconds=1)
    by, until_s = mover(server), time.monotonic() + 30
    error: TransferError | None = None
    while error is None and time.monotonic() < until_s:
        (tmp_path / "in").unlink(missing_ok=True)
        try:
            by.put(tmp_path / "out", url, by.watch()) if out else by.get(url, tmp_path / "in", by.watch())
        except TransferError as refused:
            error = refused

    assert error is not None, "a signature of one second held for thirty"
    assert error.failure is (FailureClass.STAGE_OUT if out else FailureClass.STAGE_IN)
    assert not error.transient
    assert "new URL" in str(error.hint)


@pytest.mark.timeout(300)
def test_a_job_reads_a_signed_url_and_one_with_a_wrong_signature_fails_without_a_trouble_of_the_site(
    server: Server,
) -> None:
    server.make("good.txt", b"as it is\n")
    good = signed(server, "get_object", "good.txt")
    copy = ["/bin/sh", "-c", "cat one >out.txt"]
    jobs: list[dict[str, object]] = [
        {"events": 1, "command": copy, "inputs": [{"name": "one", "url": url}]}
        for url in (good, good[:-4] + "0000")
    ]
    config = f'\n[[endpoints]]\nurl = "{server.base}tests/"\n'
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as home:
        read, refused = run_all(Path(home), config, jobs, shown=".")
        site = Path(home) / "h/site"
        breakers, (known, problem) = read_troubles(site).breakers, read_status(site)

    assert (read.state, read.outputs) == ("COMPLETED", ["as it is\n"]), read.evidence
    assert refused.state == "FAILED"
    assert {each["evidence"]["failure"] for each in refused.detail["failures"]} == {"stage_in"}
    assert "new URL" in refused.evidence
    assert "Signature=" not in refused.evidence + refused.explained
    assert (known.troubles, problem) == ([], "")
    assert not any(each.is_open for each in breakers)
