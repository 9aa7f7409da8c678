"""Scenarios of share sessions and of the membership: epochs, connections, heartbeats, requests of no member.

Place: in SCENARIOS (__init__.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from tests.compat.share_scenarios.member import CLOSING, RECORD_LIMIT, RawMember, accept
from tests.compat.share_scenarios.scene import Row, Scene
from tests.compat.share_scenarios.server import until


def session_epochs(scene: Scene) -> Iterator[Row]:
    """Send epochs that are due, and others."""
    scene.produce(20)
    here = scene.topic_id
    with scene.joined(record_limit=2) as member:
        yield "acknowledge at 0", member.acknowledge_at(0, accept(0, 0), topic_id=here)
        yield "acknowledge at 1 without a session", member.acknowledge_at(1, accept(0, 0), topic_id=here)
        yield "acknowledge at -1 without a session", member.acknowledge_at(CLOSING, accept(0, 0), topic_id=here)
        yield "fetch at 3 without a session", member.fetch_at(3, topic_id=here)
        yield "fetch at -1 without a session", member.fetch_at(CLOSING, topic_id=here)
        yield "fetch at 0 with acknowledgements", member.fetch_at(0, accept(0, 0), topic_id=here)
        yield "acquire", member.acquire()
        yield "fetch at an epoch too high", member.fetch_at(member.session_epoch + 1, topic_id=here)
        yield "fetch at the due epoch", member.fetch()
        yield "acknowledge at the due epoch", member.acknowledge(accept(0, 0))
        yield "fetch at 0, a new session", member.fetch_at(0, topic_id=here)
        member.session_epoch = 1
        yield "acknowledge what the former session acquired", member.acknowledge(accept(1, 1))
        yield "fetch in the new session", member.fetch()


def the_epoch_before(scene: Scene) -> Iterator[Row]:
    """Repeat a request at the epoch of the one before."""
    scene.produce(20)
    with scene.joined(record_limit=2) as member:
        yield "acquire", member.acquire()
        member.session_epoch -= 1
        yield "fetch at the epoch before", member.fetch()


def session_ends(scene: Scene) -> Iterator[Row]:
    """Close a session, in an acknowledgement and in a fetch, and open another."""
    scene.produce(6)
    here = scene.topic_id
    with scene.joined() as member:
        yield "acquire", member.acquire()
        yield "close with an acknowledgement of 1", member.acknowledge_at(CLOSING, accept(1, 1), topic_id=here)
        yield "close again", member.acknowledge_at(CLOSING, topic_id=here)
        yield "fetch in the closed session", member.fetch_at(member.session_epoch + 1, topic_id=here)
        member.session_epoch = 0
        yield "acquire in a new session", member.acquire()
        yield "close by a fetch that accepts 2", member.fetch_at(CLOSING, accept(2, 2), topic_id=here)
        member.session_epoch = 0
        yield "acquire in a third session", member.acquire()


def session_on_two_connections(scene: Scene) -> Iterator[Row]:
    """Continue and replace a member's session on another connection."""
    scene.produce(20)
    with scene.joined(record_limit=2) as member:
        yield "acquire", member.acquire()
        with scene.member(member.member_id) as other:
            other.max_records, other.acquire_mode = 2, RECORD_LIMIT
            other.session_epoch = member.session_epoch
            yield "another connection fetches at the next epoch", other.fetch()
            other.session_epoch = 0
            yield "another connection opens a session", other.fetch()
            yield "the first connection fetches", member.fetch()


def fetch_by_no_member(scene: Scene) -> Iterator[Row]:
    """Fetch without having joined, and for topics and members that do not exist."""
    scene.produce(3)
    with scene.member() as stranger:
        yield "before the group exists", stranger.fetch_at(0, topic_id=scene.topic_id)
    with scene.joined() as member:
        with scene.member() as other:
            yield "by a member that has not joined", other.acquire()
            yield "its acknowledgement", other.acknowledge(accept(0, 2))
        yield "unknown topic", member.fetch_at(0, topic_id=uuid.uuid4())
        yield "unknown partition", member.fetch_at(0, topic_id=scene.topic_id, partition=5)
        yield "no topic id", member.fetch_at(0, topic_id=None)
    with scene.member("") as nameless:
        yield "empty member id", nameless.fetch_at(0, topic_id=scene.topic_id)
    with scene.member("x") as short:
        yield "short member id", short.fetch_at(0, topic_id=scene.topic_id)
    with RawMember(scene.server, "", scene.topic_id) as groupless:
        yield "empty group id", groupless.fetch_at(0, topic_id=scene.topic_id)


def heartbeats(scene: Scene) -> Iterator[Row]:
    """Join, heartbeat and leave, with epochs that fit and that do not."""
    topic = scene.topic
    with scene.member() as member:
        yield "epoch 5 in an unknown group", member.heartbeat(5)
        yield "leave an unknown group", member.heartbeat(CLOSING)
        yield "join without topics", member.heartbeat(0)
        yield "join", member.heartbeat(0, topic)
        joined_at = member.member_epoch
        yield "heartbeat", member.heartbeat(joined_at)
        yield "join again", member.heartbeat(0, topic)
        yield "epoch too high", member.heartbeat(joined_at + 10)
        yield "epoch -2", member.heartbeat(-2)
        with scene.member() as other:
            yield "unknown member", other.heartbeat(3)
            yield "unknown member leaves", other.heartbeat(CLOSING)
            yield "another joins", other.heartbeat(0, topic)
        yield "first one at its epoch", member.heartbeat(member.member_epoch)
        yield "topic that does not exist", member.heartbeat(member.member_epoch, f"none-{uuid.uuid4()}")
        yield "the topic again", member.heartbeat(member.member_epoch, topic)
        yield "leave", member.leave()
        yield "leave again", member.leave()
    with scene.member("") as nameless:
        yield "empty member id", nameless.heartbeat(0, topic)
    with scene.member("a b") as spaced:
        yield "member id with a space", spaced.heartbeat(0, topic)


def groups_of_other_types(scene: Scene) -> Iterator[Row]:
    """Use a consumer group as a share group, and the other way."""
    yield "consumer joins", scene.consumer_joins(scene.group)
    with scene.member() as member:
        yield "share member joins it", member.heartbeat(0, scene.topic)
        yield "share fetch", member.fetch_at(0, topic_id=scene.topic_id)
    yield "describe its share offsets", scene.described_as_a_whole()
    yield "alter its share offsets", scene.alter(0)
    yield "consumer leaves", scene.consumer_leaves(scene.group)
    with scene.member() as member:
        yield "share member joins the empty one", member.heartbeat(0, scene.topic)

    shared = f"{scene.group}-shared"
    with RawMember(scene.server, shared, scene.topic_id) as member:
        yield "share member joins", member.heartbeat(0, scene.topic)
        yield "consumer joins it", scene.consumer_joins(shared)
        yield "commit an offset to it", scene.commit_as_consumer(shared)
        yield "fetch its committed offsets", scene.fetch_as_consumer(shared)
        yield "describe it as a consumer group", scene.describe_as_consumer(shared)
        yield "delete it", scene.delete_group(shared)
        yield "leave", member.leave()
    until(lambda: scene.listed(shared) == "share Empty", f"{shared} is empty")
    yield "delete the empty one", scene.delete_group(shared)
