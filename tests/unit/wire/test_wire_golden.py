"""What released versions wrote, read by today's code: nothing of it is refused or lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.golden import messages

from tidemill import __version__

FAMILIES = messages.families()
ANEW = "before the release: `python -m tests.golden.messages`; after it, such a change needs another PROTOCOL"


def lost(before: Any, after: Any, place: str = "") -> list[str]:
    """Where a value that was written is not in what was read."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key, value in before.items()
            for found in (lost(value, after[key], f"{place}.{key}") if key in after else [f"{place}.{key}"])
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        return [each for k, value in enumerate(before) for each in lost(value, after[k], f"{place}[{k}]")]
    return [] if before == after else [place]


@pytest.mark.parametrize("release", messages.releases())
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_release_wrote_is_read_and_nothing_of_it_is_lost(release: str, family: str) -> None:
    found = messages.recorded(release, family)
    assert found
    for name, body in found.items():
        assert name in FAMILIES[family], f"{name} is gone; {ANEW}"
        read = msgspec.json.decode(body, type=FAMILIES[family][name])
        again = msgspec.json.decode(msgspec.json.encode(read))
        assert lost(msgspec.json.decode(body), again) == [], f"{name}; {ANEW}"


def test_there_is_an_example_of_each_kind_of_message_of_this_version() -> None:
    for family, found in FAMILIES.items():
        assert messages.recorded(__version__, family).keys() == found.keys(), ANEW


def test_what_is_lost_is_found() -> None:
    assert lost({"a": [{"b": 1}], "c": 2}, {"a": [{"b": 1, "new": 3}], "c": 2}) == []
    assert lost({"a": [{"b": 1}], "c": 2}, {"a": [{"b": 2}]}) == [".a[0].b", ".c"]
