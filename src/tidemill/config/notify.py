"""`[mail]` and `[notify]` of `server.toml`: how notices are sent, who else may receive them, and of what."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from tidemill.config.addressee import NAME_PATTERN, Occasion, Share, parse_target
from tidemill.config.keys import Duration, constant, doc

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]


class Mail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How mail goes out."""

    server: Annotated[str, doc("SMTP server, `host:port`; empty = no mail")] = ""
    security: Annotated[
        Literal["starttls", "tls", "none"],
        doc(
            "`starttls` (usually port 587), `tls` from the first byte (usually 465), or `none`. What is asked for is "
            "never left out because the server does not offer it"
        ),
    ] = "starttls"
    ca_file: Annotated[
        Path | None, doc("Certificates (PEM) that the server's is checked against; none = the system's")
    ] = None
    sender: Annotated[str, doc("Sender's address; required with `server`")] = ""
    login_file: Annotated[
        Path | None, doc("File (mode 0600): the user on its first line, the password on its second")
    ] = None
    recipients: Annotated[
        list[str],
        doc(
            "Addresses that submitters may have mail sent to, `*` for anything, such as `*@example.org`; none = only "
            "the rules of this file"
        ),
    ] = []
    per_min_max: Annotated[
        int,
        msgspec.Meta(ge=1, le=10_000),
        constant("Mails a minute at most; more wait their turn. Mail servers do not take this for a flood"),
    ] = 60
    timeout_s: Annotated[
        Duration,
        msgspec.Meta(ge=1, le=600),
        constant(
            "Wait at most T for each answer of the mail server; at the end of a mail, 10 minutes or more (RFC 5321, "
            "4.5.3.2)"
        ),
    ] = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot work, and a password in the clear."""
        if self.server and not self.sender:
            raise ValueError(
                "`server` is set and `sender` is not: a mail could be neither answered nor returned"
            )
        if self.sender:
            parse_target(f"mail:{self.sender}")
        if self.security == "none" and self.login_file is not None:
            raise ValueError('`login_file` with `security = "none"` would send the password in the clear')


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A web hook that may be named `hook:NAME`."""

    name: Annotated[Name, doc("Its name, for `hook:NAME`")]
    url: Annotated[str, doc("Where digests are posted to; `https`, or `http` on this machine")]
    secret_file: Annotated[
        Path, doc("File (mode 0600) with the secret that signs them, 16 characters or more")
    ]
    ca_file: Annotated[
        Path | None, doc("Certificates (PEM) that the host's is checked against; none = the system's")
    ] = None
    private: Annotated[
        bool, doc("May the host have a private or loopback address? Else such an address is refused")
    ] = False
    plain: Annotated[bool, doc("Permit `http` to another machine, readable by every host on the way")] = False
    submitters: Annotated[bool, doc("May submitters name it?")] = False

    def __post_init__(self) -> None:
        """Refuse a URL that nothing can be posted to, or that the way can read."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
            raise ValueError(
                f"`{self.url}` is not a URL such as `https://host/path` without user and password"
            )
        if parts.scheme == "http" and not self.plain and not is_loopback(parts.hostname):
            raise ValueError(f"`{self.url}` is not https: set `plain = true` if that is meant")


def is_loopback(host: str) -> bool:
    """Whether a host is named as this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An addressee that receives notices of all campaigns."""

    to: Annotated[str, doc("`mail:ADDRESS`, `hook:NAME` or `message:NAME` (a submitter of `[amqp]`)")]
    when: Annotated[list[Occasion], msgspec.Meta(min_length=1), doc("Of what")]
    campaign: Annotated[str, doc("Of which campaigns, `*` for anything, such as `mc26-*`")] = "*"
    failures_share: Annotated[Share, doc("For `failures`: from which share of failed events on")] = 0.1

    def __post_init__(self) -> None:
        """Refuse an invalid addressee."""
        target = parse_target(self.to)
        if not target.where:
            raise ValueError(f"`{self.to}`: say who gets the messages, `message:NAME`")
        if target.is_url:
            raise ValueError(
                f"`{self.to}`: give the hook a name in `[[notify.hooks]]`, and write `hook:NAME`"
            )


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is notified, and how often at most."""

    rules: Annotated[list[Rule], doc("Addressees of notices of all campaigns")] = []
    hooks: Annotated[list[Hook], doc("Web hooks that may be named")] = []
    hook_hosts: Annotated[
        list[str],
        doc(
            "Hosts of web hooks that submitters may give by URL, `*` for anything, such as `*.example.org`; none = no "
            "such hooks"
        ),
    ] = []
    hook_secret_file: Annotated[
        Path | None, doc("File (mode 0600) with the secret that signs what goes to those")
    ] = None
    gather_s: Annotated[
        Duration,
        msgspec.Meta(ge=0),
        constant(
            "Report what happens within this time after the first event together with it: a campaign's last jobs end "
            "together"
        ),
    ] = 10.0
    digest_s: Annotated[
        Duration,
        msgspec.Meta(ge=0),
        constant("Minimum time between two messages to an addressee; notices wait meanwhile. More is noise"),
    ] = 300.0
    per_hour_max: Annotated[
        int,
        msgspec.Meta(ge=1, le=3600),
        constant("Messages to one addressee in an hour, at most: one in 5 minutes"),
    ] = 12
    look_s: Annotated[
        Duration,
        msgspec.Meta(ge=0.05, le=60),
        constant("Pause between two reads of new events: one indexed query"),
    ] = 1.0
    retry_s: Annotated[
        Duration, msgspec.Meta(ge=0.1), constant("First pause after a message that could not be sent")
    ] = 5.0
    retry_max_s: Annotated[
        Duration,
        msgspec.Meta(ge=1),
        constant("Longest pause between two tries: a mail server that is back is found within 5 minutes"),
    ] = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot work together."""
        names = [hook.name for hook in self.hooks]
        if len(set(names)) < len(names):
            raise ValueError(f"two of `hooks` have one name: {', '.join(sorted(names))}")
        if self.hook_hosts and self.hook_secret_file is None:
            raise ValueError("`hook_hosts` needs `hook_secret_file`: what goes to those hosts is signed")
        for rule in self.rules:
            target = parse_target(rule.to)
            if target.channel == "hook" and target.where not in names:
                raise ValueError(f"a rule notifies `{rule.to}`, but `hooks` has no `{target.where}`")
