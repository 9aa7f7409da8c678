"""Partitions of a share group that go or come again, or whose offsets change on demand: what is answered is stored."""

from __future__ import annotations

from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.peers.share_turns import PartitionAsk, ShareTurn
from tests.agent.groups.share.test_share_owner import Owning, owning  # noqa: F401 -- the fixture


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


async def test_the_end_of_a_session_begins_no_partition(owning: Owning) -> None:  # noqa: F811
    """A client without READ may end its session: that frees what it had, and the group reads no further partition."""
    await owning.world.clock.run(
        owning.owner.turn(ShareTurn("g", "m", [PartitionAsk(owning.key)], closes=True), owning.client)
    )
    assert owning.world.groups.shares["g"] == {}
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    await owning.world.clock.run(
        owning.owner.turn(ShareTurn("g", "m", [PartitionAsk(owning.key)], closes=True), owning.client)
    )
    assert (await owning.turn("n"))[2] == [(0, 3, 2)]
