"""The control connection of FTP servers: sizes, checksums, names. Plain for ftp://, by GSI for gsiftp://.

GSI (RFC 2228 with the mechanism of the Grid Community Toolkit) carries a TLS handshake in ADAT commands, then one byte
that says whether a credential is delegated (`0`: none), then commands and answers as TLS records in ENC and 63x. Tried
with globus-gridftp-server 13.24; globus-url-copy has no words for sizes, checksums and renaming.
"""

from __future__ import annotations

import base64
import binascii
import ftplib
import ssl
from collections.abc import Callable

from tidemill.transfer.contract import RemoteFile
from tidemill.transfer.credentials import credential_error, tls, untrusted

MAXLINE = 65536
WAIT_S = 30.0
STEPS_MAX = 20
ANSWER_CHARS_MAX = 256 * 1024
"""Of one answer, with all its lines: ftplib takes as many as come."""


class Control(ftplib.FTP):
    """A control connection, after log-in. Raises what ftplib does, and TransferError of class `credential`."""

    maxline = MAXLINE

    def __init__(self, place: RemoteFile, *, timeout_s: float = WAIT_S) -> None:
        super().__init__(timeout=timeout_s, encoding="utf-8")
        self._left = ANSWER_CHARS_MAX
        self._tls: ssl.SSLObject | None = None
        self._come, self._go = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self.connect(place.host.strip("[]"), place.port)
            if place.scheme == "gsiftp":
                self._handshake(place)
                self.login(":globus-mapping:", "-")
            else:
                self.login()
        except ftplib.error_perm as error:
            self.close()
            raise credential_error(place, str(error).replace("\n", " / ")) from error
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> None:
        """Set the time limit for each following answer of the server."""
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def putline(self, line: str) -> None:
        """Send one line, as a TLS record where the connection is protected."""
        if "\r" in line or "\n" in line:
            raise ValueError("a line with a line end")
        if self._tls is None:
            super().putline(line)
            return
        self._tls.write(line.encode(self.encoding) + b"\r\n")
        super().putline("ENC " + base64.b64encode(self._go.read()).decode())

    def getline(self) -> str:
        """One line of an answer. Raises ConnectionAbortedError if the answer gets too long; its rest is not read."""
        line: str = super().getline()
        self._left -= len(line) + 1
        if self._left < 0:
            raise ConnectionAbortedError(f"an answer of more than {ANSWER_CHARS_MAX} characters")
        return line

    def getmultiline(self) -> str:
        """One answer, with its lines."""
        self._left = ANSWER_CHARS_MAX
        answer = super().getmultiline()
        if self._tls is None or not answer.startswith("63"):
            return answer
        try:
            for line in answer.split("\n"):
                self._come.write(base64.b64decode(line[4:], validate=True))
        except binascii.Error as error:
            raise ftplib.error_proto(answer[:100]) from error
        return "\n".join(self._records().decode(self.encoding, "replace").splitlines())

    def _records(self) -> bytes:
        assert self._tls is not None
        text = b""
        try:
            while len(text) < MAXLINE:
                text += self._tls.read(MAXLINE)
        except ssl.SSLWantReadError:
            return text
        return text

    def _handshake(self, place: RemoteFile) -> None:
        context = tls(place)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 sends tickets, which ADAT has no place for
        secure = context.wrap_bio(self._come, self._go, server_hostname=place.host.strip("[]"))
        self.sendcmd("AUTH GSSAPI")
        try:
            if not self._steps(secure.do_handshake):
                raise credential_error(place, "the handshake does not end")
            secure.write(b"0")
            self._step()
        except ssl.SSLCertVerificationError as error:
            raise untrusted(place, error) from error
        except ssl.SSLError as error:
            raise credential_error(place, f"TLS: {error.reason or error}") from error
        self._tls = secure

    def _steps(self, go_on: Callable[[], object]) -> bool:
        for _ in range(STEPS_MAX):
            try:
                go_on()
            except ssl.SSLWantReadError:
                self._step()
            else:
                return True
        return False

    def _step(self) -> None:
        answer = self.sendcmd("ADAT " + base64.b64encode(self._go.read()).decode())
        _, found, token = answer.partition("ADAT=")
        if found:
            self._come.write(base64.b64decode(token))
