"""Partitions of a share group that go or come again, or get other offsets on demand: what is answered is stored."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.groups.share.owner import NOT_OWNER
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.agent.peers.share_turns import ShareTurn
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.storage.errors import UnavailableError
from tests.agent.groups.share.test_share_groups import CONFIGS, TOPICS, _beat
from tests.agent.groups.share.test_share_owner import Owning, owning  # noqa: F401 -- the fixture
from tests.patch import Patch


def owned_by(owning: Owning) -> GroupPartitions:  # noqa: F811
    """The group's partitions at its owner."""
    return next(iter(owning.owner._owned.values()))


async def test_a_partition_that_comes_again_is_stored_from_its_first_change(owning: Owning) -> None:  # noqa: F811
    """Its topic halved and doubled: the key is the same, and a change of the earlier partition counts for nothing."""
    groups = owning.world.groups
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    for offset in range(4):
        assert (await owning.turn("m", (offset, offset, 1), wants=False))[1] == 0
    assert (await owning.turn("m"))[2] == [(4, 7, 1)]
    groups.delete_partitions([owning.key])
    await owning.turn("m", (4, 7, 1), wants=False)
    assert owning.key not in owned_by(owning).group.partitions
    groups.deleted_keys.clear()
    owning.logs.start, owning.logs.end = 10, 20
    assert (await owning.turn("m"))[2] == [(10, 13, 1)]
    assert (await owning.turn("m", (10, 13, 1), wants=False))[1] == 0
    assert groups.shares["g"][owning.key].start_offset == 14
    owning.owner.drop(owned_by(owning))
    assert (await owning.turn("n"))[2] == [(14, 17, 1)], "the next owner knows what was answered"


async def test_a_member_that_left_may_still_acknowledge_until_its_session_ends(owning: Owning) -> None:  # noqa: F811
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    await owning.world.clock.run(_beat(owning.world.home, -1))
    assert await owning.turn("m", (0, 1, 1), wants=False) == (0, 0, [])
    assert (await owning.turn("n", max_records=2))[2] == [(4, 5, 1)], "the others are not free yet"
    await owning.world.clock.run(owning.owner.turn(ShareTurn("g", "m", closes=True), owning.client))
    assert (await owning.turn("n", max_records=2))[2] == [(2, 3, 2)]


async def test_a_session_without_any_partition_frees_what_it_had(owning: Owning) -> None:  # noqa: F811
    """Its client has lost READ meanwhile, so no partition is named."""
    closing = ShareTurn("g", "m", closes=True)
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    await owning.world.clock.run(owning.owner.turn(closing, owning.client))
    assert (await owning.turn("n"))[2] == [(0, 3, 2)]


class Violation(AssertionError):
    """What was deleted is there again."""


async def deletion_run(owning: Owning) -> None:  # noqa: F811
    """The offsets are deleted while a write of an acknowledgement is on its way, and another client acknowledges
    meanwhile; the write arrives last.
    """
    world, groups = owning.world, owning.world.groups
    offsets = world.home.requests.share_offsets
    assert (await owning.turn("k"))[2] == [(0, 3, 1)]
    assert (await owning.turn("n"))[2] == [(4, 7, 1)]
    await world.clock.run(_beat(world.home, -1))
    late_write, deletion = asyncio.Event(), asyncio.Event()
    groups.gates["store_share_partitions"].append(late_write)
    groups.gates["delete_offsets"].append(deletion)
    acknowledging = asyncio.create_task(owning.turn("k", (0, 3, 1), wants=False))
    await world.clock.settle()
    deleting = asyncio.create_task(offsets.delete("g", [owning.key]))
    await world.clock.settle()
    other = asyncio.create_task(owning.turn("n", (4, 7, 1), wants=False))
    await world.clock.settle()
    deletion.set()
    assert await world.clock.run(deleting) == [owning.key]
    late_write.set()
    codes = [(await world.clock.run(each))[1] for each in (acknowledging, other)]
    if groups.shares["g"] or ErrorCode.none in codes:
        raise Violation(f"stored again: {dict(groups.shares['g'])} answered: {codes}")
    assert codes == [NOT_OWNER, NOT_OWNER]
    assert await owning.turn("n") == (0, 0, []), "a client that has left begins nothing"
    assert not groups.shares["g"]
    assert await world.clock.run(offsets.delete("g", [owning.key])) == []
    await world.clock.run(_beat(world.home, 0))
    assert (await owning.turn("n"))[2] == [(0, 3, 1)], "the group begins again"


