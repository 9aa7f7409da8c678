"""What tests of the real metastore need in addition: raw sessions, gates that force an order, and time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from headrace.metastore.api.agents import AgentRegistration, HeartbeatAnswer, RegisteredAgent
from headrace.metastore.api.jobs import Job, NewJob
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore

Session = psycopg.AsyncConnection[tuple[Any, ...]]


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Session]:
    """A connection of the test's own, in autocommit."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


async def rows(connection: Session, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return await (await connection.execute(sql.encode(), parameters)).fetchall()


async def waiting(connection: Session, count: int) -> None:
    """Return once `count` other sessions of this database wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
    )
    for _ in range(20_000):
        if (await rows(connection, query))[0][0] >= count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"no session waits: wanted={count}")


async def kill_session(connection: Session, query: str) -> None:
    """End the session that runs this very query, once it does."""
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s AND state = 'active'"
    for _ in range(20_000):
        if await rows(connection, kill, query):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"no session runs: {query}")


async def move_time(connection: Session, total_seconds: float) -> None:
    """Let the metastore's clock be this far ahead of the machine's from now on."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN"
        f" floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {int(total_seconds * 1000)}".encode()
    )


def new_topic(name: str, partition_count: int = 1, **configs: str) -> NewTopic:
    """Return the new topic with a random id."""
    return NewTopic(name, uuid.uuid4(), partition_count, configs)


async def create(store: PostgresMetastore, *topics: NewTopic) -> MetadataImage:
    """Create them at the current head; the image after that."""
    assert await store.topics.create_topics(await store.cluster.metadata_head(), topics)
    return await load_image(store.cluster)


async def delete(store: PostgresMetastore, *topic_ids: uuid.UUID) -> MetadataImage:
    """Delete them at the current head; the image after that."""
    assert await store.topics.delete_topics(await store.cluster.metadata_head(), topic_ids)
    return await load_image(store.cluster)


def new_agent(node_id: int | None = None, **other: Any) -> AgentRegistration:
    """A registration under a random incarnation."""
    return AgentRegistration(node_id, uuid.uuid4(), other.get("host", "agent"), 9092, other.get("rack"))


async def join(store: PostgresMetastore, node_id: int | None = None) -> RegisteredAgent:
    """Register and unfence an agent."""
    agent = await store.cluster.register_agent(new_agent(node_id))
    assert not (await beat(store, agent)).is_fenced
    return agent


async def beat(
    store: PostgresMetastore, agent: RegisteredAgent, *, want_fence: bool = False, want_shut_down: bool = False
) -> HeartbeatAnswer:
    """The heartbeat of an agent that has applied the whole log."""
    return await store.cluster.heartbeat(
        *agent,
        metadata_offset=await store.cluster.metadata_head(),
        want_fence=want_fence,
        want_shut_down=want_shut_down,
        session_timeout_ms=store.cluster.settings.broker_session_timeout_ms,
    )


async def fence(store: PostgresMetastore, session_timeout_ms: int) -> list[int]:
    """Return what the active controller does each turn; the node ids that it fenced."""
    lease = await store.controller.hold_controller_lease(0, uuid.UUID(int=1), 1)
    return await store.controller.fence_silent_agents(lease.controller_epoch, session_timeout_ms=session_timeout_ms)


async def claim(
    store: PostgresMetastore, kind: str, *, key: str = "", lease_ms: int = 60_000, worker: str = "test"
) -> Job:
    """Queue a job of that kind, if it has none with that key, and take the next one that is due."""
    await store.jobs.enqueue_jobs([NewJob(kind, key)])
    job = await store.jobs.claim_job(worker, [kind], lease_ms)
    assert job is not None
    return job


async def set_for_cluster(store: PostgresMetastore, name: str, value: int | None) -> None:
    """Give the cluster a value of a setting, as `headrace configs set ... --brokers` does; None takes it away."""
    text = None if value is None else str(value)
    record = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=name, value=text)
    assert await store.cluster.append_records(await store.cluster.metadata_head(), [record])
