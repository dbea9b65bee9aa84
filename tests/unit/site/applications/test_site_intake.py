"""Inputs and lines that an application file allows, and what keeps interpreters away from the work directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import ConfigError, UnfitError
from tidemill.model.application import Application, Container, Runtime
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Input, JobSpec, Width
from tidemill.model.job import Resources as Need
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.containers import wrap_words
from tidemill.site.applications.handed.cautions import cautions
from tidemill.site.applications.handed.intake import python_places
from tidemill.site.applications.launching import Launching
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.state import site_state
from tidemill.wire.node import LineRule, Program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "prog").chmod(0o755)
    (tmp_path / "apps").mkdir()
    return tmp_path


def written(folder: Path, lines: str, *, executable: str = "prog") -> Path:
    path = folder / "apps" / "sim.toml"
    program = executable if executable.startswith("/") else f"{folder}/{executable}"
    path.write_text(f'name = "sim"\nexecutable = "{program}"\n{lines}\n')
    return path


def preparer(folder: Path, lines: str, *, executable: str = "prog", **site: object) -> Preparer:
    written(folder, lines, executable=executable)
    applications = Applications(folder / "apps")
    applications.refresh()
    assert applications.problems == {}
    config = SiteConfig(name="x", server="unix:/x", **site)  # type: ignore[arg-type]
    made = Preparer(config, applications, NodeShape(4, 8000, {}))
    made.begin(Launching("mpich", 4))
    return made


def program(folder: Path, lines: str, *names: str, executable: str = "prog") -> Program:
    inputs = [Input(name=name, url="/x") for name in names]
    return preparer(folder, lines, executable=executable).program(JobSpec(app="sim", inputs=inputs), None)


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        ("", []),
        ('arguments = ["{input.data}", "-c{input.cards}"]', ["data", "cards"]),
        ('arguments = ["{inputs}"]', ["part-*"]),
        ('arguments = ["{{input.data}}"]', []),
        ('arguments = ["{input.data}"]\ninputs = ["other"]', ["other"]),
        ('[[outputs]]\nname = "o"\npath = "{input.data}.out"', ["data"]),
    ],
)
def test_inputs_are_those_that_arguments_name_unless_the_file_lists_them(
    folder: Path, lines: str, taken: list[str]
) -> None:
    assert load_application(written(folder, lines)).inputs == taken


@pytest.mark.parametrize("names", [("json.py",), ("data", "json.py"), ("Data",)])
def test_the_site_refuses_inputs_that_the_application_does_not_take(
    folder: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(UnfitError, match=f"takes no input named `{names[-1]}`"):
        program(folder, 'arguments = ["{input.data}"]', *names)
    assert program(folder, 'arguments = ["{input.data}"]', "data").inputs_apart is True


def test_a_command_keeps_its_inputs_in_its_work_directory_and_its_lines_free(folder: Path) -> None:
    spec = JobSpec(command=["/bin/true"], inputs=[Input(name="json.py", url="/x")])
    made = preparer(folder, "", allow_adhoc=True).program(spec, None)
    assert (made.inputs_apart, made.lines) == (False, None)
    assert "PYTHONSAFEPATH" not in made.env


def test_lines_are_those_of_a_text_parameter_unless_the_file_gives_a_pattern(folder: Path) -> None:
    lines = 'line = { pattern = "[a-z]+" }\ncolumns = { 01 = { pattern = "[0-9]{1,9}" } }'
    made = program(folder, lines)
    assert made.lines is not None
    assert made.lines["*"] == LineRule(pattern=None, bytes_max=255)
    assert made.lines["line"] == LineRule(pattern="[a-z]+", bytes_max=32_768)
    assert made.lines["1"].pattern == "[0-9]{1,9}"
    assert set(made.lines) == {"*", "line", "1"}


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ('inputs = [".rootrc"]', "begins with `.`"),
        ('inputs = ["a/b"]', "`a/b`: it is not a name of inputs"),
        ('line = { pattern = "(?i)a" }', "`line.pattern` is `(?i)a`, which cannot be used"),
        ('line = { pattern = "(" }', "`line.pattern` is `(`"),
        ('columns = { x = { pattern = "a" } }', "`columns.x` is not the number of a column"),
        ('columns = { 3 = { pattern = "é" } }', "`columns.3.pattern`"),
        ('[parameters."\u0430da"]', "parameter `\u0430da` is not a name"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_key(folder: Path, lines: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_application(written(folder, lines))
    assert part in refused.value.message


def test_a_pattern_in_double_quotes_gets_the_hint_to_use_single_ones(folder: Path) -> None:
    hint = "write texts with `\\`, such as patterns, in single quotes: TOML then leaves `\\` alone"
    with pytest.raises(ConfigError, match="is not TOML: Unescaped") as refused:
        load_application(written(folder, r'line = { pattern = "run\d+" }'))
    assert refused.value.hint == hint
    for pattern, visible in ((r"run\t[0-9]+", r"`run\t[0-9]+`"), (r"\brun", r"`\brun`")):
        with pytest.raises(ConfigError) as refused:
            load_application(written(folder, f'line = {{ pattern = "{pattern}" }}'))
        assert visible in refused.value.message
        assert refused.value.hint == hint
        load_application(written(folder, f"line = {{ pattern = '{pattern}' }}"))


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ('line = "run"', "line", "write `line = { pattern = 'run' }`"),
        (r"line = 'run\d+'", "line", r"write `line = { pattern = 'run\d+' }`"),
        ('columns = { 1 = "it\'s" }', "columns.1", 'write `1 = { pattern = "it\'s" }`'),
        ("line = 3", "line", None),
    ],
)
def test_a_pattern_that_stands_for_its_table_is_written_as_one_in_the_hint(
    folder: Path, line: str, key: str, hint: str | None
) -> None:
    with pytest.raises(ConfigError, match=f"`{key}` is .*, expected a table") as refused:
        load_application(written(folder, line))
    assert refused.value.hint == hint


def test_python_looks_neither_in_the_work_directory_nor_away_from_its_script(folder: Path) -> None:
    (folder / "run.py").write_text("import helper\n")
    script = f'script = "{folder}/run.py"\n'
    made = program(folder, script + 'environment = { PYTHONPATH = "/opt/lib" }')
    assert (made.env, made.python_first) == ({"PYTHONSAFEPATH": "1", "PYTHONPATH": "/opt/lib"}, str(folder))
    (folder / "run").write_text("import helper\n")
    (folder / "python3").symlink_to("/bin/sh")
    made = program(folder, f'script = "{folder}/run"', executable="python3")
    assert (made.env, made.python_first) == ({"PYTHONSAFEPATH": "1"}, str(folder))
    made = program(folder, 'arguments = ["-m", "tool"]', executable="python3")
    assert (made.env, made.python_first) == ({"PYTHONSAFEPATH": "1"}, None)
    made = program(folder, script + 'environment = { PYTHONSAFEPATH = "" }')
    assert (made.env, made.python_first) == ({"PYTHONSAFEPATH": ""}, None)


def test_a_program_that_starts_python_itself_leaves_its_scripts_the_modules_beside_them(folder: Path) -> None:
    (folder / "run.sh").write_text("exec python3 /sw/lib/main.py\n")
    for made in (program(folder, ""), program(folder, f'script = "{folder}/run.sh"')):
        assert (made.env, made.python_first) == ({}, None)


def test_the_safe_path_of_python_holds_in_containers_that_list_their_variables() -> None:
    image = Container(image="x@sha256:" + 64 * "0", runtime=Runtime.PODMAN)
    app = Application(name="sim", executable="/opt/run.py", script="/opt/lib/main.py", container=image)
    assert python_places(app, {}) == ({"PYTHONSAFEPATH": "1"}, "/opt/lib")
    words = wrap_words(app, ContainerRuntime(command=["/usr/bin/podman"]), namespaces=True)
    assert {"--env=PYTHONSAFEPATH", "--env=PYTHONPATH"} <= set(words)


def test_a_python_program_that_is_its_own_script_finds_its_modules(folder: Path) -> None:
    (folder / "tool").write_text("#!/usr/bin/env python3\n")
    (folder / "tool").chmod(0o755)
    assert program(folder, "", executable="tool").python_first == str(folder)


@pytest.mark.parametrize("width", [None, Width(nodes=2, ranks=4)])
def test_no_job_sets_variables_of_an_approved_program_launched_or_not(
    folder: Path, width: Width | None
) -> None:
    it = preparer(folder, "nodes_max = 4\nranks_max = 64")
    need = Need() if width is None else Need(nodes=width.nodes, ranks=width.ranks)
    for name in (
        "LD_PRELOAD",
        "PYTHONPATH",
        "OMPI_MCA_plm_rsh_agent",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        "SLURM_EXPORT_ENV",
    ):
        spec = JobSpec(app="sim", env={name: "/tmp/work/x"}, resources=need)
        job = site_state.SiteJob(
            id=1, campaign="c", seed_base=5, spec=spec, open=IntervalSet(), done=IntervalSet()
        )
        made = it.program(spec, None)
        assert name not in made.env
        with pytest.raises(UnfitError, match=f"environment variable `{name}`"):
            it.job(job, made, [])


def test_a_program_of_a_launcher_takes_no_other_inputs(folder: Path) -> None:
    spec = JobSpec(app="sim", inputs=[Input(name="json.py", url="/x")], resources=Need(nodes=2, ranks=4))
    with pytest.raises(UnfitError, match="takes no input named"):
        preparer(folder, "nodes_max = 4\nranks_max = 64").program(spec, None)


ANY = '[parameters.x]\npattern = ".*"'
SOUND = 'script = "{script}"\narguments = ["{{input.data}}"]\nenvironment = {{ PATH = "/usr/bin:/bin" }}'


@pytest.mark.parametrize(
    ("executable", "lines", "part"),
    [
        ("/usr/bin/python3", 'arguments = ["-m", "tool"]', "`-m`"),
        ("/usr/bin/python3", 'arguments = ["-c", "import x"]', "`-c`"),
        ("/bin/bash", 'arguments = ["-c", "run"]', "`-c`"),
        ("/bin/sh", 'environment = { PATH = ":/bin" }', "`environment.PATH` has an empty element"),
        (
            "/bin/sh",
            'environment = { LD_LIBRARY_PATH = "/a:" }',
            "`environment.LD_LIBRARY_PATH` has an empty",
        ),
        ("/bin/sh", 'environment = { PYTHONPATH = "lib" }', "the relative element `lib`"),
        ("/bin/sh", 'environment = { ROOT_INCLUDE_PATH = "." }', "the relative element `.`"),
        ("/bin/sh", 'environment = { PYTHONSAFEPATH = "" }', "`environment.PYTHONSAFEPATH` is empty"),
        ("/usr/bin/root", 'arguments = ["-q", "/x.C"]', "`rootlogon.C`"),
        ("/usr/bin/gdb", 'arguments = ["-batch"]', "`.gdbinit`"),
        ("/usr/bin/make", 'arguments = ["all"]', "`Makefile`"),
        ("/bin/sh", 'inputs = ["*"]', "`inputs` has `*`"),
        ("/bin/sh", 'inputs = ["*.py"]', "so that jobs may give `json.py`"),
        ("/bin/sh", 'inputs = ["x"]\nline = { pattern = ".*" }', "`line.pattern` permits `-c`"),
        (
            "/bin/sh",
            'inputs = ["x"]\ncolumns = { 0 = { pattern = "-?[0-9]+" } }',
            "`columns.0.pattern` permits `-1`",
        ),
        ("/bin/sh", 'arguments = ["{line}"]', "`inputs` names no input"),
        (
            "/bin/sh",
            'arguments = ["/x", "{input.b}"]\ninputs = ["a"]',
            "`inputs` lacks `b`: every job would fail",
        ),
        ("/bin/sh", 'inputs = ["a"]\nline = { pattern = "a" }', "`line` has no effect"),
        (
            "/bin/sh",
            'inputs = ["a"]\narguments = ["/x", "{{line}}"]\nline = { pattern = "a" }',
            "`line` has no effect: `arguments` has no `{line}`",
        ),
        (
            "/bin/sh",
            'inputs = ["a"]\narguments = ["/x", "{column.0}"]\ncolumns = { 1 = { pattern = "a" } }',
            "`columns.1` has no effect: `arguments` has no `{column.1}`",
        ),
        (
            "/usr/bin/env",
            f'arguments = ["-i", "A=b", "python3", "-c", "{{x}}"]\n{ANY}',
            "`arguments` has `-c`",
        ),
        ("/usr/bin/env", 'arguments = ["-u", "A", "nice", "-n", "5", "bash", "-lc", "x"]', "has `-lc`"),
        ("/usr/bin/timeout", 'arguments = ["-k", "5", "60", "/usr/bin/perl", "-we", "x"]', "has `-we`"),
        ("/usr/bin/nice", 'arguments = ["make", "all"]', "`make` reads"),
        ("/usr/bin/python3", 'arguments = ["-Ic", "x"]', "`arguments` has `-Ic`"),
        ("/usr/bin/python3", 'arguments = ["-W", "ignore", "-uc", "x"]', "`arguments` has `-uc`"),
        ("/bin/bash", 'arguments = ["-euo", "pipefail", "-c", "x"]', "`arguments` has `-c`"),
        ("/usr/bin/python3", 'arguments = ["-u", "{input.code}"]', "`python3` runs the input `code`"),
        ("/bin/bash", 'arguments = ["{input.code}"]', "`bash` runs the input `code`"),
        ("/usr/bin/make", 'arguments = ["-f", "{input.x}"]', "`make` runs the input `x`"),
        ("/usr/bin/make", 'arguments = ["--file={input.x}"]', "`make` runs the input `x`"),
        (
            "/usr/bin/python3",
            f'arguments = ["-m", "{{x}}"]\n{ANY}',
            "has `-m {x}`, so that jobs choose the module",
        ),
        ("/usr/bin/python3", f'arguments = ["-m{{x}}"]\n{ANY}', "so that jobs choose the module"),
        ("/bin/sh", f'arguments = ["/x", "{{x}}"]\n{ANY}', "`parameters.x.pattern` permits `-c`"),
        ("/bin/sh", 'setup = ["export PYTHONPATH=/opt/x:"]', "`setup`: `PYTHONPATH` has an empty element"),
        (
            "/bin/sh",
            "setup = ['LD_LIBRARY_PATH=\"lib:$X\"']",
            "`LD_LIBRARY_PATH` has the relative element `lib`",
        ),
        ("/bin/sh", 'environment = { PYTHONPATH = "/opt/a::rel" }', "an empty element"),
        ("/bin/sh", 'environment = { PYTHONPATH = "/opt/a::rel" }', "the relative element `rel`"),
        (
            "/bin/sh",
            'inputs = ["Makefile"]',
            "`inputs` has `Makefile`: programs run or load a file of this name",
        ),
    ],
)
def test_app_check_warns_of_what_lets_a_submitter_choose_code(
    folder: Path, executable: str, lines: str, part: str
) -> None:
    name = Path(executable).name
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    found = load_application(written(folder, lines, executable=name))
    warnings = cautions(found.app, found.inputs)
    assert [each for each in warnings if part in each], warnings


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("python3", SOUND),
        ("sh", SOUND),
        ("root", 'arguments = ["-n", "-q", "/x.C"]'),
        ("make", 'arguments = ["-f", "/x.mk"]'),
        ("sh", 'arguments = ["{{line}}"]\ninputs = ["list"]\nline = {{ pattern = "[a-z]+" }}'),
        (
            "sh",
            'arguments = ["/x", "{{column.1}}"]\ninputs = ["a"]\ncolumns = {{ 01 = {{ pattern = "a" }} }}',
        ),
        ("sh", 'arguments = ["/x", "{{{{line}}}}", "{{{{input.b}}}}"]'),
        ("python3", 'arguments = ["/opt/x.py", "-c", "{{x}}", "-m", "{{input.data}}"]\n[parameters.x]'),
        ("python3", 'arguments = ["-I", "-m", "tool"]'),
        ("python3", 'arguments = ["-X", "importtime", "-Wc", "/opt/x.py"]'),
        ("python3", 'arguments = ["-B{{x}}", "/opt/x.py"]\n[parameters.x]\npattern = "m"'),
        ("perl", 'arguments = ["-w", "/opt/x.pl", "-e", "1"]'),
        ("bash", 'arguments = ["--norc", "-o", "pipefail", "/opt/x.sh", "-c"]'),
        ("env", 'arguments = ["python3", "/opt/x.py", "{{input.data}}"]'),
        ("timeout", 'arguments = ["60", "/opt/sim", "-c", "{{input.cards}}"]'),
        ("prog", 'arguments = ["-c", "--name={{x}}", "--", "{{x}}"]\n[parameters.x]\npattern = ".*"'),
        ("prog", 'arguments = ["{{x}}"]\n[parameters.x]\npattern = "-?[0-9]+"'),
        ("prog", 'environment = {{ LD_PRELOAD = "libx.so", PYTHONPATH = "" }}'),
        (
            "prog",
            "setup = ['export PYTHONPATH=/opt/x${{PYTHONPATH:+:$PYTHONPATH}}', 'PYTHONPATH=', 'PATH=~/bin:$PATH']",
        ),
        (
            "prog",
            "setup = ['export PYTHONPATH=$(pwd):', 'LD_LIBRARY_PATH=lib; cd /', 'module load x', 'X=a:']",
        ),
    ],
)
def test_a_careful_file_gets_no_warning(folder: Path, name: str, lines: str) -> None:
    for each in (name, "run.py"):
        (folder / each).write_text("#!/bin/sh\n")
        (folder / each).chmod(0o755)
    found = load_application(written(folder, lines.format(script=folder / "run.py"), executable=name))
    assert cautions(found.app, found.inputs) == []
