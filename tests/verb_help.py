"""What the help of every verb has, of the core and of extensions."""

from __future__ import annotations

import pytest

from tidemill.cli.main import load, main, parser_of

TOLD = ("(default:", "repeatable", "only", "run after", "all jobs of")


def check_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It has an example, an about for each option, and says what counts without one that takes a value."""
    command = load(verb)
    assert main([*verb.split(), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "example: tidemill" in text
    for action in parser_of(verb, command)._actions:
        assert action.help, f"{verb}: {action.option_strings or action.metavar} has no help"
        takes_value = action.option_strings and action.nargs != 0 and action.metavar
        if takes_value and not action.required:
            assert any(word in action.help for word in TOLD), (
                f"{verb} {action.option_strings}: default not told"
            )
