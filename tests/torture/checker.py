"""What was acknowledged against what can be read: lost, duplicated, out of order, at another offset.

Pure. A record is named by (producer, partition, number); its producer sends the numbers of a partition
in order, each once. Acknowledged records are definite: they must be there, but for those that Postgres lost and
`headrace audit --lost` lists. A record that its client gave up on may be
stored or not, once at most; its place is open, as its producer continued under another id or epoch. A
record may be acknowledged without an offset: then it must be there, in its producer's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.torture.pacing import NOWHERE


class Name(NamedTuple):
    """`number` counts from 0 in each (producer, partition)."""

    producer: str
    partition: int
    number: int

    def value(self) -> str:
        """The record's value."""
        return f"{self.producer}/{self.partition}/{self.number}"

    @classmethod
    def of(cls, value: str) -> Name:
        """The name that a value states; ValueError when it is no value of ours."""
        producer, partition, number = value.split("/")
        return cls(producer, int(partition), int(number))


class Read(NamedTuple):
    """One record as a consumer returned it."""

    partition: int
    offset: int
    value: str


@dataclass
class TortureVerdict:
    """Each list holds one line per offence, in words."""

    read: int = 0
    unacknowledged: int = 0
    """Read, though their clients never heard so: fine."""
    lost_and_listed: int = 0
    """Acknowledged, lost by Postgres, and in the report of what it lost: fine."""
    lost_with_agent: int = 0
    """Acknowledged, lost by Postgres, and unlisted because an agent was killed before it wrote down what it knew."""
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    """Acknowledged with another offset, or in another partition, or sent by no writer."""
    gaps: list[str] = field(default_factory=list)

    @property
    def offences(self) -> list[str]:
        """Everything that must not be."""
        return [*self.lost, *self.duplicated, *self.disordered, *self.misplaced, *self.gaps]


def check(
    acknowledged: Mapping[Name, int],
    read: Sequence[Read],
    listed: Collection[Name] = frozenset(),
    unlistable: Collection[Name] = frozenset(),
) -> TortureVerdict:
    """`acknowledged`: the offset that each was acknowledged at, or NOWHERE. `read` holds each partition in order.
    `listed`: what may be missing, if it is. `unlistable`: what may be missing and not listed."""
    verdict = TortureVerdict(read=len(read))
    found: dict[Name, int] = {}
    next_offset: Counter[int] = Counter()
    last_number: dict[tuple[str, int], int] = {}
    for partition, offset, value in read:
        if offset != next_offset[partition]:
            verdict.gaps.append(f"gap: partition={partition} expected={next_offset[partition]} offset={offset}")
        next_offset[partition] = offset + 1
        name = Name.of(value)
        if name.partition != partition:
            verdict.misplaced.append(f"in another partition: value={value} partition={partition} offset={offset}")
        if name in found:
            verdict.duplicated.append(f"duplicated: value={value} offsets={found[name]},{offset}")
            continue
        found[name] = offset
        if name not in acknowledged:
            continue
        stream = (name.producer, partition)
        if name.number < last_number.get(stream, -1):
            verdict.disordered.append(f"out of order: value={value} after={last_number[stream]} offset={offset}")
        last_number[stream] = max(name.number, last_number.get(stream, -1))
        if acknowledged[name] not in (offset, NOWHERE):
            verdict.misplaced.append(f"at another offset: value={value} told={acknowledged[name]} offset={offset}")
    missing = {name: offset for name, offset in acknowledged.items() if name not in found}
    verdict.lost = [
        f"lost: value={name.value()} offset={offset}"
        for name, offset in missing.items()
        if name not in listed and name not in unlistable
    ]
    verdict.lost_and_listed = sum(name in listed for name in missing)
    verdict.lost_with_agent = len(missing) - len(verdict.lost) - verdict.lost_and_listed
    verdict.unacknowledged = len(found.keys() - acknowledged.keys())
    return verdict


def compare(first: Sequence[Read], second: Sequence[Read]) -> list[str]:
    """Return what two consumers read of the same partitions must be the same."""
    by_place = {(partition, offset): value for partition, offset, value in first}
    other = {(partition, offset): value for partition, offset, value in second}
    return [
        f"consumers disagree: partition={place[0]} offset={place[1]} {by_place.get(place)} {other.get(place)}"
        for place in sorted(by_place.keys() | other.keys())
        if by_place.get(place) != other.get(place)
    ]
