"""The tables of KAFKA-20033, line by line: parsed from its text, compared with what real workers on Postgres record.

The records are read as consumers read them: rendered from the tables, in Kafka's serialisation. Offsets and epochs are
numbered otherwise here than in the text; they must be renamed consistently, in the same order. Two exceptions are
decided: DELETE_SEGMENT_STARTED is recorded before the object is deleted (scenario 4), and a partition's marker goes
after its segments' tombstones (scenario 5, R13).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.api.segment_states import RemotePartitionDeleteState, RemoteSegmentKey, parse_key
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.records import RemotePartitionDeleteMetadataRecord, decode
from headrace.metastore.segment_logs.rendering import audit_record, log_record
from headrace.storage.records.codec import Record
from tests.compactor.segment_world import DAY, HOUR, SegmentWorld
from tests.compactor.stores import FailingStore
from tests.metastore.segment_logs.scenarios import Row, Scenario, scenarios
from tests.metastore.sessions import delete


class Line(NamedTuple):
    """A record; `epoch` and `uuid` as ranks, in the order in which they appear. `state`: Kafka's id, or its name."""

    epoch: int | None
    api_key: int | None
    state: str | None
    uuid: int | None


async def audit_of(world: SegmentWorld) -> list[Record]:
    pages = [await world.postgres.segment_logs.read_audit_log(n, 0, 1_000) for n in range(METADATA_PARTITIONS)]
    return [audit_record(event, "t") for page in pages for event in page.rows]


async def log_of(world: SegmentWorld) -> list[Record]:
    pages = [await world.postgres.segment_logs.read_remote_log(n, 0, 1_000) for n in range(METADATA_PARTITIONS)]
    return [log_record(row, "t") for page in pages for row in page.rows]


async def messages_of(world: SegmentWorld) -> list[Record]:
    """Everything that was written, in order: the audit trail, then the tombstones, which it lacks."""
    return await audit_of(world) + [record for record in await log_of(world) if record.value is None]


async def check_projection(world: SegmentWorld) -> None:
    """The audit trail is legal, step by step, and with the tombstones it gives the state that the other log has."""
    whole, compacted = Projection(), Projection()
    for record in await messages_of(world):
        whole.apply(StreamRecord(*record[:4]))
    for record in await log_of(world):
        compacted.apply(StreamRecord(*record[:4]), is_compacted=True)
    found = {key: (segment.state, segment.segment_id) for key, segment in compacted.segments.items()}
    assert found == {key: (segment.state, segment.segment_id) for key, segment in whole.segments.items()}
    assert compacted.partitions == whole.partitions


def lines_of(records: Sequence[Record]) -> list[Line]:
    """Return the lines with ranks for epochs and uuids."""
    keys = [parse_key(record.key or b"") for record in records]
    assert len({key[:3] for key in keys if isinstance(key, RemoteSegmentKey)}) <= 1, "one range"
    epochs = sorted({key.epoch for key in keys if isinstance(key, RemoteSegmentKey)})
    uuids: list[object] = []
    found = []
    for key, record in zip(keys, records, strict=True):
        epoch = epochs.index(key.epoch) if isinstance(key, RemoteSegmentKey) else None
        if record.value is None:
            found.append(Line(epoch, None, None, None))
            continue
        value = decode(record.value).record
        if isinstance(value, RemotePartitionDeleteMetadataRecord):
            state = RemotePartitionDeleteState(value.remote_partition_delete_state).name
            found.append(Line(None, value.api_key, state, None))
            continue
        if value.remote_log_segment_id.id not in uuids:
            uuids.append(value.remote_log_segment_id.id)
        number = uuids.index(value.remote_log_segment_id.id)
        found.append(Line(epoch, value.api_key, str(value.remote_log_segment_state), number))
    return found


def expected_lines(scenario: Scenario) -> list[Line]:
    """The rows that write a record, with the same ranks."""
    rows = scenario.messages
    named = [text for text, _ in scenario.initial] + [row.key for row in rows]
    epochs = sorted({int(text.split(":")[3]) for text in named if text.count(":") == 3})
    uuids: list[str] = []
    return [_line(row, epochs, uuids) for row in rows]


def _line(row: Row, epochs: Sequence[int], uuids: list[str]) -> Line:
    said = row.fields()
    epoch = epochs.index(int(row.key.split(":")[3])) if row.key.count(":") == 3 else None
    if row.value == "null":
        return Line(epoch, None, None, None)
    name = said.get("uuid")
    if name is not None and name not in uuids:
        uuids.append(name)
    return Line(epoch, int(said["apiKey"]), said["state"], None if name is None else uuids.index(name))


def promised(scenario: Scenario) -> int:
    """Return how many messages the text says that the audit keeps."""
    (count,) = re.findall(r"(both|all \d) messages", scenario.audit)
    return 2 if count == "both" else int(count.split()[1])


