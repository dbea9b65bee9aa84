"""`tidemill web` at a terminal."""

from __future__ import annotations

import signal
import subprocess

from tests.worlds.home.homes import TIDEMILL, started_home


def test_it_says_that_it_stays_and_how_it_ends_before_the_url() -> None:
    with started_home() as home:
        words = [*TIDEMILL, "web"]
        with subprocess.Popen(
            words, cwd=home.work, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                first, second = process.stdout.readline(), process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            finally:
                process.kill()
    assert first == "this command shows the pages until you press Ctrl-C; jobs go on without it\n"
    assert second.startswith("http://127.0.0.1:")
