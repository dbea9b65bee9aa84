"""Names of outputs in the later deliveries of a job: earlier files stay as they are. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote_to_bytes

from tidemill.transfer.allowed import LITERAL, is_remote

COMPRESSED = frozenset({".gz", ".xz", ".zst", ".bz2"})
FILE_NAME_BYTES_MAX = 255  #: NAME_MAX of Linux's file systems
ENDING_CHARS_MAX = 32  #: a longer one says nothing of the type
_LETTER = re.compile(r".", re.DOTALL)
_ENCODED = re.compile(r"%[C-Fc-f][0-9A-Fa-f](?:%[89ABab][0-9A-Fa-f])+|%[0-9A-Fa-f]{2}|.", re.DOTALL)
"""A character of a URL; the percent-encoded bytes of one UTF-8 character stay together."""

LITERAL_ROOTS = tuple(f"{scheme}://" for scheme in LITERAL)


def numbered(name: str, delivery: int, mark: str = "-", *, is_encoded: bool = False) -> str:
    """The name of a file in the job's nth delivery: `hits.tar`, `hits-2.tar`. Earlier files stay as they are. If the
    name would be too long, the part before the number is cut. `is_encoded`: the name is percent-encoded, as in URLs."""
    if delivery == 1:
        return name
    path, query, rest = name.partition("?")
    above, slash, file = path.rpartition("/")
    suffixes = Path(file).suffixes
    ending = "".join(suffixes[-2:] if suffixes and suffixes[-1] in COMPRESSED else suffixes[-1:])
    added = f"{mark}{delivery}"
    if len(ending) > ENDING_CHARS_MAX and _is_too_long(file + added, is_encoded=is_encoded):
        ending = ""
    letters = (_ENCODED if is_encoded else _LETTER).findall(file.removesuffix(ending))
    while letters and _is_too_long("".join([*letters, added, ending]), is_encoded=is_encoded):
        letters.pop()
    return f"{above}{slash}{''.join(letters)}{added}{ending}{query}{rest}"


def _is_too_long(name: str, *, is_encoded: bool) -> bool:
    return len(unquote_to_bytes(name) if is_encoded else os.fsencode(name)) > FILE_NAME_BYTES_MAX


def later_places(plain: Mapping[str, tuple[str, str]], delivery: int) -> dict[str, tuple[str, str]]:
    """Folders and names of outputs in the job's nth delivery, by those of the first one: different from each other, and
    from all of the first, such as of an output that is called `hits-2` itself. Pure."""
    found: dict[str, tuple[str, str]] = {}
    taken = set(plain.values())
    for output, (folder, name) in plain.items():
        is_encoded = is_remote(folder) and not folder.startswith(LITERAL_ROOTS)
        mark = "-"
        while (place := (folder, numbered(name, delivery, mark, is_encoded=is_encoded))) in taken:
            mark += "-"
        found[output] = place
        taken.add(place)
    return found
