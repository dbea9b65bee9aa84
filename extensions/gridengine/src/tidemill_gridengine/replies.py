"""What Grid Engine's commands print, as data. Pure.

Sources: qstat(1), qhost(1), qacct(1), accounting(5) of 8.1.9, and what that version printed here; the XML of Univa
Grid Engine differs in times, which are milliseconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree import ElementTree

import msgspec

from tidemill.batch.contract import FAR_FUTURE_S, Ending, element_name
from tidemill.errors import ProtocolError
from tidemill.model.number import whole

TASKS_MAX = 100_000
MILLISECONDS_FROM = 1e11
"""A number of seconds since 1970 that is larger is one of milliseconds (Univa)."""

_TASKS = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", re.ASCII)
_LIMIT_CODES = {37, 38, 39, 40}
_START_CODES = {*range(1, 20), 21, 26, 27, 28, 29, 30, 31, 32, 33, 35}


class Row(msgspec.Struct, kw_only=True):
    """A job, or tasks of one, as one `job_list` element describes it."""

    id: str
    name: str
    owner: str
    state: str
    slots: int
    tasks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    queue: str = ""
    submitted_s: float | None = None
    started_s: float | None = None
    walltime_s: float | None = None
    priority: float = 0.0
    wanted_queues: tuple[str, ...] = ()
    reservation: str = ""

    @property
    def allocation(self) -> str:
        """The name of the allocation, if the job is Tidemill's and the row one of `merge`. Tasks are counted from 1."""
        return element_name(self.name, self.tasks[0] - 1, 2) if self.tasks else self.name

    @property
    def is_error(self) -> bool:
        """Whether it is in error and cannot start until the error is cleared."""
        return "E" in self.state

    @property
    def is_deleted(self) -> bool:
        """Whether its deletion was ordered."""
        return "d" in self.state

    @property
    def is_held(self) -> bool:
        """Whether it is held by a user, by staff or by another job."""
        return "h" in self.state

    @property
    def runs(self) -> bool:
        """Whether the job has slots: running, starting, or suspended. Unknown letters with a start time count
        as running."""
        if any(letter in self.state for letter in "rtsST"):
            return True
        return self.started_s is not None and "q" not in self.state


class Instance(msgspec.Struct, kw_only=True):
    """A queue on a host."""

    queue: str
    host: str
    state: str
    slots: int
    used: int
    reserved: int
    resources: dict[str, str] = {}
    rows: list[Row] = []

    @property
    def takes_jobs(self) -> bool:
        """Whether it is up: not in alarm, unknown, disabled, in error, suspended, closed by a calendar (qstat(1))."""
        return not set(self.state) & set("auAsdDEcoSC")


class AccountingRecord(msgspec.Struct, kw_only=True, frozen=True):
    """The accounting's word on a job or task."""

    id: str
    name: str
    owner: str
    account: str
    task: int | None
    failed: int
    failed_text: str
    exit_status: int
    host: str
    started_s: float | None
    ended_s: float | None

    @property
    def ending(self) -> Ending:
        """`failed` decides, then the exit status (accounting(5))."""
        if self.failed in _LIMIT_CODES:
            return Ending.WALLTIME
        if self.failed in _START_CODES:
            return Ending.LAUNCH
        if self.failed == 100:
            return Ending.CANCELED  # killed by a signal that we did not send: by qdel, or on the node
        if self.failed:
            return Ending.UNKNOWN
        return Ending.FAILED if self.exit_status else Ending.DONE


def read_rows(text: bytes) -> list[Row]:
    """The jobs of `qstat -r -xml`; if the user's defaults add `-f`, they are below their queues. Raises
    ProtocolError."""
    root = _parse(text, "qstat")
    inside = {
        part: _text(each, "name") for each in root.iter("Queue-List") for part in each.findall("job_list")
    }
    jobs = root.iter("job_list")
    return [_row(each, queue=_text(each, "queue_name") or inside.get(each, "")) for each in jobs]


