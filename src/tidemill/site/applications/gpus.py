"""How many GPUs a node of the site has for us."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.devices import GPU, with_shares
from tidemill.node.binary import find_binary
from tidemill.node.gpus import count_gpus


def gpus_of_node(config: SiteConfig) -> int | None:
    """What pilots use at most; None = what they find that the allocation gives. Several emulated nodes are one machine:
    they have none unless the site says so."""
    if config.node.gpus is not None or config.batch != "local":
        return config.node.gpus
    return None if config.local.nodes == 1 else 0


def slot_devices(config: SiteConfig, found: Mapping[str, int]) -> dict[str, int]:
    """What a slot of the site can have. `found`: devices of a node as the batch system names them."""
    gpus = gpus_of_node(config)
    if gpus is None and config.batch == "local":
        gpus = _of_this_machine()
    if gpus is None:
        return with_shares(found)
    others = {kind: number for kind, number in found.items() if kind != GPU}
    return with_shares({**others, GPU: gpus} if gpus else others)


def _of_this_machine() -> int:
    try:
        return count_gpus(find_binary())
    except ConfigError:
        return 0  # the site does not start without the binary, and says so
