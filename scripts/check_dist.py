"""Check the wheels in a folder: the binary's tag is manylinux and its program static; the other is pure Python."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from static_binary import dynamic_parts


def faults(folder: Path) -> list[str]:
    """What is wrong with the two wheels in `folder`, one text each."""
    wheels = sorted(folder.glob("*.whl"))
    node = [wheel for wheel in wheels if wheel.name.startswith("tidemill_node-")]
    pure = [wheel for wheel in wheels if wheel.name.startswith("tidemill-")]
    if len(node) != 1 or len(pure) != 1:
        return [f"{folder}: one wheel of each is expected, found {[wheel.name for wheel in wheels]}"]
    found = []
    if "-manylinux" not in node[0].name and ".manylinux" not in node[0].name:
        found.append(f"{node[0].name}: its tag is not manylinux, so other machines will not take it")
    with zipfile.ZipFile(node[0]) as archive:
        programs = [name for name in archive.namelist() if name.endswith("/scripts/tidemill-node")]
        found += [
            f"{node[0].name}: {part} wanted"
            for name in programs
            for part in dynamic_parts(archive.read(name))
        ]
    if not programs:
        found.append(f"{node[0].name}: holds no program `tidemill-node`")
    if not pure[0].name.endswith("-py3-none-any.whl"):
        found.append(f"{pure[0].name}: is not pure Python")
    with zipfile.ZipFile(pure[0]) as archive:
        kept = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    found += [f"{pure[0].name}: {name} is missing" for name in ("LICENSE", "NOTICE") if name not in kept]
    return found


def main() -> int:
    """Print what is wrong and return the exit status."""
    wrong = faults(Path(sys.argv[1]))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