def read_instances(text: bytes) -> tuple[list[Instance], list[Row]]:
    """Queues on hosts with their jobs, and the jobs that wait, of `qstat -f -r -xml`. Raises ProtocolError."""
    root = _parse(text, "qstat -f")
    instances: list[Instance] = []
    for each in root.iter("Queue-List"):
        queue, _, host = _text(each, "name").partition("@")
        resources = {part.get("name", ""): part.text or "" for part in each.findall("resource")}
        rows = [_row(part, queue=f"{queue}@{host}") for part in each.findall("job_list")]
        instance = Instance(
            queue=queue,
            host=host,
            state=_text(each, "state"),
            slots=_number(each, "slots_total"),
            used=_number(each, "slots_used"),
            reserved=_number(each, "slots_resv"),
            resources=resources,
            rows=rows,
        )
        instances.append(instance)
    waiting = [_row(each, queue="") for part in root.findall("job_info") for each in part.findall("job_list")]
    return instances, waiting


def read_contexts(text: bytes) -> dict[str, dict[str, str]]:
    """Variables of the context of each job of `qstat -j IDS -xml`, by number. Unknown numbers are left out: where all
    are unknown, some versions do not print valid XML."""
    if b"<unknown_jobs" in text:
        return {}
    found: dict[str, dict[str, str]] = {}
    for each in _parse(text, "qstat -j").iter("element"):
        number = _text(each, "JB_job_number")
        if number:
            found[number] = {
                _text(part, "VA_variable"): _text(part, "VA_value") for part in each.iter("context_list")
            }
    return found


def read_started_tasks(text: bytes) -> dict[str, frozenset[int]]:
    """Numbers of the tasks of each job of `qstat -j IDS -xml` that have started and not ended, by the job's number; a
    single job is its own first task."""
    if b"<unknown_jobs" in text:
        return {}
    found: dict[str, frozenset[int]] = {}
    for each in _parse(text, "qstat -j").iter("element"):
        number = _text(each, "JB_job_number")
        if number:
            tasks = (whole((part.text or "").strip()) for part in each.iter("JAT_task_number"))
            found[number] = frozenset(task for task in tasks if task is not None)
    return found


def read_reservations(text: bytes) -> list[dict[str, str]]:
    """Advance reservations of `qrstat -xml`: id, name, owner, state, start_time, end_time, and hosts as `slots`."""
    found: list[dict[str, str]] = []
    for each in _parse(text, "qrstat").iter("ar_summary"):
        values = {part.tag: (part.text or "").strip() for part in each}
        granted = [part.get("queue_instance", "") for part in each.iter("granted_slots")]
        values["hosts"] = " ".join(dict.fromkeys(name.partition("@")[2] for name in granted if name))
        found.append(values)
    return found


def read_accounts(text: bytes) -> list[AccountingRecord]:
    """The records of `qacct -j`."""
    found: list[AccountingRecord] = []
    for record in re.split(r"^={10,}\s*$", text.decode(errors="replace"), flags=re.MULTILINE):
        values: dict[str, str] = {}
        for line in record.splitlines():
            key, _, value = line.partition(" ")
            values.setdefault(key, value.strip())
        if "jobnumber" not in values:
            continue
        failed, _, why = values.get("failed", "0").partition(":")
        task = values.get("taskid", "undefined")
        found.append(
            AccountingRecord(
                id=values["jobnumber"],
                name=values.get("jobname", ""),
                owner=values.get("owner", ""),
                account=values.get("account", ""),
                task=whole(task),
                failed=_leading(failed),
                failed_text=why.strip(),
                exit_status=_leading(values.get("exit_status", "0")),
                host=values.get("hostname", ""),
                started_s=_words_time(values.get("start_time", "")),
                ended_s=_words_time(values.get("end_time", "")),
            )
        )
    return found


