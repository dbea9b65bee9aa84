"""When the outputs of a job come: files of each event while it runs, what is made of several events at its end.

Pure, the same for sites, server and clients.
"""

from __future__ import annotations

from tidemill.model.job import Deliver, JobSpec, Output, OutputKind, Pack

PART_FILES_MAX = 100_000
"""Events of a job whose outputs may be files in one directory; of more, an archive is made."""

FILES_PER_PAUSE = 10_000
"""Files after which the pause between two arrivals has grown by its own length: the list of all files is written anew
each time, so this bounds the bytes of it in a second."""


def is_spread(spec: JobSpec, output: Output) -> bool:
    """Whether each event's part of an output becomes a file of its own. Remote places get one archive, and so do too
    many parts."""
    if output.kind is not OutputKind.EACH or output.pack is not Pack.FILES:
        return False
    return spec.events <= PART_FILES_MAX and not is_far(output.url or spec.output_dir or "")


def arrives(spec: JobSpec, output: Output) -> bool:
    """Whether files of finished events come while their job goes on. A job of one event has nothing to wait for."""
    return spec.events > 1 and spec.deliver is not Deliver.COMPLETE and is_spread(spec, output)


def comes_when(spec: JobSpec, output: Output) -> str:
    """When an output comes, in words that follow its name."""
    if arrives(spec, output):
        return "files of finished events arrive while the job runs, unless its site waits for the end"
    if spec.deliver is Deliver.COMPLETE:
        return "comes when all events are done"
    if is_far(output.url or spec.output_dir or ""):
        return "is sent to its place when the job ends"
    if output.kind is OutputKind.EACH:
        return (
            "is packed into one archive when the job ends" if spec.events > 1 else "comes when the job ends"
        )
    if output.kind is OutputKind.CONCAT:
        return "is joined when the job ends"
    return f"is merged by `{output.merge}` when the job ends"


def pause_s(every_s: float, files: int) -> float:
    """Time between two arrivals of a job. `files`: those that are there already."""
    return every_s * (1 + files // FILES_PER_PAUSE)


def is_far(place: str) -> bool:
    """Whether a place is a URL of another machine: then one archive goes there."""
    scheme, colon, _ = place.partition("://")
    return bool(colon) and scheme.lower() != "file"
