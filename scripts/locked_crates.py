"""The crates that are linked into `tidemill-node`, as `cargo metadata` and Cargo.lock have them."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "tidemill-node"
TARGET = "x86_64-unknown-linux-gnu"


class Crate(NamedTuple):
    """One of them. `sha256`: of its archive in the Rust registry, None of those of this repository."""

    name: str
    version: str
    license: str
    sha256: str | None
    folder: Path


def linked_crates() -> list[Crate]:
    """All of them by name: what the program needs as it is built, neither what builds it nor what tests it."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    metadata = json.loads(done.stdout)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    found = [each for each in metadata["packages"] if each["id"] in _reached(metadata)]
    crates = [
        Crate(
            each["name"], each["version"], each["license"] or "", checksums[(each["name"], each["version"])],
            Path(each["manifest_path"]).parent,
        )
        for each in found
    ]  # fmt: skip
    return sorted(crates, key=lambda each: (each.name, each.version))


def _reached(metadata: dict[str, Any]) -> set[str]:
    """Ids of the packages that the program depends on, by ordinary dependencies only."""
    links = {each["id"]: each["deps"] for each in metadata["resolve"]["nodes"]}
    left = [each["id"] for each in metadata["packages"] if each["name"] == PROGRAM]
    reached: set[str] = set()
    while left:
        here = left.pop()
        if here in reached:
            continue
        reached.add(here)
        left += [
            each["pkg"] for each in links[here] if any(kind["kind"] is None for kind in each["dep_kinds"])
        ]
    return reached
