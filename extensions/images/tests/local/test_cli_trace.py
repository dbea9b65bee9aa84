"""`tidemill trace` with the real tracer: what a command sees of it, and what a proposed environment saves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.world import namespace_command

from tidemill import clock
from tidemill.image.profile import count_unique, per_run, read_profile

TIDEMILL = [*namespace_command(), sys.executable, "-m", "tidemill.cli.main", "trace"]
DEAD = 25
LIBRARIES = 4
MODULES = 40
WAIT_S = 100.0


def trace(*words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDEMILL, *words],
        env=os.environ if env is None else env,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        **more,
    )


def explained(profile: Path, *words: str) -> Any:
    return json.loads(trace("explain", str(profile), *words, "--json").stdout)


class Storm:
    """Libraries, modules and a program behind many directories that have none of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for kind in ("lib", "python", "bin"):
            (root / "sw" / kind).mkdir(parents=True)
            for k in range(DEAD):
                (root / f"dead{k}" / kind).mkdir(parents=True)
        for k in range(LIBRARIES):
            source = root / f"x{k}.c"
            source.write_text(f"int x{k}(void) {{ return {k}; }}\n")
            target = root / "sw" / "lib" / f"libx{k}.so.1"
            subprocess.run(
                ["cc", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", target, source], check=True
            )
        calls = " + ".join(f"x{k}()" for k in range(LIBRARIES))
        names = "".join(f"int x{k}(void);" for k in range(LIBRARIES))
        main = root / "main.c"
        main.write_text(
            f'#include <stdio.h>\n{names}int main(void) {{ printf("%d\\n", {calls}); return 0; }}\n'
        )
        libraries = [str(root / "sw" / "lib" / f"libx{k}.so.1") for k in range(LIBRARIES)]
        program = root / "sw" / "bin" / "prog"
        subprocess.run(["cc", "-o", program, main, *libraries], check=True)
        for k in range(MODULES):
            (root / "sw" / "python" / f"module{k}.py").write_text(f"value = {k}\n")
        imports = "; ".join(f"import module{k}" for k in range(MODULES))
        self.script = root / "job.py"
        self.script.write_text(
            f"import subprocess\n{imports}\n"
            "for _ in range(20): subprocess.run(['prog'], check=True)\n"
            f"print(sum([{', '.join(f'module{k}.value' for k in range(MODULES))}]), flush=True)\n"
        )
        (root / "empty").mkdir()

    def env(self) -> dict[str, str]:
        def listed(kind: str, *more: str) -> str:
            dead = [str(self.root / f"dead{k}" / kind) for k in range(DEAD)]
            gone = [str(self.root / f"gone{k}" / kind) for k in range(DEAD)]
            return os.pathsep.join([*dead, *gone, str(self.root / "sw" / kind), *more])

        return {
            "PATH": listed("bin", "/usr/bin", "/bin"),
            "LD_LIBRARY_PATH": listed("lib"),
            "PYTHONPATH": listed("python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, profile: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Python is named by its path, and the tracer's caller is not in this environment."""
        shell = [f"{name}={value}" for name, value in env.items()]
        node = os.environ.get("TIDEMILL_NODE_BINARY", str(Path(sys.executable).parent / "tidemill-node"))
        command = [*namespace_command(), "env", "-i", *shell, node, "trace", "-o", str(profile), "--"]
        return subprocess.run(
            [*command, os.path.realpath(sys.executable), str(self.script)],
            cwd=self.root / "empty",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Storm:
    return Storm(tmp_path_factory.mktemp("storm"))


def test_the_proposed_environment_removes_nine_in_ten_failures_and_loads_the_same(
    storm: Storm, tmp_path: Path
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    first = storm.run(before, storm.env())
    assert first.returncode == 0, first.stderr
    found = explained(before)
    fix = explained(before, "--fix")
    env = {**storm.env(), **{name: value for name, value in fix.items() if value is not None}}
    for name in [name for name, value in fix.items() if value is None]:
        del env[name]
    second = storm.run(after, env)

    assert (second.returncode, second.stdout) == (0, first.stdout)
    old, new = read_profile(before), read_profile(after)
    assert new.failed_total <= 0.1 * old.failed_total
    assert found["explained"] >= 0.95 * old.failed_total
    saved = old.ops_total - new.ops_total
    assert found["saves_ops"] == pytest.approx(saved, rel=0.05)
    below = str(storm.root / "sw")
    assert {use.path for use in new.paths if use.exists and use.path.startswith(below)} == {
        use.path for use in old.paths if use.exists and use.path.startswith(below)
    }
    assert {use.path for use in new.paths if use.kind == "f"} == {
        use.path for use in old.paths if use.kind == "f"
    }


def test_the_fix_can_be_sourced_by_a_shell(storm: Storm, tmp_path: Path) -> None:
    storm.run(tmp_path / "p.json", storm.env())
    lines = trace("explain", "--fix", str(tmp_path / "p.json")).stdout
    (tmp_path / "clean.sh").write_text(lines)
    done = subprocess.run(
        ["/bin/sh", "-c", '. "$1"; echo "$LD_LIBRARY_PATH"', "sh", str(tmp_path / "clean.sh")],
        env=storm.env(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(storm.root / "sw" / "lib")


def test_output_and_status_of_the_command_are_its_own(tmp_path: Path) -> None:
    done = trace("--", "/bin/sh", "-c", "cat; echo out; echo err >&2; exit 7", input="in\n")
    assert (done.returncode, done.stdout) == (7, "in\nout\n")
    assert done.stderr.startswith("err\n")
    assert " operations, " in done.stderr
    assert "openat" in done.stderr


def test_a_signal_that_ends_the_command_is_told_as_a_shell_does() -> None:
    assert trace("--", "/bin/sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_the_numbers_alone_are_on_stdout_with_json(tmp_path: Path) -> None:
    done = trace("--json", "--area", "/lib", "--", "/bin/sh", "-c", "echo out")
    numbers = json.loads(done.stdout)
    assert numbers["exit"] == 0
    assert "/lib" in {area["area"] for area in numbers["areas"]}
    assert done.stderr.startswith("out\n")


def test_a_command_that_is_not_there_is_127_and_leaves_no_profile(tmp_path: Path) -> None:
    done = trace("-o", str(tmp_path / "p.json"), "--", "no-such-command-here")
    assert done.returncode == 127
    assert "no-such-command-here" in done.stderr
    assert "bug" not in done.stderr
    assert not (tmp_path / "p.json").exists()


def test_a_directory_is_no_command() -> None:
    assert trace("--", "/tmp").returncode == 126


def test_an_old_profile_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")
    assert trace("-o", str(path), "--", "no-such-command-here").returncode == 127
    assert path.read_text() == "old"


def test_terminate_reaches_the_command_and_the_tables_still_come(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo bye; exit 3' TERM; : > {ready}; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*TIDEMILL, "--", "/bin/sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        deadline_s = clock.monotonic_s() + WAIT_S
        while not ready.exists():
            assert clock.monotonic_s() < deadline_s
            clock.sleep_s(0.01)
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        out, err = running.communicate(timeout=WAIT_S)
    assert (out, running.returncode) == ("bye\n", 3)
    assert "operations" in err


def test_unique_files_of_the_tracer_are_those_of_its_paths(tmp_path: Path) -> None:
    trace("-o", str(tmp_path / "p.json"), "--area", "/usr/lib", "--", sys.executable, "-c", "import decimal")
    profile = read_profile(tmp_path / "p.json")
    assert count_unique(profile.paths, [area.area for area in profile.areas]) == {
        area.area: (area.files, area.so, area.py) for area in profile.areas
    }
    cost = per_run(profile, [area.area for area in profile.areas])
    assert cost == {area.area: (area.ops, area.bytes_read) for area in profile.areas}
    assert sum(area.bytes_read or 0 for area in profile.areas) > Path(sys.executable).stat().st_size
