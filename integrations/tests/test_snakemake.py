"""The plugin against the test suite of Snakemake's interface, and a workflow of 200 jobs with a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import snakemake.common.tests
from snakemake_executor_plugin_tidemill import ExecutorSettings

from tidemill import Client

SNAKEFILE = """
rule all:
    input: "sum.txt"

rule square:
    output: "squares/{n}.txt"
    group: "squares"
    shell: "if [ {wildcards.n} = 77 ] && [ ! -e mended ]; then echo partly > {output}; "
           "echo 'no vertex found' >&2; exit 3; fi; "
           "echo $(({wildcards.n} * {wildcards.n})) > {output}"

rule total:
    input: expand("squares/{n}.txt", n=range(199))
    output: "sum.txt"
    shell: "cat {input} | paste -sd+ | bc > {output} || awk '{{s += $1}} END {{print s}}' {input} > {output}"
"""


class TestInterface(snakemake.common.tests.TestWorkflowsLocalStorageBase):
    """What the interface's authors ask of every executor."""

    __test__ = True

    def get_executor(self) -> str:
        return "tidemill"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings()


def _snakemake(directory: Path, campaign: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [
        "--executor", "tidemill", "--jobs", "20", "--tidemill-campaign", campaign, "--group-components", "squares=100",
        "--seconds-between-status-checks", "1", "--keep-going", "--latency-wait", "30", "--scheduler", "greedy", *more,
    ]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_200_jobs_with_a_failure_end_after_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    broken = _snakemake(tmp_path, "broken")
    assert broken.returncode == 1, broken.stderr
    assert "no vertex found" in broken.stderr
    done = len(list((tmp_path / "squares").glob("*.txt")))
    assert 99 <= done < 199, broken.stderr
    (tmp_path / "mended").touch()
    mended = _snakemake(tmp_path, "mended", "--rerun-incomplete")
    assert mended.returncode == 0, mended.stderr
    assert (tmp_path / "sum.txt").read_text().strip() == str(sum(n * n for n in range(199)))
    client = Client()
    assert client.campaign("broken").states["FAILED"] == 1
    assert set(client.campaign("mended").states) == {"COMPLETED"}
    assert client.campaign("mended").jobs < client.campaign("broken").jobs
