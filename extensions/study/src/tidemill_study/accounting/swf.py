"""Past jobs of a log in the Standard Workload Format, read by the simulator's own reader, a bad line at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks
from tidemill_study.simulation.swf import FIELDS, note_header, parsed


def read(
    path: Path, lines: Iterable[tuple[int, str]], remarks: Remarks, header: dict[str, int]
) -> Iterator[PastJob]:
    """The jobs; widths are in processors, as the log has them. Fills `header`.

    A job without a wait has no start that is known.
    """
    for number, line in lines:
        text = line.strip()
        if not text:
            continue
        if text.startswith(";"):
            note_header(text, header)
            continue
        remarks.lines += 1
        if not line.endswith("\n") and len(text.split()) < FIELDS:
            remarks.add(Remark.CUT, number)
            continue
        try:
            record, reason = parsed(path, number, text)
        except ConfigError as error:
            why = error.message.partition(f"line {number} ")[2].removeprefix("is ")
            remarks.add(Remark.UNREADABLE, number, why)
            continue
        if record is None:
            remarks.add(Remark.LEFT_OUT, number, reason)
            continue
        remarks.jobs += 1
        start_s = record.submit_s + record.wait_s if record.wait_s >= 0 else None
        yield PastJob(
            id=text.split(None, 1)[0],
            submit_s=record.submit_s,
            start_s=start_s,
            end_s=None if start_s is None else start_s + record.run_s,
            run_s=record.run_s,
            nodes=record.width,
            limit_s=record.limit_s if record.limit_s > 0 else None,
            state="COMPLETED",
        )
