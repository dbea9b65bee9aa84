"""The parsers of what Grid Engine prints."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.parser import Parser

from tidemill.errors import ProtocolError, SiteError
from tidemill_gridengine import command
from tidemill_gridengine import replies as sge
from tidemill_gridengine import survey as sge_survey

CORPUS = Path(__file__).parent / "corpus"


def _machine_sge(content: bytes) -> object:
    instances, waiting = sge.read_instances(content)
    return sge_survey.compose(instances, waiting, [], mine={"12"}).nodes


def _jobs_sge(content: bytes) -> object:
    return list(sge.merge(sge.read_rows(content)))


def _reservations_sge(content: bytes) -> object:
    found = sge.read_reservations(content)
    return [
        (sge.read_time(each.get("start_time", "")), sge.read_time(each.get("end_time", ""))) for each in found
    ]


def _accounts_sge(content: bytes) -> object:
    return [each.ending for each in sge.read_accounts(content)]


_P = (ProtocolError,)
_PARSERS = [
    Parser("gridengine-full", _machine_sge, _P, ("full.xml",)),
    Parser("gridengine-jobs", _jobs_sge, _P, ("jobs.xml", "univa.xml")),
    Parser("gridengine-contexts", sge.read_contexts, _P),
    Parser("gridengine-reservations", _reservations_sge, _P, ("reservations.xml",)),
    Parser("gridengine-accounts", _accounts_sge, (), ("accounts.txt",)),
    Parser("gridengine-submit", command.read_id, (SiteError,)),
]  # fmt: skip
PARSERS = [each._replace(corpus=CORPUS) for each in _PARSERS]
