"""From a trace to a campaign: what a program used is packed, and payloads on the nodes see it from memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.metrics_text import OF_IMAGES, families
from tests.worlds.home.world import TIDEMILL, World, world

from tidemill.model.job import JobSpec, Output, OutputKind, Resources

PROGRAM = """#!/bin/sh
. {sw}/lib/used.sh
cat {sw}/lib/missing.txt 2>/dev/null && exit 3
[ "$1" = trace ] || word="$word $(cat {sw}/lib/never-traced.txt)"
echo "$1 $word" > said
"""
APPLICATION = """
name = "packed"
executable = "{sw}/bin/program"
arguments = ["{{event}}"]
images = ["packed"]
[[outputs]]
name = "said"
path = "said"
kind = "concat"
"""
EVENTS = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="no mksquashfs (package squashfs-tools)"),
]


def software(sw: Path) -> None:
    (sw / "bin").mkdir(parents=True)
    (sw / "lib").mkdir()
    (sw / "lib" / "used.sh").write_text("word=packed\n")
    (sw / "lib" / "never-traced.txt").write_text("real\n")
    (sw / "bin" / "program").write_text(PROGRAM.format(sw=sw))
    (sw / "bin" / "program").chmod(0o755)


def tidemill(it: World, *words: str | Path) -> str:
    done = subprocess.run(
        [*TIDEMILL, *map(str, words)], cwd=it.home / "me", capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def sw() -> Iterator[Path]:
    """A directory that images may stand for: below /tmp they may not."""
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/var/tmp") as directory:
        path = Path(directory) / "sw"
        software(path)
        path.parent.chmod(0o755)
        yield path


def test_a_campaign_runs_from_the_image_of_what_its_program_used(sw: Path) -> None:
    with world(nodes=2, cores=2) as it:
        tidemill(it, "trace", "-o", "p.json", "--area", sw, "--", sw / "bin" / "program", "trace")
        store = it.home / "site" / "images"
        tidemill(
            it, "image", "build", "--name", "packed", "--store", store, "--profile", "p.json", "--area", sw
        )
        (it.home / "site" / "apps" / "packed.toml").write_text(APPLICATION.format(sw=sw))
        it.wait_for(
            lambda: any(each.app.name == "packed" for each in it.client.applications()),
            "the application is offered",
        )
        (sw / "lib" / "used.sh").write_text("word=changed-since\n")
        it.submit(
            "c",
            JobSpec(
                app="packed",
                events=EVENTS,
                outputs=[Output(name="said", path="said", kind=OutputKind.CONCAT)],
                resources=Resources(event_s=0.1),
            ),
        )
        row = it.wait_campaign("c")
        assert (row.events_done, row.events_failed) == (EVENTS, 0)
        (said,) = (path for path in (it.home / "site" / "out").rglob("*said*") if path.is_file())
        lines = said.read_text().splitlines()
        assert lines == [f"{event} packed real" for event in range(EVENTS)]
        it.wait_for(  # metrics are written every 15 s
            lambda: "image" in tidemill(it, "site", "status", it.home / "site"),
            "the status says how the image was shown",
        )
        assert families((it.home / "site" / "metrics.prom").read_text()) >= OF_IMAGES
