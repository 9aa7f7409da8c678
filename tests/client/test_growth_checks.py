"""The checker of a run's events finds what must not be."""

from __future__ import annotations

import pytest

from tests.growth.checks import Delivered, Event, KeyAssigned, MaybeRevoked, check_events

A, B = ("t", 0), ("t", 8)
GOOD: list[Event] = [
    Delivered("m", A, b"k", 1),
    MaybeRevoked("m", A),
    KeyAssigned("n", B),
    Delivered("n", B, b"k", 2),
]


def test_a_good_run() -> None:
    report = check_events(GOOD, {b"k": 2})
    assert (report.records, report.moves) == (2, 1)
    assert (report.out_of_order, report.without_callbacks, report.missing) == ([], [], {})


@pytest.mark.parametrize(
    "events",
    [
        [GOOD[3], GOOD[1], GOOD[2], GOOD[0]],
        [GOOD[0], *GOOD],
        [GOOD[0], GOOD[1], GOOD[3]],
        [GOOD[0], GOOD[2], GOOD[1], GOOD[3]],
        [GOOD[1], GOOD[0], GOOD[2], GOOD[3]],
        GOOD[:3],
    ],
    ids=["order", "twice", "no assigned", "assigned first", "revoked too early", "missing"],
)
def test_a_bad_one(events: list[Event]) -> None:
    report = check_events(events, {b"k": 2})
    assert report.out_of_order or report.without_callbacks or report.missing
