"""Whose delivered outputs are: a directory for each owner, which nobody else's jobs reach but by `job:ID/OUTPUT`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.site.data.owners import OwnedPlaces, Reader, directory_name, person_of
from tidemill.site.data.staging import Stage
from tidemill.transfer.file import Roots

CONFIG = SiteConfig(name="s", server="unix:/x")
OWNERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(OWNERS, OWNERS)
def test_each_owner_has_one_plain_name_of_a_directory(one: str, other: str) -> None:
    name = directory_name(one)
    assert name.startswith("@")
    assert name.isascii()
    assert name.isprintable()
    assert "/" not in name
    assert len(name) <= 255
    assert (name == directory_name(other)) == (one == other)


def test_names_that_are_made_to_meet_do_not() -> None:
    long = "x" * 200
    names = [
        "",
        ".",
        "..",
        "a",
        "A",
        "a/b",
        "a%2Fb",
        "@a",
        "a ",
        "a=",
        long,
        long[:-1],
        long + "=",
        directory_name(long),
    ]
    assert len({directory_name(each) for each in names}) == len(names)
    assert directory_name("ada lovelace") == "@ada%20lovelace"


def test_only_a_site_that_serves_nobody_else_knows_a_person_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert person_of(CONFIG) == {"", "ada"}
    assert person_of(SiteConfig(name="s", server="unix:/x", shared=True)) == frozenset()


class Outputs:
    """A delivery directory with files of two owners and one of an older version; a data root around it."""

    def __init__(self, home: Path) -> None:
        self.base = home / "site" / "out"
        self.ada = self.base / "@ada" / "c" / "1-hits"
        self.eve = self.base / "@eve" / "c" / "2-hits"
        self.before = self.base / "c" / "3-hits"
        self.input = home / "data" / "card"
        for job, path in enumerate((self.ada, self.eve, self.before, self.input), 1):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)
            manifest = (
                f'{{"job": {job}, "campaign": "c", "files": [{{"output": "hits", "file": "{path.name}"}}]}}'
            )
            (path.parent / f"manifest-{job}.json").write_text(manifest)
        self.home = home
        self.staged = 0

    def read(
        self,
        owner: str,
        text: str,
        *,
        job: int | None = None,
        roots: tuple[str, ...] = (".",),
        kind: str = "shared",
    ) -> None:
        """Stage an input for a job of this owner. `job`: the server says that it is an output of that one."""
        around = Roots([self.home / root for root in roots], private=[self.home / "site"], closed=self.base)
        places = OwnedPlaces(around, self.base, person=frozenset({"me"}))
        stage = Stage(self.home / f"stage-{self.staged}", CONFIG, places)
        self.staged += 1
        spec = JobSpec(app="a", inputs=[Input(name="x", url=text, kind=InputKind(kind))])
        stage.stage(9, spec, [(0, 1)], Reader(owner, {} if job is None else {"x": job}))


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    return Outputs(tmp_path)


def test_a_file_input_reaches_outputs_of_its_own_owner_only(outputs: Outputs) -> None:
    for owner, path in (
        ("ada", outputs.ada),
        ("eve", outputs.eve),
        ("me", outputs.before),
        ("eve", outputs.input),
    ):
        outputs.read(owner, str(path))
        outputs.read(owner, path.as_uri())
    way_in = outputs.home / "data" / "way_in"
    way_in.symlink_to(outputs.base)
    for owner, path in (
        ("eve", outputs.ada),
        ("eve", outputs.before),
        ("me", outputs.ada),
        ("", outputs.before),
        ("eve", way_in / "@ada" / "c" / "1-hits"),
        ("eve", outputs.base / "@eve" / ".." / "@ada" / "c" / "1-hits"),
    ):
        with pytest.raises(SiteError, match="not among those of this job's owner") as caught:
            outputs.read(owner, str(path))
        assert "job:ID/OUTPUT" in (caught.value.hint or "")


def test_a_list_of_files_reaches_no_further(outputs: Outputs) -> None:
    lines = outputs.home / "data" / "lines"
    lines.write_text(f"{outputs.ada}\n")
    outputs.read("ada", str(lines), kind="each")
    for job in (None, 1):  # the list may be another job's output, what it names is not
        with pytest.raises(SiteError, match="not among those"):
            outputs.read("eve", str(lines), kind="each", job=job)


def test_an_output_that_the_server_names_is_read_if_its_manifest_says_the_same(outputs: Outputs) -> None:
    outputs.read("me", str(outputs.ada), job=1)
    outputs.read("eve", outputs.before.as_uri(), job=3)
    for path, job in (
        (outputs.ada, 2),
        (outputs.before, 1),
        (outputs.base / "@ada" / "c" / "manifest-1.json", 1),
    ):
        with pytest.raises(SiteError, match=f"an output of job {job}, cannot be read here") as caught:
            outputs.read("eve", str(path), job=job)
        assert "run the job at the site" in (caught.value.hint or "")


def test_a_root_in_the_delivery_directory_is_what_the_operator_says_but_for_owners(outputs: Outputs) -> None:
    outputs.home.joinpath("site", "out", "card").write_text("x")
    free = ("site/out",)
    around = Roots([outputs.base], closed=outputs.base)
    assert around.fault(outputs.base / "card", outputs.base / "card") is None
    assert around.fault(outputs.ada, outputs.ada) is not None
    with pytest.raises(SiteError, match="not among those"):
        outputs.read("eve", str(outputs.ada), roots=free)
