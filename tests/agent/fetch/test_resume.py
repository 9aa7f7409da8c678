"""A resume hint is used for the extent that it was made for, and for no other."""

from __future__ import annotations

import uuid

import pytest

from headrace.agent.fetch.files.start_points import ResumeHints
from headrace.agent.fetch.files.walk import BatchStart
from headrace.metastore.api.read import Extent

EXTENT = Extent(1 << 24, 95, 194, uuid.UUID(int=7), 1_000, 50_000, 0, 0)
START = BatchStart(11_000, 115)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    "other",
    [
        EXTENT._replace(base_offset=90, last_offset=189),  # the metastore lost commits, and the file is committed again
        EXTENT._replace(position=2_000, length=49_000),
        EXTENT._replace(source=uuid.UUID(int=8)),
        EXTENT._replace(length=10_000),
    ],
    ids=["other offsets", "other bytes", "other file", "ends before"],
)
def test_a_hint_is_not_used_for_another_extent(other: Extent) -> None:
    hints = ResumeHints()
    hints.remember(EXTENT, START.offset, START)
    assert hints.find(other, START.offset) is None
    assert hints.find(EXTENT, START.offset) == START
    assert hints.find(EXTENT, START.offset + 1) is None


def test_the_least_recently_used_hint_goes_first() -> None:
    hints = ResumeHints(capacity=2)
    for offset in (100, 110):
        hints.remember(EXTENT, offset, START)
    assert hints.find(EXTENT, 100) is not None
    hints.remember(EXTENT, 120, START)
    assert [hints.find(EXTENT, offset) is None for offset in (100, 110, 120)] == [False, True, False]
