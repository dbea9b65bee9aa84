"""What a retry may change in a job, for the events that run from then on. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tidemill.clock import parse_duration_s
from tidemill.model.job import JobSpec, Output
from tidemill.model.quantities import count_text, counted_text, duration_text
from tidemill.model.retry.growth import GrowthSpan, parse_memory_mb, span_of


class JobChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a retry changes in its jobs, for all events that run from then on. Keys that are not given stay unchanged.

    `memory_mb` or `timeout_s` without its maximum is a fixed value. Outputs with a URL below the former `output_dir`
    move to the new one, too.
    """

    cores: int | UnsetType = UNSET  #: of a slot
    memory_mb: int | UnsetType = UNSET  #: of a slot
    memory_mb_max: int | UnsetType = UNSET  #: the maximum to which memory may grow
    scratch_mb: int | UnsetType = UNSET  #: of the work directory, inputs and `/tmp` of a slot
    timeout_s: int | UnsetType = UNSET  #: a payload is killed after this
    timeout_s_max: int | UnsetType = UNSET  #: the maximum to which the time may grow
    env: dict[str, str] | UnsetType = UNSET  #: variables that are added or replaced
    output_dir: str | UnsetType = UNSET  #: for outputs that are not delivered yet
    retries: int | UnsetType = UNSET
    failed_max: int | UnsetType = UNSET
    at_once: int | UnsetType = UNSET

    @property
    def names(self) -> list[str]:
        """The given keys, and the names of variables: for logs, which never hold values of variables."""
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not UNSET]
        return [name for name in given if name != "env"] + [f"env.{name}" for name in sorted(self.env or {})]

    @property
    def resizes(self) -> bool:
        """Whether they change what a slot needs to have."""
        return any(each is not UNSET for each in (self.cores, self.memory_mb, self.memory_mb_max))

    @property
    def text(self) -> str:
        """The changes, as shown to users."""
        told = []
        if self.memory_mb is not UNSET:
            told.append(
                f"{_span_text(self.memory_mb, self.memory_mb_max, lambda mb: f'{count_text(mb)} MB')} of memory"
            )
        if self.scratch_mb is not UNSET:
            told.append(f"{count_text(self.scratch_mb)} MB for files of a slot")
        if self.timeout_s is not UNSET:
            told.append(f"a time limit of {_span_text(self.timeout_s, self.timeout_s_max, duration_text)}")
        if self.cores is not UNSET:
            told.append(counted_text(self.cores, "core"))
        if self.output_dir is not UNSET:
            told.append(f"outputs to `{self.output_dir}`")
        if self.env is not UNSET:
            told.append(
                ", ".join(f"`{name}`" for name in self.env)
                + (" is set" if len(self.env) == 1 else " are set")
            )
        told += [
            f"`--{name.replace('_', '-')} {getattr(self, name)}`"
            for name in ("retries", "failed_max", "at_once")
            if getattr(self, name) is not UNSET
        ]
        return ", ".join(told)


def limits(*, memory: GrowthSpan | str | None = None, wall: GrowthSpan | str | None = None) -> dict[str, Any]:
    """Keys of `Resources` and `JobChanges` for texts such as `memory="2G..8G"` and `wall="2h"`; none for None. Raises
    ValueError."""
    words: dict[str, Any] = {}
    for key, given, parse in (("memory_mb", memory, parse_memory_mb), ("timeout_s", wall, parse_duration_s)):
        span = span_of(given, parse) if isinstance(given, str) else given
        if span is not None:
            words[key] = span.first
        if span is not None and span.most is not None:
            words[f"{key}_max"] = span.most
    return words


def changed(spec: JobSpec, changes: JobChanges) -> JobSpec:
    """The changed job, which `legal` has still to check."""
    need = {key: value for key in ("cores", "scratch_mb") if (value := getattr(changes, key)) is not UNSET}
    for key in ("memory_mb", "timeout_s"):
        value, most = getattr(changes, key), getattr(changes, f"{key}_max")
        if value is not UNSET:
            need |= {key: value, f"{key}_max": most}
        elif most is not UNSET:
            need[f"{key}_max"] = most
    words: dict[str, Any] = {"resources": msgspec.structs.replace(spec.resources, **need)} if need else {}
    for name in ("retries", "failed_max", "at_once"):
        if getattr(changes, name) is not UNSET:
            words[name] = getattr(changes, name)
    if changes.env is not UNSET:
        words["env"] = {**spec.env, **changes.env}
    if changes.output_dir is not UNSET:
        words["output_dir"] = changes.output_dir
        if spec.outputs is not None:
            words["outputs"] = [_moved(each, spec.output_dir, changes.output_dir) for each in spec.outputs]
    return msgspec.structs.replace(spec, **words)


def _moved(output: Output, before: str | None, after: str) -> Output:
    """The output; if its URL is below the former directory, with a URL below the new one."""
    if not before or output.url is None or not output.url.startswith(before.rstrip("/") + "/"):
        return output
    return msgspec.structs.replace(output, url=after.rstrip("/") + output.url[len(before.rstrip("/")) :])


def _span_text(first: int, most: int | UnsetType, told: Any) -> str:
    return str(told(first)) if most is UNSET else f"{told(first)} to {told(most)}"
