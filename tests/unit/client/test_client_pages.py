"""Delivered outputs, and how bulk is cut into requests."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from tidemill.client.client import Client, new_campaign, pages, requests
from tidemill.client.outputs import copy_output, events_of, members
from tidemill.errors import ConfigError, SiteError
from tidemill.model.job import JobSpec, Output
from tidemill.model.retry.changes import JobChanges
from tidemill.server.core.body_count import VALUES_MAX, BodyCount
from tidemill.wire.api import REQUEST_BYTES_MAX, OutputRow, SubmitRequest


def _row(path: Path, name: str = "results") -> OutputRow:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return OutputRow(name=name, url=path.as_uri(), size_bytes=path.stat().st_size, sha256=digest)


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("hits-000000020-000000029.root", (20, 10)),
        ("stdout-000000003", (3, 1)),
        ("data-000000005.1", (5, 1)),
        ("run-7.root", (None, None)),
        ("plain.txt", (None, None)),
    ],
)
def test_events_of_a_member_are_told_by_its_name(name: str, events: tuple[int | None, int | None]) -> None:
    assert events_of(name) == events


def test_members_of_a_bundle_are_read_and_a_tar_of_the_payload_is_not_opened(tmp_path: Path) -> None:
    for file, member in (("bundle.tar", "hits-000000000-000000004.txt"), ("mine.tar", "photo.jpg")):
        with tarfile.open(tmp_path / file, "w") as tar:
            info = tarfile.TarInfo(member)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"12345"))
    (ours,) = members(1, _row(tmp_path / "bundle.tar"))
    (theirs,) = members(1, _row(tmp_path / "mine.tar"))
    assert (ours.first, ours.count, ours.data) == (0, 5, b"12345")
    assert (theirs.first, theirs.data) == (None, (tmp_path / "mine.tar").read_bytes())


def test_a_copy_is_verified_and_a_damaged_one_never_seen(tmp_path: Path) -> None:
    source = tmp_path / "hits.root"
    source.write_bytes(b"hits")
    row = _row(source)
    assert copy_output(row, tmp_path / "to").read_bytes() == b"hits"
    source.write_bytes(b"other")
    with pytest.raises(SiteError, match="checksum"):
        copy_output(row, tmp_path / "again")
    assert list((tmp_path / "again").iterdir()) == []


def test_an_output_elsewhere_is_told_and_not_guessed(tmp_path: Path) -> None:
    row = OutputRow(name="hits", url="root://far//x", size_bytes=1, sha256="0")
    with pytest.raises(ConfigError, match="root://far//x"):
        list(members(1, row))


def test_bulk_is_cut_into_pages_of_10_000_jobs_in_order() -> None:
    specs = [JobSpec(app="a"), JobSpec(app="b"), JobSpec(app="c")]
    found = list(pages(specs, [9_000, 12_000, 1]))
    assert [sum(counts) for _, counts in found] == [10_000, 10_000, 1_001]
    assert [[spec.app for spec in page] for page, _ in found] == [["a", "b"], ["b"], ["b", "c"]]


def test_a_page_holds_no_more_values_or_bytes_than_the_server_takes() -> None:
    many = [JobSpec(app="a", params={f"p{each}": each for each in range(1_000)})] * 2_500
    found = list(pages(many, [1] * len(many)))
    assert [sum(counts) for _, counts in found] == [len(page) for page, _ in found]
    assert (len(found), sum(len(page) for page, _ in found)) == (2, 2_500)
    for page, counts in found:
        body = msgspec.json.encode(SubmitRequest(key="k", campaign="c", jobs=page, repeat=counts))
        counted = BodyCount()
        counted.feed(body)
        assert counted.values <= VALUES_MAX
    long = [JobSpec(app="a", params={"text": "x" * 1_000_000})] * 40
    found = list(pages(long, [1] * len(long)))
    assert (len(found), sum(len(page) for page, _ in found)) == (2, 40)
    assert all(len(msgspec.json.encode(page)) < REQUEST_BYTES_MAX for page, _ in found)


def test_new_campaigns_have_legal_names_that_differ() -> None:
    first, second = new_campaign("my prog.sh"), new_campaign("my prog.sh")
    assert first.startswith("my-prog.sh-")
    assert first != second


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (JobSpec(app="pi", output_dir="rel"), "`output_dir` is `rel`, a relative path"),
        (JobSpec(app="pi", output_dir="./a:b"), "`output_dir` is `./a:b`, a relative path"),
        (
            JobSpec(app="pi", outputs=[Output(name="o", path="o", url="rel/o")]),
            "`url` of output `o` is `rel/o`, a relative path",
        ),
    ],
)
def test_a_relative_path_for_outputs_is_refused_before_anything_is_sent(spec: JobSpec, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requests(spec, campaign="c", repeat=None, key=None, wishes=None)
    assert caught.value.message == what
    assert "absolute path" in (caught.value.hint or "")


@pytest.mark.parametrize("place", [None, "/data/me", "file:/data/me", "root://host//me"])
def test_absolute_paths_and_urls_for_outputs_are_sent(place: str | None) -> None:
    (sent,) = requests(JobSpec(app="pi", output_dir=place), campaign="c", repeat=None, key=None, wishes=None)
    assert sent.jobs[0].output_dir == place


def test_a_retry_with_a_relative_path_for_outputs_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    client = Client("http://127.0.0.1:1", home=tmp_path, retry_s=0)
    with pytest.raises(ConfigError, match="`output_dir` is `rel`"):
        client.retry([1], changes=JobChanges(output_dir="rel"))