async def upload_scenario(world: SegmentWorld, number: int) -> None:
    """The events of scenarios 1, 2 and 3."""
    if number == 1:
        await world.compact(1)
    elif number == 2:
        await world.upload_by(2)
    else:
        job = await world.claim(await world.live_files(), 1)
        await world.run(job, world.compactor(store=FailingStore(world.store, is_stored=False)))


@pytest.mark.requirement("R2", "R3")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(1, marks=pytest.mark.requirement("R4.1")),
        pytest.param(2, marks=pytest.mark.requirement("R4.2")),
        pytest.param(3, marks=pytest.mark.requirement("R4.3")),
    ],
)
async def test_uploads_line_by_line(world: SegmentWorld, number: int) -> None:
    scenario = scenarios()[number]
    (key,) = await world.filled()
    await upload_scenario(world, number)
    written = await messages_of(world)
    assert lines_of(written) == expected_lines(scenario)
    assert len(written) == promised(scenario) == len(await audit_of(world))
    compacted = await log_of(world)
    assert len(compacted) == len(scenario.compacted)
    every = lines_of(written)
    uuids = list(dict.fromkeys(row.fields()["uuid"] for row in scenario.messages))
    for record, (_, name) in zip(compacted, scenario.compacted, strict=True):
        at = written.index(next(w for w in written[::-1] if w.key == record.key))
        assert every[at].state == "1"
        wanted = name or re.findall(r"UUID-[A-Z]", scenario.cache)[0]
        assert uuids[every[at].uuid or 0] == wanted
    await check_cache(world, key, scenario, uuids, every)
    await check_projection(world)


async def check_cache(
    world: SegmentWorld, key: int, scenario: Scenario, uuids: Sequence[str], every: Sequence[Line]
) -> None:
    """A reader gets the bytes of the segment that the text selects."""
    (selected,) = re.findall(r"selects (UUID-[A-Z])", scenario.cache) or re.findall(r"UUID-[A-Z]", scenario.cache)[:1]
    (answer,) = await world.postgres.index.find_extents([ExtentQuery(key, 0, 1_000_000)])
    (extent,) = answer.extents
    ((segment_id, epoch),) = await world.ask(
        "SELECT segment_id, epoch FROM remote_segments WHERE file_id = %s", extent.file_id
    )
    order = list(dict.fromkeys(e.segment_id for e in await world.events()))
    assert uuids[order.index(segment_id)] == selected
    assert epoch == max(found.epoch for found in await world.keys())


@pytest.mark.requirement("R4.4")
async def test_a_deletion_line_by_line(world: SegmentWorld) -> None:
    scenario = scenarios()[4]
    (key,) = await world.filled()
    await world.upload_by(len(scenario.initial))
    before = len(await audit_of(world))
    await world.postgres.retention.move_log_starts([LogStartTarget(key, TO_HIGH_WATERMARK)], max_extents=1_000)
    expected = expected_lines(scenario)
    everything = await messages_of(world)
    assert [line[:3] for line in lines_of(everything)[before:]] == [line[:3] for line in expected[:1]]
    assert await world.objects(), "recorded first, then deleted"
    await world.advance(2 * HOUR)
    await world.janitor()
    everything = await messages_of(world)
    assert [line[:3] for line in lines_of(everything)[before:]] == [line[:3] for line in expected]
    assert await world.objects() == set()
    assert [record.value for record in await log_of(world)] == [None] * len(scenario.tombstones)
    await check_projection(world)
    gone = [row for row in scenario.rows if row.time.endswith("+24Hour")]
    assert len(gone) == len(await log_of(world))
    await world.advance(DAY - 60)
    await world.clean_up()
    assert len(await log_of(world)) == len(gone)
    await world.advance(120)
    await world.clean_up()
    assert await log_of(world) == []
    assert len(await audit_of(world)) == before + 2


@pytest.mark.requirement("R4.5")
async def test_a_partitions_deletion_line_by_line(world: SegmentWorld) -> None:
    scenario = scenarios()[5]
    await world.filled()
    await world.compact(1)
    await delete(world.postgres, world.view.image.topics_by_name["t"].topic_id)
    while await world.postgres.housekeeping.purge_deleted_partitions(1_000):
        pass
    await world.advance(2 * HOUR)
    await world.janitor()
    await world.clean_up()
    markers = [record for record in await audit_of(world) if (record.key or b"").count(b":") == 1]
    assert lines_of(markers) == expected_lines(scenario)
    log = await log_of(world)
    assert {record.value for record in log if (record.key or b"").count(b":") == 3} == {None}
    (marker,) = [record for record in log if (record.key or b"").count(b":") == 1]
    assert marker.value is not None
    await check_projection(world)
    await world.settle()
    assert await log_of(world) == []
