"""Bundles whose index and records lie, and archives that users read: names, links, devices, sizes.

A bundle outside of its directory, links, damage and cuts: `tests/unit/node/test_node_bundle.py`; where deliveries go:
`tests/unit/site/data/test_site_outputs.py`.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tidemill.client.outputs import listing
from tidemill.errors import ProtocolError, SiteError, TidemillError
from tidemill.model.job import Output, OutputKind
from tidemill.node.bundle import IndexTail, TarWriter, bundles, read_chunks, read_member
from tidemill.node.framed import frame
from tidemill.site.data import payload_logs
from tidemill.site.data.outputs import _member_name
from tidemill.site.state.site_state import KeptPart
from tidemill.wire.api import FetchLogOrder, OutputRow
from tidemill.wire.node import IndexEntry, OutputRef

EMPTY = hashlib.sha256(b"").hexdigest()
LARGE = 1 << 29


def ref(**changes: object) -> OutputRef:
    made = OutputRef(name="o", bundle="a.tar", offset=0, length=0, sha256=EMPTY)
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 0), (0, -5), (2**63, 1), (0, 2**63), (2**62, 2**62), (2**70, 0), (-(2**70), 5)]
)  # fmt: skip
def test_a_place_that_no_file_has_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    (tmp_path / "a.tar").write_bytes(b"secret")
    with pytest.raises(ProtocolError, match="out of range"):
        read_member(tmp_path, ref(offset=offset, length=length))
    with pytest.raises(ProtocolError), TarWriter(tmp_path / "out.tar") as archive:
        archive.add_member("m", tmp_path, ref(offset=offset, length=length))
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize(
    "name", ["../a.tar", "/etc/passwd.tar", "a\0.tar", "..", ".", "", "a.tar/", "x" * 300 + ".tar"]
)
def test_no_name_of_a_bundle_leads_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.tar").write_bytes(b"secret")
    with pytest.raises((ProtocolError, SiteError)):
        read_member(tmp_path / "b", ref(bundle=name))


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "link", "device"])
def test_a_bundle_or_index_that_is_not_a_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    for name in ("a.tar", "a.idx"):
        make(tmp_path / name, kind)
    with pytest.raises((SiteError, ProtocolError)):
        read_member(tmp_path, ref(length=5))
    if kind in ("link", "device"):  # of an index nothing but framed lines is taken
        assert IndexTail(tmp_path / "a.tar").read() == []
    else:
        with pytest.raises(SiteError):
            IndexTail(tmp_path / "a.tar").read()


def make(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o140600)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif os.geteuid() != 0:
        pytest.skip("only root makes devices")
    else:
        os.mknod(path, 0o20600, os.makedev(1, 5))  # /dev/zero


def test_a_log_that_says_that_it_is_larger_than_memory_is_cut(tmp_path: Path) -> None:
    """Its bundle is sparse. In a process that may have 400 MB of addresses."""
    folder = tmp_path / "e1-1" / "bundle"
    folder.mkdir(parents=True)
    with (folder / "a.tar").open("wb") as file:
        file.truncate(LARGE)
    entry = IndexEntry(
        kind="log", job=1, first=0, count=1, name="stdout", offset=0, length=LARGE, sha256="0" * 64, truncated=False
    )  # fmt: skip
    (folder / "a.idx").write_bytes(frame(msgspec.json.encode(entry)))
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from tidemill.site.data.payload_logs import find_log\n"
        "from tidemill.wire.api import FetchLogOrder\n"
        "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "found, _ = find_log(FetchLogOrder(n=1, request=1, job=1, event=None), [Path(sys.argv[1])])\n"
        "print(found.stdout[:30])\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "e1-1")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("[not readable: output `stdout`"), done.stderr


def test_a_log_of_another_job_or_with_a_hostile_name_is_not_given(tmp_path: Path) -> None:
    folder = tmp_path / "e1-1" / "bundle"
    folder.mkdir(parents=True)
    (folder / "a.tar").write_bytes(b"secret")
    told = [
        {"job": 2, "name": "stdout", "length": 6}, {"job": 1, "name": "../../site.toml", "length": 6},
        {"job": 1, "name": "stderr", "length": -1}, {"job": 1, "name": "stdout", "offset": 2**70, "length": 1},
    ]  # fmt: skip
    base = {"kind": "log", "first": 0, "count": 1, "offset": 0, "truncated": False}
    digest = hashlib.sha256(b"secret").hexdigest()
    lines = [frame(msgspec.json.encode({**base, "sha256": digest, **each})) for each in told[:3]]
    (folder / "a.idx").write_bytes(b"".join(lines))
    found, _ = payload_logs.find_log(FetchLogOrder(n=1, request=1, job=1, event=0), [tmp_path / "e1-1"])
    assert found.stdout == ""
    assert "secret" not in found.stderr
    assert [path.name for path in bundles(folder)] == ["a.tar"]


@pytest.mark.parametrize("path", ["../../x", "/etc/cron.d/x", "a/../../x", "x{event}/../../../y", "..", "."])
def test_members_of_a_delivered_archive_have_plain_names(path: str) -> None:
    part = KeptPart(0, 1, "e1-1", [])
    name = _member_name(Output(name="o", path=path, kind=OutputKind.EACH), part)
    assert "/" not in name
    assert name not in ("", ".", "..")


def test_an_archive_of_a_hostile_site_is_listed_and_nothing_of_it_is_made(tmp_path: Path) -> None:
    """`tidemill outputs ls` reads members' names; it extracts nothing."""
    path = tmp_path / "o.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (
            ("../../evil", tarfile.REGTYPE), ("/etc/evil", tarfile.REGTYPE), ("link", tarfile.SYMTYPE),
            ("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE), ("fifo", tarfile.FIFOTYPE),
            ("\x1b[2J", tarfile.REGTYPE),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            info.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"abc") if info.size else None)
    before = sorted(each.name for each in tmp_path.iterdir())
    row = OutputRow(name="o", url=path.as_uri(), size_bytes=path.stat().st_size, sha256="")
    with suppress(TidemillError):
        list(listing(1, row))
    assert sorted(each.name for each in tmp_path.iterdir()) == before


def test_pieces_of_a_sparse_bundle_are_bounded_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as file:
        file.truncate(1 << 40)
    pieces = read_chunks(tmp_path, ref(length=1 << 40))
    assert max(len(next(pieces)) for _ in range(50)) <= 1 << 20
    pieces.close()  # type: ignore[attr-defined]  # a generator
