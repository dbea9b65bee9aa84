"""law: the branches of a workflow run in an Executor's workers, as docs/integrations.md has it for luigi."""

from __future__ import annotations

from pathlib import Path

import law
import luigi

from tidemill import Executor


def count_words(source: str, target: str) -> None:
    Path(target).write_text(str(len(Path(source).read_text().split())))


class CountedBranches(law.LocalWorkflow):
    """One branch for each file."""

    directory = luigi.Parameter()
    pool: Executor

    def create_branch_map(self) -> dict[int, str]:
        return dict(enumerate(map(str, sorted(Path(str(self.directory)).glob("*.txt")))))

    def output(self) -> law.LocalFileTarget:
        return law.LocalFileTarget(f"{self.branch_data}.count")

    def run(self) -> None:
        type(self).pool.submit(count_words, self.branch_data, self.output().path).result()


def test_a_workflow_of_branches(tmp_path: Path) -> None:
    for k in range(5):
        (tmp_path / f"{k}.txt").write_text("word " * (k + 1))
    with Executor() as pool:
        CountedBranches.pool = pool
        workflow = CountedBranches(directory=str(tmp_path), branch=-1)
        assert luigi.build([workflow], local_scheduler=True, no_lock=True)
    assert [(tmp_path / f"{k}.txt.count").read_text() for k in range(5)] == list("12345")
