"""Who may do what on a real server: every cell of roles and routes, by certificate and by token; who is refused."""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography import x509
from tests.worlds.services.access_world import (
    AUDIENCE,
    Certs,
    World,
    private,
    running,
    submission,
    sync,
    until,
)
from tests.worlds.services.token_issuer import Issuer, altered

from tidemill.client import Client
from tidemill.errors import ConfigError, SiteError
from tidemill.model.job import JobSpec
from tidemill.server.api.routes import ROUTES
from tidemill.server.audit.audit_log import verify
from tidemill.server.run import lines_told
from tidemill.wire.credentials import Credentials

#: The cells: `own` = what carries the name of the one who asks, `all`, `no`. Written out again on purpose: a change of
#: rights has to be made twice. Columns: submitter, site, operator.
CELLS: dict[str, tuple[str, str, str]] = {
    "POST /v1/jobs": ("own", "no", "no"),
    "GET /v1/jobs": ("own", "no", "all"),
    "GET /v1/jobs/{job:int}": ("own", "no", "all"),
    "GET /v1/jobs/{job:int}/log": ("own", "no", "all"),
    "GET /v1/jobs/{job:int}/activity": ("own", "no", "all"),
    "GET /v1/campaigns/{name:str}/activity": ("own", "no", "all"),
    "GET /v1/jobs/{job:int}/times": ("own", "no", "all"),
    "POST /v1/cancel": ("own", "no", "all"),
    "POST /v1/retry": ("own", "no", "all"),
    "POST /v1/accept": ("own", "no", "all"),
    "POST /v1/discard": ("own", "no", "all"),
    "GET /v1/campaigns": ("own", "no", "all"),
    "GET /v1/campaigns/{name:str}": ("own", "no", "all"),
    "GET /v1/failures": ("own", "no", "all"),
    "GET /v1/outputs": ("own", "no", "all"),
    "GET /v1/counts": ("own", "no", "all"),
    "GET /v1/changes": ("own", "no", "all"),
    "GET /v1/sites": ("all", "own", "all"),
    "GET /v1/wards": ("all", "all", "all"),
    "GET /v1/downtimes": ("all", "all", "all"),
    "POST /v1/sites/{name:str}/drain": ("no", "no", "all"),
    "POST /v1/sites/{name:str}/reset-epoch": ("no", "no", "all"),
    "GET /v1/owners": ("own", "no", "all"),
    "POST /v1/owners": ("no", "no", "all"),
    "GET /v1/applications": ("all", "own", "all"),
    "GET /v1/allocations": ("no", "own", "all"),
    "GET /v1/allocations/{name:str}/samples": ("no", "own", "all"),
    "GET /v1/placements": ("no", "own", "all"),
    "GET /v1/core-hours": ("own", "no", "all"),
    "GET /v1/audit": ("no", "own", "all"),
    "GET /v1/health": ("all", "all", "all"),
    "POST /v1/sync": ("no", "own", "no"),
}
PEOPLE = {"ada": 0, "lrz": 1, "olga": 2}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def world(certs: Certs, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), certs, issuer)
    for site in ("lrz", "nemo"):
        request = sync(site, capacity=idle(), reports=[started(f"tm-{site}")])
        assert made.call(site, "POST", "/v1/sync", request)[0] == 200
    for name in ("ada", "bob"):
        status, answer = made.call(name, "POST", "/v1/jobs", submission(f"{name}-1", f"k-{name}"))
        assert status == 200, answer
    yield made
    assert made.stop() == 0


def idle() -> Any:
    return msgspec.structs.replace(sync("x").capacity, want_core_s=0.0)


def started(name: str) -> Any:
    return msgspec.structs.replace(running(name), started_us=1)


def job_of(world: World, campaign: str) -> int:
    owner = campaign.partition("-")[0]
    _, page = world.call("olga", "GET", f"/v1/jobs?campaign={owner}/{campaign}")
    return int(page["jobs"][0]["id"])


