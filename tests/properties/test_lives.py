"""However a life of the metastore begins, a batch is called stored only if that life's log has it (decisions/0037).

Random producers on one partition of the model, and copies of it from any moment, each of which may become the
metastore: a promoted standby, a restored backup or dump. Tried with everything that a producer sent in any life.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import pytest

from headrace.metastore.api.commit import BatchOutcome, StagedBatch
from tests.model.producer_model import (
    SEQUENCES,
    ProducerState,
    find_duplicate,
    is_stored,
    judge,
    remember,
)

HISTORIES, STEPS = 80, 60


@dataclass
class Server:
    """What one server has of one producer: its row, and the sequences in its log, by epoch."""

    life: int = 0
    state: ProducerState | None = None
    log: set[tuple[int, int]] = field(default_factory=set)
    offset: int = 0


def sequences(batch: StagedBatch) -> set[tuple[int, int]]:
    return {(batch.producer_epoch, (batch.base_sequence + n) % SEQUENCES) for n in range(batch.record_count)}


def commit(server: Server, batch: StagedBatch, *, knows: bool = True) -> bool:
    """Commit as the metastore does. Return whether the batch was called stored although the log lacks it."""
    if find_duplicate(server.state, batch) is not None:
        return not sequences(batch) <= server.log
    if knows and is_stored(server.state, batch, server.life):
        return not sequences(batch) <= server.log
    if judge(server.state, batch, False) is BatchOutcome.APPENDED:
        server.state = remember(server.state, batch, server.offset, server.life)
        server.log |= sequences(batch)
        server.offset += batch.record_count
    return False


def is_wrong_somewhere(seed: int, *, is_prefix: bool = True) -> tuple[bool, int]:
    """Return whether some life calls something stored that it lacks, and how many retries a later life knew.

    `is_prefix`: the rows of a copy are those of its log; else those of the server that it was copied from, later.
    """
    rng, server, copies, sent = random.Random(seed), Server(), [Server()], list[StagedBatch]()
    known = 0
    epoch, following = 0, rng.choice((0, 0, SEQUENCES - 3))
    for _ in range(STEPS):
        if rng.random() < 0.1:
            copies.append(copy.deepcopy(server))
        if rng.random() < 0.06:
            newest, life = server.state, server.life
            server = copy.deepcopy(rng.choice(copies))
            server.life = life + 1
            if not is_prefix:
                server.state = newest
        if rng.random() < 0.05:
            epoch, following = epoch + 1, 0
        if sent and rng.random() < 0.5:
            batch = rng.choice(sent)
        else:
            behind = server.state.next_sequence if server.state is not None and server.state.epoch == epoch else 0
            base = rng.choice((following, behind))
            batch = StagedBatch(1, 0, 10, rng.randint(1, 3), 0, 7, epoch, base)
            following = (base + batch.record_count) % SEQUENCES
            sent.append(batch)
        began = -1 if server.state is None else server.state.contiguous_life
        known += 0 <= began < server.life and is_stored(server.state, batch, server.life)
        if commit(server, batch):
            return True, known
    return False, known


@pytest.mark.requirement("W1", "W7")
def test_what_a_life_calls_stored_is_in_its_log() -> None:
    found = [is_wrong_somewhere(seed) for seed in range(HISTORIES)]
    assert not any(wrong for wrong, _ in found)
    assert sum(known for _, known in found) > HISTORIES, "retries are known after a promotion"


def test_rows_that_are_not_of_the_log_are_noticed() -> None:
    assert any(is_wrong_somewhere(seed, is_prefix=False)[0] for seed in range(HISTORIES))
