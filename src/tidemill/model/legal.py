"""What is valid in a job at any site. Pure.

The server asks it of submitters, a site asks it again of the server, which it does not trust: names become file names,
numbers become limits of processes, texts become arguments.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tidemill import octets
from tidemill.model.devices import fault_of
from tidemill.model.far import catalogue_name, url_fault
from tidemill.model.job import (
    CATALOGUE,
    EVENTS_MAX,
    JOB_INPUT,
    NAME_PATTERN,
    Input,
    InputKind,
    JobSpec,
    Resources,
)
from tidemill.model.width import check_asked

AFTER_MAX = 1_000
INPUTS_MAX = 1_000
OUTPUTS_MAX = 1_000
PARAMETERS_MAX = 1_000
PRIORITY_MAX = 1_000_000
RETRIES_MAX = 1_000
URL_CHARACTERS_MAX = 4_096
TEXT_CHARACTERS_MAX = 32_768
"""Limit of one value of a parameter."""

STRESS_LEVELS_MAX = 500  #: of a run of a stress test, over all sites
STRESS_TITLE_CHARACTERS_MAX = 200

LIMITS = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack")
"""Resources of getrlimit(2) whose soft limits a job may set: those that batch systems pass on."""

ARGUMENTS_MAX = 10_000
ARGUMENT_BYTES_MAX = 131_071
"""Limit of execve(2) for one argument, or one `NAME=VALUE` (MAX_ARG_STRLEN, 32 pages, with the closing NUL)."""

ENVIRONMENT_BYTES_MAX = 6 << 20
"""Limit of all variables together: execve(2) limits arguments and variables to three quarters of 8 MiB."""

NAME_CHARACTERS_MAX = 100  #: as NAME_PATTERN has it

_NAME = re.compile(NAME_PATTERN)
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_DIGEST = re.compile(r"(?:sha256:)?[0-9a-fA-F]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Fault(NamedTuple):
    """Why a job is not legal."""

    text: str
    hint: str | None = None


def row_fault(spec: JobSpec) -> Fault | None:
    """What is wrong with that in which jobs of one specification differ; None = nothing."""
    if spec.name is not None and not is_name(spec.name):
        return Fault(f"`{shown(spec.name)}` is not a valid name", "letters, digits and `._+-`, at most 100")
    if abs(spec.priority) > PRIORITY_MAX:
        return Fault(f"priority {shown(spec.priority)} is beyond +-{PRIORITY_MAX}")
    if not 1 <= spec.events <= EVENTS_MAX:
        return Fault(f"`events` is {shown(spec.events)}, legal is 1 to {EVENTS_MAX}")
    return None


def spec_fault(spec: JobSpec) -> Fault | None:
    """What is wrong with a specification, as far as can be known without the application; None = nothing."""
    if (spec.app is None) == (not spec.command):
        return Fault(f"{'neither' if spec.app is None else 'both'} `app` and `command` are given", "give one")
    if len(spec.inputs) > INPUTS_MAX or len(spec.after) > AFTER_MAX:
        return Fault(f"it has more than {INPUTS_MAX} inputs or comes after more than {AFTER_MAX} others")
    if len(spec.outputs or ()) > OUTPUTS_MAX:
        return Fault(f"it has more than {OUTPUTS_MAX} outputs")
    if not 0 <= spec.retries <= RETRIES_MAX or not 0 <= spec.failed_max <= EVENTS_MAX:
        return Fault(f"`retries` must be 0 to {RETRIES_MAX} and `failed_max` 0 to {EVENTS_MAX}")
    if spec.at_once is not msgspec.UNSET and not 1 <= spec.at_once <= EVENTS_MAX:
        return Fault(f"`at_once` is {shown(spec.at_once)}, legal is 1 to {EVENTS_MAX}")
    return (
        _names_fault(spec)
        or _places_fault(spec)
        or _texts_fault(spec)
        or _stress_fault(spec)
        or _container_fault(spec)
        or _shell_fault(spec)
        or _resources_fault(spec.resources)
    )


def _stress_fault(spec: JobSpec) -> Fault | None:
    of = spec.stress
    if of is msgspec.UNSET:
        return None
    if not is_name(of.run):
        return Fault(
            f"`{shown(of.run)}` is not a valid name of a stress test's run", "letters, digits and `._+-`"
        )
    if not 1 <= of.number <= len(of.planned) <= STRESS_LEVELS_MAX:
        levels = f"{len(of.planned)} levels, at most {STRESS_LEVELS_MAX}"
        return Fault(f"level {shown(of.number)} of a stress test of {levels}")
    texts = [text for each in of.planned for text in (each.title, each.site)]
    if any(len(each) > STRESS_TITLE_CHARACTERS_MAX or _CONTROL.search(each) for each in texts):
        return Fault(
            f"a level's name holds control characters or more than {STRESS_TITLE_CHARACTERS_MAX} characters"
        )
    return None


def _container_fault(spec: JobSpec) -> Fault | None:
    if spec.container is msgspec.UNSET:
        return None
    if spec.app is not None:
        return Fault("`container` is given for an application", "its file names the image; give `command`")
    if len(spec.container) > URL_CHARACTERS_MAX or _CONTROL.search(spec.container) or not spec.container:
        return Fault(f"`container` is `{shown(spec.container)}`", "name a path, or NAME@sha256:DIGEST")
    return None


def _shell_fault(spec: JobSpec) -> Fault | None:
    of = spec.shell
    if of is msgspec.UNSET:
        return None
    if spec.app is not None:
        return Fault("`shell` is given for an application", "its site decides; give `command`")
    if of.umask is not None and not 0 <= of.umask <= 0o777:
        return Fault(f"`shell.umask` is {shown(of.umask)}", "0 to 511, in TOML such as `umask = 0o027`")
    for name, value in of.limits.items():
        if name not in LIMITS:
            known = ", ".join(f"`{each}`" for each in LIMITS)
            return Fault(f"`shell.limits` has an unknown name, `{shown(name)}`", f"there are: {known}")
        if not -1 <= value < 2**63:
            return Fault(f"`shell.limits.{name}` is {shown(value)}", "-1 means unlimited")
    return None


def variable_fault(name: str, value: str) -> Fault | None:
    """What is wrong with a variable of a payload; None = nothing."""
    if not _VARIABLE.fullmatch(name):
        return Fault(f"`{shown(name)}` is not a valid name of a variable", "letters, digits and `_`")
    if "\0" in value or len(name) + 1 + octets.bytes_number(value) > ARGUMENT_BYTES_MAX:
        return Fault(
            f"variable `{shown(name)}` holds NUL or more than {ARGUMENT_BYTES_MAX - len(name) - 1:,} bytes",
            "Linux passes no longer one to a program (execve(2)); put the value into a file",
        )
    return None


def is_name(text: str) -> bool:
    """Whether a text may be the name of a thing, and of a file. (`$` of a pattern would let a line break pass.)"""
    return _NAME.fullmatch(text) is not None


def name_of(text: str) -> str:
    """The name that is nearest to a text, such as a program's: others of its characters become `-`. Empty = there is
    none."""
    return _UNFIT.sub("-", text).lstrip("-._+")[:NAME_CHARACTERS_MAX]


def shown(value: object) -> str:
    """A foreign value in a message: short, on one line."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)[:100])


