"""What a real Rucio says of files, and what the site makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from extensions.replicas.tests.rucio.rucio_world import FILES, RucioWorld

from tidemill.config import loads
from tidemill.config.site import SiteConfig
from tidemill.model.far import CatalogueName
from tidemill.model.job import Input, JobSpec, ReadAs
from tidemill.routing.copies import CatalogueEntry, CatalogueError
from tidemill.site.data.owners import OwnedPlaces, Reader
from tidemill.site.data.routing import Opening, SoughtFile
from tidemill.site.data.staging import Stage
from tidemill.transfer.contract import TransferError
from tidemill.transfer.file import Roots
from tidemill_replicas.rucio import FILES_PER_CALL, RucioReplicas
from tidemill_replicas.settings import Rucio

FIRST = CatalogueName("lab", "file.0000")


@pytest.fixture(scope="module")
def world() -> Iterator[RucioWorld]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        made = RucioWorld(Path(folder) / "r")
        made.seed()
        yield made
        made.call("stop")


def config(world: RucioWorld, folder: Path, *, password: str | None = None, site: str = "") -> Rucio:
    path = folder / "login"
    path.write_text(f"root\n{world.password if password is None else password}\n")
    path.chmod(0o600)
    return Rucio(url=world.url_of("root"), secret_file=path, site=site)


def replicas(world: RucioWorld, folder: Path, **more: str) -> RucioReplicas:
    return RucioReplicas(config(world, folder, **more), keep_s=600)


def test_the_store_of_our_site_comes_first_by_its_own_door(world: RucioWorld, tmp_path: Path) -> None:
    entry = replicas(world, tmp_path, site="NEAR").look_up([FIRST])[FIRST]

    assert entry.urls[0].startswith("root://lab-near.example.org:1094//store/lab/")
    assert any("lab-far" in each for each in entry.urls)
    assert entry.size_bytes == len(world.content("file.0000"))
    assert len(entry.adler32) == 8
    far = replicas(world, tmp_path, site="FAR").look_up([FIRST])[FIRST]
    assert far.urls[0].startswith("root://lab-far.example.org:1094//store/lab/")


def test_many_files_are_asked_for_a_hundred_at_a_time_and_once(world: RucioWorld, tmp_path: Path) -> None:
    made = replicas(world, tmp_path)
    names = [CatalogueName("lab", f"file.{n:04}") for n in range(FILES)]
    calls: list[int] = []
    asks = made._ask

    def counted(names: list[CatalogueName]) -> dict[CatalogueName, CatalogueEntry]:
        calls.append(len(names))
        return asks(names)

    made._ask = counted  # type: ignore[method-assign]
    assert set(made.look_up(names)) == set(names)
    assert set(made.look_up(names)) == set(names)
    assert calls == [FILES_PER_CALL, FILES_PER_CALL, FILES - 2 * FILES_PER_CALL]


def test_a_name_that_rucio_does_not_know_has_no_entry(world: RucioWorld, tmp_path: Path) -> None:
    name = CatalogueName("lab", "never.was")

    assert replicas(world, tmp_path).look_up([name, FIRST]).keys() == {FIRST}


@pytest.mark.parametrize("name", ["only.down", "broken"])
def test_a_file_whose_store_is_away_is_asked_for_again(world: RucioWorld, tmp_path: Path, name: str) -> None:
    made = replicas(world, tmp_path)
    wanted = CatalogueName("lab", name)
    entry = made.look_up([wanted])[wanted]

    assert not entry.urls
    assert "no store has it available now" in entry.why
    made.look_up([FIRST])
    assert made._known[wanted][0] < made._known[FIRST][0]


def test_a_wrong_password_is_a_refused_credential_and_is_never_shown(
    world: RucioWorld, tmp_path: Path
) -> None:
    with pytest.raises(CatalogueError, match="401 CannotAuthenticate") as error:
        replicas(world, tmp_path, password="wrong-secret").look_up([FIRST])

    assert error.value.is_credential
    assert "wrong-secret" not in str(error.value) + error.value.message


def test_a_token_that_is_refused_is_replaced_once(world: RucioWorld, tmp_path: Path) -> None:
    made = replicas(world, tmp_path)
    made.look_up([FIRST])
    assert made._token is not None
    made._token = made._token._replace(text="root-root-unknown-0123456789abcdef")
    only = CatalogueName("lab", "only.far")

    assert made.look_up([only])[only].urls
    token = tmp_path / "jwt"
    token.write_text("not.a.token")
    token.chmod(0o600)
    with pytest.raises(CatalogueError, match="401") as error:
        RucioReplicas(Rucio(url=world.url, token_file=token), keep_s=600).look_up([FIRST])
    assert error.value.is_credential
    assert "not.a.token" not in error.value.message


def test_a_token_from_a_file_is_accepted_without_a_login(world: RucioWorld, tmp_path: Path) -> None:
    """Of a person's own login: a JWT takes the same way, once Rucio's issuer has signed it."""
    made = replicas(world, tmp_path)
    made.look_up([FIRST])
    assert made._token is not None
    path = tmp_path / "token"
    path.write_text(made._token.text)
    path.chmod(0o600)

    assert RucioReplicas(Rucio(url=world.url, token_file=path), keep_s=600).look_up([FIRST])[FIRST].urls


def test_what_the_account_may_not_do_is_a_refused_credential_and_not_tried_by_another_login(
    world: RucioWorld, tmp_path: Path
) -> None:
    """No policy of Rucio's own refuses the list of replicas; what refuses another call has the same form."""
    path = tmp_path / "guests"
    path.write_text("guest\na-guests-password\n")
    path.chmod(0o600)
    world.ask("POST", "/accounts/guest", {"type": "USER", "email": "guest@example.org"})
    identity = {
        "identity": "guest",
        "authtype": "USERPASS",
        "email": "guest@example.org",
        "password": "a-guests-password",
    }
    world.ask("POST", "/accounts/guest/identities", identity)
    made = RucioReplicas(Rucio(url=world.url_of("guest"), secret_file=path), keep_s=600)
    assert made.look_up([FIRST])[FIRST].urls
    token = made._token

    with pytest.raises(CatalogueError, match="401 AccessDenied") as error:
        made._answer("POST", "/rses/GUESTS", b"{}")
    assert error.value.is_credential
    assert "ask for the right" in (error.value.hint or "")
    assert made._token == token, "the token is good"


