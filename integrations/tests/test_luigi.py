"""The recipe of docs/integrations.md: luigi tasks whose work runs in an Executor's workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import luigi

from tidemill import Executor


def count_words(source: str, target: str) -> int:
    words = len(Path(source).read_text().split())
    Path(target).write_text(str(words))
    return words


class Counted(luigi.Task):
    """One file's words."""

    source = luigi.Parameter()
    pool: Executor

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(f"{self.source}.count")

    def run(self) -> None:
        type(self).pool.submit(count_words, self.source, self.output().path).result()


class Total(luigi.Task):
    """All of them."""

    directory = luigi.Parameter()

    def requires(self) -> Iterator[luigi.Task]:
        paths = sorted(Path(str(self.directory)).glob("*.txt"))
        return (Counted(source=str(path)) for path in paths)  # type: ignore[call-arg] # of luigi's metaclass

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(f"{self.directory}/total")

    def run(self) -> None:
        total = sum(int(Path(each.path).read_text()) for each in self.input())
        Path(self.output().path).write_text(str(total))


def test_a_tree_of_tasks(tmp_path: Path) -> None:
    for k in range(5):
        (tmp_path / f"{k}.txt").write_text("word " * (k + 1))
    with Executor() as pool:
        Counted.pool = pool
        assert luigi.build([Total(directory=str(tmp_path))], local_scheduler=True, no_lock=True)
    assert (tmp_path / "total").read_text() == "15"
