"""`[[wards]]` of server.toml: where jobs are treated that wait or fail at home."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Duration, doc, name_of

WARDS_MAX = 20


class WardCure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cure` of a ward: gentler settings for the jobs that are treated there."""

    memory_factor: Annotated[
        float, msgspec.Meta(ge=1, le=64), doc("Factor on the memory that the job asks for")
    ] = 1.0
    read: Annotated[
        Literal["", "file", "cache"],
        doc(
            "How inputs are read: `file` = staged whole, `cache` = through the treating site's cache; empty = as the "
            "job asks"
        ),
    ] = ""
    whole_node: Annotated[bool, doc("A node runs one payload of the job at a time")] = False

    @property
    def text(self) -> str:
        """What the cure changes, for people; empty = nothing."""
        parts = [f"memory x {self.memory_factor:g}"] if self.memory_factor > 1 else []
        parts += {"file": ["inputs staged whole"], "cache": ["read through the cache"]}.get(self.read, [])
        parts += ["one payload per node"] if self.whole_node else []
        return ", ".join(parts)


class Ward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[wards]]`: which jobs that have a home become eligible at other sites, and with which settings. The first ward
    that admits a job takes it."""

    name: Annotated[
        str,
        name_of(100, "._+-"),
        doc("Name: letters, digits and `._+-`"),
    ]
    waited_s: Annotated[
        Annotated[Duration, msgspec.Meta(ge=0)] | None,
        doc("Admit jobs that have waited this long for their home site; none = do not admit by waiting"),
    ] = None
    failures: Annotated[
        list[str],
        doc(
            "Admit jobs whose events failed for good in one of these classes, such as `memory`: the events run again "
            "here instead"
        ),
    ] = []
    home_down: Annotated[
        bool, doc("Admit jobs whose home site is down or silent, and send them home afterwards")
    ] = False
    sites: Annotated[list[str], doc("Sites that treat the jobs; empty = every site but their home")] = []
    cure: Annotated[WardCure, doc("Gentler settings")] = WardCure()