@pytest.mark.requirement("X12")
async def test_a_write_that_is_on_its_way_does_not_bring_deleted_offsets_back(owning: Owning) -> None:  # noqa: F811
    await deletion_run(owning)


async def test_the_run_finds_a_deletion_under_a_claim_that_has_written(
    owning: Owning,  # noqa: F811
    patch: Patch,
) -> None:
    patch.replace(GroupPartitions, "stop", lambda self: True)
    with pytest.raises(Violation):
        await deletion_run(owning)


async def test_a_deletion_gives_up_while_others_write(owning: Owning, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    await owning.turn("m")
    await owning.world.clock.run(_beat(owning.world.home, -1))
    monkeypatch.setattr(GroupPartitions, "stop", lambda self: False)
    delete = owning.world.home.requests.share_offsets.delete("g", [owning.key])
    assert await owning.world.clock.run(delete) is ErrorCode.coordinator_load_in_progress
    assert owning.key in owning.world.groups.shares["g"]


async def test_an_acknowledgement_of_a_partition_that_goes_meanwhile_is_not_confirmed(owning: Owning) -> None:  # noqa: F811
    groups = owning.world.groups
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    groups.delete_partitions([owning.key])
    assert (await owning.turn("m", (0, 3, 1), wants=False))[1] == NOT_OWNER


async def test_a_topic_that_is_deleted_is_forgotten_by_its_share_groups(owning: Owning) -> None:  # noqa: F811
    """With what its members were answered there, and with the memory that it takes in the group."""
    world = owning.world
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    assert (await owning.turn("m", (1, 1, 1), wants=False))[1] == 0
    await world.clock.advance(0.2)
    owned = owned_by(owning)
    assert (owned.group.partitions.keys(), owned.states.keys()) == ({owning.key}, {owning.key})
    before = world.home.requests.groups.memory.in_use_bytes
    topic_id = world.home.cluster.image.topics_by_name["t"].topic_id
    await world.cluster_api.delete_topics(world.home.cluster.image.offset, [topic_id])
    world.groups.delete_partitions([owning.key])
    await world.catch_up()
    await world.clock.advance(0.2)
    assert not owned.group.partitions
    assert not owned.states
    assert world.home.requests.groups.memory.in_use_bytes < before


def test_partitions_that_neither_image_has_are_newer_than_both() -> None:
    """An agent takes a group over and loads partitions that its picture of the topics does not have yet."""
    old, new = _image({7: 2}), _image({7: 2, 8: 1})
    group = ShareGroup("g", lambda: 3, lambda: CONFIGS, lambda: TOPICS)
    group.followed = old
    group.partitions = {partition_key(*each): SharePartition(0) for each in ((7, 1), (8, 0), (9, 0), (7, 2))}
    gone: list[Collection[int]] = []
    group.on_gone = gone.append
    group.metadata_changed(0.0, new)
    assert (len(group.partitions), gone) == (4, [])
    group.metadata_changed(0.0, _image({7: 1}))
    assert gone == [[partition_key(7, 1), partition_key(8, 0)]]
    assert group.partitions.keys() == {partition_key(9, 0), partition_key(7, 2)}


def _image(counts: dict[int, int]) -> MetadataImage:
    """Topics by number, with so many partitions."""
    topics = {n: TopicImage(uuid.UUID(int=n), n, f"t{n}", count, count, (0,) * count) for n, count in counts.items()}
    return replace(MetadataImage(), topics_by_number=MappingProxyType(topics))


async def test_an_offset_beyond_the_end_counts_as_the_end(owning: Owning, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """This owner and the next one begin with the same record."""
    world, logs, offsets = owning.world, owning.logs, owning.world.home.requests.share_offsets
    await world.clock.run(_beat(world.home, -1))
    assert await world.clock.run(offsets.alter("g", {owning.key: 1_000})) == {owning.key: ErrorCode.none}
    assert await world.clock.run(offsets.describe("g")) == {owning.key: (10, 0)}
    logs.end = 14
    assert (await owning.turn("n", max_records=2))[2] == [(10, 11, 1)]
    world.groups.high_watermarks[owning.key] = 14
    owning.owner.drop(owned_by(owning))
    assert await world.clock.run(offsets.describe("g")) == {owning.key: (10, 4)}

    async def fails(keys: Collection[int]) -> dict[int, int]:
        raise UnavailableError("no answer")

    monkeypatch.setattr(logs, "high_watermarks", fails)
    assert await world.clock.run(offsets.alter("g", {owning.key: 3})) is ErrorCode.coordinator_not_available
    assert world.groups.shares["g"][owning.key].start_offset == 10
