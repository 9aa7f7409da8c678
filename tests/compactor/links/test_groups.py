"""X14: a link's groups from a source in memory to the real metastore, and schedules of everything at once.

A schedule is drawn from a seed: the source commits, resets and lists groups; the worker looks, answers, is repeated and
late; a coordinator here asks, saves members and commits; records are copied; topics are promoted and created again.
Judged at every step: no offset is above what is a copy, none of a client changes, none changes once members are stored.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from headrace.compactor.links.groups import GroupCopies
from headrace.compactor.links.source import CommittedAt, SourceGroup
from headrace.config.link_configs import GroupFilter
from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupRecord
from headrace.metastore.api.linked_groups import LastOffsets, LinkedGroupApi
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError, UnavailableError
from tests.compactor.links.fake_source import renamed
from tests.compactor.links.link_world import LINK, LinkWorld
from tests.compactor.links.source_log import SourceLog
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session, claim, join
from tests.seeds import seeds

pytestmark = pytest.mark.requirement("X14")
ALL = GroupFilter({"groups": ".*", "groups.exclude": "other.*"})
MEMBERS = GroupRecord(GroupKind.CONSUMER, "Stable", "consumer", None, b"saved")
STEPS = 60


class GroupScene:
    """A link with one copied topic, and the worker of its groups."""

    def __init__(self, world: LinkWorld, copies: GroupCopies) -> None:
        self.world, self.source, self.metastore, self.copies = world, world.source, world.metastore, copies

    @property
    def api(self) -> LinkedGroupApi:
        return self.metastore.linked_groups

    def there(self, group: str, offset: int, *, kind: str = "classic", protocol_type: str = "consumer") -> None:
        """Let the group commit at the source."""
        self.source.listed[group] = SourceGroup(group, kind, protocol_type, "Stable", 0)
        self.source.committed[group] = {("orders", 0): CommittedAt(offset, -1, "")}

    async def look(self) -> None:
        """Look twice: the controller judges in between."""
        await self.copies.look()
        rows = [row for row in await self.api.linked_groups() if row.refusal is None]
        await self.api.note_group_refusals([LINK] * len(rows), [row.group_id for row in rows], [""] * len(rows))
        await self.copies.look()

    async def here(self, group: str) -> int | None:
        """The group's offset here."""
        found = await self.metastore.groups.fetch_offsets(group, None)
        return found[0].offset if found else None

    async def end(self) -> int:
        """The end of the copy."""
        return (await self.world.progress())[0].high_watermark


@pytest.fixture
async def groups(metastore: PostgresMetastore, metastore_url: str, raw: Session) -> GroupScene:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    world = LinkWorld(metastore)
    await world.create(groups=".*")
    log = SourceLog(leader_epoch=1)
    await world.add("orders", log)
    log.append(30)
    await world.report_source()
    await world.run_until(lambda found: found[0].lag == 0)
    job = await claim(metastore, "link-topics", key=f"{LINK}-groups", lease_ms=600_000)
    copies = GroupCopies(LINK, metastore.linked_groups, world.source, ALL, job.token, world.source.cluster_id)
    return GroupScene(world, copies)


async def test_offsets_of_named_groups_are_copied_and_others_are_not(groups: GroupScene) -> None:
    groups.there("app", 12)
    groups.there("topology", 9, kind="streams", protocol_type="streams")
    groups.there("other-app", 12)
    groups.there("workers", 12, protocol_type="connect")
    groups.there("queue", 12, kind="share", protocol_type="share")
    await groups.look()
    assert [await groups.here(each) for each in ("app", "topology")] == [12, 9]
    assert [await groups.here(each) for each in ("other-app", "workers")] == [None, None]
    assert [row.group_id for row in await groups.api.linked_groups()] == ["app", "queue", "topology"]
    groups.there("app", 3)
    await groups.copies.look()
    assert await groups.here("app") == 3
    del groups.source.listed["app"]
    await groups.copies.look()
    assert [row.group_id for row in await groups.api.linked_groups()] == ["queue", "topology"]
    assert await groups.here("app") == 3


async def test_offsets_of_another_topic_of_the_name_or_another_cluster_are_not_written(groups: GroupScene) -> None:
    groups.there("app", 12)
    await groups.look()
    topic = groups.source.topics["orders"]
    groups.source.topics["orders"] = renamed(topic)
    groups.there("app", 20)
    await groups.copies.look()
    assert await groups.here("app") == 12, "it committed in a topic that is no source of ours"
    groups.source.topics["orders"] = topic
    groups.source.cluster_id = "another"
    with pytest.raises(InvalidError, match="another cluster answers"):
        await groups.copies.look()
    assert await groups.here("app") == 12


async def test_a_source_that_is_away_changes_nothing_and_too_many_groups_are_refused(groups: GroupScene) -> None:
    groups.there("app", 12)
    await groups.look()
    groups.source.away = "no route to host"
    with pytest.raises(UnavailableError):
        await groups.copies.look()
    assert [row.group_id for row in await groups.api.linked_groups()] == ["app"]
    groups.source.away = ""
    for number in range(10_001):
        groups.source.listed[f"group-{number}"] = SourceGroup(f"group-{number}", "classic", "consumer", "Empty", 0)
    with pytest.raises(InvalidError, match="at most 10000"):
        await groups.copies.look()


