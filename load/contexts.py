"""A process's context for benchmarks and tests: what is not given is in memory, or a plain default."""

from __future__ import annotations

import random
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.config.settings import Settings
from headrace.metastore.process_context import ProcessContext
from headrace.storage.clock import Clock
from headrace.storage.supervision import Supervisor


def a_context(
    metastore: Any,
    clock: Clock,
    *,
    store: Any = None,
    settings: Settings | None = None,
    rng: random.Random | None = None,
    registry: CollectorRegistry | None = None,
    supervisor: Supervisor | None = None,
) -> ProcessContext:
    """Return one. `metastore`: a Metastore, or what answers as one; `store`: None if nothing asks the bucket."""
    return ProcessContext(
        settings=settings or Settings(),
        store=cast(Any, store),
        metastore=cast(Any, metastore),
        clock=clock,
        rng=rng or random.Random(1),
        registry=registry or CollectorRegistry(),
        supervisor=supervisor or Supervisor(clock),
    )
