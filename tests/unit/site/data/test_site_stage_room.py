"""Room in the stage: reserved before anything is fetched, waited for where there is none, given back, counted again."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.home.small_disk import small_disk

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import SiteError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.site.data.budget import StageRoom
from tidemill.site.data.fetching import INLINE_BYTES_MAX
from tidemill.site.data.moves import MoveCounts, MoveOrder, MoveOutcome, MovesPendingError
from tidemill.site.data.owners import OwnedPlaces, Reader
from tidemill.site.data.remote_outputs import Departures, Destination
from tidemill.site.data.staging import NoRoomError, Stage, StepTooLargeError
from tidemill.transfer.contract import Direction
from tidemill.transfer.file import Roots
from tidemill.transfer.mover import Moved

pytestmark = pytest.mark.timing(site={"STAGE_FREE_BYTES_MIN": 0, "STAGE_CACHE_BYTES_MAX": 0})

MB = 1_000_000
HOST = "https://h.example.org/"


class HeldCopies(Executor):
    """A pool whose threads are slow: what it was given runs when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], Any]] = []

    def submit(self, task: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        self.tasks.append(lambda: task(*args, **named))
        return Future()

    def run(self) -> None:
        """All at the same time, in threads."""
        with ThreadPoolExecutor(8) as threads:
            wait([threads.submit(task) for task in self.tasks])
        self.tasks.clear()


class FarFiles:
    """Remote files, `Moves` of a test: each has `size_bytes`, and comes when the test says so."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.looks: list[str] = []
        self.gets: dict[str, MoveOrder] = {}
        self.outcomes: dict[str, MoveOutcome] = {}
        self.canceled: list[str] = []
        self.counts = {direction: MoveCounts() for direction in Direction}

    def submit(self, order: MoveOrder) -> None:
        if order.look:
            self.looks.append(order.url)
            self.outcomes[order.id] = MoveOutcome(id=order.id, version="1", size_bytes=self.size_bytes)
        else:
            assert order.id not in self.gets, "it is fetched twice"
            self.gets[order.id] = order

    def come(self, content: bytes = b"x") -> None:
        """All that is under way."""
        for order in self.gets.values():
            Path(order.path).write_bytes(content)
            moved = Moved(size_bytes=len(content), sha256=order.id.ljust(64, "0"))
            self.outcomes[order.id] = MoveOutcome(id=order.id, version="1", moved=moved)
        self.gets.clear()

    def fill(self) -> None:
        """The disk is full for all that is under way."""
        for order in self.gets.values():
            self.outcomes[order.id] = MoveOutcome(
                id=order.id, error="no space left at the site", transient=True, no_space=True
            )
        self.gets.clear()

    def pop_outcome(self, order_id: str) -> MoveOutcome | None:
        return self.outcomes.pop(order_id, None)

    def is_done(self, order_ids: Iterable[str]) -> bool:
        return not any(each in self.gets for each in order_ids)

    def cancel(self, *order_ids: str) -> None:
        self.canceled += order_ids
        for order_id in order_ids:
            self.gets.pop(order_id, None)
            self.outcomes.pop(order_id, None)

    @property
    def is_busy(self) -> bool:
        return bool(self.gets)

    def close(self) -> None:
        self.gets.clear()


def stage_at(
    tmp_path: Path,
    *,
    bytes_max: int = 10 * MB,
    moving: FarFiles | None = None,
    copiers: Executor | None = None,
    directory: Path | None = None,
) -> Stage:
    config = SiteConfig(name="s", server="unix:/x", stage_bytes_max=bytes_max, endpoints=[Endpoint(url=HOST)])
    directory = directory or tmp_path / "stage"
    directory.mkdir(exist_ok=True)
    return Stage(directory, config, OwnedPlaces(Roots([tmp_path])), moving, copiers)


def spec_of(*urls: object, sha256: str | None = None) -> JobSpec:
    return JobSpec(
        app="a",
        events=1,
        inputs=[Input(name=f"in{number}", url=str(url), sha256=sha256) for number, url in enumerate(urls)],
    )


def file_of(tmp_path: Path, name: str, size_bytes: int) -> Path:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def ask_for(stage: Stage, job: int, spec: JobSpec) -> bool:
    """Whether the job has its inputs now."""
    try:
        stage.stage(job, spec, [(0, 1)], is_begun=False)
    except MovesPendingError:
        return False
    return True


def ask(stage: Stage, job: int, *urls: object) -> bool:
    """As `ask_for`, with these URLs."""
    return ask_for(stage, job, spec_of(*urls))


def test_inputs_that_do_not_fit_wait_and_are_staged_when_others_are_gone(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    files = [file_of(tmp_path, f"f{number}", 6 * MB) for number in range(2)]
    assert ask(stage, 1, files[0])
    with pytest.raises(NoRoomError):
        stage.stage(2, spec_of(files[1]), [(0, 1)], is_begun=False)
    assert "room for 6 MB (1 file)" in stage.waits_for(2)
    assert not stage.may_try(2)
    stage.clean(1)
    stage.look_for_room()
    stage._next_admit_s = 0.0
    assert stage.may_try(2)
    assert ask(stage, 2, files[1])
    assert not stage.waits_for(2)


def test_jobs_with_far_more_than_the_stage_holds_fetch_no_byte_beyond_it(tmp_path: Path) -> None:
    far = FarFiles(MB)
    stage = stage_at(tmp_path, bytes_max=100 * MB, moving=far)
    for _ in range(2):  # sizes come first
        for job in range(1, 401):
            ask(stage, job, f"{HOST}{job}")
    assert [order.bytes_max for order in far.gets.values()] == 100 * [MB]
    figures = stage.figures([])
    assert (figures.reserved_bytes, figures.waiting_bytes) == (100 * MB, 300 * MB)
    assert figures.waiting_jobs == 300


def test_one_content_is_looked_at_reserved_and_fetched_once_for_a_thousand_jobs(tmp_path: Path) -> None:
    far = FarFiles(6 * MB)
    stage = stage_at(tmp_path, moving=far)
    for _ in range(2):
        for job in range(1, 1001):
            ask(stage, job, f"{HOST}same")
    assert (len(far.looks), len(far.gets)) == (1, 1)
    assert stage.budget.taken == StageRoom(6 * MB, 1)
    far.come()
    assert all(ask(stage, job, f"{HOST}same") for job in range(1, 1001))
    assert stage.cache.figures.misses == 1
    assert not stage.budget.reserved


def test_an_input_larger_than_the_stage_is_refused_with_the_numbers(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    with pytest.raises(SiteError, match=r"job 1 needs 12000000 bytes .* at most 10000000 bytes") as error:
        stage.stage(1, spec_of(*(file_of(tmp_path, name, 6 * MB) for name in "ab")), [(0, 1)])
    assert not error.value.transient
    assert "stage_bytes_max" in str(error.value.hint)
    assert stage.figures([]).waiting_jobs == 0
    assert not list((tmp_path / "stage" / "files").iterdir())


def test_a_large_file_is_copied_beside_others_and_nobody_waits_for_it(tmp_path: Path) -> None:
    held = HeldCopies()
    stage = stage_at(tmp_path, bytes_max=1 << 40, copiers=held)
    large = [file_of(tmp_path, f"l{number}", INLINE_BYTES_MAX + 1) for number in range(2)]
    for job, path in ((1, large[0]), (2, large[1]), (3, large[0])):
        assert not ask(stage, job, path)
    assert len(held.tasks) == 2, "each content once"
    assert ask(stage, 4, file_of(tmp_path, "small", MB)), "it waited for large ones"
    held.run()
    assert all(ask(stage, job, path) for job, path in ((1, large[0]), (2, large[1]), (3, large[0])))
    (found,) = stage.stage(3, spec_of(large[0]), [(0, 1)])
    assert found.sha256 is not None, "it was hashed there, too"
    assert stage.cache.figures.misses == 3


def test_a_job_that_gets_no_room_for_all_its_inputs_holds_none_of_them(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    files = {
        name: file_of(tmp_path, name, size) for name, size in (("a", 4 * MB), ("b", 5 * MB), ("c", 5 * MB))
    }
    assert ask(stage, 1, files["a"])
    stage.clean(1)
    assert ask(stage, 1, files["c"])
    assert not ask(stage, 2, files["a"], files["b"])
    assert ask(stage, 3, files["a"]), "room was held for half of a job"


def test_what_is_reserved_for_a_canceled_job_is_given_to_the_next_and_its_move_is_broken_off(
    tmp_path: Path,
) -> None:
    far = FarFiles(6 * MB)
    stage = stage_at(tmp_path, moving=far)
    for job in (1, 1, 2, 2, 3, 3):
        ask(stage, job, f"{HOST}{min(job, 2)}")
    (order,) = far.gets.values()
    assert order.url == f"{HOST}1"
    stage.release(1)
    assert far.canceled == [order.id]
    ask(stage, 2, f"{HOST}2")
    ask(stage, 3, f"{HOST}2")
    stage.release(2)  # job 3 wants the same
    assert [each.url for each in far.gets.values()] == [f"{HOST}2"]
    stage.release(3)
    assert stage.budget.taken == StageRoom(0, 0)
    assert not far.gets


def test_after_a_restart_what_jobs_hold_is_counted_and_what_was_coming_is_not(tmp_path: Path) -> None:
    far = FarFiles(3 * MB)
    stage = stage_at(tmp_path, moving=far)
    held = file_of(tmp_path, "held", 6 * MB)
    assert ask(stage, 1, held)
    for _ in range(2):
        ask(stage, 2, f"{HOST}coming")
    assert far.gets
    (tmp_path / "stage" / "7").mkdir()
    (tmp_path / "stage" / "7" / "part-000000").write_bytes(b"p" * MB)  # of a merge step
    again = stage_at(tmp_path, moving=FarFiles(3 * MB))
    again.count_parts()
    assert again.figures([])[:3] == (1, 6 * MB, 6 * MB)
    assert again.budget.taken.bytes == MB
    assert ask(again, 1, held), "it holds it already"
    assert not ask(again, 3, file_of(tmp_path, "other", 4 * MB))
    assert ask(again, 4, file_of(tmp_path, "fits", 2 * MB))


def test_parts_of_dead_transfers_and_idle_copies_go_before_anybody_waits(tmp_path: Path) -> None:
    files = tmp_path / "stage" / "files"
    files.mkdir(parents=True)
    file_of(files, ".in-0123456789abcdef01234567.0123456789ab.part", 8 * MB)
    stage = stage_at(tmp_path)
    assert ask(stage, 1, file_of(tmp_path, "small", MB))
    assert list(files.glob("*.part")), "it may be gone on with"
    stage.clean(1)
    assert ask(stage, 2, file_of(tmp_path, "large", 9 * MB + 1))
    assert not list(files.glob("*.part"))
    assert sum(path.stat().st_size for path in files.glob("v-*")) <= 10 * MB


def test_temporary_files_of_a_killed_agent_are_swept_at_the_start(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    assert ask(stage, 1, file_of(tmp_path, "held", MB))
    files = tmp_path / "stage" / "files"
    (copy,) = files.glob("v-*")
    for name in (f".{copy.name}.json.77.0badcafe.tmp", ".in-77.tmp", f".{copy.name}.link", ".v-gone.sha256"):
        (files / name).write_bytes(b"half")
    before = {copy.name, f".{copy.name}.json", f".{copy.name}.sha256"}
    stage_at(tmp_path)
    assert {path.name for path in files.iterdir()} == before


def test_a_full_disk_makes_inputs_wait_and_fails_none(tmp_path: Path) -> None:
    far = FarFiles(MB)
    stage = stage_at(tmp_path, moving=far)
    for _ in range(2):
        for job in (1, 5):
            ask(stage, job, f"{HOST}x")
    far.fill()
    with pytest.raises(NoRoomError):
        stage.stage(1, spec_of(f"{HOST}x"), [(0, 1)], is_begun=False)
    assert stage.waits_for(1)
    assert not stage.may_try(1), "a full disk is not asked again at once"
    assert not ask(stage, 2, file_of(tmp_path, "other", MB))
    assert not ask(stage, 5, f"{HOST}x")
    assert stage.waits_for(5), "it wants what could not be written"
    assert not far.gets
    stage.budget._full_until_s = 0.0
    stage._next_admit_s = 0.0
    assert [job for job in (1, 2, 5) if stage.may_try(job)] == [5], "one at a time"
    ask(stage, 5, f"{HOST}x")
    ask(stage, 1, f"{HOST}x")
    far.come()
    assert all(ask(stage, job, f"{HOST}x") for job in (5, 1))
    stage._next_admit_s = 0.0
    assert stage.may_try(2)


def test_a_real_full_file_system_is_seen_before_and_while_a_file_is_copied(tmp_path: Path) -> None:
    small, held = tmp_path / "small", HeldCopies()
    with small_disk(small, "80m"):
        stage = stage_at(tmp_path, bytes_max=1 << 40, directory=small / "stage", copiers=held)
        assert not ask(stage, 1, file_of(tmp_path, "huge", 100 * MB)), "more than is free"
        assert "on the disk of the site's stage" in stage.waits_for(1)
        assert ask(stage, 2, file_of(tmp_path, "fits", 2 * MB))
        large = file_of(tmp_path, "large", INLINE_BYTES_MAX + 1)
        assert not ask(stage, 3, large)
        assert not stage.waits_for(3), "it is being copied"
        (small / "of others").write_bytes(os.urandom(40 * MB))
        held.run()
        assert not ask(stage, 3, large)
        assert stage.waits_for(3)
        assert not list((small / "stage" / "files").glob(".in-*"))
        (small / "of others").unlink()
        stage.budget._full_until_s = 0.0
        stage.release(1)
        assert not ask(stage, 3, large)
        held.run()
        assert ask(stage, 3, large)


def test_the_number_of_files_is_bounded_like_their_bytes(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    stage.budget.limit = StageRoom(10 * MB, 3)
    files = [file_of(tmp_path, f"f{number}", 1) for number in range(4)]
    assert ask(stage, 1, *files[:3])
    assert not ask(stage, 2, files[3])
    stage.clean(1)
    assert ask(stage, 2, files[3])


def test_events_are_staged_in_steps_that_fit_and_those_that_are_over_make_room(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, bytes_max=8 * MB)
    for number in range(20):
        file_of(tmp_path, f"e{number}", MB)
    (tmp_path / "list").write_text("".join(f"{tmp_path}/e{number}\n" for number in range(20)))
    each = Input(name="in", url=str(tmp_path / "list"), kind=InputKind.EACH)
    spec = JobSpec(app="a", events=20, inputs=[each])
    with pytest.raises(StepTooLargeError) as error:
        stage.stage(1, spec, [(0, 20)], is_begun=False)
    assert error.value.events_max == 1
    for event in range(7):
        stage.stage(1, spec, [(event, event + 1)])
    with pytest.raises(NoRoomError):
        stage.stage(1, spec, [(7, 8)])
    folder = tmp_path / "stage" / "1" / "in.d"
    assert len(list(folder.iterdir())) == 7, "what is in use stays"
    stage.drop_events(1, IntervalSet([(5, 20)]))
    assert sorted(path.name for path in folder.iterdir()) == ["5", "6"]
    stage.look_for_room()
    stage.stage(1, spec, [(7, 8)])


def test_one_job_may_have_more_than_its_owners_part_though_it_asks_twice(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    assert ask_as(stage, "ada", 1, spec_of(file_of(tmp_path, "small", MB // 10))), "another owner is there"
    shared = Input(name="in", url=str(file_of(tmp_path, "shared", 7 * MB)))
    (tmp_path / "list").write_text(f"{file_of(tmp_path, 'event', MB)}\n")
    each = Input(name="each", url=str(tmp_path / "list"), kind=InputKind.EACH)
    spec = JobSpec(app="a", events=1, inputs=[shared, each])
    assert any([ask_as(stage, "eve", 2, spec) for _ in range(6)])
    more = spec_of(file_of(tmp_path, "more", MB))
    assert not any([ask_as(stage, "eve", 3, more) for _ in range(6)]), "another one of hers may not"


def test_after_a_restart_what_an_owners_jobs_hold_is_that_owners_still_each_copy_once(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    held, other = spec_of(file_of(tmp_path, "held", 6 * MB)), spec_of(file_of(tmp_path, "other", 2 * MB))
    small = spec_of(file_of(tmp_path, "small", MB // 10))
    for job in (1, 2):
        assert ask_as(stage, "eve", job, held)
    again = stage_at(tmp_path)
    for job in (1, 2):
        assert ask_as(again, "eve", job, held)
    assert ask_as(again, "ada", 4, small)
    assert not any([ask_as(again, "eve", 5, other) for _ in range(6)]), "it is above three quarters"
    assert ask_as(again, "eve", 3, held)
    assert again.budget.rooms.shares(now_s=0).has("eve") == StageRoom(6 * MB, 1)
    for job in (1, 2, 3):
        again.clean(job)
    assert again.budget.rooms.shares(now_s=0).has("eve") == StageRoom(0, 0)
    assert ask_as(again, "eve", 5, other)


def ask_as(stage: Stage, owner: str, job: int, spec: JobSpec) -> bool:
    """Whether this owner's job has its inputs now."""
    try:
        return bool(stage.stage(job, spec, [(0, 1)], Reader(owner), is_begun=False))
    except MovesPendingError:
        return False


def test_a_file_that_has_grown_since_room_was_reserved_is_asked_for_again(tmp_path: Path) -> None:
    far = FarFiles(MB)
    stage = stage_at(tmp_path, moving=far)
    for _ in range(2):
        ask(stage, 1, f"{HOST}x")
    (order,) = far.gets.values()
    assert order.bytes_max == MB
    far.gets.clear()
    far.outcomes[order.id] = MoveOutcome(id=order.id, version="2", size_bytes=2 * MB)
    assert not ask(stage, 1, f"{HOST}x")
    assert not ask(stage, 1, f"{HOST}x")
    assert stage.budget.taken.bytes == 2 * MB


def test_two_threads_and_many_jobs_end_with_one_copy_each(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    files = [file_of(tmp_path, f"f{number}", MB) for number in range(3)]
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for job in range(number, 60, 6):
            while not ask(stage, job, *files):
                pass

    with ThreadPoolExecutor(6) as threads:
        for each in [threads.submit(work, number) for number in range(6)]:
            each.result()
    assert (stage.cache.figures.misses, stage.cache.files) == (3, 3)
    assert not stage.budget.reserved
    assert not stage.cache._holders
    assert msgspec.json.encode(stage.figures([]).waiting_jobs) == b"0"


def test_jobs_that_wait_hold_nothing_so_that_two_do_not_wait_for_each_other(tmp_path: Path) -> None:
    far = FarFiles(4 * MB)
    stage = stage_at(tmp_path, moving=far)
    specs: dict[int, JobSpec] = {}
    for job in (1, 2):
        own = file_of(tmp_path, f"own{job}", 3 * MB)
        (tmp_path / f"list{job}").write_text(f"{own}\n")
        each = Input(name="each", url=str(tmp_path / f"list{job}"), kind=InputKind.EACH)
        specs[job] = JobSpec(app="a", events=1, inputs=[Input(name="far", url=f"{HOST}{job}"), each])
    done: list[int] = []
    for _ in range(20):
        for job in specs.keys() - set(done):
            stage._next_admit_s = 0.0
            if stage.may_try(job) and ask_for(stage, job, specs[job]):
                done.append(job)
                stage.clean(job)
        far.come(b"x" * 4 * MB)
        stage.look_for_room()
    assert sorted(done) == [1, 2], f"both wait: {stage.budget.waiting}"
    assert not stage.cache._holders
    assert not stage.budget.reserved


def test_a_job_that_waits_for_a_trouble_to_end_holds_none_of_its_inputs(tmp_path: Path) -> None:
    far = FarFiles(4 * MB)
    stage = stage_at(tmp_path, moving=far)
    (tmp_path / "list").write_text(f"{HOST}each\n")
    each = Input(name="each", url=str(tmp_path / "list"), kind=InputKind.EACH)
    spec = JobSpec(
        app="a", events=1, inputs=[Input(name="own", url=str(file_of(tmp_path, "o", 5 * MB))), each]
    )
    for _ in range(2):
        assert not ask_for(stage, 1, spec)
    (order,) = far.gets.values()
    far.gets.clear()
    far.outcomes[order.id] = MoveOutcome(id=order.id, error="the server is away", transient=True)
    with pytest.raises(SiteError, match="the server is away"):
        stage.stage(1, spec, [(0, 1)], is_begun=False)
    stage.look_for_room()
    assert ask(stage, 2, file_of(tmp_path, "other", 9 * MB))


def test_a_job_that_was_refused_waits_for_room_for_all_of_its_inputs_again(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    assert ask(stage, 9, file_of(tmp_path, "busy", 4 * MB))
    (tmp_path / "list").write_text(f"{file_of(tmp_path, 'e', 3 * MB)}\n")
    each = Input(name="each", url=str(tmp_path / "list"), kind=InputKind.EACH)
    spec = JobSpec(
        app="a", events=1, inputs=[Input(name="own", url=str(file_of(tmp_path, "o", 4 * MB))), each]
    )
    assert not ask_for(stage, 1, spec)
    size = (tmp_path / "list").stat().st_size
    assert stage.budget.waiting[1].room == StageRoom(7 * MB + size, 3)
    stage._next_admit_s = 0.0
    assert not stage.may_try(1), "its first step would fit, and be for nothing"


def test_a_need_is_worked_out_again_as_others_may_have_brought_what_it_needs(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    common, own = file_of(tmp_path, "common", 4 * MB), file_of(tmp_path, "own", 5 * MB // 2)
    assert ask(stage, 1, file_of(tmp_path, "busy1", 3 * MB))
    assert ask(stage, 4, file_of(tmp_path, "busy4", MB))
    assert not ask(stage, 2, common, own)
    assert ask(stage, 3, common)
    stage.clean(4)
    stage.look_for_room()
    stage._next_admit_s = 0.0
    assert not stage.may_try(2)
    stage.budget._recounts = {job: each._replace(at_s=0.0) for job, each in stage.budget._recounts.items()}
    stage._next_admit_s = 0.0
    assert stage.may_try(2)
    assert ask(stage, 2, common, own)
    assert not stage.budget._recounts


def test_inputs_larger_than_the_disk_wait_and_keep_nobody_out(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, bytes_max=1 << 60)
    huge = file_of(tmp_path, "huge", 0)
    os.truncate(huge, shutil.disk_usage(tmp_path).total * 2)
    assert not ask(stage, 1, huge)
    assert "even when nothing else is staged" in stage.waits_for(1)
    need = stage.budget.waiting[1]
    for days in (1, 2, 3):
        long_ago_s = need.since_s - 86400.0 * days
        stage.budget.waiting[1] = need._replace(since_s=long_ago_s)
        stage.budget._first_s[1] = stage.budget._scarce_since_s = long_ago_s
        assert ask(stage, 10 + days, file_of(tmp_path, f"small{days}", MB))
    assert stage.late(3 * 86400.0) == [1]


class BrokenDisk(HeldCopies):
    """Copies that are made turn into directories before they are hashed."""

    def __init__(self, files: Path) -> None:
        super().__init__()
        self.files = files

    def run(self) -> None:
        for path in self.files.glob("v-*"):
            path.rename(self.files / "away")
            path.mkdir()
        super().run()
        for path in self.files.glob("v-*"):
            path.rmdir()
            (self.files / "away").rename(path)


def test_a_digest_that_cannot_be_made_is_reported_like_other_errors(tmp_path: Path) -> None:
    held = BrokenDisk(tmp_path / "stage" / "files")
    stage = stage_at(tmp_path, bytes_max=1 << 40, copiers=held)
    large = file_of(tmp_path, "large", INLINE_BYTES_MAX + 1)
    spec = spec_of(large)
    with ThreadPoolExecutor(1) as threads:
        stage._contents._copiers = threads
        while not ask_for(stage, 1, spec):
            pass
    stage._contents._copiers = held
    for path in held.files.glob(".v-*.sha256"):
        path.unlink()
    assert not ask_for(stage, 2, spec), "it is hashed by a thread"
    held.run()
    with pytest.raises(SiteError, match="directory"):
        stage.stage(2, spec, [(0, 1)], is_begun=False)
    assert not stage._contents._failed


def test_outputs_that_wait_for_their_delivery_leave_less_room_for_inputs(tmp_path: Path) -> None:
    far = FarFiles(MB)
    stage = stage_at(tmp_path, moving=far)
    out = tmp_path / "stage" / "out"
    departures = Departures(out, far, stage.outgoing)

    def write(path: Path) -> None:
        path.touch()
        os.truncate(path, 6 * MB)

    path = departures.prepare(7, "hits", "0", write)
    assert departures.prepare(7, "hits", "0", lambda _: pytest.fail("it is there")) == path
    assert stage.outgoing.room == StageRoom(6 * MB, 1)
    assert not ask(stage, 1, file_of(tmp_path, "large", 5 * MB))
    assert "6 MB of 10 MB are in use" in stage.waits_for(1)
    assert ask(stage, 2, file_of(tmp_path, "fits", 3 * MB))
    stage.clean(2)
    again = stage_at(tmp_path, moving=far)
    Departures(out, far, again.outgoing).count()
    assert again.outgoing.room == StageRoom(6 * MB, 1), "after a restart, too"
    departures.clean(7)
    assert ask(stage, 1, tmp_path / "large")
    departures.forget(7)
    assert stage.outgoing.room == StageRoom(0, 0)


def test_an_output_that_went_to_a_former_directory_goes_to_the_new_one(tmp_path: Path) -> None:
    """The site took it for sent there, after another output had failed and a retry named a new directory."""
    far = FarFiles(1)
    departures = Departures(tmp_path / "out", far)
    built: list[Path] = []
    sent: list[str] = []

    def build(path: Path) -> None:
        path.write_text("hits")
        built.append(path)

    def delivered(url: str) -> bool:
        path = departures.prepare(7, "hits", "0", build, url=url)
        if departures.send(7, "hits", path, Destination(url), []) is not None:
            return True
        sent.extend(each.url for each in far.gets.values())
        far.come(b"hits")
        return departures.send(7, "hits", path, Destination(url), []) is not None

    for url in (f"{HOST}full/hits", f"{HOST}other/hits", f"{HOST}other/hits"):
        assert delivered(url)
    assert sent == [f"{HOST}full/hits", f"{HOST}other/hits"]
    departures.clean(7)
    assert len(built) == 1
    assert delivered(f"{HOST}third/hits")
    assert len(built) == 2


def test_what_is_forgotten_is_not_sent_any_more(tmp_path: Path) -> None:
    far = FarFiles(1)
    departures = Departures(tmp_path / "out", far)
    path = departures.prepare(7, "hits", "0", lambda path: path.write_text("hits"))
    departures.send(7, "hits", path, Destination(f"{HOST}hits"), [])
    assert far.gets
    departures.forget(7)
    assert not far.gets
    assert not path.parent.exists()


def test_no_copy_is_read_while_other_threads_wait_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a URL whose content is another one now, only the first of two copies was compared before."""
    stage = stage_at(tmp_path, moving=FarFiles(1))
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in "ab"}
    for name, digest in digests.items():
        (tmp_path / name).write_text(name)
        copy = stage.cache.adopt(tmp_path / name, f"{HOST}{name}", version="1", sha256=digest)
        stage.cache._kept[copy].boot = "another"
    held: list[bool] = []
    digest_of = hashlib.file_digest

    def noted(file: Any, algorithm: Any) -> Any:
        held.append(stage._lock.locked())
        return digest_of(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    assert ask_for(stage, 1, spec_of(f"{HOST}a", sha256=digests["b"]))
    assert held == [False, False]


def test_no_copy_that_is_in_use_is_inspected_while_other_threads_wait_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_at(tmp_path)
    for job in range(1, 6):
        assert ask(stage, job, file_of(tmp_path, f"f{job}", MB))
    stage.clean(1)
    held: list[Path] = []
    look = Path.stat

    def noted(path: Path, **named: Any) -> os.stat_result:
        if stage._lock.locked() and path.parent.name == "files":
            held.append(path)
        return look(path, **named)

    monkeypatch.setattr(Path, "stat", noted)
    stage.look_for_room()
    assert stage.figures([]).pinned_bytes == 4 * MB
    assert len(held) <= 2, "only the one that has no links"


def test_a_row_of_columns_names_no_file_whatever_its_first_column_is(tmp_path: Path) -> None:
    stage = stage_at(tmp_path)
    (tmp_path / "list").write_text(f"{file_of(tmp_path, 'card', MB)}\t1\n/not/there\t2\n")
    each = Input(name="lines", url=str(tmp_path / "list"), kind=InputKind.EACH)
    stage.stage(1, JobSpec(app="a", events=2, inputs=[each]), [(0, 2)], is_begun=False)
    assert not (tmp_path / "stage" / "1" / "lines.d").exists()
