"""After a promotion or restore of Postgres, the acknowledgements of share groups that it lost are listed: what members
were answered, as far as the bucket knows, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.agent.groups.share.answered import AnsweredShares
from headrace.cli.main import main
from headrace.compactor import share_record
from headrace.compactor import share_record as lost_shares
from headrace.compactor.share_record import ShareRecorder
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.config.settings import Settings
from headrace.metastore.api.groups import ShareState, StoredSharePartition
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.recorded_shares import STORED, RecordedShares
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import find_installation
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.share_states import GroupProgress, KeptRange, encode_kept, lost_ranges
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.objects.directory import DirectoryStore
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.compactor.share_lives import Lives
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.patch import Plant, wrapped
from tests.planted import PlantedBugs, Trial

PROGRAMS = find_installation().bin_dir
BUGS = PlantedBugs("lost shares")
SEEDS, MANY_SEEDS = 60, 2_000


def _progress(done: Collection[int]) -> GroupProgress:
    start = next(offset for offset in range(100) if offset not in done)
    kept = [KeptRange(offset, offset, True, 0) for offset in sorted(done) if offset > start]
    return GroupProgress(start, encode_kept([*kept, KeptRange(60, 61, False, 2)]))


@pytest.mark.requirement("X4")
def test_lost_ranges_are_what_was_done_and_is_not() -> None:
    rng = random.Random(1)
    for _ in range(300):
        begun, end = rng.randint(0, 10), rng.randint(0, 50)
        answered = set(range(begun)) | {offset for offset in range(40) if rng.random() < 0.5}
        found = set(range(begun)) | {offset for offset in range(40) if rng.random() < 0.4}
        before = _progress(found) if rng.random() < 0.8 else None
        ranges = lost_ranges(_progress(answered), begun, before, end)
        lost = [offset for first, last in ranges for offset in range(first, last + 1)]
        known = set() if before is None else found
        assert lost == [offset for offset in sorted(answered - known) if begun <= offset < end]


async def _histories(seeds: range) -> dict[int, list[str]]:
    return {seed: problems for seed in seeds if (problems := await Lives(seed).run())}


@pytest.mark.requirement("X4", "X12")
async def test_no_history_shows_a_wrong_list() -> None:
    assert not await _histories(range(SEEDS))


@pytest.mark.slow
async def test_no_history_of_many_shows_a_wrong_list() -> None:
    assert not await _histories(range(1_000, 1_000 + MANY_SEEDS))


def _each_write_keeps_what_it_replaces(right: Any) -> Any:
    """Not only the first of a life."""

    async def store(self: FakeGroupApi, group_id: str, epoch: int, revision: int, rows: Any) -> Any:
        before = dict(self.shares[group_id])
        answer = await right(self, group_id, epoch, revision, rows)
        for key, row in before.items():
            if (group_id, key) in self.found:
                self.found[group_id, key] = self.life, GroupProgress(*row[1:])
        return answer

    return store


def _any_life_s_find_counts(right: Any) -> Any:
    return lambda row, life: None if row is None else row.found or row.state.progress


def _the_log_has_no_end(right: Any) -> Any:
    async def ends(api: Any, states: Any) -> Any:
        return dict.fromkeys(await right(api, list(states)), 1 << 62)

    return ends


def _the_first_record_counts(right: Any) -> Any:
    return lambda state: tuple(-part for part in right(state))


def _a_server_that_went_back_records(right: Any) -> Any:
    async def read(store: Any, life: int) -> Any:
        found = await right(store, life)
        return None if found is None else RecordedShares(0, found.states, 0, life, STORED)

    return read


def _an_earlier_record_is_enough(right: Any) -> Any:
    """An object that is there is not written again."""

    async def read(store: Any, life: int) -> Any:
        found = await right(store, life)
        return None if found is None else RecordedShares(0, found.states, 1 << 62, life, STORED)

    return read


def _the_beginning_is_forgotten(right: Any) -> Any:
    return lambda answered, begun, found, end: right(answered, 0, found, end)


def _what_is_done_later_is_forgotten(right: Any) -> Any:
    return lambda answered, begun, found, end: right(
        GroupProgress(answered.start_offset, encode_kept(())), begun, found, end
    )


def _agents_forget_at_once(right: Any) -> Any:
    return lambda self, held: right(self, ())


PLANTS: dict[str, Plant] = {
    "each write keeps what it replaces": wrapped(
        FakeGroupApi, "store_share_partitions", _each_write_keeps_what_it_replaces
    ),
    "what any life found counts": wrapped(lost_shares, "found_by", _any_life_s_find_counts),
    "the log of an earlier life has no end": wrapped(lost_shares, "_ends", _the_log_has_no_end),
    "the first state counts": wrapped(lost_shares, "_order", _the_first_record_counts),
    "a server that went back records": wrapped(share_record, "read_stored", _a_server_that_went_back_records),
    "an earlier record is enough": wrapped(share_record, "read_stored", _an_earlier_record_is_enough),
    "the beginning is forgotten": wrapped(lost_shares, "lost_ranges", _the_beginning_is_forgotten),
    "what is done after the start is forgotten": wrapped(lost_shares, "lost_ranges", _what_is_done_later_is_forgotten),
    "agents record nothing": wrapped(AnsweredShares, "record", _agents_forget_at_once),
}


@pytest.mark.requirement("X4")
@BUGS.cases(PLANTS)
async def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    PLANTS[bug](trial.patch)
    for seed in trial.seeds():
        trial.saw(await Lives(seed).run())


async def test_an_agent_forgets_what_was_deleted_and_keeps_its_limit() -> None:
    answered = AnsweredShares(None, lambda: 1, SystemClock())
    states = [ShareState(group, key, 1, 1, 0, 0, b"kept") for group in "ab" for key in (1, 2)]
    answered.note_released(states)
    answered.forget("b", [1])
    assert list(answered._released) == [("a", 1), ("a", 2), ("b", 2)]
    answered.forget("a")
    assert list(answered._released) == [("b", 2)]
    large = [ShareState("large", key, 1, 1, 0, 0, bytes(200_000)) for key in range(40)]
    answered.note_released(large)
    assert 1 < len(answered._released) < 40
    assert answered.in_use_bytes <= REMEMBERED_BYTES["share_states"]


# -- a restore of a real Postgres


class _Group:
    """A share group, written as its coordinator does."""

    def __init__(self, metastore: PostgresMetastore, scene: Scene) -> None:
        """The scene's agent is the coordinator."""
        self._metastore, self.keys, self._agent = metastore, scene.keys, scene.agent
        self._epoch = self._revision = 0

    async def store(self, *done: tuple[int, set[int]]) -> None:
        """`done`: (partition, its records that are done)."""
        if not self._epoch:
            claim = await self._metastore.groups.claim_group("workers", *self._agent)
            assert claim is not None
            self._epoch = claim.coordinator_epoch
        self._revision += 1
        rows = [StoredSharePartition(self.keys[index], *_progress(records)) for index, records in done]
        assert all(await self._metastore.groups.store_share_partitions("workers", self._epoch, self._revision, rows))


