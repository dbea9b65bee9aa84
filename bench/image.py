"""What do starts of real software cost a shared file system, directly and out of an image? Prints one JSON object.

    bench/image.py --json [--starts 1,4,16] [--only direct|image|pilots]

The software is a Python with a scientific stack (uproot, awkward, hist, Pythia: the libraries of the examples), in an
environment as releases make them: ten more packages that it never uses stand before it in LD_LIBRARY_PATH and
PYTHONPATH. It lies on a slow shared file system (bench/slowfs: 1 ms for each metadata request, names that do not exist
are requested each time). An ordinary user starts each number of payloads at once, on a node that has never seen them.
`direct` and `image`, per number of starts: `shared_ops` (metadata requests that arrived there), `wall_s` (from nothing
to the last end), `shared_bytes`; `image` also `prepare_s`, once per node and part of `wall_s`: get the image into
memory and show it. The image is built from two traces of the payload for all of that file system, and lies there too;
`tidemill-node image run`, started by the ordinary user, shows it and starts the payloads in it.
`local_wall_s`: the same from the local disk, side by side. `untraced_works`: a module that no trace has seen can be
imported out of the image; `missing_fails`: names that do not exist fail as they do directly.
`pilots`: as many starts by a whole Tidemill of the ordinary user's, whose one node has a core for each, and two at
least: `direct`, `image` and `local_wall_s`; `wall_s` is from submitting a campaign to its end, so allocation, pilot and
preparation are in it. Agent and node are one machine here, but what the agent has checked of the image beforehand
spares the node nothing: it is forgotten before the campaign is submitted (names after 3 s, as NFS does). What the agent
asks for meanwhile counts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pilots import SITE, application, forget, run_starts
from bench.slowfs import mount
from bench.slowfs.mount import Reading, slowfs
from bench.software import PYTHON, copy_interpreter, make_dead_entries
from tests.worlds.home.world import Options, world

from tidemill.node.binary import find_binary

PACKAGES = ("uproot", "awkward", "hist", "pythia8mc")
DEAD_ENTRIES = 10
NOBODY = 65534
START_S = 300.0
FORGET_S = 3.0
"""acregmin of nfs(5)."""

MEMORY_MB = 400
"""Of a payload: 0.2 GB resident."""
PAYLOAD = """
import awkward, hist, numpy, pythia8mc, uproot
pythia = pythia8mc.Pythia("", False)
counts = hist.Hist.new.Reg(10, 0, 1).Double()
counts.fill(numpy.linspace(0, 1, 100))
print(len(awkward.Array([[1], [2, 3]])), int(counts.sum()))
"""
ALL_AT_ONCE = """
count=$1; shift; pids=
date +@%s%N
while [ $count -gt 0 ]; do "$@" & pids="$pids $!"; count=$((count - 1)); done
for pid in $pids; do wait $pid || exit 1; done
"""
MISSING = """
import importlib, os, sys
for attempt in ("os.stat(here + '/no/such')", "os.stat(here + '/site/numpy/no_such')", "open(here + '/lib/no_such')",
                "importlib.import_module('no_such_module')", "importlib.import_module('numpy.no_such')"):
    here = sys.argv[1]
    try:
        eval(attempt)
    except Exception as error:
        print(type(error).__name__, getattr(error, "errno", None))
    else:
        print("no error")
"""


def requirements(names: tuple[str, ...]) -> set[str]:
    """These distributions and all that they need here."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.split(r"[^A-Za-z0-9._-]", waiting.pop(), maxsplit=1)[0].lower().replace("_", "-")
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for other systems, or an extra
        if name not in found:
            found.add(name)
            waiting += [need for need in needs if "extra ==" not in need]
    return found


def make_software(top: Path) -> None:
    """The tree: an interpreter below `top`, its packages in `top/site`, ten unused ones in `top/external`."""
    copy_interpreter(top)
    for name in requirements(PACKAGES):
        for file in importlib.metadata.files(name) or []:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file():
                target = top / "site" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    make_dead_entries(top, DEAD_ENTRIES)
    (top / "payload.py").write_text(PAYLOAD)
    (top / "missing.py").write_text(MISSING)


NODE_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}


def environment(top: Path) -> dict[str, str]:
    """What its set-up script would export."""
    dead = [top / "external" / f"package{number}" for number in range(DEAD_ENTRIES)]
    return {
        "PATH": f"{top}/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join([*(f"{each}/lib" for each in dead), f"{top}/lib"]),
        "PYTHONPATH": ":".join([*(f"{each}/python" for each in dead), f"{top}/site"]),
        "HOME": "/tmp",
        "OPENBLAS_NUM_THREADS": "1",
    }