def request_of(world: World, route: str, *, own: bool) -> tuple[str, str, Any]:
    """A legal request for something of `ada` and `lrz`, or of `bob` and `nemo`."""
    method, path = route.split(" ")
    campaign, site = ("ada-1", "lrz") if own else ("bob-1", "nemo")
    number = job_of(world, campaign)
    path = path.replace("{job:int}", str(number))
    path = path.replace("/allocations/{name:str}", f"/allocations/tm-{site}")
    path = path.replace("{name:str}", site if "/sites/" in path else campaign)
    body: Any = None
    match route:
        case "POST /v1/jobs":
            body = submission(campaign, f"cell-{own}-{time.monotonic_ns()}")
        case "POST /v1/cancel" | "POST /v1/retry" | "POST /v1/accept" | "POST /v1/discard":
            body = {"jobs": [number]}
        case "POST /v1/sites/{name:str}/drain":
            body = {"drain": False}
        case "POST /v1/sites/{name:str}/reset-epoch":
            body = {"reason": "a test"}
        case "POST /v1/owners":
            body = {"owner": "ada" if own else "bob", "shares": 1.0}
        case "POST /v1/sync":
            body = sync(site, capacity=idle())
        case "GET /v1/outputs" | "GET /v1/failures" | "GET /v1/jobs" | "GET /v1/changes":
            path += f"?campaign={campaign}" if own else f"?campaign=bob/{campaign}"
        case "GET /v1/allocations" | "GET /v1/allocations/{name:str}/samples" | "GET /v1/placements":
            path += f"?site={site}"
        case "GET /v1/audit":
            path += f"?site={site}&batch_id=1"
    return method, with_owner(path, own=own), body


def with_owner(path: str, *, own: bool) -> str:
    """A bare name is one's own campaign."""
    return path if own or "/campaigns/" not in path else f"{path}?owner=bob"


def test_every_route_has_its_cells() -> None:
    assert {f"{each.method} {each.path}" for each in ROUTES} == set(CELLS)


@pytest.mark.parametrize("who", PEOPLE)
def test_nothing_outside_the_cells_passes_and_everything_inside_does(world: World, who: str) -> None:
    for route, cells in CELLS.items():
        cell = cells[PEOPLE[who]]
        for own in (True, False):
            if route == "POST /v1/jobs" and cell == "own" and not own:
                continue  # names belong to owners: another's is free, see test_attack_names.py
            method, path, body = request_of(world, route, own=own)
            before = world.content()
            refusals = len(world.events("access.forbidden"))
            status, answer = world.call(who, method, path, body)
            passes = cell == "all" or (cell == "own" and own)
            if not passes and cell == "own" and route in FILTERED:
                continue  # these take no name: what they show is looked at below
            assert (status == 200) == passes, (who, route, own, status, answer)
            if not passes:
                wanted = 403 if cell == "no" or who == "lrz" else 404  # what is another's does not exist
                assert status == wanted, (who, route, own, answer)
                assert world.content() == before
                assert len(world.events("access.forbidden")) == refusals + 1


#: Routes without a filter by name: for `own` they show less instead of refusing.
FILTERED = {
    *("GET /v1/campaigns", "GET /v1/owners", "GET /v1/counts", "GET /v1/sites", "GET /v1/applications"),
    "GET /v1/core-hours",
}


