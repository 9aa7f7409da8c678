"""Random histories of a compacted topic: L2 to L6 hold for every reader at every moment, and cleaning does its work.

Keys, delete markers and records without a key arrive under changing leader epochs; active parts end, log starts move,
files are merged; passes run at any time, and their swaps are lost or raced. `Truth` says what readers may see; at the
end the topic is quiet, and two passes leave one record per key and no delete marker.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compactor import take_over
from headrace.compactor.cleaning.key_map import BYTES_PER_KEY
from headrace.storage.records.compression import Codec
from tests.properties.cleaning_story import Clean, Merge, Story, Write
from tests.seeds import examples

writes = st.builds(
    Write,
    records=st.lists(
        st.tuples(st.sampled_from(["a", "a", "b", "c", "d", None]), st.sampled_from([True, True, False])),
        min_size=1,
        max_size=5,
    ).map(tuple),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]),
    by_broker=st.sampled_from([False, False, True]),
)
cleans = st.builds(
    Clean,
    buffer_bytes=st.sampled_from([1 << 20, 1 << 20, 3 * BYTES_PER_KEY]),
    extent_bytes=st.sampled_from([150, 400, 1 << 20]),
    file_bytes=st.sampled_from([100, 1 << 20]),
    batch_bytes=st.sampled_from([100, 1 << 20]),
    race=st.sampled_from(["", "", "lose", "crash", "merge", "log start", "write"]),
    race_at=st.integers(1, 3),
)
merges = st.builds(Merge, level=st.sampled_from([1, 2]), extent_bytes=st.sampled_from([150, 1 << 20]))
steps = st.lists(
    st.one_of(
        *(writes, writes, writes, cleans, cleans, merges),
        *(st.just("roll"), st.just("roll"), st.sampled_from(["epoch", "log start", 400, 700, 1_100])),
    ),
    max_size=25,
)


def _write(*records: tuple[str | None, bool]) -> Write:
    return Write(records, Codec.NONE, False)


def _pass(race: str = "", buffer_bytes: int = 1 << 20) -> Clean:
    """Each extent in a separate file, so that one swap of them can be lost."""
    return Clean(buffer_bytes, 100, 1, 1 << 20, race, 1)


STORIES: dict[str, list[Any]] = {
    "the removal of K@0 is lost twice, that of its marker is not": [
        *(_write(("a", True)), _write(("a", False)), _write(("b", True))),
        *("roll", _pass("lose"), 1_100, _pass("lose")),
    ],
    "the marker's horizon passes before K@0 goes": [
        *(_write(("a", True)), _write(("a", False)), _write(("b", True))),
        *("roll", _pass("lose"), 1_100, _pass(), _pass()),
    ],
    "a leader epoch ends between two extents": [
        *(_write(("a", True)), "epoch", _write(("a", True)), "epoch", _write(("a", True)), "roll"),
        Clean(1 << 20, 1 << 20, 1 << 20, 1 << 20, "", 1),
    ],
    "the keys fit no map": [
        *(_write((key, True)) for key in "abcda"),
        "roll",
        _pass(buffer_bytes=3 * BYTES_PER_KEY),
    ],
}


@pytest.mark.requirement("L2", "L3", "L6")
@pytest.mark.parametrize("name", STORIES)
async def test_a_known_history(name: str) -> None:
    await Story(0).tell(STORIES[name])


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap that ends in a crash is not repeated."""
    monkeypatch.setattr(take_over, "SWAP_ATTEMPTS", 1)


@pytest.mark.requirement("L2", "L3", "L4", "L6")
@settings(max_examples=examples(100))
@given(steps, st.integers(0, 2**32))
def test_readers_of_a_compacted_topic_see_what_they_are_promised(history: list[Any], seed: int) -> None:
    asyncio.run(Story(seed).tell(history))
