"""The archive's files: files that were replaced, links in the archive."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.errors import SiteError
from tidemill.server.archive.parquet import Archive

pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, object]) -> None:
    parquet.write_table(pyarrow.table(columns), path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(b"PAR1" + os.urandom(500) + b"PAR1"),
    "other columns": lambda path: written(path, {"x": [1]}),
    "texts for numbers": lambda path: written(path, {"id": ["a"]}),
    "bytes for numbers": lambda path: written(path, {"id": [b"a"]}),
    "lists for numbers": lambda path: written(path, {"id": [[1]]}),
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "another file": lambda path: path.symlink_to("/etc/passwd"),
    "a broken link": lambda path: path.symlink_to("/nowhere"),
}
"""What is put in the place of a table."""


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_table_that_was_replaced_is_said_and_stops_nothing(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    archive = Archive(tmp_path)
    with archive.batch("2026-07", 1):
        pass
    archive.check("2026-07", 1, 0)
    table = archive.path("2026-07", 1, "jobs")
    table.unlink()
    damage(table)
    for act in (
        lambda: archive.rows("2026-07", 1, "jobs", key="id", values=[1]),
        lambda: archive.check("2026-07", 1, 0),
    ):
        with pytest.raises(SiteError) as refused:
            act()
        assert "root:" not in refused.value.message


def test_a_link_in_the_place_of_a_table_is_replaced_and_not_followed(tmp_path: Path) -> None:
    archive, outside = Archive(tmp_path / "archive"), tmp_path / "outside"
    outside.write_text("not of the archive")
    path = archive.path("2026-07", 1, "jobs")
    path.parent.mkdir(parents=True)
    path.symlink_to(outside)
    with archive.batch("2026-07", 1):
        pass
    assert outside.read_text() == "not of the archive"
    assert not path.is_symlink()


def test_a_broken_link_for_a_month_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "2026-07").symlink_to(tmp_path / "unmounted")
    with pytest.raises(OSError, match="link"), Archive(tmp_path).batch("2026-07", 1):
        pass
    assert not (tmp_path / "unmounted").exists()
