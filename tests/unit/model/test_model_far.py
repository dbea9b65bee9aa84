"""URLs that programs open, and names in a catalogue: what a job may hold of them."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.model import legal
from tidemill.model.far import CatalogueName, catalogue_name, url_fault
from tidemill.model.job import Input, InputKind, JobSpec, ReadAs


@pytest.mark.parametrize(
    "url",
    ["root://origin.example.org//store/a.root", "https://o:8443/a/b.root?offset=3", "roots://[::1]:1094//x"],
)
def test_plain_urls_may_be_opened(url: str) -> None:
    assert url_fault(url) is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("root://o//a/../b", "`..`"),
        ("root://o//a/%2e%2e/b", "encoded"),
        ("https://o/a%2fb", "encoded"),
        ("root://user:secret@o//a", "password"),
        ("https://token@o/a", "token"),
        ("https://o/a?authz=Bearer%20x", "credential"),
        ("https://o/a?X-Amz-Signature=1", "credential"),
        ("root://o//a?xrd.wantprot=unix", "opaque"),
        ("root://o//a#b", "`#`"),
        ("root://proxy//root://elsewhere//a", "another URL"),
        ("https://o/https:/elsewhere/a", "another URL"),
        ("https://o/a?u=https%3A%2F%2Fx", "another URL"),
        ("root://o//a b", "blanks"),
        ("root://o//a\nb", "blanks"),
        ("root:///a", "host"),
        ("root://o:x//a", "host"),
        ("root://o//", "no file"),
        ("s3://bucket/a", "expected one of"),
        ("/local/file", "expected one of"),
        ("file:///local/file", "expected one of"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(url: str, why: str) -> None:
    assert why in (url_fault(url) or "")


def test_catalogue_names_have_a_scope_and_a_name() -> None:
    assert catalogue_name("rucio:lab/file.000") == CatalogueName("lab", "file.000")
    assert catalogue_name("rucio:cms//store/mc/x.root") == CatalogueName("cms", "/store/mc/x.root")
    assert catalogue_name("root://o//a") is None


@pytest.mark.parametrize(
    "text", ["rucio:lab", "rucio:/x", "rucio:lab/", "rucio:lab/../x", "rucio:../x", "rucio:a/b?c"]
)
def test_malformed_catalogue_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rucio:SCOPE/NAME"):
        catalogue_name(text)


def spec(url: str, kind: InputKind = InputKind.SHARED, read: ReadAs = ReadAs.URL) -> JobSpec:
    return JobSpec(app="a", inputs=[Input(name="f", url=url, kind=kind, read=read)])


def test_submission_refuses_an_input_that_no_program_can_open_and_shows_no_secret() -> None:
    fault = legal.spec_fault(spec("root://me:secret@o//a"))

    assert fault is not None
    assert "secret" not in fault.text
    assert "user name" in fault.text


def test_submission_takes_names_of_a_catalogue_but_not_as_lists_of_lines() -> None:
    assert legal.spec_fault(spec("rucio:lab/file")) is None
    assert legal.spec_fault(spec("rucio:lab/file", read=ReadAs.FILE)) is None
    fault = legal.spec_fault(spec("rucio:lab/set", kind=InputKind.EACH))
    assert fault is not None
    assert "one for each event" in (fault.hint or "")


def test_local_path_is_not_a_url_to_open() -> None:
    fault = legal.spec_fault(spec("/data/x.root"))

    assert fault is not None
    assert 'leave `read = "url"` out' in (fault.hint or "")


def test_inputs_that_are_copied_are_written_as_older_sites_read_them() -> None:
    assert b"read" not in msgspec.json.encode(Input(name="f", url="root://o//a"))
    assert msgspec.json.decode(b'{"name":"f","url":"x","read":"url"}', type=Input).is_opened
