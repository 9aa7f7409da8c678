"""The number of parallel jobs and the byte rate of a process, both adjustable at run time.

Place: a task next to the job loop; compactor/worker.py applies the changes.
Invariant: a cluster-wide broker config takes effect within LOOK_SECONDS on every worker, whether it is a broker or
not; one of an agent, on the worker in its process only. Running jobs are finished. While the metastore is unavailable
the last known pace applies.
Source: KIP-226, Kafka's DynamicBrokerConfig (log cleaner).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from headrace.compactor.runner import no_agent
from headrace.metastore.api.cluster import BrokerConfigApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class Pace(NamedTuple):
    """compactor.threads, compactor.io.max.bytes.per.second, log.cleaner.io.max.bytes.per.second."""

    jobs: int
    bytes_per_s: int
    cleaning_bytes_per_s: int


def pace(configs: EffectiveConfigs, said: Mapping[str, str]) -> Pace:
    """`said`: broker configs that are set; this process's settings apply where there is none."""
    return Pace(
        int(configs.cluster_value(said, "compactor.threads")),
        int(configs.cluster_value(said, "compactor.io.max.bytes.per.second")),
        int(configs.cluster_value(said, "log.cleaner.io.max.bytes.per.second")),
    )


async def follow_pace(
    api: BrokerConfigApi,
    configs: EffectiveConfigs,
    clock: Clock,
    change: Callable[[Pace], Awaitable[None]],
    node_id: Callable[[], int | None] = no_agent,
) -> None:
    """Never returns: calls `change` with each new pace, first if the pace is not that of the settings. `node_id`: of
    the agent in this process."""
    known = pace(configs, {})
    while True:
        try:
            broker = node_id()
            said = await (api.cluster_configs() if broker is None else api.broker_configs(broker))
            wanted = pace(configs, said)
            if wanted != known:
                await change(wanted)
                known = wanted
                logger.info("pace of background work changed: jobs=%d bytes_per_s=%d cleaning_bytes_per_s=%d", *wanted)
        except HeadraceError as error:
            logger.warning("cannot read pace of background work: error=%s", error)
        await clock.sleep(LOOK_SECONDS)
