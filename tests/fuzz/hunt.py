"""Looks for inputs that a parser does not refuse as it should: any other error, too much time, too much memory.

    python -m tests.fuzz.hunt slurm-nodes --seed 1 --seconds 2            one parser
    python -m tests.fuzz.hunt --minutes 10                                all of them, random seeds, keeps what it finds

Inputs are mutations of the corpus (`corpus/PARSER/*`, and fixtures of other tests); those that lead to something new -
another place that refuses, a larger result - are mutated further. Each parser runs in a process of its own, with a
limit on memory; the input under way is in a file, so that it is known whatever ends the process.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import multiprocessing
import os
import pickle
import resource
import secrets
import signal
import sys
import tempfile
import time
import traceback
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.mutation import mutate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CPU_S_MAX = 5.0  #: of one input: all are below 200 kB, and every parser should take milliseconds
MEMORY_BYTES_MAX = 768 << 20  #: beyond what the process had when it began
KEPT_MAX = 400  #: inputs that led to something new
SHRINK_S = 3.0
CRASHES_MAX = 8  #: of one parser in one run


class TooSlow(BaseException):
    """An input took more processor time than any should."""


class Effort(NamedTuple):
    """How long a hunt goes on after the corpus: mutations tried and processor time used, both at least."""

    mutations: int = 0
    seconds: float = 0.0


class Crash(NamedTuple):
    """What a parser did with an input that it should not."""

    error: str
    where: str
    content: bytes


class Report(NamedTuple):
    """What came of a run."""

    inputs: int
    kept: int
    crashes: list[Crash]
    refused_honest: list[str]  #: inputs of the corpus that are called `ok-...` and were refused all the same


def seeds_of(parser: Any) -> dict[str, bytes]:
    """The corpus of a parser, and fixtures that it shares with other tests, by name."""
    found = {path.name: path.read_bytes() for path in sorted((parser.corpus / parser.name).glob("*"))}
    for pattern in parser.fixtures:
        folders = {ROOT / "tests", parser.corpus.parents[1]}  # the core's, and those of its extension
        paths = sorted(path for folder in folders for path in folder.glob(f"fixtures/{pattern}"))
        assert paths, f"no fixture `{pattern}`"
        found |= {f"ok-{path.name}": path.read_bytes() for path in paths}
    return found


class Trial:
    """Runs one parser on one input after the other."""

    def __init__(self, parser: Any, now: mmap.mmap | None = None) -> None:
        self._parser, self._now = parser, now
        signal.signal(signal.SIGPROF, _too_slow)

    def of(self, content: bytes) -> tuple[tuple[Any, ...], str | None, str]:
        """What it led to, and what is wrong with that: error and place; None where all is as it should be."""
        if self._now is not None:
            self._now[:8] = len(content).to_bytes(8, "little")
            self._now[8 : 8 + len(content)] = content
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
        try:
            value = self._parser.run(content)
        except self._parser.errors as error:
            places = tuple(line for _, line in traceback.walk_tb(error.__traceback__))
            return (type(error).__name__, *places), None, ""
        except (Exception, TooSlow) as error:  # noqa: BLE001 -- whatever it is: that is the question
            frames = traceback.extract_tb(error.__traceback__)
            ours = [each for each in frames if "/src/tidemill" in each.filename] or frames
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
            return (type(error).__name__, where), f"{type(error).__name__}: {str(error)[:200]}", where
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return ("ok", _size(value).bit_length()), None, ""


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {CPU_S_MAX:g} s of processor time")


def hunt(parser: Any, *, seed: int, effort: Effort, now: mmap.mmap | None = None) -> Report:
    """Try the corpus, then mutations of it."""
    random, trial = Random(f"{parser.name} {seed}"), Trial(parser, now)
    named = seeds_of(parser)
    seeds, pool = list(named.items()), list(named.values())
    known, refused, inputs = set[tuple[Any, ...]](), list[str](), 0
    crashes: dict[tuple[str, str], Crash] = {}
    inputs_min, end_s = len(seeds) + effort.mutations, time.process_time() + effort.seconds
    while inputs < inputs_min or (effort.seconds and time.process_time() < end_s):
        name, content = seeds.pop(0) if seeds else ("", mutate(random, random.choice(pool), pool))
        inputs += 1
        led_to, error, where = trial.of(content)
        if error is not None:
            kind = (error.partition(":")[0], where)
            if kind not in crashes and len(crashes) < CRASHES_MAX:
                crashes[kind] = Crash(error, where, shrunk(trial, content, led_to))
        elif led_to not in known and not name and len(pool) < KEPT_MAX:
            pool.append(content)
        if name.startswith("ok") and led_to[0] != "ok":
            refused.append(name)
        known.add(led_to)
    return Report(inputs, len(pool), list(crashes.values()), refused)


def shrunk(trial: Trial, content: bytes, led_to: tuple[Any, ...]) -> bytes:
    """A smaller input that leads to the same, found by leaving out pieces."""
    if "TooSlow" in led_to:
        return content
    started_s, size = time.process_time(), len(content) // 2
    while size and time.process_time() - started_s < SHRINK_S:
        start = 0
        while start < len(content) and time.process_time() - started_s < SHRINK_S:
            smaller = content[:start] + content[start + size :]
            if trial.of(smaller)[0] == led_to:
                content = smaller
            else:
                start += size
        size //= 2
    return content


# ---- processes ---------------------------------------------------------------------------------------------------


@cache
def _processes() -> ForkServerContext:
    """Makes processes that have imported all parsers already: that takes 1.4 s of processor time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fuzz.parsers"])
    return context


