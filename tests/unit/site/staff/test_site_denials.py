"""Whom the site's staff deny: by name, with a reason, until they allow it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.errors import ConfigError, SiteError
from tidemill.site.staff import denials
from tidemill.site.staff.denials import RELOAD_S, Denials


def agents(site: Path) -> Denials:
    return Denials(site, "lrz")


def test_a_denied_submitter_stays_so_for_every_agent_until_he_is_allowed(tmp_path: Path) -> None:
    before = agents(tmp_path)
    assert before.why("mallory") is None
    assert denials.deny(tmp_path, "mallory", "mines coins")
    assert not denials.deny(tmp_path, "mallory", "again")
    assert not before.reload_if_changed(0.0)  # not yet time
    later_s = 1e12
    assert before.reload_if_changed(later_s)
    for it in (before, agents(tmp_path)):
        assert it.why("mallory") == "site `lrz` denies submitter `mallory`: mines coins"
        assert it.why("mallory2") is None
        assert it.why("") is None
        assert it.names() == ["mallory"]
    denials.allow(tmp_path, "mallory", "it was her cat")
    assert before.reload_if_changed(later_s + RELOAD_S)
    assert before.why("mallory") is None
    lines = [json.loads(line) for line in (tmp_path / "denied.log").read_text().splitlines()]
    assert [(each["act"], each["submitter"], each["reason"]) for each in lines] == [
        ("deny", "mallory", "mines coins"),
        ("allow", "mallory", "it was her cat"),
    ]


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '[{"submitter":"a"}]', "\xff"])
def test_a_damaged_list_denies_everybody_until_it_is_mended(tmp_path: Path, content: str) -> None:
    denials.deny(tmp_path, "mallory", "mines coins")
    good = (tmp_path / "denied.json").read_bytes()
    (tmp_path / "denied.json").write_bytes(content.encode("latin-1"))
    it = agents(tmp_path)
    assert "denies all submitters" in (it.why("ada") or "")
    with pytest.raises(SiteError, match="failed to read"):
        denials.deny(tmp_path, "eve", "x")
    (tmp_path / "denied.json").write_bytes(good)
    assert it.reload_if_changed(1e12)
    assert it.why("ada") is None
    assert it.why("mallory") is not None


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for submitter, reason in (("", "x"), ("a", " "), ("a\nb", "x"), ("a", "x" * 501), ("x" * 201, "x")):
        with pytest.raises(ConfigError):
            denials.deny(tmp_path, submitter, reason)
    denials.deny(tmp_path, "ada@iam", "x")
    with pytest.raises(ConfigError, match="is not denied") as caught:
        denials.allow(tmp_path, "ada@ia", "x")
    assert "`ada@iam`" in (caught.value.hint or "")
