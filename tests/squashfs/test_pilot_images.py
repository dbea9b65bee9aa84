"""Images in pilots: payloads run from memory, whatever the node can do; what goes wrong has a name."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.worlds.home.processes import children_of
from tests.worlds.node.node_images import Software, software, staged
from tests.worlds.node.pilot_fleet import Field, field, grants, job, program

from tidemill.node.bundle import read_member
from tidemill.wire.node import Done, Failed, ImageUse, JobDef, Program, Started

NOBODY = 65534
USER = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user, with devices of its own"
)


@contextmanager
def place(**changes: object) -> Iterator[tuple[Software, Field]]:
    """Software and a fleet where every user can get."""
    with software() as sw, field(sw.base, **changes) as it:  # type: ignore[arg-type]
        if os.geteuid() == 0:
            node = sw.base / "tidemill-node"
            shutil.copy(it.node, node)
            it.node = node
        yield sw, it


def hand_over(it: Field) -> None:
    """Everything of the fleet belongs to an ordinary user from now on."""
    for path in (it.fleet.directory, *it.fleet.directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


def ordinary(sw: Software, *, fuse: bool, before: str = "true") -> str:
    """Become an ordinary user, on a node where such users may use FUSE, or may not."""
    device = sw.base / "fuse"
    make = f"mknod -m 666 {device} c 10 229" if fuse else f": > {device}"
    return f'{make} && mount --bind {device} /dev/fuse && {before} && exec {USER} "$0" "$@"'


def hello(sw: Software, images: list[ImageUse], number: int = 1, **changes: object) -> Program:
    return program(
        number, executable=str(sw.area / "bin/hello"), images=images, stdout_output=True, **changes
    )


def words(number: int, *argv: str, events: int = 1, of: int = 1) -> JobDef:
    return msgspec.structs.replace(job(number, "", events=events, of=of), argv=list(argv))


def run(it: Field, programs: list[Program], jobs: list[JobDef], **how: object) -> None:
    it.fleet.write_work(programs=programs, jobs=jobs, grants=grants(*jobs))
    it.lead()
    if "before" in how:
        hand_over(it)
    options = how.pop("options", ("--cores", "2", "--memory-mb", "2000"))
    assert isinstance(options, tuple)
    assert it.ended(it.pilot(*options, **how), timeout_s=60) == 0, it.tails()  # type: ignore[arg-type]


def outputs(it: Field, number: int) -> list[bytes]:
    done = [record for record in it.read() if isinstance(record, Done) and record.job == number]
    done.sort(key=lambda record: record.first)
    return [read_member(it.fleet.bundle, ref) for record in done for ref in record.outputs]


LOOK = (
    "cat {area}/etc/rare; cat {area}/etc/none || echo absent; echo new > {area}/etc/new && cat {area}/etc/new; "
    "exec 9< /proc/self/status; grep CapEff <&9; id -u; PATH={area}/bin:$PATH; hello by path"
)


def check_payloads(sw: Software, it: Field, image: ImageUse, **how: object) -> None:
    """What payloads see: the image's files, what it has not, and nothing where nothing is."""
    shell = program(2, images=[image], stdout_output=True)
    look = LOOK.replace("{area}", str(sw.area))
    run(it, [hello(sw, [image]), shell], [words(1, "{event}", events=3), job(2, look, events=1, of=2)], **how)
    assert outputs(it, 1) == [f"hello of the image {event}\n".encode() for event in range(3)], it.tails()
    [seen] = outputs(it, 2)
    lines = seen.decode().splitlines()
    assert lines[:3] == ["never traced", "absent", "new"], it.tails()
    assert lines[-1] == "hello of the image by path"
    assert not (sw.area / "etc/new").exists(), "what payloads write stays in their slot"


@pytest.mark.parametrize("way", ["fuse", "unpack"])
def test_payloads_run_from_an_image_at_its_original_paths(way: str) -> None:
    with place(images=way) as (sw, it):
        check_payloads(sw, it, sw.image())
        [shown] = it.noted("image")
        assert (shown.mode, shown.message) == (way, "image `sw`")
        assert shown.numbers["bytes"] > 0
        assert shown.numbers["memory_mb"] >= 1


@as_root
@pytest.mark.parametrize("way", ["fuse", "unpack"])
def test_an_ordinary_user_runs_from_images(way: str) -> None:
    with place(images=way) as (sw, it):
        image = sw.image()
        check_payloads(sw, it, image, before=ordinary(sw, fuse=way == "fuse"))
        [shown] = it.noted("image")
        assert shown.mode == way, it.tails()
        started = it.read()[0]
        assert isinstance(started, Started)
        assert started.isolation == "namespaces"


