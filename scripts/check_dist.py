"""Check the wheels in a folder: the binary's tag is manylinux and its program static; the others are pure Python.

Both hold the licences of all that is in them, and each has its software bill of materials beside it.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from static_binary import dynamic_parts

LICENSES = ("LICENSE", "NOTICE")
BILLS = ("tidemill.cdx.json", "tidemill-node.cdx.json")
EXTENSIONS = sorted(
    path.parent.name for path in Path(__file__).parents[1].glob("extensions/*/pyproject.toml")
)


def faults(folder: Path) -> list[str]:
    """What is wrong with the wheels in `folder`, one text each."""
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
    for name in EXTENSIONS:
        found += extension_faults(folder, name)
    if not pure[0].name.endswith("-py3-none-any.whl"):
        found.append(f"{pure[0].name}: is not pure Python")
    with zipfile.ZipFile(pure[0]) as archive:
        if "tidemill/py.typed" not in archive.namelist():
            found.append(f"{pure[0].name}: tidemill/py.typed is missing, so type checkers ignore its types")
    found += missing(pure[0], LICENSES) + missing(node[0], (*LICENSES, "THIRD-PARTY.txt", BILLS[1]))
    return found + [fault for name in BILLS for fault in bill_faults(folder / name)]


def extension_faults(folder: Path, name: str) -> list[str]:
    """What is wrong with the wheel of an extension."""
    wheels = sorted(folder.glob(f"tidemill_{name}-*-py3-none-any.whl"))
    if len(wheels) != 1:
        return [
            f"{folder}: one wheel of the extension {name} is expected, found {[each.name for each in wheels]}"
        ]
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
    wanted = (f"tidemill_{name}/py.typed", "entry_points.txt")
    lacks = [
        f"{wheels[0].name}: {each} is missing" for each in wanted if not any(n.endswith(each) for n in names)
    ]
    return lacks + missing(wheels[0], LICENSES)


def missing(wheel: Path, wanted: Sequence[str]) -> list[str]:
    """Which of these files a wheel does not keep beside its metadata, or keeps empty."""
    with zipfile.ZipFile(wheel) as archive:
        kept = {
            Path(each.filename).name
            for each in archive.infolist()
            if ".dist-info/" in each.filename and each.file_size
        }
    return [f"{wheel.name}: {name} is missing" for name in wanted if name not in kept]


def bill_faults(path: Path) -> list[str]:
    """What a software bill of materials lacks: each part has a version, and a hash unless it is of this repository."""
    if not path.exists():
        return [f"{path.name} is missing"]
    document = json.loads(path.read_text())
    if document.get("bomFormat") != "CycloneDX" or not document.get("components"):
        return [f"{path.name}: is not a CycloneDX document with components"]
    found = []
    for each in document["components"]:
        files = [each, *each.get("externalReferences", [])]
        is_of_registry = each["purl"].startswith(("pkg:pypi/", "pkg:cargo/")) and not each["name"].startswith(
            "tidemill"
        )
        if not each.get("version") or (is_of_registry and not any(file.get("hashes") for file in files)):
            found.append(f"{path.name}: {each['name']} has no version or no hash")
    return found


def main() -> int:
    """Print what is wrong and return the exit status."""
    wrong = faults(Path(sys.argv[1]))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
