"""`headrace link verify`: read a link's topics at the source and here, and compare them record for record.

Place: under links.py. It is a client of both clusters (cli/client/committed.py); no worker takes part, and no code that
copies is trusted (storage/records/comparison.py).
Invariant: a partition is called equal only if every offset that the report does not name as left out was read on both
sides, and had the same record or none. What was not compared is said. It ends: what the source has at the beginning is
compared, a copy that follows is waited for, for --timeout seconds at most, and offsets without records at the end are
not waited for.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cli.client.committed import CommittedBounds, CommittedReader, LogStartMovedError
from headrace.cli.client.offsets import TopicPartition
from headrace.cli.configs import describe_topics
from headrace.cli.link_source import open_source, source_configs
from headrace.cli.options import INT32_MAX, name_patterns, whole
from headrace.cli.output import ProgressBar, write
from headrace.cli.tables import open_cluster, show
from headrace.config.link_configs import BOOTSTRAP_SERVERS, LINK_NAME, SECRETS, TOPICS, TopicFilter, why_invalid
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.records.codec import RecordColumns
from headrace.storage.records.comparison import Comparison, RecordDifferences

COLUMNS = ("topic", "partition", "result", "from", "to", "records", "checksum", "notes")
EQUAL, DIFFERENT, BEHIND, MISSING = "equal", "different", "behind", "missing"
TIMEOUT_SECONDS = 60
LOOK_SECONDS = 0.5
NONE = RecordDifferences()
RANGES, RANGE_OFFSETS = 5, 1_000
"""The ranges of each partition with --sample, and the offsets of a range."""
STARTS_MAX = 10
"""How often one partition is begun again because its log start moved past what was read."""


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, without those that all commands of links have."""
    parser.add_argument(
        "--from", dest="source", metavar="HOST:PORT[,..]", help="addresses of the source; else the link's"
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties file of a client of the source: its login"
    )
    parser.add_argument(
        "--topics",
        action="append",
        default=[],
        type=name_patterns,
        metavar="PATTERN[,..]",
        help="only these of the link; RE2, whole names",
    )
    parser.add_argument(
        "--until",
        action="append",
        default=[],
        type=_until,
        metavar="TOPIC:PARTITION:OFFSET",
        help="compare this partition below the offset only, as where it ended when it was promoted",
    )
    explained = f"read {RANGES} ranges of {RANGE_OFFSETS} offsets of each partition, and say what was not compared"
    parser.add_argument("--sample", action="store_true", help=explained)
    parser.add_argument(
        "--timeout",
        type=whole(0, INT32_MAX),
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long to wait until the copies have what the source has now (%(default)s)",
    )