def test_a_lost_database_is_waited_for_and_its_text_is_not_shown(world: RucioWorld, tmp_path: Path) -> None:
    made = replicas(world, tmp_path)
    made.look_up([FIRST])
    other = CatalogueName("lab", "file.0001")
    world.call("dbstop")
    try:
        with pytest.raises(CatalogueError) as error:
            made.look_up([other])
    finally:
        world.call("dbstart")

    assert error.value.transient
    assert made._token is not None
    assert made._token.text not in error.value.message
    assert "SELECT" not in error.value.message
    assert made.look_up([FIRST])[FIRST].urls, "what is known stays"
    assert made.look_up([other])[other].urls


def stage(world: RucioWorld, folder: Path) -> Stage:
    (folder / "stage").mkdir(exist_ok=True)
    rucio = config(world, folder, site="NEAR")
    text = (
        'name = "s"\nserver = "unix:/x"\n[[endpoints]]\nurl = "root://*.example.org//store"\n'
        f'[replicas.rucio]\nurl = "{rucio.url}"\nsecret_file = "{rucio.secret_file}"\nsite = "NEAR"\n'
    )
    site = loads(text, SiteConfig, source=folder / "site.toml")
    made = Stage(folder / "stage", site, OwnedPlaces(Roots([])))
    made.routes.links._probe = lambda place: 0.001 if "near" in place else 0.2
    return made


def test_an_input_of_the_catalogue_is_opened_at_the_nearest_store(world: RucioWorld, tmp_path: Path) -> None:
    sought = SoughtFile("rucio:lab/file.0000", "input `f`")
    found = stage(world, tmp_path).routes.choose(sought, Opening(opens=["root"]))

    assert found.route.way == "direct"
    assert found.route.url.startswith("root://lab-near.example.org:1094//store/")
    assert found.size_bytes == len(world.content("file.0000"))


def test_a_name_that_rucio_does_not_know_fails_the_job_for_good(world: RucioWorld, tmp_path: Path) -> None:
    spec = JobSpec(app="a", inputs=[Input(name="f", url="rucio:lab/never.was", read=ReadAs.URL)])

    with pytest.raises(TransferError, match="knows no file") as error:
        stage(world, tmp_path).stage(1, spec, [(0, 1)], Reader(opening=Opening(opens=["root"])))
    assert not error.value.transient


def test_a_file_whose_store_is_away_makes_the_job_wait(world: RucioWorld, tmp_path: Path) -> None:
    spec = JobSpec(app="a", inputs=[Input(name="f", url="rucio:lab/only.down", read=ReadAs.URL)])

    with pytest.raises(TransferError, match="no store has it available") as error:
        stage(world, tmp_path).stage(1, spec, [(0, 1)], Reader(opening=Opening(opens=["root"])))
    assert error.value.transient


def test_a_dataset_is_refused_after_a_hundred_of_its_files(dataset: RucioWorld, tmp_path: Path) -> None:
    spec = JobSpec(app="a", inputs=[Input(name="f", url="rucio:lab/set", read=ReadAs.URL)])

    with pytest.raises(TransferError, match="`rucio:lab/set` is a dataset with more than 100 files") as error:
        stage(dataset, tmp_path).stage(1, spec, [(0, 1)], Reader(opening=Opening(opens=["root"])))
    assert not error.value.transient
    assert '`kind = "each"`' in (error.value.hint or "")
    small = replicas(dataset, tmp_path).look_up([CatalogueName("lab", "small")])
    assert not small, "and it is not a file"


def test_the_command_of_the_page_lists_the_files_of_a_dataset(dataset: RucioWorld, tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("there is no program `jq`: apt-get install jq")
    page = (Path(__file__).parents[4] / "docs" / "routing.md").read_text()
    command = page[page.index("curl -fsS") : page.index(">run7.txt") + len(">run7.txt")]
    command = command.replace("https://rucio.example.org", dataset.url).replace("SCOPE/NAME", "lab/set")
    subprocess.run(
        ["/bin/sh", "-c", command], cwd=tmp_path, env=os.environ | {"TOKEN": dataset.token}, check=True
    )

    lines = (tmp_path / "run7.txt").read_text().splitlines()
    assert lines == [f"rucio:lab/file.{n:04}" for n in range(FILES)]


@pytest.fixture(scope="module")
def dataset(world: RucioWorld) -> RucioWorld:
    """`set` holds all usual files, `small` two of them."""
    usual = [{"scope": "lab", "name": f"file.{n:04}"} for n in range(FILES)]
    for name, files in (("set", usual), ("small", usual[:2])):
        world.ask("POST", f"/dids/lab/{name}", {"type": "DATASET"})
        world.ask("POST", f"/dids/lab/{name}/dids", {"dids": files})
    return world
