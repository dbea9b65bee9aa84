"""How much longer than the protocol's own client do we take for a file, with everything that we do besides?

For each scheme a real server on the loopback (scripts/), a file of 1 GB, and turn by turn three ways to move it:

    `client`  the protocol's own client alone: cp, curl, xrdcp, globus-url-copy, boto3 as it comes
    `checked` the same, set to compare checksums by its own means (curl: with sha256sum; boto3 always does)
    `ours`    allow-list, size, temporary name, the server's checksum compared with that of what came, rename: what the
              site does until it lets the next move begin
    `summed`  that, and the SHA-256 by which nodes exchange an input, which is made afterwards of what comes that fast

`ratio` is Tidemill's time over the client's, `checked_ratio` Tidemill's over the checked client's, `summed_ratio` the
summed time over the client's; `put_...` the same for the way out, where the site knows the file's SHA-256 and Adler-32
since it was built. An httpd returns no checksum: what was put there is read back, so all bytes go twice;
`put_unread_ratio` is without (READ_BACK off). Each is the fastest of several rounds. The disk is not waited for:
neither clients nor Tidemill sync, and what the turn before has made is removed before the clock starts.
`davs` is XRootD's HTTPS, which returns checksums as grid storage does.

`bound_s`: processor seconds of our side and the server together over the number of cores: where client, server and
checksums share few cores, Tidemill cannot take less, whatever runs in parallel. On a data-transfer node the server is
another machine. `client_bound_s` is the same of the client.

`small_files_per_s`: 10,000 outputs of 10 kB in a pilot's bundle become one file at an https:// place, joined and
compared.

    python bench/transfer.py --json [--mb 1000] [--rounds 3] [--schemes file,https,davs,root,gsiftp,s3]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.contract.transfer_world import Server
from tests.timing import timing

from tidemill.config.site import SiteConfig
from tidemill.model.job import JobSpec, Output, OutputKind
from tidemill.site.data.moves import LocalMoves, MovesPendingError
from tidemill.site.data.outputs import Deliverer, OutputDelivery
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.remote_outputs import Departures
from tidemill.site.state.site_state import KeptPart
from tidemill.transfer.checksum import sums
from tidemill.transfer.credentials import environment
from tidemill.transfer.file import FileTransfer, Roots
from tidemill.transfer.mover import Moved
from tidemill.transfer.patience import MovePatience
from tidemill.wire.node import OutputRef

SIZE_MAX = 100_000_000_000
SETTINGS = MovePatience()
SMALL_FILES = 10_000
SMALL_BYTES = 10_000
CORES = len(os.sched_getaffinity(0))
CHECKED_XRDCP = ("--cksum", "adler32:source")
Act = Callable[[], object]


class Way(NamedTuple):
    """What is measured, and the file that it makes anew each time."""

    act: Act
    target: Path | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme; seconds are those of the fastest round."""

    scheme: str
    client: str
    client_s: float
    ours_s: float
    ratio: float
    checked_ratio: float | None = None
    summed_ratio: float | None = None
    client_bound_s: float
    bound_s: float
    put_client_s: float | None = None
    put_ours_s: float | None = None
    put_ratio: float | None = None
    put_checked_ratio: float | None = None
    put_unread_ratio: float | None = None
    put_client_bound_s: float | None = None
    put_bound_s: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed."""

    mb: int
    rounds: int
    cores: int
    schemes: list[Row]
    small_files_per_s: float | None


class Taken(NamedTuple):
    """What a move took: seconds, and processor seconds of it and of the server."""

    seconds: float
    cpu_s: float

    @property
    def bound_s(self) -> float:
        return self.cpu_s / CORES


def cpu_s(server: Server | None) -> float:
    """Used so far by us, by clients that ended, and by the server."""
    mine = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine + (0.0 if server is None else server.cpu_s())


def measure_one(way: Way, server: Server | None) -> Taken:
    if way.target is not None:
        way.target.unlink(missing_ok=True)  # that of the round before: takes over a second on some disks
    os.sync()  # what the turn before left to be written must not count here
    used_s, began_s = cpu_s(server), time.perf_counter()
    way.act()
    return Taken(time.perf_counter() - began_s, cpu_s(server) - used_s)


def in_turn(rounds: int, ways: dict[str, Way], server: Server | None = None) -> dict[str, Taken]:
    """The fastest of each, measured turn by turn after one round that warms up all."""
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items() if number % 2 else reversed(ways.items()):
            one = measure_one(way, server)
            if number:
                taken[name].append(one)
    return {name: min(each) for name, each in taken.items()}


def ratio(taken: dict[str, Taken], one: str, other: str) -> float | None:
    return taken[one].seconds / taken[other].seconds if one in taken and other in taken else None


def run(*words: str, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} ended with status {done.returncode}: {done.stderr[-1000:]}")


def noise(path: Path, mb: int) -> Path:
    with path.open("wb") as file:
        for _ in range(mb):
            file.write(os.urandom(1_000_000))
    return path


def bench_file(folder: Path, mb: int, rounds: int) -> Row:
    source = noise(folder / "source", mb)
    transfer = FileTransfer(Roots([folder]), size_max=SIZE_MAX)
    theirs, ours = folder / "theirs", folder / "ours"

    def copy() -> None:
        transfer.fetch(transfer.stat(source.as_uri()), ours, sha256=None)

    def copy_and_sum() -> None:
        copy()
        sums(ours, {"sha256"})

    cp = partial(run, "cp", str(source), str(theirs))
    ways = {"client": Way(cp, theirs), "ours": Way(copy, ours), "summed": Way(copy_and_sum, ours)}
    taken = in_turn(rounds, ways)
    for path in (source, theirs, ours):
        path.unlink()
    return row("file", "cp", taken, {})


def row(scheme: str, word: str, come: dict[str, Taken], go: dict[str, Taken]) -> Row:
    """`come` and `go`: what was taken for inputs and outputs."""
    return Row(
        scheme=scheme,
        client=word,
        client_s=come["client"].seconds,
        ours_s=come["ours"].seconds,
        ratio=come["ours"].seconds / come["client"].seconds,
        checked_ratio=ratio(come, "ours", "checked"),
        summed_ratio=ratio(come, "summed", "client"),
        client_bound_s=come["client"].bound_s,
        bound_s=come["ours"].bound_s,
        put_client_s=go["client"].seconds if go else None,
        put_ours_s=go["ours"].seconds if go else None,
        put_ratio=ratio(go, "ours", "client"),
        put_checked_ratio=ratio(go, "ours", "checked"),
        put_unread_ratio=ratio(go, "unread", "client"),
        put_client_bound_s=go["client"].bound_s if go else None,
        put_bound_s=go["ours"].bound_s if go else None,
    )


def client_words(server: Server, source: str, target: str, *, checked: bool) -> list[str]:
    """The protocol's own client, from a URL or path to another; `checked`: with checksums, by its own means."""
    match server.scheme:
        case "https" | "davs":
            source, target = (each.replace("davs://", "https://") for each in (source, target))
            curl = ["curl", "--silent", "--show-error", "--fail", "--cacert", str(server.endpoint.ca)]
            is_out = not source.startswith("http")
            words = [*curl, *(["--upload-file", source, target] if is_out else ["--output", target, source])]
            if not checked:
                return words
            back = shlex.join([*curl, target]) + " | sha256sum" if is_out else f"sha256sum {target}"
            return ["/bin/sh", "-c", f"{shlex.join(words)} && {back}"]
        case "root":
            return ["xrdcp", "--nopbar", "--force", *(CHECKED_XRDCP if checked else []), source, target]
        case _:
            ends = [each if "://" in each else f"file://{each}" for each in (source, target)]
            more = ["-verify-checksum"] if checked else []
            return ["globus-url-copy", "-fast", "-p", str(server.endpoint.connections), *more, *ends]


