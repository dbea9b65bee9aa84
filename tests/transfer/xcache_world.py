"""A forwarding XCache of Debian's packages on loopback, as small as one can be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONFIG = """all.export /root:/
all.export /xroot:/
all.adminpath {folder}/admin
all.pidpath {folder}/run
oss.localroot {folder}/data
ofs.osslib libXrdPss.so
pss.cachelib libXrdPfc.so
pss.origin =
pfc.ram 1g
pfc.blocksize 1m
pfc.prefetch 0
pfc.flush 100
xrd.allow host 127.0.0.1
xrd.allow host localhost
xrd.network nodnr
"""
START = """set -eu; dir=$1; . ./service.sh
mkdir -p "$dir/data" "$dir/admin" "$dir/run"
own "$dir"
port=$(port_of port)
cd "$dir"
become xrootd -n cache -c "$dir/cache.cfg" -l "$dir/log" -p "$port" </dev/null >"$dir/out" 2>&1 &
echo $! >"$dir/pid"
wait_open "$port" $! "$dir/out" "$dir/cache/log"
echo "root://127.0.0.1:$port"
"""


class XCache:
    """A running cache; `url` is where clients reach it."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("xrootd") is None:
            pytest.skip("there is no program `xrootd`: apt-get install xrootd-server")
        self.folder = folder
        folder.mkdir(mode=0o711, exist_ok=True)
        (folder / "cache.cfg").write_text(CONFIG.format(folder=folder))
        done = subprocess.run(
            ["/bin/sh", "-c", START, "start", str(folder)],
            cwd=SCRIPTS, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"the cache does not start: {done.stderr[-500:]}")
        self.url = done.stdout.strip()

    def stop(self) -> None:
        """End it, by its own number."""
        with suppress(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
