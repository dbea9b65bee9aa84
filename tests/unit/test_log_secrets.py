"""Logs and bundles: what looks like a credential is cut out, what is none stays; both forms of a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.home.installed import add_extension, installed_only

from tidemill import __version__
from tidemill.cli.start.support import MEMBER_BYTES_MAX, Bundle, hide_secrets_of, versions
from tidemill.confidential import CUT, cut

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2lzcyJ9.c2lnbmF0dXJlX29mX2l0"
WRITE = (
    "from tidemill import confidential, log; log.to_stderr('INFO', {form!r}); confidential.hide('planted-value-1');"
    "log.Log('agent').warning('batch.away', site='here', job=7, reason='x planted-value-1 y')"
)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefgh12345678",
        '{"authorization":"Basic dXNlcjpwYXNz"}',
        f"token was {TOKEN}",
        "postgresql://tm:s3cr3tword@db.example.org/tm",
        "amqps://site:s3cr3tword@mq:5671/",
        "password = s3cr3tword",
        '"password": "s3cr3tword"',
        "passphrase: s3cr3tword",
        "api_key=s3cr3tword",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\\nMIIEvQIBADANBg",
    ],
)
def test_what_looks_like_a_credential_is_cut(text: str) -> None:
    found = cut(text)

    assert CUT in found
    for secret in ("abcdefgh12345678", "dXNlcjpwYXNz", TOKEN, "s3cr3tword", "MfKQ9r8", "MIIEvQ"):
        assert secret not in found


@pytest.mark.parametrize(
    "text",
    [
        'secret_file = "/etc/tidemill/server.secret"',
        "hint: name the server's secret file",
        "tidemill_server_requests_total 7",
        "root://eos.example.org//eos/user/f.root",
        "https://example.org:8443/path@version",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "the token is missing or wrong",
        '{"event":"lease.received","job":3,"tokens":12}',
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert cut(text) == text


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_tells_the_same_in_both_forms_and_no_hidden_value(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE.format(form=form)], capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()

    assert "planted-value-1" not in line
    if form == "json":
        told = json.loads(line)
        assert told["reason"] == f"x {CUT} y"
        assert (told["component"], told["event"], told["site"], told["job"]) == (
            "agent",
            "batch.away",
            "here",
            7,
        )
    else:
        assert line.endswith(f'WARNING agent batch.away site="here" job=7 reason="x {CUT} y"')


def test_secrets_within_others_and_those_that_json_escapes_are_cut_whole() -> None:
    program = (
        "from tidemill import confidential as c, log; log.to_stderr();"
        "[c.hide(each) for each in ('inner-one', 'inner-one-outer', 'quo\"ted \\\\ one')];"
        "log.Log('a').error('x', reason='inner-one-outer', why='quo\"ted \\\\ one')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    told = json.loads(done.stderr)
    assert (told["reason"], told["why"]) == (CUT, CUT)


def test_a_bundle_begins_a_long_log_with_a_whole_line() -> None:
    """Of a secret that was cut in half nothing would know the rest."""
    bundle = Bundle()

    bundle.add("log", b"x" * MEMBER_BYTES_MAX + b"half-of-a-secret\nwhole\n")

    assert bundle.members["log"] == b"whole\n"
    assert bundle.left_out["log"] > MEMBER_BYTES_MAX


def test_a_bundle_says_which_extensions_are_installed(tmp_path: Path) -> None:
    add_extension(tmp_path, "odd", "[tidemill.verbs]\nodd = tidemill_odd:GROUPS\n")
    with installed_only(tmp_path):
        assert versions()["extensions"] == {"odd": __version__}


def test_where_a_hook_is_posted_to_is_in_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(
        '[amqp]\nurl = "amqps://mq.example.org/tidemill"\n[[notify.hooks]]\nname = "chat"\n'
        'url = "https://hooks.example.org/services/T0/B0/planted-path"\nsecret_file = "s"\n'
    )
    hide_secrets_of(path)
    bundle = Bundle()
    bundle.add_file("server/server.toml", path)
    told = bundle.members["server/server.toml"].decode()
    assert "planted-path" not in told
    assert "amqps://mq.example.org/tidemill" in told
