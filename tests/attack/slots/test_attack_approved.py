"""A submitter tries to bring code into approved programs: by names of inputs, and by lines that become arguments.

The programs look for code where programs of their kind do, and their application files are as careless as a site would
write them: search paths with empty elements, `inputs = ["*"]`, a line as the first argument of an interpreter. What
foreign code does is print `HIJACKED`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.worlds.home.world import Options, World

from tidemill.client.outputs import members
from tidemill.errors import TidemillError
from tidemill.model.job import Input, InputKind, JobSpec

PYTHON = str(Path(sys.executable).resolve())
FOREIGN_PYTHON = "print('HIJACKED', flush=True)\n"
FOREIGN_SHELL = "#!/bin/sh\necho HIJACKED\n"
FOREIGN_MAKE = "$(info HIJACKED)\nall: owned\nowned:\n\t@echo HIJACKED\n"
FOREIGN_LIBRARY = """#include <unistd.h>
__attribute__((constructor)) static void begin(void) { (void)!write(1, "HIJACKED\\n", 9); }
"""
NAMES = {
    **dict.fromkeys(
        [
            "json.py",
            "csv.py",
            "tool.py",
            "helper.py",
            "sitecustomize.py",
            "usercustomize.py",
            "runpy.py",
            "os.py",
        ],
        FOREIGN_PYTHON,
    ),
    **dict.fromkeys(["rootlogon.C", "rootrc", "hook", "sh", "cat", "python3", "functions.sh"], FOREIGN_SHELL),
    **dict.fromkeys(["Makefile", "makefile", "GNUmakefile", "config.mk"], FOREIGN_MAKE),
    "libm.so.6": FOREIGN_LIBRARY,
}
"""Twenty names under which programs look for code, with what they would run."""

ROOT = """#!/bin/sh
# the files that ROOT reads at its start (TEnv, TROOT), and its option `-e` (root --help)
for each in .rootrc rootrc rootlogon.C; do test ! -f "$each" || . "./$each"; done
for word; do case "$word" in -e*) eval "${word#-e}";; esac; done
for word; do case "$word" in -*) ;; *.C) test ! -f "$word" || . "$word";; esac; done
"""
STATIC = """#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    if (access("./hook", X_OK) == 0) (void)!system("./hook");
    for (int k = 1; k < count; k++)
        if (words[k][0] == '-') (void)!system(words[k] + 2);
    puts("fine");
    return 0;
}
"""
TOOL = """import csv, json, math, os, subprocess, sys
subprocess.run([sys.executable, "-c", "import json, csv"], check=True)
assert len(sys.argv) < 2 or os.path.exists(sys.argv[1]), sys.argv
print("fine", flush=True)
"""
SHELL = """. /dev/null
test ! -f functions.sh || . ./functions.sh
test -s "$1" && cat "$1" > /dev/null && sh -c : && echo fine
"""
RULES = "-include config.mk\nfine:\n\t@cat $(DATA) > /dev/null && echo fine\n"

LINES = [
    "-cprint('HIJACKED')", "-c print('HIJACKED')", "-c", "-ecat /etc/hostname; echo HIJACKED", "-xecho HIJACKED", "-xs",
    "--eval=$(info HIJACKED)", "-f/dev/stdin", "-mthis", "--init-file=/tmp/x", "--", "-", "~root/.ssh/id_rsa",
    "../../../etc/passwd", "a/../../b", "$(echo HIJACKED)", "`echo HIJACKED`", "; echo HIJACKED", "a b\\u2028-c",
    "\\uff0dcprint('HIJACKED')",
]  # fmt: skip
"""Twenty lines that are options, code or other files for some program."""

GOOD = "run7/part-12.root"
CARELESS = {"LD_LIBRARY_PATH": ":/nowhere", "PATH": ":/usr/bin:/bin"}


class Program(NamedTuple):
    """An approved program, and the words that it takes a line behind."""

    executable: str
    arguments: list[str]
    line_arguments: list[str]
    script: str = ""
    environment: dict[str, str] = CARELESS


def built(folder: Path, name: str, source: str, *options: str) -> str:
    (folder / f"{name}.c").write_text(source)
    made = folder / name
    subprocess.run(["gcc", "-O1", *options, "-o", str(made), str(folder / f"{name}.c")], check=True)
    return str(made)


def programs(folder: Path) -> dict[str, Program]:
    """One of each kind, with its files below `folder`."""
    library = folder / "library"
    library.mkdir()
    (library / "tool.py").write_text(TOOL)
    (folder / "helper.py").write_text("answer = 42\n")
    (folder / "run.py").write_text("import helper\nassert helper.answer == 42\n" + TOOL)
    (folder / "run.sh").write_text(SHELL)
    (folder / "rules.mk").write_text(RULES)
    (folder / "macro.C").write_text("echo fine\n")
    (folder / "root").write_text(ROOT)
    (folder / "root").chmod(0o755)
    static = built(folder, "static", STATIC, "-static")
    root, macro, make = str(folder / "root"), str(folder / "macro.C"), shutil.which("make") or "/usr/bin/make"
    return {
        "python-m": Program(
            PYTHON,
            ["-m", "tool", "{input.data}"],
            ["{line}"],
            environment={**CARELESS, "PYTHONPATH": f":{library}"},
        ),
        "python-script": Program(PYTHON, ["{input.data}"], ["{line}"], script=str(folder / "run.py")),
        "root": Program(root, ["-b", "-q", macro, "{input.data}"], ["-b", "{line}", macro]),
        "shell": Program("/bin/sh", ["{input.data}"], ["-e", "{column.1}"], script=str(folder / "run.sh")),
        "make": Program(
            make, ["-f", str(folder / "rules.mk"), "DATA={input.data}", "fine"], ["-n", "{line}"]
        ),
        "static": Program(static, ["{input.data}"], ["{column.0}", "{column.1}"]),
    }


def application(
    name: str, program: Program, arguments: list[str], folder: Path, *, script: str = "", inputs: str = ""
) -> str:
    words = ", ".join(f"'{each}'" for each in arguments)
    variables = ", ".join(f'{key} = "{value}"' for key, value in program.environment.items())
    return (
        f'name = "{name}"\nexecutable = "{program.executable}"\narguments = [{words}]\n{inputs}'
        + (f'script = "{script}"\n' if script else "")
        + f'show = ["{folder}"]\n'
        + f"environment = {{ {variables} }}\n[resources]\nmemory_mb = 300\nevent_s = 0.1\n"
    )


@pytest.fixture(scope="module")
def site() -> Iterator[World]:
    """A site that runs approved programs of others only, with files of a submitter in `data`."""
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    it = World(home, Options(nodes=1, cores=2, extra="shared = true"))
    folder = home / "me" / "programs"
    folder.mkdir()
    config = home / "site" / "site.toml"
    config.write_text(config.read_text().replace("allow_adhoc = true", "allow_adhoc = false"))
    try:
        for name, program in programs(folder).items():
            apps = home / "site" / "apps"
            wide = 'inputs = ["*"]\n'
            for suffix, words, script, inputs in (
                ("", program.arguments, program.script, wide),
                ("-narrow", program.arguments, program.script, ""),
                ("-line", program.line_arguments, "", 'inputs = ["list"]\n'),
            ):
                text = application(name + suffix, program, words, folder, script=script, inputs=inputs)
                (apps / f"{name}{suffix}.toml").write_text(text)
        foreign_files(home / "data")
        it.start()
        kinds = len(programs_named(it))
        it.wait_for(lambda: len(it.client.applications()) >= 3 * kinds, "the site offers its programs")
        yield it
    finally:
        it.stop()
        shutil.rmtree(home, ignore_errors=True)


def programs_named(it: World) -> list[str]:
    return [path.stem.removesuffix("-line") for path in (it.home / "site" / "apps").glob("*-line.toml")]


def foreign_files(data: Path) -> None:
    data.mkdir()
    (data / "data").write_text("an honest input\n")
    for name, content in NAMES.items():
        if content is FOREIGN_LIBRARY:
            built(data, name, content, "-shared", "-fPIC")
            continue
        (data / name).write_text(content)
        (data / name).chmod(0o755)
    lines = [GOOD, *(each.encode().decode("unicode_escape") for each in LINES)]
    (data / "lines").write_text("".join(f"{each}\t{each}\n" for each in lines))
    (data / "plain").write_text("".join(f"{each}\n" for each in lines))


def printed(it: World, job: int) -> str:
    """What the payloads of a job left on stdout and stderr, as far as it was kept."""
    detail = it.client.job(job)
    texts = [f"{each.evidence.message}\n{each.evidence.stderr_tail}" for each in detail.failures]
    for output in it.client.outputs(job=job):
        texts += [member.data.decode(errors="replace") for member in members(output.job, output.output)]
    return "\n".join(texts)


KINDS = ["python-m", "python-script", "root", "shell", "make", "static"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_of_an_input_makes_an_approved_program_run_it(site: World, kind: str) -> None:
    data = site.home / "data"
    assert len(NAMES) == 20
    inputs = [Input(name=name, url=str(data / name)) for name in ("data", *NAMES)]
    (job,) = site.submit(f"names-{kind}", JobSpec(app=kind, inputs=inputs, keep_stdout=True, retries=0))
    site.wait_campaign(f"names-{kind}")
    said = printed(site, job)
    assert "HIJACKED" not in said
    assert site.client.job(job).row.state == "COMPLETED", said
    assert "fine" in said


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_the_application_does_not_name_is_refused_when_it_is_submitted(
    site: World, kind: str
) -> None:
    data = site.home / "data"
    for name in NAMES:
        inputs = [Input(name=each, url=str(data / each)) for each in ("data", name)]
        with pytest.raises(TidemillError, match=rf"`{kind}-narrow` takes no input named `{name}`"):
            site.submit("refused", JobSpec(app=f"{kind}-narrow", inputs=inputs))
    (job,) = site.submit(
        f"narrow-{kind}",
        JobSpec(app=f"{kind}-narrow", inputs=[Input(name="data", url=str(data / "data"))], retries=0),
    )
    site.wait_campaign(f"narrow-{kind}")
    assert site.client.job(job).row.state == "COMPLETED", printed(site, job)


@pytest.mark.parametrize("kind", KINDS)
def test_no_line_of_a_submitters_list_becomes_an_option_or_code(site: World, kind: str) -> None:
    events = 1 + len(LINES)
    assert events == 21
    fields = "lines" if kind in ("shell", "static") else "plain"
    inputs = [Input(name="list", url=str(site.home / "data" / fields), kind=InputKind.EACH)]
    spec = JobSpec(
        app=f"{kind}-line", inputs=inputs, events=events, keep_stdout=True, retries=0, failed_max=events
    )
    (job,) = site.submit(f"lines-{kind}", spec)
    site.wait_campaign(f"lines-{kind}", timeout_s=180)
    detail = site.client.job(job)
    said = printed(site, job)
    refused = {each.event: each.evidence.message for each in detail.failures}
    started = [each.evidence.exit_status for each in detail.failures if each.evidence.exit_status is not None]
    assert not [each for each in said.splitlines() if each == "HIJACKED"], said
    assert detail.row.events_done + len(started) == 1, (
        f"only the program with the honest line was started: {refused}"
    )
    assert sum("cannot become an argument: it is" in each for each in refused.values()) == len(LINES), refused
