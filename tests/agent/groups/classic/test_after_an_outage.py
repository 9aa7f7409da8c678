"""One member alone after an outage: how long it waits for the member that it was before. As Kafka's coordinator.

librdkafka forgets its member id when no coordinator answered for its session timeout, and joins as a new member. The
coordinator cannot know that both are one client, and the session of the first one begins again with each coordinator
(in Kafka: GroupMetadataManager.onLoaded).
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.saved import SavedGroup, decode, encode
from headrace.agent.groups.group_values import GroupState
from tests.agent.groups.classic.group_script import Script

SESSION = 45.0


def after_an_outage(instance_id: str | None = None) -> tuple[Script, str]:
    """The group at its next coordinator, and the id that its only member had."""
    before = Script()
    (old,) = before.stable(instance_id, session=SESSION)
    state = before.group.snapshot()
    assert isinstance(state, SavedGroup)
    return Script(restored=decode(encode(state)), seed=2), old


@pytest.mark.parametrize("gone", [0.0, 20.0, 44.0])
def test_a_new_member_waits_for_the_rest_of_the_old_ones_session(gone: float) -> None:
    script, _ = after_an_outage()
    script.pass_time(gone)
    token = script.join(session=SESSION)
    script.pass_time(SESSION - gone - 0.1)
    assert token not in script.answers
    assert script.is_in(GroupState.PREPARING_REBALANCE)
    script.pass_time(0.2)
    assert script.joined(token).code is ErrorCode.none


def test_a_member_that_kept_its_id_continues_at_once() -> None:
    """Java's consumer keeps it."""
    script, old = after_an_outage()
    assert script.heartbeat(old) is ErrorCode.none
    assert script.joined(script.join(old, session=SESSION)).code is ErrorCode.none


def test_a_static_member_continues_at_once_without_its_id() -> None:
    script, old = after_an_outage("i-1")
    token = script.join("", "i-1", session=SESSION)
    script.store()
    assert script.joined(token).code is ErrorCode.none
    assert script.joined(token).member_id != old
