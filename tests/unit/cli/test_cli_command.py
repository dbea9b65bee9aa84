"""What a command line becomes before it is a job: rows, words, outputs, environment. Pure."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tidemill.cli.command.environment import captured
from tidemill.cli.command.inputs import pack_directory, split_input, typed_inputs
from tidemill.cli.command.outputs import typed_outputs
from tidemill.cli.command.table import EventTable, crossed, parse_sweep, read_table, swept
from tidemill.cli.command.words import argument, resolved
from tidemill.cli.command.wrapping import Around, wrapped
from tidemill.errors import ConfigError
from tidemill.model.job import Pack
from tidemill.octets import restored
from tidemill.site.applications.templates import Template, doubled

# ---- rows ----------------------------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_each_line_but_the_header() -> None:
    table = read_table('\ufeffmass,label\n125,"a, b"\n\n91,\n', source="x.csv")
    assert table == EventTable(("mass", "label"), [("125", "a, b"), ("91", "")])
    assert table.text() == "\t125\ta, b\n\t91\t\n"
    assert table.filled("m={mass} {event} {other} {label}") == "m={column.1} {event} {other} {column.2}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("a,b\n", "has no rows"),
        ("a,b\n1\n", "line 2: 1 value, the header names 2 columns"),
        ("a\n1,2\n", "line 2: 2 values, the header names 1 column$"),
        ("a,a\n1,2\n", "two columns `a`"),
        ("a,event\n1,2\n", "`event` cannot be the name of a column"),
        ("1,2\n3,4\n", "`1` cannot be the name of a column"),
        ("a,b{c\n3,4\n", "cannot be the name of a column"),
        ('a\n"open\n', "unexpected end of data"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_table(text, source="x.csv")


def test_columns_are_called_what_tables_of_the_field_call_them() -> None:
    table = read_table("card file,pT [GeV],µ\na.dat,30,1\n", source="x.csv")
    assert table.filled("{card file} {pT [GeV]} {µ}") == "{column.1} {column.2} {column.3}"


@pytest.mark.parametrize("value", ["a\tb", "a\nb", "a\0b"])
def test_a_value_that_no_line_can_hold_is_refused_with_row_and_column(value: str) -> None:
    with pytest.raises(ConfigError, match="row 2, column `b`"):
        EventTable(("a", "b"), [("1", "2"), ("3", value)]).text()


def test_sweeps_are_combined_the_last_fastest_or_taken_together() -> None:
    lists = [parse_sweep("a=1..3"), parse_sweep("b=x,y,z")]
    assert swept(lists, together=True).rows == [("1", "x"), ("2", "y"), ("3", "z")]
    assert swept(lists, together=False).rows[:4] == [("1", "x"), ("1", "y"), ("1", "z"), ("2", "x")]
    assert parse_sweep("n=3..1,7") == ("n", ["3", "2", "1", "7"])
    both = crossed(EventTable(("f",), [("p",), ("q",)]), swept(lists[:1], together=False))
    assert (both.columns, both.rows[3]) == (("f", "a"), ("q", "1"))


@pytest.mark.parametrize("text", ["a", "a=", "=1", "event=1", "a=1..9999999"])
def test_a_wrong_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep"):
        parse_sweep(text)


def test_a_value_of_a_sweep_that_is_not_utf_8_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_sweep("a=1,\udcff")
    assert refused.value.message == "--sweep a: value 2, `\\xff`, is not valid UTF-8"


def test_too_many_combinations_are_refused_before_they_are_made() -> None:
    lists = [(name, [str(k) for k in range(1000)]) for name in "abcdef"]
    with pytest.raises(ConfigError, match="1,000,000,000,000,000,000 combinations"):
        swept(lists, together=False)
    with pytest.raises(ConfigError, match="lists of one length"):
        swept([("a", ["1"]), ("b", ["1", "2"])], together=True)


def test_a_column_that_the_command_does_not_use_is_named() -> None:
    table = EventTable(("mass", "width"), [("1", "2")])
    with pytest.raises(ConfigError, match=r"does not use `\{width\}`") as caught:
        table.check_used(["--m={mass}", "{widht}"], every=["mass", "width"])
    assert "it has `{widht}`" in (caught.value.hint or "")
    table.check_used(["{mass}"], every=())
    with pytest.raises(ConfigError, match="uses no column"):
        table.check_used(["{event}"], every=())


# ---- words, inputs, outputs ----------------------------------------------------------------------------------------


def test_directories_are_resolved_where_a_slash_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "prog.py").touch()
    assert argument("data/", staged=()) == str(tmp_path / "data")
    assert argument("prog.py", staged=()) == str(tmp_path / "prog.py")
    for word in ("data", "-x", "{line}/", "none/", "prog.py"):
        assert argument(word, staged={"prog.py"}) == word


def test_inputs_with_spaces_patterns_and_equal_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b.txt", "a=b.txt", "x1.dat", "x2.dat"):
        (tmp_path / name).touch()
    found = typed_inputs(["a b.txt", "a=b.txt", "x*.dat", "card=x1.dat", "far=root://host//f"])
    assert [each.name for each in found.inputs] == ["a-b.txt", "a-b.txt-2", "x1.dat", "x2.dat", "card", "far"]
    assert found.links == [("a-b.txt", "a b.txt"), ("a-b.txt-2", "a=b.txt")]
    assert split_input("a=b.txt") == ("a=b.txt", "a=b.txt"), "a file of that name is there"
    assert split_input("c=b.txt") == ("c", "b.txt")
    with pytest.raises(ConfigError, match="no file matches `y\\*`"):
        typed_inputs(["y*"])


def test_directories_come_under_the_names_that_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "data").mkdir(parents=True)
    (tmp_path / "data.tar").touch()
    found = typed_inputs(["data.tar", "a/data", "cards=a"])
    assert [each.name for each in found.inputs] == ["data.tar", "data.tar-2", "cards.tar"]
    assert [(archive, name) for archive, _, name in found.directories] == [
        ("data.tar-2", "data"), ("cards.tar", "cards"),
    ]  # fmt: skip
    pack_directory(tmp_path / "a", tmp_path / "x.tar", name="cards")
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert archive.getnames() == ["cards", "cards/data"]


def test_two_files_of_one_name_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.dat").touch()
    with pytest.raises(
        ConfigError, match=r"inputs `a/x\.dat` and `b/x\.dat` have the same name, `x\.dat`"
    ) as caught:
        typed_inputs(["a/x.dat", "b/x.dat"])
    assert caught.value.hint == "--input NAME=b/x.dat gives one of them another name"
    assert [each.name for each in typed_inputs(["a/*.dat", "a/x.dat", "y=b/x.dat"]).inputs] == ["x.dat", "y"]


def test_files_whose_names_are_not_utf_8_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"l\xe9.txt")
    Path(name).touch()
    for text in (name, f"card={name}", "l*.txt"):
        with pytest.raises(ConfigError, match=r"input `.*l\\xe9.txt`: the name is not valid UTF-8"):
            typed_inputs([text])
    with pytest.raises(ConfigError, match=r"output `l\\xe9.txt`: the name is not valid UTF-8"):
        typed_outputs([name], as_files=True)


def test_a_directory_whose_name_is_not_utf_8_is_packed(tmp_path: Path) -> None:
    """Tidemill chooses the name of its archive, but the command finds the directory under its own name."""
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"f\xe9")).write_text("x")
    found = typed_inputs([str(folder)])
    assert found.directories == [("d-.tar", folder, folder.name)]
    found.inputs[0].url.encode()
    pack_directory(folder, tmp_path / "d-.tar", name=folder.name)
    words = ["tar", "-tf", str(tmp_path / "d-.tar"), "--quoting-style=literal"]
    listed = subprocess.run(words, capture_output=True, check=True)
    assert listed.stdout.split() == [b"d\xe9/", b"d\xe9/f\xe9"]


def test_archives_of_several_patterns_have_names_of_their_own() -> None:
    found = typed_outputs(["h*.root", "h*.txt", "plots/", "plots.tar"], as_files=True)
    assert [each.path for each in found.outputs] == ["h.tar", "h-2.tar", "plots-2.tar", "plots.tar"]
    assert len({each.name for each in found.outputs}) == 4


def test_an_empty_path_is_no_output_and_no_input() -> None:
    with pytest.raises(ConfigError, match="--output: the path is empty"):
        typed_outputs([""], as_files=True)
    for text in ("", "card="):
        with pytest.raises(ConfigError, match="the path is empty"):
            typed_inputs([text])


def test_outputs_are_named_after_their_paths() -> None:
    found = typed_outputs(["hits-{event}.root", "a b.txt", "plots/", "out/h*.root", "stdout"], as_files=True)
    assert [(each.name, each.path) for each in found.outputs] == [
        ("hits.root", "hits-{event}.root"),
        ("a-b.txt", "a b.txt"),
        ("plots.tar", "plots.tar"),
        ("h.tar", "h.tar"),
        ("stdout-file", "stdout"),
    ]
    assert found.packed == [("plots.tar", "plots"), ("h.tar", "out/h*.root")]
    assert {each.pack for each in found.outputs} == {Pack.FILES}
    alike = typed_outputs(["a/o.txt", "./b/o.txt", "{event}/o.txt", "o.txt", "c/p.txt"], as_files=True)
    assert [each.name for each in alike.outputs] == ["a-o.txt", "b-o.txt", "o.txt", "o.txt-2", "p.txt"]
    for path in ("/etc/x", "../x"):
        with pytest.raises(ConfigError, match="outside the command's work directory"):
            typed_outputs([path], as_files=True)
    with pytest.raises(ConfigError, match=r"not `\{line\}`"):
        typed_outputs(["{line}/"], as_files=True)


def test_the_shell_around_a_command_runs_none_of_its_words(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("typed")
    words = ["sh", "-c", 'cat; printf " %s" "$@" > "o 1"', "sh", "$(touch evil)", "; touch evil", "'"]
    command = wrapped(words, Around(stdin="in", packed=[("o.tar", "'o 1'")]))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "typed"), done.stderr
    assert not (tmp_path / "evil").exists()
    assert (tmp_path / "o.tar").exists()
    failing = wrapped(["sh", "-c", "exit 7"], Around(packed=[("o.tar", "x")]))
    assert subprocess.run(failing, cwd=tmp_path, check=False).returncode == 7
    for nothing in (Around(), Around(links=[], unpacked=[], packed=[])):
        assert wrapped(["/bin/true"], nothing) == ["/bin/true"], "no shell where there is nothing to do"


def test_inputs_lie_in_the_work_directory_under_the_names_that_the_command_knows_only(tmp_path: Path) -> None:
    """A pattern of the command, such as `*.dat`, would find a file twice that has two names."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.dat").write_text("a")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "b-c.dat").write_text("b")
    pack_directory(tmp_path / "here", tmp_path / "work" / "here.tar", name="here")
    command = wrapped(["ls"], Around(links=[("b-c.dat", "b c.dat")], unpacked=["here.tar"]))
    done = subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["b c.dat", "here"]


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    packed = typed_outputs(["h *.root"], as_files=True).packed
    command = wrapped(["/bin/true"], Around(packed=packed))
    assert not any("{" in word for word in command), "a brace is a template where the command runs"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        125, "tidemill: CMD left nothing that matches --output h *.root\n",
    )  # fmt: skip
    for name in ("g-0.root", "g 1.root", "g-2", "g-3"):
        (tmp_path / name).touch()
    (tmp_path / "a").symlink_to("/etc/passwd")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == (
        "tidemill: CMD left nothing that matches --output h *.root; "
        "the work directory has `g 1.root`, `g-0.root`, `g-2`\n"
    )
    (tmp_path / "h 1.root").touch()
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0


