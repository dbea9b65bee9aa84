"""Offline files of this tree as other versions, in a second each: what is installed here is packed into wheels again.

`make bundle` downloads the wheels of every Python and architecture; these have those of the Python that runs the tests.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from bundle import UV_PYTHON, write_bundle

SOURCE = Path(__file__).parents[3] / "src" / "tidemill"
VERSION = metadata.version("tidemill")
_NAME = re.compile(r"[\w.-]+")


def needed(name: str = "tidemill") -> set[str]:
    """The distributions that one needs, itself included, without extras."""
    found, todo = set[str](), [name]
    while todo:
        each = todo.pop().replace("_", "-")
        if each in found:
            continue
        found.add(each)
        for requirement in metadata.requires(each) or []:
            asked = _NAME.match(requirement)
            if asked and "extra ==" not in requirement and _is_installed(asked[0]):
                todo.append(asked[0])
    return found


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # of another system or Python
    return True


def wheel(folder: Path, name: str, *, version: str, files: Mapping[str, bytes] | None = None) -> Path:
    """A wheel of what is installed, with another version; `files` instead of its own. Programs stay programs."""
    return _packed(folder, metadata.distribution(name), version, files)


def pip_wheel(folder: Path) -> Path:
    """The wheel of pip, as `make bundle` puts it into the file: here from the pip that `make setup` runs. `ensurepip`
    need not have one: Debian's has none."""
    (site,) = UV_PYTHON.parents[1].glob("lib/python3*/site-packages")
    (it,) = metadata.distributions(name="pip", path=[str(site)])
    return _packed(folder, it, it.version, None)


def _packed(folder: Path, it: metadata.Distribution, version: str, files: Mapping[str, bytes] | None) -> Path:
    stem, old = it.metadata["Name"].replace("-", "_"), f"{it.metadata['Name'].replace('-', '_')}-{it.version}"
    tag = re.search(r"^Tag: (\S+)", it.read_text("WHEEL") or "", re.MULTILINE)
    assert tag is not None
    path = folder / f"{stem}-{version}-{tag[1]}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in (files or dict(_installed(it))).items():
            entry = zipfile.ZipInfo(inside.replace(old, f"{stem}-{version}"))
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, content)
        head = it.read_text("METADATA") or ""
        info = f"{stem}-{version}.dist-info"
        archive.writestr(
            f"{info}/METADATA", head.replace(f"\nVersion: {it.version}\n", f"\nVersion: {version}\n")
        )
        archive.writestr(f"{info}/WHEEL", it.read_text("WHEEL") or "")
        archive.writestr(f"{info}/entry_points.txt", it.read_text("entry_points.txt") or "")
        archive.writestr(f"{info}/RECORD", "")
    return path


def _installed(it: metadata.Distribution) -> Iterable[tuple[str, bytes]]:
    """Its modules. Programs of entry points are made anew; one that is no script of Python is packed as a program."""
    for file in it.files or []:
        path = Path(str(it.locate_file(file)))
        if file.parts[0] != "..":
            if ".dist-info" not in file.parts[0] and "__pycache__" not in file.parts and path.exists():
                yield str(file), path.read_bytes()
        elif it.metadata["Name"] == "tidemill-node":
            yield f"tidemill_node-{it.version}.data/scripts/{path.name}", path.read_bytes()


def bundle(folder: Path, version: str, *, migration: str = "") -> Path:
    """The offline file of this tree as `version`; with a `migration` its databases have one schema more."""
    wheels = folder / version
    wheels.mkdir()
    modules = {
        f"tidemill/{path.relative_to(SOURCE)}": path.read_bytes()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    head = modules["tidemill/__init__.py"]
    modules["tidemill/__init__.py"] = head.replace(f'"{VERSION}"'.encode(), f'"{version}"'.encode())
    assert modules["tidemill/__init__.py"] != head or version == VERSION
    if migration:
        place = "tidemill/server/sql/migrations"
        number = 1 + max(int(Path(name).name[:4]) for name in modules if name.startswith(f"{place}/0"))
        modules[f"{place}/{number:04}_trial.sql"] = migration.encode()
    made = [wheel(wheels, "tidemill", version=version, files=modules)]
    node = {
        inside: content.replace(VERSION.encode(), version.encode())  # as long: the program says its version
        for inside, content in _installed(metadata.distribution("tidemill-node"))
    }
    assert len(version) == len(VERSION)
    made.append(wheel(wheels, "tidemill-node", version=version, files=node))
    for name in needed() - {"tidemill", "tidemill-node"}:
        made.append(wheel(wheels, name, version=metadata.version(name)))
    target = folder / f"tidemill-{version}-offline.sh"
    write_bundle([*made, pip_wheel(wheels)], target, version=version, extras=[])
    return target
