"""The files of a data set at an origin, and those that a study reads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import ConfigError, SiteError
from tidemill_caches.engine.origins import OriginPath, parse_file, parse_origin

LIST_S = 60.0
TIMED_OUT = 124
"""The exit status of timeout(1) for a program that it ended."""
LIST_BYTES_MAX = 4 << 20
"""Of a listing, some 30,000 files: the rest of a larger data set is not considered."""

_FILE = re.compile(r"-\S*\s.*?\s(\d+)\s+(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+)?(/\S.*)")
_STAT = re.compile(r"^(Size|Flags):\s+(\d+)", re.MULTILINE)
_IS_DIRECTORY = 2  # XRootD protocol 5.0, kXR_stat: kXR_isDir


class StudyFile(NamedTuple):
    """A file at an origin."""

    origin: OriginPath  #: its `path` is the file's
    size_bytes: int


def parse_listing(text: str, of: OriginPath) -> list[StudyFile]:
    """The files in what `xrdfs ls -l` printed; directories and what cannot be read are left out.

    Two forms, by version: `-rw-r--r-- user group 123 2026-11-23 03:00:00 /path` (5.x) and without a user (4.x).
    """
    result = []
    for line in text.splitlines():
        match = _FILE.fullmatch(line.strip())
        if match is not None:
            result.append(StudyFile(of._replace(path=match[2]), int(match[1])))
    return result


def choose(files: Sequence[StudyFile], *, bytes_max: int, files_max: int = 1) -> list[StudyFile]:
    """Files of about median size at one server that may be read whole together, else the smallest. Never empty.

    Raises ConfigError.
    """
    full = sorted(
        (each for each in files if each.size_bytes), key=lambda each: (each.size_bytes, each.origin)
    )
    if not full:
        raise ConfigError("the data set has no file with content that could be read")
    small = [each for each in full if each.size_bytes <= bytes_max]
    if not small:
        return full[:1]
    middle = len(small) // 2
    taken, left = [small[middle]], bytes_max - small[middle].size_bytes
    # the larger before the smaller, so that the median stays where it is
    for at in sorted(range(len(small)), key=lambda each: (abs(each - middle), -each)):
        if len(taken) >= files_max:
            break
        each = small[at]
        if (
            at != middle
            and each.size_bytes <= left
            and _server(each) == _server(taken[0])
            and each not in taken
        ):
            taken.append(each)
            left -= each.size_bytes
    return taken


def _server(file: StudyFile) -> tuple[str, str, int]:
    return file.origin.scheme, file.origin.host, file.origin.port


def files_of(url: str, environ: dict[str, str]) -> list[StudyFile]:
    """The file of a URL, or the files directly in the directory that it names. Raises ConfigError, SiteError."""
    place = parse_origin(url) if url.endswith("/") else parse_file(url)
    server = f"{place.scheme}://{place.host}:{place.port}"
    path = place.path.rstrip("/") or "/"
    facts = {name: int(value) for name, value in _STAT.findall(_ask(server, ["stat", path], environ))}
    if "Size" not in facts:
        raise SiteError(f"`xrdfs {server} stat {path}` printed no size")
    if not facts.get("Flags", 0) & _IS_DIRECTORY:
        return [StudyFile(place._replace(path=path), facts["Size"])]
    return parse_listing(_ask(server, ["ls", "-l", path], environ), place)


def _ask(server: str, words: list[str], environ: dict[str, str]) -> str:
    """What xrdfs prints, its beginning if that is long."""
    try:
        with subprocess.Popen(
            ["timeout", str(int(LIST_S)), "xrdfs", server, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read(LIST_BYTES_MAX)
            is_cut = len(printed) == LIST_BYTES_MAX
            if is_cut:
                process.kill()
                printed = printed[: printed.rfind(b"\n")]
    except OSError as error:
        raise ConfigError(
            f"failed to start `xrdfs`: {error.strerror}", hint="install XRootD's client (xrootd-client)"
        ) from error
    text = printed.decode(errors="replace")
    if process.returncode and not is_cut:
        said = (text.replace("\0", "").strip().splitlines() or ["it printed nothing"])[-1][:300]
        if process.returncode == TIMED_OUT:
            said = f"no answer within {LIST_S:.0f} s"
        raise SiteError(
            f"failed to read `{server}/{words[-1]}` by `xrdfs {words[0]}`: {said}",
            hint="check host, port and path of the URL",
        )
    return text
