"""A program that changed is approved again by one command: its digests are written into its application file."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import msgspec
import pytest

from tidemill.cli.main import main
from tidemill.errors import ConfigError, UnfitError
from tidemill.model.failure import POLICY, FailureClass, step_after
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.site.applications.catalogue import Applications
from tidemill.site.applications.reapproval import ProgramFile, approve, check_owner, program_files, rewritten
from tidemill.site.fleet.troubles import judge
from tidemill.site.state.site_state import SiteJob

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
WHOLE = re.compile(r"sha256:[0-9a-f]{64}")
CHANGED = ProgramFile("digest", "/opt/sim", OLD, NEW)


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def look(applications: Applications) -> None:
    found = applications.comparison()
    found.compare()
    applications.apply_comparison(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A site's application whose program and script are pinned and have changed."""
    program, script = tmp_path / "sim", tmp_path / "sim.py"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    script.write_text("1\n")
    apps = tmp_path / "site" / "apps"
    apps.mkdir(parents=True, mode=0o700)
    (apps.parent / "site.toml").write_text('name = "s"\nserver = "unix:/s"\n')
    path = apps / "sim.toml"
    path.write_text(
        f'# keep this remark\nname = "sim"\nexecutable = "{program}"\nscript = "{script}"\n'
        f"digest = '{digest(program)}'  # and this\nscript_digest = \"{digest(script)}\"\n"
        '[parameters.digest]\ntype = "string"\n'
    )
    path.chmod(0o640)
    program.write_text("#!/bin/sh\n# changed\n")
    script.write_text("2\n")
    return path


def test_the_digests_are_replaced_and_everything_else_stays(file: Path) -> None:
    before = file.read_text()
    app, files = program_files(file)
    assert (app.name, [each.is_changed for each in files]) == ("sim", [True, True])
    approve(file, files)
    expected = before
    for each in files:
        assert each.approved is not None
        expected = expected.replace(each.approved, each.found)
    assert file.read_text() == expected
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert not any(each.is_changed for each in program_files(file)[1])


def test_a_digest_that_is_not_on_a_line_of_its_own_is_left_to_people() -> None:
    for text in (
        f'digest = "{OLD}"\nhelp = """\ndigest = "{OLD}"\n"""\n',
        f'"digest" = "{OLD}"\n',
        f'digest = """{OLD}"""\n',
    ):
        with pytest.raises(ConfigError, match="line of its own") as caught:
            rewritten(text, [CHANGED])
        assert f'digest = "{NEW}"' in str(caught.value.hint)


def test_what_would_not_be_sound_leaves_the_file_as_it_was(file: Path) -> None:
    _, files = program_files(file)
    Path(files[0].path).write_text("changed once more\n")
    before = file.read_bytes()
    with pytest.raises(ConfigError):
        approve(file, files)
    assert file.read_bytes() == before


def test_a_file_that_is_a_link_stays_one_and_what_it_leads_to_is_approved(file: Path, tmp_path: Path) -> None:
    """As a checkout of git from which a site takes its applications."""
    kept = file.rename(tmp_path / "sim.toml")
    file.symlink_to(kept)
    _, files = program_files(file)
    approve(file, files)
    assert file.is_symlink()
    assert all(each.found in kept.read_text() for each in files)


def test_only_the_owner_of_the_application_file_approves(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_owner(file)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="approved by its owner"):
        check_owner(file)


def test_the_site_names_the_command_and_offers_the_program_again_after_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(program_files(file)[0].executable)
    applications = Applications(file.parent)
    applications.refresh()
    assert f"`tidemill app approve {file}`" in applications.problems["sim.toml"]
    assert main(["app", "approve", "--yes", str(file)]) == 0
    told = capsys.readouterr()
    assert f"now       {digest(program)}" in told.out
    assert "approved: the agent reads the file within seconds" in told.err
    applications.refresh()
    assert set(applications.by_name) == {"sim"}
    program.write_text("#!/bin/sh\n# changed again\n")
    with pytest.raises(UnfitError) as caught:
        applications.get("sim")
    assert f"`tidemill app approve {file}`" in str(caught.value.hint)