def test_the_slot_is_told_which_paths_are_inputs_and_archives(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "work").mkdir()
    pack_directory(tmp_path / "here", tmp_path / "work" / "here.tar", name="here")
    packed = typed_outputs(["plots/", "h*.root"], as_files=True).packed
    words = ["sh", "-c", "mkdir plots; : > h1.root; : > h2.root; : > left"]
    command = wrapped(words, Around(unpacked=["here.tar"], packed=packed))
    subprocess.run(command, cwd=tmp_path / "work", check=True)
    told = (tmp_path / "work" / ".tidemill-packed").read_text()
    assert told.split("\0") == ["here", "plots", "h1.root", "h2.root", ""]


# ---- environment ---------------------------------------------------------------------------------------------------

ENVIRON = {
    "PATH": "/bin", "HOME": "/home/me", "ROOTSYS": "/root", "G4LEDATA": "/g4", "VIRTUAL_ENV": "/venv",
    "TOOL_DATA": "/x:/venv/share", "OTHER": "/venvs", "API_TOKEN": "s", "SSH_AUTH_SOCK": "/s", "SLURM_JOB_ID": "7",
    "BAD-NAME": "x", "LONG": "x" * 40_000,
}  # fmt: skip


def test_what_finds_software_is_passed_and_nothing_else() -> None:
    found = captured(ENVIRON, [])
    assert set(found.variables) == {"PATH", "ROOTSYS", "G4LEDATA", "VIRTUAL_ENV", "TOOL_DATA"}
    assert found.environment == "virtual environment `/venv`"


