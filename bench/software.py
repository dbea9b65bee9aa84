"""Software trees of benches: an interpreter that lives below a directory, and search-path entries that hold nothing."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def copy_interpreter(top: Path) -> None:
    """This Python with its standard library, as `top/bin` and `top/lib`."""
    base = Path(sys.base_prefix)
    (top / "bin").mkdir(parents=True)
    shutil.copy2((base / "bin" / PYTHON).resolve(), top / "bin" / PYTHON)
    left_out = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "tests", "config-*", "idlelib"
    )
    shutil.copytree(sysconfig.get_path("stdlib"), top / "lib" / PYTHON, symlinks=True, ignore=left_out)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(library, top / "lib" / library.name, follow_symlinks=False)


def make_dead_entries(top: Path, count: int) -> None:
    """Directories for search paths to name in vain: `top/external/packageN/lib` and `.../python`."""
    for number in range(count):
        for kind in ("lib", "python"):
            directory = top / "external" / f"package{number}" / kind
            directory.mkdir(parents=True)
            (directory / "README").write_text("not used\n")
