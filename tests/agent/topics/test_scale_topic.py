"""ScaleTopic: what is refused, what is announced first, and what it says of readers."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING
from headrace.agent.topics.counts.count_changes import PartitionCounts, WantedCount
from headrace.agent.topics.counts.scaling import ScaleTopic, TopicDoubling, TopicHalving
from headrace.config.settings import Settings
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.topics import ReadingGroup
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.own_records import DoubleTopicRecord
from headrace.metastore.log.records import decode_record, split_record
from headrace.metastore.partitions.topic_partitions import Split
from headrace.protocol.own_requests import (
    SCALE_TOPIC_KEY,
    ScaleRequest,
    ScaleResponse,
    ScaleStep,
    ShownReader,
    decode_scale_request,
    decode_scale_response,
    encode_scale_request,
    encode_scale_response,
)
from headrace.protocol.request import CloseConnection
from headrace.storage.errors import InvalidError, OutcomeUnknownError
from tests.agent.client_calls import a_request
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock
from tests.nouns import nouns

pytestmark = pytest.mark.requirement("X5")
HEADER_BYTES = 4 + 8 + 2
CLASSIC = ReadingGroup("old", GroupKind.CLASSIC, "Stable", 0)
ALONE = ReadingGroup("alone", None, "Empty", 0)


class World:
    """One agent, and a topic of three partitions in a cluster of format 4."""

    def __init__(self, clock: ManualClock, level: int = 4) -> None:
        self.clock, self.api = clock, FakeClusterApi(clock)
        self.api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=level))
        self.topic_id = self.api.add_topic("t", 3)
        self.cluster = an_agent(self.api)
        halving = TopicHalving(self.cluster, self.api, clock, EffectiveConfigs(Settings()), Settings)  # type: ignore[arg-type]
        self.handler = ScaleTopic(TopicDoubling(self.cluster, nouns(self.api), clock), halving)
        self.counts = PartitionCounts(self.cluster, self.api, clock)

    async def ask(self, step: ScaleStep = ScaleStep.DOUBLE, topic: str = "t", **more: object) -> ScaleResponse:
        frame = encode_scale_request(ScaleRequest(topic, step, **more), "", 7)  # type: ignore[arg-type]
        answer = await self.clock.run(self.handler(a_request(SCALE_TOPIC_KEY, 0, frame[HEADER_BYTES:])))
        assert answer.buffers is not None
        return decode_scale_response(memoryview(b"".join(answer.buffers)))

    async def grow(self, count: int) -> ErrorCode:
        (verdict,) = await self.counts.change([WantedCount("t", count, may_shrink=True)], 9e9, validate_only=False)
        return verdict.code

    async def set_boundaries(self) -> None:
        splits = (await self.topic()).splits
        self.api.append(*(split_record(self.topic_id, p, Split(split.child, 0)) for p, split in splits.items()))

    async def topic(self) -> TopicImage:
        return (await self.cluster.catch_up()).topics_by_name["t"]


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)


async def test_a_topic_doubles_and_is_announced_before(world: World) -> None:
    before = len(world.api.log)
    answer = await world.ask()
    assert answer[:5] == (0, None, 6, 3, 0)
    assert decode_record(world.api.log[before]) == DoubleTopicRecord(topic_id=world.topic_id, partition_count=6)
    topic = await world.topic()
    assert topic.splits == {0: Split(3), 1: Split(4), 2: Split(5)}
    assert topic.doubling == -1


@pytest.mark.parametrize("doubles", [True, False])
async def test_decided_bulk_writes_are_completed_before_a_topic_grows(world: World, doubles: bool) -> None:
    world.api.bulk_chunks = 5
    assert (await world.ask()).error_code == 0 if doubles else await world.clock.run(world.grow(4)) == 0
    assert (world.api.bulk_chunks, world.api.announced) == (0, {world.topic_id})
    assert (await world.topic()).undeleted_partition_count == (6 if doubles else 4)


async def test_a_topic_that_waits_for_bulk_writes_says_so(world: World) -> None:
    world.api.bulk_chunks = 10**9
    answer = await world.ask()
    assert answer.error_code == ErrorCode.request_timed_out
    assert "decided bulk writes are being completed first" in (answer.message or "")
    deadline = world.clock.monotonic() + 5
    (verdict,) = await world.clock.run(world.counts.change([WantedCount("t", 4)], deadline, validate_only=False))
    assert "decided bulk writes are being completed first" in (verdict.message or "")
    assert (await world.topic()).undeleted_partition_count == 3


async def test_no_change_of_the_count_while_a_doubling_is_under_way(world: World) -> None:
    await world.ask()
    again = await world.ask()
    assert again.error_code == ErrorCode.reassignment_in_progress
    assert again.message == "the last doubling is not over: partitions without a boundary=3 of 3"
    assert await world.grow(7) is ErrorCode.reassignment_in_progress
    assert await world.grow(4) is ErrorCode.reassignment_in_progress
    await world.set_boundaries()
    assert (await world.ask(ScaleStep.LOOK)).boundaries == 3
    assert (await world.ask())[:5] == (0, None, 12, 6, 0)


async def test_a_request_that_names_its_count_doubles_once(world: World) -> None:
    """A script repeats a command after its agent was killed: from 3 to 6, and never to 12."""
    refused = await world.ask(partition_count=12)
    assert (refused.error_code, refused.message) == (
        ErrorCode.invalid_partitions,
        "the topic doubles to 6 partitions, not to 12",
    )
    assert (await world.ask(partition_count=6))[:5] == (0, None, 6, 3, 0)
    assert (await world.ask(partition_count=6))[:5] == (0, None, 6, 3, 0), "while it is under way"
    await world.set_boundaries()
    length = len(world.api.log)
    assert (await world.ask(partition_count=6))[:5] == (0, None, 6, 3, 3), "when it is over"
    assert len(world.api.log) == length
    assert (await world.ask(partition_count=-1)).error_code == ErrorCode.invalid_request


async def test_it_waits_for_agents_and_can_be_repeated(world: World) -> None:
    world.api.add_agent(9)
    world.api.agents[9].offset = 0
    answer = await world.ask(timeout_ms=1_000)
    assert answer.error_code == ErrorCode.request_timed_out
    assert answer.message == "agents have not heard of it yet: node_ids=[9]; repeat the request"
    assert ((await world.topic()).doubling, answer.partition_count) == (6, 3)
    length = len(world.api.log)
    world.api.agents[9].offset = length
    assert (await world.ask(timeout_ms=1_000)).partition_count == 6
    assert not isinstance(decode_record(world.api.log[length]), DoubleTopicRecord), "it was announced"


async def test_an_announcement_that_others_always_precede_ends_at_the_deadline(
    world: World, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def precede(offset: int, records: object) -> bool:
        await fake_clock.sleep(0.4)
        return False

    monkeypatch.setattr(world.api, "append_records", precede)
    answer = await world.ask(timeout_ms=1_000)
    assert (answer.error_code, answer.message) == (ErrorCode.request_timed_out, LOG_KEPT_CHANGING)
    assert answer.partition_count == 3


async def test_an_agent_that_is_fenced_is_not_waited_for(world: World) -> None:
    world.api.add_agent(9)
    world.api.agents[9].offset, world.api.agents[9].fenced = 0, True
    assert (await world.ask()).error_code == 0


async def test_a_lost_answer_is_not_a_refusal(world: World) -> None:
    world.api.fail_after["append_records"].append(OutcomeUnknownError("lost"))
    world.api.fail_after["double_topic"].append(OutcomeUnknownError("lost"))
    assert (await world.ask()).partition_count == 6
    world.api.fail_before["double_topic"].append(OutcomeUnknownError("lost"))
    await world.set_boundaries()
    assert (await world.ask()).partition_count == 12


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        ([CLASSIC, ALONE], "read children at once: groups=old, alone"),
        ([ReadingGroup("slow", GroupKind.CONSUMER, "Stable", 2)], "of the last doubling: groups=slow"),
        ([ReadingGroup(f"g{n}", None, "Empty", 0) for n in range(12)], "g9, ... (12)"),
    ],
)
async def test_readers_that_do_not_keep_the_order(world: World, readers: list[ReadingGroup], message: str) -> None:
    world.api.readers = readers
    refused = await world.ask(validate_only=True)
    assert refused.error_code == ErrorCode.invalid_request
    assert refused.message is not None
    assert message in refused.message
    shown = tuple(ShownReader(r.group_id, r.kind and r.kind.value, r.state, r.late) for r in readers)
    assert refused.readers == shown
    assert (await world.ask(force=True)).partition_count == 6


async def test_groups_of_the_consumer_protocol_and_share_groups_are_no_hindrance(world: World) -> None:
    world.api.readers = [
        ReadingGroup("g", GroupKind.CONSUMER, "Stable", 0),
        ReadingGroup("s", GroupKind.SHARE, "Empty", 0),
    ]
    assert (await world.ask(validate_only=True))[:3] == (0, None, 3)
    assert (await world.topic()).doubling == -1, "nothing was announced"
    assert (await world.ask()).partition_count == 6


async def test_counts_that_do_not_double(world: World) -> None:
    assert await world.grow(5) is ErrorCode.none
    refused = await world.ask()
    assert refused.error_code == ErrorCode.invalid_partitions
    assert refused.message is not None
    assert "count=5 initial=3" in refused.message
    assert await world.grow(6) is ErrorCode.none
    assert (await world.ask()).partition_count == 12
    await world.set_boundaries()
    assert await world.grow(3) is ErrorCode.none
    marked = await world.ask()
    assert marked.error_code == ErrorCode.invalid_partitions
    assert marked.message is not None
    assert "to be deleted" in marked.message


async def test_other_refusals(world: World, fake_clock: ManualClock) -> None:
    for step in ScaleStep:
        assert (await world.ask(step, "none")).error_code == ErrorCode.unknown_topic_or_partition
    assert (await world.ask(ScaleStep.CANCEL)).message == "the topic does not halve"
    not_doubled = await world.ask(ScaleStep.HALVE)
    assert (not_doubled.error_code, not_doubled.partition_count) == (ErrorCode.invalid_partitions, 3)
    world.api.readers = [ALONE]
    assert (await world.ask(ScaleStep.HALVE)).message == (
        "have offsets, and never had members, so the halving might never end: groups=alone"
    )
    world.api.readers = []
    assert (await world.ask(quiet_ms=-1)).error_code == ErrorCode.invalid_request
    assert (await World(fake_clock, level=3).ask()).error_code == ErrorCode.unsupported_version
    with pytest.raises(CloseConnection):
        await world.handler(a_request(SCALE_TOPIC_KEY, 1, b""))
    for body in (b"", b"\x00\x01t\x05" + bytes(14), b"\x00\x01t\x01" + bytes(15)):
        with pytest.raises(InvalidError):
            await world.handler(a_request(SCALE_TOPIC_KEY, 0, body))


def test_the_bytes() -> None:
    """As docs/understand/ORDERED_REQUESTS.md has them."""
    request = ScaleRequest("t", ScaleStep.HALVE, force=True, quiet_ms=258, timeout_ms=1, partition_count=3)
    frame = encode_scale_request(request, "", 7)
    assert frame.hex() == "0000001c7a3c0000000000070000000174ff0100000001020000000100000003"
    assert decode_scale_request(memoryview(frame)[HEADER_BYTES:]) == request
    response = ScaleResponse(3, "no", 8, 4, 2, (ShownReader("g", None, "Empty", 1),))
    found = encode_scale_response(7, response)
    assert found.hex() == (
        "00000007" "0003" "00026e6f" "00000008" "00000004" "00000002" "00000001" "000167" "ffff" "0005456d707479"
        "00000001"
    )  # fmt: skip
    assert decode_scale_response(memoryview(found)) == response
