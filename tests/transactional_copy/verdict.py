"""Whether a topic was copied exactly once by transactions: a pure comparison of logs, reports and offsets.

Words: the *tag* of a copy names its transaction; a copied record is Name(tag, partition, number), its origin has the
same partition and number. A transaction's outcome is what its copier knows: COMMITTED was acknowledged, NEVER means
that no commit was attempted, so no reader of committed records may see it; ATTEMPTED got no answer: it may be either,
but as a whole.
Offences, each a line of its list:
- lost: a record of the input has no committed copy; `ahead`: and the group's offset says that it has one
- doubled: it has several
- disordered: the copies of a partition are not in the order of the input
- exposed: a record of a transaction of which no commit was attempted is read as committed (G1a)
- torn: some records of a transaction are read as committed and others are not
- vanished: an acknowledged transaction is not there, and what Postgres lost does not list it
- unreal: committed records that read_uncommitted does not have at their offsets, or copies of nothing
- positions: a group's offset is not the end of its partition
- retracted: a reader got a record as committed during the run that is not committed at the end
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tests.torture.checker import Name, Read


class KnownOutcome(enum.Enum):
    """Outcome of a transaction, as its copier knows it."""

    NEVER = "no commit attempted"
    ATTEMPTED = "commit attempted"
    COMMITTED = "commit acknowledged"


class CopyTransaction(NamedTuple):
    """`names`: of the copies that it was to have."""

    names: frozenset[Name]
    outcome: KnownOutcome


@dataclass(frozen=True)
class CopyEvidence:
    """Logs hold each partition in its order. `positions`: of the group; `ends`: high watermarks of the input.

    `seen`: what a reader of committed records got during the run. `listed`: copies that `headrace audit --lost` lists;
    `listed_ends`: partition -> offsets of committed ends in that list.
    """

    source: Sequence[Read]
    committed: Sequence[Read]
    uncommitted: Sequence[Read]
    transactions: Mapping[str, CopyTransaction]
    positions: Mapping[int, int]
    ends: Mapping[int, int]
    seen: Sequence[Read] = ()
    listed: Collection[Name] = frozenset()
    listed_ends: Mapping[int, Collection[int]] = field(default_factory=dict)


@dataclass
class CopyVerdict:
    """Each list holds one line per offence, in words."""

    lost_and_listed: int = 0
    """Acknowledged transactions that Postgres lost, and that are listed: fine, if Postgres was to lose something."""
    lost: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    exposed: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    unreal: list[str] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    retracted: list[str] = field(default_factory=list)

    @property
    def offences(self) -> list[str]:
        """Everything that must not be, each with the name of its list."""
        return [f"{name}: {line}" for name, lines in self.by_kind().items() for line in lines]

    def by_kind(self) -> dict[str, list[str]]:
        """The lists of offences."""
        return {each.name: found for each in fields(self) if isinstance(found := getattr(self, each.name), list)}


def check_copy(evidence: CopyEvidence) -> CopyVerdict:
    """Judge a run in which every record that was written should have been copied."""
    verdict = CopyVerdict()
    _check_copies(evidence, verdict)
    _check_transactions(evidence, verdict)
    _check_readers(evidence, verdict)
    for partition, end in sorted(evidence.ends.items()):
        if (position := evidence.positions.get(partition, 0)) != end:
            verdict.positions.append(f"partition={partition} position={position} end={end}")
    return verdict


def _check_copies(evidence: CopyEvidence, verdict: CopyVerdict) -> None:
    """Each record of the input against its committed copies."""
    copies: dict[tuple[int, int], list[Read]] = defaultdict(list)
    newest: dict[int, int] = {}
    for read in evidence.committed:
        name = Name.of(read.value)
        copies[name.partition, name.number].append(read)
        if read.partition != name.partition or name.number < newest.get(name.partition, -1):
            verdict.disordered.append(f"partition={read.partition} offset={read.offset} value={read.value}")
        newest[name.partition] = max(name.number, newest.get(name.partition, -1))
    for origin in evidence.source:
        name = Name.of(origin.value)
        found = copies.pop((name.partition, name.number), [])
        if len(found) > 1:
            verdict.doubled.append(f"{origin.value} is copied as {[(read.offset, read.value) for read in found]}")
        elif not found:
            is_ahead = origin.offset < evidence.positions.get(origin.partition, 0)
            (verdict.ahead if is_ahead else verdict.lost).append(f"{origin.value} at offset {origin.offset}")
    verdict.unreal += [f"{read.value} at {read.offset} copies nothing" for found in copies.values() for read in found]


def _check_transactions(evidence: CopyEvidence, verdict: CopyVerdict) -> None:
    """Compare what is committed of each transaction with what its copier knows."""
    committed, stored = defaultdict(set), {}
    for read in evidence.committed:
        committed[Name.of(read.value).producer].add(Name.of(read.value))
    for read in evidence.uncommitted:
        stored[Name.of(read.value)] = read
    for tag in committed.keys() - evidence.transactions.keys():
        verdict.unreal.append(f"no copier has begun {tag}")
    for tag, transaction in evidence.transactions.items():
        there = committed.get(tag, set())
        if there and transaction.outcome is KnownOutcome.NEVER:
            verdict.exposed.append(f"{tag}: {len(there)} records, no commit was attempted")
        elif there and there != transaction.names:
            verdict.torn.append(f"{tag}: {len(there)} of {len(transaction.names)} records are committed")
        elif not there and transaction.outcome is KnownOutcome.COMMITTED:
            missing = [name for name in transaction.names if not _is_listed(name, stored.get(name), evidence)]
            verdict.lost_and_listed += not missing
            if missing:
                verdict.vanished.append(f"{tag}: {len(missing)} of {len(transaction.names)} records are not listed")


def _is_listed(name: Name, stored: Read | None, evidence: CopyEvidence) -> bool:
    """Return whether the record is lost and listed; or it is there, and the end of its transaction is lost and
    listed.
    """
    if stored is None:
        return name in evidence.listed
    return any(offset > stored.offset for offset in evidence.listed_ends.get(stored.partition, ()))


def _check_readers(evidence: CopyEvidence, verdict: CopyVerdict) -> None:
    """Committed records are those of read_uncommitted without some transactions, and were so for earlier readers."""
    uncommitted, committed = set(evidence.uncommitted), set(evidence.committed)
    verdict.unreal += [
        f"{read} is not read by read_uncommitted" for read in evidence.committed if read not in uncommitted
    ]
    for value, count in Counter(read.value for read in evidence.uncommitted).items():
        if count > 1:
            verdict.doubled.append(f"{value} is stored {count} times by its producer")
    expected = defaultdict(list)
    for read in evidence.committed:
        expected[read.partition].append(read)
    seen = defaultdict(list)
    for read in evidence.seen:
        seen[read.partition].append(read)
        if read not in committed:
            verdict.retracted.append(f"{read} was read as committed")
    for partition, reads in seen.items():
        if reads != expected[partition][: len(reads)]:
            verdict.retracted.append(f"partition={partition}: a reader of the run got other records, or another order")
