"""The site asks places by itself: what the configuration says, seldom, and what hangs has not answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.transfer.http_origin import answer, origin

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.model.failure import FailureClass
from tidemill.model.trouble import Scope
from tidemill.site.fleet.own_probe import (
    AGAIN_S,
    HANG_S,
    PROBE_MAX_S,
    PROBE_S,
    RUNNING_MAX,
    AppProbes,
    OwnProbes,
    ProbeFinding,
    ProbeTarget,
    asker,
    urls_of,
)

STAGE = ProbeTarget(Scope.INPUTS, "")


class Asked:
    """Probes whose threads are awaited, and what they asked when."""

    def __init__(self, ask: Callable[[ProbeTarget], None]) -> None:
        self.times_s: list[float] = []
        self._ask, self._now_s = ask, 0.0
        self.probes = OwnProbes(self._note)

    def _note(self, target: ProbeTarget) -> None:
        self.times_s.append(self._now_s)
        self._ask(target)

    def run(self, until_s: float, step_s: float = 1.0) -> list[ProbeFinding]:
        found: list[ProbeFinding] = []
        while self._now_s < until_s:
            self._now_s += step_s
            found += self.probes.step([STAGE], self._now_s)
            for thread in [each for each in threading.enumerate() if each.name == "probe"]:
                thread.join(60)
        return found


def refuse(_: ProbeTarget) -> None:
    raise SiteError("no answer")


def test_a_place_that_answers_is_asked_less_and_less() -> None:
    it = Asked(lambda _: None)
    found = it.run(5000)
    pauses = [b - a for a, b in zip(it.times_s, it.times_s[1:], strict=False)]
    assert pauses[0] >= PROBE_S
    assert max(pauses) <= PROBE_MAX_S + 2
    assert len(it.times_s) <= 13
    assert {each.error for each in found} == {None}


def test_one_missed_answer_is_no_trouble_two_are() -> None:
    it = Asked(refuse)
    assert it.run(AGAIN_S - 1) == []
    found = it.run(AGAIN_S + 5)
    assert len(it.times_s) == 2
    assert found[0].error is not None
    assert "the site asked by itself: no answer" in found[0].reason(FailureClass.STAGE_IN).message


def test_an_application_too_is_in_trouble_only_after_two_errors_in_a_row() -> None:
    errors: list[SiteError | None] = [SiteError("no"), None, SiteError("no"), SiteError("no"), None]
    apps = AppProbes(lambda _: errors.pop(0))
    found = [[each.error for each in apps.step({"app"}, n * AGAIN_S)] for n in range(5)]
    assert [bool(each) for each in found] == [False, True, False, True, True]
    assert found[3][0] is not None
    assert apps.step({"app"}, 4 * AGAIN_S + 1) == [], "it is not asked at each step"


def test_what_hangs_has_not_answered_and_threads_are_few() -> None:
    leave = threading.Event()

    def hang(_: ProbeTarget) -> None:
        leave.wait(60)

    probes = OwnProbes(hang)
    targets = [ProbeTarget(Scope.INPUT, f"file:///d{n}") for n in range(30)]
    try:
        assert probes.step(targets, 1.0) == []
        assert sum(each.name == "probe" for each in threading.enumerate()) <= RUNNING_MAX
        found = probes.step(targets, 1.0 + HANG_S)
        assert {each.error is not None for each in found} == {True}
        assert probes.step(targets, 2.0 + HANG_S) == [], "once"
    finally:
        leave.set()


def test_the_path_is_that_of_the_endpoint_whatever_the_job_names() -> None:
    endpoints = [
        Endpoint(url="https://dav.example.org/exp/"), Endpoint(url="root://*.example.org//store/"),
        Endpoint(url="https://dav.example.org/out/", access="write"),
    ]  # fmt: skip
    assert urls_of("https://dav.example.org", endpoints) == ["https://dav.example.org/exp/"]
    assert urls_of("root://a.example.org", endpoints) == ["root://a.example.org//store/"]
    assert urls_of("https://elsewhere.example.org", endpoints) == []


@pytest.mark.parametrize(
    ("status", "is_well"), [("200 OK", True), ("403 No", True), ("404 No", True), ("503 Down", False)]
)
def test_a_server_that_says_no_to_a_path_answers_and_one_that_is_down_does_not(
    tmp_path: Path, status: str, is_well: bool
) -> None:
    with origin() as data:
        data.decide = lambda method, target, headers: answer(status, is_head=method == "HEAD")
        config = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url=data.base + "/exp/")])
        ask = asker(config, tmp_path)
        target = ProbeTarget(Scope.INPUT, data.base)
        if is_well:
            ask(target)
        else:
            with pytest.raises(SiteError, match="503"):
                ask(target)
        assert {each[1] for each in data.asked} == {"/exp/"}


def test_nobody_there_is_no_answer_and_a_stage_is_written_to(tmp_path: Path) -> None:
    with origin() as data:
        base = data.base
    config = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url=base + "/exp/")])
    with pytest.raises(SiteError):
        asker(config, tmp_path)(ProbeTarget(Scope.INPUT, base))
    asker(config, tmp_path)(STAGE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SiteError, match="failed to"):
        asker(config, tmp_path / "none")(STAGE)
    asker(config, tmp_path)(ProbeTarget(Scope.INPUT, "file:///no-such-directory"))
