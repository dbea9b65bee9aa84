"""Parsl's HighThroughputExecutor with blocks from the provider."""

from __future__ import annotations

from pathlib import Path

import parsl
import pytest
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl_tidemill import TidemillProvider

from tidemill import Client


@parsl.python_app
def cube(n: int) -> int:
    return n**3


@parsl.bash_app
def hello(stdout: str) -> str:
    return "echo hello from $(hostname)"


def test_apps_run_in_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # apps are imported in the block
    provider = TidemillProvider(init_blocks=1, max_blocks=1)
    executor = HighThroughputExecutor(
        label="tidemill", address="127.0.0.1", encrypted=True, max_workers_per_node=1, provider=provider
    )
    with parsl.load(Config(executors=[executor], run_dir=str(tmp_path / "runinfo"), usage_tracking=0)):
        assert [each.result(timeout=100) for each in [cube(n) for n in range(20)]] == [
            n**3 for n in range(20)
        ]
        out = tmp_path / "hello.txt"
        assert hello(stdout=str(out)).result(timeout=60) == 0
        assert out.read_text().startswith("hello from")
    (block,) = Client().wait(provider._campaign, timeout_s=60)
    assert block.state in ("CANCELED", "COMPLETED")
