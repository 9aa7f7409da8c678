"""X14: what a source says of its groups, in old and new versions, and what is not believed."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from headrace.compactor.links.group_requests import METADATA_CHARACTERS_MAX, fetch_offsets, list_groups
from headrace.compactor.links.source import CommittedAt, SourceGroup
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.messages import Message, message
from headrace.storage.errors import InvalidError, RetryableError

pytestmark = pytest.mark.requirement("X14")


class ScriptedSource:
    """Answers of a broker that serves at most these versions."""

    def __init__(self, **newest: int) -> None:
        self._newest = newest
        self.answers: list[Any] = []

    def newest(self, api_key: ApiKey, most: int) -> int:
        return min(self._newest[api_key.name], most)

    def message(self, api_key: ApiKey) -> Message:
        return message(api_key, self.newest(api_key, 7 if api_key is ApiKey.OFFSET_FETCH else 5))

    def ask(self, api_key: ApiKey, request: Any, node_id: int) -> Any:
        return self.answers.pop(0)

    def ask_in(self, m: Message, request: Any, node_id: int) -> Any:
        return self.answers.pop(0)

    @property
    def cluster(self) -> KafkaCluster:
        return cast(KafkaCluster, self)


def made(package: str, version: int, kind: str, /, **values: Any) -> Any:
    """An instance of a class of a response."""
    own = {"throttle_time": timedelta(0)} if kind.endswith("Response") and version >= 1 else {}
    return getattr(import_module(f"kio.schema.{package}.v{version}.response"), kind)(**own, **values)


def offset(version: int, index: int, at: int, **more: Any) -> Any:
    values = {"metadata": "m", "error_code": ErrorCode.none, "committed_leader_epoch": 3} | more
    name = "OffsetFetchResponsePartitions" if version >= 8 else "OffsetFetchResponsePartition"
    return made("offset_fetch", version, name, partition_index=index, committed_offset=at, **values)


def topic(version: int, *partitions: Any) -> Any:
    name = "OffsetFetchResponseTopics" if version >= 8 else "OffsetFetchResponseTopic"
    return made("offset_fetch", version, name, name="orders", partitions=partitions)


def of_several(*groups: tuple[str, ErrorCode, tuple[Any, ...]]) -> Any:
    found = tuple(
        made("offset_fetch", 8, "OffsetFetchResponseGroup", group_id=group, topics=topics, error_code=code)
        for group, code, topics in groups
    )
    return made("offset_fetch", 8, "OffsetFetchResponse", groups=found)


def test_offsets_that_cannot_be_are_left_out_and_texts_are_bounded() -> None:
    source = ScriptedSource(OFFSET_FETCH=8)
    partitions = (
        offset(8, 0, 7),
        offset(8, 1, -1),
        offset(8, 2, 9, error_code=ErrorCode.unstable_offset_commit),
        offset(8, 3, 5, metadata="x" * (METADATA_CHARACTERS_MAX + 1), committed_leader_epoch=-7),
        offset(8, 4, (1 << 63) - 1),
    )
    none = ErrorCode.none
    source.answers = [
        of_several(
            ("app", none, (topic(8, *partitions),)),
            ("moved", ErrorCode.not_coordinator, ()),
            ("not asked for", none, (topic(8, offset(8, 0, 1)),)),
        )
    ]
    found = fetch_offsets(source.cluster, 1, ["app", "moved"])
    assert found == {"app": {("orders", 0): CommittedAt(7, 3, "m"), ("orders", 3): CommittedAt(5, -1, "")}}


def test_an_older_source_is_asked_for_one_group_after_another() -> None:
    source = ScriptedSource(OFFSET_FETCH=7)
    answer = {"error_code": ErrorCode.none, "topics": (topic(7, offset(7, 0, 7)),)}
    loading = {"error_code": ErrorCode.coordinator_load_in_progress, "topics": ()}
    source.answers = [made("offset_fetch", 7, "OffsetFetchResponse", **each) for each in (answer, loading)]
    assert fetch_offsets(source.cluster, 1, ["a", "b"]) == {"a": {("orders", 0): CommittedAt(7, 3, "m")}}


def test_a_login_that_may_not_read_a_group_is_an_error_and_not_a_group_without_offsets() -> None:
    source = ScriptedSource(OFFSET_FETCH=8)
    source.answers = [of_several(("app", ErrorCode.group_authorization_failed, ()))]
    with pytest.raises(InvalidError, match="group_authorization_failed"):
        fetch_offsets(source.cluster, 1, ["app"])


def test_a_list_that_is_not_whole_is_an_error() -> None:
    source = ScriptedSource(LIST_GROUPS=5)
    for code, error in (
        (ErrorCode.coordinator_load_in_progress, RetryableError),
        (ErrorCode.cluster_authorization_failed, InvalidError),
    ):
        source.answers = [made("list_groups", 5, "ListGroupsResponse", error_code=code, groups=())]
        with pytest.raises(error):
            list_groups(source.cluster, 1)


@pytest.mark.parametrize("version", [2, 4, 5])
def test_groups_are_listed_in_each_version(version: int) -> None:
    source = ScriptedSource(LIST_GROUPS=version)
    more = {"group_state": "Stable"} if version >= 4 else {}
    more |= {"group_type": "Consumer"} if version >= 5 else {}
    groups = tuple(
        made("list_groups", version, "ListedGroup", group_id=group_id, protocol_type="consumer", **more)
        for group_id in ("app", "", "bad\0name", "x" * 40_000)
    )
    source.answers = [made("list_groups", version, "ListGroupsResponse", error_code=ErrorCode.none, groups=groups)]
    kind, state = "consumer" if version >= 5 else "classic", "Stable" if version >= 4 else "Unknown"
    assert list_groups(source.cluster, 2) == [SourceGroup("app", kind, "consumer", state, 2)]
