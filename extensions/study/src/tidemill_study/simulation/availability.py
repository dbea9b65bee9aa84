"""Logs of free nodes over time: lines of `time nodes`, comma or space between them, comments after `#` or `;`.

`time` is in seconds (any origin) or as 2026-11-20T12:00:00. Such a log contains no jobs, so they are synthesized: a
fall of the number is a job that arrives then, unforeseen, and ends with the rises that follow, last in, first out.
Without Tidemill these jobs start at once, so that the same simulator replays the log; any wait is due to Tidemill.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill_study.simulation.swf import Job, Trace, lines_of

SAMPLES_MAX = 5_000_000
LIMIT_S = 30 * 86400
"""The limit of a synthesized job: no plan can rely on its end."""


def read(path: Path, *, nodes: int | None = None) -> Trace:
    """The trace of a file; the machine is as large as the most free nodes, or `nodes`.

    Raises ConfigError, with the line number, for lines that are not valid samples, times that go back, negative counts,
    and more free nodes than the machine has.
    """
    samples = samples_of(path)
    if len(samples) < 2:
        raise ConfigError(
            f"`{path}` has {len(samples)} samples: nothing to replay",
            hint="one line each: time and number of free nodes",
        )
    most = max(free for _, free, _ in samples)
    size = nodes if nodes is not None else most
    for _, free, line in samples:
        if free > size:
            raise ConfigError(
                f"`{path}`, line {line}: {free} nodes are free on a machine of {size}",
                hint="--nodes N sets its size",
            )
    if size < 1:
        raise ConfigError(f"`{path}`: no node is ever free")
    return Trace(
        name=path.name,
        nodes=size,
        nodes_from="--nodes" if nodes is not None else "the most free nodes of the log",
        jobs=jobs_of([(at, free) for at, free, _ in samples], size),
        outages=[],
        skipped={},
        notes=["regular jobs are made from the falls and rises of the log"],
    )


def is_sample(line: str) -> bool:
    """Whether a line of a file is a time and a number of free nodes, and nothing else."""
    words = line.replace(",", " ").split()
    try:
        return len(words) == 2 and seconds_of(words[0]) >= 0 and float(words[1]) >= 0
    except (ValueError, OverflowError):
        return False


def samples_of(path: Path) -> list[tuple[int, int, int]]:
    """(time, free nodes, line) of each line, times from 0."""
    samples: list[tuple[int, int, int]] = []
    first = 0
    for number, line in enumerate(lines_of(path), start=1):
        text = line.strip()
        if not text or text[0] in "#;" or (not samples and text[0].isalpha()):  # a line of column names
            continue
        where = f"`{path}`, line {number}"
        words = text.replace(",", " ").split()
        if len(words) < 2:
            raise ConfigError(
                f"{where} has {len(words)} fields instead of time and free nodes: `{text[:80]}`"
            )
        try:
            at, free = seconds_of(words[0]), int(float(words[1]))
        except (ValueError, OverflowError):
            raise ConfigError(
                f"{where} is not a sample of time and free nodes: `{text[:80]}`",
                hint="--kind swf reads jobs in the Standard Workload Format",
            ) from None
        if free < 0:
            raise ConfigError(f"{where} has a negative number of free nodes: {free}")
        if len(samples) >= SAMPLES_MAX:
            raise ConfigError(f"`{path}` has more than {SAMPLES_MAX:,} samples")
        if not samples:
            first = at
        at -= first
        if samples and at < samples[-1][0]:
            raise ConfigError(f"{where}: time goes back by {samples[-1][0] - at} s")
        samples.append((at, free, number))
    return samples


def seconds_of(word: str) -> int:
    """A time in seconds. Raises ValueError if it is malformed."""
    try:
        return int(float(word))
    except ValueError:
        at = datetime.fromisoformat(word)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def jobs_of(samples: list[tuple[int, int]], nodes: int) -> list[Job]:
    """Jobs that leave the sampled numbers of nodes free: the last to arrive ends first, in part if necessary."""
    jobs: list[Job] = []
    stack: list[tuple[int, int]] = []  # (came, nodes)
    free = nodes
    for at, now in samples:
        if now < free:
            stack.append((at, free - now))
        while now > free and stack:
            came, width = stack.pop()
            gone = min(width, now - free)
            free += gone
            if gone < width:
                stack.append((came, width - gone))
            if at > came:
                jobs.append(Job(came, at - came, gone, LIMIT_S))
        free = now
    end = samples[-1][0]
    jobs += [Job(came, end - came, width, LIMIT_S) for came, width in stack if end > came]
    if not jobs:
        jobs.append(Job(0, max(1, end), 0, LIMIT_S))
    return sorted(jobs)
