"""The parsers of logs of machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz.parser import Parser, file_of

from tidemill.errors import ConfigError
from tidemill_study.accounting.idle import idle_of
from tidemill_study.accounting.log import LogKind, history_of
from tidemill_study.simulation import availability, swf

CORPUS = Path(__file__).parent / "corpus"


def _from_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    return lambda content: read(file_of(content))


def _swf(path: Path) -> object:
    return swf.read(path).jobs


def _past(kind: LogKind) -> Callable[[Path], object]:
    """An accounting log as the past of a machine, swept."""

    def read(path: Path) -> object:
        history = history_of(path, kind=kind)
        machine = history.machine(None)
        if history.span[1] - history.span[0] < 400 * 86_400:  # longer ones have too many hours
            idle_of(history.timeline, nodes=machine.nodes, span=history.span, outages=machine.outages)
        return list(history.remarks.sentences())

    return read


def _availability(path: Path) -> object:
    return availability.read(path).jobs


_PARSERS = [
    Parser("accounting-sacct", _from_file(_past(LogKind.SACCT)), (ConfigError,), ("slurm/sacct-22.05.txt",)),
    Parser("accounting-pbs", _from_file(_past(LogKind.PBS)), (ConfigError,)),
    Parser("accounting-swf", _from_file(_past(LogKind.SWF)), (ConfigError,)),
    Parser("trace-swf", _from_file(_swf), (ConfigError,)),
    Parser("trace-availability", _from_file(_availability), (ConfigError,)),
]  # fmt: skip
PARSERS = [each._replace(corpus=CORPUS) for each in _PARSERS]