async def test_a_coordinator_that_waits_gets_what_was_committed_after_it_asked(groups: GroupScene) -> None:
    groups.there("app", 12)
    await groups.look()
    groups.there("app", 17)
    assert await groups.api.ask_last_offsets([LINK], "app")
    assert await groups.api.ask_last_offsets([LINK], "new")
    assert await groups.api.last_offsets("app") is LastOffsets.OLDER
    await groups.copies.answer()
    assert [await groups.api.last_offsets(each) for each in ("app", "new")] == [LastOffsets.DONE] * 2
    assert await groups.here("app") == 17
    await groups.copies.answer()


class Schedule:
    """One run of random events, and what has to hold of the group `app`."""

    def __init__(self, groups: GroupScene, rng: random.Random, agent: tuple[int, int]) -> None:
        self.groups, self.rng, self.agent = groups, rng, agent
        self.source_id = groups.source.topics["orders"].topic_id
        self.epoch: int | None = None
        self.fixed: int | None = None
        """The offset here that only a client may change."""
        self.has_members = False
        self.promoted_end: int | None = None
        self.late: list[Callable[[], Awaitable[object]]] = []

    async def step(self) -> None:
        """One event, then the checks."""
        await self.rng.choice([self.commit_there, self.look, self.look, self.answer, self.repeat_late, self.copy_more,
                               self.ask, self.members, self.commit_here, self.recreate, self.promote])()  # fmt: skip
        end = self.promoted_end if self.promoted_end is not None else await self.groups.end()
        here = await self.groups.here("app")
        if self.has_members:
            assert here == self.fixed, "only a client may change it"
        elif here is not None:
            assert here <= end, "above the copy"

    async def commit_there(self) -> None:
        self.groups.there("app", self.rng.randrange(60))

    async def look(self) -> None:
        await self.groups.look()
        topic = self.groups.source.topics["orders"]
        if not self.has_members and topic.topic_id == self.source_id:
            there = self.groups.source.committed.get("app", {}).get(("orders", 0))
            end = self.promoted_end if self.promoted_end is not None else await self.groups.end()
            assert there is None or await self.groups.here("app") == min(there.offset, end), "it follows"

    async def answer(self) -> None:
        await self.groups.copies.answer()

    async def repeat_late(self) -> None:
        """A call of the worker happens again, long after it was made."""
        if self.late:
            await self.rng.choice(self.late)()

    async def copy_more(self) -> None:
        if self.promoted_end is None:
            self.groups.source.topics["orders"].logs[0].append(self.rng.randrange(1, 8))
            await self.groups.world.run()

    async def ask(self) -> None:
        await self.groups.api.ask_last_offsets([LINK], "app")

    async def members(self) -> None:
        """The group's first member gets its assignment: what its last offsets were if they are there."""
        if self.has_members or await self.groups.api.last_offsets("app") is not LastOffsets.DONE:
            return
        await self._claim()
        assert self.epoch is not None
        await self.groups.metastore.groups.save_group("app", self.epoch, MEMBERS)
        self.has_members, self.fixed = True, await self.groups.here("app")

    async def commit_here(self) -> None:
        if not self.has_members:
            return
        assert self.epoch is not None
        (partition,) = await self.groups.api.copied_partitions(LINK)
        offset = self.rng.randrange(30)
        value = CommittedOffset(partition.partition_key, offset, -1, "")
        assert await self.groups.metastore.groups.commit_offsets("app", self.epoch, [value]) == [True]
        self.fixed = offset

    async def recreate(self) -> None:
        """The source has another topic of the name for a while."""
        topics = self.groups.source.topics
        now = topics["orders"]
        if now.topic_id == self.source_id:
            topics["orders"] = replace(now, topic_id=uuid.uuid4())
        else:
            topics["orders"] = replace(now, topic_id=self.source_id)

    async def promote(self) -> None:
        if self.promoted_end is not None or self.rng.random() < 0.7:
            return
        world = self.groups.world
        (row,) = await world.progress()
        await world.metastore.links.ask_promotion([row.topic_id], force=True)
        head = await world.metastore.cluster.metadata_head()
        assert await world.metastore.links.promote_topics(world.controller_epoch, head, [row.topic_id], ["orders"])
        self.promoted_end = row.high_watermark

    async def _claim(self) -> None:
        if self.epoch is None:
            claimed = await self.groups.metastore.groups.claim_group("app", *self.agent)
            assert claimed is not None
            self.epoch = claimed.coordinator_epoch


async def run_schedule(groups: GroupScene, seed: int) -> None:
    """Run the events of a seed."""
    agent = await join(groups.metastore)
    schedule = Schedule(groups, random.Random(seed), (agent.node_id, agent.broker_epoch))
    api = groups.metastore.linked_groups
    original = api.copy_group_offsets

    async def remembered(*given: object) -> object:
        schedule.late.append(lambda: original(*given))  # type: ignore[arg-type]
        return await original(*given)  # type: ignore[arg-type]

    api.copy_group_offsets = remembered  # type: ignore[method-assign, assignment]
    for _ in range(STEPS):
        await schedule.step()


@pytest.mark.parametrize("seed", seeds([1, 2, 3], range(4, 64)))
async def test_no_schedule_writes_what_a_member_relies_on(groups: GroupScene, seed: int) -> None:
    await run_schedule(groups, seed)
