"""Batches of one call get what the same batches get one call at a time: offsets, refusals, and states of producers.

The one call is laid out by the agent, or by judge_batches and lay_out.sql if a batch is refused; a call of one batch
needs next to none of that. Compared on twin topics: runs of several epochs, duplicates and gaps, more batches of a
producer than its ring holds, and sequences that go over their end. Each round begins with what the one before left.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, StagedBatch
from headrace.metastore.postgres.commit import grouping
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, rows
from tests.metastore.sql_sources import broken

pytestmark = pytest.mark.requirement("W4", "W7")
ROUNDS, PARTITIONS, PRODUCERS = 14, 2, (7, 8)
SEQUENCES = 1 << 31
Made = tuple[int, dict[str, Any]]
"""A partition, and the fields of a batch for it."""
AGED = "UPDATE partitions SET created_at = created_at - interval '4 days' WHERE partition_key = ANY (%s)"
LEFT = """
SELECT array(SELECT (partition_key & 16777215, high_watermark, max_timestamp, appended_bytes)::text
               FROM partition_heads WHERE partition_key = ANY (%(keys)s) ORDER BY partition_key),
       array(SELECT (partition_key & 16777215, producer_id, epoch, next_sequence, ring, contiguous_life, wrapped)::text
               FROM producer_state WHERE partition_key = ANY (%(keys)s) ORDER BY partition_key, producer_id)
