"""An ordinary user of a Slurm at a terminal of 80 columns: every command in a PID namespace, as that user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.worlds.batch.slurm_cluster import SlurmCluster

from tidemill import clock

COMMAND_S = 90.0


class SlurmPerson:
    """Somebody with an account on the cluster and an empty home directory on its shared file system.

    `keep`: all commands share one PID namespace, so that a `tidemill up` in the background goes on between them.
    """

    def __init__(self, cluster: SlurmCluster, name: str) -> None:
        self.cluster = cluster
        self.space = cluster.make_space(name)
        self.home = self.space / "h"
        self.site = self.home / "site"
        self._keeper: subprocess.Popen[bytes] | None = None
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.space),
            "TIDEMILL_HOME": str(self.home),
            "SLURM_CONF": str(cluster.conf),
            "COLUMNS": "80",
            "LANG": "C.UTF-8",
        }

    @contextmanager
    def staying(self) -> Iterator[None]:
        """What commands leave running goes on until the end of this block, and is killed then."""
        command = [*self._apart(), "sleep", "infinity"]
        with subprocess.Popen(command) as keeper:
            self._keeper = keeper
            try:
                deadline_s = clock.monotonic_s() + COMMAND_S
                while not any(_is_called("sleep", pid) for pid in _descendants(keeper.pid)):
                    assert clock.monotonic_s() < deadline_s
                    clock.sleep_s(0.01)
                yield
            finally:
                keeper.kill()
                self._keeper = None

    def words(self, *words: str, **env: str) -> list[str]:
        """The command line of a `tidemill` of this user."""
        ids = (f"--reuid={self.cluster.uid}", f"--regid={self.cluster.gid}")
        drop = ["setpriv", *ids, "--clear-groups", "--inh-caps=-all", "--"]
        settings = [f"{key}={value}" for key, value in {**self.env, **env}.items()]
        where = self._apart()
        if self._keeper is not None:
            inner = str(_descendants(self._keeper.pid)[0])
            where = ["nsenter", "-t", inner, "-p", "-m", "-n", f"--wd={self.space}"]
        return [*where, *drop, "/usr/bin/env", "-i", *settings, "tidemill", *words]

    def _apart(self) -> list[str]:
        """Namespaces in which the interpreter is shown at its path although it lies below a closed directory."""
        apart = [*self.cluster.within, "unshare", "-pmf", "--kill-child", "--mount-proc"]
        prefix = Path(sys.executable).resolve().parents[1]
        closed = [path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o001]
        if not closed:
            return apart
        stage = self.space.parent / "interpreter"
        stage.mkdir(exist_ok=True)
        script = (
            'mount --bind "$2" "$3" && mount -t tmpfs -o mode=0755 tm-test "$1" && mkdir -p "$2" && '
            'mount --bind "$3" "$2" && shift 3 && exec "$@"'
        )
        return [*apart, "sh", "-c", script, "sh", str(closed[0]), str(prefix), str(stage)]

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            self.words(*words, **env),
            cwd=self.space,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def done(self, *words: str, **env: str) -> str:
        """What a command prints that must succeed."""
        answer = self.run(*words, **env)
        assert answer.returncode == 0, f"{answer.stderr}\n{answer.stdout}\n{self.logs()}"
        return answer.stdout

    def data(self, *words: str) -> Any:
        """Its JSON, whatever its exit code."""
        answer = self.run(*words, "--json")
        try:
            return json.loads(answer.stdout)
        except ValueError:
            raise AssertionError(f"{answer.stderr}\n{answer.stdout}") from None

    def interrupted(self, *words: str, until: str) -> tuple[int, str]:
        """Press Ctrl-C when it has said so; exit code and stderr."""
        with subprocess.Popen(
            self.words(*words), cwd=self.space, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            said = ""
            while until not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            # only the command itself: Ctrl-C at a terminal reaches no more than its group, and unshare passes none on
            for pid in _descendants(process.pid):
                with suppress(OSError):  # a command that it has just called may have ended
                    if b"tidemill" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGINT)
            said += process.stderr.read()
            return process.wait(COMMAND_S), said

    def logs(self) -> str:
        """The last words of server and site."""
        return "\n".join(
            f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log"))
        )


def _is_called(name: str, pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() == name
    except OSError:
        return False


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended since its parent was read
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found
