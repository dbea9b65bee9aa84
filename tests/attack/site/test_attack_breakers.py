"""One owner's failing inputs beside another's good ones, at one data server: the other's jobs end, and soon.

The server's own user may name any owner: these jobs come as eve's and ada's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.unit.transfer.http_origin import Origin, answer, origin
from tests.worlds.home.world import World, world

from tidemill.model.job import Input, JobSpec, Resources
from tidemill.wire.api import SubmitReply, SubmitRequest

SOON_S = 60.0
"""Far more than ada's job takes on a busy machine, and far less than it waited for a breaker that eve opened."""

CONTENT = b"good\n" * 1000


class Site:
    """A site with one data server, and jobs of both."""

    def __init__(self, it: World, data: Origin) -> None:
        self.it, self.data = it, data
        self._number = 0

    def submit(self, owner: str, path: str, count: int = 1, command: str = "wc -c < in") -> list[int]:
        """Jobs of this owner's, each with an input of its own below a path."""
        self._number += 1
        specs = [
            JobSpec(
                command=["/bin/sh", "-c", command],
                inputs=[Input(name="in", url=f"{self.data.base}/exp/{path}/{self._number}-{number}")],
                resources=Resources(event_s=0.1),
            )
            for number in range(count)
        ]
        request = SubmitRequest(key=f"k{self._number}", campaign=f"{owner}s", owner=owner, jobs=specs)
        first = self.it.client.connection.call("POST", "/v1/jobs", SubmitReply, body=request).first_job
        return list(range(first, first + count))

    def seconds(self, owner: str, count: int = 1) -> float:
        """How long good jobs of this owner's take, from submission to their end."""
        begun_s = time.monotonic()
        for job in self.submit(owner, "good", count):
            self.it.wait_for(lambda job=job: self.state(job) == "COMPLETED", f"job {job} ends", SOON_S)
        return time.monotonic() - begun_s

    def state(self, job: int) -> str:
        return self.it.client.job(job).row.state

    def explained(self, job: int, *parts: str) -> None:
        """Wait until `job explain` says all of this."""
        self.it.wait_for(
            lambda: all(part in (self.it.client.job(job).waits_hint or "") for part in parts),
            f"job {job} is explained by {parts}",
        )


@pytest.fixture
def site() -> Iterator[Site]:
    with origin() as data:
        hang = threading.Event()

        def decide(method: str, target: str, headers: dict[str, str]) -> bytes | None:
            is_head = method == "HEAD"
            if target == "/exp/":
                return answer("200 OK", b"", is_head=is_head)
            way = target.split("/")[2]
            if way == "hang":
                hang.wait(20)
            if way in ("503", "403", "500"):
                return answer(f"{way} No", is_head=is_head)
            whole = answer("200 OK", CONTENT, is_head=is_head)
            if way == "cut" and not is_head:
                return whole[:-100].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            return whole

        data.decide = decide
        extra = f'endpoints = [{{ url = "{data.base}/exp/" }}]'
        timing = {"transfer": {"TRIES_MAX": 2, "PAUSE_S": 0.1, "STALL_S": 3}}
        try:
            with world(nodes=1, cores=2, extra=extra, timing=timing) as it:
                yield Site(it, data)
        finally:
            hang.set()


@pytest.mark.parametrize(("way", "count"), [("503", 12), ("403", 6), ("hang", 12), ("cut", 12)])
def test_jobs_whose_inputs_fail_hold_up_no_other_owners_jobs(site: Site, way: str, count: int) -> None:
    site.seconds("ada")
    jobs = site.submit("eve", way, count)
    site.explained(jobs[0], "tried again at")  # its breaker is open
    for _ in range(3):
        site.seconds("ada")
    site.explained(jobs[0], "blocked for jobs of eve below `" + site.data.base + f"/exp/{way}/` only")
    assert {site.state(job) for job in jobs} <= {"WAITING", "RUNNING"}
    assert "for jobs of eve below" in " ".join(site.it.run("site", "status").stdout.split())


def test_paths_without_number_that_fail_are_one_trouble_of_their_owner(site: Site) -> None:
    """A server is not asked again by each of a hundred directories, and others use it."""
    site.seconds("ada")
    jobs = [site.submit("eve", f"503/{number}")[0] for number in range(20)]
    site.explained(jobs[-1], "blocked for jobs of eve only")
    more = [site.submit("eve", f"503/more{number}")[0] for number in range(40)]
    site.seconds("ada", count=5)
    asked = {each for each in site.data.targets("HEAD") if each.startswith("/exp/503/more")}
    assert len(asked) < 10, "but for trials, none of them is tried"
    site.it.run("cancel", *map(str, jobs + more))


def test_a_server_that_is_down_closes_for_all_by_the_sites_own_question(site: Site) -> None:
    site.seconds("ada")
    decide = site.data.decide
    site.data.decide = lambda method, target, headers: answer("503 Down", is_head=method == "HEAD")
    jobs = site.submit("eve", "good", 6)
    site.explained(jobs[0], "the site asked by itself", "blocked for all owners")
    (late,) = site.submit("ada", "good")
    site.explained(late, "blocked for all owners")
    site.data.decide = decide
    for job in (late, *jobs):
        site.it.wait_for(lambda job=job: site.state(job) == "COMPLETED", f"job {job} ends", 180)


def test_two_owners_whose_jobs_fail_close_it_for_all_and_anothers_success_opens_it(site: Site) -> None:
    """The third is the one whose job is tried: of the two, both failed."""
    site.seconds("ada")
    site.submit("eve", "503", 6)
    site.submit("bob", "500", 6)
    (late,) = site.submit("ada", "good")
    site.it.wait_for(lambda: site.state(late) == "COMPLETED", "ada's job is tried first", SOON_S)
