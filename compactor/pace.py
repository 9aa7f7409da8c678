"""How many jobs a process works on, and how many bytes a second they move: followed while it runs.

Place: a task beside the job loop; compactor/worker.py turns the knobs.
Invariant: what an operator sets for all brokers acts within LOOK_SECONDS on every worker, whether it is a broker or
not; jobs in hand are finished. While the metastore is away the last known pace holds. If the process dies here
nothing is lost.
Source: KIP-226, Kafka's DynamicBrokerConfig (log cleaner).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from headrace.metastore.configs import ConfigApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class Pace(NamedTuple):
    """log.cleaner.threads and log.cleaner.io.max.bytes.per.second."""

    jobs: int
    bytes_per_s: int


def pace(configs: EffectiveConfigs, cluster: Mapping[str, str]) -> Pace:
    """`cluster`: what was set for all brokers; this process's settings hold where it says nothing."""
    return Pace(
        int(configs.cluster_value(cluster, "log.cleaner.threads")),
        int(configs.cluster_value(cluster, "log.cleaner.io.max.bytes.per.second")),
    )


async def follow_pace(
    api: ConfigApi, configs: EffectiveConfigs, clock: Clock, change: Callable[[Pace], Awaitable[None]]
) -> None:
    """For ever: `change` is called with each new pace, the first time when it is not that of the settings."""
    known = pace(configs, {})
    while True:
        try:
            wanted = pace(configs, await api.cluster_configs())
            if wanted != known:
                await change(wanted)
                known = wanted
                logger.info("pace of background work changed: jobs=%d bytes_per_s=%d", *wanted)
        except HeadraceError as error:
            logger.warning("pace of background work not read: error=%s", error)
        await clock.sleep(LOOK_SECONDS)
