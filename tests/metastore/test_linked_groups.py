"""X14: offsets of a source's groups in Postgres: what is written, when no more, and what stays the client's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import psycopg
import pytest

from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupRecord
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.linked_groups import FoundGroup, GroupOutcome, LastOffsets, LinkedGroup, SourceOffset
from headrace.metastore.api.links import SourceReport
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from tests.metastore.sessions import Session, claim, join, waiting
from tests.metastore.test_linked_topics import LinkedScene, scene  # noqa: F401

COPIED, CAME, REFUSED = GroupOutcome.COPIED, GroupOutcome.CAME, GroupOutcome.REFUSED
pytestmark = pytest.mark.requirement("X14")
MEMBERS = GroupRecord(GroupKind.CLASSIC, "PreparingRebalance", "consumer", None, b"saved")
EMPTY = GroupRecord(GroupKind.CLASSIC, "Empty", "consumer", None, b"saved")


class Groups:
    """The groups of the link `old`, which has copied 20 offsets of partition 0 and none of partition 1."""

    def __init__(self, linked: LinkedScene, token: JobToken, agent: int, broker_epoch: int) -> None:
        self.linked, self.token, self.store = linked, token, linked.store
        self.agent, self.broker_epoch = agent, broker_epoch

    async def report(self, *groups: str, kind: str = "classic", state: str = "Stable", allowed: bool = True) -> None:
        await self.store.linked_groups.report_linked_groups(
            self.token, "old", [FoundGroup(each, kind, state) for each in groups]
        )
        if allowed:
            links = ["old"] * len(groups)
            await self.store.linked_groups.note_group_refusals(links, list(groups), [""] * len(groups))

    async def copy(self, group: str, *offsets: int, answers: int = 0, token: JobToken | None = None) -> GroupOutcome:
        """`offsets`: of partition 0, 1."""
        written = [SourceOffset(key, at, 3, f"at {at}") for key, at in zip(self.linked.keys, offsets, strict=False)]
        return await self.store.linked_groups.copy_group_offsets(token or self.token, "old", group, answers, written)

    async def offsets(self, group: str) -> list[int]:
        return [each.offset for each in await self.store.groups.fetch_offsets(group, None)]

    async def claim(self, group: str) -> int:
        """The epoch of the group's coordinator."""
        claimed = await self.store.groups.claim_group(group, self.agent, self.broker_epoch)
        assert claimed is not None
        return claimed.coordinator_epoch

    async def commit(self, group: str, epoch: int, *offsets: int) -> None:
        values = [CommittedOffset(key, at, -1, "") for key, at in zip(self.linked.keys, offsets, strict=False)]
        assert all(await self.store.groups.commit_offsets(group, epoch, values))

    async def row(self, group: str) -> LinkedGroup:
        (found,) = [each for each in await self.store.linked_groups.linked_groups() if each.group_id == group]
        return found

    async def promote(self) -> None:
        await self.store.links.ask_promotion([self.linked.topic_id], force=True)
        head = await self.linked.head()
        ids: Sequence[uuid.UUID] = [self.linked.topic_id]
        assert await self.store.links.promote_topics(self.linked.controller_epoch, head, ids, ["orders"])


@pytest.fixture
async def groups(scene: LinkedScene, raw: Session) -> Groups:  # noqa: F811
    await scene.append(scene.run(0, 19))
    agent = await join(scene.store)
    job = await claim(scene.store, "link-topics", key="old", lease_ms=60_000)
    assert await scene.store.links.report_source(job.token, SourceReport("old", "c"))
    return Groups(scene, job.token, agent.node_id, agent.broker_epoch)


