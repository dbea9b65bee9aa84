from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import msgspec
import pytest

from tidemill.errors import ProtocolError, SiteError
from tidemill.node.bundle import IndexTail, TarWriter, bundles, copy_member, member_of, read_member
from tidemill.node.framed import frame
from tidemill.wire.node import IndexEntry, OutputRef

CONTENT = bytes(range(256)) * 20_000


def put(directory: Path, content: bytes = CONTENT) -> OutputRef:
    (directory / "a.r0.i1.tar").write_bytes(b"x" * 512 + content + b"y" * 512)
    return OutputRef(
        name="hits",
        bundle="a.r0.i1.tar",
        offset=512,
        length=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def test_a_member_is_read_and_verified(tmp_path: Path) -> None:
    ref = put(tmp_path)
    assert read_member(tmp_path, ref) == CONTENT
    with (tmp_path / "copy").open("wb") as target:
        copy_member(tmp_path, ref, target)
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_an_empty_member_is_verified_too(tmp_path: Path) -> None:
    ref = put(tmp_path, b"")
    assert read_member(tmp_path, ref) == b""
    with pytest.raises(ProtocolError, match="checksum"):
        read_member(tmp_path, msgspec.structs.replace(ref, sha256="0" * 64))


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    ref = put(tmp_path)
    data = bytearray((tmp_path / ref.bundle).read_bytes())
    data[3_000_000] ^= 1
    (tmp_path / ref.bundle).write_bytes(data)
    with pytest.raises(ProtocolError, match="has checksum"):
        read_member(tmp_path, ref)


def test_a_cut_bundle_is_told(tmp_path: Path) -> None:
    ref = put(tmp_path)
    with (tmp_path / ref.bundle).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(SiteError, match="ends at 1000"):
        read_member(tmp_path, ref)


@pytest.mark.parametrize("name", ["../secret.tar", "/etc/passwd", "passwd", "a/b.tar", ".."])
def test_a_bundle_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    ref = msgspec.structs.replace(put(tmp_path), bundle=name)
    with pytest.raises(ProtocolError, match="not a valid name of a bundle"):
        read_member(tmp_path, ref)


def test_a_symbolic_link_is_no_bundle(tmp_path: Path) -> None:
    ref = put(tmp_path)
    (tmp_path / ref.bundle).rename(tmp_path / "elsewhere")
    (tmp_path / ref.bundle).symlink_to("elsewhere")
    with pytest.raises(SiteError, match="failed to open bundle"):
        read_member(tmp_path, ref)


def test_the_index_tells_the_members(tmp_path: Path) -> None:
    ref = put(tmp_path)
    entry = IndexEntry(
        kind="output",
        job=3,
        first=0,
        count=10,
        name="hits",
        offset=ref.offset,
        length=ref.length,
        sha256=ref.sha256,
        truncated=False,
    )
    (tmp_path / "a.r0.i1.idx").write_bytes(frame(msgspec.json.encode(entry)) + b"0123")
    [bundle] = bundles(tmp_path)
    tail = IndexTail(bundle)
    assert tail.read() == [entry]
    assert tail.read() == []
    assert member_of(bundle.name, entry) == ref


def test_an_archive_is_read_by_tar_and_the_same_each_time(tmp_path: Path) -> None:
    ref = put(tmp_path)
    long = "d/" + "n" * 150 + "/é-0-9.dat"
    for archive in ("one.tar", "two.tar"):
        with TarWriter(tmp_path / archive) as writer:
            writer.add_member("hits-0-9.dat", tmp_path, ref)
            writer.add_bytes(long, b"abc")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    listed = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", tmp_path / "one.tar"],
        capture_output=True, check=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert listed.stdout.splitlines() == ["hits-0-9.dat", long]
    content = subprocess.run(
        ["tar", "-xOf", tmp_path / "one.tar", "hits-0-9.dat"], capture_output=True, check=True
    ).stdout
    assert content == CONTENT


def test_an_archive_with_a_damaged_member_never_appears(tmp_path: Path) -> None:
    ref = msgspec.structs.replace(put(tmp_path), sha256="0" * 64)
    with pytest.raises(ProtocolError), TarWriter(tmp_path / "out.tar") as writer:
        writer.add_member("hits", tmp_path, ref)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.r0.i1.tar"]
