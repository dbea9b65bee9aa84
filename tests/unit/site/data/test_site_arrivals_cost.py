"""What files that come early cost a file system: operations on names and files, counted in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

EVENTS = 1_000
BATCH = 100
ROOT = Path(__file__).parents[4]

COUNT = """\
import collections, json, os, pathlib, sys, threading

counted, counts = collections.Counter(), False
NAMES = {{"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.listdir", "os.scandir"}}


def hook(event, _):
    if counts and event in NAMES:
        counted[event] += 1


def synced(of):
    def call(descriptor):
        counted["sync"] += counts
        return of(descriptor)

    return call


sys.addaudithook(hook)
os.fsync, os.fdatasync = synced(os.fsync), synced(os.fdatasync)

from tests.unit.site.data.test_site_arrivals import delivery
from tests.unit.site.data.test_site_outputs import Place

found = {{}}
for way, batch in (("end", 0), ("early and end", {batch})):
    place = pathlib.Path(sys.argv[1]) / way
    place.mkdir()
    place = Place(place)
    parts = place.parts(*((event, 1) for event in range({events})))
    counts = True
    for at in range(0, {events} if batch else 0, batch or 1):
        some = delivery(place, parts[at : at + batch], number=0, events={events})
        place.deliverer.arrive(some, threading.Event())
    place.deliverer.deliver(delivery(place, parts, events={events}))
    counts = False
    found[way] = dict(counted)
    counted.clear()
print(json.dumps(found))
"""


def test_files_that_come_early_cost_what_the_delivery_did_and_one_more_look_at_each(tmp_path: Path) -> None:
    script = COUNT.format(events=EVENTS, batch=BATCH)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    at_end, both = sum(found["end"].values()), sum(found["early and end"].values())
    batches = EVENTS / BATCH
    assert at_end > 4 * EVENTS, found
    assert both <= at_end + EVENTS * 1.1 + batches * 40, found
    assert found["early and end"]["sync"] <= found["end"]["sync"] + batches * 6, (
        "no file is made durable twice"
    )
