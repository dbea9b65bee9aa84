"""Records of Tidemill's submissions beside the batch system, and what their scripts write of their end.

DIR/scripts/NAME        the script; there before we submit
DIR/scripts/NAME.node   what runs on each node
DIR/scripts/NAME.id     Submitted: the batch system's number, once we know it
DIR/output/NAME         what an allocation prints
DIR/exit/NAME           `STATUS WHY HOST`, WHY one of ran, term, walltime, deadline
DIR/canceled/NAME       we ordered its end
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from tidemill.batch.contract import Answer, Ending, Status, element_name, split_element
from tidemill.batch.launch import MISPLACED
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import make_directories, sync_directory, write_durable
from tidemill.model.state import AllocationState

TAIL_BYTES_MAX = 2000
TAIL_CHARS_MAX = 500


class SubmissionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that the batch system took."""

    batch_id: str
    count: int
    at_s: float
    walltime_s: float


class Records:
    """The files of one site directory's submissions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, SubmissionRecord] = {}
        try:
            for name in ("scripts", "output", "exit", "canceled"):
                make_directories(directory / name, 0o077)
            directory.chmod(0o700)
        except OSError as error:
            raise SiteError(f"failed to make `{directory}`: {error.strerror}", transient=False) from error

    def prepare(self, name: str, text: str, node_text: str) -> Path:
        """Write the scripts of a submission. Raises SiteError."""
        script = self.directory / "scripts" / name
        write_durable(script.with_name(f"{name}.node"), node_text.encode(), mode=0o700)
        write_durable(script, text.encode(), mode=0o700)
        return script

    def was_tried(self, name: str) -> bool:
        """Whether we have ever begun to submit it."""
        return (self.directory / "scripts" / name).exists()

    def note(self, name: str, submitted: SubmissionRecord) -> None:
        """Write down that a submission has its number. Raises SiteError."""
        write_durable(self.directory / "scripts" / f"{name}.id", msgspec.json.encode(submitted))
        self._known[name] = submitted

    def submitted(self, name: str) -> SubmissionRecord | None:
        """The record of a submission; None where its number is not known."""
        if name in self._known:
            return self._known[name]
        try:
            content = (self.directory / "scripts" / f"{name}.id").read_bytes()
            self._known[name] = msgspec.json.decode(content, type=SubmissionRecord)
        except (OSError, *UNDECODABLE):
            return None
        return self._known[name]

    def has(self, name: str) -> bool:
        """Whether this allocation, perhaps of an array, was ever asked for, or may have been."""
        base, index = split_element(name)
        submitted = self.submitted(base)
        if submitted is None:
            return self.was_tried(base)
        return name in {element_name(base, index or 0, submitted.count)} and (index or 0) < submitted.count

    def note_cancels(self, names: Iterable[str]) -> None:
        """We order their ends; the names survive a crash together. Raises SiteError."""
        folder = self.directory / "canceled"
        try:
            for name in names:
                (folder / name).touch(mode=0o600)
            sync_directory(folder)  # once: the release of these nodes waits for it
        except OSError as error:
            raise SiteError(f"failed to write to `{folder}`: {error.strerror}") from error

    def output(self, name: str) -> Path:
        """The file with what an allocation's script prints."""
        return self.directory / "output" / name

    def has_started(self, name: str) -> bool:
        """Whether its script has ever run: it opens the file for its output first. On a network file system the answer
        may be a minute old (nfs(5))."""
        return self.output(name).exists()

    def ending(self, name: str, batch_id: str) -> Status | None:
        """How an allocation ended, by its own file or by our cancel before it ran; None where neither shows it."""
        try:
            text = (self.directory / "exit" / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        status, why, host = [*text.split(), "", "", ""][:3]
        nodes = (host,) if host else ()
        return _status(status, why, batch_id=batch_id, nodes=nodes, output=self.output(name))

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete what is kept of allocations and submissions. Raises SiteError."""
        remove([self.directory / kind / name for name in names for kind in ("output", "exit", "canceled")])
        for name in submissions:
            script = self.directory / "scripts" / name
            remove([script, *(script.with_name(name + end) for end in (".node", ".id"))])
            self._known.pop(name, None)

    def was_canceled(self, name: str) -> bool:
        """Whether we ordered its end."""
        return (self.directory / "canceled" / name).exists()


LEFT_WAITING = (
    "it left the queue while it waited, and its script never ran: others canceled it, or its start failed"
)
"""The batch system keeps no record of such a job."""


def ended(state: AllocationState, ending: Ending, *, batch_id: str, reason: str, tail: str = "") -> Status:
    """The last word on an allocation."""
    return Status(
        answer=Answer.FOUND,
        state=state,
        ending=ending,
        batch_id=batch_id,
        reason=reason,
        output_tail=tail,
    )


def tail_of(path: Path) -> str:
    """The last lines of an output file, cut; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES_MAX))
            return file.read().decode(errors="replace").strip()[-TAIL_CHARS_MAX:]
    except OSError:
        return ""


def remove(paths: Iterable[Path]) -> None:
    """Delete files that may be gone already. Raises SiteError."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SiteError(f"failed to delete `{path}`: {error.strerror}") from error


def _status(status: str, why: str, *, batch_id: str, nodes: tuple[str, ...], output: Path) -> Status:
    endings = {
        "term": (AllocationState.CANCELED, Ending.CANCELED, "it got TERM"),
        "walltime": (AllocationState.COMPLETED, Ending.WALLTIME, "walltime is over"),
        "deadline": (AllocationState.CANCELED, Ending.DEADLINE, "it could not start in time"),
    }
    if why in endings:
        state, ending, reason = endings[why]
        told = ended(state, ending, batch_id=batch_id, reason=reason)
    elif status == "0":
        told = ended(AllocationState.COMPLETED, Ending.DONE, batch_id=batch_id, reason="")
    elif status == str(MISPLACED):
        reason = f"exit status {status}: ranks were not on their nodes"
        told = ended(
            AllocationState.FAILED, Ending.LAUNCH, batch_id=batch_id, reason=reason, tail=tail_of(output)
        )
    else:
        state, reason = AllocationState.FAILED, f"exit status {status}"
        told = ended(state, Ending.FAILED, batch_id=batch_id, reason=reason, tail=tail_of(output))
    return msgspec.structs.replace(told, nodes=nodes)