def test_listings_show_own_things_only(world: World) -> None:
    mine = {each["campaign"] for each in world.call("ada", "GET", "/v1/jobs")[1]["jobs"]}
    assert "ada-1" in mine
    assert all(each.startswith("ada-") for each in mine)
    assert all(each["owner"] == "bob" for each in world.call("bob", "GET", "/v1/campaigns")[1])
    of_bob = len(world.call("bob", "GET", "/v1/campaigns")[1])  # some tests submit as bob
    assert world.call("bob", "GET", "/v1/counts")[1]["campaigns"] == of_bob
    assert world.call("olga", "GET", "/v1/counts")[1]["campaigns"] > of_bob
    assert [each["name"] for each in world.call("lrz", "GET", "/v1/sites")[1]] == ["lrz"]
    assert {each["site"] for each in world.call("nemo", "GET", "/v1/applications")[1]} == {"nemo"}
    assert {each["name"] for each in world.call("ada", "GET", "/v1/sites")[1]} >= {"lrz", "nemo"}
    assert world.call("ada", "GET", "/v1/core-hours")[1]["allocations"] == [], "none ran anything of hers"
    held = world.call("olga", "GET", "/v1/core-hours")[1]["allocations"]
    assert {each["name"] for each in held} >= {"tm-lrz", "tm-nemo"}
    assert world.call("lrz", "GET", "/v1/allocations")[0] == 200
    assert world.call("lrz", "GET", "/v1/jobs")[0] == 403


def test_samples_of_anothers_allocation_do_not_exist_whether_its_site_is_named_or_not(world: World) -> None:
    assert world.call("lrz", "GET", "/v1/allocations/tm-lrz/samples")[1]["site"] == "lrz"
    assert world.call("lrz", "GET", "/v1/allocations/tm-nemo/samples")[0] == 404
    assert world.call("lrz", "GET", "/v1/allocations/tm-nemo/samples?site=nemo")[0] == 403
    assert world.call("olga", "GET", "/v1/allocations/tm-nemo/samples")[0] == 200


def test_a_submission_belongs_to_its_credential_whatever_it_says(world: World) -> None:
    body = {**submission("eve-1", "k-eve"), "owner": "ada"}
    assert world.call("eve", "POST", "/v1/jobs", body)[0] == 200
    assert world.call("eve", "GET", "/v1/campaigns/eve-1")[1]["owner"] == "eve"
    assert world.call("ada", "GET", "/v1/campaigns/eve-1")[0] == 404


def test_a_submitter_can_neither_wait_for_nor_read_what_is_of_another(world: World) -> None:
    number = job_of(world, "bob-1")
    before = world.content()
    thief = {"inputs": [{"name": "x", "url": f"job:{number}/out.dat"}]}
    for spec in (thief, {"after": [number]}, {"after": ["bob-1"]}):
        status, answer = world.call("ada", "POST", "/v1/jobs", submission("ada-2", "k-thief", **spec))
        assert (status, "which does not exist" in answer["error"]) == (400, True), answer
    rich = {**submission("ada-2", "k-rich"), "shares": 1000.0}
    assert world.call("ada", "POST", "/v1/jobs", rich)[0] == 403
    assert world.content() == before


def test_a_repeated_submission_of_another_gets_nothing_of_the_first(world: World) -> None:
    message = submission(
        "ada-twice", "k-twice"
    )  # a name that no other test asks for: two owners have it from now on
    for repeated in (False, True):
        assert world.call("ada", "POST", "/v1/jobs", message)[1]["repeated"] == repeated
    before = world.content()
    assert world.call("ada", "POST", "/v1/jobs", submission("ada-twice", "k-twice", priority=9))[0] == 409
    assert world.content() == before
    status, answer = world.call("bob", "POST", "/v1/jobs", message)
    assert (status, answer["owner"], answer["repeated"]) == (200, "bob", False)


# ---- certificates ---------------------------------------------------------------------------------------------


def test_a_foreign_ca_of_the_same_name_and_an_expired_key_end_at_the_handshake(world: World) -> None:
    certs = world.certs
    for pair, why in (
        (
            certs.of(certs.stranger, "operator", "olga"),
            "tls: ",
        ),  # OpenSSL finds our CA's name and another key
        (certs.expired("operator", "olga"), "tls: certificate has expired"),
    ):
        before, refusals = world.content(), len(world.events("access.refused"))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            world.call(pair, "POST", "/v1/cancel", {"jobs": [job_of(world, "ada-1")]})
        until(lambda n=refusals: len(world.events("access.refused")) > n)  # type: ignore[misc]
        assert world.events("access.refused")[-1]["why"].startswith(why)
        assert world.content() == before


