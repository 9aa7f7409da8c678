"""What enforced ACLs cost an agent: the index, and each Produce and Fetch request.

`python -m load acls [--acls 10000]`. Produce: the write path of load/benchmarks/request.py with and without ACLs, in
turns; the least of many rounds counts. Fetch: the time for the questions of one request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.agent.access.authorization.access import EMPTY
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import ALLOW, LITERAL, PREFIXED, AclOperation, AclResource
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.fetch.sessions import AllowedTopics, Ref
from headrace.agent.listener.connection import KafkaConnection
from headrace.agent.listener.host import ConnectionHost, Limits
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ANONYMOUS, ClientConnection, Request
from headrace.storage.clock import SystemClock
from load.benchmarks.request import (
    PARTITIONS,
    PLENTY,
    REQUESTS,
    TOPIC,
    FixedView,
    YesMetastore,
    YesStore,
    a_connection,
    one_round,
)
from load.contexts import a_context
from load.harness import Benchmark, BenchmarkRun
from load.workloads.raw_producer import ProduceWorkload, Sequenced

ROUNDS = 200
REQUEST_BYTES = 1024


def acls(count: int) -> frozenset[AccessControlRecord]:
    """Return the acls of many topics and principals, and those that the client needs."""
    own = [_acl(TOPIC.name, LITERAL, operation, ANONYMOUS) for operation in (AclOperation.READ, AclOperation.WRITE)]
    others = [
        _acl(f"team-{n // 10}.topic-{n}", PREFIXED if n % 2 else LITERAL, AclOperation.READ, f"User:user-{n // 20}")
        for n in range(count)
    ]
    return frozenset((*own, *others))


def _acl(name: str, pattern_type: int, operation: int, principal: str) -> AccessControlRecord:
    return AccessControlRecord(
        resource_type=AclResource.TOPIC,
        resource_name=name,
        pattern_type=pattern_type,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=ALLOW,
    )


class ViewWithAcls(FixedView):
    """The cluster of load/benchmarks/request.py, with ACLs."""

    def __init__(self, known: frozenset[AccessControlRecord]) -> None:
        self.image = replace(FixedView.image, access_controls=known)


def _least(work: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(times):
            work()
        spent.append((time.process_time() - started) / times)
    return min(spent) * 1e6


async def _write_path(authorizer: Authorizer | None) -> tuple[ProducePipeline, KafkaConnection]:
    clock, registry = SystemClock(), CollectorRegistry()
    pipeline = ProducePipeline(
        a_context(
            YesMetastore(),
            clock,
            store=YesStore(),
            settings=Settings(linger_ms=0, flush_bytes=PLENTY),
            registry=registry,
        ),
        cast(Any, FixedView()),
        Callbacks(database_now_ms=clock.wall_ms),
        seen=None,
        authorizer=authorizer,
    )
    await pipeline.start()
    dispatcher = Dispatcher()
    dispatcher.register(ApiKey.PRODUCE, pipeline.handle)
    limits = Limits(PLENTY, PLENTY, REQUESTS + 1, 1, 600_000)
    return pipeline, a_connection(ConnectionHost(dispatcher.handle, limits, clock, ListenerMetrics(registry)))


async def _produce(run: BenchmarkRun, authorizer: Authorizer) -> None:
    without, plain = await _write_path(None)
    with_acls, judged = await _write_path(authorizer)
    frames = Sequenced(ProduceWorkload("", 0, TOPIC.name, PARTITIONS, REQUEST_BYTES, 1, 1, 1, 0, -1), -1)
    load = b"".join(frames.frame() for _ in range(REQUESTS))
    spent: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        for name, connection in random.sample((("without", plain), ("with", judged)), 2):
            spent[name].append(sum(await one_round(connection, load)))
    await without.close()
    await with_acls.close()
    off, on = min(spent["without"]), min(spent["with"])
    run.row("produce", {"us without ACLs": off, "us with them": on, "of without": on / off})


def _fetch(run: BenchmarkRun, authorizer: Authorizer) -> None:
    allowed = AllowedTopics(authorizer, cast(Any, FixedView()))
    request = Request(ClientConnection(1, "127.0.0.1:1"), 1, 12, 1, None, memoryview(b""), 0.0)
    for count in (1, 12, 1000):
        wanted: dict[Ref, None] = {(TOPIC.name, index): None for index in range(count)}
        spent = _least(partial(allowed.split, request, wanted), 200)
        run.row(f"fetch, {count} partitions", {"us to ask": spent})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--acls", type=int, default=10_000)


def benchmark(run: BenchmarkRun) -> None:
    known = acls(run.args.acls)
    started = time.process_time()
    index = EMPTY.changed(known)
    built = time.process_time() - started
    changed = _least(lambda: index.changed(known - {next(iter(known))}), 1)
    run.row(f"index of {len(known):,} ACLs", {"ms": built * 1e3, "ms a change": changed / 1e3})
    authorizer = Authorizer(Settings(authorizer_class_name=STANDARD_AUTHORIZER), cast(Any, ViewWithAcls(known)))
    asyncio.run(_produce(run, authorizer))
    _fetch(run, authorizer)
    names = [f"topic-{uuid.UUID(int=n)}" for n in range(1000)]
    access = authorizer.of("User:user-7", "127.0.0.1")
    started = time.process_time()
    for name in names:
        access.allows(AclOperation.READ, AclResource.TOPIC, name)
    run.row("a decision that was not kept", {"us": (time.process_time() - started) / len(names) * 1e6})


BENCHMARK = Benchmark(
    "what enforced ACLs cost an agent: the index, and each Produce and Fetch request", benchmark, add_arguments
)
