"""ShareFetch and ShareAcknowledge with ACLs: nothing of a topic is acquired, sent or acknowledged without READ on it.

Fault model: a grant goes while the owner of the group is asked.
"""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import AclOperation
from headrace.agent.fetch.sessions import AllowedTopics
from headrace.agent.peers.share_turns import Returned
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from tests.agent.access.acls import a_grant
from tests.agent.access.authorization.test_data_path import Violation, set_acls
from tests.agent.fetch.share.test_share_requests import Sharing, _parts
from tests.patch import Patch

DENIED = ErrorCode.topic_authorization_failed
NO_PARTITION = 7
ACCEPTED = [(0, 0, (1,))]


def sharing(*granted: str) -> Sharing:
    """Return handlers of an agent that enforces ACLs, with READ on these topics."""
    made = Sharing(settings=Settings(authorizer_class_name=STANDARD_AUTHORIZER))
    grant(made, *granted)
    return made


def grant(to: Sharing, *granted: str) -> None:
    set_acls(to.view, frozenset(a_grant(AclOperation.READ, name) for name in granted))


@pytest.mark.requirement("C13.2", "X2")
async def test_without_read_the_owner_is_not_asked() -> None:
    """A partition that does not exist is refused like the others: the answer does not say how many there are."""
    denied = sharing("another")
    parts = _parts(await denied.fetch(0, {0: (), NO_PARTITION: ()}))
    assert {index: part.error_code for index, part in parts.items()} == {0: DENIED, NO_PARTITION: DENIED}
    assert not any(part.records or part.acquired_records for part in parts.values())
    parts = _parts(await denied.acknowledge(1, {0: ACCEPTED, NO_PARTITION: ACCEPTED}))
    assert {index: part.error_code for index, part in parts.items()} == {0: DENIED, NO_PARTITION: DENIED}
    part = _parts(await denied.fetch(2, {0: ACCEPTED}))[0]
    assert (part.error_code, part.acknowledge_error_code) == (DENIED, DENIED)
    assert not denied.turns


async def test_with_read_a_partition_that_does_not_exist_is_unknown() -> None:
    parts = _parts(await sharing("t").fetch(0, {0: (), NO_PARTITION: ()}))
    assert parts[0].records
    assert parts[NO_PARTITION].error_code == ErrorCode.unknown_topic_or_partition


async def read_run() -> None:
    """A turn that is under way while the grant goes."""
    read = sharing("t")
    read.on_turn = lambda: grant(read)
    part = _parts(await read.fetch(0, {0: ()}))[0]
    if part.records or part.acquired_records or part.error_code != DENIED:
        raise Violation("a record was sent after its grant had gone")
    await asyncio.sleep(0)
    assert [turn.returned for turn in read.turns] == [[], [Returned(read.turns[0].partitions[0].key, 0, 0)]], (
        "free at once"
    )


@pytest.mark.requirement("C13.2", "X2")
async def test_a_session_that_ends_without_read_frees_what_it_had_and_acknowledges_nothing() -> None:
    """A session ends after the grant went: with it go the locks of what was acquired before."""
    read = sharing("t")
    await read.fetch(0, {0: ()})
    grant(read)
    parts = _parts(await read.fetch(-1, {0: ACCEPTED, NO_PARTITION: ACCEPTED}))
    assert {index: part.error_code for index, part in parts.items()} == {0: DENIED, NO_PARTITION: DENIED}
    assert parts[0].acknowledge_error_code == DENIED
    assert [turn.partitions for turn in read.turns if turn.closes] == [[]], "the owner frees all that the session had"


@pytest.mark.requirement("C13.2", "X2")
async def test_a_grant_that_goes_during_the_turn_counts_for_its_answer() -> None:
    await read_run()


async def test_the_run_finds_a_verdict_that_is_kept_during_the_turn(patch: Patch) -> None:
    patch.replace(AllowedTopics, "codes", lambda self, request, topics: {})
    with pytest.raises(Violation):
        await read_run()
