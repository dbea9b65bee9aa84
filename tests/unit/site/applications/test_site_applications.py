"""Approved applications: what is wrong is named, what a user gives becomes whole arguments or is refused."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, JobError, SiteError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Resources, Shell
from tidemill.octets import carried
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.state import site_state
from tidemill.wire.node import JobDef, Program

APP = """name = "sim"
executable = "{program}"
digest = "sha256:{digest}"
arguments = ["--first", "{{first_event}}", "-n{{events}}", "--seed={{seed}}", "{{energy}}", "{{card}}", "{{{{x}}}}",
  "{{pair}}"]
[parameters.energy]
type = "float"
min = 1
max = 100
[parameters.card]
default = "std"
[parameters.pair]
pattern = "[a-z{{}}]*"
default = "{{}}"
"""


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    program = tmp_path / "prog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    directory = tmp_path / "apps"
    directory.mkdir()
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    (directory / "sim.toml").write_text(APP.format(program=program, digest=digest))
    return directory


def preparer(apps: Path, *, allow_adhoc: bool = False) -> Preparer:
    applications = Applications(apps)
    applications.refresh()
    config = SiteConfig(name="x", server="unix:/x", allow_adhoc=allow_adhoc)
    return Preparer(config, applications, NodeShape(4, 8000, {}))


def prepare(it: Preparer, spec: JobSpec) -> tuple[Program, JobDef]:
    it.begin()
    job = site_state.SiteJob(
        id=1, campaign="c", seed_base=5, spec=spec, open=IntervalSet(), done=IntervalSet()
    )
    program = it.program(spec, None)
    return program, it.job(job, program, [])


def refused(it: Preparer, spec: JobSpec) -> JobError:
    with pytest.raises(JobError) as caught:
        prepare(it, spec)
    return caught.value


def test_parameters_become_arguments_and_the_slots_templates_stay(apps: Path) -> None:
    program, job = prepare(preparer(apps), JobSpec(app="sim", params={"energy": 13, "pair": "a{b"}))
    assert job.argv == [
        "--first",
        "{first_event}",
        "-n{events}",
        "--seed={seed}",
        "13.0",
        "std",
        "{{x}}",
        "a{{b",
    ]
    assert program.chunk_max > 1
    assert job.params == '{"energy":13.0,"card":"std","pair":"a{b"}'


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({}, "needs parameter `energy`"),
        ({"energy": 0.5}, "at least 1"),
        ({"energy": 101}, "at most 100"),
        ({"energy": "much"}, "expected a number"),
        ({"energy": 2, "card": "-rf"}, "leading `-`"),
        *(
            ({"energy": 2, "card": card}, "letters, digits and")
            for card in ("a b", "a\0", "a\n", ";id", "$(id)", "`id`", "a|b", "../x", "a/..", "~/x", "x" * 256)
        ),
        ({"energy": 2, "pair": "x" * 1_000_000}, "1000000 characters"),
        ({"energy": 2, "pair": "A"}, "does not match"),
        ({"enrgy": 2}, "no parameter `enrgy`"),
    ],
)
def test_wrong_parameters_are_refused_by_name(
    apps: Path, params: dict[str, str | int | float | bool], part: str
) -> None:
    assert part in refused(preparer(apps), JobSpec(app="sim", params=params)).message


def test_unknown_application_names_the_nearest(apps: Path) -> None:
    assert refused(preparer(apps), JobSpec(app="sin")).hint == "did you mean `sim`?"


def test_changed_executable_is_refused_with_both_digests(apps: Path, tmp_path: Path) -> None:
    it = preparer(apps)
    spec = JobSpec(app="sim", params={"energy": 2})
    approved = hashlib.sha256((tmp_path / "prog").read_bytes()).hexdigest()
    prepare(it, spec)
    (tmp_path / "prog").write_text("#!/bin/sh\nevil\n")
    changed = hashlib.sha256((tmp_path / "prog").read_bytes()).hexdigest()
    message = refused(it, spec).message
    assert f"has digest sha256:{changed[:12]}, approved is sha256:{approved[:12]}" in message


HICCUP = Path("/proc/self/mem")
"""Every read of its first byte fails with EIO, as those of a file system may that is away for a moment."""


def test_a_hiccup_of_the_file_system_refuses_no_job(apps: Path, tmp_path: Path) -> None:
    it, program = preparer(apps), tmp_path / "prog"
    spec = JobSpec(app="sim", params={"energy": 2})
    program.rename(tmp_path / "kept")
    program.symlink_to(HICCUP)
    for _ in range(2):
        with pytest.raises(SiteError, match="Input/output error") as caught:
            prepare(it, spec)
        assert caught.value.transient
    (tmp_path / "kept").rename(program)
    prepare(it, spec)
    program.unlink()
    assert "No such file" in refused(it, spec).message


def test_an_application_whose_files_cannot_be_read_just_now_is_tried_again(
    apps: Path, tmp_path: Path
) -> None:
    program = tmp_path / "prog"
    program.rename(tmp_path / "kept")
    program.symlink_to(HICCUP)
    applications = Applications(apps)
    applications.refresh()
    assert (applications.by_name, applications.problems) == ({}, {})
    (tmp_path / "kept").rename(program)
    assert applications.refresh()
    assert list(applications.by_name) == ["sim"]


def test_a_command_gets_the_umask_and_limits_of_its_submitters_shell(apps: Path) -> None:
    spec = JobSpec(command=["/bin/echo"], shell=Shell(umask=0o027, limits={"stack": -1}))
    _, job = prepare(preparer(apps, allow_adhoc=True), spec)
    assert (job.umask, job.limits) == (0o027, {"stack": -1})
    _, job = prepare(preparer(apps, allow_adhoc=True), JobSpec(command=["/bin/echo"]))
    assert (job.umask, job.limits) == (None, None)


def test_a_program_whose_path_is_not_utf_8_is_found(apps: Path, tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"b\xe9n")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found, _ = prepare(preparer(apps, allow_adhoc=True), JobSpec(command=[carried(str(program))]))
    assert found.executable == carried(str(program))
    found.executable.encode()


def test_command_is_refused_unless_the_site_allows_it(apps: Path) -> None:
    spec = JobSpec(command=["/bin/echo", "{event}", "{print $1}"])
    assert "approved applications only" in refused(preparer(apps), spec).message
    _, job = prepare(preparer(apps, allow_adhoc=True), spec)
    assert job.argv == ["{event}", "{{print $1}}"]
    missing = JobSpec(command=["no-such-program"])
    assert (
        "the site has no program `no-such-program`"
        in refused(preparer(apps, allow_adhoc=True), missing).message
    )


def test_environment_cannot_be_set_for_approved_applications(apps: Path) -> None:
    spec = JobSpec(app="sim", params={"energy": 2}, env={"LD_PRELOAD": "/evil.so"})
    assert "LD_PRELOAD" in refused(preparer(apps), spec).message


def test_slot_larger_than_a_node_is_refused(apps: Path) -> None:
    spec = JobSpec(app="sim", params={"energy": 2}, resources=Resources(cores=8))
    assert "8 cores" in refused(preparer(apps), spec).message


@pytest.mark.parametrize(
    ("old", "new", "part", "hint"),
    [
        ("arguments", "argumnets", "unknown key `argumnets`", "did you mean `arguments`?"),
        ("{seed}", "{sed}", "unknown template `{sed}`", "did you mean `seed`?"),
        ("{seed}", "{seed", "without its partner", None),
        ("max = 100", 'default = "x"', "parameters.energy.default", None),
        ('type = "float"', 'type = "flaot"', "expected one of", "did you mean `float`?"),
        ("sha256:", "sha256:0", "is not `sha256:` and 64", None),
        ("/prog", "/absent", "No such file", None),
        ('name = "sim"', 'name = "-x"', "is not a name", "letters"),
    ],
)
def test_wrong_application_file_names_what_is_wrong(
    apps: Path, old: str, new: str, part: str, hint: str | None
) -> None:
    path = apps / "sim.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_application(path)
    assert str(path) in caught.value.message
    assert part in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize("through_link", [False, True])
def test_script_below_the_site_directory_is_refused_because_payloads_do_not_see_it(
    apps: Path, tmp_path: Path, through_link: bool
) -> None:
    script = apps / "run.py"
    script.write_text("pass\n")
    named = script
    if through_link:
        named = tmp_path.parent / f"{tmp_path.name}-elsewhere.py"
        named.symlink_to(script)
    path = apps / "sim.toml"
    digest = f'script = "{named}"\narguments'
    path.write_text(path.read_text().replace("arguments", digest, 1))
    load_application(path)  # not the directory of a site
    (tmp_path / "site.toml").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_application(path)
    assert f"`{named}` is below the site directory" in caught.value.message
    assert "put it outside" in (caught.value.hint or "")


def test_wrong_file_does_not_take_the_others_down(apps: Path) -> None:
    (apps / "bad.toml").write_text("nonsense")
    applications = Applications(apps)
    applications.refresh()
    assert list(applications.by_name) == ["sim"]
    assert "is not TOML" in applications.problems["bad.toml"]
    assert not applications.refresh()
    (apps / "bad.toml").unlink()
    assert applications.refresh()
    assert not applications.problems
