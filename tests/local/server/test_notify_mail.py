"""Mail through a real SMTP server with TLS and login, which refuses, dies in the middle, and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.services.mail_world import MailServer, make_certificate

from tidemill.config.notify import Mail
from tidemill.errors import ConfigError
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.mail import Mailer
from tidemill.wire.notification import (
    CampaignFigures,
    CampaignNews,
    Digest,
    EndedJob,
    FailureGroup,
    FailuresNews,
    JobsNews,
    Move,
    News,
    SiteNews,
)

HOUR_US = 3_600_000_000
T0_US = 1_795_215_901_000_000
PASSWORD = "correct horse battery staple"
Start = Callable[..., MailServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[MailServer] = []

    def begin(*options: str | Path) -> MailServer:
        servers.append(MailServer(tmp_path / f"box{len(servers)}", *options))
        servers[-1].start()
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def login_file(tmp_path: Path) -> Path:
    path = tmp_path / "login"
    path.touch(0o600)
    path.write_text(f"tidemill\n{PASSWORD}\n")
    return path


def figures(**changes: object) -> CampaignFigures:
    fields: dict[str, object] = {
        "states": {"COMPLETED": 998, "FAILED": 2}, "jobs": 1000, "events": 100_000, "events_done": 99_990,
        "events_failed": 10, "payloads": 1_003, "cpu_us": 120 * HOUR_US, "wall_us": 125 * HOUR_US, "rss_kb": 1_800_000,
        "first_started_us": T0_US, "last_ended_us": T0_US + 5 * HOUR_US,
        "failures": [
            FailureGroup(
                failure="payload", count=9, meaning="the payload failed on the event",
                next_step="read its stderr: `tidemill job logs JOB --event N`; repeat it with its seed",
                example="exit status 139\r\nBcc: everybody@example.org", node="n12", job=17, event=5,
            ),
        ],
        **changes,
    }  # fmt: skip
    return CampaignFigures(**fields)  # type: ignore[arg-type]


def digest(*items: News, number: int = 1) -> Digest:
    news: News = CampaignNews(campaign="zmumu", figures=figures(), first_us=T0_US, last_us=T0_US)
    return Digest(id=f"a.{number}", server="dispatch01", made_us=T0_US, items=list(items) or [news])


def test_a_mail_arrives_by_starttls_and_login_and_says_what_a_physicist_wants(
    start: Start, certificate: tuple[Path, Path], login_file: Path
) -> None:
    server = start("--cert", certificate[0], "--key", certificate[1], "--login", login_file)
    mailer = Mailer(
        Mail(
            server=f"localhost:{server.port}",
            sender="tm@example.org",
            ca=certificate[0],
            secret_file=login_file,
        )
    )

    mailer.send(Parcel("me@example.org", digest()))
    mailer.release()

    (mail,) = server.mails()
    text = mail.get_content()
    assert (mail["X-Env-From"], mail["X-Env-To"]) == ("tm@example.org", "me@example.org")
    assert mail["Subject"] == "[tidemill] campaign zmumu is done: 998 COMPLETED, 2 FAILED"
    assert mail["Message-ID"] == "<tidemill.a.1@example.org>"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert "Bcc" not in mail
    assert "100,000: 99,990 done, 10 failed (0.01%)" in text
    assert "120.00 CPU-hours in 1,003 payloads, the largest 1.84 GB" in text
    assert "UTC, 5 h\r\n" in text
    assert "payload: 9, the payload failed on the event" in text
    assert "tidemill errors --campaign zmumu" in text
    assert PASSWORD not in mail.as_string()


def test_tls_from_the_first_byte_works_too(
    start: Start, certificate: tuple[Path, Path], login_file: Path
) -> None:
    server = start("--cert", certificate[0], "--key", certificate[1], "--implicit", "--login", login_file)
    mailer = Mailer(
        Mail(
            server=f"smtps://localhost:{server.port}", sender="tm@example.org", ca=certificate[0],
            secret_file=login_file,
        )
    )  # fmt: skip

    mailer.send(Parcel("me@example.org", digest()))
    mailer.release()

    assert len(server.mails()) == 1


def test_a_server_without_starttls_gets_neither_mail_nor_password(start: Start, login_file: Path) -> None:
    server = start()
    mailer = Mailer(Mail(server=f"localhost:{server.port}", sender="tm@example.org", secret_file=login_file))

    with pytest.raises(AwayError, match="STARTTLS"):
        mailer.send(Parcel("me@example.org", digest()))

    assert server.mails() == []


def test_a_certificate_that_nobody_vouches_for_is_refused(
    start: Start, certificate: tuple[Path, Path]
) -> None:
    server = start("--cert", certificate[0], "--key", certificate[1])
    mailer = Mailer(Mail(server=f"localhost:{server.port}", sender="tm@example.org"))

    with pytest.raises(AwayError, match=r"(?i)certificate"):
        mailer.send(Parcel("me@example.org", digest()))


def test_a_wrong_password_is_told_without_repeating_it(
    start: Start, certificate: tuple[Path, Path], login_file: Path
) -> None:
    other = login_file.with_name("other")
    other.write_text("tidemill\nanother one\n")
    server = start("--cert", certificate[0], "--key", certificate[1], "--login", other)
    mailer = Mailer(
        Mail(
            server=f"localhost:{server.port}",
            sender="tm@example.org",
            ca=certificate[0],
            secret_file=login_file,
        )
    )

    with pytest.raises(AwayError, match="refuses the login") as caught:
        mailer.send(Parcel("me@example.org", digest()))

    assert PASSWORD not in str(caught.value)


@pytest.mark.timing(server={"MAIL_TIMEOUT_S": 4})
def test_a_server_that_takes_its_time_for_a_mail_gets_it_once(start: Start) -> None:
    server = start("--slow", "6")
    mailer = Mailer(Mail(server=f"smtp+plain://localhost:{server.port}", sender="tm@example.org"))

    mailer.send(Parcel("me@example.org", digest()))
    mailer.release()

    assert len(server.mails()) == 1


@pytest.mark.parametrize(("code", "error"), [("550", RefusedError), ("451", LaterError)])
def test_a_refused_recipient_does_not_cost_the_connection(
    start: Start, code: str, error: type[Exception]
) -> None:
    server = start("--refuse", f"nobody={code}")
    mailer = Mailer(Mail(server=f"smtp+plain://localhost:{server.port}", sender="tm@example.org"))

    with pytest.raises(error, match=code):
        mailer.send(Parcel("nobody@example.org", digest()))
    mailer.send(Parcel("me@example.org", digest()))
    mailer.release()

    assert [mail["X-Env-To"] for mail in server.mails()] == ["me@example.org"]


@pytest.mark.timing(server={"MAILS_PER_MIN_MAX": 2})
def test_no_more_mails_a_minute_than_the_limit(start: Start) -> None:
    server, now = start(), [100.0]
    config = Mail(server=f"smtp+plain://localhost:{server.port}", sender="tm@example.org")
    mailer = Mailer(config, monotonic_s=lambda: now[0])
    for number in range(2):
        mailer.send(Parcel("me@example.org", digest(number=number)))

    with pytest.raises(AwayError, match="within a minute"):
        mailer.send(Parcel("me@example.org", digest(number=3)))
    now[0] += 61
    mailer.send(Parcel("me@example.org", digest(number=3)))
    mailer.release()

    assert len(server.mails()) == 3


@pytest.mark.parametrize(
    ("server", "place"),
    [
        ("m.example.org", ("starttls", "m.example.org", 587)),
        ("m.example.org:25", ("starttls", "m.example.org", 25)),
        ("m.example.org:465", ("starttls", "m.example.org", 465)),
        ("smtp://m.example.org:25", ("starttls", "m.example.org", 25)),
        ("SMTPS://m.example.org", ("tls", "m.example.org", 465)),
        ("smtps://[2001:db8::1]:25", ("tls", "2001:db8::1", 25)),
        ("[::1]:2525", ("starttls", "::1", 2525)),
        ("[::1]", ("starttls", "::1", 587)),
        ("smtp+plain://localhost", ("none", "localhost", 25)),
    ],
)
def test_only_one_word_leaves_encryption_out(server: str, place: tuple[str, str, int]) -> None:
    assert Mail(server=server, sender="tm@example.org").place == place
    security, _, _ = place
    assert (security == "none") == server.startswith("smtp+plain:")


@pytest.mark.parametrize(
    "server",
    [
        "smpts://m", "http://m", "plain://m", "://m", "m:", "m:0", "m:65536", "m:x", ":25", "::1", "m/x", "m m",
        "m:25\n", "smtps://", "smtps://m/", "smtp+plain:m", "[::1", "m,n",
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_meant_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match=r"expected `HOST:PORT` \(STARTTLS\), `smtps:"):
        Mail(server=server, sender="tm@example.org")


def test_a_password_in_the_address_is_not_repeated() -> None:
    for server in ("smtps://tm:geheim@m.example.org", "tm:geheim@m", "x://geheim@m"):
        with pytest.raises(
            ValueError, match=r"`secret_file` of server\.toml holds user and password"
        ) as caught:
            Mail(server=server, sender="tm@example.org")
        assert "geheim" not in str(caught.value)


def test_a_login_file_that_others_can_read_is_refused(tmp_path: Path, login_file: Path) -> None:
    login_file.chmod(0o640)

    with pytest.raises(ConfigError, match=r"^server\.toml: `mail\.secret_file`: .*not private"):
        Mailer(Mail(server="localhost:1", sender="tm@example.org", secret_file=login_file))


def test_every_occasion_reads_well(start: Start) -> None:
    server = start()
    mailer = Mailer(Mail(server=f"smtp+plain://localhost:{server.port}", sender="tm@example.org"))
    ended = [
        EndedJob(job=7, state="COMPLETED", name="gen"),
        EndedJob(job=9, state="FAILED", reason="3 events failed"),
    ]
    moves = [Move(at_us=T0_US, state="DRAINED", reason="power"), Move(at_us=T0_US + HOUR_US, state="UP")]
    items: list[News] = [
        JobsNews(
            campaign="zmumu", ended={"COMPLETED": 40, "FAILED": 1}, jobs=ended, figures=figures(), first_us=T0_US,
            last_us=T0_US,
        ),
        FailuresNews(campaign="ttbar", share=0.25, limit=0.1, figures=figures(), first_us=T0_US, last_us=T0_US),
        SiteNews(site="hpc2", state="UP", reason="", moves=moves, first_us=T0_US, last_us=T0_US),
    ]  # fmt: skip

    mailer.send(Parcel("me@example.org", digest(*items)))
    mailer.release()

    (mail,) = server.mails()
    text = mail.get_content()
    assert mail["Subject"] == "[tidemill] 41 jobs of zmumu ended: 40 COMPLETED, 1 FAILED; and 2 more"
    assert text.index("       9  FAILED") < text.index("       7  COMPLETED  gen")
    assert "and 39 more" in text
    assert "tidemill job explain 9" in text
    assert "25.0% failed" in text
    assert "Site `hpc2` is up again." in text
    assert all(len(line) <= 120 for line in text.splitlines())
