"""A submitter reaches for what the site has delivered to another one: by paths, links and lists, and by writing there.

The server's own user may name any owner: these jobs come as ada's, eve's and their own person's.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.world import World, world

from tidemill.client.outputs import local_path
from tidemill.model.job import Input, InputKind, JobSpec, Output
from tidemill.wire.api import SubmitReply, SubmitRequest

OTHERS = "not among those of this job's owner"


class Site:
    """A site with the outputs of ada, and of the person whose site it is."""

    def __init__(self, it: World) -> None:
        self.it = it
        self._keys = 0
        self.ada = self.submit("ada", "c", writing("ada's"))
        self.person = self.submit(getpass.getuser(), "old", writing("the person's"))
        for job in (self.ada, self.person):
            assert self.ended(job) == "COMPLETED"
        self.adas, self.persons = self.path(self.ada), self.path(self.person)

    def submit(self, owner: str, campaign: str, spec: JobSpec) -> int:
        """A job of this owner's."""
        self._keys += 1
        request = SubmitRequest(key=f"k{self._keys}", campaign=campaign, owner=owner, jobs=[spec])
        return self.it.client.connection.call("POST", "/v1/jobs", SubmitReply, body=request).first_job

    def ended(self, job: int) -> str:
        """The job's last state."""
        it = self.it
        it.wait_for(lambda: it.client.job(job).row.state in ("COMPLETED", "FAILED"), f"job {job} ends")
        return it.client.job(job).row.state

    def path(self, job: int) -> Path:
        """Where the job's output lies."""
        (output,) = self.it.client.job(job).outputs
        return local_path(output)

    def refused(self, specs: list[JobSpec], why: str = OTHERS) -> None:
        """Such jobs of eve's fail, and say why."""
        for job in [self.submit("eve", "eves", spec) for spec in specs]:
            assert self.ended(job) == "FAILED"
            found = self.it.client.job(job)
            said = [found.row.reason, *(each.evidence.message for each in found.failures)]
            assert any(why in text for text in said), said

    def read(self, owner: str, campaign: str, url: str) -> str:
        """What a job reads at such a place."""
        job = self.submit(owner, campaign, reading(url))
        assert self.ended(job) == "COMPLETED", self.it.client.job(job).failures
        return self.path(job).read_text()


def writing(text: str, **spec: object) -> JobSpec:
    outputs = [Output(name="hits", path="hits")]
    return JobSpec(command=["/bin/sh", "-c", f'echo "{text}" > hits'], outputs=outputs, retries=0, **spec)  # type: ignore[arg-type]


def reading(url: str, kind: InputKind = InputKind.SHARED) -> JobSpec:
    return JobSpec(
        command=["/bin/sh", "-c", "cat in > copy"],
        inputs=[Input(name="in", url=url, kind=kind)],
        outputs=[Output(name="copy", path="copy")],
        retries=0,
    )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """All files of the machine are data: what is delivered is not, even there."""
    with world(nodes=1, cores=2) as it:
        yield Site(it)


def test_anothers_outputs_are_no_inputs(site: Site) -> None:
    out = site.it.home / "site" / "out"
    assert site.adas.is_relative_to(out / "@ada")
    assert site.persons.parent == out / "old"
    way_in = site.it.home / "me" / "way_in"
    way_in.symlink_to(site.adas)
    lines = site.it.home / "me" / "lines"
    lines.write_text(f"{site.adas}\n")
    urls = [
        str(site.adas),
        site.adas.as_uri(),
        str(way_in),
        str(out / "@eve" / ".." / "@ada" / site.adas.relative_to(out / "@ada")),
        str(site.adas.parent / f"manifest-{site.ada}.json"),
        str(site.persons),
    ]
    site.refused([*map(reading, urls), reading(str(lines), InputKind.EACH)])


def test_nothing_is_written_among_anothers_outputs(site: Site) -> None:
    def names() -> list[str]:
        return sorted(str(path) for path in site.it.home.glob("site/out/**/*") if "@eve" not in str(path))

    before = names()
    out = site.it.home / "site" / "out"
    specs = []
    for place in (site.adas.parent, site.persons.parent, out, out / "@new", out / "@eve" / ".." / "@ada"):
        specs.append(writing("eve's", output_dir=str(place)))
        named = [Output(name="hits", path="hits", url=str(place / "planted"))]
        specs.append(JobSpec(command=["/bin/sh", "-c", "echo x > hits"], outputs=named, retries=0))
    site.refused(specs)
    assert names() == before


def test_no_manifest_is_forged(site: Site) -> None:
    """It would make a file that is there already one that a later job may replace."""
    place = site.it.home / "me" / "planted"
    named = [Output(name="hits", path="hits", url=str(place / "manifest-99.json"))]
    spec = JobSpec(command=["/bin/sh", "-c", "echo x > hits"], outputs=named, retries=0)
    site.refused([spec], why="has the name of a manifest")
    assert not place.exists()


def test_ones_own_outputs_are_read_as_before(site: Site) -> None:
    assert site.read("ada", "c", f"job:{site.ada}/hits") == "ada's\n"
    assert site.read("ada", "c", site.adas.as_uri()) == "ada's\n"
    assert site.read(getpass.getuser(), "old", f"job:{site.person}/hits") == "the person's\n"
    assert site.read(getpass.getuser(), "old", str(site.persons)) == "the person's\n"


def test_what_an_older_version_delivered_is_found_by_the_job_that_it_is_of(site: Site) -> None:
    """It lies beside the person's outputs, and the server, which knows whose it is, names the job."""
    assert site.read("eve", "eves", f"job:{site.person}/hits") == "the person's\n"
    got = site.it.run("outputs", "get", str(site.person))
    assert got.returncode == 0, got.stderr
    assert (site.it.home / "me" / site.persons.name).read_text() == "the person's\n"
