"""Large specifications of jobs that were canceled before they ran: when they go, whose, and in which steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.server_world import Site, World, done, leases

from tidemill import clock
from tidemill.config.quotas import Quotas
from tidemill.errors import SiteError
from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import Input, JobSpec
from tidemill.server.archive.archiver import Archiver
from tidemill.server.archive.parquet import Archive
from tidemill.server.core.limits.storage import Storage
from tidemill.server.core.specifications.shortening import PIECE, PIECE_BYTES, Shortening, _Due, _piece
from tidemill.server.database.rows import JOB_BYTES
from tidemill.wire.api import ActionRequest, SubmitRequest

DAY_US = 86_400_000_000
KB = 10  #: of each large specification


def submitter(name: str) -> Identity:
    return Identity(role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE)


def large(text: str) -> JobSpec:
    places = (f"file:///data/{text}/{part:03}" + "x" * 970 for part in range(KB))
    return JobSpec(app="sim", inputs=[Input(name=f"i{part}", url=url) for part, url in enumerate(places)])


def canceled(world: World, owner: str, *, jobs: int = 1, of_each: int = 1) -> list[int]:
    """Jobs of a submitter that are canceled, each with a specification of its own, or some with the same."""
    campaign = f"c{next(world.keys)}"
    specs = [large(f"{campaign}-{number}") for number in range(jobs)]
    repeat = [of_each] * jobs
    request = SubmitRequest(key=campaign, campaign=campaign, jobs=specs, repeat=repeat)
    first = world.dispatcher.handle_submit(request, submitter(owner)).first_job
    world.dispatcher.handle_cancel(ActionRequest(campaign=campaign), submitter(owner))
    return list(range(first, first + jobs * of_each))


class Counting:
    """A session or a writer that counts."""

    def __init__(self, world: World) -> None:
        self.world, self.writes = world, 0
        self.judged: Counter[int] = Counter()
        self.before_write: Callable[[], Any] = lambda: None

    def write(self, act: Callable[[Any], Any]) -> Any:
        self.writes += 1
        self.before_write()
        return self.world.dispatcher.writer.write(act)

    def rows(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        if name == "specs_never_run":
            self.judged.update(parameters["ids"])
        return self.world.reader.rows(name, **parameters)

    def made(self) -> Shortening:
        return Shortening(self.write, lambda: self.world.dispatcher.storage)

    def run(self, made: Shortening | None = None, *, days: float = 0.0) -> int:
        """How many transactions there were. `days`: this long after now."""
        self.writes, made = 0, made or self.made()
        while made.step(self, clock.now_us() + int(days * DAY_US)):  # type: ignore[arg-type]
            pass
        return self.writes


@pytest.fixture
def counting(world: World) -> Counting:
    limited(world)
    return Counting(world)


def limited(world: World, **quotas: int) -> None:
    every = {"all_stored_bytes_max": 10**15, **quotas}
    world.dispatcher.rules = world.dispatcher.rules._replace(quotas=Quotas(**every))
    world.dispatcher.storage = Storage(world.store.path, world.dispatcher.rules.quotas, free_bytes_min=0)


def whole(world: World, jobs: list[int]) -> list[int]:
    return [each for each in jobs if world.job(each).spec.inputs]


def test_with_room_a_canceled_job_can_be_resumed_for_thirty_days(world: World, counting: Counting) -> None:
    jobs = canceled(world, "ada", jobs=3)
    made = counting.made()
    assert counting.run(made, days=29.9) == 0
    reply = world.dispatcher.handle_retry(ActionRequest(jobs=jobs[:2]), submitter("ada"))
    assert (reply.changed, reply.gone) == (2, 0)
    world.dispatcher.handle_cancel(ActionRequest(jobs=jobs), submitter("ada"))
    assert counting.run(made, days=30.1) == 1
    assert whole(world, jobs) == []


def test_a_retry_counts_the_jobs_that_cannot_run_again(world: World, counting: Counting) -> None:
    jobs = canceled(world, "ada", jobs=3)
    counting.run(days=31)
    site = Site(world)
    more = world.submit(JobSpec(app="sim"), campaign="more")
    site.sync(*map(done, leases(site.sync())), want=0)
    campaign = world.job(jobs[0]).row.campaign
    reply = world.dispatcher.handle_retry(ActionRequest(campaign=campaign), submitter("ada"))
    assert (reply.changed, reply.unchanged, reply.gone) == (0, 3, 3)
    reply = world.dispatcher.handle_retry(ActionRequest(jobs=[*jobs[:2], *more]))
    assert (reply.changed, reply.unchanged, reply.gone) == (0, 3, 2)
    assert world.dispatcher.handle_cancel(ActionRequest(campaign=campaign), submitter("ada")).gone == 0


@pytest.mark.timing(server={"STORED_BYTES_MAX": 1_000_000})
def test_an_owner_over_half_of_her_quota_gives_room_after_a_day_and_others_do_not(
    world: World, counting: Counting
) -> None:
    hers, his = canceled(world, "eve", jobs=60), canceled(world, "ada", jobs=40)
    limited(world)
    made = counting.made()
    assert counting.run(made, days=0.9) == 0
    counting.run(made, days=1.1)
    assert (whole(world, hers), whole(world, his)) == ([], his)

    more = canceled(world, "ada", jobs=20)  # what the other one's walk has passed is found for him, too
    counting.run(made, days=1.2)
    assert (whole(world, his), whole(world, more)) == ([], [])


def test_room_that_is_short_for_all_is_made_by_all(world: World, counting: Counting) -> None:
    hers, his = canceled(world, "eve", jobs=3), canceled(world, "ada", jobs=3)
    made = counting.made()
    assert counting.run(made, days=1.1) == 0
    limited(world, all_stored_bytes_max=10 * KB * 1000)
    counting.run(made, days=1.1)
    assert whole(world, hers + his) == []


def test_a_specification_of_many_jobs_stays_and_is_judged_once(world: World, counting: Counting) -> None:
    few, many = canceled(world, "eve", of_each=PIECE), canceled(world, "eve", of_each=PIECE + 1)
    made = counting.made()
    made.look = 100
    assert counting.run(made, days=31) == 1
    assert (whole(world, few[:1] + few[-1:]), whole(world, many[-1:])) == ([], many[-1:])
    assert max(counting.judged.values()) == 1


def test_a_specification_of_which_one_job_ran_is_judged_once(world: World, counting: Counting) -> None:
    site = Site(world)
    jobs = world.submit(*[large("shared")] * 5)
    (lease,) = leases(site.sync(want=1))
    site.sync(done(lease), want=0)
    world.dispatcher.handle_cancel(ActionRequest(jobs=jobs))
    made = counting.made()
    made.look = 1
    assert counting.run(made, days=31) == 0
    assert (whole(world, jobs), list(counting.judged.values())) == (jobs, [1])


def test_many_specifications_go_in_one_transaction(world: World, counting: Counting) -> None:
    jobs = canceled(world, "eve", jobs=50) + canceled(world, "ada", jobs=50)
    assert counting.run(days=31) == 1
    assert whole(world, jobs) == []
    for owner in ("eve", "ada"):
        ((stored,),) = world.reader.rows("stored_of", owner=owner)
        assert 50 * JOB_BYTES < stored < 50 * JOB_BYTES + 500


def test_a_job_that_is_retried_meanwhile_keeps_its_specification(world: World, counting: Counting) -> None:
    jobs = canceled(world, "ada", jobs=3)
    counting.before_write = lambda: world.dispatcher.handle_retry(
        ActionRequest(jobs=jobs[:1]), submitter("ada")
    )
    assert counting.run(days=31) == 1
    assert whole(world, jobs) == jobs[:1]


def test_a_piece_has_at_most_so_many_jobs_and_bytes() -> None:
    due = [_Due(number, jobs=300, bytes=5000) for number in range(10)]
    piece, rest = _piece(due)
    assert ([each.spec for each in piece], len(rest)) == ([0, 1, 2], 7)
    large_ones = [_Due(number, jobs=1, bytes=PIECE_BYTES) for number in range(3)]
    assert [len(part) for part in _piece(large_ones)] == [2, 1]
    assert _piece([_Due(1, jobs=PIECE, bytes=PIECE_BYTES + 1)]) == ([_Due(1, PIECE, PIECE_BYTES + 1)], [])
    assert [len(part) for part in _piece([_Due(1, jobs=1, bytes=1)] * PIECE)] == [PIECE, 0]


def test_a_server_that_ends_begins_no_further_piece(world: World, counting: Counting, tmp_path: Path) -> None:
    jobs = canceled(world, "ada", jobs=5)
    made = Shortening(counting.write, lambda: world.dispatcher.storage, keep_s=-1.0)
    made.piece = 1
    archiver = Archiver(
        world.store, counting.write, Archive(tmp_path / "archive"), keep_s=1e9, shorten=made.step
    )
    archiver.first_s = 0.0
    counting.before_write = archiver._stopped.set
    archiver._run()
    assert (counting.writes, len(whole(world, jobs))) == (1, 4)


def test_a_piece_that_fails_holds_up_no_other(world: World, counting: Counting) -> None:
    jobs = canceled(world, "ada", jobs=3)
    made = counting.made()
    made.piece = 1

    def fail_once() -> None:
        if counting.writes == 1:
            raise SiteError("as if this one could not be read")

    counting.before_write = fail_once
    with pytest.raises(SiteError):
        counting.run(made, days=31)
    counting.before_write = lambda: None
    counting.run(made, days=31)
    assert whole(world, jobs) == jobs[:1]
