"""A site's payloads teach it which way is quicker, and it remembers that over a restart of its agent."""

from __future__ import annotations

from pathlib import Path

from tests.unit.site.data.test_site_routing import CACHES, ORIGIN, PROGRAM, RoutingStage, shared

from tidemill import clock
from tidemill.model.job import Input, InputKind, JobSpec, ReadAs
from tidemill.routing.learned import SAMPLES_MIN
from tidemill.site.data.owners import Reader
from tidemill.site.data.way_learning import TAKEN_MAX, learner
from tidemill.wire.node import Done, IndexEntry

PLACE = "root://origin.example.org:1094"
READER = PROGRAM._replace(app="a", ready=[(0, 20)])


def done(
    job: int, first: int, *, wait_s: float, count: int = 1, cpu_s: float = 1.0, at_us: int | None = None
) -> Done:
    wall_us, cpu_us = round((wait_s + cpu_s) * 1e6), round(cpu_s * 1e6)
    started_us = clock.now_us() if at_us is None else at_us
    return Done(
        p="p", s=1, grant=1, job=job, first=first, count=count, payloads=1, slot=0, started_us=started_us,
        ended_us=started_us + wall_us, wall_us=wall_us, setup_us=0, user_us=cpu_us, system_us=0, rss_kb=1,
        read_bytes=None, write_bytes=None, outputs=[],
    )  # fmt: skip


def traced(job: int, first: int, count: int = 1) -> IndexEntry:
    return IndexEntry(
        kind="profile",
        job=job,
        first=first,
        count=count,
        name="profile",
        offset=0,
        length=1,
        sha256="",
        truncated=False,
    )


def why(made: RoutingStage, job: int) -> str:
    (row,) = made.stage.routes.rows(job)
    return row.why


def test_a_cache_that_payloads_waited_for_loses_the_next_job_and_a_restart_remembers_it(
    tmp_path: Path,
) -> None:
    made = RoutingStage(tmp_path, caches=CACHES)
    learning = made.stage.routes.learning
    assert made.opened(made.lay_out(shared(), READER, events=20)).startswith("root://cache.")

    told = [learning.on_records([done(1, event, wait_s=3000.0)]) for event in range(SAMPLES_MIN + 1)]
    assert told == [set()] * (SAMPLES_MIN - 1) + [{1}, set()], "its inputs are laid out again, once"
    assert made.opened(made.lay_out(shared(), READER, events=20)) == ORIGIN, "the same job, too"
    made.stage.routes.links._next_write_s = 0.0
    made.stage.routes.links.write()

    again = RoutingStage(tmp_path, caches=CACHES)
    assert again.opened(again.lay_out(shared(), READER, job=2, events=20)) == ORIGIN
    assert again.opened(again.lay_out(shared(), READER._replace(app="b"), job=3, events=20)) != ORIGIN

    for event in range(SAMPLES_MIN):
        again.stage.routes.learning.on_records([done(2, event, wait_s=9000.0)])
    assert again.opened(again.lay_out(shared(), READER, job=4, events=20)).startswith("root://cache.")
    assert "(the median of 6 payloads, 50 m 00 s each), directly" in why(again, 4)


def test_only_payloads_that_say_something_about_one_way_count(tmp_path: Path) -> None:
    made = RoutingStage(tmp_path, caches=CACHES)
    learning, links = made.stage.routes.learning, made.stage.routes.links
    before_us = clock.now_us() - 1_000_000
    made.lay_out(shared(), READER, events=20)
    for event in range(9):
        learning.on_records(
            [done(1, event, wait_s=-0.5), done(9, event, wait_s=5.0)]
        )  # many cores; a job nobody knows
        learning.on_records([done(1, event, wait_s=5.0, at_us=before_us)])  # begun before this way was chosen
    assert links.learned("a", None).waits == {}

    two = [
        Input(name="f", url=ORIGIN, read=ReadAs.URL),
        Input(name="g", url="root://near.example.org//store/g.root", read=ReadAs.URL),
    ]
    made.rtts["root://near.example.org:1094"] = 0.001
    for one in two:
        made.stage.stage(5, JobSpec(app="a", events=20, inputs=[one]), [(0, 20)], _reader())
    for event in range(9):
        learning.on_records([done(5, event, wait_s=5.0)])
    assert links.learned("a", None).waits == {}, "nobody knows which of two ways made it wait"


def test_events_of_an_each_input_teach_by_their_own_way_and_the_traced_bytes_by_the_file(
    tmp_path: Path,
) -> None:
    made = RoutingStage(tmp_path, caches=CACHES)
    learning, links = made.stage.routes.learning, made.stage.routes.links
    urls = [f"root://origin.example.org//store/{number}.root" for number in range(8)]
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data/list.txt").write_text("".join(f"{each}\n" for each in urls))
    one = Input(name="f", url=str(tmp_path / "data/list.txt"), kind=InputKind.EACH, read=ReadAs.URL)
    made.lay_out(one, READER._replace(ready=[(0, 8)]), events=8)

    for first in range(0, 8, 2):
        learning.on_records([done(1, first, count=2, wait_s=8.0)])
        learning.traced(traced(1, first, 2), 4_000_000)
    learning.on_records([done(1, 7, count=2, wait_s=8.0)])  # of an event that is not laid out
    learning.on_records([done(1, 7, wait_s=4.0)])
    learning.traced(traced(1, 7), 2_000_000)

    found = links.learned("a", None)
    assert [(each.value, each.payloads) for each in found.waits.values()] == [(4.0, 5)]
    assert found.part_bytes is not None
    assert found.part_bytes.value == 2_000_000
    made.lay_out(one, READER._replace(ready=[(0, 8)]), job=2, events=8)
    chosen = made.stage.routes.rows(2)[0].why
    assert chosen.startswith("directly"), "a direct read of 2 MB is expected to take 1.4 s"
    assert "(5 payloads read 2 MB of a file)" in chosen


def test_a_ward_that_asks_for_a_cache_gets_it_for_a_near_file(tmp_path: Path) -> None:
    made = RoutingStage(tmp_path, caches=CACHES)
    made.rtts[PLACE] = 0.001
    assert made.opened(made.lay_out(shared())) == ORIGIN

    asking = PROGRAM._replace(why_cached="a ward of the hospital asks for a cache")
    assert made.opened(made.lay_out(shared(), asking, job=2)) == f"root://cache.example.org:1095//{ORIGIN}"
    assert "a ward of the hospital asks for a cache" in why(made, 2)


def test_what_is_remembered_of_jobs_is_bounded_and_commands_learn_by_what_they_run(tmp_path: Path) -> None:
    made = RoutingStage(tmp_path, caches=CACHES)
    learning = made.stage.routes.learning
    made.lay_out(shared(), READER, events=20)
    (entry,) = learning._chosen_ways.values()
    for job in range(TAKEN_MAX + 10):
        learning._chosen_ways[job + 10, 0] = entry
    made.lay_out(shared(), READER, job=3, events=20)
    assert len(learning._chosen_ways) <= TAKEN_MAX

    assert learner(JobSpec(app="a", events=1)) == "a"
    same, other = (JobSpec(command=["read", word], events=1) for word in ("{input.f}", "-v"))
    assert learner(same) == learner(JobSpec(command=["read", "{input.f}"], events=9)) != learner(other)


def _reader() -> Reader:
    return Reader(opening=READER)
