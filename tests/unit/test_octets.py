"""Bytes that are not UTF-8 travel in texts of a job, and arrive unchanged."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidemill import octets
from tidemill.model.job import JobSpec, Shell
from tidemill.model.legal import spec_fault


@given(some.binary(max_size=200))
def test_every_byte_string_arrives_as_it_was(content: bytes) -> None:
    text = octets.carried(os.fsdecode(content))
    wire = msgspec.json.decode(msgspec.json.encode(text), type=str)
    assert os.fsencode(octets.restored(wire)) == content
    assert octets.bytes_number(wire) == len(content)


@given(some.text(max_size=200))
def test_text_is_itself_but_for_the_characters_that_stand_for_bytes(text: str) -> None:
    content = text.encode()
    carried = octets.carried(text)
    assert os.fsencode(octets.restored(carried)) == content
    assert carried == text or any(ord(each) >= 0x10FF80 for each in text)


def test_a_character_that_stands_for_a_byte_travels_as_its_own_bytes() -> None:
    own = "\U0010ffe9"
    assert octets.carried(own) == "".join(chr(0x10FF00 + each) for each in own.encode())
    assert os.fsencode(octets.restored(octets.carried(own))) == own.encode()


def test_people_see_bytes_that_are_not_utf_8_as_escapes() -> None:
    text = os.fsdecode(b"caf\xe9 \xc3\xa9")
    assert octets.shown(text) == octets.shown(octets.carried(text)) == r"caf\xe9 é"
    assert not octets.is_utf8(text)
    assert octets.is_utf8("é")


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        (Shell(umask=0o1000), "`shell.umask` is 512"),
        (Shell(umask=-1), "`shell.umask` is -1"),
        (Shell(limits={"stacks": 1}), "unknown name, `stacks`"),
        (Shell(limits={"stack": -2}), "`shell.limits.stack` is -2"),
        (Shell(umask=0o777, limits={"stack": -1, "nofile": 1024}), None),
    ],
)
def test_umask_and_soft_limits_of_a_job_are_those_that_linux_has(shell: Shell, said: str | None) -> None:
    fault = spec_fault(JobSpec(command=["/bin/true"], shell=shell))
    assert (said is None) == (fault is None)
    assert fault is None or (said or "") in fault.text


def test_an_application_has_no_shell_of_its_submitter() -> None:
    fault = spec_fault(JobSpec(app="a", shell=Shell(umask=0)))
    assert fault is not None
    assert "`shell` is given for an application" in fault.text


def test_variables_may_be_as_long_as_linux_takes_them() -> None:
    longest = "é" * ((131_071 - len("A=")) // 2)
    assert spec_fault(JobSpec(command=["/bin/true"], env={"A": longest})) is None
    fault = spec_fault(JobSpec(command=["/bin/true"], env={"A": longest + "é"}))
    assert fault is not None
    assert "variable `A`" in fault.text
    carried = octets.carried(os.fsdecode(b"\xe9" * 131_069))
    assert spec_fault(JobSpec(command=["/bin/true"], env={"A": carried})) is None
