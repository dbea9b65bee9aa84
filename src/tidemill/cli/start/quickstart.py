"""`tidemill quickstart`: the main job on this machine, in a minute: server, site, a campaign of real events, report."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock, extensions
from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.terminal import flush, hint, say, show_json
from tidemill.errors import ConfigError, SiteError, install_hint
from tidemill.files import make_readable
from tidemill.model.quantities import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.model.job import JobSpec

EVENTS = 2000
JOBS = 3  #: generation jobs; each is followed by an analysis of its events
CAMPAIGN = "quickstart"
NEEDED = ("pythia8mc", "pyhepmc", "uproot", "hist", "numpy")
READY_S = 30.0
FREE_BYTES_MIN = 500_000_000  #: a run takes far less


def define(parser: Parser) -> None:
    """Options of `quickstart`."""
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("tidemill-quickstart"),
        metavar="DIR",
        help="outputs and report go there (default: ./tidemill-quickstart)",
    )
    parser.add_argument(
        "--events",
        type=count,
        default=EVENTS,
        metavar="N",
        help=f"collisions to generate (default: {EVENTS})",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the state in DIR/home: `tidemill up --home DIR/home` goes on with it",
    )


def run(args: Namespace) -> int:
    """Run the campaign and print its result."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the example needs packages that are not installed: {', '.join(missing)}",
            hint=f"{install_hint('examples')}; without them try `tidemill run --events 20 -- echo event {{event}}`",
        )
    place = args.dir.absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C: nothing is left behind
    started_s = clock.monotonic_s()
    with _home(place, keep=args.keep) as home:
        client = _start(home)
        say(f"a server and a site run on this machine ({duration_text(clock.monotonic_s() - started_s)})")
        name, failed = _campaign(client, place, events=args.events, quiet=args.json)
        data = _report(client, home, place, name)
        if data is not None and not args.json:
            _verb(client, "report", tells=True)
    took = clock.monotonic_s() - started_s
    if args.json:
        show_json(
            {
                "report": None if data is None else str(place / "report.html"),
                "outputs": str(place / "out"),
                "data": data,
                "took_s": took,
            }
        )
    else:
        _print_summary(place, name, took=took, kept=args.keep, has_report=data is not None)
    return 1 if failed else 0


def _check_free(place: Path, *, hint: str, serves: bool) -> None:
    """Raises SiteError if a directory, or the one that it will be in, has too little free space. `serves`: a server has
    its database there, which takes no jobs below a floor of its own."""
    from tidemill.server.core.limits.storage import floor_bytes

    there = next(each for each in (place, *place.parents) if each.exists())
    least = FREE_BYTES_MIN + (floor_bytes(there) if serves else 0)
    if shutil.disk_usage(there).free < least:
        raise SiteError(f"less than {bytes_text(least)} are free at `{place}`", hint=hint, transient=False)


@contextmanager
def _home(place: Path, *, keep: bool) -> Iterator[Path]:
    """A home of this run alone; what was started there has ended when the block ends, whatever happened."""
    from tidemill.cli.start.up import stop_up
    from tidemill.client.home import make_home

    _check_free(place, hint="name another place with --dir", serves=keep)
    if not keep:
        _check_free(Path(tempfile.gettempdir()), hint="set TMPDIR to another directory", serves=True)
    try:
        make_readable(place)
    except OSError as error:
        raise ConfigError(
            f"failed to create `{place}`: {error.strerror}", hint="name another with --dir"
        ) from error
    home = place / "home" if keep else Path(tempfile.mkdtemp(prefix="tidemill-"))
    make_home(home)
    try:
        yield home
    finally:
        stop_up(home)
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def _start(home: Path) -> Client:
    from tidemill import examples
    from tidemill.cli.start.up import start_detached
    from tidemill.client.client import Client

    wanted = set(examples.install(home / "site" / "apps"))
    (home / "site").chmod(0o700)
    up = start_detached(home, tied=True)
    client = Client(up.address)
    deadline = clock.monotonic_s() + READY_S
    while missing := wanted - {each.app.name for each in client.applications()}:
        if clock.monotonic_s() > deadline:
            raise SiteError(
                f"the site does not offer: {', '.join(sorted(missing))}", hint=f"see {home}/site.log"
            )
        clock.sleep_s(0.05)
    return client


