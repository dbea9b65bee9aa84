"""A run on disk: one directory with `run.json` (all that an analysis needs), `result.json` and `page.html`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.errors import ConfigError
from tidemill.files import make_readable, read_bounded, write_durable, write_whole
from tidemill_stress import page
from tidemill_stress.analysis import Analysis, analyse
from tidemill_stress.run import FORMAT, Run

RUN, RESULT, PAGE = "run.json", "result.json", "page.html"
RUN_BYTES_MAX = 2_000_000_000


def save(directory: Path, run: Run) -> None:
    """Write a run durably: after a crash it is as it was before or as it is now."""
    make_readable(directory)
    write_durable(directory / RUN, msgspec.json.encode(run), mode=0o644, failure=ConfigError)


def load(directory: Path) -> Run:
    """The run of a directory. Raises ConfigError."""
    path = directory / RUN if directory.is_dir() else directory
    body = read_bounded(path, RUN_BYTES_MAX) if path.is_file() else None
    if body is None:
        raise ConfigError(f"`{directory}` holds no run of a stress test: there is no `{RUN}` in it")
    try:
        run = msgspec.json.decode(body, type=Run)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"`{path}` is not the run of a stress test: {error}") from error
    if run.format != FORMAT:
        raise ConfigError(f"`{path}` has format {run.format}, this version reads format {FORMAT}")
    return run


def finish(directory: Path, run: Run) -> Analysis:
    """Analyse a run, and write result and page beside it."""
    analysis = analyse(run)
    write_whole(directory / RESULT, msgspec.json.encode(analysis), mode=0o644, failure=ConfigError)
    write_whole(directory / PAGE, page.page(run, analysis).encode(), mode=0o644, failure=ConfigError)
    return analysis


def newest(directory: Path, digest: str) -> Path | None:
    """The newest whole run of the same test in a directory of runs."""
    found: list[tuple[int, Path]] = []
    for path in directory.glob(f"*/{RUN}"):
        try:
            run = load(path.parent)
        except ConfigError:
            continue
        if run.digest == digest and run.ended_us and not run.stopped:
            found.append((run.ended_us, path.parent))
    return max(found)[1] if found else None
