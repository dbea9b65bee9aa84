"""The parser of what a GridFTP server sends on its control connection."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.of_transfer import _place, _watch
from tests.fuzz.parser import Parser

from tidemill.transfer.contract import TransferError
from tidemill_gridftp.adapter import GridFtpAdapter


def _ftp(content: bytes) -> object:
    """What a GridFTP server says on its control connection."""
    place = _place("ftp", content, listens_first=False)
    adapter, found = GridFtpAdapter(), []
    for act in (
        lambda: adapter.stat(place, _watch()), lambda: adapter.checksum(place, "adler32", _watch()),
        lambda: adapter.rename(place, place, _watch()),
    ):  # fmt: skip
        try:
            found.append(act())
        except TransferError as error:
            found.append(error.message[:10])
    return found


PARSERS = [Parser("ftp-answer", _ftp, corpus=Path(__file__).parent / "corpus")]
