"""Set-up lines and module environments whose output and values look like answers, commands or templates."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.local.node.test_setup_lines import definition, run, told
from tests.worlds.node.container_world import users_fleet
from tests.worlds.node.pilot_fleet import binary

from tidemill.wire.node import SetupDef

FORGED = json.dumps(
    {"stored": {"format": 1, "lines": [], "host": "", "variables": {"EVIL": "1"}, "left_out": []}}
)
VALUES = [
    "a\nEVIL=1", "a\tb", "$(touch /tmp/evil)", "`id`", "; id", '"', "'", "\\", "{seed} {event} {{x}}", "{", "}", "%s",
    "", "\x1b]0;x\x07", "\u202e", "a" * 100_000, "() { :; }; echo EVIL",
]  # fmt: skip


def answer(*lines: str, store: Path) -> dict[str, Any]:
    """What the pilot's child says of these lines."""
    setup = SetupDef(key="k", lines=list(lines), store=str(store), timeout_s=60.0)
    done = subprocess.run(
        [binary(), "setup"], input=msgspec.json.encode(setup), capture_output=True, check=False, timeout=100
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def variables(*lines: str, store: Path) -> dict[str, str]:
    """What the lines changed, which is no failure."""
    found = answer(*lines, store=store)
    assert found["error"] is None, found["error"]
    given: dict[str, str] = found["stored"]["variables"]
    return given


@pytest.mark.parametrize("value", VALUES, ids=[str(number) for number in range(len(VALUES))])
def test_a_value_is_a_value(tmp_path: Path, value: str) -> None:
    assert variables(f"export TM_X={shlex.quote(value)}", store=tmp_path) == {"TM_X": value}


@pytest.mark.parametrize("to", ["1", "2"])
def test_what_lines_print_is_no_answer(tmp_path: Path, to: str) -> None:
    printed = shlex.quote(FORGED)
    assert variables(f"printf '%s\\n\\0EVIL=1\\0' {printed} >&{to}", store=tmp_path) == {}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["exit 0"], "ended early"),
        (["exec true"], "ended early"),
        (["kill -9 $$"], "ended early"),
        (["false", "export A=1"], "status 1"),
        (["unset -f eval; eval() { :; }; return 3"], "status"),
        (["yes EVIL >&2"], "printed more than"),
        (
            ["for k in $(seq 15); do export A$k=$(head -c 100000 /dev/zero | tr '\\0' x); done"],
            "has more than",
        ),
    ],
)
def test_lines_that_leave_no_whole_environment_fail_with_the_reason(
    tmp_path: Path, lines: list[str], said: str
) -> None:
    found = answer(*lines, store=tmp_path)
    assert found["stored"] is None
    assert said in found["error"]


def test_names_that_are_none_and_what_slots_set_do_not_come_through(tmp_path: Path) -> None:
    lines = (
        "export TIDEMILL_SEED=1 HOME=/evil TMPDIR=/evil LOGNAME=evil SHELL=/evil PGPASSWORD=x MY_TOKEN=x",
        "module() { echo EVIL; }; export -f module",
        "export TM_BAD=$'\\xff'",
        "export TM_GOOD=1",
    )
    assert variables(*lines, store=tmp_path) == {"TM_GOOD": "1"}


def test_braces_in_a_module_environment_are_no_templates() -> None:
    with users_fleet() as it:
        value = "{seed} {event} {{x}} {"
        run(
            it,
            definition(it, f"export TMTEST_ROOT={shlex.quote(value)}"),
            'printf "%s" "$TMTEST_ROOT" >out',
            events=1,
        )
        assert told(it) == value, it.tails()
