"""`tidemill certs init|issue|show|revoke`: a small CA for a collaboration that has none; what any certificate says."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, duration
from tidemill.cli.terminal import hint, say, show, show_json

CA_DAYS = 3650
DAYS = {"server": 397, "submitter": 365, "site": 397, "operator": 180}
ROLES = tuple(DAYS)


def define_init(parser: Parser) -> None:
    """Options of `certs init`."""
    _dir(parser)
    parser.add_argument(
        "--name", default="Tidemill CA", metavar="TEXT", help="the CA's name (default: Tidemill CA)"
    )
    parser.add_argument(
        "--days", type=int, default=CA_DAYS, metavar="N", help=f"validity in days (default: {CA_DAYS})"
    )


def define_issue(parser: Parser) -> None:
    """Options of `certs issue`."""
    parser.add_argument("role", choices=ROLES, metavar="ROLE", help=f"one of {', '.join(ROLES)}")
    parser.add_argument(
        "name", metavar="NAME", help="of the person or site; of a server: its host name or address"
    )
    parser.add_argument(
        "--also", action="append", default=[], metavar="HOST", help="a server's further names (default: none)"
    )
    parser.add_argument("--days", type=int, metavar="N", help=f"validity in days (default: {_days()})")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where NAME.pem and NAME.key go (default: the CA's directory)"
    )
    parser.add_argument(
        "--csr",
        type=Path,
        metavar="FILE",
        help="sign this request instead of making a key (default: make one)",
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="replace the certificate and key that are there; with --csr the certificate (default: refuse)",
    )
    _dir(parser)


def define_show(parser: Parser) -> None:
    """Options of `certs show`."""
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.pem",
        help="certificates (default: all of the CA's directory)",
    )
    parser.add_argument(
        "--soon",
        type=duration,
        default=14 * 86400,
        metavar="TIME",
        help="exit 1 if one ends earlier (default: 14d)",
    )
    _dir(parser)


def define_revoke(parser: Parser) -> None:
    """Options of `certs revoke`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.pem", help="certificates of this CA")
    parser.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="the list to add to; a server reads revoked.txt in its directory (default: revoked.txt of the CA)",
    )
    _dir(parser)


def _days() -> str:
    return ", ".join(f"{role} {days}" for role, days in DAYS.items())


def _dir(parser: Parser) -> None:
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the CA's directory, mode 0700 (default: HOME/certs)"
    )


def init(args: Namespace) -> int:
    """Make a CA."""
    from tidemill.client.authority import Authority

    authority = Authority.create(_place(args), name=args.name, days=args.days)
    if args.json:
        show_json({"certificate": str(authority.certificate_path), "key": str(authority.key_path)})
        return 0
    show(str(authority.certificate_path))
    hint(f"keep `{authority.key_path}` where no service runs; `tidemill certs issue server HOST` comes next")
    return 0


def issue(args: Namespace) -> int:
    """Make a key pair and its certificate."""
    from tidemill.client.authority import Authority, Wanted

    place = _place(args)
    wanted = Wanted(
        role=args.role, name=args.name, also=tuple(args.also), renew=args.renew, csr=args.csr,
        days=DAYS[args.role] if args.days is None else args.days,
    )  # fmt: skip
    made = Authority.read(place).issue(wanted, args.out or place)
    if args.json:
        show_json(made)
        return 0
    show(str(made.certificate))
    if made.key is not None:
        show(str(made.key))
    if made.until_us < clock.now_us() + (wanted.days - 1) * 86_400_000_000:
        hint(f"it ends at {clock.utc_text(made.until_us)}, as its CA does: make another CA in time")
    for line in _next_steps(args.role, made.certificate, made.key, place / "ca.pem"):
        hint(line)
    return 0


def _next_steps(role: str, certificate: Path, key: Path | None, ca: Path) -> list[str]:
    here = [f"certificate = {json.dumps(str(certificate))}", f"key = {json.dumps(str(key or 'KEY'))}"]
    if role == "server":
        return ["in server.toml: [tls]", *here, f"ca = {json.dumps(str(ca))}"]
    file = "site.toml" if role == "site" else "client.toml"
    return [
        f"give certificate, key and `{ca.name}` to the {role}, then in {file}:",
        *here,
        f"ca = {json.dumps(str(ca))}",
    ]


def show_certs(args: Namespace) -> int:
    """What certificates say, and how long they last."""
    from tidemill.client.authority import describe

    place = _place(args)
    paths = args.files or sorted(place.glob("*.pem"))
    found = [describe(path) for path in paths]
    now_us = clock.now_us()
    ends = [each.until_us - now_us for each in found]
    if args.json:
        show_json(found)
    else:
        if not found:
            say(f"`{place}` holds no certificate")
        for each, left_us in zip(found, ends, strict=True):
            show(f"{each.path}")
            show(f"  subject  {each.subject}")
            show(f"  role     {each.role or 'none'}")
            show(f"  issuer   {each.issuer}")
            show(f"  serial   {each.serial}")
            show(f"  hosts    {', '.join(each.hosts) or 'none'}")
            show(f"  ends     {clock.utc_text(each.until_us)} ({_left(left_us)})")
    return 1 if any(left_us < args.soon * 1_000_000 for left_us in ends) else 0


def _left(left_us: int) -> str:
    if left_us <= 0:
        return "it has expired"
    days = left_us // 86_400_000_000
    return f"in {days} days" if days else f"in {left_us // 3_600_000_000} hours"


def revoke(args: Namespace) -> int:
    """Add certificates to the list of what is no longer believed, and to the CA's CRL."""
    from tidemill.client.authority import Authority

    place = _place(args)
    listed = args.list or place / "revoked.txt"
    lines = Authority.read(place).revoke(args.files, listed)
    if args.json:
        show_json({"list": str(listed), "revoked": lines})
        return 0
    for line in lines:
        show(line)
    hint(
        f"the server reads `revoked.txt` in its own directory: copy `{listed}` there, or name that file with --list"
    )
    return 0


def _place(args: Namespace) -> Path:
    from tidemill.client.home import home_dir

    named: Path | None = args.dir
    return (named or home_dir(args.home) / "certs").absolute()


COMMANDS = {
    "certs init": Command(define_init, init, "tidemill certs init --dir ca", talks=False),
    "certs issue": Command(define_issue, issue, "tidemill certs issue site lrz --dir ca", talks=False),
    "certs show": Command(define_show, show_certs, "tidemill certs show lrz.pem", talks=False),
    "certs revoke": Command(define_revoke, revoke, "tidemill certs revoke lrz.pem --dir ca", talks=False),
}
