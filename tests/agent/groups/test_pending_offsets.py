"""TxnOffsetCommit in every version, and what OffsetFetch says of offsets in an open transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kio.schema.errors import ErrorCode

from headrace.metastore.api.transactions import ProducerEpoch, TransactionVerdict
from headrace.storage.errors import OutcomeUnknownError
from tests.agent.client_calls import versions_of
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.manual_clock import ManualClock

FIRST_WITH_MEMBERS, FIRST_STABLE = 3, 7


@pytest.fixture
async def world(fake_clock: ManualClock) -> AsyncIterator[GroupsWorld]:
    world = GroupsWorld(fake_clock)
    await world.start()
    world.cluster_api.add_topic("t")
    yield world
    await world.stop()


@pytest.mark.parametrize("version", versions_of(28))
async def test_offsets_are_pending_in_every_version(world: GroupsWorld, home: Coordinating, version: int) -> None:
    assert await home.commit_pending("g", "t", 7, version=version, epoch=3) == 0
    assert world.groups.pending_calls == [("tx", ProducerEpoch(7, 3), version >= 5)]
    assert await home.commit_pending("g", "unknown", 7, version=version) == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", versions_of(28))
async def test_a_removed_member_commits_nothing(home: Coordinating, version: int) -> None:
    member = await home.only_member(version=9)
    codes = [
        await home.commit_pending("g", "t", 7, version=version, member_id=member_id, generation=generation)
        for member_id, generation in ((member, 1), (member, 0), ("stranger", 1), ("", -1))
    ]
    says_who = version >= FIRST_WITH_MEMBERS
    refused = [ErrorCode.illegal_generation, ErrorCode.unknown_member_id] if says_who else [0, 0]
    assert codes == [0, *refused, 0]


@pytest.mark.parametrize("version", versions_of(28))
@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (TransactionVerdict.UNKNOWN_PRODUCER, ErrorCode.invalid_producer_id_mapping),
        (TransactionVerdict.FENCED, ErrorCode.invalid_producer_epoch),
        (TransactionVerdict.INVALID_STATE, ErrorCode.invalid_txn_state),
    ],
)
async def test_refusals_are_kafkas(
    world: GroupsWorld, home: Coordinating, version: int, verdict: TransactionVerdict, code: ErrorCode
) -> None:
    world.groups.verdict = verdict
    if verdict is TransactionVerdict.INVALID_STATE and version >= 4:
        code = ErrorCode.transaction_abortable
    assert await home.commit_pending("g", "t", 7, version=version) == code


async def test_what_may_have_happened_is_sent_again(world: GroupsWorld, home: Coordinating) -> None:
    world.groups.fail_after["add_pending_offsets"].append(OutcomeUnknownError("lost"))
    assert await home.commit_pending("g", "t", 7) == ErrorCode.request_timed_out
    assert await home.commit_pending("g", "t", 7) == 0


async def test_another_coordinator_fences_this_one(world: GroupsWorld, home: Coordinating) -> None:
    assert await home.commit_pending("g", "t", 7) == 0
    world.groups.take_over("g")
    assert await home.commit_pending("g", "t", 8) == ErrorCode.not_coordinator


@pytest.mark.parametrize("version", [v for v in versions_of(9) if v < 10])
async def test_a_reader_that_requires_it_waits_for_the_end(home: Coordinating, version: int) -> None:
    """Versions from 7 on ask for stable offsets here; earlier ones cannot, and get what is committed."""
    await home.commit("g", {"t": {0: 3}})
    await home.commit_pending("g", "t", 7)
    _, found = await home.fetch("g", {"t": [0]}, version=version)
    offset, _, _, code = found["t"][0]
    stable = version >= FIRST_STABLE
    assert (offset, code) == ((-1, ErrorCode.unstable_offset_commit) if stable else (3, 0))
    if version >= 2:
        _, everything = await home.fetch("g", None, version=version)
        assert everything["t"][0][3] == code
