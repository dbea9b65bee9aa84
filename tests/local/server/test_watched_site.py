"""A real server, agent, mail server, receiver of web hooks and Prometheus: what is told and counted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draw_dashboard
import msgspec
import pytest
from tests.worlds.home.metrics_text import (
    OF_BROKER,
    OF_CACHES,
    OF_CLUSTER,
    OF_IMAGES,
    OF_NODES,
    families,
    of_site,
    samples,
)
from tests.worlds.home.watched_world import BUSY_SITE, SECRETS, Watched, watched
from tests.worlds.services.ports import free_port

from tidemill.client.client import Wishes
from tidemill.config.addressee import Occasion
from tidemill.model.job import JobSpec
from tidemill.model.metrics import ALL, wrong
from tidemill.model.notification import Subscription
from tidemill.server.notify.hook import sign
from tidemill.wire.notification import CampaignNews, Digest

ME = "mail:me@example.org"
DEPLOY = Path(__file__).parents[3] / "deploy"
GOOD = JobSpec(command=["/bin/sh", "-c", "exit 0"], events=20)
BAD = JobSpec(command=["/bin/sh", "-c", "echo broken geometry >&2; exit 3"], events=2, retries=0, name="bad")


@pytest.fixture(scope="module")
def world() -> Iterator[Watched]:
    with watched(BUSY_SITE) as it:
        it.mail.start()
        it.hook.start()
        it.start_server()
        it.start_agent()
        wants = [
            Subscription(to=ME, when=[Occasion.CAMPAIGN]),
            Subscription(to="mail:jobs@example.org", when=[Occasion.JOB]),
            Subscription(to="hook:chat", when=[Occasion.CAMPAIGN]),
            Subscription(to="hook:nobody"),
        ]
        it.client.submit([GOOD, BAD], campaign="first", wishes=Wishes(notify=wants))
        names = {"me@example.org", "jobs@example.org"}
        it.until(
            lambda: names <= {mail["X-Env-To"] for mail in it.mail.mails()} and bool(it.hook.posts()),
            "the first campaign is told",
        )
        yield it


def server_text(world: Watched) -> str:
    text = world.get("/metrics", world.port, SECRETS["server"])
    assert text is not None
    return text


def agent_text(world: Watched) -> str:
    text = world.get("/metrics", world.metrics_port, SECRETS["agent"])
    assert text is not None
    return text


# ---- mail --------------------------------------------------------------------------------------------------------


def test_a_campaigns_end_is_mailed_with_figures_and_the_next_step(world: Watched) -> None:
    (mail,) = [mail for mail in world.mail.mails() if mail["X-Env-To"] == "me@example.org"]
    text = mail.get_content()

    assert mail["Subject"].endswith("is done: 1 FAILED, 1 COMPLETED")
    assert "payload:" in text
    assert "broken geometry" in text or "exit status 3" in text
    assert re.search(r"tidemill errors --campaign \S+/first\b", text)


def test_the_same_comes_to_a_web_hook_signed(world: Watched) -> None:
    (post,) = world.hook.posts()
    headers, body = post["headers"], post["body"].encode()
    told = msgspec.json.decode(body, type=Digest)

    assert headers["webhook-signature"] == sign(
        SECRETS["hook"].encode(), headers["webhook-id"], int(headers["webhook-timestamp"]), body
    )
    (item,) = told.items
    assert isinstance(item, CampaignNews)
    assert item.figures is not None
    assert (item.campaign, item.figures.states) == ("first", {"COMPLETED": 1, "FAILED": 1})


# ---- metrics -----------------------------------------------------------------------------------------------------


def test_every_sample_of_server_and_agent_keeps_the_contract(world: Watched) -> None:
    def values() -> dict[tuple[str, ...], float]:
        found = [*samples(server_text(world)), *of_site(agent_text(world), "here")]
        return {(each.name, *(value for _, value in each.labels)): each.value for each in found}

    least = {  # each is told within some seconds: the agent writes every few heartbeats, the server looks again
        ("tidemill_server_jobs", "COMPLETED"): 1, ("tidemill_server_reports_total", "done"): 1,
        ("tidemill_server_notifications_waiting", "hook"): 1, ("tidemill_events_total", "kept"): GOOD.events,
    }  # fmt: skip
    world.until(lambda: all(values().get(key, 0) >= least[key] for key in least), "what happened is counted")
    assert wrong(samples(server_text(world))) == []
    assert wrong(of_site(agent_text(world), "here")) == []


def test_every_metric_of_the_contract_is_served(world: Watched) -> None:
    """Those of a cluster: test_site_harvest_slurm.py, on a real Slurm; of a broker, caches and images: metrics_text."""

    def missing() -> set[str]:
        return set(ALL) - families(server_text(world) + agent_text(world))

    world.until(
        lambda: missing() <= OF_CLUSTER | OF_BROKER | OF_CACHES | OF_IMAGES | OF_NODES,
        "all metrics are served",
    )


def test_metrics_are_for_those_who_know_the_secret(world: Watched) -> None:
    for port in (world.port, world.metrics_port):
        assert world.get("/metrics", port) is None
        assert world.get("/metrics", port, "a wrong secret of some length") is None
    assert world.get("/elsewhere", world.metrics_port, SECRETS["agent"]) is None


def test_the_copy_for_node_exporter_is_the_same(world: Watched) -> None:
    def names(path: str) -> set[str]:
        return {each.name for each in samples((world.home / path).read_text())}

    # the agent may be between the one and the other
    world.until(
        lambda: names("textfile/tidemill-here.prom") == names("site/metrics.prom") != set(),
        "both have the same metrics",
    )


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"`{name}` is not installed: Debian's package prometheus has it")
    return found


def test_promtool_finds_nothing_to_say(world: Watched) -> None:
    for text in (server_text(world), agent_text(world)):
        done = subprocess.run(
            [tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_alerts_and_example_configuration_are_sound() -> None:
    rules = subprocess.run(
        [tool("promtool"), "check", "rules", DEPLOY / "prometheus-alerts.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    config = subprocess.run(
        [tool("promtool"), "check", "config", "--syntax-only", DEPLOY / "prometheus.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert rules.returncode == 0, rules.stderr
    assert config.returncode == 0, config.stderr + config.stdout


def queries() -> list[tuple[str, str]]:
    """(panel, expression) of the dashboard as it is delivered, and of the alerts."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found = [
        (panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])
    ]
    alerts = re.findall(r"alert: (\w+)\n\s+expr: (.*)", (DEPLOY / "prometheus-alerts.yml").read_text())
    return [*found, *alerts]


