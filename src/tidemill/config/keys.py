"""The types that keys of a configuration file may have."""

from __future__ import annotations

from typing import Annotated

import msgspec

Duration = Annotated[float, msgspec.Meta(extra={"kind": "duration", "unit": "s"})]
"""Seconds, as a number or a text: `90`, `90m`, `HH:MM:SS`, `D-HH:MM:SS`."""

Size = Annotated[int, msgspec.Meta(extra={"kind": "size", "unit": "bytes"})]
"""Bytes, as a number or a text: `2GB`, `500MB`, `64KiB`."""


def doc(text: str) -> msgspec.Meta:
    """What a key is for, as annotation of a field."""
    return msgspec.Meta(description=text)
