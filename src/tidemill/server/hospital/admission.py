"""Which jobs a ward admits, and which it sends home. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from tidemill.config.hospital import Ward
from tidemill.model.quantities import span_text
from tidemill.server import constants


class AdmissionCause(StrEnum):
    """Why a job was admitted: the first word of a stay's `why`."""

    HOME_DOWN = "home_down"
    WAITED = "waited"
    FAILURE = "failure"


class Patient(NamedTuple):
    """What a ward asks of a job. `failure`: the class in which events of it have just failed for good; `ward`: where it
    is now."""

    waits_since_us: int
    moves: int
    failure: str = ""
    ward: int = 0


class Admission(NamedTuple):
    """A ward, and why it admits."""

    ward: int
    why: str


def admission(
    wards: Mapping[int, Ward],
    patient: Patient,
    *,
    home_down: str,
    now_us: int,
    treatable: Callable[[int], bool],
) -> Admission | None:
    """The first ward that admits a job; None = it stays where it is. `home_down`: why its home is down, empty = it is
    up; `treatable`: whether a site of the ward could run it now."""
    for number, ward in wards.items():
        if number == patient.ward or patient.moves >= constants.MOVES_MAX:
            continue
        why = _why(ward, patient, home_down, now_us)
        if why and treatable(number):
            return Admission(number, why)
    return None


def _why(ward: Ward, patient: Patient, home_down: str, now_us: int) -> str:
    if patient.failure:
        return f"{AdmissionCause.FAILURE}: {patient.failure}" if patient.failure in ward.failures else ""
    if home_down and ward.home_down:
        return f"{AdmissionCause.HOME_DOWN}: {home_down}"
    waited_us = now_us - patient.waits_since_us
    if ward.waited_s is not None and waited_us >= ward.waited_s * 1e6:
        return f"{AdmissionCause.WAITED}: {span_text(waited_us / 1e6)} for its home site"
    return ""


def goes_home(ward: Ward | None, why: str, *, home_down: str) -> bool:
    """Whether a job that no site of its ward has leased goes home: its home is back, or the ward no longer exists."""
    if ward is None:
        return True
    return why.startswith(AdmissionCause.HOME_DOWN) and not home_down


def patience_us(wards: Mapping[int, Ward]) -> int | None:
    """The shortest wait that admits a job; None = waiting admits none."""
    waits = [each.waited_s for each in wards.values() if each.waited_s is not None]
    return int(min(waits) * 1e6) if waits else None


def takes_in(wards: Mapping[int, Ward], *, home_down: str) -> bool:
    """Whether to examine the jobs that wait at home: some ward could admit one."""
    return patience_us(wards) is not None or (
        bool(home_down) and any(each.home_down for each in wards.values())
    )


def admits_text(ward: Ward) -> str:
    """Whom a ward admits, for people."""
    parts = [] if ward.waited_s is None else [f"waited {span_text(ward.waited_s)}"]
    parts += [f"failed: {', '.join(ward.failures)}"] if ward.failures else []
    parts += ["home down"] if ward.home_down else []
    return "; ".join(parts) or "none"
