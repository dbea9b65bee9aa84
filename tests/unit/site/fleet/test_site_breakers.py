"""For whom a breaker closes: one owner's failures are its own, those of two owners are everybody's."""

from __future__ import annotations

from tidemill.model.failure import FailureClass
from tidemill.model.trouble import Scope, concerns, meets, place_of, prefix_of
from tidemill.site.fleet.breakers import (
    BREAKERS_MAX,
    OWN_MAX,
    Failing,
    Reason,
    TroubleCause,
    covers,
    is_enough,
    passed_over,
)
from tidemill.site.fleet.waits import Waits

S = 1_000_000
HOST = "https://dav.example.org"
SHARED = TroubleCause(FailureClass.STAGE_IN, Scope.INPUT, HOST)
APP = TroubleCause(FailureClass.DISPATCH, Scope.APP, "sim")
LOAD = (("sim", 1), 1)


def waits() -> Waits:
    return Waits(3 * 86400, jitter=lambda: 1.0)


def reason(owner: str, path: str = "a/", words: str = "503") -> Reason:
    return Reason(SHARED, words, "", owner, f"{HOST}/{path}")


def reads(owner: str, path: str = "a/", app: str = "sim"):  # type: ignore[no-untyped-def]
    """What a job of this owner's with an input below a path meets."""
    return lambda cause: (
        concerns(cause.owner, owner) and meets(cause.scope, cause.name, app=app, urls=[f"{HOST}/{path}x"])
    )


def may(them: Waits, job: int, owner: str, path: str = "a/", now_us: int = 2 * S) -> bool:
    return them.may_try(job, reads(owner, path), LOAD, now_us, owner)


def opened(them: Waits) -> set[tuple[str, str]]:
    return {(each.owner, each.name) for each in them.troubles(2 * S) if each.is_open}


def test_the_decision() -> None:
    own = SHARED._replace(owner="eve")
    eves = [Failing("eve", str(job)) for job in range(3)]
    assert is_enough(own, eves, 3, 3)
    assert not is_enough(SHARED, eves, 300, 3), "one owner, however often"
    assert is_enough(SHARED, [*eves[:2], Failing("ada", "9")], 3, 3)
    assert not is_enough(SHARED, [eves[0], Failing("ada", "9")], 9, 3), "two jobs"
    image = TroubleCause(FailureClass.IMAGE, Scope.APP, "sim")
    assert is_enough(image._replace(owner="eve"), eves[:1], 10, 3)
    assert not is_enough(image, eves[:1], 10, 3)


def test_places_and_paths() -> None:
    assert prefix_of(f"{HOST}/a/b/c.root?sig=1") == f"{HOST}/a/b/"
    assert prefix_of("/data/x/y") == "file:///data/x/"
    assert prefix_of("step:") == ""
    long = prefix_of(f"{HOST}/{'d' * 50}/{'e' * 50}/{'f' * 500}/g")
    assert long == f"{HOST}/{'d' * 50}/{'e' * 50}/"
    assert place_of(prefix_of(f"{HOST}/a/b")) == HOST
    below = SHARED._replace(owner="eve", name=f"{HOST}/a/")
    assert covers(SHARED, below)
    assert covers(SHARED._replace(owner="eve"), below)
    assert not covers(SHARED._replace(owner="ada"), below)
    assert not covers(below, SHARED)
    assert not covers(SHARED, below._replace(name="https://dav.example.org.evil/a/"))


def test_failures_of_one_owner_close_a_path_for_its_jobs_alone() -> None:
    them = waits()
    for job in range(1, 13):
        them.failed(job, reason("eve"), S)
    assert opened(them) == {("eve", f"{HOST}/a/")}
    assert not may(them, 20, "eve")
    assert may(them, 21, "ada")
    assert may(them, 22, "eve", "other/")


def test_several_paths_of_one_owner_close_the_whole_place_for_it_and_its_breakers_are_few() -> None:
    them = waits()
    for job in range(1, 101):
        them.failed(job, reason("eve", f"d{job}/"), S)
    assert opened(them) == {("eve", HOST)}
    assert not may(them, 200, "eve", "new/")
    assert may(them, 201, "ada", "new/")
    for job in range(1000, 3000):  # places without number
        cause = SHARED._replace(name=f"https://h{job // 4}.example.org")
        them.failed(job, Reason(cause, "503", "", "eve", f"{cause.name}/a/"), S)
    assert len([each for each in them.breakers if each.owner == "eve"]) <= OWN_MAX + len(FailureClass)
    assert len(them.breakers) < BREAKERS_MAX / 2, "there is room for others"