"""


@dataclass
class Writer:
    """A producer in a partition of both twins."""

    epoch: int = 0
    sequence: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)

    def next(self, rng: random.Random) -> dict[str, Any]:
        """The epoch, sequence and records of a batch."""
        match rng.choice(["next"] * 12 + ["again", "again", "skip", "bump", "bump", "bump above 0", "old epoch"]):
            case "again" if self.sent:
                return rng.choice(self.sent[-8:])
            case "skip":
                return self._batch(rng, self.sequence + 1)
            case "bump":
                self.epoch, self.sequence = self.epoch + 1, 0
            case "bump above 0":  # it goes on as if nothing had happened, which is out of order
                return self._batch(rng, self.sequence, epoch=self.epoch + 1)
            case "old epoch" if self.epoch:
                return self._batch(rng, self.sequence, epoch=self.epoch - 1)
        made = self._batch(rng, self.sequence)
        self.sequence = (self.sequence + made["records"]) % SEQUENCES
        self.sent.append(made)
        return made

    def _batch(self, rng: random.Random, sequence: int, *, epoch: int | None = None) -> dict[str, Any]:
        return {
            "sequence": sequence % SEQUENCES,
            "records": rng.randint(1, 3),
            "epoch": self.epoch if epoch is None else epoch,
            "max_timestamp": rng.choice([-1, 0, 5, 1 << 62]),
        }


@dataclass
class Twins:
    """Two topics: one gets all batches of a round in a call, the other a batch in a call."""

    together: Scene
    apart: Scene
    raw: Session

    async def left(self, scene: Scene) -> list[tuple[Any, ...]]:
        """Return heads and producers of a topic."""
        return await (await self.raw.execute(LEFT.encode(), {"keys": scene.keys})).fetchall()


@pytest.fixture
async def twins(metastore: PostgresMetastore, raw: Session) -> Twins:
    found = Twins(await open_scene(metastore, PARTITIONS), await open_scene(metastore, PARTITIONS), raw)
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(AGED, [[*found.together.keys, *found.apart.keys]])
    return found


def _batches(
    rng: random.Random, writers: dict[tuple[int, int], Writer], count: int
) -> list[tuple[int, dict[str, Any]]]:
    made: list[Made] = []
    for _ in range(count):
        partition, producer = rng.randrange(PARTITIONS), rng.choice((-1, *PRODUCERS, *PRODUCERS))
        if producer < 0:
            made.append((partition, {"records": rng.randint(1, 3)}))
            continue
        fields = {**writers[partition, producer].next(rng), "producer": producer}
        if rng.random() < 0.05:
            fields["leader_epoch"] = 5
        made.append((partition, fields))
    return made


def _of(scene: Scene, made: Sequence[Made]) -> list[StagedBatch]:
    return [batch(scene.keys[partition], **fields) for partition, fields in made]


async def differences(twins: Twins, seed: int) -> tuple[int, Counter[BatchOutcome]]:
    """Return in how many rounds the twins differ, up to the first, and how often each outcome came."""
    rng = random.Random(seed)
    places = [(partition, producer) for partition in range(PARTITIONS) for producer in PRODUCERS]
    # the partition may have forgotten its producers, so they may begin anywhere
    writers = {place: Writer(sequence=rng.choice((0, SEQUENCES - 4))) for place in places}
    outcomes: Counter[BatchOutcome] = Counter()
    for count in (12, *(rng.choice((3, 12, 40)) for _ in range(ROUNDS))):
        made = _batches(rng, writers, count)
        cut = rng.randrange(len(made) + 1)
        files = [file_of(_of(twins.together, part)) for part in (made[:cut], made[cut:])]
        answers = [each for file in await twins.together.commit(*files) for each in file.batches]
        one_by_one: list[BatchAnswer] = []
        for each in _of(twins.apart, made):
            (answer,) = await twins.apart.commit(file_of([each]))
            one_by_one += answer.batches
        outcomes.update(each.outcome for each in answers)
        if answers != one_by_one or await twins.left(twins.together) != await twins.left(twins.apart):
            return 1, outcomes
        for (partition, producer), writer in writers.items():  # they learn where they are
            key = twins.together.keys[partition]
            found = await rows(
                twins.raw,
                "SELECT epoch, next_sequence FROM producer_state WHERE partition_key = %s AND producer_id = %s"
                " ORDER BY update_block DESC LIMIT 1",
                key,
                producer,
            )
            if found:
                writer.epoch, writer.sequence = found[0]
    return 0, outcomes


@pytest.mark.parametrize("seed", [1, 2])
async def test_one_call_does_what_many_do(twins: Twins, seed: int) -> None:
    found, outcomes = await differences(twins, seed)
    assert found == 0
    assert outcomes[BatchOutcome.APPENDED] > sum(outcomes.values()) / 3
    assert outcomes >= Counter([BatchOutcome.DUPLICATE, BatchOutcome.OUT_OF_ORDER, BatchOutcome.PRODUCER_FENCED]), (
        outcomes
    )


PLANTED = {
    "the newest batch begins the epoch": ("lay_out", "min(i) AS first", "max(i) AS first"),
    "a ring takes batches of the producer before": (
        "lay_out",
        "(sum(count(i)) OVER (ORDER BY prod))::int",
        "(sum(count(i)) OVER ())::int",
    ),
    "a ring is kept after its epoch": (
        "commit_files",
        "|| CASE WHEN s.epoch = p_batch_epoch[last] THEN s.ring ELSE '' END",
        "|| s.ring",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_layout_that_is_wrong_in_sql_is_found(twins: Twins, bug: str) -> None:
    name, right, wrong = PLANTED[bug]
    await twins.raw.execute(broken(name, [(right, wrong)]).encode())
    assert (await differences(twins, 1))[0] or (await differences(twins, 2))[0]


async def test_a_chain_over_two_epochs_is_found(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent says that batches continue each other although the epoch changes; most calls here have few batches."""

    def chained(batches: Sequence[StagedBatch]) -> bool:
        return all(
            later.base_sequence in (0, (earlier.base_sequence + earlier.record_count) % SEQUENCES)
            for earlier, later in itertools.pairwise(batches)
        )

    monkeypatch.setattr(grouping, "_are_chained", chained)
    assert (await differences(twins, 1))[0] or (await differences(twins, 2))[0]
