"""root:// and roots://: by xrdcp and xrdfs, XRootD's own clients (tried with 5.5.3).

Outputs are copied to a temporary name, their checksum is compared by `mover`, then `xrdfs mv` gives them their name.
Redirections, which are XRootD's daily bread, are followed by the client itself: not at all where an endpoint names no
`redirects`; where it does, we ask beforehand on which servers a file is, and refuse others. That holds for honest
managers: what a client is sent on to between question and copy is not seen from outside.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from urllib.parse import urlsplit

from tidemill.model.number import canonical_checksum, whole
from tidemill.transfer import program
from tidemill.transfer.checksum import Growing
from tidemill.transfer.contract import RemoteFile, Stat, TransferError, Watch
from tidemill.transfer.credentials import REFUSED, credential_error, environment

PACKAGE = "XRootD's client, in Debian `xrootd-client`"
SETTINGS = {
    "XRD_CONNECTIONWINDOW": "10",
    "XRD_CONNECTIONRETRY": "1",  # a window for each try: the defaults, 120 s and 5, make a dead server cost 8 minutes
    "XRD_REQUESTTIMEOUT": "1800",  # a checksum of a large file takes long; the watch knows when it is too long
    "XRD_STREAMTIMEOUT": "60",
    "XRD_LOGLEVEL": "Error",
    "XRD_RUNFORKHANDLER": "0",
    # as many bytes under way as by its defaults, 4 pieces of 8 MB: those miss the processor's caches, which takes an
    # eighth longer
    "XRD_CPCHUNKSIZE": str(1 << 20),
    "XRD_CPPARALLELCHUNKS": "32",
}
_LINE = re.compile(r"^(?P<key>\w+):\s+(?P<value>.*)$", re.MULTILINE)
_AT = re.compile(r"(?<!\S)(?P<host>\[[^\]\s]{1,255}\]|[^\s:]{1,255}):(?P<port>\d+) (Server|Manager)")


class XrootdAdapter:
    """Moves files with XRootD's client programs: a `contract.Adapter`."""

    resumes = True
    tells_at_once = False
    in_order = True

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """Size and version as `xrdfs stat` reports them, once the hosts of the file are known to be permitted."""
        self._stay(place, watch)
        reply = self._ask(place, watch, "stat", place.path)
        if reply.status != 0:
            raise self._error(place, reply, "query")
        facts = {match["key"]: match["value"].strip() for match in _LINE.finditer(reply.output)}
        size_bytes = whole(facts.get("Size", ""))
        if size_bytes is None or "IsDir" in facts.get("Flags", ""):
            raise TransferError(
                f"`{place.shown}` is not a regular file: `{reply.last_words}`", transient=False
            )
        version = f"{facts['Size']} {facts.get('MTime', '')} {facts.get('Id', '')}"
        return Stat(size_bytes=size_bytes, version=version)

    def read(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """Fetch the file with xrdcp, which continues a partial `target`; returns the checksums made on the way."""
        words = [program.find("xrdcp", PACKAGE), "--nopbar", "--retry", "0"]
        words += ["--continue"] if target.exists() else []
        if place.endpoint.connections > 1:
            words += ["--streams", str(min(15, place.endpoint.connections))]
        with Growing(target, needed) as growing:  # xrdcp writes from beginning to end
            reply = program.run(
                [*words, _address(place) + place.path, f"file://{target}"],
                watch,
                environ=self._environment(place),
                progress=lambda _: program.size_of(target),
            )
            if reply.status != 0:
                raise self._error(place, reply, "read")
            return growing.end()

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the file with xrdcp. Returns no checksums."""
        words = [program.find("xrdcp", PACKAGE), "--nopbar", "--force", "--retry", "0"]
        if place.endpoint.connections > 1:
            words += ["--streams", str(min(15, place.endpoint.connections))]

        def progress(pid: int) -> int:
            # xrdcp reads up to 32 MB ahead of what it has sent; after that, the server's answers, which it reads too,
            # show progress: one for each 8 MB
            read = program.bytes_read(pid)
            watch.live(read)
            return min(read, program.size_of(source))

        reply = program.run(
            [*words, f"file://{source}", _address(place) + place.path],
            watch,
            environ=self._environment(place),
            progress=progress,
        )
        if reply.status != 0:
            raise self._error(place, reply, "write")
        return {}

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name."""
        reply = self._ask(place, watch, "mv", place.path, final.path)
        if reply.status != 0:
            raise self._error(final, reply, "name")

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """The checksum that the server reports (`xrdfs query checksum`); None if it does not support the algorithm."""
        reply = self._ask(place, watch, "query", "checksum", f"{place.path}?cks.type={algorithm}")
        kind, _, value = reply.output.strip().partition(" ")
        if reply.status != 0 and not reply.says("[3013]", "not supported", "[3006]"):
            raise self._error(place, reply, "ask the checksum of")
        if reply.status != 0 or kind != algorithm:
            return None
        return canonical_checksum(algorithm, value.strip())

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """None: reading the file back needs a copy."""
        return None

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the file; a missing file is not an error."""
        reply = self._ask(place, watch, "rm", place.path)
        if reply.status != 0 and not reply.says("[3011]", "no such file"):
            raise self._error(place, reply, "delete")

    def rest(self) -> None:
        """Do nothing: each client program closes its own connection."""

    def _stay(self, place: RemoteFile, watch: Watch) -> None:
        """Raise TransferError if the first server locates the file on a host that the endpoint does not permit."""
        if not place.endpoint.redirects:
            return  # the client follows nowhere
        reply = self._ask(place, watch, "locate", "-h", place.path)
        for match in _AT.finditer(reply.output):
            if not _may(match["host"], place):
                raise TransferError(
                    f"`{place.shown}` sends us on to `{match['host']}:{match['port']}`, which is not permitted",
                    hint=f"if that is meant, name it in `redirects` of the endpoint `{place.endpoint.url}`",
                    transient=False,
                )

    def _ask(self, place: RemoteFile, watch: Watch, *words: str) -> program.ClientResult:
        command = [program.find("xrdfs", PACKAGE), f"{_scheme(place)}://{place.host}:{place.port}", *words]
        return program.run(command, watch, environ=self._environment(place))

    def _environment(self, place: RemoteFile) -> dict[str, str]:
        followed = "16" if place.endpoint.redirects else "0"
        return environment(place.endpoint) | SETTINGS | {"XRD_REDIRECTLIMIT": followed}

    def _error(self, place: RemoteFile, reply: program.ClientResult, verb: str) -> TransferError:
        what = f"failed to {verb} `{place.shown}`: {reply.program} ended with status {reply.status}: {reply.last_words}"
        if reply.says("redirect limit"):
            return TransferError(
                f"`{place.shown}` sends us on to another server, which this site does not permit",
                hint=f"if that is meant, name those in `redirects` of the endpoint `{place.endpoint.url}`",
                transient=False,
            )
        if reply.says("[3011]", "no such file"):
            return TransferError(what, transient=False, missing=True)
        if reply.says("no space left", "[3009]", "disk quota"):
            return TransferError(what, hint="there is no space left: free some, or wait until others do")
        if reply.says("[3010]") or REFUSED.search(reply.last_words):
            return credential_error(place, reply.last_words)
        if reply.says("[3018]", "file exists"):
            return TransferError(what, transient=False)
        return TransferError(what, hint="is the server up? `xrdfs HOST:PORT stat PATH` asks it")


def _scheme(place: RemoteFile) -> str:
    return "roots" if place.scheme in ("roots", "xroots") else "root"


def _address(place: RemoteFile) -> str:
    return f"{_scheme(place)}://{place.host}:{place.port}/"


def _may(host: str, place: RemoteFile) -> bool:
    """Whether a server, by number or name, is the place's own or one that `redirects` names."""
    host = host.strip("[]").removeprefix("::ffff:")
    host = host.removeprefix("::") if re.fullmatch(r"::[0-9.]+", host) else host
    wanted = [place.host, *(urlsplit(each).hostname or "" for each in place.endpoint.redirects)]
    numbers = _numbers(host)
    for each in wanted:
        if each.startswith("*."):
            name = _name(host)
            if name.endswith(each[1:]) and _numbers(name) & numbers:
                return True
        elif each == host or _numbers(each) & numbers:
            return True
    return False


def _numbers(host: str) -> set[str]:
    try:
        return {str(address[0]) for _, _, _, _, address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):  # a name that no name service can have
        return set()


def _name(host: str) -> str:
    try:
        return socket.gethostbyaddr(host)[0].lower()
    except (OSError, UnicodeError):
        return ""
