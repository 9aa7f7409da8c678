"""Finds a cluster by its agents: what a scan or a write needs is in an agent's own configs.

Place: before settings are made of options, on Spark's driver. Executors get what was found from the driver.
Invariant: agents show no secrets (config/broker_configs.py): the bucket's keys come from the environment of driver and
executors, and metastore.url too, unless the metastore is local and needs no password (`headrace dev`). What is given as
an option or a variable comes first. Only PLAINTEXT listeners are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeConfigsRequest

from headrace.config.declared import declared
from headrace.config.settings import Settings
from headrace.scan.background_loop import BackgroundLoop
from headrace.scan.errors import OptionError
from headrace.scan.options import BOOTSTRAP, settings_of

ASKED = (
    "bucket",
    "metastore.url",
    "s3.endpoint",
    "s3.expected.bucket.owner",
    "s3.kms.key.id",
    "s3.path.style",
    "s3.region",
    "s3.server.side.encryption",
)
OPTIONAL = ("s3.expected.bucket.owner", "s3.kms.key.id", "s3.server.side.encryption")
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
