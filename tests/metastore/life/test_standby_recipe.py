"""The recipe of docs/operate/POSTGRES.md for a synchronous standby: its own lines, on real servers.

Invariant: what was acknowledged is on the promoted standby, also if waits for it were canceled, or the primary was
restarted, while it was away.
"""

from __future__ import annotations

import asyncio
import random
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.cli.doctor import postgres
from headrace.config.settings import Settings
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.embedded import USER
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import PATIENCE_SECONDS, Servers, ask, run
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "POSTGRES.md"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def block(begins: str) -> str:
    """Return the block of the page with a first comment that begins so, without its comments."""
    blocks = re.findall(r"```(?:sql)?\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [text for text in blocks if text.startswith((f"-- {begins}", f"# {begins}"))]
    return "\n".join(line for line in found.splitlines() if not line.startswith(("--", "#")))


def run_block(url: str, begins: str) -> None:
    for line in filter(None, block(begins).splitlines()):
        run(url, line)


@pytest.fixture
def servers(prepared_primary: Path | None) -> Iterator[Servers]:
    with Servers(prepared=prepared_primary) as servers:
        run(servers.url("primary"), f"ALTER ROLE {USER} SET synchronous_commit = on")  # without fsync, it is off
        yield servers


def add_standby(servers: Servers) -> None:
    """Follow the recipe up to the base backup, and start it."""
    run_block(servers.url("primary"), "on the primary: a role")
    start_copy(servers)


def start_copy(servers: Servers) -> None:
    (line,) = filter(None, block("on the standby's machine").splitlines())
    place = {key: values[0] for key, values in parse_qs(urlsplit(servers.url("primary")).query).items()}
    program, *flags = shlex.split(line)
    assert program == "pg_basebackup"
    target = flags.index("-D") + 1
    data = servers.data_of("standby_a")
    servers.give(data.parent)
    flags[target] = str(data)
    address = flags.index("-d") + 1
    flags[address] = flags[address].replace("host=PRIMARY", f"host={place['host']} port={place['port']}")
    servers.run_program(program, *flags)
    servers.start("standby_a")
    servers.wait_until_streamed("standby_a")


def is_synchronous(servers: Servers) -> bool:
    return ask(servers.url("primary"), "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == (1,)


async def until_waiting(url: str, task: asyncio.Task[object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while ask(url, WAITING) == (0,):
        assert not task.done(), f"answered without the standby: {task.exception() or task.result()}"
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.02)


async def opened(servers: Servers, name: str, bucket: MemoryStore) -> PostgresMetastore:
    store = await PostgresMetastore.open(servers.url(name), Settings(metastore_pool_size=2))
    await LifeKeeper(store.life, bucket, ManualClock(), random.Random(1)).check()
    return store


@pytest.mark.slow
@pytest.mark.parametrize("ends_by", ["a canceled session", "a restart of the primary"])
async def test_a_promotion_loses_nothing_that_was_acknowledged_while_the_standby_was_away(
    servers: Servers, ends_by: str
) -> None:
    add_standby(servers)
    primary = servers.url("primary")
    run_block(primary, "on the primary, once")
    until(lambda: is_synchronous(servers), "synchronous")
    bucket = MemoryStore(ManualClock())
    store = await opened(servers, "primary", bucket)
    scene = await open_scene(store)
    await scene.commit(file_of([batch(scene.keys[0], 0)]))

    servers.crash("standby_a")
    file = file_of([batch(scene.keys[0], 5)])
    commit = asyncio.create_task(scene.commit(file))
    await until_waiting(primary, commit)
    if ends_by == "a canceled session":
        run(primary, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with pytest.raises(OutcomeUnknownError):
            await commit
    else:
        servers.crash("primary")
        with pytest.raises(OutcomeUnknownError):
            await commit
        servers.start("primary")
        await store.close()
        primary = servers.url("primary")
        store = await opened(servers, "primary", bucket)
        scene = replace(scene, store=store)
    assert await scene.read() == [(0, 4), (5, 9)], "readers see it"
    repeated = asyncio.create_task(scene.commit(file))
    await until_waiting(primary, repeated)

    servers.crash("primary")
    with pytest.raises(OutcomeUnknownError):
        await repeated
    await store.close()
    servers.start("standby_a")
    run_block(servers.url("standby_a"), "on the standby, before")
    until(lambda: ask(servers.url("standby_a"), "SELECT pg_is_in_recovery()") == (False,), "promoted")
    store = await opened(servers, "standby_a", bucket)
    promoted = Scene(store, scene.agent, scene.topic, scene.keys)
    assert await promoted.read() == [(0, 4)], "the file without an acknowledgement is lost"
    (answer,) = await promoted.commit(file)
    assert answer.batches[0].base_offset == 5
    await store.close()


@pytest.mark.slow
async def test_a_promoted_copy_that_kept_the_setting_is_named_and_the_line_ends_it(servers: Servers) -> None:
    primary = servers.url("primary")
    run_block(primary, "on the primary: a role")
    run(primary, f"ALTER ROLE {USER} SET synchronous_commit = local")  # the lines below do not wait
    run_block(primary, "on the primary, once")
    run(primary, f"ALTER ROLE {USER} SET synchronous_commit = on")
    start_copy(servers)
    until(lambda: is_synchronous(servers), "synchronous")
    servers.crash("primary")
    copy = servers.url("standby_a")
    run(copy, "SELECT pg_promote(true, 120)")
    store = await PostgresMetastore.open(copy, Settings(metastore_pool_size=2))
    await store.probe_commit()
    assert "synchronous_standby_names='ANY 1 (standby_a)' connected standbys: none" in str(store.refusal())
    found = await postgres.examine(Settings(metastore_url=copy), SystemClock())
    lines = {finding.check: finding for finding in found}
    assert lines["commits"].level.value == lines["standbys"].level.value == "bad"
    for statement in block("on the primary, when").splitlines():
        assert statement in lines["commits"].to_do, "the doctor says the same as the page"
    run_block(copy, "on the primary, when")
    until(lambda: ask(copy, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), "a commit ends")
    await _until_commits_end(store)
    await store.close()


async def _until_commits_end(store: PostgresMetastore) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            await store.probe_commit()
        except UnavailableError:
            assert time.monotonic() < give_up_at
            continue
        if store.refusal() is None:
            return
