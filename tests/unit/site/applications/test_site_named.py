"""site/applications/named.py and config/hidden.py."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tidemill.config import loads
from tidemill.config.hidden import BELOW_HOME, credential_patterns, why_hidden
from tidemill.config.site import ContainerRuntime, SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.application import Application, Container, Runtime
from tidemill.site.applications.catalogue import load_application
from tidemill.site.applications.named import Places, around, named_paths
from tidemill.site.applications.templates import check_templates

HOME, SITE = Path("/homes/me"), Path("/homes/me/site")
PLACES = Places([Path("/tmp"), Path("/homes"), HOME], [SITE])


def config(*, shared: bool = True, **more: object) -> SiteConfig:
    return SiteConfig(name="s", server="unix:/s/api.sock", shared=shared, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/tmp/prog", "/tmp/prog"),
        ("/tmp/bin/prog", "/tmp/bin"),
        ("/tmp/a/prog", "/tmp/a"),
        ("/tmp/a/venv/bin/python", "/tmp/a/venv"),
        ("/homes/me/prog", "/homes/me/prog"),
        ("/homes/me/bin/prog", "/homes/me/bin"),
        ("/homes/me/conda/bin/python", "/homes/me/conda"),
        ("/homes/you/x/prog", "/homes/you/x"),
        ("/homes/me/site/apps/bin/prog", "/homes/me/site/apps/bin/prog"),
    ],
)
def test_a_program_comes_with_its_installation_but_never_with_a_home_and_a_private_one_alone(
    file: str, shown: str
) -> None:
    assert str(around(Path(file), PLACES)) == shown


def test_what_the_file_names_is_shown_and_what_a_parameter_names_is_not() -> None:
    app = Application(
        name="a", executable="/usr/bin/env", arguments=["/tmp/cards", "{path}", "/tmp/{path}", "/homes"],
        environment={"LIBS": "/homes/me/lib:/usr/lib:/tmp/krb5cc_7", "KEY": "/homes/me/site/key"},
        show=[Path("/homes/me/data"), Path("/data")], write=[Path("/scratch/out")],
    )  # fmt: skip
    templates = check_templates(app.arguments, ["path"], source=Path("a.toml"), merge=False)
    named = named_paths(app, config(), templates, PLACES)
    assert (named.show, named.write) == (["/homes/me/data", "/homes/me/lib", "/tmp/cards"], ["/scratch/out"])
    assert not named.may_mount
    own = named_paths(app, config(shared=False), templates, Places([Path("/tmp")], [SITE]))
    assert (own.show, own.write) == (["/tmp/cards"], [])


def test_a_container_gets_what_it_binds_and_may_mount() -> None:
    runtime = ContainerRuntime(command=["/usr/bin/podman", "--root=/tmp/store"])
    container = Container(
        image="/homes/me/image@sha256:0", runtime=Runtime.PODMAN,
        bind=["/homes/me/in:/in:ro", "/scratch", "/homes/me/.ssh:/keys"],
    )  # fmt: skip
    app = Application(name="a", executable="/bin/x", container=container)
    named = named_paths(app, config(containers={"podman": runtime}), [], PLACES)
    assert named.show == ["/homes/me/image", "/homes/me/in"]
    assert named.write == ["/scratch", "/tmp/store"]
    assert named.may_mount


@pytest.mark.parametrize(
    "path", ["/tmp/krb5cc_0", "/tmp/ssh-x/agent.1", "/homes/a/.ssh", "/p/.aws/x", "/tmp", "/", "/a/../b", "x"]
)
def test_credentials_and_whole_trees_cannot_be_named(path: str, tmp_path: Path) -> None:
    assert why_hidden(Path(path)) is not None
    if path != "x":  # relative paths of site.toml are relative to it
        for key in ("show", "write"):
            text = (
                f'name = "s"\nserver = "unix:/s"\nshared = {str(key == "show").lower()}\n{key} = ["{path}"]'
            )
            with pytest.raises(ConfigError, match=key):
                loads(text, SiteConfig, source=tmp_path / "site.toml")


def test_what_is_not_a_credential_can_be_named() -> None:
    assert [why_hidden(Path(path)) for path in ("/tmp/work", "/homes/me/conda", "/cvmfs/x/.config/y")] == [
        None
    ] * 3
    patterns = credential_patterns([HOME])
    assert {"~/.pgpass", "/homes/me/.pgpass", "/tmp/krb5cc*"} <= set(patterns)
    assert len(set(BELOW_HOME)) == len(BELOW_HOME)


def test_an_application_cannot_show_the_site_its_directory_holds(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "apps").mkdir(parents=True)
    (site / "site.toml").write_text("")
    path = site / "apps" / "a.toml"
    for wrong in (site / "stage", tmp_path, Path("/tmp/krb5cc_0")):
        path.write_text(f'name = "a"\nexecutable = "/bin/true"\nwrite = ["{wrong}"]\n')
        with pytest.raises(ConfigError, match="`write`"):
            load_application(path, site=config())


def test_a_site_with_a_server_of_others_serves_others_unless_it_says_no() -> None:
    def made(**more: object) -> SiteConfig:
        return SiteConfig(name="s", **more)  # type: ignore[arg-type]

    assert made(server="https://host").serves_others
    assert not made(server="https://host", shared=False).serves_others
    assert not made(server="unix:/s").serves_others
    assert made(server="unix:/s", shared=True).serves_others


def test_only_a_persons_own_site_shows_credentials_and_only_where_their_names_are_given() -> None:
    def made(server: str, **more: list[Path]) -> SiteConfig:
        return SiteConfig(name="s", server=server, **more)  # type: ignore[arg-type]

    for path in (HOME / ".aws", HOME / ".aws/credentials", Path("/tmp/krb5cc_0")):
        assert made("unix:/s", show=[path]).show == [path]
        with pytest.raises(ValueError, match="programs of all users whose jobs this site runs"):
            made("https://host", show=[path])
        with pytest.raises(ValueError, match="is a credential"):
            made("unix:/s", write=[path])
    for wrong in (Path("/"), Path("/tmp"), HOME / "x/../.aws"):
        with pytest.raises(ValueError, match="`show`"):
            made("unix:/s", show=[wrong])


def test_a_site_of_others_needs_namespaces_unless_its_operator_takes_that_upon_himself() -> None:
    def needs(server: str, isolation: Literal["auto", "optional", "off"]) -> bool:
        return SiteConfig(name="s", server=server, isolation=isolation).needs_namespaces

    assert needs("https://host", "auto")
    assert not any(needs("https://host", each) for each in ("optional", "off"))
    assert not any(needs("unix:/s", each) for each in ("auto", "optional", "off"))
