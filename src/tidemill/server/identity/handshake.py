"""Strangers whose TLS ends before a request: a foreign CA, an expired or revoked certificate. asyncio says nothing of
them, and a centre's staff want to see who tries; so the handshake itself tells."""

from __future__ import annotations

import ssl

from tidemill import clock
from tidemill.log import Log

TOLD_MAX = 100
"""Lines in a minute, at most: strangers may come by thousands."""

_LOG = Log("server")
_told = {"minute": 0, "lines": 0, "untold": 0}


class Handshake(ssl.SSLObject):
    """TLS of one connection, which logs why it ended before it began."""

    def do_handshake(self) -> None:
        """As ssl's."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            _tell(error)
            raise


def _tell(error: ssl.SSLError) -> None:
    minute = int(clock.monotonic_s() // 60)
    if minute != _told["minute"]:
        if _told["untold"]:
            _LOG.warning("access.refused", why="tls", more=_told["untold"])
        _told.update(minute=minute, lines=0, untold=0)
    if _told["lines"] >= TOLD_MAX:
        _told["untold"] += 1
        return
    _told["lines"] += 1
    why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
    _LOG.warning("access.refused", why=f"tls: {why or error}")
