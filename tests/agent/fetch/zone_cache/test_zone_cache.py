"""The file cache that a zone's agents share: who keeps what, how often it is read, and what faults cost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from headrace.agent.fetch.zone_cache.shared import REST_SECONDS, SLOW_CALLS
from headrace.agent.peers.channel import WINDOW_MS
from headrace.agent.peers.zone_cache_wire import MAX_RANGES, Ask, decode_ask, encode_ask
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError
from headrace.storage.segment.file_range import FileRange, RangeBytes
from tests.agent.fetch.zone_cache.zone_world import CHUNK, SECRET, TIMEOUT_MS, Zone, recent


def _bytes(bodies: list[RangeBytes | HeadraceError]) -> list[bytes]:
    found = []
    for body in bodies:
        assert isinstance(body, RangeBytes)
        found.append(bytes(body.data))
    return found


async def _foreign_file(zone: Zone, asker: int, owner: int | None = None, size: int = CHUNK) -> tuple[uuid.UUID, bytes]:
    """A file of one chunk that another member (`owner`, if it matters which) keeps."""
    for number in range(1, 1000):
        file_id = uuid.UUID(int=number)
        found = zone.members[asker].zone_cache.shared.owners.owner(file_id, 0)
        if found is not None and owner in (None, found.node_id):
            return await zone.put(number, size)
    raise AssertionError("no such file")


@pytest.fixture
def zone() -> Zone:
    """Two agents of one zone."""
    return Zone(["a", "a"])


@pytest.mark.requirement("W12")
async def test_every_chunk_is_read_once_from_the_store_however_many_agents_want_it() -> None:
    zone = Zone(["a", "a", "a"])
    files = [await zone.put(number, 2400) for number in range(1, 21)]
    wanted = [recent(file_id, 100, 2300, 2400) for file_id, _ in files]
    for node_id in (1, 2, 3):
        assert _bytes(await zone.read(node_id, *wanted)) == [data[100:2300] for _, data in files]
    chunks = {(key, byte_range.start) for key, byte_range in zone.store.gets if byte_range is not None}
    assert len(zone.store.gets) == len(chunks) == 60
    owned = {
        node_id: member.metric("fetch_read_bytes_total", source="store") for node_id, member in zone.members.items()
    }
    assert sum(owned.values()) == 20 * 2400
    assert all(owned.values()), "each keeps its share"


@pytest.mark.requirement("W12")
async def test_many_ranges_of_many_files_take_one_call_per_agent_that_keeps_them() -> None:
    zone = Zone(["a", "a", "a"])
    files = [await zone.put(number, 2400) for number in range(1, 31)]
    wanted = [recent(file_id, start, start + 8, 2400) for file_id, _ in files for start in (0, 500, 1500)]
    assert _bytes(await zone.read(1, *wanted)) == [data[s : s + 8] for _, data in files for s in (0, 500, 1500)]
    asker = zone.members[1]
    assert asker.metric("zone_cache_rpcs_total", direction="sent") == 2
    assert asker.metric("zone_cache_ranges_total", direction="sent") > 40
    served = [zone.members[n].metric("zone_cache_rpcs_total", direction="served") for n in (1, 2, 3)]
    assert served == [0, 1, 1]


async def test_readers_of_the_same_bytes_share_a_call_and_later_ones_need_none(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1)
    wanted = recent(file_id, 8, 408)
    member = zone.members[1]
    reads = asyncio.gather(*(member.reader.read([wanted]) for _ in range(50)))
    for bodies in await zone.clock.run(reads):
        assert _bytes(bodies) == [data[8:408]]
    assert _bytes(await zone.read(1, wanted, recent(file_id, 8, 200))) == [data[8:408], data[8:200]]
    assert member.metric("zone_cache_rpcs_total", direction="sent") == 1
    assert member.metric("fetch_read_bytes_total", source="zone") == 400
    assert member.metric("fetch_read_bytes_total", source="memory") == 592


async def test_a_reader_that_leaves_does_not_end_the_call_of_the_others(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1)
    reader = zone.members[1].reader
    leaving, staying = (asyncio.ensure_future(reader.read([recent(file_id, 0, 80)])) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert _bytes(await zone.clock.run(staying)) == [data[:80]]
    assert len(zone.store.gets) == 1


async def test_no_agent_is_asked_for_this_agents_own_flushes(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1)
    zone.members[1].cache.put_file(file_id, data)
    (body,) = await zone.read(1, recent(file_id, 0, 500))
    assert isinstance(body, RangeBytes)
    assert (bytes(body.data), body.checked) == (data[:500], True)
    assert (zone.store.gets, zone.connects) == ([], [])


async def test_historical_reads_ask_no_agent_and_fill_no_cache(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1)
    assert _bytes(await zone.read(1, FileRange(file_id, 0, 500, 500, recent=False))) == [data[:500]]
    assert zone.connects == []
    assert zone.members[1].metric("fetch_cache_bytes") == 0
    assert zone.members[1].metric("fetch_read_bytes_total", source="store") == 500


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("racks", [("a", "b", "b"), ("a", None, "b")])
async def test_only_agents_of_the_same_zone_are_asked(racks: tuple[str | None, ...]) -> None:
    zone = Zone(racks)
    files = [await zone.put(number, CHUNK) for number in range(1, 31)]
    assert _bytes(await zone.read(1, *(recent(f, 0, CHUNK) for f, _ in files))) == [data for _, data in files]
    assert zone.connects == []
    assert len(zone.store.gets) == 30


@pytest.mark.requirement("W15")
async def test_bytes_between_agents_are_counted_by_zone(zone: Zone) -> None:
    file_id, _ = await _foreign_file(zone, asker=1)
    await zone.read(1, recent(file_id, 0, 800))
    owner = zone.members[2]
    assert owner.metric("zone_traffic_bytes_total", path="zone_cache", zone="same") == 800
    assert owner.metric("zone_traffic_bytes_total", path="zone_cache", zone="other") == 0


async def test_agents_without_a_zone_share_one_cache() -> None:
    zone = Zone([None, None])
    file_id, data = await _foreign_file(zone, asker=1)
    assert _bytes(await zone.read(1, recent(file_id, 0, 80))) == [data[:80]]
    assert zone.connects == [2]


async def test_a_fenced_agents_share_moves_to_the_others() -> None:
    zone = Zone(["a", "a", "a"])
    file_id, data = await _foreign_file(zone, asker=1, owner=3)
    zone.members[3].down = True
    zone.show({3: True})
    assert _bytes(await zone.read(1, recent(file_id, 0, 80))) == [data[:80]]
    assert 3 not in zone.connects


# -- faults: the bytes are right and the store delivers them


def _bent(position: int) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]


async def _read_with_fault(zone: Zone, reason: str) -> None:
    file_id, data = await _foreign_file(zone, asker=1, owner=2)
    assert _bytes(await zone.read(1, recent(file_id, 16, 816))) == [data[16:816]]
    assert zone.members[1].metric("zone_cache_fallbacks_total", reason=reason) == 1
    assert zone.members[1].metric("fetch_read_bytes_total", source="zone") == 0
    assert zone.members[1].metric("fetch_read_bytes_total", source="store") == 816


async def test_an_owner_that_is_down(zone: Zone) -> None:
    zone.members[2].down = True
    await _read_with_fault(zone, "down")


async def test_an_owner_that_is_silent_costs_no_more_than_the_deadline(zone: Zone) -> None:
    zone.members[2].silent = True
    start = zone.clock.monotonic()
    await _read_with_fault(zone, "slow")
    assert zone.clock.monotonic() - start == pytest.approx(TIMEOUT_MS / 1000)


@pytest.mark.parametrize("position", [-1, -500])
async def test_an_owner_with_altered_bytes(zone: Zone, position: int) -> None:
    zone.members[2].bend = lambda frame: _bent(len(frame) + position)(frame)
    await _read_with_fault(zone, "wrong")


@pytest.mark.parametrize("keep", [-1, -700, 50, 10])
async def test_an_owner_with_a_short_answer(zone: Zone, keep: int) -> None:
    zone.members[2].bend = lambda frame: frame[:keep]
    await _read_with_fault(zone, "wrong")


@pytest.mark.parametrize("position", [4, 20, 40, 41, 45])
async def test_an_answer_that_is_forged(zone: Zone, position: int) -> None:
    zone.members[2].bend = _bent(position)
    await _read_with_fault(zone, "wrong")


async def test_an_owner_that_cannot_read_it_itself(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1)
    failures = iter([True])

    async def once(_: str) -> None:
        if next(failures, False):
            raise NotFoundError("gone")

    zone.store.before_get = once
    assert _bytes(await zone.read(1, recent(file_id, 0, 80))) == [data[:80]]
    assert zone.members[1].metric("zone_cache_fallbacks_total", reason="failed") == 1


async def test_only_the_store_decides_that_a_file_is_missing(zone: Zone) -> None:
    file_id, _ = await _foreign_file(zone, asker=1)
    await zone.store.rewrite(f"segments/{file_id.hex[-2:]}/{file_id}", lambda _: None)
    (outcome,) = await zone.read(1, recent(file_id, 0, 80))
    assert isinstance(outcome, NotFoundError)


async def test_an_unauthorized_client_gets_nothing() -> None:
    zone = Zone(["a", "a"], [b"x" * 32, SECRET])
    await _read_with_fault(zone, "down")
    assert zone.members[2].metric("zone_cache_refused_total") == 1
    assert zone.members[2].metric("zone_cache_rpcs_total", direction="served") == 0


@pytest.mark.parametrize("position", [12, 43, 50, 60, 80])
async def test_a_question_that_was_altered_gets_nothing(zone: Zone, position: int) -> None:
    zone.members[2].bend_question = _bent(position)
    await _read_with_fault(zone, "down")
    assert zone.members[2].metric("zone_cache_refused_total") == 1


def test_a_long_question_is_not_even_hashed() -> None:
    parts = [FileRange(uuid.UUID(int=1), number, number + 1, 0) for number in range(MAX_RANGES)]
    frame, mac = encode_ask(Ask(0, 1, 2, parts), SECRET, 7)
    body = memoryview(frame)[-(len(mac) + 20 + 36 * MAX_RANGES) :]
    assert decode_ask(body, SECRET) == (Ask(0, 1, 2, parts), mac)
    with pytest.raises(InvalidError, match="too long"):
        decode_ask(memoryview(bytes(len(body) + 1)), SECRET)


async def test_an_old_question_gets_nothing(zone: Zone) -> None:
    zone.members[2].skew_ms = WINDOW_MS + 1
    await _read_with_fault(zone, "down")


async def test_a_dead_owner_rests_and_is_asked_again_later(zone: Zone) -> None:
    file_id, data = await _foreign_file(zone, asker=1, size=CHUNK)
    zone.members[2].down = True
    await zone.read(1, recent(file_id, 0, 80))
    zone.members[1].cache.forget(file_id)
    zone.members[1].cache._forgotten.clear()
    await zone.read(1, recent(file_id, 0, 80))
    assert zone.connects == [2]
    assert zone.members[1].metric("zone_cache_fallbacks_total", reason="resting") == 1
    zone.members[2].down = False
    await zone.clock.advance(REST_SECONDS)
    zone.members[1].cache.forget(file_id)
    zone.members[1].cache._forgotten.clear()
    assert _bytes(await zone.read(1, recent(file_id, 0, 80))) == [data[:80]]
    assert zone.members[1].metric("fetch_read_bytes_total", source="zone") == 80


async def test_slow_once_is_forgiven_and_slow_again_and_again_is_not(zone: Zone) -> None:
    zone.members[2].silent = True
    files = [await _foreign_file(zone, asker=1)]
    files += [(uuid.UUID(int=n), (await zone.put(n, CHUNK))[1]) for n in range(1000, 1040)]
    foreign = [f for f, _ in files if zone.members[1].zone_cache.shared.owners.owner(f, 0) is not None]
    for file_id in foreign[: SLOW_CALLS + 2]:
        await zone.read(1, recent(file_id, 0, 80))
    member = zone.members[1]
    assert member.metric("zone_cache_fallbacks_total", reason="slow") == SLOW_CALLS
    assert member.metric("zone_cache_fallbacks_total", reason="resting") == 2


async def test_a_file_that_turned_out_corrupt_is_read_from_the_store_from_then_on(zone: Zone) -> None:
    """An owner with wrong bytes in its memory: only a reader of the batches detects it, and then forgets the file."""
    file_id, data = await _foreign_file(zone, asker=1)
    zone.members[2].cache.put_file(file_id, b"?" * len(data))
    wanted = recent(file_id, 0, 80)
    assert _bytes(await zone.read(1, wanted)) == [b"?" * 80]
    zone.members[1].cache.forget(file_id)
    assert _bytes(await zone.read(1, wanted)) == [data[:80]]


async def test_closing_ends_calls_in_progress(zone: Zone) -> None:
    zone.members[2].silent = True
    file_id, _ = await _foreign_file(zone, asker=1)
    read = asyncio.ensure_future(zone.members[1].reader.read([recent(file_id, 0, 80)]))
    await zone.clock.settle()
    await zone.members[1].zone_cache.close()
    await zone.clock.settle()
    assert read.done()
    assert not zone.members[1].zone_cache.shared._asked