def test_the_dashboard_is_as_drawn_and_asks_only_for_metrics_of_the_contract() -> None:
    assert (DEPLOY / "grafana-dashboard.json").read_text() == draw_dashboard.drawn()
    for panel, expression in queries():
        bare = re.sub(r'"[^"]*"', '""', expression)
        for name in re.findall(r"\btidemill_\w+", bare):
            stem = name.removesuffix("_bucket")
            assert stem in ALL, f"{panel}: {name}"
            named = re.findall(rf"{name}\{{([^}}]*)\}}", expression)
            labels = set(re.findall(r"(\w+)=", ",".join(named)))
            assert labels <= {*ALL[stem].labels, "site"}, f"{panel}: {labels}"


@pytest.fixture
def prometheus(world: Watched, tmp_path: Path) -> Iterator[int]:
    """A real Prometheus that scrapes both, and node_exporter's if it is there; its port."""
    port = free_port()
    exporter = shutil.which("prometheus-node-exporter")
    node_port = free_port()
    jobs = [
        ("tidemill-server", world.port, "server.secret"),
        ("tidemill-agent", world.metrics_port, "agent.secret"),
    ]
    text = "global: { scrape_interval: 1s, scrape_timeout: 1s }\nscrape_configs:\n"
    for name, at, secret in jobs:
        text += f"  - job_name: {name}\n    authorization: {{ credentials_file: {world.home / secret} }}\n"
        text += f'    static_configs: [{{ targets: ["127.0.0.1:{at}"] }}]\n'
    if exporter:
        text += f'  - job_name: node\n    static_configs: [{{ targets: ["127.0.0.1:{node_port}"] }}]\n'
    (tmp_path / "prometheus.yml").write_text(text)
    commands = [
        [
            tool("prometheus"), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ],
    ]  # fmt: skip
    if exporter:
        commands.append(
            [
                exporter, "--collector.disable-defaults", "--collector.textfile",
                f"--collector.textfile.directory={world.home}/textfile", f"--web.listen-address=127.0.0.1:{node_port}",
            ]
        )  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        wanted = len(commands) + 1
        world.until(lambda: len(ask(world, port, "up == 1")) == wanted, "everything is scraped")
        yield port
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def ask(world: Watched, port: int, expression: str) -> list[Any]:
    """The result of a query; an expression that Prometheus refuses fails the test."""
    text = world.get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}", port)
    if text is None:
        return []
    answer = json.loads(text)
    assert answer["status"] == "success", (expression, answer)
    result: list[Any] = answer["data"]["result"]
    return result


def test_a_real_prometheus_scrapes_all_and_answers_every_query_of_the_dashboard(
    world: Watched, prometheus: int
) -> None:
    for counter in ("tidemill_server_requests_total", "tidemill_failures_total", "tidemill_events_total"):
        rate = f"rate({counter}[10s])"
        world.until(lambda rate=rate: bool(ask(world, prometheus, rate)), f"two scrapes: {rate}")  # type: ignore[misc]
    # The embedded batch system shows no nodes, nobody waits for us, there is no grant, no plan and no cache
    silent = {"Nodes", "Waits of others because of us", "Grants", "Why no more nodes are asked for"}
    silent |= {"Bytes of caches", "Hits without prefetch", "Caches that do not answer, or are too small"}
    # pilots measure every 30 s, later than this ends
    silent |= {"CPU of nodes", "Pressure", "Memory of nodes", "Network of nodes", "NFS and Lustre from nodes"}
    silent |= {"NFS round trip", "Files opened and closed from nodes"}
    empty = set()
    for panel, expression in queries():
        asked = expression.replace("$__rate_interval", "10s").replace("$site", ".*")
        check = world.get(f"/api/v1/query?{urllib.parse.urlencode({'query': asked})}", prometheus)
        assert check is not None, f"Prometheus refuses `{asked}` of `{panel}`"
        if not json.loads(check)["data"]["result"]:
            empty.add(panel)

    alerts = {name for name in empty if name.startswith("Tidemill")}
    assert len(alerts) >= 5  # nothing is wrong here, so most alerts are silent
    assert empty - alerts <= {*silent, "Time of a query", "Slots busy"}


# ---- health ------------------------------------------------------------------------------------------------------


def test_health_says_what_is_wrong_and_names_nobody(world: Watched) -> None:
    text = world.get("/health", world.port)

    assert text is not None
    found = json.loads(text)
    assert found["status"] in ("ok", "degraded")
    assert "here" not in text
    assert set(found) == {"status", "version", "database", "now_us", "problems", "role"}
