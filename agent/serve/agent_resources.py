"""What an agent has before it finds its cluster.

Place: made by broker.py; paths.py makes the request paths of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.quotas.service import QuotaService
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.fetch.steps import FetchSteps
from headrace.agent.listener.server import KafkaListener
from headrace.agent.produce.observer import ProduceObserver
from headrace.agent.produce.trace import FileTrace
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResources:
    """What an agent has before it finds its cluster, and the paths are made of."""

    settings: Settings
    store: ObjectStore
    metastore: Metastore
    clock: Clock
    rng: random.Random
    nonces: random.Random
    registry: CollectorRegistry
    listener: KafkaListener
    dispatcher: Dispatcher
    quotas: QuotaService
    audit: AuditLog
    sealing: Sealing
    supervisor: Supervisor
    securities: Mapping[str, ListenerSecurity]
    """Security of the listeners that are not PLAINTEXT, by name; filled when they are bound."""
    observer: ProduceObserver | None
    """What traces produce requests, if anything does."""
    fetch_steps: FetchSteps
    on_settled: Callable[[FileTrace], None]
    """Gets the times of each flushed file's steps."""
    is_active_controller: Callable[[], bool]
    reached_here: Callable[[], frozenset[str]]
    """The dependencies that answer this process."""
