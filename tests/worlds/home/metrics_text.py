"""Reading what Prometheus reads; and which metrics only a site on a cluster with a grant has."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tidemill.model.metrics import AGENT, Sample, family

#: the embedded batch system need not serve them: it has no nodes that others use, no plan and no grant
OF_CLUSTER = {
    "tidemill_nodes", "tidemill_batch_polled_time_seconds", "tidemill_waits_for",
    "tidemill_harm_today_seconds", "tidemill_harm_today_low_seconds", "tidemill_harm_today_high_seconds",
    "tidemill_harm_today_jobs",
    "tidemill_grant_node_seconds", "tidemill_left_node_seconds",
    "tidemill_regular_today_jobs", "tidemill_regular_today_wait_seconds", "tidemill_regular_today_harm_seconds",
}  # fmt: skip
#: there is no message queue here: unit/server/test_server_transports.py and test_amqp_gateway.py have one
OF_BROKER = {"tidemill_server_gateway_connected", "tidemill_server_gateway_messages_total"}
#: no cache here: extensions/caches/tests/xcache/test_cache_shown.py has one
OF_CACHES = {each for each in AGENT if each.startswith("tidemill_cache_")}
#: pilots measure every 30 s, later than these end: tests/local/site/test_node_samples.py measures more often
OF_NODES = {
    each for each in AGENT if each.startswith("tidemill_node_") and not each.endswith(("_total", "_nodes"))
}
#: pilots have nothing to remark here: test_image_campaign.py of the extension `images` has some to remark on
OF_IMAGES = {"tidemill_noted_total"}


def samples(text: str) -> list[Sample]:
    """All samples, as Prometheus' own library reads them; a line that is none fails the test."""
    return [
        Sample(each.name, each.value, tuple(each.labels.items()))
        for metric in text_string_to_metric_families(text)
        for each in metric.samples
    ]


def of_site(text: str, site: str) -> list[Sample]:
    """Of an agent: that each has the label `site` first is checked, and it is taken off."""
    found = samples(text)
    assert all(each.labels[0] == ("site", site) for each in found)
    return [each._replace(labels=each.labels[1:]) for each in found]


def families(text: str) -> set[str]:
    """The metrics that there are samples of."""
    return {family(each.name) for each in samples(text)}
