"""The number of parallel jobs and the byte rate of a process, both adjustable at run time.

Place: a task next to the job loop; compactor/worker.py applies the changes.
Invariant: a cluster-wide broker config takes effect on every worker, whether it is a broker or not, within LOOK_SECONDS
of the change; next to an agent or a controller, of the record in its image. One of an agent takes effect on the worker
in its process only. Running jobs are finished. While the metastore is unavailable the last known pace applies.
Source: KIP-226, Kafka's DynamicBrokerConfig (log cleaner).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0

SaidHere = Callable[[], Mapping[str, str] | None]
"""The broker configs in the image of this process's agent or controller; None if there is no such image, or not yet."""


def no_image() -> None:
    """The configs in a process without agent and controller."""


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
    api: ClusterApi,
    configs: EffectiveConfigs,
    clock: Clock,
    change: Callable[[Pace], Awaitable[None]],
    said_here: SaidHere = no_image,
) -> None:
    """Never returns: calls `change` with each new pace, first if the pace is not that of the settings. The metastore is
    asked only if this process has no image."""
    known = pace(configs, {})
    while True:
        try:
            said = said_here()
            wanted = pace(configs, await api.cluster_configs() if said is None else said)
            if wanted != known:
                await change(wanted)
                known = wanted
                logger.info("pace of background work changed: jobs=%d bytes_per_s=%d cleaning_bytes_per_s=%d", *wanted)
        except HeadraceError as error:
            logger.warning("cannot read pace of background work: error=%s", error)
        await clock.sleep(LOOK_SECONDS)
