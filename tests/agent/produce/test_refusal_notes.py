"""Notes of refused batches: how long one lasts, what it explains, and how many there are (decisions/0007)."""

from __future__ import annotations

import math
import random
import uuid

import pytest

from headrace.agent.produce.refused_sequences import (
    NEW_LIFE_SECONDS,
    NOTED_SECONDS,
    NOTES_BYTES_MAX,
    PRODUCER_BYTES,
    SEQUENCE_BYTES,
    SEQUENCES_PER_PRODUCER,
    Numbered,
    Place,
    RefusedSequences,
)

PRODUCER = 77
TOPIC_ID = uuid.UUID(int=9)
SEQUENCES = 1 << 31
STARTED_LONG_AGO = -NOTED_SECONDS


def _names_of(number: int) -> tuple[str, uuid.UUID] | None:
    return ("t", TOPIC_ID) if number == 9 else None


def _at(sequence: int, *, epoch: int = 0, producer: int = PRODUCER, place: Place = (9, 0)) -> Numbered:
    return Numbered(producer, epoch, sequence, place)


class TestNotes:
    """The life cycle of a note."""

    def setup_method(self) -> None:
        self.notes = RefusedSequences(_names_of, STARTED_LONG_AGO)

    @pytest.mark.parametrize(
        ("batch", "explained"),
        [
            (_at(5), False),
            (_at(4), False),
            (_at(6), True),
            (_at(2000), True),
            (_at(6, epoch=1), False),
            (_at(6, producer=78), False),
            (_at(6, place=(9, 1)), False),
            (_at(6, place=(8, 0)), False),
        ],
    )
    def test_it_explains_later_sequences_of_the_same_producer_epoch_and_partition(
        self, batch: Numbered, explained: bool
    ) -> None:
        self.notes.note(_at(5), 0.0)
        assert self.notes.explain(batch, 1.0) is explained

    @pytest.mark.parametrize("stored", [_at(5), _at(7), _at(0, epoch=1)])
    def test_it_ends_when_the_sequence_or_a_later_one_is_stored_or_with_another_epoch(self, stored: Numbered) -> None:
        self.notes.note(_at(5), 0.0)
        self.notes.stored(stored)
        assert not self.notes.explain(_at(8), 1.0)
        assert len(self.notes) == self.notes.held_bytes == 0

    @pytest.mark.parametrize("stored", [_at(4), _at(9, epoch=-1), _at(9, producer=1), _at(9, place=(9, 1))])
    def test_nothing_else_ends_it(self, stored: Numbered) -> None:
        self.notes.note(_at(5), 0.0)
        self.notes.stored(stored)
        assert self.notes.explain(_at(8), 1.0)

    def test_each_refused_sequence_has_its_own(self) -> None:
        for sequence in (5, 6, 8):
            self.notes.note(_at(sequence), 0.0)
        self.notes.stored(_at(6))
        assert not self.notes.explain(_at(8), 1.0)
        assert self.notes.explain(_at(9), 1.0)

    def test_it_ends_after_two_minutes_and_what_it_explained_with_it(self) -> None:
        self.notes.note(_at(5), 0.0)
        assert self.notes.explain(_at(6), NOTED_SECONDS - 1)
        assert self.notes.explain(_at(7), NOTED_SECONDS - 1)
        assert not self.notes.explain(_at(6), NOTED_SECONDS)
        assert not self.notes.explain(_at(7), NOTED_SECONDS)
        self.notes.expire(2 * NOTED_SECONDS)
        assert len(self.notes) == self.notes.held_bytes == 0

    def test_it_ends_soon_once_a_life_of_the_metastore_begins(self) -> None:
        """Another agent may have stored the batch, and the failover lost it: its client does not send it again."""
        self.notes.note(_at(5), 0.0)
        self.notes.life_begins(50.0)
        assert self.notes.explain(_at(6), 50.0 + NEW_LIFE_SECONDS - 1)
        assert not self.notes.explain(_at(6), 50.0 + NEW_LIFE_SECONDS)
        assert not self.notes.explain(_at(7), 50.0 + NEW_LIFE_SECONDS)

    def test_a_note_of_a_process_that_just_started_is_short(self) -> None:
        """A life may have begun before it looked."""
        notes = RefusedSequences(_names_of, 50.0)
        notes.note(_at(5), 50.0)
        assert notes.explain(_at(6), 50.0 + NEW_LIFE_SECONDS - 1)
        assert not notes.explain(_at(6), 50.0 + NEW_LIFE_SECONDS)

    def test_a_life_makes_no_note_longer(self) -> None:
        self.notes.note(_at(5), 0.0)
        self.notes.life_begins(NOTED_SECONDS - 1)
        assert not self.notes.explain(_at(6), NOTED_SECONDS)

    @pytest.mark.parametrize(
        ("after", "lasts"),
        [(0.0, NEW_LIFE_SECONDS), (NOTED_SECONDS - 1, NEW_LIFE_SECONDS), (NOTED_SECONDS, NOTED_SECONDS)],
    )
    def test_a_note_of_the_first_time_of_a_life_is_short(self, after: float, lasts: float) -> None:
        """A batch that was under way for long may have been stored and lost."""
        refused_at = 50.0 + after
        self.notes.life_begins(50.0)
        self.notes.note(_at(5), refused_at)
        assert self.notes.explain(_at(6), refused_at + lasts - 1)
        for sequence in (6, 7):
            assert not self.notes.explain(_at(sequence), refused_at + lasts)

    def test_what_it_explained_explains_what_is_behind(self) -> None:
        """The refused batch is stored at last while the third one is still on its way."""
        self.notes.note(_at(5), 0.0)
        assert self.notes.explain(_at(6), 1.0)
        self.notes.stored(_at(5))
        assert self.notes.explain(_at(7), 2.0)
        assert not self.notes.explain(_at(6), 2.0)

    def test_a_batch_that_is_refused_again_is_noted_again(self) -> None:
        self.notes.note(_at(5), 0.0)
        self.notes.note(_at(5), 100.0)
        assert self.notes.explain(_at(6), 100.0 + NOTED_SECONDS - 1)
        assert self.notes.held_bytes == PRODUCER_BYTES + 2 * SEQUENCE_BYTES

    def test_sequences_go_on_at_0(self) -> None:
        self.notes.note(_at(SEQUENCES - 1), 0.0)
        assert self.notes.explain(_at(0), 1.0)
        self.notes.stored(_at(3))
        assert not self.notes.explain(_at(5), 1.0)

    def test_a_topic_that_the_agent_did_not_know_is_found_by_name_and_id(self) -> None:
        for place in (("t", 0), (TOPIC_ID, 0)):
            self.notes.note(_at(5, place=place), 0.0)
            assert self.notes.explain(_at(6), 1.0)
            assert not self.notes.explain(_at(6, place=(8, 0)), 1.0)
            self.notes.stored(_at(6))
            assert len(self.notes) == 0

    @pytest.mark.requirement("X7")
    def test_they_are_bounded_and_what_has_no_room_is_not_noted(self) -> None:
        for producer in range(2 * NOTES_BYTES_MAX // (PRODUCER_BYTES + SEQUENCE_BYTES)):
            self.notes.note(_at(5, producer=producer), 0.0)
        assert NOTES_BYTES_MAX - PRODUCER_BYTES - SEQUENCE_BYTES < self.notes.held_bytes <= NOTES_BYTES_MAX
        assert self.notes.explain(_at(6, producer=0), 1.0)
        assert not self.notes.explain(_at(6, producer=producer), 1.0)
        self.notes.note(_at(5, producer=producer), NOTED_SECONDS)
        assert self.notes.explain(_at(6, producer=producer), NOTED_SECONDS)

    @pytest.mark.requirement("X7")
    def test_one_producer_has_few(self) -> None:
        for sequence in range(100):
            self.notes.note(_at(sequence), 0.0)
        assert self.notes.held_bytes == PRODUCER_BYTES + SEQUENCES_PER_PRODUCER * SEQUENCE_BYTES


@pytest.mark.parametrize("seed", range(40))
def test_notes_say_what_the_rule_says(seed: int) -> None:
    """Random histories, compared with the rule in its own words."""
    rng = random.Random(seed)
    notes = RefusedSequences(lambda number: None, STARTED_LONG_AGO)
    ends: dict[tuple[int, int], float] = {}
    """(epoch, sequence) -> when its note ends."""
    now, began = 0.0, -math.inf
    for _ in range(300):
        now += rng.choice((0.0, 1.0, 30.0))
        if ends and now >= max(ends.values()):
            ends = {}
        epoch, sequence = rng.choice((0, 0, 0, 1)), rng.randrange(12)
        event = rng.choice((0, 1, 2) * 10 + (3,))
        if event == 0:
            notes.note(_at(sequence, epoch=epoch), now)
            if not any(each > epoch for each, _ in ends):
                lasts = NEW_LIFE_SECONDS if now < began + NOTED_SECONDS else NOTED_SECONDS
                ends = {key: end for key, end in ends.items() if key[0] == epoch} | {(epoch, sequence): now + lasts}
        elif event == 1:
            notes.stored(_at(sequence, epoch=epoch))
            ends = {key: end for key, end in ends.items() if key > (epoch, sequence)}
        elif event == 2:
            explaining = [end for (e, s), end in ends.items() if e == epoch and s < sequence and now < end]
            assert notes.explain(_at(sequence, epoch=epoch), now) is bool(explaining), (seed, now)
            if explaining:
                ends[epoch, sequence] = max(*explaining, ends.get((epoch, sequence), 0.0))
        else:
            notes.life_begins(now)
            began = now
            ends = {key: min(end, now + NEW_LIFE_SECONDS) for key, end in ends.items()}
    notes.expire(now + 2 * NOTED_SECONDS)
    assert notes.held_bytes == 0
