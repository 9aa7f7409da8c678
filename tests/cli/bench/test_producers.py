"""Which producer of a row sends which record, and how a reader tells the producers of a partition apart."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.cli.bench.loads import _following_order
from headrace.cli.bench.orders import first_number, producer_of
from headrace.cli.bench.produce_driver import turn
from headrace.cli.bench.target_bench import TargetBench


@pytest.mark.parametrize("producers", [1, 5, 12])
def test_each_of_few_producers_has_its_share_of_the_partitions(producers: int) -> None:
    turns = [turn(count, producers, 12) for count in range(24)]
    assert [partition for _, partition in turns] == [*range(12), *range(12)]
    assert len(set(turns)) == 12, "a partition has one producer"
    assert {producer for producer, _ in turns} == set(range(producers))


def test_many_producers_take_turns_and_each_sends_to_all_partitions() -> None:
    turns = [turn(count, 50, 12) for count in range(600)]
    assert len(set(turns)) == 600
    assert [producer for producer, _ in turns[:50]] == list(range(50))
    assert set(Counter(partition for _, partition in turns[:48]).values()) == {4}


def test_a_records_number_says_who_produced_it() -> None:
    assert [producer_of(first_number(producer) + 7) for producer in (0, 1, 49)] == [(0, 7), (1, 7), (49, 7)]


def test_a_reader_that_follows_reads_for_longer_than_records_are_produced() -> None:
    """It once gave up after 300 s, and a longer run called the rest lost."""
    target = SimpleNamespace(target=SimpleNamespace(bootstrap="127.0.0.1:1"), bounds=SimpleNamespace(seconds=3600.0))
    order = _following_order(cast(TargetBench, target), "t")
    assert order.seconds > 3600.0
    assert order.until is None