def _names_fault(spec: JobSpec) -> Fault | None:
    inputs, outputs = [each.name for each in spec.inputs], [each.name for each in spec.outputs or []]
    home = None if spec.home is msgspec.UNSET else spec.home
    if home is not None and spec.site is not None:
        return Fault(
            "both `site` and `home` are given", "`site` = only there, `home` = there unless it is in a ward"
        )
    names = [("an app", spec.app), ("a site", spec.site), ("a site", home)]
    names += [("an input", name) for name in inputs] + [("an output", name) for name in outputs]
    names += [("an application that merges", each.merge) for each in spec.outputs or []]
    for what, name in names:
        if name is not None and not is_name(name):
            return Fault(f"`{shown(name)}` is not a valid name of {what}", "letters, digits and `._+-`")
    for what, each in (("inputs", inputs), ("outputs", outputs)):
        if len(set(each)) < len(each):
            return Fault(f"it has two {what} of one name")
    return None


def _places_fault(spec: JobSpec) -> Fault | None:
    places: list[tuple[str, str | None]] = [("output_dir", spec.output_dir)]
    places += [(f"url of input {each.name}", each.url) for each in spec.inputs]
    for each in spec.inputs:
        if each.sha256 is not None and not _DIGEST.fullmatch(each.sha256):
            return Fault(f"`sha256` of input {each.name} is `{shown(each.sha256)}`", "64 hexadecimal digits")
        far = far_fault(each)
        if far is not None:
            return far
        if each.unpack is True and (each.kind is not InputKind.SHARED or each.is_opened):
            return Fault(
                f"`unpack` of input {each.name} is for an archive that all events read",
                "leave out `kind` and `read`",
            )
    for output in spec.outputs or ():
        places += [
            (f"url of output {output.name}", output.url),
            (f"path of output {output.name}", output.path),
        ]
        if output.path == "":
            return Fault(f"path of output {output.name} is empty", "a path relative to the work directory")
    for what, place in places:
        if not is_place(place):
            return Fault(f"`{what}` holds control characters or more than {URL_CHARACTERS_MAX} characters")
    return None


