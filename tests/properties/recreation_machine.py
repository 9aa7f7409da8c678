"""The history of commit_machine.py, with topics that are deleted and created again under their names.

Place: run by test_recreation_machine.py. Producers continue in the new topic as the client libraries do: with the
sequence after the last one, with a batch that they send again after a lost answer, or with another move of
commit_intents.py.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from headrace.metastore.keys import split_partition_key
from tests.model.producer_model import ProducerState
from tests.properties.commit_intents import YOUNG, Intent, Sent
from tests.properties.commit_machine import DAY_MS, CommitMachine

MOVES = [*["next"] * 4, *["repeat"] * 2, "skip", "start", "bump", "old", "resize"]
History = tuple[list[str], int, int]
"""The moves of a producer (commit_intents.py), how far back a repeated batch is, and the records of each."""

histories = st.tuples(st.lists(st.sampled_from(MOVES), min_size=1, max_size=3), st.integers(0, 6), st.integers(1, 4))


class RecreationMachine(CommitMachine):
    """Names return; one that is alive is not created again."""

    @rule(
        which=st.integers(0, 2),
        before=histories,
        between=st.none() | histories,
        after=histories,
        partitions=st.integers(1, 3),
        is_purged=st.booleans(),
        is_long_ago=st.sampled_from([False, False, False, True]),
    )
    def replace_topic(
        self,
        which: int,
        before: History,
        between: History | None,
        after: History,
        partitions: int,
        is_purged: bool,
        is_long_ago: bool,
    ) -> None:
        """A producer writes to a topic, which is deleted and created again once or twice, and writes on."""
        number = sorted(self.topics)[which % len(self.topics)]
        self.write(number << 24, before)
        number = self.recreate(number, partitions)
        if between is not None:
            self.write(number << 24, between)
            number = self.recreate(number, partitions)
        if is_purged:
            self.purge()
        if is_long_ago:
            self.let_deletions_age()
        self.write(number << 24, after)

    def recreate(self, number: int, partitions: int) -> int:
        """The number of the next topic of the name."""
        self.delete(number)
        (next_number, _) = split_partition_key(self.create_topic(self.names[number], partitions)[0])
        return next_number

    def write(self, key: int, history: History) -> None:
        """Do what the producer does next in the partition, in one file."""
        self.synchronise_producers()
        moves, back, records = history
        partition = self.keys.index(key)
        intents = [Intent(partition, YOUNG, move, back, records, 1, False, "nothing") for move in moves]
        self.commit([self.new_file(intents)])

    @rule(which=st.integers(0, 5), partitions=st.integers(1, 3))
    @precondition(lambda self: len(self.topics) < 3)
    def create_again(self, which: int, partitions: int) -> None:
        """A name that was gone for a while."""
        gone = sorted({self.names[number] for number in self.names} - {self.names[number] for number in self.topics})
        if gone:
            self.create_topic(gone[which % len(gone)], partitions)

    @rule()
    def purge(self) -> None:
        """Remove what deleted topics left."""

        async def purge() -> None:
            while await self.store.housekeeping.purge_deleted_partitions(20):
                pass

        self.run(purge())

    @rule()
    def let_deletions_age(self) -> None:
        """All deletions so far are longer ago than an expiration."""
        self.model.deleted_ms = {number: at_ms - 2 * DAY_MS for number, at_ms in self.model.deleted_ms.items()}
        self.sql(
            "UPDATE deleted_topics SET deleted_at = deleted_at - interval '2 days'"
            " WHERE topic_number = ANY (%(numbers)s)",
            numbers=list(self.model.deleted_ms),
        )

    def state_before(self, key: int) -> ProducerState | None:
        """Return where the producer was in the last deleted topic of the name, however long ago."""
        return self.model.state_before(key, YOUNG, within_ms=1_000 * DAY_MS)

    def synchronise_producers(self) -> None:
        """A producer of a deleted topic believes that it is where it was."""
        super().synchronise_producers()
        for key, partition in self.model.partitions.items():
            before = self.state_before(key)
            if before is not None and YOUNG not in partition.producers:
                batches = [
                    (before.epoch, entry.base_sequence, entry.last_sequence - entry.base_sequence + 1)
                    for entry in reversed(before.ring)
                ]
                self.sent[key, YOUNG] = Sent(before.epoch, before.next_sequence, batches)
