"""What a cache refuses: other hosts, writes, `..`, credentials in URLs, redirects; nothing of it reaches a payload."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.worlds.services.cache_world import CacheWorld, DelayLine, Origin, cache_world

from tidemill.routing.refusals import explained

CONTENT = os.urandom(100_000)
SECRET = b"not for clients of the cache"


@pytest.fixture(scope="module")
def world() -> Iterator[CacheWorld]:
    """A running cache that may read below /open of its origin."""
    with cache_world() as made:
        made.make("open/f", CONTENT)
        made.make("closed/f", SECRET)
        made.init_for(f"{made.origin_url}open/")
        made.start()
        yield made


@pytest.fixture(scope="module")
def other(world: CacheWorld) -> Iterator[DelayLine]:
    """Another way to the same server, which counts: it has the same host, and a port that is not on the list."""
    line = DelayLine(world.origin.port, 0.0)
    yield line
    line.close()


def test_what_is_on_the_list_is_read(world: CacheWorld) -> None:
    assert world.read("open/f") == CONTENT


@pytest.mark.parametrize(
    "form",
    [
        "root://127.0.0.1:{other}//open/f",  # another port
        "root://localhost:{listed}//open/f",  # another name of the host
        "xroot://127.0.0.1:{listed}//open/f",
        "roots://127.0.0.1:{other}//open/f",
        "http://127.0.0.1:{other}/open/f",
        "root://me:password@127.0.0.1:{listed}//open/f",
        "root://127.0.0.1:{listed}@127.0.0.1:{other}//open/f",
        "root://127.0.0.1:{listed}//open/../closed/f",
        "root://127.0.0.1:{listed}//open/%2e%2e/closed/f",
        "root://127.0.0.1:{listed}//closed/f",
        "root://127.0.0.1:{listed}/../127.0.0.1:{other}//open/f",
        "root://127.0.0.1:{listed}//open/../../../root:/127.0.0.1:{other}//open/f",
        "root:///open/f",
        "file:///etc/passwd",
        "open/f",
        "etc/passwd",
        "xrdpfc_command/remove_file/ /open/f",
    ],
)
def test_a_client_cannot_make_the_cache_read_anything_else(
    world: CacheWorld, other: DelayLine, form: str
) -> None:
    url = form.format(listed=world.line.port, other=other.port)

    done = world.copy(f"root://127.0.0.1:{world.port}//{url}")

    assert done.returncode != 0
    assert done.stdout == b""
    assert other.tell("count")["connections"] == 0


def test_an_opaque_part_names_no_other_host_and_leaves_what_is_cached(
    world: CacheWorld, other: DelayLine
) -> None:
    elsewhere = f"127.0.0.1:{other.port}"

    done = world.copy(
        f"{world.url('open/f')}?xrdcl.url=root://{elsewhere}&xrd.rdr={elsewhere}&tried={elsewhere}&authz=x"
    )

    assert done.stdout in (b"", CONTENT)
    assert other.tell("count")["connections"] == 0
    assert world.read("open/f") == CONTENT


def test_nobody_writes_through_a_cache(world: CacheWorld) -> None:
    path = world.origin.data / "open" / "f"
    target = f"/{world.direct('open/f')}"
    cache = f"127.0.0.1:{world.port}"

    def ask(*words: str) -> int:
        return subprocess.run(
            ["xrdfs", cache, *words], capture_output=True, env=world.client_environ, check=False, timeout=60
        ).returncode

    assert ask("rm", target)
    assert ask("mv", target, f"{target}2")
    assert ask("truncate", target, "1")
    assert ask("mkdir", f"{target}d")
    assert ask("chmod", target, "rwxrwxrwx")
    for options in ((), ("--posc",)):
        done = subprocess.run(
            ["xrdcp", "--silent", "--force", *options, "/etc/hostname", world.url("open/new")],
            capture_output=True, env=world.client_environ, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
    assert path.read_bytes() == CONTENT
    assert sorted(each.name for each in path.parent.iterdir()) == ["f"]


def test_a_redirect_to_a_host_that_is_not_on_the_list_is_not_followed() -> None:
    with cache_world() as target:
        target.make("there/f", SECRET)
        options = {"XROOTD_OPTIONS": f"xrootd.redirect 127.0.0.1:{target.line.port} /there"}
        with cache_world(options=options) as world:
            world.make("here/f", CONTENT)
            world.start()

            done = world.copy(world.url("there/f"))

            assert done.returncode != 0
            assert "sent the cache on" in (explained(done.stderr.decode()) or "")
            assert target.sent()["connections"] == 0
            assert world.read("here/f") == CONTENT


def test_a_redirector_of_a_federation_may_send_the_cache_on() -> None:
    with cache_world() as target:
        target.make("there/f", CONTENT)
        options = {"XROOTD_OPTIONS": f"xrootd.redirect 127.0.0.1:{target.line.port} /there"}
        with cache_world(options=options) as world:
            world.make("here/f", CONTENT)
            world.init("--federation")
            world.start()

            assert world.read("there/f") == CONTENT
            assert world.read("here/f") == CONTENT
            assert target.sent()["connections"] > 0


def test_an_origin_that_redirects_in_a_circle_is_given_up() -> None:
    with cache_world() as world:
        options = {"XROOTD_OPTIONS": f"xrootd.redirect 127.0.0.1:{world.line.port} /circle"}
        world.origin.stop()
        world.origin = Origin(world.folder / "o", options)
        world.make("f", CONTENT)
        world.init()
        world.set("federation = true")
        world.start()

        done = world.copy(world.url("circle/f"))

        assert done.returncode != 0
        assert world.read("f") == CONTENT
