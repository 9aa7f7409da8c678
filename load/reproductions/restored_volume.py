"""Two producers that share an id, because Postgres went back to a copy of its volume.

`python -m load.reproductions.restored_volume`: the server is stopped and its directory copied. On the server, a block
of producer ids is leased to one producer, which stores a batch. Then the copy takes its place, as after a restore; a
block is leased to a second producer, which stores its first batches. Then the first one, which is still running, sends
a batch that was never stored. A version that records the life of the metastore refuses to write on the copy until an
operator begins a new life; this program does that as soon as it is refused.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from load.reproductions.metastore_world import (
    AgentRegistration,
    EmbeddedPostgres,
    HeadraceError,
    NewTopic,
    PostgresMetastore,
    Settings,
    World,
    batch,
    migrate,
    named,
)


async def world_on(url: str, bucket: Any) -> tuple[World, Any]:
    """The metastore there, its only topic, a registered agent; and what keeps the process in its life, if it can."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    keeper = None
    if bucket is not None:
        clock = named("SystemClock", "headrace.storage.clock")()
        keeper = named("LifeKeeper", "headrace.metastore.life.keeper")(store, bucket, clock, random.Random(1))
        verdict = await keeper.check()
        print(f"  this server is: {verdict.value}")
        if verdict.value == "restored":
            print(f"  an operator begins life {await keeper.begin_anew('restored')}")
        await keeper.note_position()
    with psycopg.connect(url) as connection:
        keys = [key for (key,) in connection.execute("SELECT partition_key FROM partitions").fetchall()]
    if not keys:
        assert await store.create_topics(await store.metadata_head(), [NewTopic("reproduction", uuid4(), 1, {})])
        with psycopg.connect(url) as connection:
            keys = [key for (key,) in connection.execute("SELECT partition_key FROM partitions").fetchall()]
    agent = await store.register_agent(AgentRegistration(None, uuid4(), "127.0.0.1", 1, None))
    world = World(url, store, agent, keys, random.Random(str(uuid4())))
    await world.beat()
    return world, keeper


async def first_id(store: Any) -> int:
    """Of a block; older versions answer with the number itself."""
    found = await store.allocate_producer_ids(1_000)
    return int(getattr(found, "start", found))


async def send(world: World, who: str, producer_id: int, sequence: int) -> None:
    """One batch; print its answer."""
    answer = await world.commit(batch(world.keys[0], (producer_id, 0, sequence), records=1))
    (found,) = answer.batches
    print(
        f"  {who} id {producer_id} sequence {sequence}: {found.outcome.name} base offset {found.base_offset}",
        flush=True,
    )


async def run(home: Path) -> None:
    """Print what both producers are answered."""
    try:
        clock = named("SystemClock", "headrace.storage.clock")()
        named("LifeKeeper", "headrace.metastore.life.keeper")
        bucket = named("MemoryStore", "headrace.storage.objects.memory")(clock)
    except ImportError:
        bucket = None
    with EmbeddedPostgres(home / "server", fsync=False) as url:
        migrate(url)
        world, _ = await world_on(url, bucket)
        await world.store.close()
    (home / "copy").mkdir()
    shutil.copytree((home / "server" / "pgdata").resolve(), home / "copy" / "pgdata", copy_function=shutil.copy2)
    owner = (home / "server" / "pgdata").resolve().stat()
    for path in (home / "copy", *(home / "copy").rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    (home / "copy" / "pgdata").chmod(0o700)
    print("on the server:")
    with EmbeddedPostgres(home / "server", fsync=False) as url:
        world, keeper = await world_on(url, bucket)
        first = await first_id(world.store)
        await send(world, "first ", first, 0)
        if keeper is not None:
            await keeper.check()
            await keeper.note_position()
        await world.store.close()
    print("on the copy:")
    with EmbeddedPostgres(home / "copy", fsync=False) as url:
        try:
            world, _ = await world_on(url, bucket)
            second = await first_id(world.store)
            await send(world, "second", second, 0)
            await send(world, "second", second, 1)
            await send(world, "first ", first, 1)
        except HeadraceError as error:
            print(f"  refused: {error}")
        else:
            await world.store.close()


def main() -> None:
    """Run it on a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-reproduction-") as directory:
        Path(directory).chmod(0o711)
        asyncio.run(run(Path(directory)))


if __name__ == "__main__":
    main()
