"""Health and metrics of a server on both databases: what is wrong is named, also when the database is gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.contract.server_world import SCRIPT, SIM, Site, World, done, failed, leases

from tidemill.model.job import JobSpec
from tidemill.model.metrics import Sample, family, wrong
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.core.meters import Meters
from tidemill.server.database.store import Store
from tidemill.server.watch.health import PROBLEMS, Watched, health
from tidemill.server.watch.metrics import ServerMetrics
from tidemill.wire.api import ActionRequest


def names(world: World) -> list[str]:
    return [problem.name for problem in health(world.reader, Watched(world.dispatcher)).problems]


def read(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_a_server_that_works_has_no_problem(world: World) -> None:
    Site(world).sync()

    found = health(world.reader, Watched(world.dispatcher))

    assert (found.status, found.problems) == ("ok", [])


def test_sites_that_fall_silent_are_told_one_or_all(world: World) -> None:
    Site(world, "near").sync()
    Site(world, "far").sync()
    world.now_s += 200
    Site(world, "near").sync()
    one = names(world)
    world.now_s += 200

    assert one == ["sites_silent"]
    assert names(world) == ["no_site"]
    assert health(world.reader, Watched(world.dispatcher)).status == "degraded"


def test_messages_that_nobody_takes_are_told(world: World) -> None:
    world.dispatcher.writer.write(
        lambda work: work.session.rows(
            "insert_outbox", channel="mail", target="mail:a@b.org", made_us=1, body=b"[]"
        )
    )

    assert names(world) == ["notifications"]


def test_a_full_database_is_told_with_what_to_do(world: World) -> None:
    world.dispatcher.writer.full = True

    found = health(world.reader, Watched(world.dispatcher))

    assert found.status == "full"
    assert "free space" in found.problems[0].hint


@pytest.mark.postgresql
def test_a_database_that_is_gone_is_told_in_health_and_metrics(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tm-pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        options = {**os.environ, "POSTGRESQL_OPTIONS": "-c fsync=off"}
        started = subprocess.run(
            [SCRIPT, "start", f"{folder}/d"], env=options, capture_output=True, text=True, check=False
        )
        if started.returncode:
            pytest.skip(f"PostgreSQL does not start: {started.stderr.strip()}")
        store = Store(url=started.stdout.strip())
        store.init()
        dispatcher = Dispatcher(store)
        reader = store.reader()
        before = health(reader, Watched(dispatcher)).status
        subprocess.run([SCRIPT, "crash", f"{folder}/d"], check=True)

        found = health(reader, Watched(dispatcher))
        told = read(ServerMetrics(Watched(dispatcher)).text(reader, feed_readers=0))

        reader.close()
        dispatcher.close()
    assert before == "ok"
    assert (found.status, [problem.name for problem in found.problems]) == ("failing", ["database_away"])
    assert told['tidemill_server_health{problem="database_away"}'] == 1
    assert "tidemill_server_campaigns" not in told


def test_what_happens_is_counted_as_the_contract_names_it(world: World) -> None:
    site = Site(world)
    world.submit(*[SIM] * 3)
    first, second, _ = leases(site.sync())
    site.sync(done(first), failed(second, 0))

    text = ServerMetrics(Watched(world.dispatcher)).text(world.reader, feed_readers=2)

    found = read(text)
    assert found['tidemill_server_jobs{state="COMPLETED"}'] == 1
    assert found['tidemill_server_jobs{state="FAILED"}'] == 1
    assert found['tidemill_server_events{state="open"}'] == 1
    assert found['tidemill_server_failures_total{class="payload"}'] == 1
    assert found["tidemill_server_submitted_jobs_total"] == 3
    assert found['tidemill_server_reports_total{kind="failure"}'] == 1
    assert found['tidemill_server_orders_total{kind="lease"}'] == 3
    assert found['tidemill_server_sync_seconds_bucket{le="+Inf"}'] == 2
    assert found['tidemill_server_site_state{site="s",state="UP"}'] == 1
    assert found['tidemill_server_site_leased_events{site="s"}'] == 1
    assert found["tidemill_server_feed_readers"] == 2
    assert found["tidemill_server_database_bytes"] > 10_000
    assert {name for name in PROBLEMS if f'tidemill_server_health{{problem="{name}"}}' not in found} == set()


def test_canceled_events_are_a_state_of_their_own(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=5))
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job], events="2-4"))
    found = read(ServerMetrics(Watched(world.dispatcher)).text(world.reader, feed_readers=0))
    states = ("open", "done", "failed", "canceled")
    assert [found[f'tidemill_server_events{{state="{each}"}}'] for each in states] == [2, 0, 0, 3]


def test_a_histogram_adds_up_and_its_labels_are_bounded() -> None:
    meters = Meters()
    for seconds in (0.0005, 0.001, 0.3, 100.0):
        meters.observe("tidemill_server_transaction_seconds", seconds)
    for number in range(500):
        meters.add("tidemill_server_requests_total", route=f"/{number}", method="BREW", status="4xx")

    found = list(meters.samples())
    times = {each.labels: each.value for each in found if each.name.endswith("_bucket")}
    routes = {
        dict(each.labels)["route"] for each in found if family(each.name) == "tidemill_server_requests_total"
    }

    assert wrong(found) == []
    assert [times[(("le", bound),)] for bound in ("0.001", "0.25", "0.5", "30", "+Inf")] == [2, 2, 3, 3, 4]
    assert Sample("tidemill_server_transaction_seconds_count", 4.0) in found
    assert len(routes) == 200
    assert "other" in routes