def test_failures_of_two_owners_close_it_for_all_and_trials_go_to_who_has_not_failed() -> None:
    them = waits()
    for job in (1, 2):
        them.failed(job, reason("eve"), S)
    them.failed(3, reason("bob", "b/"), S)
    assert opened(them) == {("", HOST)}
    for job, owner in ((11, "eve"), (12, "ada"), (13, "bob")):
        assert not may(them, job, owner)
    jobs = {1: "eve", 2: "eve", 3: "bob", 11: "eve", 12: "ada", 13: "bob"}
    order, now_us = [], S
    for _ in range(5):
        now_us += 3600 * S
        them.step(now_us)
        (job,) = [each for each, owner in jobs.items() if may(them, each, owner, now_us=now_us)]
        order.append(jobs[job])
        if len(order) < 5:
            them.failed(job, reason(jobs[job]), now_us)
    assert order == ["ada", "eve", "bob", "ada", "eve"], "who failed last comes last"
    them.succeeded(job, reads("eve"), now_us, owner="eve")
    assert not opened(them)


def test_a_success_of_another_owner_in_between_keeps_it_open_for_all() -> None:
    them = waits()
    for job in range(1, 40):
        them.failed(job, reason("eve"), S)
        them.succeeded(1000 + job, reads("ada"), S, owner="ada")
        them.failed(2000, reason("bob"), S)
        them.succeeded(3000 + job, reads("ada"), S, owner="ada")
    assert ("", HOST) not in opened(them)


def test_the_sites_own_probe_closes_it_for_all_and_opens_it_again() -> None:
    them = waits()
    for job in (1, 2, 3):
        them.failed(job, reason("eve"), S)
    down = Reason(SHARED, "the site asked by itself: no answer")
    them.probed(down, S, is_well=False)
    assert opened(them) == {("", HOST)}
    assert not may(them, 9, "ada")
    them.probed(down, 2 * S, is_well=True)
    assert not opened(them)
    assert may(them, 9, "ada")
    assert may(them, 1, "eve"), "hers is tried, too: the server was down"


def test_a_probe_that_a_job_contradicts_is_not_believed_until_it_is_well() -> None:
    """Some servers refuse the path of an endpoint, and serve the files below it."""
    them = waits()
    down = Reason(SHARED, "501")
    them.probed(down, S, is_well=False)
    assert not may(them, 9, "ada")
    them.step(10 * S)
    assert may(them, 9, "ada", now_us=10 * S)
    them.succeeded(9, reads("ada"), 10 * S, owner="ada")
    them.probed(down, 11 * S, is_well=False)
    assert not opened(them)
    them.probed(down, 12 * S, is_well=True)
    them.probed(down, 13 * S, is_well=False)
    assert opened(them) == {("", HOST)}


def test_an_applications_set_up_that_fails_for_one_owners_choices_is_open_for_others() -> None:
    them = waits()
    for job in range(1, 30):
        them.failed(job, Reason(APP, "stale file handle", "", "eve"), S)
    assert opened(them) == {("eve", "sim")}
    assert may(them, 50, "ada")
    assert not may(them, 51, "eve")
    them.probed(Reason(APP, "`/sw/prog`: stale file handle"), S, is_well=False)
    assert not may(them, 52, "ada")


def test_jobs_of_one_owner_that_wait_for_nothing_shared_age_by_themselves() -> None:
    """What one owner's job has waited for three days sends no other's job back."""
    them = waits()
    single = Reason(TroubleCause(FailureClass.STAGE_IN, ""), "stale", "", "eve")
    assert them.failed(1, single, S)
    assert them.failed(2, single._replace(owner="ada"), 4 * 86400 * S)


def test_whose_jobs_the_server_is_to_send_for_a_trial() -> None:
    owners = ["bob", "eve"]
    assert passed_over(owners, []) == [], "any"
    assert passed_over(owners, ["eve"]) == ["eve"], "bob's would come first"
    assert passed_over(owners, ["eve", "bob"]) == ["bob", "eve"]
    assert passed_over(owners, ["eve", "ada"]) is None, "ada's is tried first"