def test_a_servers_certificate_opens_nothing_here(world: World) -> None:
    """It is a client's too, for the message broker."""
    pair = world.certs.of(world.certs.own, "server", "tidemill.example.org")
    status, answer = world.call(pair, "GET", "/v1/jobs")
    assert status == 401
    assert "does not name one role" in answer["error"]


def test_a_role_in_the_certificate_of_another_ca_is_not_believed(world: World) -> None:
    _, grace = world.certs.of_grid("Grace Hopper")
    _, mallory = world.certs.of_grid("mallory", unit="operator")
    status, page = world.call(grace, "GET", "/v1/campaigns")
    assert (status, page) == (200, [])
    status, answer = world.call(mallory, "GET", "/v1/jobs")
    assert status == 401
    assert "has no role here" in answer["error"]
    assert any("mallory" in each["why"] for each in world.events("access.refused"))


def test_a_crl_that_is_replaced_takes_effect_without_a_restart(world: World) -> None:
    made, pair = world.certs.of_grid("Grace Hopper")
    assert world.call(pair, "GET", "/v1/campaigns")[0] == 200
    world.certs.write_grid(gone=[made])

    def refused() -> bool:
        try:
            world.call(pair, "GET", "/v1/campaigns")
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return True
        return False

    until(refused)
    world.certs.write_grid(gone=[])


def test_revoked_is_refused_on_connections_that_are_open(world: World) -> None:
    certificate = x509.load_pem_x509_certificate(world.certs.pair("eve")[0].read_bytes())
    connection = http.client.HTTPSConnection(
        "127.0.0.1", world.port, timeout=30, context=world.context(world.certs.pair("eve"))
    )
    connection.request("GET", "/v1/campaigns")
    assert connection.getresponse().read()
    for line in (
        f"serial {certificate.serial_number:X}",
        "name eve",
        "subject /O=Tidemill/OU=submitter/CN=eve",
    ):
        world.revoke(f"{line} # left the collaboration\n")
        before, refusals = world.content(), len(world.events("access.refused"))
        body = json.dumps(submission("eve-revoked", "k-revoked"))
        connection.request("POST", "/v1/jobs", body=body, headers={"Content-Type": "application/json"})
        refusal = connection.getresponse()
        assert (refusal.status, refusal.read() != b"") == (401, True)
        assert len(world.events("access.refused")) == refusals + 1
        assert world.content() == before
        connection.request("GET", "/v1/campaigns")
        answer = connection.getresponse()
        assert answer.status == 401
        assert "is revoked" in json.loads(answer.read())["error"]
        assert world.call("ada", "GET", "/v1/campaigns")[0] == 200
    world.revoke("serial\n")  # half of a file: earlier revocations stay in force
    assert world.call("eve", "GET", "/v1/campaigns")[0] == 401
    world.revoke("")
    assert world.call("eve", "GET", "/v1/campaigns")[0] == 200
    connection.close()


# ---- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_does_what_its_scopes_say_and_no_more(world: World) -> None:
    reader = "token:" + world.issuer.token(scope="compute.read storage.read:/")
    writer = "token:" + world.issuer.token(scope="compute.create")
    assert world.call(reader, "GET", "/v1/jobs")[0] == 200
    status, answer = world.call(reader, "POST", "/v1/jobs", submission("carol-1", "k-carol"))
    assert status == 403
    assert "`compute.create`" in answer["error"]
    assert world.call(writer, "POST", "/v1/jobs", submission("carol-1", "k-carol"))[0] == 200
    assert world.call(writer, "GET", "/v1/jobs")[0] == 403
    assert world.call(reader, "GET", "/v1/campaigns/carol-1")[1]["owner"] == "carol@iam"
    assert world.call("ada", "GET", "/v1/campaigns/carol-1")[0] == 404
    rsa = world.issuer.token(key=world.issuer.rsa, alg="RS256", kid="rsa")
    assert world.call("token:" + rsa, "GET", "/v1/jobs")[0] == 200


