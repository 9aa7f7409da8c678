"""The connections of a scan: metastore with bucket of one cluster, found by its agents if no setting names them.

Place: composes a process: Spark's driver opens both to plan, its executors only the bucket; so does `headrace
export`. The driver asks agents before settings are made of options; executors get what was found from the driver.
Invariant: the bucket is the one that the metastore names, and the bucket says that this server is the metastore, or
nothing is read or written. It is asked again every 2 seconds: no call that writes, a read pin included, is made to
an old primary (metastore/life/watch.py).
Invariant of what agents answer: agents show no secrets (config/broker_configs.py): the bucket's keys come from the
environment of driver and executors, and metastore.url too, unless the metastore is local and needs no password
(`headrace dev`). What is given as an option or a variable comes first. Only PLAINTEXT listeners are asked.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeConfigsRequest

from headrace.config.declared import declared
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.life.watch import FollowedLife, follow_life
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.background_loop import BackgroundLoop
from headrace.scan.errors import OptionError
from headrace.scan.inline_waits import InlineWaits
from headrace.scan.options import BOOTSTRAP, settings_of
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """What an executor needs to read segment files, apart from credentials, which come from its environment."""

    url: str
    options: StoreOptions

    @classmethod
    def of(cls, settings: Settings) -> BucketAddress:
        return cls(settings.bucket, StoreOptions.of(settings))

    def open(self, clock: Clock, rng: random.Random) -> ObjectStore:
        """The store; errors as open_store."""
        return open_store(self.url, self.options, clock=clock, rng=rng)


@dataclass(frozen=True, slots=True)
class ScannedCluster:
    """Open connections. `rng` and `clock` are the process's."""

    metastore: Metastore
    store: ObjectStore
    clock: Clock
    rng: random.Random
    life: FollowedLife | None = None
    """None: the process compares the life for all of its connections (the role `tables`)."""


@asynccontextmanager
async def open_cluster(settings: Settings) -> AsyncIterator[ScannedCluster]:
    """Both connections, checked. Errors as PostgresMetastore.open, require_bucket and follow_life."""
    clock, rng = SystemClock(), random.Random()
    small = msgspec.structs.replace(settings, metastore_pool_size=1)
    metastore = await PostgresMetastore.open(settings.metastore_url, small)
    try:
        store = BucketAddress.of(settings).open(clock, rng)
        try:
            await require_bucket(metastore.life, store, settings.bucket)
            async with follow_life(metastore.life, store, clock, rng) as life:
                yield ScannedCluster(metastore, InlineWaits(store, metastore.inline, clock), clock, rng, life)
        finally:
            await store.close()
    finally:
        await metastore.close()


ASKED = (
    "azure.endpoint",
    "bucket",
    "gcs.endpoint",
    "metastore.url",
    "s3.endpoint",
    "s3.expected.bucket.owner",
    "s3.kms.key.id",
    "s3.path.style",
    "s3.region",
    "s3.server.side.encryption",
)
OPTIONAL = (
    "azure.endpoint",
    "gcs.endpoint",
    "s3.expected.bucket.owner",
    "s3.kms.key.id",
    "s3.server.side.encryption",
)
"""Settings among these that may be missing: most clusters have none, so no agent is asked for them alone."""
TIMEOUT_MS = 10_000
_NAME, _VALUE = 0, 1
"""Places in an entry of DescribeConfigs' response."""


def cluster_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """Return what settings_of does; what is missing comes from an agent, if there is the option
    kafka.bootstrap.servers.

    OptionError, also if no agent answers. Blocks, at most for some seconds.
    """
    servers = next((value for name, value in options.items() if name.lower() == BOOTSTRAP), None)
    given = {name.lower() for name in options}
    missing = [name for name in ASKED if name not in given and declared()[name].environment not in environ]
    if servers is None or not set(missing) - set(OPTIONAL):
        return settings_of(options, environ)
    found = agent_configs(servers, missing)
    if "metastore.url" in missing and "metastore.url" not in found:
        raise OptionError(
            "metastore.url is not set: agents show it only if the metastore is on their machine and needs no password."
            f" Give the option metastore.url, or {declared()['metastore.url'].environment} to the driver"
        )
    return settings_of({**options, **found}, environ)


def agent_configs(servers: str, names: Sequence[str]) -> dict[str, str]:
    """Return what the first agent that answers shows of these settings, without those that it does not show. Blocks.

    OptionError if none answers.
    """
    loop = BackgroundLoop()
    try:
        shown = loop.run(_ask(servers, names))
    finally:
        loop.close()
    return {name: shown[name] for name in names if shown.get(name)}


async def _ask(servers: str, names: Sequence[str]) -> dict[str, str]:
    """The configs of the first agent that answers."""
    client = AIOKafkaClient(
        bootstrap_servers=[server.strip() for server in servers.split(",")], request_timeout_ms=TIMEOUT_MS
    )
    problem: Exception | None = None
    try:
        await client.bootstrap()
        for agent in client.cluster.brokers():
            try:
                return await _configs(client, agent.nodeId, names)
            except KafkaError as error:
                problem = error
    except (KafkaError, OSError, ValueError) as error:
        problem = error
    finally:
        await client.close()
    raise OptionError(f"no agent answers: {BOOTSTRAP}={servers}: {problem or 'it knows no live agent'}") from problem


async def _configs(client: AIOKafkaClient, node_id: int, names: Sequence[str]) -> dict[str, str]:
    request = DescribeConfigsRequest(resources=[(ConfigResourceType.BROKER, str(node_id), list(names))])
    response = await client.send(node_id, request)
    ((*_, configs),) = response.resources
    return {config[_NAME]: config[_VALUE] for config in configs if config[_VALUE]}
