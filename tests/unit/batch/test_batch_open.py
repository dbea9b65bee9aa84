"""Which batch system a site's configuration opens, and the key by which the site knows its own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.worlds.home.installed import add_extension, installed_only

from tidemill import extensions
from tidemill.batch import kinds
from tidemill.batch.local import LocalBatchSystem
from tidemill.batch.open import asked_cluster, open_batch, open_cluster, site_key
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.cli.site.init import find_batch
from tidemill.config.site import Account, Cluster, SiteConfig
from tidemill.errors import ConfigError, SiteError


def test_a_site_without_a_centre_gets_the_embedded_batch_system(tmp_path: Path) -> None:
    config = SiteConfig(name="a", server="unix:/nowhere")
    assert isinstance(open_batch(config, tmp_path), LocalBatchSystem)
    assert not (tmp_path / "key").exists()


def test_a_centres_batch_system_is_opened_with_the_sites_key(tmp_path: Path) -> None:
    config = SiteConfig(
        name="a", server="unix:/nowhere", batch="slurm", accounts=[Account(name="phy", node_hours=1)]
    )
    assert isinstance(open_batch(config, tmp_path), SlurmBatchSystem)
    assert len((tmp_path / "key").read_text().strip()) == 16
    assert (tmp_path / "batch").is_dir()


def test_a_batch_system_that_is_only_asked_leaves_the_site_directory_as_it_is(tmp_path: Path) -> None:
    config = SiteConfig(name="a", server="unix:/nowhere", batch="slurm")
    with asked_cluster(config, tmp_path) as batch:
        assert isinstance(batch, SlurmBatchSystem)
    assert list(tmp_path.iterdir()) == []
    key = site_key(tmp_path)
    with asked_cluster(config, tmp_path) as batch:
        assert isinstance(batch, SlurmBatchSystem)
        assert batch._key == key, "allocations of the site are known as its own"


def test_an_unknown_batch_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`lsf` is not a batch system"):
        open_cluster("lsf", tmp_path, Cluster())


TOY = """
from tidemill.batch.kinds import BatchKind
from tidemill.batch.local import LocalBatchSystem
from tidemill.config.site import LocalBatch, NodeUse
def toy(directory, config, *, key, account, tables):
    return LocalBatchSystem(directory, LocalBatch(), NodeUse())
KIND = BatchKind(toy, ("toysub",), ("toystat",), "toydel")
"""


@pytest.fixture
def toy_installed(tmp_path: Path) -> Iterator[None]:
    """The only extension that is installed is `toy`, with a batch system."""
    folder = tmp_path / "installed"
    add_extension(folder, "toy", f"[{extensions.BATCH}]\ntoy = toy_batch:KIND\n", toy_batch=TOY)
    with installed_only(folder):
        yield


@pytest.mark.usefixtures("toy_installed")
def test_a_batch_system_of_a_missing_extension_says_which_command_installs_it(tmp_path: Path) -> None:
    config = SiteConfig(name="a", server="unix:/nowhere", batch="gridengine")
    with pytest.raises(ConfigError, match="`gridengine` needs the extension `gridengine`") as caught:
        open_batch(config, tmp_path)
    hint = "install it: pip install 'tidemill[gridengine]'"
    assert (caught.value.exit_code, caught.value.hint) == (2, hint)


@pytest.mark.usefixtures("toy_installed")
def test_a_login_node_whose_batch_system_needs_a_missing_extension_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = Namespace(batch=None, partition=None, account=None)
    assert find_batch(asked, tmp_path)[0] == "local"
    for name in ("qsub", "qconf"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ConfigError, match="needs the extension `gridengine`"):
        find_batch(asked, tmp_path)


@pytest.mark.usefixtures("toy_installed")
def test_an_extension_adds_a_batch_system(tmp_path: Path) -> None:
    assert "toy" in kinds.names()
    assert isinstance(open_cluster("toy", tmp_path / "batch", Cluster()), LocalBatchSystem)
    assert kinds.commands_of("toy", submits=True) == ("toysub",)


@pytest.mark.usefixtures("toy_installed")
def test_why_allocations_of_an_added_batch_system_wait_is_shown_as_it_says_it() -> None:
    assert kinds.shown_reason("toy", "no node \n is free") == ("no node is free", "")
    assert kinds.shown_reason("local", "no node is free") == ("", "")


@pytest.mark.parametrize(
    ("attribute", "what"),
    [("toy", "of type `function`"), ("LocalBatchSystem", "the class `LocalBatchSystem`")],
)
def test_an_entry_point_that_is_no_kind_is_named_with_what_was_expected(
    tmp_path: Path, attribute: str, what: str
) -> None:
    folder = tmp_path / "installed"
    add_extension(folder, "toy", f"[{extensions.BATCH}]\ntoy = toy_batch:{attribute}\n", toy_batch=TOY)
    with installed_only(folder):
        with pytest.raises(ConfigError) as caught:
            open_cluster("toy", tmp_path, Cluster())
        assert kinds.commands_of("toy", submits=False) == ()
    assert caught.value.message == (
        f"the extension `toy`: its entry point `toy = toy_batch:{attribute}` in [tidemill.batch] is {what}, "
        "not a `BatchKind` (tidemill.batch.kinds)"
    )
    assert "pip uninstall tidemill-toy" in (caught.value.hint or "")


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    site = tmp_path / "site"
    key = site_key(site)
    assert site_key(site) == key
    assert (site / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in site.iterdir()] == ["key"]
    assert site_key(tmp_path / "other") != key


def test_two_that_make_a_key_at_a_time_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: site_key(tmp_path / "site"), range(8)))
    assert len(keys) == 1


def test_a_damaged_key_is_an_error_not_a_new_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123")
    with pytest.raises(SiteError, match="is not a key: 4 characters, expected 16") as caught:
        site_key(tmp_path)
    assert "not recognised" in (caught.value.hint or "")
