"""Extensions as if those of one folder were all that is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidemill
from tidemill import extensions
from tidemill.batch import kinds
from tidemill.config import tables
from tidemill.transfer import allowed, schemes


def _forget() -> None:
    """Nothing that was found of extensions counts any more."""
    for found in (
        extensions.installed,
        kinds.kind_of,
        schemes.scheme_of,
        allowed._prefix,
        tables._added,
        tables._extended,
    ):
        found.cache_clear()


BARE = """
from tidemill.batch.kinds import CORE
KIND = CORE["slurm"]._replace(has_arrays=False, excludes_nodes=False)
"""


def add_extension(folder: Path, name: str, entry_points: str, **modules: str) -> None:
    """Install an extension into a folder, as its wheel would be: its entry points, and modules by name."""
    about = folder / f"tidemill_{name}-{tidemill.__version__}.dist-info"
    about.mkdir(parents=True)
    (about / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


@contextmanager
def installed_only(folder: Path) -> Iterator[None]:
    """The extensions of this folder are those that are installed; an empty one has none."""
    folder.mkdir(exist_ok=True)
    before = sys.path[:]
    _forget()
    sys.path[:] = [str(folder)]
    try:
        extensions.installed()  # which keeps what it finds
        sys.path[:] = [str(folder), *before]
        yield
    finally:
        sys.path[:] = before
        _forget()


@contextmanager
def bare_batch(folder: Path) -> Iterator[str]:
    """The name of a batch system without arrays, which cannot exclude nodes: one of the only extension installed."""
    add_extension(folder, "bare", f"[{extensions.BATCH}]\nbare = bare_batch:KIND\n", bare_batch=BARE)
    with installed_only(folder):
        yield "bare"
