"""Expressions in what submitters, payloads and sites send: nothing is evaluated, and nothing grows or freezes.

Arguments that a slot fills in: `crates/slot/src/template.rs` (no argument grows beyond what a program can be given);
shell characters and paths in parameters: `tests/e2e/test_hostile_server.py`; any bytes for each parser: `tests/fuzz`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.client.jobfile import REPEAT_MAX, load_job_file, waves
from tidemill.confidential import cut
from tidemill.config.addressee import parse_target
from tidemill.errors import ConfigError
from tidemill.server.database.queries import Dialect, load
from tidemill.server.database.rows import SELECTED
from tidemill.site.applications.templates import Template
from tidemill.site.state import failures
from tidemill.transfer.credentials import REFUSED

LONG, SOON_S = 100_000, 60
"""Characters of a text, and when a test fails: a pattern that takes time as the square of them takes minutes."""

EVALUATED = [
    "{event.__class__}", "{0}", "{}", "{seed!r}", "{seed:>999999999}", "%(x)s", "${HOME}", "$(id)", "`id`", "{{7*7}}",
    "{% x %}", "{input.../../x}", "{params}", "{__import__('os')}",
]  # fmt: skip
BORING = [
    "a.", "a+", "HYDU_sock_a ", "unable to reach ", "PID 1 RUNNING AT a", "process rank 1 with PID 1 on ", "env: x",
    "-----BEGIN ", "basic ", "token ", "eyJaaaaaaaa.", "://", "a://b:", "Process name: [[1,", "srun: error: a: tasks 1",
]  # fmt: skip


@pytest.mark.parametrize("text", EVALUATED)
def test_a_value_of_a_submitter_is_a_value_and_not_a_template(text: str) -> None:
    """It comes out as it went in, braces doubled for the slot."""
    filled = Template.parse("--card={card}").fill({"card": text})
    assert filled == "--card=" + text.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize("text", EVALUATED)
def test_an_argument_of_an_ad_hoc_command_names_events_and_inputs_only(text: str) -> None:
    template = Template.literal_but_known(text)
    assert template.names() == []
    assert (
        template.fill({"event.__class__": "x", "": "x", "0": "x", "7*7": "x"})
        .replace("{{", "{")
        .replace("}}", "}")
        == text
    )


@pytest.mark.timeout(SOON_S)
def test_templates_without_an_end_take_time_that_grows_with_their_length() -> None:
    for text in ("{" * 131_000, "{a" * 65_000, "{a}" * 40_000, "}" * 131_000, "{seed}" * 20_000):
        assert Template.literal_but_known(text).pieces


@pytest.mark.timeout(SOON_S)
@pytest.mark.parametrize("piece", BORING)
@pytest.mark.parametrize("blank", ["", " ", "1"])
def test_patterns_over_texts_of_payloads_take_time_that_grows_with_their_length(
    piece: str, blank: str
) -> None:
    text = (piece + blank) * (LONG // (len(piece) + len(blank)))
    cut(text)
    REFUSED.search(text)
    for pattern in (*failures._RANKS, failures._NODE, failures._LAUNCHER):
        pattern.search(text)


def test_secrets_in_urls_are_still_cut() -> None:
    assert "pass" not in cut("at .https://me:passw0rd1@example.org and x+amqps://a:passw0rd2@b")


@pytest.mark.parametrize("count", [REPEAT_MAX + 1, 0, -1, 2**63, 10**30])
def test_a_repeat_has_bounds(tmp_path: Path, count: int) -> None:
    (path := tmp_path / "j.toml").write_text(f'[[job]]\ncommand = ["true"]\nrepeat = {count}\n')
    with pytest.raises(ConfigError):
        load_job_file(path)


def test_jobs_that_wait_for_each_other_in_a_long_row_are_ordered_in_time(tmp_path: Path) -> None:
    rows = [f'[[job]]\nname = "j{k}"\ncommand = ["true"]\nafter = ["j{k - 1}"]\n' for k in range(1, 500)]
    (path := tmp_path / "j.toml").write_text('[[job]]\nname = "j0"\ncommand = ["true"]\n' + "".join(rows))
    assert len(waves(load_job_file(path))) == 500


@pytest.mark.parametrize(
    "text",
    ["mail:a@b\nBcc: c@d", "mail:a@b,c@d", "mail:-oQ/tmp@b", 'mail:"a b"@c', "hook:../x", "hook:{x}", "https://a b/",
     "https://u:p@h/", "file:///etc/passwd", "message:a/b", "https://h/#x", "gopher://h/"],
)  # fmt: skip
def test_an_addressee_is_no_header_no_option_and_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid addressee"):
        parse_target(text)


def test_no_statement_is_put_together_from_values() -> None:
    """Every statement is a constant: what callers give are parameters."""
    for dialect in Dialect:
        for name, each in load(dialect, SELECTED).items():
            assert "{" not in each.text.replace("{in:", ""), name
            assert "'||" not in each.text.replace(" ", ""), name
