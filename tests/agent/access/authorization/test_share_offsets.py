"""What the offsets of a share group say about a topic that the client may not describe: nothing."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.typed import schema
from tests.acl_matrix.case import build
from tests.agent.access.acls import a_grant
from tests.agent.access.authorization.gated import TOPIC_ID, Gated
from tests.agent.access.authorization.test_data_path import set_acls

DENIED = ErrorCode.topic_authorization_failed
GROUP = "g"
each_version = pytest.mark.parametrize("version", [0, 1])


def _gated(answer: dict[str, list[str]], version: int) -> Gated:
    """Return the API for a client that may describe GROUP and the topic "seen". `answer`: group -> topics with offsets
    that the handler finds.
    """
    gated = Gated(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
    gated.connection.principal = None
    acls = (a_grant(AclOperation.DESCRIBE, GROUP, AclResource.GROUP), a_grant(AclOperation.DESCRIBE, "seen"))
    set_acls(gated.view, frozenset(acls))
    parts = [{"partition_index": 0, "start_offset": 7, "leader_epoch": 5, "lag": 9}]
    groups = [
        {
            "group_id": group,
            "topics": [{"topic_name": name, "topic_id": TOPIC_ID, "partitions": parts} for name in names],
        }
        for group, names in answer.items()
    ]
    found = schema(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version).response_type
    gated.answer = {"groups": build(found, {"groups": groups}).groups}
    return gated


def _asked(group: str, *names: str) -> dict[str, Any]:
    return {"group_id": group, "topics": [{"topic_name": name, "partitions": [9, 0]} for name in names]}


@each_version
@pytest.mark.requirement("C13.2", "X2")
async def test_a_hidden_topic_never_reaches_the_handler(version: int) -> None:
    """Its partitions are answered in the order of the request, whether they exist or not."""
    gated = _gated({GROUP: ["seen"]}, version)
    (group,) = (await gated.ask(version, groups=[_asked(GROUP, "hidden", "seen")])).groups
    assert [topic.topic_name for topic in gated.seen[0].groups[0].topics] == ["seen"]
    seen, hidden = group.topics
    assert (seen.topic_name, seen.topic_id, seen.partitions[0].start_offset) == ("seen", TOPIC_ID, 7)
    assert (hidden.topic_name, hidden.topic_id) == ("hidden", None)
    assert [each.partition_index for each in hidden.partitions] == [9, 0]
    for each in hidden.partitions:
        assert (each.start_offset, each.leader_epoch, each.error_code) == (-1, 0, DENIED)
        assert getattr(each, "lag", -1) == -1


@each_version
async def test_of_all_topics_the_hidden_ones_are_left_out(version: int) -> None:
    """Also if the same request names them: it would learn that the group has offsets in them."""
    gated = _gated({GROUP: ["seen", "hidden"]}, version)
    whole = {"group_id": GROUP, "topics": None}
    (group,) = (await gated.ask(version, groups=[whole])).groups
    assert [topic.topic_name for topic in group.topics] == ["seen"]
    for groups in ([whole, _asked(GROUP, "hidden")], [_asked(GROUP, "hidden"), whole]):
        (group,) = (await gated.ask(version, groups=groups)).groups
        codes = [(topic.topic_name, topic.topic_id, topic.partitions[0].error_code) for topic in group.topics]
        assert codes == [("seen", TOPIC_ID, ErrorCode.none), ("hidden", None, DENIED)]


@each_version
async def test_a_group_that_may_not_be_described_is_refused_without_its_topics(version: int) -> None:
    gated = _gated({}, version)
    (group,) = (await gated.ask(version, groups=[_asked("another", "seen")])).groups
    assert (group.error_code, group.topics) == (ErrorCode.group_authorization_failed, ())
    assert not gated.seen
    gated = _gated({GROUP: ["seen"]}, version)
    groups = (await gated.ask(version, groups=[_asked("another", "seen"), _asked(GROUP, "seen")])).groups
    codes = {group.group_id: (group.error_code, len(group.topics)) for group in groups}
    assert codes == {GROUP: (ErrorCode.none, 1), "another": (ErrorCode.group_authorization_failed, 0)}
    assert [group.group_id for group in gated.seen[0].groups] == [GROUP]
