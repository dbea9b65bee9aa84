"""What files that come early cost a file system: operations on names and files, counted in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tidemill.site.data.arrivals import REST

EVENTS = 1_000
BATCH = 100
ROOT = Path(__file__).parents[4]

COUNT = """\
import collections, json, os, pathlib, sys
sys.path.insert(0, {root!r})
counted = collections.Counter()
NAMES = {{"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.listdir", "os.scandir"}}
is_counting = False

def hook(event, _):
    if is_counting and event in NAMES:
        counted[event] += 1

sys.addaudithook(hook)
fsync, fdatasync = os.fsync, os.fdatasync

def synced(of):
    def call(descriptor):
        counted["sync"] += is_counting
        return of(descriptor)
    return call

os.fsync, os.fdatasync = synced(fsync), synced(fdatasync)
from tests.unit.site.data.test_site_arrivals import delivery, early
from tests.unit.site.data.test_site_outputs import Place

found = {{}}
for way in ("end", "early", "early and end"):
    (pathlib.Path(sys.argv[1]) / way).mkdir()
    place = Place(pathlib.Path(sys.argv[1]) / way)
    parts = place.parts(*((event, 1) for event in range({events})))
    whole = delivery(place, parts, events={events})
    batches = range(0, {events}, {batch}) if "early" in way else ()
    early(place, parts[:1]) if batches else place.deliverer.deliver(delivery(place, [], events={events}))
    is_counting = True
    for at in batches:
        early_delivery = delivery(place, parts[at : at + {batch}], number=0, events={events})
        import threading
        place.deliverer.arrive(early_delivery, threading.Event())
    if "end" in way:
        place.deliverer.deliver(whole)
    is_counting = False
    found[way] = dict(counted)
    counted.clear()
print(json.dumps(found))
"""


def test_files_that_come_early_cost_what_the_delivery_did_and_one_more_look_at_each(tmp_path: Path) -> None:
    script = COUNT.format(root=str(ROOT), events=EVENTS, batch=BATCH)
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
    assert REST >= 1, "and a file system that is slow has as long for other work"