def test_the_page_on_modules_names_variables_that_are_passed_and_those_that_are_not() -> None:
    page = Path(__file__).parents[3] / "docs" / "software-environments.md"
    section = page.read_text().partition("## Modules and set-up scripts")[2].partition("```")[0]
    passed, others = (
        re.findall(r"`([A-Z0-9_]+)`", each) for each in section.split("A module's other variables")
    )
    assert len(passed) > 8
    assert set(captured(dict.fromkeys([*passed, *others], "/x"), []).variables) == set(passed)
    assert set(captured(dict.fromkeys(others, "/x"), others).variables) == set(others) != set()


def test_variables_with_bytes_that_are_not_utf_8_are_carried_and_long_ones_passed() -> None:
    environ = {
        "PATH": os.fsdecode(b"/opt/\xe9:/bin"),
        "R_LIBS": os.fsdecode(b"/x/\xff"),
        "LD_LIBRARY_PATH": "/x" * 50_000,
    }
    found = captured(environ, [os.fsdecode(b"OWN=\x80")])
    assert {name: os.fsencode(restored(value)) for name, value in found.variables.items()} == {
        "PATH": b"/opt/\xe9:/bin",
        "R_LIBS": b"/x/\xff",
        "LD_LIBRARY_PATH": b"/x" * 50_000,
        "OWN": b"\x80",
    }
    for value in found.variables.values():
        value.encode()