def _campaign(client: Client, place: Path, *, events: int, quiet: bool) -> tuple[str, bool]:
    """Submit, follow; the campaign's name, and whether a job failed."""
    from tidemill.cli.progress import Progress
    from tidemill.client.client import Submission, new_campaign

    campaign = new_campaign(CAMPAIGN)
    jobs = min(JOBS, events)
    sizes = [events // jobs + (1 if k < events % jobs else 0) for k in range(jobs)]
    output = str(place / "out")
    generated = client.submit(
        [_generate(k, size, output) for k, size in enumerate(sizes, start=1)], campaign=campaign
    )
    analysed = client.submit(
        [_analyse(k, job, output) for k, job in enumerate(generated.jobs, start=1)], campaign=campaign
    )
    say(f"{jobs} jobs generate {count_text(events)} collisions with Pythia 8, {jobs} more analyse them")
    sent = Submission(campaign=campaign, jobs=generated.jobs + analysed.jobs, repeated=False)
    try:
        with Progress(what="quickstart", quiet=quiet) as progress:
            rows = client.wait(sent, on_progress=progress)
    except KeyboardInterrupt:
        client.cancel(campaign=campaign, reason="interrupted by Ctrl-C")
        raise
    for row in rows:
        if row.state != "COMPLETED":
            say(f"job {row.id} ({row.name}) is {row.state}: {row.reason}")
    return campaign, any(row.state != "COMPLETED" for row in rows)


def _generate(number: int, events: int, output: str) -> JobSpec:
    from tidemill.model.job import JobSpec

    return JobSpec(
        app="pythia8", name=f"zmumu-{number}", events=events, params={"process": "zmumu"}, output_dir=output
    )


def _analyse(number: int, job: int, output: str) -> JobSpec:
    from tidemill.model.job import Input, JobSpec

    inputs = [Input(name="events", url=f"job:{job}/events")]
    return JobSpec(
        app="zpeak", name=f"zpeak-{number}", inputs=inputs, after=[job], output_dir=output,
        params={"bins": 100},  # of 2 GeV
    )  # fmt: skip


def _report(client: Client, home: Path, place: Path, name: str) -> object:
    """Have `tidemill report` write its page, with what the campaign was for; what it says as JSON. None where the
    extension that has this verb is not installed."""
    from tidemill.cli.start import muon_pairs
    from tidemill.cli.verbs import VERBS

    if "report" not in VERBS:
        missing = extensions.missing(extensions.VERBS, "report")
        say("no report" + ("" if missing is None else f": {missing.message}; {missing.hint}"))
        return None
    histogram = muon_pairs.read(sorted((place / "out" / name).glob("*.root")))
    events = sum(each.events_done for each in client.jobs(campaign=name) if each.name.startswith("zmumu-"))
    part = home / "peak.html"
    part.write_text("" if histogram is None else muon_pairs.part(histogram, events=events), encoding="utf-8")
    told = _verb(client, "report", "--html", str(place / "report.html"), "--part", str(part), "--json")
    part.unlink()
    return json.loads(told)


def _verb(client: Client, verb: str, *words: str, tells: bool = False) -> str:
    """What a verb prints, asked of this run's server; with `tells` it prints for itself. Raises SiteError."""
    flush()
    to = None if tells else subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidemill.cli.main", verb, "--server", client.place.address, *words],
        stdin=subprocess.DEVNULL, stdout=to, stderr=to, text=True, encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        why = "" if tells else f": {done.stderr.strip() or done.stdout.strip()}"
        raise SiteError(f"`tidemill {verb}` failed{why}", transient=False)
    return "" if tells else done.stdout


def _print_summary(place: Path, name: str, *, took: float, kept: bool, has_report: bool) -> None:
    say("")
    for path in sorted((place / "out").rglob("*")):
        if path.is_file() and not path.name.startswith((".", "manifest-")):
            say(f"    {_short(path)}  {bytes_text(path.stat().st_size)}")
    _tell_physics(place / "out" / name)
    if has_report:
        say(f"report: {_short(place / 'report.html')}")
    if kept:
        say(f"state:  {_short(place / 'home')}")
    say(f"all of it in {duration_text(took)}; everything that was started has ended")
    hint(
        "next: `tidemill run --events 20 -- echo event {event}`, or `tidemill up` to keep a server and a site"
    )


def _tell_physics(directory: Path) -> None:
    """Where the muon pairs' mass peaks, as the analysis jobs found it: what the campaign was for."""
    found = [json.loads(path.read_text()) for path in directory.glob("*-summary.json")]
    pairs = sum(each["pairs"] for each in found)
    if pairs:
        peak = sum(each["peak_gev"] * each["pairs"] for each in found) / pairs
        say(f"muon pairs: {count_text(pairs)}, their mass peaks at {peak:.1f} GeV (the Z boson's is 91.2)")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


COMMANDS = {"quickstart": Command(define, run, "tidemill quickstart --events 10000", talks=False)}
