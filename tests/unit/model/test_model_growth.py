"""First and largest values of limits, and what a retry changes in a job."""

from __future__ import annotations

import msgspec
import pytest

from tidemill import JobChanges, JobSpec, Output, Resources, limits
from tidemill.model import legal
from tidemill.model.retry.changes import changed
from tidemill.model.retry.growth import GrowthSpan, next_value, parse_memory_mb, span_of


def test_a_span_is_one_value_or_a_first_and_a_most() -> None:
    assert span_of("2G", parse_memory_mb) == GrowthSpan(2000)
    assert span_of("2G..8G", parse_memory_mb) == GrowthSpan(2000, 8000)
    assert span_of("500 .. 1500MB", parse_memory_mb) == GrowthSpan(500, 1500)
    for wrong in ("8G..2G", "2G..2G", "2G..", "..8G", "2G...8G"):
        with pytest.raises(ValueError, match=r".+"):
            span_of(wrong, parse_memory_mb)


@pytest.mark.parametrize(
    ("now", "most", "used", "then"),
    [
        (100, 1500, 0, 200),
        (100, 1500, 303, 400),
        (800, 1500, 0, 1500),
        (1500, 1500, 0, None),
        (100, 150, 10**9, 150),
    ],
)
def test_the_next_value_is_doubled_at_least_and_the_most_at_most(
    now: int, most: int, used: int, then: int | None
) -> None:
    assert next_value(now, most, used=used) == then


def test_limits_are_keys_of_resources_and_of_changes() -> None:
    assert limits(memory="2G..8G", wall="10m..2h") == {
        "memory_mb": 2000, "memory_mb_max": 8000, "timeout_s": 600, "timeout_s_max": 7200,
    }  # fmt: skip
    assert Resources(**limits(memory="2G")) == Resources(memory_mb=2000)
    assert JobChanges(**limits(wall="1h")).timeout_s == 3600
    assert limits() == {}


def test_a_change_of_a_limit_without_a_most_is_a_fixed_value() -> None:
    spec = JobSpec(command=["x"], resources=Resources(**limits(memory="1G..2G", wall="1m..2m")))
    after = changed(spec, JobChanges(memory_mb=3000))
    assert after.resources == Resources(memory_mb=3000, timeout_s=60, timeout_s_max=120)
    assert after.resources.largest == Resources(memory_mb=3000, timeout_s=120)


def test_variables_are_added_and_other_keys_stay() -> None:
    spec = JobSpec(command=["x"], env={"A": "1", "B": "2"}, retries=1)
    after = changed(spec, JobChanges(env={"B": "3"}, failed_max=2, at_once=4))
    assert after == msgspec.structs.replace(spec, env={"A": "1", "B": "3"}, failed_max=2, at_once=4)


def test_outputs_below_the_former_directory_go_below_the_new_one() -> None:
    urls = ["/a/out/c/", "/a/output/x", None]
    outputs = [Output(name=f"o{k}", path="p", url=url) for k, url in enumerate(urls)]
    after = changed(
        JobSpec(command=["x"], output_dir="/a/out/", outputs=outputs), JobChanges(output_dir="/b")
    )
    assert [each.url for each in after.outputs or ()] == ["/b/c/", "/a/output/x", None]


def test_changes_are_told_without_values_of_variables() -> None:
    changes = JobChanges(memory_mb=2000, memory_mb_max=8000, timeout_s=60, env={"TOKEN": "secret"}, retries=3)
    assert changes.names == ["memory_mb", "memory_mb_max", "timeout_s", "retries", "env.TOKEN"]
    assert changes.text == (
        "2,000 MB to 8,000 MB of memory, a time limit of 1 m 00 s, `TOKEN` is set, `--retries 3`"
    )


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (Resources(memory_mb_max=5), "`resources.memory_mb_max` is given without `resources.memory_mb`"),
        (Resources(timeout_s=5, timeout_s_max=5), "`resources.timeout_s_max` is 5, it must be more than"),
        (Resources(memory_mb=1, memory_mb_max=2, nodes=2), "for payloads that span nodes"),
    ],
)
def test_a_most_that_makes_no_sense_is_refused(need: Resources, words: str) -> None:
    fault = legal.spec_fault(JobSpec(app="a", resources=need))
    assert fault is not None
    assert words in fault.text