def test_a_variable_that_no_program_can_be_given_is_refused_with_its_name() -> None:
    longest = "x" * (131_071 - len("PATH="))
    assert captured({"PATH": longest}, []).variables == {"PATH": longest}
    with pytest.raises(ConfigError, match=r"--env PATH: .*131,066 bytes"):
        captured({"PATH": longest + "x"}, [])
    with pytest.raises(ConfigError, match=r"--env caf\\xe9: .* is not a valid name"):
        captured({}, [os.fsdecode(b"caf\xe9=1")])


def test_all_leaves_out_the_session_and_names_what_may_be_secret() -> None:
    found = captured(ENVIRON, ["API_TOKEN", "NEW=1=2"], everything=True)
    assert found.left_out == ["API_TOKEN"]
    assert {"OTHER": "/venvs", "API_TOKEN": "s", "NEW": "1=2"}.items() <= found.variables.items()
    assert not {"HOME", "SSH_AUTH_SOCK", "SLURM_JOB_ID", "BAD-NAME"} & set(found.variables)
    assert (
        captured({"CONDA_PREFIX": "/c/envs/hep"}, []).environment == "conda environment `hep` (`/c/envs/hep`)"
    )
    with pytest.raises(ConfigError, match="is not set here") as caught:
        captured(ENVIRON, ["ROOTSY"])
    assert "did you mean `ROOTSYS`?" in (caught.value.hint or "")


def test_a_program_of_an_image_is_found_by_a_shell_in_it() -> None:
    assert wrapped(["/bin/prog", "x"], Around()) == ["/bin/prog", "x"]
    assert wrapped(["prog", "x"], Around()) == ["/bin/sh", "-c", 'exec "$@"', "tidemill-run", "prog", "x"]


def test_a_directory_that_is_called_like_a_placeholder_is_passed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "{event} {x} {{seed}}").mkdir()
    for name in ("prog", "data"):
        (folder / name).touch(0o755)
    monkeypatch.chdir(folder)
    words = resolved(["./prog", "data", "{event}"], staged=()).words
    filled = [Template.literal_but_known(word).fill({}) for word in words]
    assert filled == [*(doubled(str(folder / name)) for name in ("prog", "data")), "{event}"]
    assert wrapped(words, Around())[0] == str(folder / "prog"), "a program alone is no template"
    assert wrapped(words, Around(stdin="in"))[4:] == words
    assert wrapped(["/x/{event}/prog"], Around())[4:] == ["/x/{event}/prog"], (
        "the shell's words are filled in"
    )


def test_doubled_braces_of_a_column_are_text() -> None:
    table = EventTable(("mass", "n"), [("1", "2")])
    assert table.filled("{mass} {{mass}} {{{mass}}} {other} {{event}}") == (
        "{column.1} {mass} {{mass}} {other} {{event}}"
    )
    with pytest.raises(ConfigError, match=r"does not use `\{n\}`"):
        table.check_used(["{mass}", "{{n}}"], every=["n"])


def test_the_time_zone_of_the_shell_is_passed() -> None:
    assert captured({"TZ": "America/New_York"}, []).variables == {"TZ": "America/New_York"}
