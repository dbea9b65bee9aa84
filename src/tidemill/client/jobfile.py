"""Job files in TOML: a campaign and its jobs, checked before anything is sent.

    campaign = "zmumu"               # optional: without it every submission makes a new one
    shares = 2.0                     # optional: weight of the campaign in the fair share

    [[notify]]                       # optional: who gets notices of the campaign
    to = "mail:me@example.org"
    when = ["campaign", "failures"]

    [defaults]                       # optional: keys of every job that does not give its own
    resources = { cores = 1, memory_mb = 1500 }

    [[job]]
    name = "generate"
    app = "pythia"
    events = 10_000
    params = { process = "zmumu" }

    [[job]]
    name = "analyse"
    app = "analysis"
    inputs = [{ name = "events", url = "job:generate/hepmc" }]   # by the name of a job of this file
    after = ["generate"]

    [[job]]
    app = "sherpa"
    resources = { nodes = 4, ranks = 256 }   # each payload is one MPI program on four whole nodes

    [[job]]
    app = "analysis"
    resources = { memory = "2G..8G", wall = "10m..2h" }   # events that lack memory or time run again with more

A job may name another job of the file in `after` and in `job:NAME/OUTPUT`: it gets its number when it is submitted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from tidemill import config
from tidemill.errors import UNDECODABLE, ConfigError, did_you_mean
from tidemill.model.job import EVENTS_MAX, Input, JobSpec
from tidemill.model.notification import Subscription
from tidemill.model.retry.changes import limits
from tidemill.model.width import check_asked

if TYPE_CHECKING:
    from tidemill.client.client import Submission, Wishes

FILE_BYTES_MAX = 16 * 1024 * 1024
REPEAT_MAX = 1_000_000
LIMITS = {"memory": "memory_mb", "wall": "timeout_s"}
"""Keys of `resources` in job files only: texts with units, which may hold a first value and a maximum."""

_TOP = ("campaign", "shares", "notify", "defaults", "job")
_ONLY_FILE = ("repeat",)  #: keys of [[job]] that exist in job files only


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job file that was checked. `repeat[k]` jobs are made of `jobs[k]`."""

    path: Path
    campaign: str | None
    shares: float | None
    jobs: list[JobSpec]
    repeat: list[int]
    notify: list[Subscription] = []


class _Positive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repeat: Annotated[int, msgspec.Meta(ge=1, le=REPEAT_MAX)] = 1
    shares: Annotated[float, msgspec.Meta(gt=0)] | None = None
    campaign: str | None = None
    notify: list[Subscription] = []