async def test_offsets_follow_the_source_up_to_the_end_of_the_copy_also_back(groups: Groups) -> None:
    await groups.report("app")
    assert await groups.copy("app", 7, 0) is COPIED
    assert await groups.offsets("app") == [7, 0]
    assert await groups.copy("app", 25, 3) is COPIED
    assert await groups.offsets("app") == [20, 0], "no offset passes the end of the copy"
    assert (await groups.row("app")).behind == 5 + 3
    await groups.linked.append(groups.linked.run(20, 29))
    assert await groups.copy("app", 25, 0) is COPIED
    assert await groups.copy("app", 4) is COPIED, "it was reset at the source"
    assert await groups.offsets("app") == [4, 0]
    (first, _) = await groups.store.groups.fetch_offsets("app", None)
    assert (first.leader_epoch, first.metadata) == (3, "at 4")


async def test_a_group_with_members_here_is_not_written_any_more(groups: Groups) -> None:
    await groups.report("app")
    await groups.copy("app", 7)
    epoch = await groups.claim("app")
    assert await groups.copy("app", 8) is COPIED, "to be held by an agent means nothing: a tool may have asked"
    await groups.store.groups.save_group("app", epoch, MEMBERS)
    assert await groups.copy("app", 9) is CAME
    assert await groups.offsets("app") == [8]
    await groups.store.groups.save_group("app", epoch, EMPTY)
    assert await groups.copy("app", 10) is CAME, "it came, and has only stopped"
    row = await groups.row("app")
    assert row.came_ms
    assert row.behind == 2
    assert await groups.store.groups.delete_group("app", epoch)
    assert await groups.copy("app", 11) is COPIED, "it was deleted here, to be copied again"
    assert await groups.offsets("app") == [11]
    assert not (await groups.row("app")).came_ms


async def test_what_a_client_committed_here_is_never_written_over(groups: Groups) -> None:
    await groups.report("app")
    await groups.copy("app", 7, 0)
    await groups.commit("app", await groups.claim("app"), 15)
    assert (await groups.row("app")).may_have_come
    assert await groups.copy("app", 9, 0) is CAME
    assert await groups.offsets("app") == [15, 0]
    assert not (await groups.row("app")).may_have_come


async def test_offsets_of_transactions_are_never_written_over(groups: Groups, raw: Session) -> None:
    await groups.report("app")
    await groups.copy("app", 7)
    key = groups.linked.keys[0]
    await raw.execute(
        "INSERT INTO pending_offsets (producer_id, group_id, partition_key, committed_offset, leader_epoch, metadata)"
        f" VALUES (1, 'app', {key}, 12, -1, '')"
    )
    await raw.execute("SELECT store_pending_offsets(1)")
    assert await groups.copy("app", 9) is CAME
    assert await groups.offsets("app") == [12]


async def test_a_transaction_that_ends_while_offsets_are_copied_wins(
    groups: Groups, raw: Session, metastore_url: str
) -> None:
    """It does not hold the group's row: the two meet at the offset's row."""
    await groups.report("app")
    await groups.copy("app", 7)
    async with await psycopg.AsyncConnection.connect(metastore_url) as ending:
        await ending.execute("UPDATE group_offsets SET committed_offset = 12, link = NULL WHERE group_id = 'app'")
        copying = asyncio.ensure_future(groups.copy("app", 9))
        await waiting(raw, 1)
        await ending.commit()
    assert await copying is COPIED
    assert await groups.offsets("app") == [12]
    assert await groups.copy("app", 9) is CAME


async def test_after_the_promotion_offsets_end_where_the_copy_ended(groups: Groups) -> None:
    await groups.report("app")
    await groups.copy("app", 5)
    await groups.promote()
    assert await groups.copy("app", 18) is COPIED, "its consumers are still at the source"
    assert await groups.copy("app", 40) is COPIED
    assert await groups.offsets("app") == [20], "above are other records than at the source"
    partitions = await groups.store.linked_groups.copied_partitions("old")
    assert [each.partition_key for each in partitions] == groups.linked.keys
    assert {each.source_id for each in partitions} == {uuid.UUID(int=77)}