def is_place(place: str | None) -> bool:
    """Whether a text may be a path or URL; so may None."""
    return place is None or (len(place) <= URL_CHARACTERS_MAX and not _CONTROL.search(place))


def far_fault(one: Input) -> Fault | None:
    """What is wrong with an input that a program opens by itself, or that a catalogue names; None = nothing."""
    if one.url.startswith(CATALOGUE):
        try:
            catalogue_name(one.url)
        except ValueError as error:
            return Fault(f"url of input {one.name}: {error}", "write `rucio:SCOPE/NAME`")
        if one.kind is InputKind.EACH:
            return Fault(
                f"input {one.name} is of kind `each` and names a file or dataset of the catalogue",
                "name a text file whose lines are `rucio:SCOPE/NAME`, one for each event (docs/routing.md makes one)",
            )
        return None
    if not one.is_opened or one.kind is InputKind.EACH or one.url.startswith(JOB_INPUT):
        return None  # what lines and other jobs name is known at the site
    why = url_fault(one.url)
    if why is None:
        return None
    return Fault(
        f'input {one.name} has `read = "url"`, and `{_without_secret(one.url)}` cannot be opened: {why}',
        'write a URL such as `root://HOST//PATH`, or leave `read = "url"` out: the file is copied then',
    )


def _without_secret(url: str) -> str:
    """A URL in a message: without user, password and query."""
    scheme, colon, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return shown(scheme + colon + authority.rpartition("@")[2] + slash + path.partition("?")[0])


def _texts_fault(spec: JobSpec) -> Fault | None:
    """Nothing here may hold what the kernel does not take; what an application takes is checked where it is known."""
    if len(spec.params) > PARAMETERS_MAX or len(spec.env) > PARAMETERS_MAX:
        return Fault(f"it has more than {PARAMETERS_MAX} parameters or variables")
    wrong = next(filter(None, (variable_fault(name, text) for name, text in spec.env.items())), None)
    if wrong is not None:
        return wrong
    if sum(map(octets.bytes_number, spec.env.values())) > ENVIRONMENT_BYTES_MAX:
        return Fault(f"its variables have more than {ENVIRONMENT_BYTES_MAX:,} bytes together")
    return _parameters_fault(spec) or _command_fault(spec)


def _parameters_fault(spec: JobSpec) -> Fault | None:
    for name, value in spec.params.items():
        if isinstance(value, str) and (len(value) > TEXT_CHARACTERS_MAX or "\0" in value):
            return Fault(f"`{shown(name)}` holds NUL or more than {TEXT_CHARACTERS_MAX} characters")
        if type(value) is int and not -(2**63) <= value < 2**64:
            return Fault(f"`{shown(name)}` is {shown(value)}, which has more than 64 bits")
    return None


def _command_fault(spec: JobSpec) -> Fault | None:
    command = spec.command or ()
    if len(command) > ARGUMENTS_MAX:
        return Fault(f"`command` has more than {ARGUMENTS_MAX} words")
    for word in command:
        if "\0" in word or octets.bytes_number(word) > ARGUMENT_BYTES_MAX:
            return Fault(f"a word of `command` holds NUL or more than {ARGUMENT_BYTES_MAX} bytes")
    return None


def _resources_fault(need: Resources) -> Fault | None:
    for key in ("cores", "memory_mb", "event_s", "timeout_s", "scratch_mb"):
        number = getattr(need, key)
        if number is not None and not 0 < number < 2**31:
            return Fault(f"`resources.{key}` is {shown(number)}, it must be more than 0 and less than 2^31")
    for key in ("memory_mb", "timeout_s"):
        fault = _growth_fault(need, key)
        if fault is not None:
            return fault
    for kind, number in (need.devices or {}).items():
        if not is_name(kind) or not 0 <= number < 2**31:
            return Fault("`resources.devices` must be names and numbers of at least 0")
    unfit = fault_of(need.devices or {})
    if unfit is not None:
        return Fault(unfit)
    wrong = check_asked(need)
    return None if wrong is None else Fault(wrong)


def _growth_fault(need: Resources, key: str) -> Fault | None:
    """What is wrong with the maximum of a limit that may grow; None = nothing."""
    first, most = getattr(need, key), getattr(need, f"{key}_max")
    if most is msgspec.UNSET:
        return None
    if first is None:
        return Fault(f"`resources.{key}_max` is given without `resources.{key}`", "give the first value, too")
    if not first < most < 2**31:
        return Fault(
            f"`resources.{key}_max` is {shown(most)}, it must be more than `{key}`, {first}, and less than 2^31"
        )
    if need.width is not None:
        return Fault(
            f"`resources.{key}_max` is given for payloads that span nodes",
            "give one value: they have whole nodes",
        )
    return None
