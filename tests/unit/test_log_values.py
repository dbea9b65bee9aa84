"""A log's lines are cut value by value: each stays JSON with its keys, whatever the values are."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attack.site.test_attack_support import PLANTED, Planted

from tidemill import log
from tidemill.confidential import CUT, cut, cut_data, cut_lines

QUOTED = [
    'curl -u ada:"hunter2xx" h',
    "curl -u ada:'hunter2xx' h",
    'curl -u "ada:hunter2xx" h',
    'curl --user "ada:hunter2xx and more" h',
    'curl -u ada:"hunter2xx',
    'mysql -p"hunter2xx" db',
    "mysql -p'hunter2xx, more' db",
    "token = 'hunter2xx 1 2",
    'password="hunter2xx',
    "sqlplus -s ada/hunter2xx@orcl",
    "jdbc:oracle:thin:ada/hunter2xx@//db:1521/x",
]
PIECES = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=12),  # also lone surrogates
    st.sampled_from([each.text for each in PLANTED]),
    st.sampled_from(QUOTED),
    st.sampled_from(
        ['"', "'", "\\", '\\"', "password=", "token: '", "-u a:", "\n", " ", "mysql -p", "?a=b", "[cut]"]
    ),
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)
NAMES = st.sampled_from(["reason", "site", "password", "token", "key", "setup", "x-header", "path"])
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-(2**60), 2**60), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)


def line_of(form: str, **fields: Any) -> str:
    record = logging.LogRecord("tidemill.agent", logging.INFO, "", 0, "batch.away", (), None)
    record.tidemill_fields = fields
    formatter = log._JsonFormatter() if form == "json" else log._TextFormatter()
    return formatter.format(record)


def keys_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: keys_of(each) for name, each in value.items()}
    return [keys_of(each) for each in value] if isinstance(value, list) else None


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_line_is_json_with_its_keys(fields: dict[str, Any]) -> None:
    found = json.loads(line_of("json", **fields))

    assert found["event"] == "batch.away"
    assert keys_of({name: found[name] for name in fields}) == keys_of(fields)
    again = cut_lines(json.dumps({"event": "x", **fields}))  # as `tidemill support` reads what another wrote
    assert keys_of(json.loads(again)) == keys_of({"event": "x", **fields})


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("text", QUOTED)
def test_a_password_in_quotes_is_cut_and_the_next_field_stays(text: str, form: str) -> None:
    line = line_of(form, reason=text, site="here")

    assert "hunter2xx" not in line
    assert "hunter2xx" not in cut(text)
    assert "here" in line
    assert "hunter2xx" not in cut_lines(json.dumps({"reason": text, "site": "here"}))


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("each", PLANTED)
def test_no_planted_secret_is_in_a_line(each: Planted, form: str) -> None:
    line = line_of(form, reason=each.text, of=[{"why": f"it said: {each.text}"}])

    assert not each.is_in(line)


def test_all_below_the_name_of_a_secret_is_cut() -> None:
    assert cut_data({"password": {"value": "abcdefgh", "of": [{"x": "ijklmnop"}]}, "job": 7}) == {
        "password": {"value": CUT, "of": [{"x": CUT}]},
        "job": 7,
    }


def test_the_words_of_a_command_say_what_the_next_is() -> None:
    assert cut_data({"argv": ["curl", "-u", "ada:hunter2xx", "h"]}) == {
        "argv": ["curl", "-u", f"ada:{CUT}", "h"]
    }


def test_a_key_that_stands_twice_hides_nothing() -> None:
    assert "hunter2xx" not in cut_lines('{"a": "password=hunter2xx", "a": "b"}\n')