def test_groups_and_subjects_of_tokens_hold_the_roles_that_are_configured(world: World) -> None:
    token = world.issuer.token
    groups: dict[str, Any] = {"wlcg.groups": ["/tide", "/tide/operators"]}
    operator = "token:" + token(sub="oz", **groups)
    assert world.call(operator, "GET", "/v1/counts")[1]["jobs"] >= 2
    assert world.call(operator, "POST", "/v1/jobs", submission("o", "o"))[0] == 403
    narrow = "token:" + token(sub="oz", scope="storage.read:/", **groups)
    assert world.call(narrow, "GET", "/v1/counts")[0] == 403
    site = "token:" + token(sub="robot-cori")
    assert world.call(site, "POST", "/v1/sync", sync("cori", capacity=idle()))[0] == 200
    assert world.call(site, "POST", "/v1/sync", sync("lrz", capacity=idle()))[0] == 403


def confused(token: str, public: bytes) -> str:
    """Signed by HMAC with what everybody knows: the issuer's public key (RFC 8725, section 2.1)."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"ec"}').rstrip(b"=")
    signed = head + b"." + token.split(".")[1].encode()
    signature = base64.urlsafe_b64encode(hmac.digest(public, signed, "sha256")).rstrip(b"=")
    return (signed + b"." + signature).decode()


def refused_tokens(issuer: Issuer) -> dict[str, str]:
    now = int(time.time())
    good = issuer.token()
    none = jwt.encode(jwt.decode(good, options={"verify_signature": False}), "", algorithm="none")
    return {
        "altered": altered(good, sub="oz", **{"wlcg.groups": ["/tide/operators"]}),
        "another's signature": good.rsplit(".", 1)[0] + "." + issuer.token(sub="x").rsplit(".", 1)[1],
        "another key": issuer.token(key=issuer.other),
        "unknown key": issuer.token(kid="new"),
        "alg none": none,
        "alg HS256 with the public key": confused(good, issuer.jwks.read_bytes()),
        "another audience": issuer.token(aud="https://elsewhere.example"),
        "any audience": issuer.token(aud="https://wlcg.cern.ch/jwt/v1/any"),
        "another issuer": issuer.token(iss="https://evil.example/"),
        "replayed after its end": issuer.token(iat=now - 7200, nbf=now - 7200, exp=now - 3600),
        "not yet": issuer.token(nbf=now + 3600, exp=now + 7200),
        "lives too long": issuer.token(exp=now + 30 * 86400),
        "no end": issuer.token(drop="exp"),
        "no audience": issuer.token(drop="aud"),
        "no subject": issuer.token(drop="sub"),
        "no version": issuer.token(drop="wlcg.ver"),
        "no role": issuer.token(scope="storage.read:/"),
        "too long": issuer.token(fill="x" * 20_000),
        "garbage": "a.b.c",
        "deep": "e30." + "W" * 9000 + ".x",
    }


def test_wrong_tokens_are_refused_and_logged_and_change_nothing(world: World) -> None:
    assert world.call("token:" + world.issuer.token(), "GET", "/v1/jobs")[0] == 200
    before = world.content()
    for name, token in refused_tokens(world.issuer).items():
        refusals = len(world.events("access.refused"))
        status, answer = world.call("token:" + token, "POST", "/v1/jobs", submission("t", "t"))
        assert status == 401, (name, answer)
        assert len(world.events("access.refused")) == refusals + 1, name
        signature = token.rsplit(".", 1)[1]
        assert len(signature) < 20 or signature not in world.log.read_text(), name
    assert world.content() == before


def test_a_revoked_token_is_refused(world: World) -> None:
    token = "token:" + world.issuer.token(jti="stolen")
    assert world.call(token, "GET", "/v1/jobs")[0] == 200
    world.revoke("token stolen\n")
    assert world.call(token, "GET", "/v1/jobs")[0] == 401
    assert world.call("token:" + world.issuer.token(jti="mine"), "GET", "/v1/jobs")[0] == 200
    world.revoke("")


# ---- audit -------------------------------------------------------------------------------------------------------


def ran(world: World) -> int:
    """Jobs of `ada` in an allocation of `lrz`, as its agent reports it; one of them."""
    number = int(world.call("ada", "POST", "/v1/jobs", submission("ada-ran", "k-ran"))[1]["first_job"])
    pinned = submission("bob-pinned", "k-pinned", site="nemo")
    other = int(world.call("bob", "POST", "/v1/jobs", pinned)[1]["first_job"])
    status, reply = world.call("lrz", "POST", "/v1/sync", sync("lrz"))
    assert status == 200
    lease = next(each for each in reply["orders"] if each["t"] == "lease" and each["job"] == number)
    assert lease["owner"] == "ada"
    allocation = {
        "t": "allocation", "n": 2, "name": "td-1", "batch_id": "4711", "state": "RUNNING", "nodes": 2, "cores": 8,
        "at_us": 2_000, "reason": "", "busy_us": 0, "slot_us": 0, "hosts": ["nid01.hpc.example", "nid02.hpc.example"],
        "started_us": 1_000_000_000, "ended_us": 0,
    }  # fmt: skip
    usage = {"payloads": 1, "wall_us": 5}
    reports = [
        allocation,
        {"t": "ran", "n": 3, "allocation": "td-1", "ran": [[number, "0-4", -1], [other, "0-9", -1]]},
        {
            "t": "done", "n": 4, "lease": lease["lease"], "job": number, "first": 0, "count": 5, "outputs": False,
            "usage": usage,
        },
    ]  # fmt: skip
    body = msgspec.to_builtins(sync("lrz", capacity=idle(), have=lease["n"])) | {"reports": reports}
    assert world.call("lrz", "POST", "/v1/sync", body)[0] == 200
    return number


def test_a_batch_id_or_a_node_and_a_time_tell_subject_campaign_digest_and_ranges(world: World) -> None:
    number = ran(world)
    by_id = world.call("olga", "GET", "/v1/audit?batch_id=4711")[1]
    assert len(by_id) == 1  # what it claims to have run of `bob` was never leased to this site
    row = by_id[0]
    assert (row["job"], row["events"], row["campaign"], row["owner"]) == (number, "0-4", "ada-ran", "ada")
    assert row["subject"] == "/O=Tidemill/OU=submitter/CN=ada"
    assert row["digest"] == "sha256:" + "5" * 64
    assert row["nodes"] == ["nid01.hpc.example", "nid02.hpc.example"]
    for node in ("nid02", "nid02.hpc.example"):
        assert world.call("lrz", "GET", f"/v1/audit?node={node}&at_us=1000000001")[1] == by_id
    for query in (
        "node=nid0&at_us=1000000001",
        "node=nid01&at_us=999",
        "batch_id=47",
        "batch_id=4711&site=nemo",
    ):
        assert world.call("olga", "GET", f"/v1/audit?{query}")[1] == []
    assert world.call("nemo", "GET", "/v1/audit?batch_id=4711")[1] == []
    assert world.call("ada", "GET", "/v1/audit?batch_id=4711")[0] == 403
    assert world.call("olga", "GET", "/v1/audit?node=nid01")[0] == 400


def test_the_log_of_changes_names_who_and_is_whole(world: World) -> None:
    world.call("eve", "POST", "/v1/jobs", submission("eve-audit", "k-audit"))
    world.call("eve", "POST", "/v1/cancel", {"campaign": "eve-audit", "reason": "on second thoughts"})
    place = world.folder / "server"
    logged: list[dict[str, Any]] = []

    def written() -> bool:
        texts = [path.read_text() for path in sorted((place / "audit").iterdir())]
        texts = [text.rpartition("\n")[0] for text in texts]  # the last line may be half written
        logged[:] = [json.loads(line) for text in texts for line in text.splitlines()]
        return any(each["act"] == "cancel" and each["on"] == "campaign eve/eve-audit" for each in logged)

    until(written)
    submitted = next(each for each in logged if each["on"] == "campaign eve/eve-audit")
    assert (submitted["role"], submitted["name"], submitted["via"]) == ("submitter", "eve", "certificate")
    assert submitted["subject"] == "/O=Tidemill/OU=submitter/CN=eve"
    assert any(each["act"] == "sync" and each["on"] == "site lrz" for each in logged)
    until(lambda: verify(place, at_least=lines_told(place)).last >= lines_told(place) > 0)


def test_no_secret_stands_in_log_audit_or_database(world: World) -> None:
    token = world.issuer.token(sub="frank")
    world.call("token:" + token, "POST", "/v1/jobs", submission("frank-1", "k-frank"))
    world.call("token:" + altered(token, sub="oz"), "GET", "/v1/jobs")
    signature = token.rsplit(".", 1)[1]
    keys = [path.read_text().splitlines()[1] for path in world.certs.folder.rglob("*.key")]
    found = [world.log, *(path for path in (world.folder / "server").rglob("*") if path.is_file())]
    assert len(found) > 3
    for path in found:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the server has replaced it by another
            continue
        assert signature.encode() not in content, path
        assert not any(key.encode() in content for key in keys), path
    command = Path(f"/proc/{world.process.pid}/cmdline").read_bytes()
    assert b"PRIVATE" not in command


# ---- the client's side ---------------------------------------------------------------------------------------------


def test_the_client_comes_by_certificate_or_with_the_token_that_it_finds(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("BEARER_TOKEN", raising=False)
    monkeypatch.delenv("BEARER_TOKEN_FILE", raising=False)
    certificate, key = world.certs.pair("ada")
    ca = world.certs.own.certificate_path
    by_key = Client(
        world.address, credentials=Credentials(certificate=certificate, key=key, ca=ca), home=tmp_path
    )
    assert by_key.submit(JobSpec(app="sim", events=1), campaign="ada-sdk").jobs
    private(tmp_path / f"bt_u{os.geteuid()}", world.issuer.token(sub="dora").encode())
    by_token = Client(world.address, credentials=Credentials(ca=ca), home=tmp_path)
    by_token.submit(JobSpec(app="sim", events=1), campaign="dora-sdk")
    assert by_token.campaign("dora-sdk").owner == "dora@iam"
    with pytest.raises(ConfigError, match="there is no campaign"):
        by_token.campaign("ada-sdk")
    with pytest.raises(SiteError, match="certificate verify failed"):
        Client(world.address, home=tmp_path, retry_s=0).health()


def test_client_toml_names_certificate_and_ca(world: World, tmp_path: Path) -> None:
    certificate, key = world.certs.pair("bob")
    lines = [f'server = "{world.address}"', f'certificate = "{certificate}"', f'key = "{key}"']
    (tmp_path / "client.toml").write_text("\n".join([*lines, f'ca = "{world.certs.own.certificate_path}"']))
    assert {each.owner for each in Client(home=tmp_path).campaigns()} == {"bob"}
    open_key = tmp_path / "open.key"
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(ConfigError, match="is open to others"):
        Client(world.address, credentials=Credentials(certificate=certificate, key=open_key), home=tmp_path)


def test_audiences_are_matched_to_the_letter(world: World) -> None:
    several = world.issuer.token(aud=["https://elsewhere.example", AUDIENCE])
    assert world.call("token:" + several, "GET", "/v1/jobs")[0] == 200
    assert world.call("token:" + world.issuer.token(aud=AUDIENCE + "/"), "GET", "/v1/jobs")[0] == 401