def read_tasks(text: str) -> tuple[int, ...]:
    """`3-9:2`, `1,4`: numbers of tasks. Raises ProtocolError."""
    found: list[int] = []
    for piece in text.split(","):
        match = _TASKS.fullmatch(piece.strip())
        if match is None:
            raise ProtocolError(f"qstat printed tasks `{text[:100]}`, expected such as `1-5:2`")
        first = int(match[1])
        last, step = int(match[2] or first), max(1, int(match[3] or 1))
        if (last - first) // step + len(found) > TASKS_MAX:
            raise ProtocolError(f"qstat printed more than {TASKS_MAX} tasks: `{text[:100]}`")
        found += range(first, last + 1, step)
    return tuple(found)


def read_time(text: str) -> float | None:
    """Seconds since 1970 of `2026-11-21T03:27:33` in UTC, of seconds or of milliseconds."""
    if not text:
        return None
    number = whole(text)
    if number is not None:
        seconds = number / 1000 if number > MILLISECONDS_FROM else number
        return seconds or None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def read_duration(text: str) -> float | None:
    """Seconds of `600`, `600.0`, `1:00:00`; None for `infinity` and for text that is not a duration."""
    pieces = text.split(":")
    try:
        seconds = 0.0
        for piece in pieces:
            seconds = seconds * 60 + float(piece or 0)
    except ValueError:
        return None
    return seconds if 0 <= seconds < FAR_FUTURE_S else None


def read_size_mb(text: str) -> int:
    """Megabytes of `23.539G`, which are powers of 1024 (sge_types(1))."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]*)?)([kKmMgGtT]?)", text.strip())
    if match is None:
        return 0
    unit = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}[match[2].lower()]
    return int(float(match[1]) * unit / 1e6)


def _row(each: ElementTree.Element, *, queue: str) -> Row:
    request = {part.get("name", ""): part.text or "" for part in each.findall("hard_request")}
    tasks = _text(each, "tasks")
    host = queue.partition("@")[2]
    started = _text(each, "JAT_start_time")
    state = _text(each, "state")
    return Row(
        id=_text(each, "JB_job_number"),
        name=_text(each, "full_job_name") or _text(each, "JB_name"),
        owner=_text(each, "JB_owner"),
        state=state,
        slots=_number(each, "granted_pe") or _number(each, "slots"),
        tasks=read_tasks(tasks) if tasks else (),
        hosts=(host,) if host else (),
        queue=queue.partition("@")[0],
        submitted_s=read_time(_text(each, "JB_submission_time")),
        started_s=read_time(started),
        walltime_s=read_duration(request["h_rt"]) if "h_rt" in request else None,
        priority=read_priority(_text(each, "JAT_prio")),
        wanted_queues=tuple(part.text or "" for part in each.findall("hard_req_queue")),
        reservation=_text(each, "ar_id"),
    )


def read_priority(text: str) -> float:
    """A number such as `0.55500`; 0 for text that is not a number."""
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]*)?", text) else 0.0


def _parse(text: bytes, command: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # unknown encodings, too
        shown = text[:200].decode(errors="replace")
        raise ProtocolError(f"`{command} -xml` printed invalid XML: {error}: `{shown}`") from error


def _text(each: ElementTree.Element, tag: str) -> str:
    return (each.findtext(tag) or "").strip()


def _number(each: ElementTree.Element, tag: str) -> int:
    return whole(_text(each, tag)) or 0


def _leading(text: str) -> int:
    match = re.match(r"\s*(\d{1,18})(?!\d)", text, re.ASCII)
    return int(match[1]) if match else 0


def _words_time(text: str) -> float | None:
    """`Sat Nov 21 03:27:33 2026` in UTC; Univa prints `11/21/2026 03:27:33.123`; `-/-` = never."""
    for form in ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S.%f", "%m/%d/%Y %H:%M:%S"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def merge(rows: list[Row]) -> Iterator[Row]:
    """One row a job or task: parallel jobs repeat for each host, tasks that wait are folded."""
    seen: dict[tuple[str, int], Row] = {}
    for row in rows:
        for task in row.tasks or (0,):
            key = (row.id, task)
            if key not in seen:
                seen[key] = msgspec.structs.replace(row, tasks=(task,) if task else ())
            elif row.hosts and row.hosts[0] not in seen[key].hosts:
                seen[key].hosts += row.hosts
    yield from seen.values()
