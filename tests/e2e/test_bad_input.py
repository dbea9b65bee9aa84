"""What a person gets wrong is told with file, key and the nearest legal word, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator

import pytest
from tests.worlds.home.world import World, world

from tidemill.errors import JobError
from tidemill.model.job import Input, InputKind, JobSpec, Resources
from tidemill.wire.api import JobDetail

SHORT = Resources(event_s=0.05)


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=2) as here:
        here.wait_for(lambda: len(here.client.applications()) >= 4, "the applications are offered")
        yield here
        (job,) = here.submit("last", JobSpec(app="pi", events=10, params={"darts": 10}, resources=SHORT))
        here.wait_campaign("last")
        assert here.client.job(job).row.state == "COMPLETED", here.tails()


def refused(it: World, *words: str, code: int) -> str:
    """What a refused command says; the server is as it was before."""
    before = it.client.counts()
    done = it.run(*words)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert it.client.counts() == before
    return done.stderr


def ended(it: World, spec: JobSpec, *, done: int = 0) -> JobDetail:
    """A job when it has ended; no other event of it was ever started."""
    (job,) = it.submit(f"c-{it.client.counts().jobs}", spec)
    (row,) = it.client.wait([job], timeout_s=60)
    assert (row.events_done, it.client.job(job).usage.payloads) == (done, done), it.tails()
    return it.client.job(job)


# ---- names and values of a job -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (["--app", "pie"], 2, "no site offers the application `pie`", "did you mean `pi`?"),
        (["--app", "pi", "--site", "her"], 2, "site `her` does not offer the application `pi`", "offers none"),
        (["--app", "pi", "-p", "drats=3"], 2, "`pi` has no parameter `drats`", "did you mean `darts`?"),
        (["--app", "pi", "-p", "darts=0"], 2, "`darts` is 0, at least 1 is allowed", "hint: `darts` is an integer"),
        (["--app", "pi", "-p", "darts=x"], 2, "`darts` is `x`", "int"),
        (["--app", "pythia8", "-p", "process=zmumuu"], 2, "`process` is `zmumuu`", "did you mean `zmumu`?"),
        (["--app", "pythia8", "-p", "tune=35"], 2, "`tune` is 35, at most 34 is allowed", "Monash"),
        (["--app", "pi", "--events", "0"], 2, "--events", "0"),
        (["--app", "pi", "--events", "2000000000"], 2, "legal is 1 to 1000000000", ""),
        (["--app", "pi", "--evnts", "3"], 2, "--evnts", "did you mean `--events`?"),
        (["--app", "zpeak", "--input", "events=/no/such.hepmc"], 2, "input `/no/such.hepmc` does not exist", ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_a_wrong_command_line_is_refused(
    it: World, words: list[str], code: int, said: str, hint: str
) -> None:
    text = refused(it, "submit", *words, code=code)
    assert said in text
    assert hint in text


@pytest.mark.parametrize(
    ("text", "code", "said", "hint"),
    [
        ("[[job]]\napp = 'pi'\nevnts = 3\n", 2, "unknown key `job[0].evnts`", "did you mean `events`?"),
        ("[[job]]\napp = 'pi'\n[[job]]\napp = 'pie'\n", 2, "`job[1]`: no site offers", "did you mean `pi`?"),
        ("[[job]]\napp = 'pi'\nparams = {drats = 3}\n", 2, "no parameter `drats`", "did you mean `darts`?"),
        ("[[job]]\napp = 'pi'\nparams = {darts = -1}\n", 2, "`darts` is -1, at least 1", ""),
        ("[[job]]\napp = 'pi'\nparams = {darts = [1]}\n", 2, "`job[0].params.darts` is a list", ""),
        ("[[job]]\napp = 'pi'\nevents = 0\n", 2, "`events` is 0", "1 to 1,000,000,000"),
        ("[[job]\n", 2, "is not TOML", ""),
    ],
)
def test_a_wrong_job_file_is_refused(it: World, text: str, code: int, said: str, hint: str) -> None:
    path = it.home / "me" / "jobs.toml"
    path.write_text(text)
    answer = refused(it, "submit", str(path), code=code)
    for part in (str(path), said, hint):
        assert part in answer


@pytest.mark.parametrize(
    ("params", "said", "hint"),
    [
        ({"drats": 1}, "there is no parameter `drats`", "did you mean `darts`?"),
        ({"darts": 0}, "parameter `darts` is 0, at least 1 is allowed", ""),
    ],
)
def test_parameters_that_no_site_takes_are_refused_to_programs_too(
    it: World, params: dict[str, int], said: str, hint: str
) -> None:
    """Past the command line: the server asks what the sites offer."""
    before = it.client.counts().jobs
    with pytest.raises(JobError) as caught:
        it.submit("program", JobSpec(app="pi", params=dict(params)))
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")
    assert it.client.counts().jobs == before


def test_a_program_that_is_not_there_fails_the_job_with_its_name(it: World) -> None:
    """The server stores the job, the site does not start it, the job says why."""
    detail = ended(it, JobSpec(command=["no-such-program"]))
    assert detail.row.state == "FAILED"
    assert "the site has no program `no-such-program`" in detail.row.reason
    assert {each.evidence.failure for each in it.client.failures(job=detail.row.id)} <= {"dispatch"}


def test_an_unknown_application_of_a_program_waits_and_explains_why(it: World) -> None:
    (job,) = it.submit("waits", JobSpec(app="pie"))
    text = it.run("job", "explain", str(job)).stdout
    assert "no site offers the application" in text
    assert "`pie`: did you mean `pi`?" in text
    it.client.cancel([job])


def test_a_slot_larger_than_any_waits_and_says_how_large_they_are(it: World) -> None:
    (job,) = it.submit("waits", JobSpec(app="pi", resources=Resources(cores=3)))
    assert "asked: 3 cores, any MB; largest slot: 2 cores" in it.run("job", "explain", str(job)).stdout
    it.client.cancel([job])


# ---- inputs ------------------------------------------------------------------------------------------------------


def test_a_missing_input_fails_the_job_and_is_named(it: World) -> None:
    spec = JobSpec(command=["/bin/true"], inputs=[Input(name="conf", url="/no/such/file")], retries=1)
    detail = ended(it, spec)
    assert detail.row.state == "FAILED"
    assert "/no/such/file" in detail.row.reason
    assert "No such file" in detail.row.reason
    assert {each.evidence.failure for each in it.client.failures(job=detail.row.id)} == {"stage_in"}


def test_a_corrupt_input_fails_the_job_and_both_checksums_are_told(it: World) -> None:
    path = it.home / "me" / "conf.txt"
    path.write_text("damaged\n")
    expected, found = (hashlib.sha256(text).hexdigest() for text in (b"sound\n", b"damaged\n"))
    one = Input(name="conf", url=str(path), sha256=expected)
    detail = ended(it, JobSpec(command=["/bin/cat", "conf"], inputs=[one], retries=0))
    assert detail.row.state == "FAILED"
    for part in (str(path), expected, found):
        assert part in detail.row.reason
    staged = [each.read_bytes() for each in (it.home / "site" / "stage").rglob("*") if each.is_file()]
    assert b"damaged\n" not in staged


def test_an_input_with_too_few_lines_is_named(it: World) -> None:
    path = it.home / "me" / "lines.txt"
    path.write_text("one\ntwo\n")
    one = Input(name="line", url=str(path), kind=InputKind.EACH)
    detail = ended(it, JobSpec(command=["/bin/echo", "{line}"], events=3, inputs=[one], retries=0), done=2)
    assert detail.row.state == "FAILED"
    assert f"`{path}` has 2 lines, event 2 has none" in detail.row.reason


# ---- configuration -----------------------------------------------------------------------------------------------


def test_a_wrong_application_file_is_refused_and_the_others_stay(it: World) -> None:
    apps = it.home / "site" / "apps"
    text = (apps / "pi.toml").read_text().replace('name = "pi"', 'name = "tau"')
    for number, (wrong, said, hint) in enumerate(
        (
            ("executible = '/bin/true'\n" + text, "unknown key `executible`", "did you mean `executable`?"),
            (
                text.replace("mode = ", "mode = 'rang' #"),
                '`mode` is the text "rang"',
                "did you mean `range`?",
            ),
            (text.replace("digest = ", "digest = 'sha256:" + "0" * 64 + "' #"), "approved is sha256:000", ""),
            (text.replace("type = ", "typ = "), "unknown key `parameters.darts.typ`", "did you mean `type`?"),
        )
    ):
        path = apps / f"tau{number}.toml"
        path.write_text(wrong)
        checked = it.run("app", "check", str(path))
        assert checked.returncode == 2, checked
        for part in (str(path), said, hint):
            assert part in checked.stderr
        words = json.dumps(said)[1:-1]
        it.wait_for(lambda words=words: words in (it.home / "site.log").read_text(), "the log tells it")
        path.unlink()
    names = [each.app.name for each in it.client.applications()]
    assert sorted(names) == ["hepmc-merge", "pi", "pythia8", "zpeak"]


def test_a_wrong_site_file_starts_no_agent(it: World) -> None:
    directory = it.home / "me" / "site"
    directory.mkdir(mode=0o700)
    path = directory / "site.toml"
    good = (it.home / "site" / "site.toml").read_text()
    for wrong, said, hint in (
        ("nodes_maxx = 3\n" + good, "unknown key `nodes_maxx`", "did you mean `nodes_max`?"),
        (good.replace("[local]\n", "[local]\nnods = 2\n"), "unknown key `local.nods`", "did you mean `nodes`?"),
        (good.replace('walltime_s = "1h"', 'walltime_s = "soon"'), "`walltime_s`", "`soon`"),
        (good.replace("nodes_max = 1", "nodes_max = 0"), "`nodes_max`", "at least 1"),
        (good.replace('server = "unix:', 'server = 7 #'), "`server` is `7`, expected text", ""),
    ):  # fmt: skip
        path.write_text(wrong)
        answer = refused(it, "site", "run", str(directory), code=2)
        for part in (str(path), said, hint):
            assert part in answer
        assert [each.name for each in directory.iterdir()] == ["site.toml"]
    shutil.rmtree(directory)


def test_a_wrong_server_file_starts_no_server(it: World) -> None:
    directory = it.home / "me" / "server"
    directory.mkdir(mode=0o700)
    path = directory / "server.toml"
    for wrong, said, hint in (
        (f'dirr = "{directory}"\n', "unknown key `dirr`", "did you mean `dir`?"),
        ("listen = 7\n", "`listen` is `7`, expected text", ""),
        (f'dir = "{directory}"\nquotas.open_jobs_max = "many"\n', "`quotas.open_jobs_max`", "many"),
        (f'dir = "{directory}"\npair = 1\n', "`pair` is `1`, expected true or false", ""),
    ):
        path.write_text(wrong)
        answer = refused(it, "server", "run", "--config", str(path), code=2)
        for part in (str(path), said, hint):
            assert part in answer
        assert [each.name for each in directory.iterdir()] == ["server.toml"]
