"""Room in the database: what is canceled is given back, and all submitters together are bounded."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.contract.server_world import Site, World, done, leases

from tidemill import clock
from tidemill.cli.start.quickstart import FREE_BYTES_MIN, _check_free
from tidemill.config.quotas import Quotas
from tidemill.errors import SiteError
from tidemill.model.identity import LOCAL, Identity, Role, Via
from tidemill.model.job import Input, JobSpec
from tidemill.server.core.limits.storage import FREE_BYTES, Storage, sizes_text, stored_bytes
from tidemill.server.core.specifications.shortening import LARGE_BYTES, Shortening
from tidemill.server.errors import RequestError, RoomError
from tidemill.server.watch.health import Watched, health
from tidemill.wire.api import ActionRequest, SubmitRequest

MB = 1_000_000


@pytest.fixture
def world(store_world: World) -> World:
    return store_world


def submitter(name: str) -> Identity:
    return Identity(role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE)


def large(number: int, kilobytes: int = 100) -> JobSpec:
    places = (f"file:///data/{number:06}/{part:03}" + "x" * 970 for part in range(kilobytes))
    return JobSpec(app="sim", inputs=[Input(name=f"i{part}", url=url) for part, url in enumerate(places)])


def submitted(world: World, owner: str, key: str, *, jobs: int = 10) -> list[int]:
    """A megabyte, in jobs of which each has a specification of its own."""
    specs = [large(number + hash_of(key)) for number in range(jobs)]
    request = SubmitRequest(key=key, campaign=key, jobs=specs)
    first = world.dispatcher.handle_submit(request, submitter(owner)).first_job
    return list(range(first, first + jobs))


def hash_of(key: str) -> int:
    return sum(key.encode()) * 1000


def shorten(world: World, *, keep_s: float = 0.0) -> None:
    write = world.dispatcher.writer.write
    shortening = Shortening(write, lambda: world.dispatcher.storage, keep_s=keep_s, keep_short_s=keep_s)
    while shortening.step(world.reader, clock.now_us() + 1):
        pass


def pages(world: World) -> int:
    """Pages of the database that are in use."""
    with sqlite3.connect(world.store.path or "") as connection:
        (count,), (free,) = (
            connection.execute(f"PRAGMA {each}").fetchone() for each in ("page_count", "freelist_count")
        )
    connection.close()
    return int(count) - int(free)


def limited(world: World, *, free_bytes_min: int | None = None, **quotas: int) -> None:
    world.dispatcher.rules = world.dispatcher.rules._replace(quotas=Quotas(**quotas))
    world.dispatcher.storage = Storage(
        world.store.path, world.dispatcher.rules.quotas, free_bytes_min=free_bytes_min
    )


def test_the_room_of_what_was_canceled_is_given_back_and_used_again(world: World) -> None:
    empty = pages(world)
    used = []
    for turn in range(3):
        for number in range(4):
            submitted(world, "eve", f"big-{turn}-{number}")
        assert stored_bytes(world.reader) > 4 * MB
        full = pages(world)
        for number in range(4):
            world.dispatcher.handle_cancel(ActionRequest(campaign=f"big-{turn}-{number}"), submitter("eve"))
        shorten(world)
        assert stored_bytes(world.reader) < 0.1 * MB
        assert pages(world) - empty < 0.1 * (full - empty)
        used.append(pages(world))
    assert used[-1] - used[0] < 100, "pages of 4 kB: rows of jobs stay until they are archived"


def test_five_submitters_do_not_pass_the_bound_of_all_and_other_work_goes_on(world: World) -> None:
    limited(world, all_stored_bytes_max=5 * MB)
    ran = submitted(world, "ada", "first", jobs=1)
    for name in ("eve", "mallory", "o1", "o2"):
        submitted(world, name, f"of-{name}")
    for name in ("o3", "eve"):
        with pytest.raises(
            RoomError,
            match=r"^nothing of this request was submitted: 5\.\d+ MB of jobs would be stored, and all submitters "
            r"together may store 5 MB \(`quotas\.all_stored_bytes_max`\)",
        ) as caught:
            submitted(world, name, "more")
        assert "canceling jobs frees room only a day later" in str(caught.value.hint)
    assert stored_bytes(world.reader) <= 5 * MB

    site = Site(world)
    site.sync(*map(done, [each for each in leases(site.sync()) if each.job in ran]), want=0)
    assert world.state(ran[0]) == "COMPLETED"
    world.dispatcher.handle_cancel(ActionRequest(campaign="of-o1"), submitter("o1"))
    world.dispatcher.handle_submit(SubmitRequest(key="own", campaign="own", jobs=[large(1)]), LOCAL)


def test_what_was_canceled_makes_room_for_others(world: World) -> None:
    limited(world, all_stored_bytes_max=5 * MB)
    for number in range(4):
        submitted(world, "eve", f"big-{number}")
    with pytest.raises(RoomError):
        submitted(world, "ada", "hers")
    for number in range(4):
        world.dispatcher.handle_cancel(ActionRequest(campaign=f"big-{number}"), submitter("eve"))
    shorten(world)
    submitted(world, "ada", "hers")


def test_a_repeated_submission_is_answered_though_there_is_no_room(world: World) -> None:
    first = submitted(world, "ada", "hers")
    limited(world, free_bytes_min=10**18, all_stored_bytes_max=MB)
    assert submitted(world, "ada", "hers") == first


def test_jobs_are_refused_before_the_disk_is_full(world: World) -> None:
    limited(world, free_bytes_min=10**18)
    for identity in (submitter("ada"), LOCAL):
        with pytest.raises(
            RoomError, match=r"disk has \S+ .B of free space; below 1,000.0 PB the server takes no more jobs"
        ):
            world.dispatcher.handle_submit(SubmitRequest(key="k", campaign="c", jobs=[large(1)]), identity)
    found = health(world.reader, Watched(world.dispatcher))
    assert (found.status, "storage" in [each.name for each in found.problems]) == ("degraded", True)


def test_two_sizes_that_differ_are_not_written_as_the_same() -> None:
    assert sizes_text(110_980, 20_000) == ("111 kB", "20 kB")
    assert sizes_text(20_000_000_300, 20_000_000_000) == ("20,000,000,300 B", "20,000,000,000 B")


def test_a_canceled_job_can_be_retried_for_a_while_then_says_why_not(world: World) -> None:
    (job, other) = submitted(world, "ada", "hers", jobs=2)
    ada = submitter("ada")
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job, other]), ada)
    shorten(world, keep_s=3600)
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[job]), ada).changed == 1
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]), ada)
    shorten(world)
    for number in (job, other):
        detail = world.job(number)
        assert (detail.row.state, detail.spec.app, detail.spec.inputs) == ("CANCELED", "sim", [])
        assert "specification was removed" in detail.remark
        with pytest.raises(RequestError, match=f"job {number} was canceled before it ran"):
            world.dispatcher.handle_retry(ActionRequest(jobs=[number]), ada)
    assert world.dispatcher.handle_retry(ActionRequest(campaign="hers"), ada).changed == 0


def test_what_ran_is_shared_or_is_small_stays_whole(world: World) -> None:
    site, ada = Site(world), submitter("ada")
    ran = submitted(world, "ada", "ran", jobs=1)
    leases(site.sync())
    request = SubmitRequest(key="s", campaign="shared", jobs=[large(7)], repeat=[2])
    first = world.dispatcher.handle_submit(request, ada).first_job
    small = SubmitRequest(
        key="k", campaign="small", jobs=[JobSpec(app="sim", output_dir="/" + "y" * (LARGE_BYTES // 2))]
    )
    little = world.dispatcher.handle_submit(small, ada).first_job
    world.dispatcher.handle_cancel(ActionRequest(jobs=[*ran, first, little]), ada)
    shorten(world)
    for number in (*ran, first, little):
        assert len(str(world.job(number).spec)) >= LARGE_BYTES // 2
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[first, little]), ada).changed == 2


def test_a_submission_with_the_text_of_a_short_specification_runs(world: World) -> None:
    ada = submitter("ada")
    (job,) = submitted(world, "ada", "hers", jobs=1)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]), ada)
    shorten(world)
    request = SubmitRequest(key="k", campaign="short", jobs=[world.job(job).spec])
    fresh = world.dispatcher.handle_submit(request, ada).first_job
    assert fresh in {each.job for each in leases(Site(world).sync())}


@pytest.mark.parametrize("total_gb", [10, 250, 4000])
def test_a_quickstart_that_begins_has_the_room_that_its_server_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_gb: int
) -> None:
    free = [0]
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(total=total_gb * 1000 * MB, free=free[0])
    )
    storage = Storage(tmp_path / "t.db", Quotas())
    assert storage.free_bytes_min <= FREE_BYTES <= 1000 * MB

    free[0] = storage.free_bytes_min + FREE_BYTES_MIN - 1
    with pytest.raises(SiteError, match="are free at"):
        _check_free(tmp_path / "new" / "place", hint="", serves=True)
    free[0] += 1
    _check_free(tmp_path / "new" / "place", hint="", serves=True)
    free[0] -= FREE_BYTES_MIN  # a run takes less
    storage.check_free()
    free[0] -= 1
    with pytest.raises(RoomError):
        storage.check_free()
    free[0] = FREE_BYTES_MIN
    _check_free(tmp_path, hint="", serves=False)
