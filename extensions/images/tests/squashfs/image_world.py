"""What tests of images share: small releases of software, a place for stores, squashfs-tools or a reason."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.image.profile import PathUse, Profile
from tidemill_images.areas import Tree, parse_tree
from tidemill_images.build import Built, Order, build

OLD_S = 1_700_000_000


def needs(*programs: str) -> None:
    """Skip where a program lacks."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        text = f"no {', '.join(missing)} on PATH"
        pytest.skip(text)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is not below /tmp: no image may stand for what is there."""
    path = Path(tempfile.mkdtemp(prefix="tidemill-images-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def write_release(top: Path, *, seed: int = 1, changed: float = 0.0, files: int = 300) -> Path:
    """A release of about 6 MB: text and binary files in some directories; a share of them differs by `changed`."""
    make, choose = random.Random(seed), random.Random(99)
    for number in range(files):
        kind = make.choice(["lib", "share/doc", "python/pkg", "python/pkg/deep/er", "bin"])
        size = int(make.lognormvariate(8.5, 1.5)) % 400_000
        content = make.randbytes(size // 2) + (f"line {number} of a text\n".encode() * (size // 40))
        if choose.random() < changed:
            content += b"of another release\n"
        path = top / kind / f"file{number}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (OLD_S, OLD_S + number))
    settle_times(top)
    return top


def settle_times(top: Path) -> None:
    """Give directories a time that does not depend on when the test ran."""
    for directory, _, _ in os.walk(top, topdown=False):
        os.utime(directory, (OLD_S, OLD_S))


def build_tree(source: Path, at: str, store: Path, *, name: str = "", exclude: tuple[str, ...] = ()) -> Built:
    """Build an image of one tree."""
    order = Order(
        name=name or Path(at).name, areas=[at], trees=[parse_tree(f"{source}:{at}")], exclude=list(exclude)
    )
    return build(order, store, tell=lambda _: None)


def build_used(area: Path, used: list[Path], store: Path, *, name: str = "used") -> Built:
    """Build an image of what a run used."""
    profile = profile_of([str(path) for path in used])
    return build(Order(name=name, areas=[str(area)], profile=profile), store, tell=lambda _: None)


def profile_of(paths: list[str]) -> Profile:
    """A profile of one run that used these paths."""
    return Profile(
        format=1,
        command=["prog"],
        runs=1,
        wall_us=1,
        exit=0,
        signal=None,
        host="here",
        started_us=1,
        cwd="/",
        env={},
        mounts=[],
        ops={},
        areas=[],
        bins=[],
        paths=[PathUse(path, "f" if os.path.lexists(path) else "x", 1, 0) for path in sorted(set(paths))],
        truncated=False,
    )


def store_bytes(store: Path) -> int:
    """All bytes of a store's files."""
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


__all__ = ["Tree", "build_tree", "build_used", "needs", "place", "profile_of", "store_bytes", "write_release"]
