"""Images for tests of pilots: a small software tree on "the shared file system", and its squashfs cut into pieces."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.wire.node import ImageUse, Piece, StagedFile

ALIAS = "/tmp/.tidemill/real"


class Software:
    """A tree at `area`, and what its image holds of it: `bin/hello`, `etc/version`, and a stub for `etc/rare`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.area = base / "sw"
        (self.area / "bin").mkdir(parents=True)
        (self.area / "etc").mkdir()
        self.write("bin/hello", f'#!/bin/sh\nread v < {self.area}/etc/version; echo "hello $v $*"\n', 0o755)
        self.write("etc/version", "of the tree\n")
        self.write("etc/rare", "never traced\n")

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.area / name
        path.write_text(text)
        path.chmod(mode)

    def image(self, name: str = "sw", version: str = "of the image", *, extra_bytes: int = 0) -> ImageUse:
        """An image whose `etc/version` says something else than the tree, so that payloads tell what they see."""
        root = Path(tempfile.mkdtemp(dir=self.base))
        inside = root / str(self.area)[1:]
        shutil.copytree(self.area, inside)
        (inside / "etc/version").write_text(version + "\n")
        (inside / "etc/rare").unlink()
        (inside / "etc/rare").symlink_to(f"{ALIAS}{self.area}/etc/rare")
        if extra_bytes:
            (inside / "etc/large").write_bytes(os.urandom(extra_bytes))
        packed = self.base / f"{name}-{version.replace(' ', '-')}.squashfs"
        words = ["-comp", "zstd", "-no-fragments", "-all-root", "-noappend", "-no-progress", "-quiet"]
        subprocess.run(["mksquashfs", root, packed, *words], check=True, capture_output=True)
        unpacked = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        shutil.rmtree(root)
        return ImageUse(name=name, file=staged(packed), areas=[str(self.area)], unpacked_bytes=unpacked)


def staged(path: Path) -> StagedFile:
    """The file in two pieces."""
    content = path.read_bytes()
    half = len(content) // 2
    pieces = [
        Piece(path=str(path), offset=0, length=half),
        Piece(path=str(path), offset=half, length=len(content) - half),
    ]
    return StagedFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), pieces=pieces)


@contextmanager
def software(below: str = "/var/tmp") -> Iterator[Software]:
    """A tree that any user can read."""
    base = Path(tempfile.mkdtemp(prefix="tidemill-test-", dir=below))
    base.chmod(0o755)
    try:
        yield Software(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