def test_messages_show_what_digests_are_recognised_by_and_whole_ones_to_copy_once(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(program_files(file)[0].executable)
    approved = program_files(file)[1][0].approved or ""
    applications = Applications(file.parent)
    applications.refresh()
    told = applications.problems["sim.toml"]
    assert f"has digest {digest(program)[:19]}, approved is {approved[:19]} (" in told
    assert not WHOLE.search(told)
    assert main(["app", "approve", "--yes", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["approved", approved[:19]] in lines
    assert ["now", digest(program)] in lines, "whole, to be compared with what its author says"
    assert main(["app", "check", str(file)]) == 0
    assert not WHOLE.search(capsys.readouterr().out), "the file has them"
    loose = file.with_name("loose.toml")
    loose.write_text(f'name = "loose"\nexecutable = "{program}"\n')
    assert main(["app", "check", str(loose)]) == 0
    assert WHOLE.findall(capsys.readouterr().out) == [digest(program)], "once, in the line to be copied"


def test_what_a_site_refuses_is_told_to_its_server_until_it_is_approved(file: Path) -> None:
    applications = Applications(file.parent)
    applications.refresh()
    (refused,) = applications.refused()
    assert (refused.name, refused.file) == ("sim", "sim.toml")
    assert f"`tidemill app approve {file}`" in refused.why
    approve(file, program_files(file)[1])
    applications.refresh()
    look(applications)
    assert applications.refused() == []
    program = Path(program_files(file)[0].executable)
    program.write_text("#!/bin/sh\n# changed while the site knows it\n")
    look(applications)
    (refused,) = applications.refused()
    assert (refused.name, refused.file, "has digest" in refused.why) == ("sim", "sim.toml", True)
    assert [each.name for each in applications.offers({})] == ["sim"], "its jobs wait here"
    approve(file, program_files(file)[1])
    applications.refresh()
    assert applications.refused() == []


def test_what_a_look_found_of_an_application_that_was_approved_again_since_is_not_told(file: Path) -> None:
    approve(file, program_files(file)[1])
    applications = Applications(file.parent)
    applications.refresh()
    Path(program_files(file)[0].executable).write_text("#!/bin/sh\n# changed once more\n")
    late = applications.comparison()
    late.compare()
    approve(file, program_files(file)[1])
    applications.refresh()
    applications.apply_comparison(late)
    assert [why is None for _, why in late.results] == [False]
    assert applications.refused() == []


def test_a_copy_that_was_left_over_is_refused_and_not_the_application_that_runs(file: Path) -> None:
    file.with_name("sim-old.toml").write_bytes(file.read_bytes())
    approve(file, program_files(file)[1])
    applications = Applications(file.parent)
    applications.refresh()
    look(applications)
    assert list(applications.by_name) == ["sim"]
    (refused,) = applications.refused()
    assert (refused.name, refused.file) == ("", "sim-old.toml")


def test_a_copy_that_no_site_reads_is_called_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copies" / "sim.toml"
    copy.parent.mkdir(mode=0o700)
    copy.write_bytes(file.read_bytes())
    assert main(["app", "check", str(copy)]) == 2
    assert "no site reads this copy" in capsys.readouterr().err
    assert main(["app", "check", str(file)]) == 2
    assert "no site reads this copy" not in capsys.readouterr().err
    assert main(["app", "approve", "--yes", str(copy)]) == 0
    assert "copy it to SITE/apps/" in capsys.readouterr().err


def test_a_check_says_where_the_file_is_offered_and_which_runtime_is_not_here(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree" / "bin").mkdir(parents=True)
    (tmp_path / "tree" / "bin" / "true").write_text("#!/bin/sh\n")
    elsewhere, here = tmp_path / "sim.toml", file.with_name("boxed.toml")
    elsewhere.write_text(f'name = "sim"\nexecutable = "{tmp_path / "sim"}"\n')
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    assert main(["app", "check", str(elsewhere)]) == 0
    assert f"put the file into `{file.parent}`" in capsys.readouterr().err
    with (file.parent.parent / "site.toml").open("a") as config:
        config.write('[containers.apptainer]\ncommand = ["/no/such/apptainer"]\n')
    here.write_text(
        f'name = "boxed"\nexecutable = "/bin/true"\n[container]\nimage = "{tmp_path / "tree"}"\n'
        'runtime = "apptainer"\n'
    )
    assert main(["app", "check", str(here)]) == 0
    told = capsys.readouterr().err
    assert "warning: `/no/such/apptainer` does not run on this host" in told
    assert "`containers.apptainer.command`" in told
    assert "the site reads it here" in told


def test_an_application_that_is_named_without_its_path_is_asked_for_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["app", "approve", "--yes", "sim"]) == 2
    assert "SITE/apps/NAME.toml" in capsys.readouterr().err


def test_the_next_step_after_a_refusal_is_the_command_that_approves(file: Path) -> None:
    applications = Applications(file.parent)
    program = Path(program_files(file)[0].executable)
    file.write_text(f'name = "sim"\nexecutable = "{program}"\n')
    applications.refresh()
    program.write_text("#!/bin/sh\n# changed again\n")
    with pytest.raises(UnfitError) as caught:
        applications.get("sim")
    job = SiteJob(
        id=1, spec=JobSpec(app="sim"), campaign="c", seed_base=0, open=IntervalSet(), done=IntervalSet()
    )
    evidence = judge(job, caught.value, staging=False).evidence
    assert step_after(evidence, job=1) == (
        f"at the site, the owner of its application files runs `tidemill app approve {file}`"
    )
    other = msgspec.structs.replace(evidence, message="application `sim` is not approved here")
    assert step_after(other) == POLICY[FailureClass.DISPATCH].next_step


def test_a_program_without_a_digest_is_read_again(file: Path) -> None:
    program = Path(program_files(file)[0].executable)
    file.write_text(f'name = "sim"\nexecutable = "{program}"\n')
    applications = Applications(file.parent)
    applications.refresh()
    program.write_text("#!/bin/sh\n# changed again\n")
    with pytest.raises(UnfitError):
        applications.get("sim")
    assert main(["app", "approve", "--yes", str(file)]) == 0
    applications.refresh()
    assert applications.get("sim").files == {str(program): digest(program)}


def test_without_a_terminal_nothing_is_approved_unless_it_was_said_beforehand(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["app", "approve", str(file)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["app", "approve", "--yes", str(file)]) == 0
    capsys.readouterr()
    assert main(["app", "approve", "--yes", str(file)]) == 0
    assert "nothing has changed" in capsys.readouterr().err
