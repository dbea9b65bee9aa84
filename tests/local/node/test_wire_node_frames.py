"""What Python writes Rust reads, and the other way round: every record, message and file of the node wire."""

from __future__ import annotations

import subprocess
import types
import typing
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.node.binary import find_binary
from tidemill.wire import node

MILLI = st.integers(0, 10**9).map(lambda number: number / 1000)  # decimals that every JSON reader reads alike
I32 = st.integers(-(2**31), 2**31 - 1)


def field_values(kind: Any, name: str) -> st.SearchStrategy[Any]:
    """Any value of a field of the wire."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: I32 if name in ("exit_status", "signal") else st.integers(0, 2**63 - 1),
        float: MILLI,
        str: st.text(max_size=10),
        bool: st.booleans(),
    }
    if kind in simple:
        return simple[kind]
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case types.UnionType:
            return st.none() | field_values(arguments[0], name)
        case origin if origin is list:
            return st.lists(field_values(arguments[0], name), max_size=2)
        case origin if origin is dict:
            return st.dictionaries(st.text(max_size=8), field_values(arguments[1], name), max_size=2)
    return structs(kind)


def structs(cls: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Any value of a struct of the wire."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in msgspec.structs.fields(cls)]
    return st.fixed_dictionaries({name: field_values(hints[name], name) for name in names}).map(
        lambda values: cls(**values)
    )


FRAMED: list[type[msgspec.Struct]] = [*typing.get_args(node.Record), node.IndexEntry]
PLAIN: list[type[msgspec.Struct]] = [
    *typing.get_args(node.LeadMessage),
    *typing.get_args(node.PilotMessage),
    node.Manifest,
    node.LeadAddress,
    node.WorkFile,
]


def line_of(value: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(text), text) if type(value) in FRAMED else text + b"\n"


def value_of(line: bytes, cls: type[msgspec.Struct]) -> msgspec.Struct:
    if cls in FRAMED:
        checksum, _, line = line.partition(b" ")
        assert int(checksum, 16) == zlib.crc32(line)
    return msgspec.json.decode(line, type=cls)


def again(path: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([find_binary(), "frames", path], capture_output=True, timeout=30, check=False)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from([*FRAMED, *PLAIN]).flatmap(structs), min_size=1, max_size=12))
def test_rust_reads_and_writes_what_python_does(
    tmp_path_factory: pytest.TempPathFactory, values: list[msgspec.Struct]
) -> None:
    path = tmp_path_factory.mktemp("frames") / "frames"
    path.write_bytes(b"".join(map(line_of, values)))
    done = again(path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [value_of(line, type(value)) for line, value in zip(lines, values, strict=True)] == values


def test_none_is_written_as_null_by_both(tmp_path: Path) -> None:
    grant = node.Work(
        programs=[], jobs=[], grants=[node.Grant(grant=1, job=2, first=0, count=1, chunk_max=None)]
    )
    path = tmp_path / "frames"
    path.write_bytes(msgspec.json.encode(grant) + b"\n")
    assert again(path).stdout == path.read_bytes()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'00000000 {"k":"done"}\n', b"checksum"),
        (b'{"m":"ack","acked":-1}\n', b"invalid value"),
        (b'{"m":"ack"}\n', b"missing field `acked`"),
        (b'{"m":"hullo"}\n', b"unknown variant `hullo`"),
        (b'{"m":"ack","acked":1', b"EOF"),
    ],
)
def test_what_cannot_be_read_is_refused_and_quoted(tmp_path: Path, line: bytes, complaint: bytes) -> None:
    path = tmp_path / "frames"
    path.write_bytes(line)
    done = again(path)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert done.stdout == b""


def test_unknown_fields_are_ignored_so_that_old_and_new_can_meet(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(b'{"m":"ack","acked":7,"of_a_newer_version":{"x":[1]}}\n')
    assert msgspec.json.decode(again(path).stdout, type=node.Ack).acked == 7
