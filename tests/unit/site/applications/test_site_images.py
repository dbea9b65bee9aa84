"""Images of applications: named, pinned, refused with the reason, told to pilots."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from tests.worlds.node.image_store import keep_image

from tidemill.cli.main import main
from tidemill.cli.site.node import site_images
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, JobError
from tidemill.image.recipe import read_recipe
from tidemill.model.job import JobSpec, Resources
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.launching import Launching
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.setup.limitations import ImageSize


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with an image `rel1` and the application file `sim.toml`, which uses it."""
    site = tmp_path / "site"
    (site / "apps").mkdir(parents=True)
    (site / "site.toml").write_text("")
    keep_image(site / "images", "/sw/rel1")
    write_application(site, '"rel1"')
    return site


def write_application(site: Path, images: str, *, name: str = "sim") -> Path:
    path = site / "apps" / f"{name}.toml"
    path.write_text(f'name = "{name}"\nexecutable = "/bin/true"\nimages = [{images}]\n')
    return path


def applications(site: Path) -> Applications:
    found = Applications(site / "apps")
    found.refresh()
    return found


def digest(site: Path, name: str = "rel1") -> str:
    return read_recipe(site / "images" / f"{name}.json").file.sha256


def test_pilots_are_told_of_the_image_with_absolute_paths(site: Path) -> None:
    preparer = Preparer(SiteConfig(name="x", server="unix:/x"), applications(site), NodeShape(4, 8000, {}))
    preparer.begin()
    (image,) = preparer.program(JobSpec(app="sim"), None).images
    assert (image.name, image.areas, image.file.sha256) == ("rel1", ["/sw/rel1"], digest(site))
    assert all(Path(piece.path).is_file() for piece in image.file.pieces)
    (offer,) = applications(site).offers({})
    assert offer.images == [f"rel1@sha256:{digest(site)}"]


def test_payloads_that_span_nodes_are_refused_with_the_reason(site: Path) -> None:
    path = write_application(site, '"rel1"')
    path.write_text(path.read_text() + "nodes_max = 4\nranks_max = 8\n")
    preparer = Preparer(SiteConfig(name="x", server="unix:/x"), applications(site), NodeShape(4, 8000, {}))
    preparer.begin(Launching(launcher="mpich", nodes=4))
    with pytest.raises(
        JobError, match="uses images, and the launcher's ranks on other nodes do not see them"
    ):
        preparer.program(JobSpec(app="sim", resources=Resources(nodes=2, ranks=4)), None)


def test_an_image_may_be_named_by_its_recipe_and_be_pinned(site: Path) -> None:
    path = write_application(site, f'"{site}/images/rel1.json@sha256:{digest(site)}"')
    assert load_application(path).images[0].use.name == "rel1"
    write_application(site, f'"rel1@sha256:{64 * "0"}"')
    with pytest.raises(
        ConfigError, match=rf"has digest sha256:{digest(site)[:12]}, approved is sha256:000000000000"
    ):
        load_application(path)
    write_application(site, '"rel1@sha256:12"')
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        load_application(path)


def test_a_missing_image_makes_the_application_not_offered_with_the_reason(site: Path) -> None:
    write_application(site, '"rel9"')
    found = applications(site)
    assert found.by_name == {}
    assert "there is no image `rel9`" in found.problems["sim.toml"]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_image_makes_the_application_not_offered(damage: str, site: Path) -> None:
    (pack,) = (site / "images" / "packs").glob("*.pack")
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.unlink()
    if damage != "gone":
        pack.write_bytes(content[:-1] if damage == "cut" else content)
    found = applications(site)
    assert found.by_name == {}
    assert f"`{pack}`" in found.problems["sim.toml"]


def test_jobs_are_refused_when_the_image_changed_since_the_application_was_read(site: Path) -> None:
    found = applications(site)
    found.get("sim")
    keep_image(site / "images", "/sw/rel1", content=b"built again")
    with pytest.raises(JobError, match=r"image `rel1` has digest sha256:\w+, approved is sha256:"):
        found.get("sim")


def test_an_application_is_offered_as_soon_as_its_image_is_there(site: Path) -> None:
    write_application(site, '"rel2"')
    found = applications(site)
    assert found.by_name == {}
    assert not found.refresh()
    keep_image(site / "images", "/sw/rel2")
    assert found.refresh()
    assert list(found.by_name) == ["sim"]


def test_images_of_one_directory_do_not_go_together(site: Path) -> None:
    keep_image(site / "images", "/sw/rel1/lib")
    path = write_application(site, '"rel1", "lib"')
    with pytest.raises(ConfigError, match="stand for the same directory: `/sw/rel1`, `/sw/rel1/lib`"):
        load_application(path)


@pytest.mark.parametrize(
    ("area", "why"), [("", "holds the site directory"), ("/site/x", "is in the site directory")]
)
def test_an_image_may_not_hide_the_site_directory(area: str, why: str) -> None:
    # Below /tmp no image may stand for anything
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        place = Path(directory)
        keep_image(place / "images", f"{place}{area}", name="wide")
        (place / "site" / "apps").mkdir(parents=True)
        (place / "site" / "site.toml").write_text("")
        path = write_application(place / "site", f'"{place}/images/wide.json"')
        with pytest.raises(ConfigError, match=why):
            load_application(path)


def test_doctor_knows_what_the_images_of_a_site_take_packed_and_unpacked(site: Path, tmp_path: Path) -> None:
    assert site_images(tmp_path) == []
    (site / "images" / "broken.json").write_text("{}")
    recipe = read_recipe(site / "images" / "rel1.json")
    assert site_images(site) == [ImageSize("rel1", recipe.file.bytes, recipe.unpacked_bytes)]


def test_app_check_tells_the_image(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "check", str(site / "apps" / "sim.toml")]) == 0
    out = capsys.readouterr().out
    assert "image      rel1: /sw/rel1" in out
    assert f'images = ["rel1@sha256:{digest(site)}"]' in out
    recipe = (site / "images" / "rel1.json").rename(site / "images" / "rel1@new.json")
    write_application(site, f'"{recipe}"')
    assert main(["app", "check", str(site / "apps" / "sim.toml")]) == 0
    assert f'images = ["{recipe}@sha256:' in capsys.readouterr().out
    recipe.rename(site / "images" / "rel1.json")
    write_application(site, '"rel1"')
    elsewhere = site.parent / "sim.toml"
    elsewhere.write_bytes((site / "apps" / "sim.toml").read_bytes())
    assert main(["app", "check", str(elsewhere), "--store", str(site / "images"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["images"] == {"rel1": f"sha256:{digest(site)}"}
    assert main(["app", "check", str(elsewhere)]) == 2
    assert "there is no image `rel1`" in capsys.readouterr().err
