"""The bench's topics: created before a run, deleted after it.

Place: called by loads.py in a thread.
Invariant: names are used once, so that a deletion that is still continuing disturbs no later run.
"""

from __future__ import annotations

import datetime

from headrace.cli.client.offsets import LATEST, list_offsets, partitions_of
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, WrongBrokerError, require
from headrace.protocol.client.transport import client_config
from headrace.storage.errors import NotFoundError

TIMEOUT = datetime.timedelta(seconds=30)


def open_admin(bootstrap: str) -> KafkaCluster:
    """A client of the cluster."""
    return KafkaCluster.of(client_config(bootstrap, None))


def create_topic(bootstrap: str, name: str, partitions: int, replication_factor: int = 1) -> None:
    """Create it, and return once metadata shows its leaders."""
    with open_admin(bootstrap) as cluster:
        m = cluster.message(ApiKey.CREATE_TOPICS)
        topic = m.make(
            "CreatableTopic",
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=(),
        )

        def create() -> None:
            cluster.nodes()
            request = m.request(topics=(topic,), timeout=TIMEOUT, validate_only=False)
            (answer,) = cluster.ask(ApiKey.CREATE_TOPICS, request, cluster.controller).topics
            require(answer.error_code, answer.error_message, name)

        cluster.look_again(create)
        cluster.look_again(lambda: _see(cluster, name))


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete it with its records."""
    with open_admin(bootstrap) as cluster:
        m = cluster.message(ApiKey.DELETE_TOPICS)

        def delete() -> None:
            cluster.nodes()
            request = m.request(topic_names=(name,), timeout=TIMEOUT)
            (answer,) = cluster.ask(ApiKey.DELETE_TOPICS, request, cluster.controller).responses
            require(answer.error_code, getattr(answer, "error_message", None), name)

        cluster.look_again(delete)


def count_records(bootstrap: str, name: str, partitions: int) -> int:
    """Records of the topic, by its partitions' latest offsets."""
    with open_admin(bootstrap) as cluster:
        return sum(list_offsets(cluster, {(name, index): LATEST for index in range(partitions)}).values())


def _see(cluster: KafkaCluster, name: str) -> None:
    try:
        partitions_of(cluster, [name])
    except NotFoundError as error:
        raise WrongBrokerError(f"not in the metadata yet: {name}") from error
