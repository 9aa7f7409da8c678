"""What producers may do next, drawn without knowing what happened before.

Place: the strategies of commit_machine.py. Moves: `next` in sequence, `repeat` an earlier batch,
`ghost`: an earlier batch's sequences under today's epoch, `resize` the last one, `skip` some, `start`
at 0, `bump` the epoch, an `old` epoch, `wrap`: shortly before the sequences wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

from tests.model.producer_model import SEQUENCES

YOUNG, FORGOTTEN, UNLEASED, HANDED_OUT_LATE = 500, 600, 77, 700
"""Producer ids: leased just now, leased two days ago, never leased, of a block that is just older than a day."""


@dataclass
class Sent:
    """What one producer has sent to one partition, and where it believes to be."""

    epoch: int
    next_sequence: int
    batches: list[tuple[int, int, int]]
    """(epoch, base sequence, records)"""


class Intent(NamedTuple):
    """One batch, as far as it can be drawn without knowing what happened before."""

    partition: int
    producer: int
    move: str
    back: int
    records: int
    timestamp: int
    gap: bool
    expect: str

    def next_batch(self, sent: Sent) -> tuple[int, int, int]:
        """(epoch, base sequence, records) of what the producer does next; `sent` takes note."""
        if self.producer < 0:
            return -1, -1, self.records
        epoch, sequence, records = sent.epoch, sent.next_sequence, self.records
        match self.move:
            case "repeat" if sent.batches:
                return sent.batches[-1 - self.back % len(sent.batches)]
            case "ghost" if sent.batches:
                return epoch, *sent.batches[-1 - self.back % len(sent.batches)][1:]
            case "resize" if sent.batches:
                epoch, sequence, records = sent.batches[-1]
                return epoch, sequence, records + 1
            case "old":
                return max(0, epoch - 1), sequence, records
            case "skip":
                sequence = (sequence + 1 + self.back) % SEQUENCES
            case "start":
                sequence = 0
            case "bump":
                epoch, sequence = epoch + 1, self.back // 6
            case "wrap":
                sequence = SEQUENCES - 3
        sent.epoch, sent.next_sequence = epoch, (sequence + records) % SEQUENCES
        sent.batches.append((epoch, sequence, records))
        return epoch, sequence, records


intents = st.builds(
    Intent,
    partition=st.integers(0, 3),
    producer=st.sampled_from([-1, YOUNG, YOUNG, FORGOTTEN, UNLEASED, HANDED_OUT_LATE]),
    move=st.sampled_from([*["next"] * 4, *["repeat"] * 2, "skip", "start", "bump", "old", "resize", "ghost", "wrap"]),
    back=st.integers(0, 6),
    records=st.integers(1, 4),
    timestamp=st.integers(-1, 12),
    gap=st.booleans(),
    expect=st.sampled_from(["nothing", "nothing", "right", "epoch", "count"]),
)
calls = st.lists(st.lists(intents, max_size=8), min_size=1, max_size=3)
births = st.sampled_from(["now"] * 8 + ["old", "future"])
