"""`tidemill cache status`: the process of a cache, whether it is well, and what it holds."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.findings import wrapped
from tidemill.cli.terminal import show_json, show_lines
from tidemill.model.quantities import bytes_text, duration_text, percent_text
from tidemill_caches.cli.location import cache_directory, define_directory
from tidemill_caches.cli.ls import show_datasets

if TYPE_CHECKING:
    from tidemill_caches.contents.scan import ContentsSummary
    from tidemill_caches.engine.state import CacheState

DATASETS_SHOWN = 10
EXIT_DOWN = 3


def define(parser: Parser) -> None:
    """Options of `cache status`."""
    define_directory(parser)


def status(args: Namespace) -> int:
    """Print what the supervisor saw; 3 where no cache runs."""
    from tidemill_caches.contents.record import read_contents
    from tidemill_caches.engine import directory as places
    from tidemill_caches.engine.state import is_supervised, read_state

    directory = cache_directory(args)
    places.read_cache(directory)
    state = read_state(directory)
    runs = state is not None and is_supervised(directory, state)
    if args.json:
        contents = read_contents(directory)
        show_json({"cache": directory, "runs": runs, "process": state, "contents": contents})
    else:
        show_lines("\n".join(process_lines(state, runs=runs)))
        show_contents(read_contents(directory))
    return 0 if runs and state is not None and state.phase != "waiting" else EXIT_DOWN


def process_lines(state: CacheState | None, *, runs: bool) -> list[str]:
    """The process, its limits, its origins and what is wrong, a line each."""
    from tidemill_caches.engine.health import used_text

    if state is None:
        return ["state    never started: start it with `tidemill cache run`"]
    if not runs:
        return [
            f"state    does not run; last seen {clock.utc_text(state.at_us)} on {state.host}: {state.phase}"
        ]
    now_us = clock.now_us()
    lines = [f"state    {_phase(state, now_us)}", f"address  {state.url}"]
    if state.restarts or state.last_end:
        lines.append(
            f"restarts {state.restarts}" + (f"; the last end: {state.last_end}" if state.last_end else "")
        )
    lines += [
        f"files    {used_text(state.descriptors, state.descriptors_max)} descriptors",
        f"memory   {_size(state.ram_bytes)}",
        f"disk     {_size(state.disk_free_bytes)} of {_size(state.disk_bytes)} free",
    ]
    if state.credential_ends_us is not None:
        lines.append(f"expires  credential towards origins: {_ends(state.credential_ends_us, now_us)}")
    for origin in state.origins:
        since = duration_text(max(0, (now_us - origin.since_us) / 1e6))
        told = f"answers, since {since}" if origin.answers else f"silent since {since}: {origin.why}"
        lines.append(wrapped("origin   ", f"{origin.url} {told}"))
    for each in state.findings:
        lines.append(wrapped(f"{each.state:<8} ", f"{each.check}: {each.found}"))
        if each.hint:
            lines.append(wrapped("         hint: ", each.hint))
    return lines


def show_contents(contents: ContentsSummary | None) -> None:
    """What the cache holds: sums, and the datasets of which it holds most."""
    if contents is None:
        show_lines(
            "contents not listed yet: a running cache lists them every five minutes; `tidemill cache ls` reads them now"
        )
        return
    total = contents.total
    share = percent_text(total.share) if total.file_bytes else "-"
    show_lines(
        f"contents {bytes_text(total.held_bytes)} of {total.files:,} files, {share} of their size; {total.complete:,} "
        f"complete; as of {clock.utc_text(contents.at_us)}"
    )
    if total.unreadable:
        show_lines(f"         {total.unreadable:,} files without a valid record, which XCache fetches again")
    if contents.datasets:
        show_lines("")
        show_datasets(contents.datasets[:DATASETS_SHOWN])
    more = len(contents.datasets) - DATASETS_SHOWN + contents.left_out
    if more > 0:
        show_lines(f"... and {more:,} datasets more: `tidemill cache ls`")


def _phase(state: CacheState, now_us: int) -> str:
    if state.phase == "waiting":
        return f"down, starts again in {duration_text(max(0, (state.next_start_us - now_us) / 1e6))}"
    since = duration_text(max(0, (now_us - state.started_us) / 1e6))
    return f"{state.phase} since {since}, process {state.pid} on {state.host}"


def _ends(ends_us: int, now_us: int) -> str:
    moment = clock.utc_text(ends_us)
    left_s = (ends_us - now_us) / 1e6
    return f"ended at {moment}" if left_s <= 0 else f"good until {moment}, for {duration_text(left_s)}"


def _size(size: int | None) -> str:
    return "-" if size is None else bytes_text(size)


COMMANDS = {"cache status": Command(define, status, "tidemill cache status /scratch/cache", talks=False)}
