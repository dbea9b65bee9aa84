"""Verbs beside the work itself: suggestions, completion, manual pages, JSON of errors and of the version."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tidemill import extensions
from tidemill.cli.jobs.changes import CHANGING, option_of
from tidemill.cli.jobs.named import named
from tidemill.cli.main import main, wants_json
from tidemill.cli.start.completion import SCRIPTS, complete
from tidemill.cli.start.man import page, roff
from tidemill.cli.suggestions import MEANINGS, distance, suggested
from tidemill.cli.verbs import VERBS, family_of, load, parser_of
from tidemill.errors import ConfigError

ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for folder in ("src/tidemill", *(f"extensions/{name}/src" for name in extensions.installed()))
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("wiat", "wait"), ("sumbit", "submit"), ("cancle", "job cancel"), ("squeue", "jobs"), ("kill", "job cancel"),
        ("logs", "job logs"), ("resutls", "outputs ls"), ("completoin", "completion"), ("quikstart", "quickstart"),
    ],
)  # fmt: skip
def test_a_mistyped_verb_is_answered_by_meaning_and_distance(typed: str, meant: str) -> None:
    assert suggested(typed, VERBS) == f"did you mean `tidemill {meant}`?"


@pytest.mark.parametrize("typed", ["bake", "xyzzy", "a" * 1000])
def test_what_resembles_no_verb_gets_no_guess(typed: str) -> None:
    assert suggested(typed, VERBS) == "`tidemill --help` lists the verbs"


def test_every_meaning_is_a_command_that_exists() -> None:
    for command in (each for commands in MEANINGS.values() for each in commands.split("|")):
        words = command.split()
        if words[0].startswith("--"):
            continue
        verb = command if command in VERBS else words[0]
        known = parser_of(verb, load(verb)).option_names()
        assert set(words[len(verb.split()) :]) <= set(known), command


def test_the_distance_counts_swapped_neighbours_once() -> None:
    assert [distance("abc", each) for each in ("abc", "acb", "ab", "xbc", "abcd", "")] == [0, 1, 1, 1, 1, 3]


def test_commands_and_options_that_texts_name_exist() -> None:
    """Hints, help and next steps: each `tidemill VERB --option` in a string of the source."""
    wrong: list[str] = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            for text in re.findall(r"`tidemill ([a-z][^`{}]*)`", node.value):
                words = re.split(r"\s+", text.strip())
                verb = next((each for each in (" ".join(words[:2]), words[0]) if each in VERBS), None)
                if verb is None:
                    brought = extensions.names(extensions.VERBS)
                    is_family = len(words) == 1 and any(each.startswith(f"{words[0]} ") for each in brought)
                    is_brought = is_family or not brought.isdisjoint((" ".join(words[:2]), words[0]))
                    if not family_of(words[0]) and not is_brought:
                        wrong.append(f"{path.name}: tidemill {text}")
                    continue
                known = {o for action in parser_of(verb, load(verb))._actions for o in action.option_strings}
                own = words[: words.index("--")] if "--" in words else words
                options = {word.partition("=")[0].rstrip(",.;") for word in own if word.startswith("--")}
                wrong += [f"{path.name}: tidemill {text}: {each}" for each in options - known]
    assert wrong == []


def test_completion_offers_verbs_options_and_choices() -> None:
    names = {line.partition("\t")[0] for line in complete([""])}
    assert {"run", "job", "wait"} <= names
    assert {line.partition("\t")[0] for line in complete(["job", "e"])} == {"explain"}
    assert [line.partition("\t")[0] for line in complete(["run", "--mem"])] == ["--memory"]
    assert [line.partition("\t")[0] for line in complete(["run", "--pack", ""])] == ["files", "tar"]
    assert [line.partition("\t")[0] for line in complete(["jobs", "--state", "RUN"])] == ["RUNNING"]
    assert complete(["run", "--", "ls", ""]) == []
    assert complete(["job", "show", ""]) == [], "no server runs: nothing is known, and nothing is said"


def test_the_script_of_bash_completes() -> None:
    script = SCRIPTS["bash"] + (
        f'tidemill() {{ {sys.executable} -m tidemill.cli.main "$@"; }}\n'
        "COMP_WORDS=(tidemill job exp); COMP_CWORD=2; _tidemill; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "explain\n"), done.stderr


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_scripts_are_what_their_shells_read(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text == SCRIPTS[shell]
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_manual_pages_hold_each_option_and_are_written_for_each_verb(tmp_path: Path) -> None:
    assert main(["man", "--to", str(tmp_path)]) == 0
    assert len(list((tmp_path / "man1").iterdir())) == len(VERBS) + 1
    text = (tmp_path / "man1" / "tidemill-run.1").read_text()
    for option in parser_of("run", load("run")).option_names():
        assert option.replace("-", "\\-") in text
    assert not re.search(r"^['.](?!B |TH |SH |TP|nf|fi)", text, re.MULTILINE), "no text starts a request"
    assert roff(page("job explain")).startswith('.TH "TIDEMILL\\-JOB\\-EXPLAIN" "1"')


@pytest.mark.parametrize("words", [["run"], ["job", "explain"], ["job"], []])
def test_a_page_in_a_pipe_is_text_that_people_read(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["man", *words]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"^[.'\\]|\\[-f&(]", text, re.MULTILINE), "no request of roff"
    heads = [line for line in text.splitlines() if line[:1].strip()]
    assert heads[1:3] == ["NAME", "SYNOPSIS"]
    assert heads[-2:] == ["EXIT STATUS", "SEE ALSO"]
    if words and " ".join(words) in VERBS:
        for option in parser_of(" ".join(words), load(" ".join(words))).option_names():
            assert re.search(rf"^       .*{option}\b", text, re.MULTILINE), option


def test_a_retry_reads_its_options_as_run_does() -> None:
    for verb in ("run", "job retry"):
        actions = {each.dest: each for each in parser_of(verb, load(verb))._actions}
        for name, how in CHANGING.items():
            action = actions[name]
            assert (action.option_strings, action.type) == ([option_of(name)], how.get("type"))
            assert action.metavar == how["metavar"]


def test_version_and_errors_are_json_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["version"] == tidemill.__version__
    assert said["extensions"].keys() == extensions.installed().keys()
    assert main(["jobs", "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["exit_code"], captured.err) == (2, "")
    assert "tidemill up" in error["hint"]


def test_the_json_of_a_command_is_its_own() -> None:
    assert wants_json(["run", "--json", "--", "ls"])
    assert not wants_json(["run", "--", "ls", "--json"])
    assert not wants_json(["run", "ls", "--json"])


@pytest.mark.parametrize(
    ("words", "campaign", "jobs", "name"),
    [
        (["7", "9"], None, [7, 9], None),
        (["3-5"], None, [3, 4, 5], None),
        (["scan"], None, [], "scan"),
        (["ada/scan"], None, [], "ada/scan"),
        ([], "scan", [], "scan"),
        ([], None, [], None),
    ],
)
def test_a_verb_takes_numbers_of_jobs_or_the_name_of_a_campaign(
    words: list[str], campaign: str | None, jobs: list[int], name: str | None
) -> None:
    assert named(words, campaign, verb="job cancel") == (jobs, name)


@pytest.mark.parametrize("words", [["scan", "7"], ["scan", "other"], ["0"], ["5-3"]])
def test_what_is_named_must_be_one_campaign_or_jobs(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        named(words, None, verb="job cancel")


@pytest.mark.parametrize(
    "verb", ["job cancel", "job retry", "job accept", "job discard", "outputs ls", "outputs get", "errors"]
)
def test_verbs_of_jobs_take_a_name_where_they_take_a_number(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They go on to the server, of which there is none here."""
    for word in ("scan", "7"):
        assert main([*verb.split(), word]) == 2
        assert "no server" in capsys.readouterr().err


def test_a_retry_that_waits_for_a_campaign_names_the_command_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["job", "retry", "scan", "--wait"]) == 2
    assert "tidemill run --resume scan" in capsys.readouterr().err
    assert main(["job", "cancel"]) == 2
    assert "tidemill job cancel zmumu" in capsys.readouterr().err