@pytest.mark.requirement("X4", "X12")
async def test_the_command_lists_what_a_restored_dump_lacks(
    metastore: PostgresMetastore,
    metastore_url: str,
    postgres_server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    clock = SystemClock()
    bucket = DirectoryStore(tmp_path / "bucket", clock)
    await write_cluster_id(bucket, metastore.cluster_id)
    await LifeKeeper(metastore.life, bucket, clock, random.Random(1)).check()
    scene = await open_scene(metastore, partitions=2)
    await scene.outcomes(*(batch(key, records=20) for key in scene.keys))
    group, dump = _Group(metastore, scene), tmp_path / "metastore.dump"
    await group.store((0, {0, 1, 5}), (1, set()))
    await asyncio.to_thread(
        subprocess.run, [PROGRAMS / "pg_dump", "-Fc", "--file", dump, "--dbname", metastore_url], check=True
    )
    await group.store((0, {0, 1, 2, 5, 8, 9}))
    await ShareRecorder(metastore.groups, bucket, clock).record(0, 1)
    await group.store((1, {0, 1}))
    await ShareRecorder(metastore.groups, bucket, clock).record(0, 2)
    await group.store((1, {0, 1, 2}))  # nothing recorded this before the loss

    restored = f"restored_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {restored} ENCODING 'UTF8' TEMPLATE template0")
    url = postgres_server.url(restored)
    command = [PROGRAMS / "pg_restore", "--no-owner", "--dbname", url, dump]
    await asyncio.to_thread(subprocess.run, command, check=True)
    flags = [f"--metastore-url={url}", f"--bucket=file://{tmp_path}/bucket"]
    assert await _run("migrate", "--restored", *flags) == 0
    wanted = [(0, [[2, 2], [8, 9]]), (1, [[0, 1]])]
    assert await _listed(flags, capsys) == wanted

    again = await PostgresMetastore.open(url, Settings())
    try:
        continued = _Group(again, scene)
        await continued.store((0, {0, 1, 2, 3, 4, 5, 6}))
        await continued.store((0, {0, 1, 2, 3, 4, 5, 6, 7, 8}), (1, {0, 1, 2, 3}))
    finally:
        await again.close()
    assert await _listed(flags, capsys) == wanted, "also after the group went on"
    capsys.readouterr()
    assert await _run("audit", "--lost", *flags) == 1
    printed = capsys.readouterr().out
    assert f"share group workers: {scene.topic.name} partition=0 acknowledged=3 offsets=2-2,8-9" in printed
    assert "acknowledgements of share groups that were lost: 5" in printed


async def _listed(flags: list[str], capsys: pytest.CaptureFixture[str]) -> list[tuple[int, list[list[int]]]]:
    capsys.readouterr()
    assert await _run("audit", "--lost", "--json", *flags) == 1
    lost = json.loads(capsys.readouterr().out)["share_groups"]["lost"]
    assert all(each["group"] == "workers" and each["is_known"] for each in lost)
    return [(each["partition_index"], each["offsets"]) for each in lost]


async def _run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))
