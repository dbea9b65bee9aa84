"""`tidemill cache init`: a commented cache.toml, a checked xrootd.cfg, and a systemd user unit."""

from __future__ import annotations

import json
import re
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, option_type, port
from tidemill.cli.configfile import commented
from tidemill.cli.findings import wrapped
from tidemill.cli.terminal import say_lines, show, show_json
from tidemill.errors import ConfigError
from tidemill.files import write_durable, write_new
from tidemill_caches import constants
from tidemill_caches.cli.location import cache_directory, define_directory

if TYPE_CHECKING:
    from tidemill_caches.settings import CacheConfig

TITLE = "A block cache in front of far storage, written by `tidemill cache init`"
SPACE_SHARE = 0.8
"""Of what is free on the disk now, if no size is given."""
FILES_FEW = 1000
"""With fewer open files than this, too few for some hundred payloads, `init` says so."""
UNIT = """# Written by `tidemill cache init`. As the user to whom the cache belongs:
#   systemctl --user enable --now {path}; loginctl enable-linger
[Unit]
Description=Tidemill block cache in {directory}
After=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
Type=simple
ExecStart={program} cache run {directory}
Restart=on-failure
RestartSec=5
# 2: usage or configuration is wrong. Starting again would not help.
RestartPreventExitStatus=2
TimeoutStopSec=30
UMask=0077
LimitNOFILE={descriptors}
NoNewPrivileges=yes
RestrictRealtime=yes
LockPersonality=yes

[Install]
WantedBy=default.target
"""


def _bytes(text: str) -> int:
    from tidemill.config import parse_size

    size = parse_size(text)
    if size < 1:
        raise ValueError(f"`{text}` is less than a byte")
    return size


size = option_type(_bytes, "size")


def define(parser: Parser) -> None:
    """Options of `cache init`."""
    define_directory(parser)
    parser.add_argument(
        "--origin",
        action="append",
        required=True,
        metavar="URL",
        help="what the cache may read, such as `root://host.example:1094//store/`; may be repeated (required)",
    )
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="HOST",
        help="a host that may read, such as `*.site.example` or `10.1.*`; may be repeated (default: this host only)",
    )
    parser.add_argument(
        "--port", type=port, default=1094, metavar="N", help="port for clients (default: 1094)"
    )
    parser.add_argument(
        "--size",
        type=size,
        metavar="SIZE",
        help="bytes of cached files, such as `2TB` (default: 80 %% of what is free)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="directory of the cached files, on a local disk (default: DIR/data)",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="proxy certificate to show to origins (default: none)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with a bearer token to show to origins (default: none)",
    )
    parser.add_argument(
        "--federation",
        action="store_true",
        help="the origins serve the same file under the same path, and may redirect the cache to servers that are not "
        "listed (default: their paths must not overlap, and no redirect is followed)",
    )
    parser.add_argument(
        "--no-prefetch", action="store_true", help="do not read ahead: for sparse reads (default: 10 blocks)"
    )


def init(args: Namespace) -> int:
    """Check the arguments, write the configuration, print the next step."""
    from tidemill import config
    from tidemill_caches.engine import directory as places
    from tidemill_caches.engine import limits
    from tidemill_caches.engine.configuration import check
    from tidemill_caches.engine.supervisor import check_host
    from tidemill_caches.settings import CacheConfig

    directory = cache_directory(args)
    path = directory / places.CONFIG
    if places.is_there(path):
        raise ConfigError(f"`{path}` exists already", hint="edit it; or name another directory")
    check_host()
    text = draw(args, directory)
    read = config.loads(text, CacheConfig, source=path)
    check(read)
    places.check_credentials(read)
    unit = directory / unit_name(directory)
    with places.removed_if_refused(directory, read, unit):
        places.make_parts(directory)
        data = places.make_data(directory, read)
        generated = places.write_generated(directory, read)
        program = shutil.which(sys.argv[0]) or sys.argv[0]
        made = UNIT.format(
            path=unit,
            directory=directory,
            program=Path(program).absolute(),
            descriptors=min(limits.needed(constants.FILES_OPEN_MAX), limits.hard_limit()),
        )
        write_durable(unit, made.encode(), mode=0o644, failure=ConfigError)
        write_new(path, text.encode(), failure=ConfigError)
    if args.json:
        show_json(
            {"cache": directory, "data": data, "port": read.port, "configuration": generated, "unit": unit}
        )
        return 0
    show(str(path))
    for head, told in next_steps(read, directory, unit):
        say_lines(wrapped(f"{head:<8} ", told))
    return 0


def draw(args: Namespace, directory: Path) -> str:
    """The cache.toml of the command line."""
    from tidemill_caches.settings import CacheConfig

    most, why = args.size, "as you said"
    if most is None:
        most, why = _free_share(args.data or directory)
    values = {"origins": json.dumps(args.origin), "space.max": str(most), "port": str(args.port)}
    origins = {"space.max": why}
    if args.client:
        values["clients"] = json.dumps(args.client)
    if args.data is not None:
        values["data"] = json.dumps(str(args.data.expanduser().absolute()))
    if args.federation:
        values["federation"] = "true"
    if args.no_prefetch:
        values["prefetch_blocks"] = "0"
    for key, path in (("certificate", args.certificate), ("token_file", args.token_file)):
        if path is not None:
            values[f"credential.{key}"] = json.dumps(str(path.expanduser().absolute()))
    return commented(CacheConfig, title=TITLE, values=values, origins=origins)


def _free_share(place: Path) -> tuple[int, str]:
    """The size of a cache there, and where it comes from. Raises SiteError where the disk is full."""
    from tidemill_caches.engine.directory import check_free

    there = place.expanduser().absolute()
    while not there.exists():
        there = there.parent
    usage = shutil.disk_usage(there)
    check_free(there, usage.free, usage.total)
    free = usage.free
    return max(1, int(free * SPACE_SHARE)), f"{SPACE_SHARE:.0%} of what is free below {there} now"


def unit_name(directory: Path) -> str:
    """The name of the unit of a cache directory: others of the same user have others."""
    return f"tidemill-cache-{re.sub('[^A-Za-z0-9]+', '-', directory.name).strip('-') or 'x'}.service"


def next_steps(read: CacheConfig, directory: Path, unit: Path) -> list[tuple[str, str]]:
    """What to do next: (head, text)."""
    from tidemill_caches.engine import limits

    clients = ", ".join(read.clients)
    hard = limits.hard_limit()
    few = f"this system allows {hard}: {limits.files_possible(hard)} files can be open; or {limits.RAISE}"
    return [
        *([("limit", few)] if limits.files_possible(hard) < FILES_FEW else []),
        (
            "clients",
            f"{clients}, and this host"
            if clients
            else "this host only: `clients` in cache.toml names others",
        ),
        ("try", f"`tidemill cache run {directory}`; in another terminal `tidemill cache status {directory}`"),
        ("keep", f"`systemctl --user enable --now {unit}`, and `loginctl enable-linger`"),
    ]


COMMANDS = {
    "cache init": Command(
        define,
        init,
        "tidemill cache init --origin root://storage.example:1094//store/ --client '*.site.example' --size 2TB",
        talks=False,
    )
}