def load_job_file(path: Path) -> JobFile:
    """The job file at `path`. Raises ConfigError that names file and key, and the nearest key for an unknown one."""
    try:
        content = path.read_bytes()
        if len(content) > FILE_BYTES_MAX:
            raise ConfigError(
                f"{path}: {len(content)} bytes, the limit is {FILE_BYTES_MAX}", hint="use `repeat`"
            )
        data = config.parse_toml(content.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UNDECODABLE as error:
        raise config.not_toml(error, path) from error
    for key in data:
        if key not in _TOP:
            raise ConfigError(f"{path}: unknown key `{key}`", hint=did_you_mean(key, _TOP))
    top: dict[str, Any] = {key: data[key] for key in ("campaign", "shares", "notify") if key in data}
    head = config.convert(top, _Positive, source=path)
    tables = _tables(data, path)
    defaults = data.get("defaults", {})
    if not isinstance(defaults, dict):
        raise ConfigError(f"{path}: `defaults` is not a table", hint="write `[defaults]`")
    _check_keys(defaults, "defaults", path)
    defaults = _with_limits(defaults, "defaults", path)
    read = [_job(table, defaults, number=number, path=path) for number, table in enumerate(tables)]
    jobs = [job for job, _ in read]
    _check_names(jobs, path)
    return JobFile(
        path=path, campaign=head.campaign, shares=head.shares, jobs=jobs, repeat=[count for _, count in read],
        notify=head.notify,
    )  # fmt: skip


class Submitter(Protocol):
    """A `Client`, or what submits in another way."""

    def submit(
        self,
        specs: Sequence[JobSpec],
        /,
        *,
        campaign: str,
        repeat: Sequence[int],
        key: str,
        wishes: Wishes,
    ) -> Submission:
        """Submit jobs, once under the key."""


def submit_job_file(
    client: Submitter, file: JobFile, *, campaign: str | None = None, key: str | None = None
) -> Submission:
    """Submit a job file, under a key if it may be submitted again.

    Jobs that name no other job of the file go first, in one request; then those that do.

    Each such step is taken whole or not at all by the server.
    """
    from tidemill.client.client import Submission, Wishes, new_campaign

    name = campaign or file.campaign or new_campaign(file.path.stem)
    base = key or uuid.uuid4().hex
    numbers: dict[str, list[int]] = {}
    ids: dict[int, list[int]] = {}
    repeated, remark = False, ""
    for step, wave in enumerate(waves(file)):
        specs = [_resolved(file.jobs[k], numbers, file.path) for k in wave]
        counts = [file.repeat[k] for k in wave]
        sent = client.submit(
            specs, campaign=name, repeat=counts, key=f"{base}.{step}", wishes=Wishes(file.shares, file.notify)
        )
        repeated, remark = repeated or sent.repeated, remark or sent.remark
        at = 0
        for k, count in zip(wave, counts, strict=True):
            ids[k] = sent.jobs[at : at + count]
            at += count
            own = file.jobs[k].name
            if own is not None:
                numbers[own] = ids[k]
    ordered = [job for k in sorted(ids) for job in ids[k]]
    return Submission(campaign=name, jobs=ordered, repeated=repeated, remark=remark)


def waves(file: JobFile) -> list[list[int]]:
    """Indexes of jobs in the order of submission: each step needs only earlier steps. ConfigError on a circle."""
    known = {job.name for job in file.jobs if job.name is not None}
    needs = [_named(job) & known for job in file.jobs]
    left = set(range(len(file.jobs)))
    done: set[str] = set()
    result: list[list[int]] = []
    while left:
        ready = sorted(k for k in left if needs[k] <= done)
        if not ready:
            names = ", ".join(f"`{file.jobs[k].name}`" for k in sorted(left))
            raise ConfigError(f"{file.path}: jobs wait for each other in a circle: {names}")
        result.append(ready)
        left.difference_update(ready)
        done.update(name for k in ready if (name := file.jobs[k].name) is not None)
    return result


def _tables(data: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    tables = data.get("job")
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise ConfigError(f"{path}: there is no job", hint="write one `[[job]]` table for each job")
    return tables


def _check_keys(table: dict[str, Any], where: str, path: Path) -> None:
    known = (*JobSpec.__struct_fields__, *_ONLY_FILE)
    for key in table:
        if key not in known:
            is_of_top = key in _TOP
            hint = "write it above the first `[table]`" if is_of_top else did_you_mean(key, known)
            raise ConfigError(f"{path}: unknown key `{where}.{key}`", hint=hint)


def _job(table: dict[str, Any], defaults: dict[str, Any], *, number: int, path: Path) -> tuple[JobSpec, int]:
    _check_keys(table, f"job[{number}]", path)
    table = _with_limits(table, f"job[{number}]", path)
    merged = {**defaults, **table}
    for key in ("params", "env", "resources"):  # tables of small things add up, a job's own keys win
        if isinstance(defaults.get(key), dict) and isinstance(table.get(key), dict):
            merged[key] = {**defaults[key], **table[key]}
            if key == "resources":
                _drop_most(merged[key], table[key])
    repeat = 1
    if "repeat" in merged:  # few have it, and files of 10,000 jobs are common
        repeat = config.convert({"repeat": merged.pop("repeat")}, _Positive, source=path).repeat
    try:
        spec = config.convert(merged, JobSpec, source=path)
    except ConfigError as error:
        lines = error.message.removeprefix(f"{path}: ").split("\n")  # one for each wrong key
        told = "\n".join(line.replace("`", f"`job[{number}].", 1) for line in lines)
        raise ConfigError(f"{path}: {told}", hint=error.hint) from error
    where = f"{path}: job[{number}]" + (f" (`{spec.name}`)" if spec.name else "")
    if (spec.app is None) == (spec.command is None):
        raise ConfigError(f"{where} needs `app` or `command`, and not both")
    if not 1 <= spec.events <= EVENTS_MAX:
        raise ConfigError(f"{where}: `events` is {spec.events}, it must be 1 to {EVENTS_MAX:,}")
    wrong = check_asked(spec.resources)
    if wrong is not None:
        raise ConfigError(f"{where}: {wrong}")
    return spec, repeat


def _drop_most(need: dict[str, Any], own: dict[str, Any]) -> None:
    """Drop the default maximum of a limit if the job gives its own value of that limit."""
    for key in LIMITS.values():
        if key in own and f"{key}_max" not in own:
            need.pop(f"{key}_max", None)


def _with_limits(table: dict[str, Any], where: str, path: Path) -> dict[str, Any]:
    """The table with `memory` and `wall` of its resources replaced by the keys of `Resources`."""
    need = table.get("resources")
    if not isinstance(need, dict) or not need.keys() & LIMITS.keys():
        return table
    given = {key: need[key] for key in LIMITS if key in need}
    for key, text in given.items():
        if LIMITS[key] in need:
            raise ConfigError(
                f"{path}: `{where}.resources` has both `{key}` and `{LIMITS[key]}`", hint="give one of them"
            )
        if not isinstance(text, str):
            raise ConfigError(
                f"{path}: `{where}.resources.{key}` is not a text",
                hint='write `memory = "2G..8G"`, `wall = "10m..2h"`',
            )
    rest = {key: each for key, each in need.items() if key not in LIMITS}
    try:
        return {**table, "resources": {**rest, **limits(**given)}}
    except ValueError as error:
        raise ConfigError(f"{path}: `{where}.resources`: {error}") from error


def _check_names(jobs: list[JobSpec], path: Path) -> None:
    seen: set[str] = set()
    for number, job in enumerate(jobs):
        if job.name is not None and job.name in seen:
            raise ConfigError(f"{path}: `job[{number}].name`: `{job.name}` is the name of an earlier job")
        seen.add(job.name or "")


def _named(job: JobSpec) -> set[str]:
    named = {each for each in job.after if isinstance(each, str)}
    named.update(_source(each)[0] for each in job.inputs if each.url.startswith("job:"))
    return named


def _source(each: Input) -> tuple[str, str]:
    job, _, output = each.url.removeprefix("job:").partition("/")
    return job, output


def _resolved(job: JobSpec, numbers: dict[str, list[int]], path: Path) -> JobSpec:
    """The job with numbers in place of names of jobs of the file; other names in `after` are campaigns."""
    after: list[int | str] = []
    for before in job.after:
        after.extend(numbers[before] if isinstance(before, str) and before in numbers else [before])
    inputs = [_resolved_input(each, numbers, path) for each in job.inputs]
    return msgspec.structs.replace(job, after=after, inputs=inputs)


def _resolved_input(each: Input, numbers: dict[str, list[int]], path: Path) -> Input:
    if not each.url.startswith("job:"):
        return msgspec.structs.replace(each, url=absolute_url(each.url, path.parent))
    name, output = _source(each)
    if name.isdecimal():
        return each
    ids = numbers.get(name)
    if ids is None or len(ids) != 1:
        why = "is not a job of this file" if ids is None else "stands for several jobs (`repeat`)"
        raise ConfigError(
            f"{path}: input `{each.name}` reads `{each.url}`, but `{name}` {why}",
            hint=did_you_mean(name, numbers),
        )
    return msgspec.structs.replace(each, url=f"job:{ids[0]}/{output}")


def absolute_url(url: str, directory: Path) -> str:
    """A path relative to `directory` as absolute path; any other URL as it is."""
    return url if ":" in url.partition("/")[0] else str((directory / Path(url).expanduser()).absolute())
