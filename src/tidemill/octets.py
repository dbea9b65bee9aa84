"""Bytes that are not UTF-8 in texts of a job: words of its command, values of its variables. Pure.

File names, arguments and variables of Linux are bytes; messages between processes are UTF-8. A byte 0x80 to 0xFF that
is not valid UTF-8 travels as one character, U+10FF80 to U+10FFFF (the end of the last private-use plane). The slot
turns it into that byte again (`crates/slot/src/init/job.rs`). If a text has one of these characters itself, its four
bytes travel in the same way, so every byte arrives unchanged. Python's texts have surrogates for such bytes (PEP 383).
"""

from __future__ import annotations

import re

_FIRST = 0x10FF00
_CARRIED = re.compile("[\U0010ff80-\U0010ffff]")
_UNDECODED = re.compile("[\udc80-\udcff]")
_EITHER = re.compile("[\udc80-\udcff\U0010ff80-\U0010ffff]")


def carried(text: str) -> str:
    """A Python text in the form that jobs hold."""
    return text if text.isascii() else _EITHER.sub(_carry, text)


def restored(text: str) -> str:
    """A job's text in the form that Python's functions for files and processes take."""
    return text if text.isascii() else _CARRIED.sub(lambda one: chr(0xDC00 + (ord(one[0]) & 0xFF)), text)


def bytes_number(text: str) -> int:
    """The number of bytes of a job's text in the slot. Raises UnicodeEncodeError for a lone surrogate."""
    if text.isascii():
        return len(text)
    return len(text.encode()) - 3 * len(_CARRIED.findall(text))


def is_utf8(text: str) -> bool:
    """Whether a Python text came from valid UTF-8."""
    return text.isascii() or _UNDECODED.search(text) is None


def shown(text: str) -> str:
    """A text of Python or of a job for messages, with bytes that are not UTF-8 written as `\\xe9`."""
    return text if text.isascii() else _EITHER.sub(lambda one: f"\\x{ord(one[0]) & 0xFF:02x}", text)


def _carry(one: re.Match[str]) -> str:
    code = ord(one[0])
    octets = bytes([code & 0xFF]) if code < 0xE000 else one[0].encode()
    return "".join(chr(_FIRST + each) for each in octets)
