"""What a reader makes of lost, repeated and disordered records."""

from __future__ import annotations

import pytest

from headrace.cli.bench.consume_driver import ReadOrder


@pytest.mark.parametrize(
    ("seen", "missing", "duplicates", "disordered"),
    [
        ([0, 1, 2, 3], 0, 0, 0),
        ([0, 1, 3], 1, 0, 0),
        ([2], 2, 0, 0),
        ([0, 1, 1, 2, 0], 0, 2, 0),
        ([0, 2, 1, 3], 0, 0, 1),
        ([0, 2, 1, 1], 0, 1, 1),
    ],
)
def test_every_departure_from_the_order_is_counted(
    seen: list[int], missing: int, duplicates: int, disordered: int
) -> None:
    order = ReadOrder()
    for number in seen:
        order.see(number)
    assert (order.read, order.missing(), order.duplicates, order.disordered) == (
        len(seen),
        missing,
        duplicates,
        disordered,
    )
