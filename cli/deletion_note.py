"""Say until when, and by which command, a deleted topic can be restored: what the tools that delete topics say.

Place: under `headrace topics delete` and the console.
Invariant: says nothing of a cluster without the setting file.delete.delay.ms of Headrace, or if the user may not read
it.
"""

from __future__ import annotations

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.configs import BROKER, describe_configs
from headrace.cli.times import iso_time
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

DELAY = "file.delete.delay.ms"


def restorable_for_ms(cluster: KafkaCluster) -> int | None:
    """Return for how long the cluster keeps what a deletion removes; None if it does not say, or deletes at once."""
    try:
        found = describe_configs(cluster, (BROKER, ""), [DELAY]) or describe_configs(
            cluster, (BROKER, str(min(cluster.nodes()))), [DELAY]
        )
    except HeadraceError:  # the topic is deleted, and this user may not read the setting
        return None
    value = next((str(config.value) for config in found if config.name == DELAY), "")
    return int(value) if value.isdecimal() and int(value) else None


def restore_note(topic: str, delay_ms: int, clock: Clock) -> str:
    """Return the sentence for people."""
    until = iso_time(clock.wall_ms() + delay_ms)
    return f"{topic} can be restored until {until}: headrace topics restore {topic} --metastore-url …"
