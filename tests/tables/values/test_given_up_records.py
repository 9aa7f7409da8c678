"""Random records that end the process which opens them: each other record is opened, once, and chunks come to an end.

Fault model: the process ends at some records each time (they take too much), at some only once (it was killed from
outside); a chunk runs out of time anywhere. The process is in this one: its end is an exception.
"""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.tables.state import Definition
from headrace.tables.values.apart import process as apart
from headrace.tables.values.apart.messages import EndedError, OpeningAnswer, OpeningFrame, OpeningRequest, Refused
from headrace.tables.values.apart.process import ApartOpener, Budget, OpeningPool
from headrace.tables.values.inferred import InferredJson
from headrace.tables.values.open import ChunkOpener, Tolerance
from tests.planted import PlantedBugs, Trial
from tests.tables.values.test_apart import WITH_A, raw

pytestmark = pytest.mark.requirement("X11")

ROUNDS_MAX = 200


class OneProcess(OpeningPool):
    """Opens here. `always` and `once`: the places at which the process ends."""

    def __init__(self, rng: random.Random, always: set[tuple[int, int]], once: set[tuple[int, int]]) -> None:
        super().__init__()
        self.rng, self.always, self.once = rng, always, once

    def ask(self, request: OpeningRequest, schema: pa.Schema, rows: pa.Table) -> tuple[OpeningAnswer, OpeningFrame]:
        watch = EndingWatch(self, request, rows)
        opened = ChunkOpener(InferredJson(), schema, Tolerance(request.tolerance), watch).open(rows)
        dead = tuple((each.partition, each.start, each.end) for each in opened.dead)
        cuts = tuple((partition, cut.offset, cut.reason) for partition, cut in opened.cuts.items())
        answer = msgspec.msgpack.decode(msgspec.msgpack.encode(OpeningAnswer(dead, cuts)), type=OpeningAnswer)
        return answer, OpeningFrame(b"", pa.schema(list(opened.columns)), opened.rows)


class EndingWatch:
    """Implements RecordWatch: ends the process at its places, and the chunk at any time."""

    def __init__(self, process: OneProcess, asked: OpeningRequest, rows: pa.Table) -> None:
        self._process, self._asked, self._rows = process, asked, rows
        self._refused = {(each.partition, each.offset): each.reason for each in asked.refused}

    def begin(self, row: int, size_bytes: int) -> None:
        if row < 0:
            return
        place = self._rows.column("partition")[row].as_py(), self._rows.column("offset")[row].as_py()
        if place in self._process.always:
            raise EndedError(row, "too long", is_certain=self._process.rng.random() < 0.5)
        if place in self._process.once:
            self._process.once.discard(place)
            raise EndedError(row, "killed", is_certain=False)

    def why_refused(self, partition: int, offset: int) -> str:
        return self._refused.get((partition, offset), "")

    def is_over(self, row: int) -> bool:
        rows_max = self._asked.rows_max
        return (rows_max is not None and row >= rows_max) or self._process.rng.random() < 0.02


def tell(seed: int) -> None:
    """A log in two partitions, chunk after chunk; AssertionError if a record is decided wrongly, twice or never."""
    rng = random.Random(seed)
    kinds = {
        (p, n): rng.choice(["fits", "fits", "fits", "fits", "odd", "always", "once"]) for p in (0, 1) for n in range(25)
    }
    process = OneProcess(
        rng,
        {at for at, kind in kinds.items() if kind == "always"},
        {at for at, kind in kinds.items() if kind == "once"},
    )
    told = Definition("cluster", "orders", uuid.UUID(int=seed), "earliest", "", "json", "", "invalid_data")
    at, rows, dead = {0: 0, 1: 0}, list[tuple[int, int]](), list[tuple[int, int]]()
    for _ in range(ROUNDS_MAX):
        parts = [
            raw(*(_value(kinds[p, n]) for n in range(25)), partition=p).slice(start, rng.randint(1, 25))
            for p, start in at.items()
        ]
        chunk = pa.concat_tables(parts)
        if not chunk.num_rows:
            break
        budget = Budget(chunk=rng.choice([-1.0, 1_000.0]))
        opened = ApartOpener(process, "", told, WITH_A, budget, monotonic=lambda: 0.0).open(chunk)
        assert opened.columns == pa.struct([("a", pa.large_string())]), "nothing widens the table"
        for partition, part in enumerate(parts):
            end = at[partition] + part.num_rows
            at[partition] = opened.cuts[partition].offset if partition in opened.cuts else end
        rows += [(each["partition"], each["offset"]) for each in opened.rows.column("kafka").to_pylist()]
        dead += [(each.partition, n) for each in opened.dead for n in range(each.start, each.end)]
    else:
        raise AssertionError("the log does not come to its end")
    assert sorted(rows) == sorted(place for place, kind in kinds.items() if kind in ("fits", "once"))
    assert sorted(dead) == sorted(place for place, kind in kinds.items() if kind in ("odd", "always"))


def _value(kind: str) -> bytes:
    return b"no json" if kind == "odd" else json.dumps({"a": kind}).encode()


def test_each_record_is_decided_once_however_the_process_ends() -> None:
    for seed in range(40):
        tell(seed)


def _at_the_row_before(ended: EndedError) -> EndedError:
    return EndedError(max(ended.row - 1, 0), ended.reason, is_certain=ended.is_certain)


def _after(change: Any) -> Any:
    """Return `ApartOpener._after` with another end."""
    return lambda self, ended, *more, **named: _own_after(self, change(ended), *more, **named)


def _forgets_refused(partition: int, offset: int, reason: str) -> Refused:
    return Refused(partition + 2, offset, reason)


_own_after = ApartOpener._after
BUGS: dict[str, tuple[Any, str, Any]] = {
    "the record before is given up": (ApartOpener, "_after", _after(_at_the_row_before)),
    "a record is given up although the process was killed": (
        ApartOpener, "_after", _after(lambda ended: EndedError(ended.row, ended.reason, is_certain=True)),
    ),
    "what was given up is opened again": (apart, "Refused", _forgets_refused),
}  # fmt: skip
PLANTED = PlantedBugs("records that end their process", most=100)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    trial.plant(*BUGS[bug])
    left = [500]
    ask = OneProcess.ask

    def limited(self: OneProcess, *args: Any) -> Any:
        left[0] -= 1
        assert left[0], "the same record ends the process again and again"
        return ask(self, *args)

    trial.plant(OneProcess, "ask", limited)
    for seed in trial.seeds():
        left[0] = 500
        with trial.shown_by(AssertionError):
            tell(seed)
