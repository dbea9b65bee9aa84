"""How verbs declare themselves and their options; what a wrong option is answered with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tidemill.cli.terminal import show_lines
from tidemill.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tidemill.model.retry.growth import GrowthSpan

RETRY_S = 2.0  #: how long a person waits for a server that restarts; following a campaign waits longer


class Command(NamedTuple):
    """A verb: its options, what it does (returns the exit code), one example, and whether it talks to a server."""

    define: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]
    example: str
    talks: bool = True


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, with the nearest legal option as hint."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of printing and exiting."""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        if unknown and unknown[1].startswith("-"):
            name = unknown[1].partition("=")[0]
            hint = did_you_mean(name, self.option_names())
            raise ConfigError(f"`{self.prog}` has no option `{name}`", hint=hint)
        if unknown:
            raise ConfigError(
                f"`{self.prog}` has no use for `{unknown[1]}`",
                hint=f"`{self.prog} --help` shows its arguments",
            )
        raise ConfigError(f"`{self.prog}`: {message}", hint=f"`{self.prog} --help` shows its options")

    def _print_message(self, message: str, file: object = None) -> None:
        """Print help like other data: argparse itself ignores a stdout that cannot be written."""
        show_lines(message.removesuffix("\n"))

    def option_names(self) -> list[str]:
        """The long options."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


def help_of(action: argparse.Action) -> str:
    """What an option is for, as people read it: argparse has a per cent sign written twice."""
    return (action.help or "").replace("%%", "%")


def add_common(parser: Parser, *, talks: bool) -> None:
    """Options that every verb has."""
    group = parser.add_argument_group("common options")
    group.add_argument("--json", action="store_true", help="print data as JSON on stdout")
    group.add_argument(
        "--home",
        type=Path,
        metavar="DIR",
        help="your Tidemill directory, mode 0700 (default: $TIDEMILL_HOME or ~/.local/state/tidemill)",
    )
    if talks:
        group.add_argument(
            "--server",
            metavar="ADDRESS",
            help="`unix:/path/api.sock`, `https://host:port` or `http://host:port` "
            "(default: $TIDEMILL_SERVER, HOME/client.toml, or the server of your `tidemill up`)",
        )
        group.add_argument(
            "--secret-file",
            type=Path,
            metavar="FILE",
            help="file, mode 0600, with the server's secret (default: $TIDEMILL_SECRET_FILE or HOME/client.toml)",
        )


def option_type(parse: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """A type for argparse whose errors carry the message of the ValueError."""

    def typed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    typed.__name__ = name
    return typed


def _duration(text: str) -> int:
    from tidemill.clock import parse_duration_s

    seconds = parse_duration_s(text)
    if seconds < 1:
        raise ValueError(f"`{text}` is shorter than a second")
    return seconds


def _memory_span(text: str) -> GrowthSpan:
    from tidemill.model.retry.growth import parse_memory_mb, span_of

    return span_of(text, parse_memory_mb)


def _size_mb(text: str) -> int:
    from tidemill.model.retry.growth import parse_memory_mb

    return parse_memory_mb(text)


def _wall_span(text: str) -> GrowthSpan:
    from tidemill.model.retry.growth import span_of

    return span_of(text, _duration)


def _count(text: str) -> int:
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"`{text}` is not a whole number") from None
    if number < 1:
        raise ValueError(f"`{text}` is less than 1")
    return number


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:6]) <= 65535:
        raise ValueError(f"`{text[:20]}` is not a port: ports are 1 to 65535")
    return int(text)


def _time(text: str) -> int:
    """Microseconds since 1970: `2026-11-20`, `2026-11-20T12:00Z`, or an age such as `2d`."""
    from datetime import UTC, datetime

    from tidemill import clock

    try:
        return clock.now_us() - clock.parse_duration_s(text) * 1_000_000
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"`{text}` is neither a time (`2026-11-20T12:00Z`) nor an age (`2d`, `90m`)"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _gpus(text: str) -> dict[str, int]:
    from tidemill.model.devices import parse_gpus

    return parse_gpus(text)


duration = option_type(_duration, "duration")
gpus = option_type(_gpus, "gpus")
memory_span = option_type(_memory_span, "memory")
size_mb = option_type(_size_mb, "size")
wall_span = option_type(_wall_span, "duration")
count = option_type(_count, "count")
port = option_type(_port, "port")
moment = option_type(_time, "time")


def client_of(args: argparse.Namespace) -> Any:
    """The client that the common options ask for (a `tidemill.client.Client`)."""
    from tidemill.client.client import Client

    return Client(args.server, secret_file=args.secret_file, home=args.home, retry_s=RETRY_S)


def zone_of(name: str | None) -> Any:
    """A time zone (a `datetime.tzinfo`) by its name, None of None. Raises ConfigError."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"`{name}` is not a time zone that this machine knows", hint="such as Europe/Berlin, or UTC"
        ) from error


def count_or_zero(text: str) -> int:
    """A count that may be 0, or the number of an event."""
    if re.fullmatch(r"-[0-9]+", text):
        raise argparse.ArgumentTypeError(f"`{text}`: it must be 0 or more")
    return 0 if text == "0" else int(count(text))


def define_raw(parser: Parser) -> None:
    """Define the option of every verb that passes on what a payload wrote."""
    parser.add_argument(
        "--raw",
        action="store_true",
        help="pass a payload's control characters to the terminal (default: they are shown as \\uXXXX; "
        "files and pipes get every byte as it is)",
    )


def define_log_format(parser: Parser) -> None:
    """Define the option of every verb that logs."""
    parser.add_argument(
        "--log-format",
        choices=("json", "text"),
        default="json",
        help="one JSON object a line, or one line for people (default: json)",
    )
