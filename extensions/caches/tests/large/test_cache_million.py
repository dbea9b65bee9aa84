"""A cache of a million files, listed and purged in bounded memory. `make large` runs this; TIDEMILL_FILES=N: fewer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from extensions.caches.tests.cached_files import BLOCK, info_of

from tidemill_caches.contents.cinfo import written

FILES = int(os.environ.get("TIDEMILL_FILES", "1000000"))
DATASETS = 1000
MEMORY_MAX = 150_000_000
PROGRAM = """
import resource, sys
from tidemill.cli.main import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records that differ in their times; their data are one file with many names."""
    directory = tmp_path_factory.mktemp("cache")
    (directory / "cache.toml").write_text('origins = ["root://far.example//"]\n[space]\nmax = "100TB"\n')
    directory.chmod(0o700)
    whole = directory / "whole"
    with whole.open("wb") as file:
        file.truncate(20 * BLOCK)
    each = -(-FILES // DATASETS)
    names = iter(range(FILES))
    for dataset in range(DATASETS):
        folder = directory / "data" / "store" / f"d{dataset}"
        folder.mkdir(parents=True)
        for _, number in zip(range(each), names, strict=False):
            if number % 50_000 == 0:  # a file system may limit the names of one file
                whole.unlink()
                with whole.open("wb") as file:
                    file.truncate(20 * BLOCK)
            (folder / f"f{number}").hardlink_to(whole)
            used_s = 1_600_000_000 + number * 7919 % 100_000_007
            (folder / f"f{number}.cinfo").write_bytes(
                written(info_of(20 * BLOCK, held=range(9), used_s=used_s))
            )
    return directory


def run(*words: str) -> tuple[str, int, float]:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    memory = int(done.stderr.split()[-1])
    sys.stderr.write(f"{' '.join(words[:2])}: {time.monotonic() - begun:.0f} s, {memory / 1e6:.0f} MB\n")
    return done.stdout, memory, time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_files_are_listed_and_purged_in_bounded_memory(cache: Path) -> None:
    text, memory, _ = run("cache", "ls", str(cache), "--json")
    total = json.loads(text)["total"]
    assert (total["files"], total["held_bytes"]) == (FILES, FILES * 9 * BLOCK)
    assert memory < MEMORY_MAX

    text, memory, _ = run("cache", "purge", str(cache), "--to", str(FILES // 2 * 9 * BLOCK), "--json")
    assert json.loads(text)["left_files"] == FILES // 2
    assert memory < MEMORY_MAX
