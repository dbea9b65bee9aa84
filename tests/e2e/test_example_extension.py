"""The extension that docs/extensions.md shows: its verb, setting, view, page and route, with a real server and site."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.home.example_extension import files, install_reach
from tests.worlds.home.world import Options, world
from tests.worlds.services.server_process import UnixConnection


def test_the_extension_of_the_page_shows_what_sites_know_by_its_verb_its_page_and_its_route(
    tmp_path: Path,
) -> None:
    install_reach(tmp_path)
    with world(options=Options(environment={"PYTHONPATH": str(tmp_path)})) as made:

        def page() -> str:
            connection = UnixConnection(made.home / "server" / "api.sock")
            connection.request("GET", "/reach", headers={"Host": "localhost"})
            text = connection.getresponse().read().decode()
            connection.close()
            return text

        made.wait_for(lambda: ": well</p>" in page(), "the site shows its view at the server")
        assert '<a href="/reach" aria-current="page">Reach</a>' in page()
        (row,) = made.client.get("/v1/reach", list[dict[str, object]])
        assert (row["site"], row["answers"]) == ("here", True)
        assert row["since_us"] != 0
        assert "/v1/reach" in made.client.get("/schema/openapi.json", dict[str, object])["paths"]  # type: ignore[operator]
        assert made.run("reach").stdout.splitlines()[1].split() == ["here", "True"]

        made.stop()
        settings = made.home / "server" / "server.toml"
        settings.write_text('[reach]\nleft_out = ["there", "here"]\n')
        made.start()
        made.wait_for(
            lambda: made.client.get("/v1/reach", list[dict[str, object]]) == [],
            "`server.toml` leaves the site out",
        )
        settings.write_text("[reach]\nleft_out = 3\nlefty = 3\n")
        refused = made.run("server", "run", "--config", str(settings))
        assert refused.returncode == 2
        assert "unknown key `reach.lefty`" in refused.stderr
        assert "`reach.left_out` is `3`, expected list of text" in refused.stderr


def test_it_is_short() -> None:
    lines = [line for content in files().values() for line in content.splitlines() if line.strip()]
    assert len(lines) <= 60
