"""Containers of applications: words for each runtime and version, verdicts, and what an application file may say."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from tidemill.config import loads
from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import ConfigError, JobError
from tidemill.model.application import Application, Container, Mode, Runtime
from tidemill.site.applications.approval import inside
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.compatibility import ASPECTS, KINDS, cell, check, may_trace, table
from tidemill.site.applications.containers import (
    INNER_ROOT,
    environment_of,
    parse_image,
    wrap_words,
)
from tidemill.site.applications.setup_lines import key_of, setup_of

ROOT = Path(__file__).parents[4]
DIGEST = "sha256:" + "ab" * 32
NAME = f"docker://r.example/app@{DIGEST}"

_IMAGE = "*@sha256:*) shift; break ;; *) exit 64 ;;"
KNOWN: dict[Runtime, tuple[str, list[str], str]] = {
    # verb, options that the manual has, and what stands for the image
    Runtime.APPTAINER: ("exec", ["--userns", "--home=/*", "--pwd=/*", "--bind=/*:/*", "--nv"], _IMAGE),
    Runtime.SHIFTER: (
        "",
        ["--image=id:*", "--workdir=/*", "--volume=/*:/*", "--module=gpu", "--module=none"],
        "-*) exit 64 ;; *) break ;;",
    ),
    Runtime.PODMAN_HPC: (
        "run",
        [
            "--rm", "--pull=never", "--network=host", "--cgroups=disabled", "--log-driver=none", "--preserve-fds=2",
            "--workdir=/*", "--volume=/*:/*", "--env=*", "--gpu", "--entrypoint=",
        ],
        _IMAGE,
    ),
}  # fmt: skip

FAKE = """#!/bin/sh
# a complete fake of {name}: refuses any word that it does not know, in its order, and then runs the program
{checks}
exec "$@"
"""


def app(runtime: Runtime, image: str = NAME, mode: Mode = Mode.COMMAND, **more: object) -> Application:
    container = Container(image=image, runtime=runtime, **more)  # type: ignore[arg-type]
    return Application(
        name="a", executable="/bin/echo", container=container, mode=mode, environment={"MINE": "1"}
    )


def words(asked: Application, *, namespaces: bool = True) -> list[str]:
    return wrap_words(asked, ContainerRuntime(command=["/x/run"]), namespaces=namespaces)


def test_apptainer_is_rootless_with_the_slots_home_and_work_directory() -> None:
    assert words(app(Runtime.APPTAINER, gpu=True, bind=["/sw:/sw:ro"])) == [
        "/x/run", "exec", "--home={home}", "--pwd={work}", "--bind={tmp}:{tmp}", "--bind=/sw:/sw:ro", "--nv",
        "--userns", NAME,
    ]  # fmt: skip


def test_apptainer_is_as_it_is_installed_where_set_user_id_programs_gain_rights() -> None:
    assert "--userns" not in words(app(Runtime.APPTAINER), namespaces=False)


def test_options_stand_before_the_verb_and_behind_it() -> None:
    runtime = ContainerRuntime(command=["/x/run", "--debug"], options=["--no-init"])
    made = wrap_words(app(Runtime.APPTAINER), runtime, namespaces=False)
    assert made[:3] == ["/x/run", "--debug", "exec"]
    assert made[-2:] == ["--no-init", NAME]
    for wrong in ([], ["apptainer"]):
        with pytest.raises(ConfigError, match=r"`command` is .*, expected a program"):
            loads(
                f'name = "s"\nserver = "unix:/x"\n[containers.apptainer]\ncommand = {wrong}',
                SiteConfig,
                source=Path("site.toml"),
            )


def test_podman_hands_on_what_is_declared_and_the_protocol() -> None:
    made = words(app(Runtime.PODMAN, f"r.example/app@{DIGEST}", Mode.RANGE, gpu=True, bind=["/sw", "/d:ro"]))
    assert made[: len(INNER_ROOT)] == list(INNER_ROOT)
    for word in ("--preserve-fds=2", "--env=MINE", "--env=TIDEMILL_*", "--volume=/sw:/sw", "--volume=/d:/d:ro",
                 "--pull=never", "--device=nvidia.com/gpu=all"):  # fmt: skip
        assert word in made
    assert made[-1] == f"r.example/app@{DIGEST}"
    assert not {"--env-host", "--preserve-fds=2"} & set(words(app(Runtime.PODMAN, "/tree")))
    assert words(app(Runtime.PODMAN, "/tree"))[-2:] == ["--rootfs", "/tree"]
    assert words(app(Runtime.PODMAN, "/tree"), namespaces=False)[0] == "/x/run"


def test_podman_hpc_and_shifter_have_their_own_words() -> None:
    assert "--gpu" in words(app(Runtime.PODMAN_HPC, f"a@{DIGEST}", gpu=True))
    made = words(app(Runtime.SHIFTER, f"a@{DIGEST}", gpu=True))
    assert made[1:4] == [f"--image=id:{'ab' * 32}", "--workdir={work}", "--volume={tmp}:{tmp}"]
    assert "--module=gpu" in made


def test_charliecloud_gets_the_slots_directories() -> None:
    made = words(app(Runtime.CHARLIECLOUD, "/tree", bind=["/sw:ro"]))
    assert made == ["/x/run", "--cd={work}", "--set-env=HOME={home}", "--bind=/sw", "/tree", "--"]


@pytest.mark.parametrize("runtime", [Runtime.APPTAINER, Runtime.SHIFTER, Runtime.PODMAN_HPC])
def test_a_fake_that_knows_only_the_real_ones_words_runs_the_program(
    tmp_path: Path, runtime: Runtime
) -> None:
    image = NAME if runtime is Runtime.APPTAINER else f"a@{DIGEST}"
    verb, known, last = KNOWN[runtime]
    checks = [f'test "$1" = {verb} || exit 64', "shift"] if verb else []
    checks += [f"while :; do case $1 in {'|'.join(known)}) shift ;; {last} esac; done"]
    fake = tmp_path / runtime.value
    fake.write_text(FAKE.format(name=runtime.value, checks="\n".join(checks)))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    made = wrap_words(
        app(runtime, image, Mode.RANGE), ContainerRuntime(command=[str(fake)]), namespaces=False
    )
    filled = [
        each.format(work="/tmp/work", tmp="/tmp", home="/tmp/home", own="/tmp/.tidemill") for each in made
    ]
    done = subprocess.run([*filled, "/bin/echo", "inside"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "inside\n"), filled


def test_images_are_read() -> None:
    assert parse_image("name:tag") is None
    assert parse_image("/a/tree") == ("/a/tree", "", "")
    assert parse_image(f"/a/x.sif@{DIGEST}") == ("/a/x.sif", "", DIGEST)


@pytest.mark.parametrize("name", ["--privileged", "-v/:/host", "a b", "a\nb", "\x1b[2J", "", "{work}"])
def test_no_name_of_an_image_is_an_option_of_its_runtime(name: str) -> None:
    assert parse_image(f"{name}@{DIGEST}") is None
    assert parse_image(name) is None


# ---- what goes together --------------------------------------------------------------------------------


def test_every_cell_has_a_state_and_what_is_not_plain_has_words() -> None:
    for aspect in ASPECTS:
        for kind in KINDS:
            found = cell(aspect, kind)
            assert found.state in ("works", "differently", "refused")
            assert bool(found.why) == (found.state != "works"), (aspect, kind)


def test_the_documentation_shows_the_matrix() -> None:
    assert table() in (ROOT / "docs" / "software-environments.md").read_text()


def test_a_setuid_runtime_needs_slots_without_namespaces_and_is_never_traced() -> None:
    apptainer, shifter = app(Runtime.APPTAINER), app(Runtime.SHIFTER, f"a@{DIGEST}")
    plain = ContainerRuntime(command=["/x"])
    rootless = ContainerRuntime(command=["/x"], options=["--userns"])
    assert "no_new_privs" in check(shifter, plain, "auto")[0]
    for asked in (apptainer, shifter):
        assert check(asked, plain, "off") == []
        assert not may_trace(asked, plain, "off")
    assert check(apptainer, plain, "auto") == []
    assert may_trace(apptainer, plain, "auto")
    assert may_trace(apptainer, rootless, "off")
    assert may_trace(app(Runtime.PODMAN), None, "off")
    with_image = msgspec.structs.replace(apptainer, images=["release"])
    assert check(with_image, plain, "auto") == []
    for runtime in (plain, rootless):
        assert check(with_image, runtime, "off")[-1].startswith("images: without namespaces")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (app(Runtime.CHARLIECLOUD), "ch-run takes a directory"),
        (app(Runtime.PODMAN, f"/x.tar@{DIGEST}"), "podman load"),
        (app(Runtime.PODMAN, "name:latest"), "without a digest"),
    ],
)
def test_images_that_a_runtime_cannot_run_are_refused_with_the_way_out(asked: Application, said: str) -> None:
    assert said in check(asked, None, "auto")[0]


# ---- application files ---------------------------------------------------------------------------------


def site(tmp_path: Path, more: str = "") -> Path:
    (tmp_path / "apps").mkdir()
    (tmp_path / "site.toml").write_text(
        f'name = "here"\nserver = "unix:/x"\n{more}\n[containers.charliecloud]\ncommand = ["/usr/bin/ch-run"]\n'
    )
    tree = tmp_path / "tree"
    (tree / "usr" / "bin").mkdir(parents=True)
    (tree / "usr" / "bin" / "prog").write_text("#!/bin/sh\n")
    (tree / "bin").symlink_to("/usr/bin")
    return tmp_path


def write(directory: Path, container: str, more: str = "") -> Path:
    path = directory / "apps" / "a.toml"
    path.write_text(f'name = "a"\nexecutable = "/bin/prog"\n{more}\n[container]\n{container}\n')
    return path


def test_a_programs_digest_in_a_directory_is_that_of_the_file_that_runs(tmp_path: Path) -> None:
    directory = site(tmp_path)
    path = write(directory, f'image = "{directory}/tree"\nruntime = "charliecloud"')
    approved = load_application(path)
    digest = "sha256:" + hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert approved.files == {f"{directory}/tree/usr/bin/prog": digest}
    applications = Applications(directory / "apps")
    assert applications.refresh()
    [offer] = applications.offers({})
    assert (offer.digest, offer.container) == (digest, f"charliecloud: {directory}/tree")
    assert inside(directory / "tree", "/bin/../bin/prog") == directory / "tree/usr/bin/prog"


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ('image = "/t"\nruntime = "podman"', "does not allow container runtime `podman`"),
        ('image = "/t"\nruntime = "dockr"', "dockr"),
        ('image = "{tree}"\nruntime = "charliecloud"\nbind = ["relative"]', "`relative` is not valid"),
        ('image = "{tree}"\nruntime = "charliecloud"\noptions = ["--write"]', "`--write` is not allowed"),
        ('image = "{tree}@' + DIGEST + '"\nruntime = "charliecloud"', "is a directory: it has no digest"),
        ('image = "{tree}/gone"\nruntime = "charliecloud"', "gone"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_reason(tmp_path: Path, container: str, said: str) -> None:
    directory = site(tmp_path)
    path = write(directory, container.replace("{tree}", f"{directory}/tree"))
    with pytest.raises(ConfigError) as caught:
        load_application(path)
    assert said in str(caught.value)


def test_an_image_file_that_changed_is_refused(tmp_path: Path) -> None:
    directory = site(tmp_path)
    (directory / "x.sqfs").write_bytes(b"one")
    path = write(directory, f'image = "{directory}/x.sqfs@{DIGEST}"\nruntime = "charliecloud"')
    with pytest.raises(ConfigError, match="approved is") as caught:
        load_application(path)
    assert hashlib.sha256(b"one").hexdigest() in (caught.value.hint or "")


def test_a_setup_is_told_with_a_key_of_its_own_for_each_version_and_line() -> None:
    one = Application(name="a", executable="/x", setup=["module load x"])
    other = Application(name="a", executable="/x", version="2", setup=["module load x"])
    told = setup_of(one, Path("/site"))
    assert told is not None
    assert (told.store, told.lines, told.timeout_s) == ("/site/setup", ["module load x"], 120.0)
    assert len({key_of(one), key_of(other), key_of(Application(name="a", executable="/x", setup=["y"]))}) == 3
    assert setup_of(Application(name="a", executable="/x"), Path("/site")) is None


def test_wrong_setup_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        f'name = "a"\nexecutable = "{os.path.realpath("/bin/sh")}"\nsetup = ["module load x", " "]\n'
    )
    with pytest.raises(ConfigError, match="line 2 is empty"):
        load_application(path)


def test_a_user_without_a_name_is_the_jobs_trouble_only_where_a_name_is_needed() -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    assert environment_of(Container(image=NAME, runtime=Runtime.APPTAINER), nobody, 4711) == {}
    with pytest.raises(JobError, match="4711"):
        environment_of(Container(image="/sw/tree", runtime=Runtime.CHARLIECLOUD), nobody, 4711)
