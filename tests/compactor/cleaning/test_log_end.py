"""The record or marker that ends a log stays, goes when something follows it, and passes come to rest.

Random histories of cleaned_log.py: appends with delete markers and without keys, transactions that are committed or
aborted, a clock, log starts, passes that are raced. Each pass is made by the worker and by Spark's tasks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.compactor.cleaning import rewrite
from headrace.compactor.cleaning.passes import Output
from tests.compactor.cleaning.cleaned_log import CleanedLog, KeyValue
from tests.planted import PlantedBugs, Trial


async def history(seed: int) -> None:
    """Some steps; then the log is quiet, one record follows, and it is quiet again."""
    log, rng = CleanedLog(seed), random.Random(seed)
    for _ in range(rng.randint(1, 9)):
        match rng.choice(("plain", "plain", "commit", "abort", "roll", "roll", "clock", "clean", "clean", "log start")):
            case "plain":
                await log.plain(_records(rng))
            case "roll":
                log.roll()
            case "clock":
                log.clock.jump(rng.choice((0.4, 1.1)))
            case "clean":
                log.api.race = rng.choice(("", "", "append", "log start", "lose"))
                await log.clean()
            case "log start" if rng.random() < 0.3:
                log.api.model.move_log_start(log.key, rng.randint(log.partition.log_start_offset, log.end))
            case kind:
                await log.transaction(_records(rng), commits=kind == "commit")
        await log.check()
    await log.rest()
    before = log.end - 1
    await log.plain([("z", "last")])
    await log.rest()
    assert [e for e in await log.read() if e.offset == before and e.value is None] == [], "it never goes"


def _records(rng: random.Random) -> list[KeyValue]:
    some = [(rng.choice(("a", "a", "b", "c", None)), rng.choice(("v", "w", None))) for _ in range(rng.randint(1, 3))]
    return [(key, "keyless" if key is None else value) for key, value in some]


@pytest.mark.requirement("L6", "L9")
def test_the_end_of_a_log_stays_and_passes_come_to_rest() -> None:
    for seed in range(8):
        asyncio.run(history(seed))


TAILS: dict[str, tuple[Callable[[CleanedLog], Any], list[int]]] = {
    "a delete marker": (lambda log: log.plain([("a", None)]), [2]),
    "a record without a key": (lambda log: log.plain([(None, "keyless")]), [1, 2]),
    "a commit marker": (lambda log: log.transaction([("b", "1")], commits=True), [1, 2, 3]),
    "an abort marker": (lambda log: log.transaction([("b", "1")], commits=False), [1, 3]),
    "a large extent": (lambda log: log.plain([*(("c", f"{n}") for n in range(500)), ("c", None)]), [1, 502]),
}
"""What follows the records a@0 and a@1 -> the offsets that stay."""


@pytest.mark.requirement("L6")
@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_stays_until_a_record_follows(tail: str) -> None:
    """Of an extent of 501 records all but the last go."""

    async def tell() -> None:
        log = CleanedLog(1)
        await log.plain([("a", "1"), ("a", "2")])
        append, stays = TAILS[tail]
        await append(log)
        await log.rest()
        passes_before = log.passes
        assert [entry.offset for entry in await log.read()] == stays
        log.clock.jump(1_000)
        log.roll()
        assert not await log.clean()
        assert log.passes == passes_before <= 2
        await log.plain([("z", "last")])
        await log.rest()
        assert [entry.offset for entry in await log.read() if entry.key != "z"] == stays[:-1]

    asyncio.run(tell())


def the_last_record_is_cleaned(right: Any) -> Any:
    return lambda batch, rule: right(batch, rule._replace(kept_offset=-1))


def the_last_marker_is_not_known(right: Any) -> Any:
    return lambda output, extent, rule: right(output, extent, rule._replace(kept_offset=-1))


def its_horizon_makes_passes_due(right: Any) -> Any:
    return lambda batch, rule: right(batch, rule)._replace(is_due=True)


def the_last_record_of_each_batch_stays(right: Any) -> Any:
    def judge(batch: Any, rule: Any) -> Any:
        return right(batch, rule._replace(kept_offset=batch.offset + batch.header.last_offset_delta))

    return judge


BUGS: list[tuple[Callable[[Any], Any], Any, str]] = [
    (the_last_record_is_cleaned, rewrite, "_judge"),
    (the_last_marker_is_not_known, Output, "add_marker"),
    (its_horizon_makes_passes_due, rewrite, "_judge"),
    (the_last_record_of_each_batch_stays, rewrite, "_judge"),
]
PLANTED = PlantedBugs("the end of a cleaned log", most=300)


@PLANTED.cases(BUGS, lambda bug: bug[0].__name__)
def test_a_planted_bug_is_caught(bug: tuple[Callable[[Any], Any], Any, str], trial: Trial) -> None:
    wrong, owner, name = bug
    trial.plant(owner, name, wrong(getattr(owner, name)))
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            asyncio.run(history(seed))
