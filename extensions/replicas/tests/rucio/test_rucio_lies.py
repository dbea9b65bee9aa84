"""Stores whose files are not what a real Rucio says of them, on real XRootD servers: no wrong byte reaches a payload,
another copy is read where there is one, and the job's evidence names what was wrong."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from extensions.replicas.tests.rucio.rucio_world import RucioWorld
from tests.contract.transfer_world import Server
from tests.transfer.opened_world import READ, Ran, endpoint, run_all

from tidemill.model.far import CatalogueName
from tidemill_replicas.rucio import RucioReplicas
from tidemill_replicas.settings import Rucio

COPY = READ.replace("xrdcp --silent --nopbar", "cp")
RIGHT, OTHER, LONGER = b"the right bytes\n", b"the wrong bytes\n", b"more bytes than there should be\n"
STORES = {"A-LIAR": "HERE", "B-GOOD": "THERE"}
"""Of our site, which comes first, and of another one."""

FILES: dict[str, dict[str, bytes]] = {
    "right": {"A-LIAR": RIGHT},
    "size.alone": {"A-LIAR": LONGER},
    "size.both": {"A-LIAR": LONGER, "B-GOOD": RIGHT},
    "sum.alone": {"A-LIAR": OTHER},
    "sum.both": {"A-LIAR": OTHER, "B-GOOD": RIGHT},
    "gone.both": {"A-LIAR": b"", "B-GOOD": RIGHT},
}
"""What each store has under a name of which Rucio says RIGHT; empty = the store lost it. Bytes that a program opens by
itself are not compared: `sum` is read as a copy only."""


class Lies(NamedTuple):
    """A running Rucio and its stores."""

    rucio: RucioWorld
    stores: dict[str, Server]
    folder: Path


@pytest.fixture(scope="module")
def lies() -> Iterator[Lies]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp")))
        folder.chmod(0o711)
        rucio = RucioWorld(folder / "r")
        stack.callback(rucio.call, "stop")
        rucio.ask("GET", "/auth/userpass")
        rucio.ask("POST", "/scopes/root/lab")
        stores = {}
        for store, site in STORES.items():
            (folder / store).mkdir(mode=0o711)
            stores[store] = Server("root", folder / store)
            stack.callback(stores[store].stop)
            rucio.add_server(store, int(stores[store].base.rstrip("/").rpartition(":")[2]), site=site)
        told = {"bytes": len(RIGHT), "adler32": f"{zlib.adler32(RIGHT):08x}"}
        for name, copies in FILES.items():
            for store in copies:
                rucio.put(store, [name], **told)
        found = Lies(rucio, stores, folder)
        catalogue = RucioReplicas(login(found), keep_s=600)
        for known, entry in catalogue.look_up([CatalogueName("lab", each) for each in FILES]).items():
            for url in entry.urls:
                store = next(each for each, server in stores.items() if url.startswith(server.base))
                if FILES[known.name][store]:
                    stores[store].make(url.removeprefix(stores[store].base), FILES[known.name][store])
        yield found


def login(lies: Lies) -> Rucio:
    path = lies.folder / "login"
    path.write_text(f"root\n{lies.rucio.password}\n")
    path.chmod(0o600)
    return Rucio(url=lies.rucio.url_of("root"), secret_file=path, site="HERE")


@pytest.fixture(scope="module")
def ran(lies: Lies) -> dict[str, Ran]:
    """A job for each case, in one home: `url` opens the file, `file` reads a copy."""
    ways = {f"{name} {read}": (name, read) for name in FILES for read in ("url", "file")}
    ways = {key: way for key, way in ways.items() if not (way[0].startswith("sum") and way[1] == "url")}
    jobs: list[dict[str, object]] = [
        {
            "events": 1,
            "command": ["/bin/sh", "-c", READ if read == "url" else COPY, "read", "{input.data}"],
            "inputs": [{"name": "data", "url": f"rucio:lab/{name}", "read": read}],
        }
        for name, read in ways.values()
    ]
    rucio = login(lies)
    config = "".join(endpoint(each) for each in lies.stores.values())
    values = {"url": rucio.url, "secret_file": str(rucio.secret_file), "site": "HERE"}
    table = "[replicas.rucio]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items())
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as home:
        found = run_all(Path(home), f"{config}\n{table}", jobs)
    return dict(zip(ways, found, strict=True))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("read", ["url", "file"])
def test_the_replica_that_rucio_puts_first_is_read(ran: dict[str, Ran], read: str) -> None:
    job = ran[f"right {read}"]

    assert job.state == "COMPLETED", job.evidence
    assert job.outputs[0].startswith(RIGHT.decode())
    assert not job.evidence


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["size.alone url", "size.alone file", "sum.alone file"])
def test_a_store_with_another_file_under_the_name_fails_the_job_with_both_figures(
    lies: Lies, ran: dict[str, Ran], name: str
) -> None:
    job = ran[name]
    why = f"it has {len(LONGER)} bytes, and the catalogue says {len(RIGHT)}"
    if name.startswith("sum"):
        why = f"has checksum {_adler32(OTHER)}, the job expects {_adler32(RIGHT)}"

    assert job.state == "FAILED"
    assert not job.outputs, "nothing ran"
    assert {each["evidence"]["failure"] for each in job.detail["failures"]} == {"stage_in"}
    assert all(why in each for each in job.evidence.splitlines())
    assert f"`{lies.stores['A-LIAR'].base}store/lab/" in job.explained
    assert "is not read" in job.explained


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", ["size.both url", "size.both file", "sum.both file", "gone.both url", "gone.both file"]
)
def test_another_copy_is_read_where_the_first_is_missing_or_damaged(
    lies: Lies, ran: dict[str, Ran], name: str
) -> None:
    job = ran[name]

    assert job.state == "COMPLETED", job.evidence
    assert job.outputs[0].startswith(RIGHT.decode())
    assert not job.evidence, "no try failed"
    assert lies.stores["B-GOOD"].base.rstrip("/") in job.explained


def _adler32(content: bytes) -> str:
    return f"adler32:{zlib.adler32(content):08x}"
