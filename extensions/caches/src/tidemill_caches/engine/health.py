"""What is wrong with a running cache, in sentences. Pure: from what was read to what is reported."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill import clock
from tidemill.model.quantities import bytes_text, percent_text, span_text
from tidemill.routing.engine import PastTrouble
from tidemill_caches.engine import limits
from tidemill_caches.engine.credentials import CredentialEnd
from tidemill_caches.engine.state import CacheFinding, OriginState
from tidemill_caches.settings import CacheConfig

USED_WARN = 0.7
"""Of the descriptors. From there on a burst of opens may take the rest."""
USED_FAIL = 0.95
DISK_FREE_WARN_BYTES = 1_000_000_000
DISK_FREE_WARN_SHARE = 0.03
"""Of a small disk, such as node memory: the cache itself may fill it to `disk_high`."""
RESTARTS_WARN = 3
OWN_WARN_S = 2 * 3600.0
"""A proxy lives for 12 h to some days, and is renewed long before this."""
SHOWN_WARN_S = 7 * 86400.0
"""The certificate that clients see is renewed by people."""
PAST_MAX = 50
PAST_GAP_US = 10_000_000
"""A finding that returns within this time counts as the same one."""


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor read of the process, the disk and the origins; None where nothing is known."""

    running: bool
    answers: bool
    restarts: int = 0
    last_end: str = ""
    descriptors: int | None = None
    descriptors_max: int | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    origins: Sequence[OriginState] = ()
    credentials: Sequence[CredentialEnd] = ()
    now_us: int = 0


def findings(config: CacheConfig, read: Readings) -> list[CacheFinding]:
    """What a person should know, the worst first."""
    found = [
        *_process(read),
        *_descriptors(read),
        *_disk(read),
        *_origins(config, read),
        *_credentials(read),
    ]
    return sorted(found, key=lambda each: each.state != "fail")


def remembered(
    past: Sequence[PastTrouble], findings: Sequence[CacheFinding], *, now_us: int
) -> list[PastTrouble]:
    """What was wrong and when, with what is wrong now: a job that failed an hour ago is explained by it."""
    kept = list(past)
    for each in findings:
        subject = each.found.split("`")[1] if each.check == "origin" and each.found.count("`") > 1 else ""
        old = next(
            (
                one
                for one in reversed(kept)
                if (one.check, one.subject, one.state) == (each.check, subject, each.state)
                and now_us - one.last_us < PAST_GAP_US
            ),
            None,
        )
        if old is None:
            kept.append(
                PastTrouble(
                    state=each.state,
                    check=each.check,
                    subject=subject,
                    found=each.found,
                    first_us=now_us,
                    last_us=now_us,
                )
            )
        else:
            kept[kept.index(old)] = msgspec.structs.replace(old, last_us=now_us)
    return kept[-PAST_MAX:]


def ended(past: Sequence[PastTrouble], why: str, *, now_us: int) -> list[PastTrouble]:
    """The past troubles, with an end of xrootd."""
    made = PastTrouble(check="process", found=why, first_us=now_us, last_us=now_us)
    return [*past, made][-PAST_MAX:]


def started(past: Sequence[PastTrouble], *, now_us: int) -> list[PastTrouble]:
    """The past troubles, where xrootd runs again."""
    at = next((n for n in reversed(range(len(past))) if past[n].check == "process"), None)
    if at is None:
        return list(past)
    return [*past[:at], msgspec.structs.replace(past[at], last_us=now_us), *past[at + 1 :]]


def _process(read: Readings) -> list[CacheFinding]:
    if not read.running:
        why = f": {read.last_end}" if read.last_end else ""
        return [
            CacheFinding(
                state="fail",
                check="process",
                found=f"xrootd does not run{why}",
                hint="log/xrootd.log says why",
            )
        ]
    if not read.answers:
        return [
            CacheFinding(
                state="fail",
                check="process",
                found="xrootd runs, and does not answer",
                hint="log/xrootd.log says why",
            )
        ]
    if read.restarts >= RESTARTS_WARN:
        return [
            CacheFinding(
                state="warn",
                check="process",
                found=f"xrootd has been restarted {read.restarts} times; the last time: {read.last_end}",
                hint="log/xrootd.log and log/xrootd.log.1 say why",
            )
        ]
    return []


def _descriptors(read: Readings) -> list[CacheFinding]:
    used, most = read.descriptors, read.descriptors_max
    if used is None or most is None:
        return []
    if used >= USED_WARN * most:
        is_out = used >= USED_FAIL * most
        text = f"xrootd has {used} of {most} descriptors open"
        return [
            CacheFinding(
                state="fail" if is_out else "warn",
                check="descriptors",
                found=f"{text}: more files are read from their origins without being cached"
                if is_out
                else text,
                hint=f"let fewer payloads read through this cache at a time, or {limits.RAISE}",
            )
        ]
    return []


def _disk(read: Readings) -> list[CacheFinding]:
    free = read.disk_free_bytes
    total = read.disk_bytes
    least = DISK_FREE_WARN_BYTES if total is None else min(DISK_FREE_WARN_BYTES, total * DISK_FREE_WARN_SHARE)
    if free is None or free >= least:
        return []
    return [
        CacheFinding(
            state="warn",
            check="disk",
            found=f"the disk has {bytes_text(free)} left",
            hint="lower `space.max`, or remove other files: what does not fit is read without being cached",
        )
    ]


def _origins(config: CacheConfig, read: Readings) -> list[CacheFinding]:
    result = [
        CacheFinding(
            state="warn",
            check="origin",
            found=f"`{each.url}` does not answer since {clock.utc_text(each.since_us)}: {each.why}",
            hint="what is cached is served all the same",
        )
        for each in read.origins
        if not each.answers
    ]
    result += [
        CacheFinding(
            state="fail",
            check="origin",
            found=f"`{each.url}` is a redirector, and this cache follows no redirects: every file from there fails",
            hint="name the data servers in `origins`, or set `federation = true` if you trust it to choose servers",
        )
        for each in read.origins
        if each.redirects and not config.federation
    ]
    return result


def _credentials(read: Readings) -> list[CacheFinding]:
    result = []
    for each in read.credentials:
        left_s = (each.ends_us - read.now_us) / 1e6
        if left_s > (OWN_WARN_S if each.own else SHOWN_WARN_S):
            continue
        when = f"ended at {clock.utc_text(each.ends_us)}" if left_s <= 0 else f"ends in {span_text(left_s)}"
        effect = "origins refuse the cache" if each.own else "clients refuse to connect"
        result.append(
            CacheFinding(
                state="fail" if left_s <= 0 else "warn",
                check="credential",
                found=f"`{each.path}` {when}: {effect}{'' if left_s <= 0 else ' then'}",
                hint="renew the file in its place: what is cached is served all the same"
                if each.own
                else "renew the file, and restart the cache",
            )
        )
    return result


def used_text(used: int | None, most: int | None) -> str:
    """`120 of 3200 (4 %)`, or a dash."""
    if used is None or most is None:
        return "-"
    return f"{used} of {most} ({percent_text(used / most if most else None)})"
