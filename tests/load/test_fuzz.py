"""The fuzzer of requests against a live agent, for a short time: it covers every API and version and fails nothing."""

from __future__ import annotations

import struct

import pytest

from headrace.protocol.api_versions import APIS
from tests.fuzz.__main__ import SETTINGS, fuzz
from tests.fuzz.frames import ATTACKS, RequestSource
from tests.fuzz.senders import WELL_FORMED
from tests.hostile.attacked_agent import AttackedAgent

pytestmark = pytest.mark.requirement("X7")
REQUESTS = 1_200
MEMORY_BYTES = 64 * 1024 * 1024


def _kinds(frames: RequestSource, requests: int) -> set[tuple[int, int]]:
    """(API key, version) of so many well-formed requests."""
    found = set()
    for _ in range(requests // WELL_FORMED):
        data = frames.well_formed(WELL_FORMED)
        while data:
            (size,) = struct.unpack_from(">i", data)
            found.add(struct.unpack_from(">hh", data, 4))
            data = data[4 + size :]
    return found


def test_every_api_and_version_is_sent() -> None:
    """Even in the short run; and a seed gives the same frames again."""
    every = {(api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)}
    one, other = RequestSource(3), RequestSource(3)
    assert every - _kinds(one, REQUESTS) <= {(0, 0), (0, 1), (0, 2)}, "formats before record batches are captured"
    _kinds(other, REQUESTS)
    assert [attack(one) for attack in ATTACKS] == [attack(other) for attack in ATTACKS]


async def test_an_agent_withstands_them_and_serves_its_clients() -> None:
    """Memory is counted in bytes; the loop's stall is printed, not judged: the machine may be busy."""
    with AttackedAgent(settings=SETTINGS) as target:
        outcome = await fuzz(target, seed=7, requests=REQUESTS, seconds=30.0)
        print(outcome)
        assert outcome.is_good, target.log.read_text(errors="replace")[-5_000:]
    assert outcome.counts.sent >= REQUESTS
    assert outcome.counts.answered > 0
    assert set(outcome.counts.by_kind) == {"well_formed", *(attack.__name__ for attack in ATTACKS)}
    assert outcome.grown_bytes < MEMORY_BYTES
    assert "in order" in outcome.clients
