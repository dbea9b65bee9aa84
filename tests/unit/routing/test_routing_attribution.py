"""What went wrong on the way to a far file is named, and whose trouble it is."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.routing.attribution import FarTrouble, attribute, troubles, ways_of
from tidemill.routing.engine import CacheHealth, PastTrouble
from tidemill.routing.refusals import refusal

ORIGIN = "root://origin.example:1094"
MESSAGE = (
    "payload failed with exit status 54; "
    f"input `f` was read through cache `dtn` from {ORIGIN}, input `g` was read directly from root://other:1094, "
    f"input `h` was read as a copy from {ORIGIN}"
)
WAYS = ways_of(MESSAGE)
LIFE = (1_000_000_000, 1_060_000_000)
HEALTHY = CacheHealth(answers=True)


def past(check: str, found: str, *, first_s: int, last_s: int, subject: str = "") -> CacheHealth:
    one = PastTrouble(
        check=check, subject=subject, found=found, first_us=first_s * 1_000_000, last_us=last_s * 1_000_000
    )
    return msgspec.structs.replace(HEALTHY, past=[one])


def found(health: CacheHealth = HEALTHY, errors: str = "", down: tuple[str, ...] = ()) -> FarTrouble:
    trouble = attribute(WAYS, errors, life_us=LIFE, caches={"dtn": health}, down=down)
    assert trouble is not None
    return trouble


def test_ways_are_read_from_the_message_without_copies() -> None:
    assert [(each.input, each.cache, each.place) for each in WAYS] == [
        ("f", "dtn", ORIGIN),
        ("g", "", "root://other:1094"),
    ]
    assert ways_of("exit status 1") == []


def test_a_restart_while_the_payload_ran_is_named_with_its_time() -> None:
    trouble = found(past("process", "xrootd ended: it was killed by SIGKILL", first_s=1010, last_s=1012))

    assert trouble.is_sites
    assert trouble.is_seen
    assert trouble.text == (
        "cache `dtn`: xrootd ended: it was killed by SIGKILL, at 1970-01-01T00:16:50Z; "
        "it was started again at 1970-01-01T00:16:52Z"
    )


@pytest.mark.parametrize(("first_s", "last_s"), [(900, 999), (1066, 1070)])
def test_what_was_before_the_payload_or_after_it_is_not_its_trouble(first_s: int, last_s: int) -> None:
    health = past("process", "xrootd ended", first_s=first_s, last_s=last_s)
    assert attribute(WAYS, "exit 1", life_us=LIFE, caches={"dtn": health}, down=()) is None


def test_a_silent_origin_counts_for_its_own_files_only() -> None:
    text = "`root://x//d/` does not answer"
    for subject, count in ((f"{ORIGIN}//d/", 1), ("root://elsewhere:1094//d/", 0)):
        health = past("origin", text, first_s=1010, last_s=1050, subject=subject)
        assert len(troubles(health, LIFE, place=ORIGIN)) == count


def test_a_full_disk_of_the_cache_is_named_and_fails_no_read() -> None:
    trouble = found(past("disk", "the disk has 5 MB left", first_s=1010, last_s=1050))
    assert "the disk has 5 MB left" in trouble.text
    assert not trouble.is_sites


@pytest.mark.parametrize("state", ["warn", "fail"])
def test_descriptors_fail_reads_once_they_are_used_up(state: str) -> None:
    one = msgspec.structs.replace(
        past("descriptors", "240 of 240", first_s=1010, last_s=1011).past[0],
        state=state,
    )
    trouble = found(msgspec.structs.replace(HEALTHY, past=[one]))
    assert trouble.is_seen == (state == "fail")
    assert "240 of 240" in trouble.text


def test_a_cache_without_a_supervisor_and_a_place_that_is_down_are_seen() -> None:
    assert found(CacheHealth()).text == "cache `dtn` does not run now"
    down = found(down=(ORIGIN,))
    assert down.is_seen
    assert f"`{ORIGIN}` does not answer this site either" in down.text


@pytest.mark.parametrize(
    ("errors", "cause", "is_sites"),
    [
        ("[ERROR] Server responded with an error: [3012] Connection refused", "does not answer the cache", True),
        ("Run: [FATAL] Connection error: (destination)", "the cache does not answer", True),
        ("[ERROR] Operation expired", "the origin does not answer the cache", True),
        ("[3007] Unable to open; too many open files", "the cache is out of descriptors", True),
        ("[ERROR] Received corrupted data", "checksum", True),
        ("[3013] Unable to open /root:/h:1094/d/f6; operation not supported", "ended the cache's connection", True),
        ("[ERROR] Server responded with an error: [3005] Unable to open /f; bad file", "could not read this", True),
        ("[3013] Unable to query; unsupported", "reads from `root://` and `roots://` only", False),
        ("[3011] No such file", "the origin has no such file", False),
        ("[3010] permission denied", "the cache may not read this", False),
    ],
)  # fmt: skip
def test_what_the_client_printed_names_cause_and_fault(errors: str, cause: str, is_sites: bool) -> None:
    trouble = found(errors=errors)
    assert cause in trouble.text
    assert (trouble.is_sites, trouble.is_seen) == (is_sites, False)


def test_without_a_cache_on_the_way_none_is_blamed() -> None:
    direct = refusal("Run: [FATAL] Connection error: (source)", through_cache=False)
    assert direct is not None
    assert direct.cause == "the origin does not answer"
    for errors in (
        "[3010]",
        "[3013]",
        "[3013] open; operation not supported",
        "too many open files",
        "no space left",
    ):
        told = refusal(errors, through_cache=False)
        assert told is not None
        assert "cache" not in told.cause