def _until(text: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = ["", "", *text.rsplit(":", 2)][-3:]
    if not topic or not partition.isdecimal() or not offset.isdecimal():
        raise argparse.ArgumentTypeError(f"not TOPIC:PARTITION:OFFSET: {text}")
    return (topic, int(partition)), int(offset)


class ComparedTopic(NamedTuple):
    """What decides how a topic is judged. `partitions`: at the source and here; 0: it is not there."""

    name: str
    partitions: tuple[int, int]
    is_linked: bool
    """Whether it is a copy still."""
    is_compacted: bool
    """Whether one of both sides removes records by key."""


class BothBounds(NamedTuple):
    """The logs of a partition on both sides, and the offsets that were compared."""

    source: CommittedBounds
    here: CommittedBounds
    compared: CommittedBounds


@dataclass
class VerifiedPartition:
    """What was found of one partition."""

    topic: str
    partition: int
    result: str = EQUAL
    bounds: BothBounds | None = None
    """None: nothing was compared."""
    sampled: int = 0
    """Offsets that were read, with --sample."""
    source_records: int = 0
    here_records: int = 0
    source_checksum: str = ""
    here_checksum: str = ""
    differences: RecordDifferences = NONE
    notes: list[str] = field(default_factory=list)

    def worse(self, result: str, note: str) -> None:
        """Call it by what is worse than before."""
        order = (EQUAL, BEHIND, DIFFERENT, MISSING)
        self.result = max(self.result, result, key=order.index)
        self.notes.append(note)


def run_verify(args: argparse.Namespace) -> int:
    """Print one line per partition; 1 if one is not equal."""
    with open_cluster(args) as cluster:
        (link,) = cluster.links(LinkRequest(op=LinkOp.SHOW, link=args.link)).links
    configs = _source_of(args, link.configs)
    wanted = TopicFilter({TOPICS: ",".join(args.topics)}) if args.topics else None
    with (
        CommittedReader(functools.partial(open_source, configs)) as source,
        CommittedReader(functools.partial(open_cluster, args)) as here,
    ):
        found = compared_topics(source, here, args.link, link.configs, wanted)
        if not found:
            raise InvalidError(f"link '{args.link}' has no such topic, neither at the source nor here")
        rows = Verification(source, here, args).run(found)
    _print(args, rows)
    return int(any(row.result != EQUAL for row in rows))


def _source_of(args: argparse.Namespace, shown: Mapping[str, str | None]) -> dict[str, str]:
    """The configs to reach the source with: of the flags, else of the link. InvalidError if it needs a secret."""
    known = {name: value for name, value in shown.items() if value is not None}
    if args.command_config is not None:
        kept = (BOOTSTRAP_SERVERS, TOPICS)
        known = {name: known[name] for name in kept if name in known}
    elif any(shown.get(name, "") is None for name in SECRETS):
        raise InvalidError("the link's login has secrets, which no cluster shows: give --command-config")
    configs = known | source_configs(args.command_config, args.source)
    if reason := why_invalid(configs):
        raise InvalidError(reason)
    return configs


def compared_topics(
    source: CommittedReader,
    here: CommittedReader,
    link: str,
    configs: Mapping[str, str | None],
    wanted: TopicFilter | None = None,
) -> list[ComparedTopic]:
    """The topics that the link names at the source, and its copies here; only those that are wanted (None: all)."""
    named = TopicFilter({name: value for name, value in configs.items() if value is not None})
    theirs, ours = (side.ask(_partition_counts) for side in (source, here))
    at_source, own = ({name for name in each if named.matches(name)} for each in (theirs, ours))
    if wanted is not None:
        at_source, own = ({name for name in each if wanted.matches(name)} for each in (at_source, own))
    their_values, own_values = _values(source, at_source), _values(here, own)
    found = []
    for name in sorted(at_source | {name for name in own if own_values[name].get(LINK_NAME) == link}):
        values = their_values.get(name, {}), own_values.get(name, {})
        policies = [each.get("cleanup.policy", "") for each in values]
        counts = theirs.get(name, 0), ours.get(name, 0)
        compacted = any("compact" in policy for policy in policies)
        found.append(ComparedTopic(name, counts, values[1].get(LINK_NAME) == link, compacted))
    return found


def _partition_counts(cluster: KafkaCluster) -> dict[str, int]:
    return {str(topic.name): len(topic.partitions) for topic in cluster.metadata()}


def _values(side: CommittedReader, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The configs of each topic, defaults too."""
    found = side.ask(lambda cluster: describe_topics(cluster, sorted(topics)))
    return {name: {str(c.name): str(c.value) for c in each if c.value is not None} for name, each in found.items()}


class Verification:
    """Compares topics of two clusters, partition after partition."""

    def __init__(self, source: CommittedReader, here: CommittedReader, args: argparse.Namespace) -> None:
        """`args`: until, sample and timeout are used."""
        self._source, self._here = source, here
        self._until, self._sample, self._timeout = dict(args.until), bool(args.sample), int(args.timeout)
        self._bar = ProgressBar()
        self._done = self._total = 0

    def run(self, topics: Sequence[ComparedTopic]) -> list[VerifiedPartition]:
        """Return what was found of each partition of either side."""
        both = [(each.name, index) for each in topics for index in range(min(each.partitions))]
        source = self._source.bounds(both)
        linked = {each.name for each in topics if each.is_linked}
        self._wait({place: source[place].end for place in both if place[0] in linked})
        here = self._here.bounds(both)
        self._total = sum(max(min(source[place].end, here[place].end) - source[place].start, 0) for place in both)
        found = []
        try:
            for topic in topics:
                for index in range(max(topic.partitions)):
                    row, place = VerifiedPartition(topic.name, index), (topic.name, index)
                    found.append(row)
                    if place in source:
                        self._compare(topic, row, source[place], here[place])
                    else:
                        side = "at the source" if topic.partitions[0] <= index else "here"
                        what = "partition" if min(topic.partitions) else "topic"
                        row.worse(MISSING, f"the {what} is not {side}")
        finally:
            self._bar.close()
        return found

    def _wait(self, ends: dict[TopicPartition, int]) -> None:
        """Return when the copies end where the source ended, or the time is over."""
        for _ in range(int(self._timeout / LOOK_SECONDS)):
            found = self._here.bounds(ends)
            ends = {place: end for place, end in ends.items() if found[place].end < end}
            if not ends:
                return
            self._bar("waiting", 0, 0)
            self._here.ask(lambda cluster: cluster.pause(LOOK_SECONDS))

    def _compare(
        self, topic: ComparedTopic, row: VerifiedPartition, source: CommittedBounds, here: CommittedBounds
    ) -> None:
        """Read and judge one partition; again if its log start moves meanwhile."""
        place = row.topic, row.partition
        for _ in range(STARTS_MAX):
            start, end = max(source.start, here.start), min(source.end, here.end, self._until.get(place, source.end))
            compared = CommittedBounds(min(start, end), end)
            ranges = ranges_of(compared) if self._sample else [compared]
            comparison, stops = Comparison(), list[str]()
            try:
                for each in ranges:
                    comparison.compare(*self._sides(place, each, stops))
            except LogStartMovedError:
                source = CommittedBounds(self._source.bounds([place])[place].start, source.end)
                here = CommittedBounds(self._here.bounds([place])[place].start, here.end)
                continue
            row.bounds = BothBounds(source, here, compared)
            row.sampled = sum(each.end - each.start for each in ranges) if self._sample else 0
            row.notes += stops
            judge(row, row.bounds, topic, comparison, self._until.get(place))
            self._done += end - start
            return
        raise UnavailableError(f"{row.topic}:{row.partition}: its log start moves faster than it can be read")

    def _sides(
        self, place: TopicPartition, offsets: CommittedBounds, stops: list[str]
    ) -> tuple[Iterable[RecordColumns], Iterable[RecordColumns]]:
        """The records of both sides. What could not be read at the end becomes a note."""

        def read(side: CommittedReader, name: str) -> Iterator[RecordColumns]:
            stopped = yield from side.records(place, *offsets)
            if stopped < offsets.end:
                stops.append(f"{name} has no records from {stopped} on")

        return self._shown(read(self._source, "the source"), offsets.start), read(self._here, "the copy")

    def _shown(self, records: Iterator[RecordColumns], start: int) -> Iterator[RecordColumns]:
        """The records, with the bar redrawn for each piece."""
        for piece in records:
            yield piece
            self._bar("offsets", self._done + int(piece.offsets[-1]) + 1 - start, self._total)


def ranges_of(bounds: CommittedBounds, count: int = RANGES, length: int = RANGE_OFFSETS) -> list[CommittedBounds]:
    """`count` ranges of `length` offsets, evenly spread from the start to the end; all of it if they would meet."""
    if count * length >= bounds.end - bounds.start:
        return [bounds]
    step = (bounds.end - length - bounds.start) / (count - 1)
    starts = [bounds.start + round(number * step) for number in range(count)]
    return [CommittedBounds(start, start + length) for start in starts]


def judge(
    row: VerifiedPartition, bounds: BothBounds, topic: ComparedTopic, comparison: Comparison, until: int | None = None
) -> None:
    """Set the result of a partition, and say why."""
    found = row.differences = comparison.differences
    row.source_records, row.here_records = comparison.source.records, comparison.copy.records
    row.source_checksum, row.here_checksum = comparison.source.hex(), comparison.copy.hex()
    cleaned = found.only_copy if topic.is_compacted else 0
    cleaned_here = found.only_source if topic.is_compacted and not topic.is_linked else 0
    if found.changed or found.only_copy > cleaned or found.only_source > cleaned_here:
        row.worse(DIFFERENT, f"first difference at {found.first_offset}: {found.first}; {_counted(found)}")
    elif cleaned or cleaned_here:
        row.notes.append(f"removed by key on one side, not compared: {cleaned + cleaned_here:,} records")
    _judge_starts(row, bounds, topic)
    _judge_ends(row, bounds, topic, until)
    offsets = bounds.compared.end - bounds.compared.start
    if row.sampled and (left := offsets - row.sampled):
        row.notes.append(f"not compared: {left:,} of {offsets:,} offsets")


def _judge_starts(row: VerifiedPartition, bounds: BothBounds, topic: ComparedTopic) -> None:
    source, here = bounds.source.start, bounds.here.start
    if source < here and topic.is_linked:
        row.worse(DIFFERENT, f"the copy begins at {here}, the source at {source}")
    elif source != here:
        row.notes.append(f"the copy begins at {here}, the source at {source}: removed since it was copied")


def _judge_ends(row: VerifiedPartition, bounds: BothBounds, topic: ComparedTopic, until: int | None) -> None:
    source, here = bounds.source.end, bounds.here.end
    if until is not None and until <= min(source, here):
        row.notes.append(f"compared below {until}, as --until says")
    elif here < source:
        why = "" if topic.is_linked else ": sent there after the promotion"
        row.worse(BEHIND, f"the copy ends at {here}, the source at {source}{why}")
    elif source < here:
        why = "the copy went on meanwhile" if topic.is_linked else "sent here after the promotion"
        row.notes.append(f"not compared, because {why}: {here - source:,} offsets")


def _counted(found: RecordDifferences) -> str:
    counts = (("differ", found.changed), ("only at the source", found.only_source), ("only here", found.only_copy))
    return ", ".join(f"{count:,} {what}" for what, count in counts if count)


def _print(args: argparse.Namespace, rows: Sequence[VerifiedPartition]) -> None:
    unequal = sum(row.result != EQUAL for row in rows)
    if args.json:
        write(json.dumps({"link": args.link, "equal": not unequal, "partitions": [_json_row(row) for row in rows]}))
        return
    show(args, [_row(row) for row in rows], COLUMNS)
    records = sum(row.source_records for row in rows)
    how = "a sample of" if args.sample else "all"
    text = f"{len(rows) - unequal} of {len(rows)} partitions are equal: {how} records were compared, {records:,}"
    write(text if not unequal else f"{unequal} of {len(rows)} partitions are not equal")


def _row(row: VerifiedPartition) -> dict[str, Any]:
    compared = row.bounds.compared if row.bounds else None
    is_same = row.source_checksum == row.here_checksum
    return {
        "topic": row.topic,
        "partition": row.partition,
        "result": row.result,
        "from": compared.start if compared else None,
        "to": compared.end if compared else None,
        "records": row.source_records if compared else None,
        "checksum": row.source_checksum if compared and is_same else None,
        "notes": "; ".join(row.notes),
    }


def _json_row(row: VerifiedPartition) -> dict[str, Any]:
    found = asdict(row) | {"differences": row.differences._asdict()}
    del found["bounds"]
    for name in BothBounds._fields:
        bounds: CommittedBounds | None = getattr(row.bounds, name, None)
        found[name] = None if bounds is None else bounds._asdict()
    return found
