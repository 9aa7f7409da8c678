"""Writing and reading while ACLs change: no batch is stored and no record is sent without a grant; planted bugs.

Fault model: ACLs come and go between requests and while fetches wait; topics are new to the agent.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation
from headrace.agent.fetch.sessions import AllowedTopics
from headrace.config.settings import STANDARD_AUTHORIZER
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.protocol.request import ClientConnection
from tests.agent.access.acls import a_grant
from tests.agent.cluster.standing_view import StandingView
from tests.agent.fetch.fetch_world import World
from tests.agent.produce.produce_world import ProduceWorld
from tests.patch import Patch
from tests.storage.batches import plain_batch

DENIED = ErrorCode.topic_authorization_failed
TOPICS = ("a", "b", "c")
STEPS = 60


class Violation(AssertionError):
    """Something was stored or sent without a grant, or refused with one."""


def set_acls(view: StandingView, acls: frozenset[AccessControlRecord], *, seen: bool = True) -> None:
    view.head = replace(view.head, offset=view.head.offset + 1, access_controls=acls)
    if seen:
        view.image = view.head


async def write_run(seed: int) -> None:
    """Requests with several topics, by name and by id, while grants change."""
    rng = random.Random(seed)
    async with ProduceWorld(seed=seed, authorizer_class_name=STANDARD_AUTHORIZER) as world:
        for name in TOPICS:
            world.create_topic(name)
        connection = world.connect()
        for step in range(STEPS):
            granted = frozenset(name for name in TOPICS if rng.random() < 0.5)
            set_acls(
                world.view,
                frozenset(a_grant(AclOperation.WRITE, name) for name in granted),
            )
            if rng.random() < 0.2:
                world.create_topic(f"new-{step}", known=False)
            wanted = [name for name in (*TOPICS, f"new-{step}") if name in world.view.head.topics_by_name]
            by_id = rng.random() < 0.5
            ids = {world.view.head.topics_by_name[name].topic_id if by_id else name: name for name in wanted}
            batches = {ref: {0: plain_batch(1, b"v")} for ref in ids}
            answers = await world.clock.run(world.produce(connection, batches, version=13 if by_id else 9))
            for ref, name in ids.items():
                assert answers is not None
                if (answers[ref, 0].error == DENIED.name) is (name in granted):
                    raise Violation(f"seed={seed} step={step} topic={name} granted={granted} {answers[ref, 0]}")


@pytest.mark.parametrize("seed", range(4))
async def test_a_batch_is_stored_if_and_only_if_its_topic_may_be_written(seed: int) -> None:
    await write_run(seed)


async def test_the_run_finds_a_decision_that_is_kept_after_its_acl(patch: Patch) -> None:
    kept: dict[ClientConnection, Access] = {}
    found = Authorizer.access

    def access(self: Authorizer, connection: ClientConnection) -> Access:
        return kept.setdefault(connection, found(self, connection))

    patch.replace(Authorizer, "access", access)
    with pytest.raises(Violation):
        await write_run(0)


async def read_run(*, by_id: bool) -> None:
    """A fetch that waits while its grant goes, then data comes."""
    world = World(authorizer=STANDARD_AUTHORIZER)
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    (other,) = world.create_topic("other", 1)
    grants = frozenset(a_grant(AclOperation.READ, name) for name in ("t", "other"))
    set_acls(world.view, grants)
    version = 17 if by_id else 12
    waiting = asyncio.ensure_future(world.request_fetch({key: 0, other: 0}, max_wait_ms=10_000, version=version))
    await world.clock.settle()
    assert not waiting.done()
    set_acls(world.view, frozenset(acl for acl in grants if acl.resource_name == "other"))
    await world.append(key, b"secret", own=True)
    await world.append(other, b"public", own=True)
    await world.clock.advance(11)
    result = waiting.result()
    if result.records(key) or result.code(key) != DENIED:
        raise Violation("a record was sent after its grant had gone")
    assert result.code(other) == 0
    await world.service.close()


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_waiting_fetch_is_judged_again_before_its_reply(*, by_id: bool) -> None:
    await read_run(by_id=by_id)


@pytest.mark.parametrize("by_id", [True, False])
async def test_the_run_finds_a_fetch_that_is_judged_once(patch: Patch, *, by_id: bool) -> None:
    patch.replace(AllowedTopics, "checked", lambda self, request, replies: replies)
    with pytest.raises(Violation):
        await read_run(by_id=by_id)


async def test_a_topic_that_is_new_to_the_agent_is_judged_when_it_is_known() -> None:
    world = World(authorizer=STANDARD_AUTHORIZER)
    await world.service.start()
    (key,) = world.create_topic("t", 1, seen=False)
    set_acls(world.view, frozenset({a_grant(AclOperation.READ, "u")}), seen=False)
    await world.append(key, b"secret")
    for version in (12, 17):
        result = await world.fetch({key: 0}, version=version)
        assert (result.records(key), result.code(key)) == (b"", DENIED)
    await world.service.close()