async def test_a_dropped_link_leaves_the_offsets_and_nothing_else(groups: Groups) -> None:
    await groups.report("app")
    await groups.copy("app", 5)
    await groups.promote()
    await groups.store.links.forget_link("old")
    assert await groups.offsets("app") == [5]
    assert await groups.store.linked_groups.linked_groups() == []
    assert await groups.store.linked_groups.copied_partitions("old") == []
    await groups.report("app")
    assert await groups.copy("app", 9) is COPIED, "a link of the same name"
    assert await groups.offsets("app") == [5]


async def test_only_judged_groups_of_this_lease_are_written(groups: Groups) -> None:
    await groups.report("app", allowed=False)
    assert await groups.copy("app", 5) is REFUSED
    await groups.store.linked_groups.note_group_refusals(["old"], ["app"], ["may not READ"])
    assert await groups.copy("app", 5) is REFUSED
    assert await groups.copy("unknown", 5) is REFUSED
    assert await groups.offsets("app") == []
    await groups.report("app")
    with pytest.raises(FencedError):
        await groups.copy("app", 5, token=groups.token._replace(epoch=groups.token.epoch + 1))


async def test_a_share_group_of_the_same_name_gets_no_offsets(groups: Groups) -> None:
    await groups.report("app")
    epoch = await groups.claim("app")
    share = GroupRecord(GroupKind.SHARE, "Empty", "share", None, b"saved")
    await groups.store.groups.save_group("app", epoch, share)
    assert await groups.copy("app", 5) is CAME
    assert await groups.offsets("app") == []


async def test_a_coordinator_learns_when_the_last_offsets_are_here(groups: Groups) -> None:
    api = groups.store.linked_groups
    await groups.report("app")
    assert await api.ask_last_offsets(["old"], "app")
    assert await api.last_offsets("app") is LastOffsets.NONE, "nothing was copied yet"
    assert [row.asked for row in await api.asked_groups("old")] == [1]
    await groups.copy("app", 5, answers=0)
    assert await api.last_offsets("app") is LastOffsets.OLDER, "read before the question"
    await groups.copy("app", 26, answers=1)
    assert await api.last_offsets("app") is LastOffsets.OLDER, "the copy lacks records that the group has read"
    await groups.linked.append(groups.linked.run(20, 29))
    await groups.copy("app", 26, answers=1)
    assert await api.last_offsets("app") is LastOffsets.DONE
    assert await api.asked_groups("old") == []
    assert await api.ask_last_offsets(["old"], "app")
    assert await api.last_offsets("app") is LastOffsets.OLDER
    await groups.store.groups.save_group("app", await groups.claim("app"), MEMBERS)
    await groups.copy("app", 7)
    assert await api.last_offsets("app") is LastOffsets.DONE, "it is here: nothing is written any more"
    assert not await api.ask_last_offsets(["old"], "app")


async def test_a_group_that_the_source_does_not_have_waits_for_one_report(groups: Groups, raw: Session) -> None:
    api = groups.store.linked_groups
    assert await api.ask_last_offsets(["old"], "new")
    assert await api.last_offsets("new") is LastOffsets.NONE, "no worker has looked at groups yet"
    await groups.report()
    assert await api.last_offsets("new") is LastOffsets.DONE
    assert await api.ask_last_offsets(["old"], "new")
    assert await api.last_offsets("new") is LastOffsets.OLDER, "the source did not have it when it was looked at"
    await groups.store.linked_groups.note_groups_problem(groups.token, "old", "may not list")
    assert [each.groups_problem for each in await groups.store.links.link_sources()] == ["may not list"]
    await groups.report()
    assert [each.groups_problem for each in await groups.store.links.link_sources()] == [""]


async def test_topics_that_are_deleted_take_what_links_know_of_them(
    groups: Groups, metastore: PostgresMetastore
) -> None:
    await groups.report("app")
    await groups.copy("app", 5)
    await groups.promote()
    assert await metastore.topics.delete_topics(await groups.linked.head(), [groups.linked.topic_id])
    assert await groups.store.linked_groups.copied_partitions("old") == []
    assert await groups.copy("app", 9) is COPIED
    assert await groups.offsets("app") == []
