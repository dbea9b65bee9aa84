"""The binary of the node part needs nothing of the node: the reader that says so, and the installed binary."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import static_binary

from tidemill.node.binary import find_binary


def test_a_dynamic_program_wants_an_interpreter_and_libraries() -> None:
    wanted = static_binary.dynamic_parts(Path("/bin/true").read_bytes())

    assert "interpreter" in wanted
    assert "library" in wanted


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60)])
def test_what_is_no_program_of_64_bits_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a 64-bit"):
        static_binary.dynamic_parts(content)


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert static_binary.main([str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_the_installed_node_binary_is_static() -> None:
    binary = find_binary()

    assert os.access(binary, os.X_OK)
    assert static_binary.dynamic_parts(binary.read_bytes()) == []
    assert binary.parent == Path(sys.executable).parent or "TIDEMILL_NODE_BINARY" in os.environ
