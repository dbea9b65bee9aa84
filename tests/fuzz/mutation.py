"""Makes inputs that nobody meant of inputs that somebody might: changed bytes, numbers, words, lines, nesting, JSON.

Pure: the same random numbers make the same input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

BYTES_MAX = 128 * 1024
NUMBERS = (
    b"0", b"-0", b"-1", b"1", b"00", b"007", b"1e5", b"1e400", b"-1e400", b"1e-400", b"0x10", b"nan", b"inf", b"-inf",
    b"infinity", b"255", b"65536", b"2147483648", b"4294967296", b"9007199254740993", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809", b"1" + b"0" * 40, b"9" * 400,
    b"9" * 5000, b"1.5", b".5", b"1.", b"1_000", b"+1", b"\xd9\xa3", b"\xc2\xb2", b"\xb2", b"\xef\xbc\x91", b"",
)  # fmt: skip
"""Limits of machine words and doubles; more digits than int() takes (4300, sys.set_int_max_str_digits); digits of other
scripts, and superscripts, which str.isdigit knows and int() does not."""

WORDS = (
    b"", b"null", b"None", b"(null)", b"N/A", b"Unknown", b"UNLIMITED", b"true", b"True", b"false", b"..", b"../..",
    b"/", b"//", b"%00", b"%2f", b"$(id)", b";", b"`id`", b"-", b"--help", b"\0", b"\r\n", b"\n", b"\t", b"\x1e",
    b"\x1f", b"\xff", b"\xc3", b"\xc3\xa4", "\u202e".encode(), "\U0001f600".encode(), b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"'", b'"', b"\\", b"[", b"]", b"[]", b"{}", b"{", b"}", b"[1-1000000000]",
    b"[1-3][1-3][1-3]", b"a" * 300, b"a" * 5000, b"http://[", b"http://[::1", b"https://a:99999/", b"https://a:x/",
    b"file:///etc/passwd", b"root://h//a/../b", b"@", b":", b"=", b",", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;",
    b"<a/>", b"\\u0000", b"\\ud800", b"9999-12-31T23:59:59", b"0001-01-01T00:00:00", b"1970-01-01T00:00:00+99:99",
    b"Mon Jan  1 00:00:00 1", b"1-1:1:1:1", b"99999999999-00:00:00", b"~nobody-at-all/x",
)  # fmt: skip
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.-]*|[0-9][\w.:-]*")
_DEEP = (
    (b"[", b"]"),
    (b'{"a":', b"}"),
    (b"(", b")"),
    (b"<a>", b"</a>"),
    (b"[[", b"]]"),
    (b"a.", b""),
    (b"{a=", b"}"),
)


def mutate(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A changed input; one to six changes, most often few."""
    if random.random() < 0.3:
        changed = _mutate_json(random, content)
        if changed is not None:
            return changed[:BYTES_MAX]
    for _ in range(1 + min(5, int(random.expovariate(0.8)))):
        content = random.choice(_CHANGES)(random, content, others)[:BYTES_MAX]
    return content


def _span(random: Random, content: bytes) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + 1 + int(random.expovariate(0.1)))


def _flip(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    if not content:
        return b"\0"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]


def _cut(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _span(random, content)
    return content[:start] + content[end:]


def _end(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _double(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _span(random, content)
    times = random.choice((2, 2, 3, 10, 1000))
    return content[:start] + content[start:end] * times + content[end:]


def _insert(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(content) + 1)
    piece = random.choice(
        (random.choice(WORDS), random.choice(NUMBERS), random.randbytes(random.randrange(1, 9)))
    )
    return content[:at] + piece + content[at:]


def _number(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return _replaced(random, content, _NUMBER, NUMBERS)


def _word(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    found = _WORD.findall(content[:BYTES_MAX])
    own = random.choice(found) if found and random.random() < 0.5 else random.choice(WORDS)
    return _replaced(random, content, _WORD, (own,))


def _replaced(random: Random, content: bytes, of: re.Pattern[bytes], by: Sequence[bytes]) -> bytes:
    places = [match.span() for match in of.finditer(content)]
    if not places:
        return content + random.choice(by)
    start, end = random.choice(places)
    return content[:start] + random.choice(by) + content[end:]


def _line(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(3)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(to, lines[at])
    else:
        lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(lines)


def _splice(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else content
    return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]


def _deepen(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _span(random, content)
    opening, closing = random.choice(_DEEP)
    times = random.choice((1, 3, 70, 2_000, 20_000))
    return content[:start] + opening * times + content[start:end] + closing * times + content[end:]


_CHANGES: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip, _cut, _end, _double, _insert, _insert, _number, _number, _number, _word, _word, _line, _splice, _deepen,
)  # fmt: skip

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 1e308, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, "", "a",
    "0", "1e400", "nan", "\0", "\ud800", "a" * 300, "..", "/", "http://[", [], {}, [[]], [None], {"": None},
    ["a"] * 50, float("inf"), float("nan"),
)  # fmt: skip


def _mutate_json(random: Random, content: bytes) -> bytes | None:
    """A document with one to three values changed, dropped or doubled; None where it is no JSON."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    for _ in range(random.randrange(1, 4)):
        document = _changed(random, document)
    text = json.dumps(document, ensure_ascii=random.random() < 0.7)
    return text.encode("utf-8", "surrogatepass")


def _changed(random: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        kind = random.randrange(10)
        if kind == 0:
            return {name: each for name, each in value.items() if name != key}
        if kind == 1:
            return {**value, random.choice(("", "x", key + "_", "\0", "a" * 300)): value[key]}
        return {**value, key: _changed(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.85:
        at = random.randrange(len(value))
        kind = random.randrange(10)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[:at] + [value[at]] * random.choice((2, 3, 200)) + value[at:]
        return [*value[:at], _changed(random, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and random.random() < 0.5:
        text = value.encode("utf-8", "surrogatepass")
        return random.choice((_insert, _number, _word, _cut, _flip))(random, text, ()).decode(
            errors="replace"
        )
    return random.choice(_VALUES)
