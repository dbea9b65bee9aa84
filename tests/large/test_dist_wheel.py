"""The wheel of tidemill-node: taken by any Linux, and its binary needs nothing of the machine it lands on."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PT_INTERP = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_is_manylinux_and_its_binary_is_static(tmp_path: Path) -> None:
    # no --target and no environment: as a plain `maturin build` and `pip install` do; cargo's target folder is shared
    subprocess.run(
        [Path(sys.executable).with_name("maturin"), "build", "--release", "--locked", "--out", tmp_path],
        cwd=ROOT / "crates/tidemill-node",
        check=True,
        timeout=900,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("tidemill_node-")
    assert "-py3-none-manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".data/scripts/tidemill-node")]
        mode = archive.getinfo(name).external_attr >> 16
        assert mode & stat.S_IXUSR
        binary = tmp_path / "tidemill-node"
        binary.write_bytes(archive.read(name))
    assert PT_INTERP not in segment_kinds(binary.read_bytes())
    binary.chmod(0o755)
    assert subprocess.run([binary, "--version"], capture_output=True, check=True).stdout.startswith(
        b"tidemill-node "
    )


def segment_kinds(elf: bytes) -> set[int]:
    """The kinds of the program headers of a 64-bit little-endian ELF file (elf(5))."""
    assert elf[:6] == b"\x7fELF\x02\x01"
    table = int.from_bytes(elf[32:40], "little")
    size, count = int.from_bytes(elf[54:56], "little"), int.from_bytes(elf[56:58], "little")
    return {int.from_bytes(elf[table + k * size : table + k * size + 4], "little") for k in range(count)}
