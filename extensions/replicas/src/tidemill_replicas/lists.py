"""Where copies of a far file are, as lists in the site's files say.

A line is `PATTERN URL ...`. `*` in the pattern stands for any text, which takes the place of `*` in each URL:

    root://origin.example.org//store/*   root://near.example.org//store/*  file:///data/store/*

The longest text before `*` that fits decides. Lists are read again when they change.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tidemill import clock
from tidemill.errors import ConfigError
from tidemill.model.far import scheme_of
from tidemill_replicas.settings import Replicas

BYTES_MAX = 64 << 20
LINES_MAX = 1_000_000
FILES_MAX = 10_000
URLS_MAX = 20
LOOK_S = 10.0
"""The interval between two checks whether a list has changed."""


class ReplicaLists:
    """The site's lists. Thread-safe."""

    def __init__(self, config: Replicas) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._marks: list[tuple[str, int, int]] | None = None
        self._lines: dict[
            str, str
        ] = {}  #: the text before `*` -> its lines; texts, so that a million take little
        self._next_look_s = 0.0

    def copies(self, url: str) -> list[str]:
        """URLs of copies of this file, in the list's order. Raises ConfigError for a malformed list."""
        with self._lock:
            now_s = clock.monotonic_s()
            if now_s >= self._next_look_s:
                self._refresh()
                self._next_look_s = now_s + LOOK_S
            return found(self._lines, url)

    def _refresh(self) -> None:
        paths = self._paths()
        marks: list[tuple[str, int, int]] = []
        for path in paths:
            try:
                status = path.stat()
            except OSError as error:
                raise ConfigError(f"list of replicas `{path}`: {error.strerror}") from error
            if status.st_size > BYTES_MAX:
                raise ConfigError(f"list of replicas `{path}` has more than {BYTES_MAX} bytes")
            marks.append((str(path), status.st_mtime_ns, status.st_size))
        if marks == self._marks:
            return
        lines: dict[str, str] = {}
        count = 0
        for path in paths:
            count += read_list(path, lines)
            if count > LINES_MAX:
                raise ConfigError(f"`{path}`: the lists of replicas have more than {LINES_MAX} lines")
        self._lines, self._marks = lines, marks

    def _paths(self) -> list[Path]:
        files = self._config.files
        if files is None or not files.is_dir():
            return [] if files is None else [files]
        named = files.rglob("*")
        paths = sorted(each for each in named if each.is_file() and not each.name.startswith("."))
        if len(paths) > FILES_MAX:
            raise ConfigError(f"`{files}` holds more than {FILES_MAX} lists of replicas")
        return paths


def read_list(path: Path, lines: dict[str, str]) -> int:
    """Add the lines of a list, by the text before `*`; how many there are. Raises ConfigError naming the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"list of replicas `{path}` cannot be read: {error}") from error
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        pattern, urls = words[0], words[1:]
        wrong = _fault(pattern, urls)
        if wrong:
            raise ConfigError(f"{path}:{number}: {wrong}")
        before = pattern.partition("*")[0]
        known = lines.get(before)
        kept = " ".join(words)
        lines[before] = kept if known is None else f"{known}\n{kept}"
        count += 1
    return count


def found(lines: dict[str, str], url: str) -> list[str]:
    """The URLs of the line that fits a file best; empty = none does. Takes time by the length of the URL."""
    for end in range(len(url), -1, -1) if lines else ():
        known = lines.get(url[:end])
        for line in known.split("\n") if known is not None else ():
            pattern, *urls = line.split(" ")
            _, star, rest = pattern.partition("*")
            if not star and end == len(url):
                return urls
            if star and url.endswith(rest) and len(url) - end >= len(rest):
                return [each.replace("*", url[end : len(url) - len(rest)]) for each in urls]
    return []


def _fault(pattern: str, urls: list[str]) -> str:
    if not urls:
        return f"pattern `{pattern}` has no URL"
    if len(urls) > URLS_MAX:
        return f"pattern `{pattern}` has more than {URLS_MAX} URLs"
    if pattern.count("*") > 1:
        return f"pattern `{pattern}` has more than one `*`"
    for each in urls:
        if each.count("*") > pattern.count("*"):
            return f"`{each}` has a `*` that pattern `{pattern}` does not have"
        if not scheme_of(each) and not each.startswith("/"):
            return f"`{each}` is not a URL or an absolute path"
    return ""