def with_environment(top: Path, command: list[str]) -> list[str]:
    """The command in the application's environment, which begins behind the programs of the bench: each of them would
    be linked by way of its search paths."""
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in environment(top).items()), *command]


def as_user() -> list[str]:
    """A prefix: run as an ordinary user."""
    if os.geteuid() != 0:
        return []
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    return ["setpriv", *ids, "--"]


def python_of(top: Path, *words: str) -> list[str]:
    return [str(top / "bin" / PYTHON), *words]


def start_all(count: int, command: list[str], env: dict[str, str]) -> float:
    """Start the command `count` times at once; seconds until the last has ended. One that fails ends the bench."""
    before = time.monotonic()
    running = [
        subprocess.Popen(
            command,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    ends = [process.communicate(timeout=START_S) for process in running]
    wall_s = time.monotonic() - before
    for process, (_, error) in zip(running, ends, strict=True):
        if process.returncode != 0:
            raise SystemExit(f"{command} ended with {process.returncode}: {error.decode()[-2000:]}")
    return wall_s


def said(command: list[str], env: dict[str, str]) -> str:
    """What a command prints, whatever its status."""
    done = subprocess.run(
        command, env=env, cwd="/", capture_output=True, text=True, timeout=START_S, check=False
    )
    return f"{done.returncode}\n{done.stdout}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are: `disk` on the local disk, `shared` where the slow file system shows the same; `sw` and `store`
    in both. `binary`: the program on the node."""

    disk: Path
    shared: Path
    binary: Path


def measure_local(place: Place, starts: list[int]) -> dict[str, float]:
    top = place.disk / "sw"
    command = [*as_user(), *with_environment(top, python_of(top, str(top / "payload.py")))]
    start_all(1, command, NODE_ENVIRONMENT)
    return {str(count): round(start_all(count, command, NODE_ENVIRONMENT), 2) for count in starts}


def measure_direct(place: Place, starts: list[int]) -> dict[str, dict[str, float]]:
    """Each number of starts with caches that know nothing."""
    found: dict[str, dict[str, float]] = {}
    top = place.shared / "sw"
    command = [*as_user(), *with_environment(top, python_of(top, str(top / "payload.py")))]
    for count in starts:
        with slowfs(place.disk, place.shared) as shared:
            before = shared.reading()
            wall_s = start_all(count, command, NODE_ENVIRONMENT)
            used = shared.reading() - before
        found[str(count)] = figures(used, wall_s)
    return found


def figures(used: Reading, wall_s: float) -> dict[str, float]:
    return {
        "shared_ops": used.ops,
        "shared_absent": used.absent,
        "shared_bytes": used.read_bytes,
        "wall_s": round(wall_s, 2),
    }


def build_image(place: Place) -> dict[str, Any]:
    """Two traces of the payload, and the image that they make; what it is."""
    top, store, profiles = place.shared / "sw", place.disk / "store", place.disk / "profiles"
    for directory in (store, profiles):
        directory.mkdir()
        directory.chmod(0o777)
    with slowfs(place.disk, place.shared):
        names = [profiles / f"{number}.json" for number in (1, 2)]
        for name in names:
            words = [str(place.binary), "trace", "-o", str(name), "--"]
            start_all(1, [*as_user(), *words, *python_of(top, str(top / "payload.py"))], environment(top))
        build = [
            sys.executable,
            "-m",
            "tidemill.cli.main",
            "image",
            "build",
            "--store",
            str(store),
            "--name",
            "sw",
        ]
        build += ["--area", str(place.shared), *(word for name in names for word in ("--profile", str(name)))]
        subprocess.run(build, check=True, capture_output=True)
    subprocess.run(["chmod", "-R", "a+rX", store], check=True)
    recipe = json.loads((store / "sw.json").read_text())
    return {"bytes": recipe["file"]["bytes"], "unpacked_bytes": recipe["unpacked_bytes"]}


def in_image(place: Place, command: list[str]) -> list[str]:
    """The command in the image, as an ordinary user on a node."""
    recipe = place.shared / "store" / "sw.json"
    words = [str(place.binary), "image", "run", "--recipe", str(recipe), "--"]
    return [*as_user(), *words, *with_environment(place.shared / "sw", command)]


def measure_image(place: Place, starts: list[int]) -> dict[str, dict[str, float]]:
    """One node for each number of starts: the image is shown once, and that many payloads start in it at once."""
    found: dict[str, dict[str, float]] = {}
    top = place.shared / "sw"
    for count in starts:
        command = ["/bin/sh", "-c", ALL_AT_ONCE, "sh", str(count), *python_of(top, str(top / "payload.py"))]
        with slowfs(place.disk, place.shared) as shared:
            before, began_s = shared.reading(), time.time()
            done = subprocess.run(
                in_image(place, command),
                env=NODE_ENVIRONMENT,
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
            wall_s, used = time.time() - began_s, shared.reading() - before
        if done.returncode != 0:
            raise SystemExit(f"payloads in the image failed with {done.returncode}: {done.stderr[-2000:]}")
        (first_s,) = (int(line[1:]) / 1e9 for line in done.stdout.splitlines() if line.startswith("@"))
        found[str(count)] = figures(used, wall_s) | {"prepare_s": round(first_s - began_s, 2)}
    return found


def check_truth(place: Place) -> dict[str, bool]:
    """In the image, what was not traced works, and what does not exist fails as it does without."""
    top = place.shared / "sw"
    missing = python_of(top, str(top / "missing.py"), str(top))
    untraced = python_of(top, "-c", "import sqlite3; print(sqlite3.sqlite_version)")
    with slowfs(place.disk, place.shared):
        commands = [missing, untraced]
        direct = [said([*as_user(), *with_environment(top, each)], NODE_ENVIRONMENT) for each in commands]
        image = [said(in_image(place, command), NODE_ENVIRONMENT) for command in commands]
    return {
        "missing_fails": image[0] == direct[0] and "no error" not in image[0],
        "untraced_works": image[1] == direct[1] and image[1].startswith("0\n"),
    }


def measure_pilots(place: Place, starts: list[int]) -> dict[str, dict[str, Any]]:
    """By the site agent and pilots of an ordinary user, who have not seen the software."""
    recipe = f'images = ["{place.shared}/store/sw.json"]'
    ways = {"direct": (place.shared, ""), "image": (place.shared, recipe), "local_wall_s": (place.disk, "")}
    found: dict[str, dict[str, Any]] = {way: {} for way in ways}
    user = NOBODY if os.geteuid() == 0 else None
    for way, (where, more) in ways.items():
        top = where / "sw"
        command, env = python_of(top, str(top / "payload.py")), environment(top)
        text = application(command, env, memory_mb=MEMORY_MB, more=more)
        for count in starts:
            variables = {"TIDEMILL_NODE_BINARY": str(place.binary)}
            options = Options(nodes=1, cores=max(2, count), extra=SITE, user=user, environment=variables)
            with (
                slowfs(place.disk, place.shared, mount.Options(entry_s=FORGET_S)) as shared,
                world(options=options) as it,
            ):
                packs = sorted((place.shared / "store").rglob("*.pack")) if more else []
                wait_s = FORGET_S if more else 0.0
                ran = run_starts(it, shared, text, count, ready=partial(forget, packs, wait_s))
            found[way][str(count)] = (
                round(ran.wall_s, 2) if where == place.disk else figures(ran.used, ran.wall_s)
            )
    return found


def measure(arguments: argparse.Namespace, top: Path) -> dict[str, Any]:
    starts = [int(each) for each in arguments.starts.split(",")]
    place = Place(disk=top / "disk", shared=top / "shared", binary=top / "tidemill-node")
    shutil.copy2(find_binary(), place.binary)
    make_software(place.disk / "sw")
    place.shared.mkdir(parents=True)
    found: dict[str, Any] = {"starts": starts, "delay_us": 1000, "local_wall_s": measure_local(place, starts)}
    if arguments.only in (None, "direct"):
        found["direct"] = measure_direct(place, starts)
    if arguments.only != "direct":
        found["built"] = build_image(place)
    if arguments.only in (None, "pilots"):
        found["pilots"] = measure_pilots(place, starts)
    if arguments.only in (None, "image"):
        found["image"] = measure_image(place, starts)
        found |= check_truth(place)
    return found


def temporary() -> Iterator[Path]:
    """A directory on the local disk that an ordinary user reaches, removed afterwards; it is seen at /mnt, for payloads
    have a /tmp of their own."""
    top = Path(tempfile.mkdtemp(prefix="tm-image-"))
    top.chmod(0o755)
    try:
        subprocess.run(["mount", "--bind", top, "/mnt"], check=True)
        yield Path("/mnt")
    finally:
        subprocess.run(["umount", "--lazy", "/mnt"], check=False)
        shutil.rmtree(top, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON (the only way)")
    parser.add_argument("--starts", default="1,4,16", help="starts at once, separated by commas")
    parser.add_argument("--only", choices=("direct", "image", "pilots"), help="leave the others out")
    arguments = parser.parse_args()
    if why := mount.missing():
        raise SystemExit(f"cannot measure: {why}")
    mount.private()
    for top in temporary():
        print(json.dumps(measure(arguments, top)))


if __name__ == "__main__":
    main()