def client(server: Server, name: str, theirs: Path) -> dict[str, tuple[str, Act, Act]]:
    """By what it does (`client`, `checked`): the client's name, and what brings and puts a file with it."""
    url, out = server.address(name), server.address("theirs")
    if server.scheme == "s3":
        s3 = open_s3(server)
        return {
            "client": (
                "boto3",
                lambda: s3.download_file("tests", name, str(theirs)),
                lambda: s3.upload_file(str(theirs), "tests", "theirs"),
            )
        }
    environ = environment(server.endpoint)
    found: dict[str, tuple[str, Act, Act]] = {}
    for key in ("client", "checked"):
        get = client_words(server, url, str(theirs), checked=key == "checked")
        put = client_words(server, str(theirs), out, checked=key == "checked")
        found[key] = (get[0], partial(run, *get, environ=environ), partial(run, *put, environ=environ))
    return found


def open_s3(server: Server) -> Any:
    import boto3
    import botocore.session

    core = botocore.session.Session()
    core.set_config_variable("credentials_file", str(server.endpoint.credentials_file))
    return boto3.session.Session(botocore_session=core).client(
        "s3", endpoint_url=server.endpoint.service, region_name="us-east-1"
    )


def bench_server(server: Server, folder: Path, mb: int, rounds: int) -> Row:
    if (
        server.scheme == "s3"
    ):  # by the service itself: it makes the MD5 anew with each request for what it does not know
        open_s3(server).upload_file(str(noise(folder / "theirs", mb)), "tests", "source")
    else:
        server.own(noise(server.data / "source", mb))
    theirs, ours = folder / "theirs", folder / "ours"
    mover = server.mover(SETTINGS, size_max=SIZE_MAX)
    clients = client(server, "source", theirs)
    known: dict[str, str] = {}

    def bring() -> Moved:
        return mover.get(server.address("source"), ours, mover.watch())

    def bring_and_sum() -> None:
        mover.sum_up(ours, bring(), mover.watch())

    def send() -> None:
        mover.put(ours, server.address("ours"), mover.watch(), known=known)

    def send_unread() -> None:
        with timing(transfer={"READ_BACK": False}):
            send()

    gets = {name: Way(get, theirs) for name, (_, get, _) in clients.items()}
    gets |= {"ours": Way(bring, ours), "summed": Way(bring_and_sum, ours)}
    come = in_turn(rounds, gets, server)
    known |= sums(ours, {"sha256", "adler32"})
    puts = {name: Way(put, server.data / "theirs") for name, (_, _, put) in clients.items()}
    puts["ours"] = Way(send, server.data / "ours")
    if server.scheme == "https":
        puts["unread"] = Way(send_unread, server.data / "ours")
    go = in_turn(rounds, puts, server)
    return row(server.scheme, clients["client"][0], come, go)


