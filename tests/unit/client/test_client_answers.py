"""What verbs print of a server's answers: its health, its owners, and one hint, for all verbs, at a wrong campaign."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from tidemill.cli.jobs.named import known_campaign
from tidemill.cli.main import main
from tidemill.client.client import Client
from tidemill.wire.api import ErrorReply, Health, OwnerRow, Problem
from tidemill.wire.server_connection import NotFoundError

MISSING = ErrorReply(error="there is no campaign `eve/same`", hint="did you mean `ada/same` or `bob/same`?")
PROBLEMS = [
    Problem(name="storage", text="there is no room for more jobs", hint="free space"),
    Problem(name="no_site", text="none of the sites can be heard", hint="`tidemill site run`"),
]
HEALTH = Health(status="degraded", version="0.1.0", database="sqlite", now_us=0, problems=PROBLEMS)
Answers = dict[str, object]


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answers], None]]:
    """Starts the server that verbs find, with these answers by path; to all else it answers MISSING."""
    servers: list[socketserver.ThreadingUnixStreamServer] = []

    def start(answers: Answers) -> None:
        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = answers.get(self.path.partition("?")[0])
                body = msgspec.json.encode(MISSING if found is None else found)
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(socketserver.ThreadingUnixStreamServer(str(tmp_path / "api.sock"), Answering))
        threading.Thread(target=servers[0].serve_forever, daemon=True).start()

    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEMILL_SERVER", f"unix:{tmp_path}/api.sock")
    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.mark.parametrize("name", ["root/", "/", ""])
def test_a_reference_without_a_name_is_refused_before_the_server_is_asked(tmp_path: Path, name: str) -> None:
    """Its path is that of the list of campaigns."""
    client = Client(f"unix:{tmp_path}/none.sock", home=tmp_path, retry_s=0)
    for ask in (client.campaign, client.activity, lambda text: known_campaign(client, text)):
        with pytest.raises(NotFoundError) as caught:
            ask(name)
        assert caught.value.message == f"`{name}` names no campaign"
        assert caught.value.hint == "write NAME or OWNER/NAME"


@pytest.mark.parametrize(
    "verb",
    [["attach"], ["wait"], ["run", "--resume"], ["outputs", "ls", "--campaign"]],
)
def test_every_verb_hints_as_the_server_does(
    verb: list[str], answering: Callable[[Answers], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answering({"/v1/campaigns": []})
    assert main([*verb, "eve/same"]) == 2
    err = capsys.readouterr().err
    assert f"error: {MISSING.error}" in err
    assert f"hint: {MISSING.hint}" in err


def test_doctor_names_each_problem_of_the_server_and_what_to_do(
    answering: Callable[[Answers], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answering({"/v1/health": HEALTH, "/v1/sites": []})
    main(["doctor", "--json"])
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["check"] == "server"]
    assert (found["state"], found["hint"]) == ("warn", "free space; `tidemill site run`")
    status = "degraded; there is no room for more jobs; none of the sites can be heard; no site"
    assert status in found["found"]


@pytest.mark.parametrize(("shares", "text"), [(1.0, "ada: 1 share, had"), (2.5, "ada: 2.5 shares, had")])
def test_a_weight_of_one_is_one_share(
    shares: float, text: str, answering: Callable[[Answers], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answering(
        {"/v1/owners": [OwnerRow(owner="ada", shares=shares, used_core_s=0.0, at_us=0, stored_bytes=0)]}
    )
    assert main(["owner", "list"]) == 0
    assert text in capsys.readouterr().out
