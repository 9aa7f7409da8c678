"""X14 with another Headrace as the source: its Postgres is promoted meanwhile, so its leader epochs rise by a life."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.bench.topic_admin import open_admin
from headrace.protocol.link_requests import LinkOp, LinkRequest
from load.agent_child import AgentChild
from load.dev_server import DevServer
from load.postgres_servers import Servers, ask
from tests.agent_process import format_storage
from tests.compat.link_source import PARTITIONS, read, write_transactions
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.requirement("X14")]
LINK = "old"
LIFE_EPOCHS = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[str, Servers]]:
    """An agent's address, and its Postgres servers: a primary and a standby."""
    tmp_path.chmod(0o711)
    with ExitStack() as stack:
        servers = stack.enter_context(Servers())
        servers.add_standby("standby")
        servers.replicate_synchronously()
        shared = {"metastore.url": servers.url("primary", "standby"), "bucket": (tmp_path / "bucket").as_uri()}
        format_storage(shared | {"metastore.url": servers.url("primary")})
        agent = stack.enter_context(AgentChild(shared, tmp_path / "source.log"))
        yield agent.kafka, servers


def _write(bootstrap: str, text: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(300):
        producer.produce("payments", f"{text} {number}", f"k{number % 7}", number % PARTITIONS)
    assert producer.flush(120) == 0


def _is_whole(here: str, records: int) -> bool:
    with open_admin(here) as cluster:
        (link,) = cluster.links(LinkRequest(op=LinkOp.SHOW, link=LINK)).links
    return link.records >= records and link.lag == 0 and not link.problems


def test_a_headrace_is_copied_on_after_a_promotion_of_its_metastore(
    source: tuple[str, Servers], tmp_path: Path
) -> None:
    theirs, servers = source
    admin = AdminClient({"bootstrap.servers": theirs})
    admin.create_topics([NewTopic("payments", PARTITIONS, 1)])["payments"].result(60)
    write_transactions(theirs, 4)
    _write(theirs, "before")
    with DevServer(tmp_path / "dev") as here:
        with open_admin(here.bootstrap) as cluster:
            configs: dict[str, str | None] = {"bootstrap.servers": theirs, "topics": "payments"}
            cluster.links(LinkRequest(op=LinkOp.CREATE, link=LINK, configs=configs))
        until(lambda: _is_whole(here.bootstrap, 420))
        servers.crash("primary")
        servers.promote("standby")
        _write(theirs, "after")
        (epoch,) = ask(servers.url("standby"), "SELECT max(leader_epoch) FROM partitions")
        assert epoch >= LIFE_EPOCHS
        until(lambda: _is_whole(here.bootstrap, 720))
        for index in range(PARTITIONS):
            assert read({"bootstrap.servers": here.bootstrap}, "payments", index) == read(
                {"bootstrap.servers": theirs}, "payments", index
            )
        with open_admin(here.bootstrap) as cluster:
            cluster.links(LinkRequest(op=LinkOp.PROMOTE, link=LINK))
        _write(here.bootstrap, "here")