def bench_small(server: Server, folder: Path) -> float:
    """Outputs a second, from a pilot's bundle to their one file at the far end."""
    bundle = folder / "fleets" / "e1-1" / "bundle"
    bundle.mkdir(parents=True)
    parts: list[KeptPart] = []
    with (bundle / "p.tar").open("wb") as file:
        for number in range(SMALL_FILES):
            content = os.urandom(SMALL_BYTES)
            digest = hashlib.sha256(content).hexdigest()
            ref = OutputRef(
                name="hits", bundle="p.tar", offset=file.tell(), length=SMALL_BYTES, sha256=digest
            )
            parts.append(KeptPart(number, 1, "e1-1", [ref]))
            file.write(content)
    here = LocalMoves(SiteConfig(name="bench", server="unix:/x", endpoints=[server.endpoint]))
    deliverer = Deliverer(
        folder / "fleets",
        OwnedPlaces(Roots([]), folder / "out"),
        bytes_max=1 << 40,
        departures=Departures(folder / "departures", here),
    )
    output = Output(name="hits", path="hits.bin", kind=OutputKind.EACH, url=server.address("small.tar"))
    delivery = OutputDelivery(
        job=1,
        campaign="bench",
        seed_base=1,
        spec=JobSpec(app="a", events=SMALL_FILES),
        app_digest="",
        outputs=[output],
        parts=parts,
        merged={},
        done=f"0-{SMALL_FILES - 1}",
    )
    try:
        spent_s = measure_one(Way(partial(deliver, deliverer, delivery)), server).seconds
    finally:
        here.close()
    return SMALL_FILES / spent_s


def deliver(deliverer: Deliverer, delivery: OutputDelivery) -> None:
    while True:
        try:
            deliverer.deliver(delivery)
        except MovesPendingError as error:
            while not deliverer.is_done(error.awaits):
                time.sleep(0.005)
        else:
            return


@contextmanager
def served(scheme: str, folder: Path) -> Iterator[Server]:
    place = folder / scheme
    place.mkdir(mode=0o711)
    server = Server(scheme, place)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(place, ignore_errors=True)


def tell(row: Row) -> None:
    """What is known already, for those who wait."""
    print(msgspec.json.encode(row).decode(), file=sys.stderr, flush=True)


def measure(schemes: list[str], mb: int, rounds: int) -> Result:
    rows: list[Row] = []
    small: float | None = None
    with tempfile.TemporaryDirectory(prefix="tm-bench-", dir="/tmp") as text:
        folder = Path(text)
        folder.chmod(0o711)
        for scheme in schemes:
            if scheme == "file":
                rows.append(bench_file(folder, mb, rounds))
                tell(rows[-1])
                continue
            with served(scheme, folder) as server:
                rows.append(bench_server(server, folder, mb, rounds))
                tell(rows[-1])
                if scheme == "https":
                    small = bench_small(server, folder)
    return Result(mb=mb, rounds=rounds, cores=CORES, schemes=rows, small_files_per_s=small)


def show(result: Result) -> None:
    print(f"{result.mb} MB, fastest of {result.rounds} rounds, turn by turn, {result.cores} cores\n")
    heads = ("client s", "tidemill s", "ratio", "checked", "summed", "bound s")
    print(f"{'scheme':8} {'client':16} {'way':4}" + "".join(f"{each:>10}" for each in heads))
    for each in result.schemes:
        come = (each.client_s, each.ours_s, each.ratio, each.checked_ratio, each.summed_ratio, each.bound_s)
        go = (
            each.put_client_s,
            each.put_ours_s,
            each.put_ratio,
            each.put_checked_ratio,
            None,
            each.put_bound_s,
        )
        for way, figures in (("in", come), ("out", go)) if go[0] is not None else (("in", come),):
            cells = "".join(f"{'-' if one is None else format(one, '.2f'):>10}" for one in figures)
            print(f"{each.scheme:8} {each.client:16} {way:4}{cells}")
        if each.put_unread_ratio is not None:
            print(f"{'':30}without reading back: {each.put_unread_ratio:.2f}")
    print("\nbound s: processor seconds of our side and the server, over the cores")
    if result.small_files_per_s is not None:
        print(
            f"\n{SMALL_FILES} files of {SMALL_BYTES} bytes by a bundle: {result.small_files_per_s:.0f} a second"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--mb", type=int, default=1000, help="size of the file (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--schemes", default="file,https,davs,root,gsiftp,s3", help="which (default: all)")
    args = parser.parse_args()
    result = measure(args.schemes.split(","), args.mb, args.rounds)
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)


if __name__ == "__main__":
    main()
