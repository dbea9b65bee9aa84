"""`tidemill run --container`: a person's own command in an image, with a server and a site that it starts itself."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.worlds.node.container_world import NOBODY, found, make_tree, open_directory
from tests.worlds.services.cache_world import ordinary_user

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]


def test_a_command_runs_in_an_image_with_its_stdin_inputs_and_outputs() -> None:
    found("ch-run")
    with open_directory() as top:
        tree = make_tree(top / "image")
        work = top / "work"
        work.mkdir()
        (work / "card.dat").write_text("card\n")
        if os.geteuid() == 0:
            for path in (work, work / "card.dat"):
                os.chown(path, NOBODY, NOBODY)
        env = {**os.environ, "TIDEMILL_HOME": str(work / "home"), "HOME": str(work), "LOGNAME": "me"}
        env.pop("TIDEMILL_NODE_BINARY", None)  # of pytest's user

        def tidemill(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*ordinary_user(), *TIDEMILL, *words],
                cwd=work, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=100, umask=0o077,
            )  # fmt: skip

        script = "cat /etc/inside - card.dat; echo made > out.txt; test ! -e /usr/share/doc; echo [$ROOTSYS]"
        words = ["--name", "c", "--input", "card.dat", "--output", "out.txt", "--container", str(tree)]
        env["ROOTSYS"] = "/of/this/machine"
        try:
            done = tidemill("run", *words, "--", "sh", "-c", script, stdin="typed\n")
            assert (done.returncode, done.stdout) == (0, "yes\ntyped\ncard\n[]\n"), done.stderr
            assert (work / "tidemill-out" / "c" / "out.txt").read_text() == "made\n"
            failed = tidemill("run", "--container", str(tree), "--", "sh", "-c", "exit 7")
            assert failed.returncode == 7, failed.stderr
        finally:
            tidemill("up", "--stop")
