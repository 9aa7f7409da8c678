"""What became of the records of each client: acknowledged, lost, stored twice with another epoch or without. Pure.

A server can see that a batch was sent before by its producer id, epoch and sequence number only. If a client sends a
record again under another epoch, the second copy is new for any server: stored twice with a bump. Two copies of one
producer id and epoch are a fault of the server: stored twice without a bump. So is a copy without a producer id: all
clients of a run are idempotent.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.torture.checker import Name
from tests.torture.kills.stored import WrittenRecord
from tests.torture.writers import Report

_REFUSALS = (
    re.compile(r"MessageSet with \d+ message\(s\) .* encountered error: (.*) \(actions"),
    re.compile(r"Got error produce response .* due to (timeout)"),
    re.compile(r"Got error produce response .* Error: (\w+)"),
)
"""One line of librdkafka's log (debug=msg) and of Java's for each batch that will be sent again or was given up.
`timeout`: Java waited no longer; without this row it would count as the answer REQUEST_TIMED_OUT of a broker."""


@dataclass
class ClientCounts:
    """One client. `twice_*`: names of the records, with both places, in words."""

    producer: str
    acknowledged: int = 0
    given_up: int = 0
    lost: list[str] = field(default_factory=list)
    twice_with_bump: list[str] = field(default_factory=list)
    twice_without: list[str] = field(default_factory=list)
    wrote_as: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(producer id, epoch) -> stored records."""


def count_clients(reports: Iterable[Report], stored: Sequence[WrittenRecord]) -> list[ClientCounts]:
    """Count for each report, in their order."""
    copies: defaultdict[Name, list[WrittenRecord]] = defaultdict(list)
    for each in stored:
        copies[Name.of(each.read.value)].append(each)
    found: dict[str, ClientCounts] = {}
    for report in reports:
        counts = found[report.producer] = ClientCounts(report.producer, len(report.acknowledged), len(report.failed))
        counts.lost = [name.value() for name in report.acknowledged if name not in copies]
    for name, of_name in copies.items():
        counts = found[name.producer]
        counts.wrote_as.update((each.producer_id, each.epoch) for each in of_name)
        if len(of_name) > 1:
            writers = [(each.producer_id, each.epoch) for each in of_name]
            is_bump = len(set(writers)) == len(writers) and all(each.producer_id >= 0 for each in of_name)
            (counts.twice_with_bump if is_bump else counts.twice_without).append(_in_words(name, of_name))
    return list(found.values())


def refusals_in(log: str) -> Counter[str]:
    """Count why batches were not acknowledged at once, in the log of librdkafka or Java: one for each attempt."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        for pattern in _REFUSALS:
            if match := pattern.search(line):
                found[match[1]] += 1
                break
    return found


def _in_words(name: Name, copies: Sequence[WrittenRecord]) -> str:
    places = ", ".join(
        f"offset={each.read.offset} producer_id={each.producer_id} epoch={each.epoch} sequence={each.sequence}"
        for each in copies
    )
    return f"stored twice: value={name.value()} {places}"
