"""A site whose name server takes questions and never answers."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.worlds.home.world import namespace_command

#: the name server, in a network of its own; then the views of an agent whose cache has a name
SCRIPT = """
import pathlib, socket, subprocess, sys, threading
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
conf = pathlib.Path(sys.argv[1])
conf.write_text("nameserver 127.0.0.1\\n")
subprocess.run(["mount", "--bind", str(conf), "/etc/resolv.conf"], check=True)

from tidemill.config.caching import SiteCache
from tidemill.image.profile import RemoteReads
from tidemill.site.applications.job_reads import JobReads
from tidemill.site.watch.cache_views import SiteCaches

reads = JobReads()
reads.add(1, "sim", [RemoteReads(
    address="192.0.2.1", port=1094, connections=1, reads=1, bytes=9, waits=1, wait_us=5, wait_log2_us=[1])])
caches = SiteCaches([SiteCache(name="dtn", url="root://dtn.example.org:1094")], reads)
for _ in range(5):
    (row,) = caches.reads()
    caches.views()
under_way = [each.name for each in threading.enumerate() if each.name == "names"]
server.settimeout(30)
assert b"example" in server.recv(512)  # it is asked
print(len(under_way), row.way, row.place)
"""


def test_a_name_server_that_hangs_does_not_stop_the_agents_views(tmp_path: object) -> None:
    prefix = namespace_command()
    at = prefix.index("--pid")
    done = subprocess.run(
        [
            *prefix[:at],
            "--net",
            "--mount",
            *prefix[at:],
            sys.executable,
            "-c",
            SCRIPT,
            f"{tmp_path}/resolv.conf",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    look_ups, way, place = done.stdout.split()
    assert look_ups == "1"  # still waits for its reply: the views did not
    assert (way, place) == ("direct", "192.0.2.1:1094")  # its cache is not known yet
