"""`[[io]]` of site.toml: what the centre lets us do to its shared file systems."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import doc, name_of


class Io(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a shared file system, and what the centre lets us do there, all nodes together."""

    name: Annotated[
        str,
        name_of(31, "_-"),
        doc("Name of the area, for `start_ops` and `start_bytes` of applications, metrics and messages"),
    ]
    prefixes: Annotated[
        list[str], msgspec.Meta(min_length=1), doc("Absolute paths; what is below them belongs to the area")
    ]
    ops_per_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        doc("Metadata operations a second that Tidemill may cause; none = no bound"),
    ] = None
    bytes_per_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        doc("Bytes a second that Tidemill may move; none = no bound"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse paths that name no place."""
        for prefix in self.prefixes:
            if not prefix.startswith("/"):
                raise ValueError(f"area `{self.name}` has prefix `{prefix}`: expected an absolute path")
