"""The plugin against the test suite of Snakemake's interface, and a workflow of 200 jobs with a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import snakemake.common.tests
from snakemake_executor_plugin_tidemill import ExecutorSettings

from tidemill import Client

GROUPED = 198
SNAKEFILE = f"""
rule all:
    input: "sum.txt"

rule square:
    output: "squares/{{n}}.txt"
    group: "squares"
    resources: mem_mb=1000
    shell: "echo $(({{wildcards.n}} * {{wildcards.n}})) > {{output}}"

rule flaky:
    output: "flaky.txt"
    shell: "echo partly > {{output}}; "
           "[ -e mended ] || {{{{ echo 'no vertex found' >&2; exit 3; }}}}; echo 5 > {{output}}"

rule total:
    input: expand("squares/{{n}}.txt", n=range({GROUPED})), "flaky.txt"
    output: "sum.txt"
    shell: "awk '{{{{s += $1}}}} END {{{{print s}}}}' {{input}} > {{output}}"
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
        "--seconds-between-status-checks", "1", "--keep-going", "--latency-wait", "30", *more,
    ]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_workflow_of_200_jobs_with_a_failure_is_resumed_after_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    squares = {f"{n}.txt": f"{n * n}\n" for n in range(GROUPED)}
    broken = _snakemake(tmp_path, "broken")
    assert broken.returncode == 1, broken.stderr
    assert "no vertex found" in broken.stderr
    assert {each.name: each.read_text() for each in (tmp_path / "squares").iterdir()} == squares
    assert not (tmp_path / "flaky.txt").exists()
    assert not (tmp_path / "sum.txt").exists()

    (tmp_path / "mended").touch()
    mended = _snakemake(tmp_path, "mended", "--rerun-incomplete")
    assert mended.returncode == 0, mended.stderr
    assert (tmp_path / "sum.txt").read_text() == f"{sum(n * n for n in range(GROUPED)) + 5}\n"

    client = Client()
    assert client.campaign("broken").states == {"COMPLETED": 2, "FAILED": 1}  # two groups; the flaky one
    assert client.campaign("mended").states == {"COMPLETED": 2}  # the flaky one; the total