@as_root
def test_without_fuse_an_image_is_unpacked_and_the_record_says_why() -> None:
    with place(images="auto", store_mb=150) as (sw, it):
        sw.write("etc/large", "much of the same\n" * (40 * 65536))
        image = sw.image()  # too large to be unpacked where there is a choice
        check_payloads(sw, it, image, before=ordinary(sw, fuse=False))
        [shown] = it.noted("image")
        assert shown.mode == "unpack"
        assert "/dev/fuse" in shown.message, shown


@as_root
def test_without_namespaces_paths_are_rewritten_and_nothing_is_left() -> None:
    with place(images="auto") as (sw, it):
        image = sw.image()
        limit = "echo 0 > /proc/sys/user/max_user_namespaces"
        nested = ordinary(sw, fuse=True).replace(
            USER, f'{USER} unshare -Ur sh -c \'{limit} && exec "$0" "$@"\''
        )
        tool = hello(sw, [image], env={"TOOL": f"{sw.area}/bin/hello"})
        shell = program(2, images=[image], stdout_output=True, env={"TOOL": f"{sw.area}/bin/hello"})
        look = f"cat {sw.area}/etc/version; echo $TOOL; cat {sw.area}/etc/rare"
        run(it, [tool, shell], [words(1, "x"), job(2, look, events=1, of=2)], before=nested)
        started = it.read()[0]
        assert isinstance(started, Started)
        assert started.isolation == "subreaper", it.tails()
        [shown] = it.noted("image")
        assert (shown.mode, "no namespaces" in shown.message) == ("relocate", True), shown
        version, path, rare = outputs(it, 2)[0].decode().splitlines()
        assert (version, rare) == ("of the image", "never traced")
        assert path.startswith("/dev/shm/tidemill-node-")
        assert path.endswith(f"{sw.area}/bin/hello")
        assert not Path(path).exists()
        assert not list(Path("/dev/shm").glob(f"tidemill-node-{NOBODY}-*"))


@as_root
def test_an_ordinary_users_image_of_read_only_directories_makes_room_for_another() -> None:
    with place(images="auto", store_mb=130) as (sw, it):
        (sw.area / "bin").chmod(0o555)
        sw.area.chmod(0o555)
        first, second = sw.image("one", extra_bytes=30 << 20), sw.image("two", extra_bytes=30 << 20)
        limit = "echo 0 > /proc/sys/user/max_user_namespaces"
        powerless = f"{limit} && exec setpriv --bounding-set=-all"
        nested = ordinary(sw, fuse=True).replace(USER, f'{USER} unshare -Ur sh -c \'{powerless} "$0" "$@"\'')
        shells = [program(1, images=[first]), program(2, images=[second])]
        shells = [msgspec.structs.replace(shell, stdout_output=True) for shell in shells]
        look = f"find /dev/shm/tidemill-node-* -path '*{sw.area}/bin/hello' 2> /dev/null; true"
        run(it, shells, [job(n, look, events=1, of=n) for n in (1, 2)], before=nested)
        assert [each.mode for each in it.noted("image")] == ["relocate", "relocate"], it.tails()
        for number in (1, 2):
            [found] = outputs(it, number)
            assert found.count(b"bin/hello") == 1, found


def test_applications_share_one_copy_and_other_images_are_other_slots() -> None:
    with place(images="fuse") as (sw, it):
        first, second = sw.image("one", "first release"), sw.image("two", "second release")
        programs = [hello(sw, [first], 1), hello(sw, [first], 2, memory_mb=70), hello(sw, [second], 3)]
        run(it, programs, [words(n, "x", events=4, of=n) for n in (1, 2, 3)], options=("--cores", "3"))
        assert [outputs(it, number)[0] for number in (1, 2, 3)] == [
            b"hello first release x\n",
            b"hello first release x\n",
            b"hello second release x\n",
        ]
        assert sorted(each.message for each in it.noted("image")) == ["image `one`", "image `two`"]
        slots = {
            number: {record.slot for record in it.read() if isinstance(record, Done) and record.job == number}
            for number in (1, 2, 3)
        }
        assert not slots[1] & slots[3]
        assert not slots[2] & slots[3]


@pytest.mark.parametrize("what", ["changed", "truncated", "gone", "no squashfs"])
def test_an_image_that_cannot_be_had_fails_its_payloads_with_the_cause(what: str) -> None:
    with place(images="auto") as (sw, it):
        image = sw.image()
        pack = Path(image.file.pieces[0].path)
        content = pack.read_bytes()
        if what == "changed":
            pack.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        elif what == "truncated":
            pack.write_bytes(content[:-100])
        elif what == "gone":
            pack.unlink()
        else:
            other = sw.base / "other"
            other.write_bytes(b"no image at all\n" * 100)
            image = msgspec.structs.replace(image, file=staged(other))
        run(it, [hello(sw, [image]), program(2)], [words(1, "x", events=3), job(2, ":", events=2, of=2)])
        assert str(it.done(2)) == "0-1", "work that needs no image goes on"
        assert {each.failure for each in it.of(Failed)} == {"image"}, it.tails()
        assert sum(each.count for each in it.of(Failed)) == 3
        message = it.of(Failed)[0].message
        assert "image `sw`" in message
        assert str(sw.base) in message or "sha256" in message or "/dev/shm/files" in message, message
        assert [each.mode for each in it.noted("image")] == ["failed"]


