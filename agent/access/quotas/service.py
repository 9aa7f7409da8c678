"""Client quotas composed: the enforcer on the listener, the exchange with other agents, and who uses how much.

Place: created by agent/serve/broker.py.
Invariant: the listener asks the enforcer only while some client has a quota; what clients use is always counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.access.quotas.exchange import QuotaExchange
from headrace.agent.access.quotas.metrics import QuotaMetrics
from headrace.agent.access.quotas.mutations import MutationQuotas, mutation_quotas
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.process_context import ProcessContext


class LimitedListener(Protocol):
    """The listener as quotas see it."""

    def limit_connections(self, is_in_quota: Callable[[str], bool]) -> None:
        """Ask before a client's address gets one more connection."""

    def limit_clients(self, quotas: QuotaEnforcer | None) -> None:
        """Ask the enforcer about each request; None: about none."""

    def count_clients(self, traffic: ClientTraffic) -> None:
        """Count the requests and answers of each client."""


class QuotaService:
    """`on_image` after each change of the image; `run` while the agent serves."""

    def __init__(
        self,
        context: ProcessContext,
        listener: LimitedListener,
        own_node_id: Callable[[], int | None],
    ) -> None:
        clock, registry = context.clock, context.registry
        metrics = QuotaMetrics(registry)
        self._listener = listener
        self._enforcer = QuotaEnforcer(clock, metrics, self._enforce)
        self._exchange = QuotaExchange(
            self._enforcer, context.metastore.cluster, own_node_id, metrics, clock, context.rng
        )
        self._traffic = ClientTraffic(context.settings.client_metrics_max, registry)
        if self._traffic.is_on:
            listener.count_clients(self._traffic)
        listener.limit_connections(self._enforcer.may_connect)

    def memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "quota_clients": lambda: self._enforcer.in_use_bytes,
            "client_traffic": lambda: self._traffic.in_use_bytes,
        }

    @property
    def mutations(self) -> MutationQuotas:
        """The quotas of changes, for the handlers that create and delete partitions."""
        return mutation_quotas(self._enforcer)

    def on_image(self, image: MetadataImage) -> None:
        """Take over its quotas."""
        self._enforcer.on_image(image)

    async def run(self) -> None:
        """Share limits with the other agents, until cancelled."""
        await self._exchange.run()

    def _enforce(self, quotas: QuotaEnforcer | None) -> None:
        self._listener.limit_clients(quotas)
        self._exchange.on_quotas()