def run_apart(name: str, *, seed: int, effort: Effort) -> Report:
    """The same in a process of its own, with bounded memory."""
    with tempfile.TemporaryDirectory(prefix="tm-fuzz-") as text:
        folder = Path(text)
        (folder / "now").write_bytes(bytes(8 + (2 << 20)))
        process = _processes().Process(target=_alone, args=(name, seed, effort, folder))
        process.start()
        process.join(effort.seconds * 20 + 90)
        if process.is_alive():
            process.kill()
            process.join()
        status = process.exitcode
        process.close()
        if status == 0:
            report: Report = pickle.loads((folder / "report").read_bytes())
            return report
        said = (folder / "said").read_text(errors="replace")[-1500:] if (folder / "said").exists() else ""
        held = (folder / "now").read_bytes()
        content = held[8 : 8 + int.from_bytes(held[:8], "little")]
        return Report(
            0, 0, [Crash(f"the process ended with status {status}: {said}", "process", content)], []
        )


def _alone(name: str, seed: int, effort: Effort, folder: Path) -> None:
    """The target of the process: leaves its report in the folder, and there what it says."""
    from tests.fuzz.parsers import PARSERS

    with (folder / "said").open("wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    parser = PARSERS[name]
    with (folder / "now").open("r+b") as file:
        now = mmap.mmap(file.fileno(), 0)
        Trial(parser).of(b"")  # whatever it imports and starts is there before the limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES_MAX, used + MEMORY_BYTES_MAX))
        report = hunt(parser, seed=seed, effort=effort, now=now)
    (folder / "report").write_bytes(pickle.dumps(report))


def keep(name: str, crash: Crash) -> Path:
    """Put the input of a crash into the corpus."""
    from tests.fuzz.parsers import PARSERS

    path = PARSERS[name].corpus / name / f"crash-{hashlib.sha256(crash.content).hexdigest()[:10]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(crash.content)
    return path


def told(name: str, crash: Crash) -> str:
    """A crash in words."""
    return f"{name}: {crash.error} at {crash.where}\n    input of {len(crash.content)} bytes: {crash.content[:300]!r}"


def _all(names: list[str], seed: int | None, effort: Effort) -> int:
    """These parsers in turn; crashes go into the corpus."""
    found = 0
    for name in names:
        drawn = secrets.randbelow(1 << 32) if seed is None else seed
        report = run_apart(name, seed=drawn, effort=effort)
        _tell(
            f"{name}: {report.inputs} inputs, {report.kept} kept, seed {drawn}, {len(report.crashes)} crashes"
        )
        for crash in report.crashes:
            found += 1
            _tell(f"  {told(name, crash)}\n    kept as {keep(name, crash).relative_to(ROOT)}")
    return 1 if found else 0


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """See the module."""
    from tests.fuzz.parsers import PARSERS

    options = argparse.ArgumentParser(description="look for inputs that parsers do not refuse as they should")
    options.add_argument("parser", nargs="?", choices=PARSERS, help="one parser; without it: all")
    options.add_argument("--seed", type=int, help="repeats a run; without it: another one each time")
    options.add_argument("--seconds", type=float, default=10.0, help="of processor time, for one parser")
    options.add_argument("--minutes", type=float, help="for all of them, in place of --seconds for each")
    given = options.parse_args()
    names = [given.parser] if given.parser else list(PARSERS)
    seconds = max(1.0, given.minutes * 60 / len(names)) if given.minutes else given.seconds
    return _all(names, given.seed, Effort(seconds=seconds))


if __name__ == "__main__":
    sys.exit(main())