def processes(shell: int) -> dict[int, str]:
    """Everything in the PID namespace of a pilot that was started as `shell`."""
    children = children_of(shell)
    if not children:
        return {}
    found = {}
    try:
        space = Path(f"/proc/{children[0]}/ns/pid").readlink()
    except FileNotFoundError:
        return {}  # it has just ended, and all in its namespace with it
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                found[int(entry.name)] = (entry / "comm").read_text(errors="replace").strip()
        except OSError:
            continue  # it has just ended
    return found


def squashfuses(shell: int) -> list[int]:
    return [pid for pid, name in processes(shell).items() if name.startswith("squashfuse")]


@pytest.mark.parametrize(
    "user", [pytest.param(True, id="ordinary", marks=as_root), pytest.param(False, id="own")]
)
def test_a_killed_squashfuse_fails_what_runs_from_it_and_the_rest_runs_from_files(user: bool) -> None:
    with place(images="fuse") as (sw, it):
        image = sw.image()
        shell = program(1, images=[image], stdout_output=True, event_s=0.5)
        forever = f"while cat {sw.area}/etc/version > /dev/null; do sleep 0.02; done"
        script = f"if [ {{event}} = 0 ]; then {forever}; exit 1; fi; cat {sw.area}/etc/version"
        work = job(1, script, events=4)
        it.fleet.write_work(programs=[shell], jobs=[work], grants=grants(work))
        it.lead()
        before = None
        if user:
            hand_over(it)
            before = ordinary(sw, fuse=True)
        pilot = it.pilot("--cores", "1", "--memory-mb", "1000", before=before)
        it.until(lambda: bool(squashfuses(pilot.pid)) and bool(it.noted("image")), "squashfuse serves")
        it.until(lambda: "slot.started" in it.tails(), "a payload may run")
        for pid in squashfuses(pilot.pid):
            os.kill(pid, signal.SIGKILL)
        it.until(lambda: bool(it.of(Failed)), "the payload failed")
        assert it.of(Failed)[0].failure == "image", it.tails()
        assert "squashfuse ended with signal 9" in it.of(Failed)[0].message
        it.until(lambda: len(outputs(it, 1)) >= 3, "the others are done")
        assert set(outputs(it, 1)) == {b"of the image\n"}
        assert [each.mode for each in it.noted("image")] == ["fuse", "died", "unpack"]
        assert "squashfuse has died here before" in it.noted("image")[2].message


def test_a_killed_pilot_leaves_no_process_and_no_file() -> None:
    with place(images="fuse") as (sw, it):
        image = sw.image()
        work = job(1, f"cat {sw.area}/etc/version; sleep 600", events=1)
        it.fleet.write_work(programs=[program(images=[image])], jobs=[work], grants=grants(work))
        it.lead()
        began_s = time.time()
        shell = it.pilot("--cores", "1", "--memory-mb", "1000", before='("$0" "$@"; exec sleep 600); false')
        it.until(lambda: bool(squashfuses(shell.pid)), "squashfuse serves")
        it.until(lambda: bool(it.noted("image")), "the image is shown")
        pilots = [pid for pid, name in processes(shell.pid).items() if name == "tidemill-node"]
        os.kill(min(pilots), signal.SIGKILL)
        it.until(lambda: set(processes(shell.pid).values()) <= {"sh", "sleep"}, "only the shell is left")
        left = [
            path for base in ("/dev/shm", "/tmp") for path in Path(base).glob(f"tidemill-*-{os.getuid()}-*")
        ]
        assert not [path for path in left if path.stat().st_mtime > began_s]
        mounts = Path(f"/proc/{min(processes(shell.pid))}/mounts").read_text()
        assert "squashfuse" not in mounts
        assert "overlay " not in "".join(line for line in mounts.splitlines() if str(sw.area) in line)


def test_an_image_leaves_less_room_for_slots() -> None:
    with place(images="fuse") as (sw, it):
        image = sw.image()
        shell = program(1, images=[image], memory_mb=100, scratch_mb=50, event_s=0.3)
        work = job(1, "sleep 0.3", events=12)
        run(it, [shell], [work], options=("--cores", "8", "--memory-mb", "600"))
        assert str(it.done(1)) == "0-11"
        slots = {record.slot for record in it.read() if isinstance(record, Done)}
        assert len(slots) == (600 - 65) // 150
