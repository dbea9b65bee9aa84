"""Recognizes Tidemill's own jobs in a batch system: by user, by the shape of the name, and by the site
directory's key in the comment (or in whatever carries our words there). Never by a number alone: numbers come
back after a crash."""

from __future__ import annotations

import re

from tidemill.errors import SiteError

_NAME = re.compile(r"tm-[A-Za-z0-9_.-]+-e[0-9]+-[0-9]+", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
NAME_CHARS_MAX = 128
COMMENT_CHARS_MAX = 512
MARK = "tidemill"


def is_allocation_name(name: str) -> bool:
    """Whether a job's name is shaped as the names of submissions: `tm-SITE-eEPOCH-NUMBER`."""
    return _NAME.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether batch systems, files and command lines can all bear this name of a submission."""
    return len(name) <= NAME_CHARS_MAX and _PLAIN.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name of a submission, if batch systems, files and command lines can all bear it. Raises SiteError."""
    if not is_name(name):
        raise SiteError(
            f"an allocation cannot be named `{name[:NAME_CHARS_MAX]}`",
            hint=f"letters, digits and `._-`, at most {NAME_CHARS_MAX} of them",
            transient=False,
        )
    return name


def compose_comment(key: str, text: str) -> str:
    """`tidemill KEY TEXT`, in one line of printable ASCII."""
    words = text.split()
    if words[:2] == [MARK, key]:
        words = words[2:]
    line = " ".join([MARK, key, *words])
    return "".join(char if " " <= char <= "~" else "?" for char in line)[:COMMENT_CHARS_MAX]


def carries_key(comment: str, key: str) -> bool:
    """Whether the comment is one that `compose_comment` made with this key."""
    return comment.split(maxsplit=2)[:2] == [MARK, key]
