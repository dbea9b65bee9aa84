"""SITE/unended.json: batch jobs that may still run after the agent has ordered their end and has ended itself.

A job that the batch system does not show may still run. So the file lists the jobs that the plain query shows, and
those with a pilot that never signed off. The next agent takes care of these jobs again, and deletes the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill.batch.contract import PLAIN_MAX, PlainReply, split_element
from tidemill.batch.kinds import kind_of
from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill.files import read_bounded, write_whole
from tidemill.log import Log
from tidemill.model.state import ALLOCATION_FINAL
from tidemill.site.nodes import planning
from tidemill.site.state.site_state import Allocation

NAME = "unended.json"
BYTES_MAX = 16 << 20
_log = Log("agent")


class UnendedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the batch system. `number`: what its cancel command takes; empty = not known."""

    name: str
    number: str
    why: str


def unended(allocations: Iterable[Allocation], plain: PlainReply | None) -> list[UnendedJob]:
    """Allocations that may still run. `plain`: what the plain query shows; None = it was not asked. Leaves out
    allocations whose pilots have signed off: they end by themselves. Pure."""
    found: list[UnendedJob] = []
    living = [each for each in allocations if each.state not in ALLOCATION_FINAL]
    asked = {*sorted({split_element(each.name)[0] for each in living})[:PLAIN_MAX]}
    for each in living:
        if planning.is_at_work(each):
            why = "its pilot has not signed off"
        elif each.pilots:
            continue
        elif plain is None or split_element(each.name)[0] not in asked:
            why = "its end was not confirmed"
        elif each.name in plain.shown:
            why = "it has not started a pilot"
        else:
            continue
        number = each.batch_id
        if plain is not None and each.name in plain.shown:
            number, why = plain.shown[each.name], f"`{plain.command}` shows it; {why}"
        found.append(UnendedJob(name=each.name, number=number, why=why))
    return found


def note_unended(site_dir: Path, jobs: list[UnendedJob]) -> None:
    """Write the file, or remove it if there are no such jobs. Logs a failure, so that the agent ends all the same."""
    try:
        if jobs:
            write_whole(site_dir / NAME, msgspec.json.encode(jobs), mode=0o644)
        else:
            (site_dir / NAME).unlink(missing_ok=True)
    except (SiteError, OSError) as error:
        _log.error("unended.unwritten", reason=str(error))


def read_unended(site_dir: Path) -> list[UnendedJob]:
    """The jobs that the file lists; none if it does not exist."""
    try:
        content = read_bounded(site_dir / NAME, BYTES_MAX)
        return [] if content is None else msgspec.json.decode(content, type=list[UnendedJob])
    except (SiteError, *UNDECODABLE) as error:
        return [UnendedJob(name="unknown", number="", why=f"`{site_dir / NAME}` cannot be read: {error}")]


def cancel_command(batch: str, jobs: Iterable[UnendedJob]) -> str:
    """The command that ends these jobs; empty if no number is known, or not the batch system."""
    numbers = [each.number for each in jobs if each.number]
    try:
        words = "kill" if batch == "local" else kind_of(batch).cancel_words
    except ConfigError:  # its extension is gone: the jobs are listed all the same
        return ""
    return " ".join([words, *numbers]) if numbers else ""
