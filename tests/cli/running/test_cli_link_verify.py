"""X14: `headrace link verify` between two running clusters: what is equal, and each planted difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from headrace.cli.bench.topic_admin import create_topic, open_admin
from headrace.cli.client.offsets import partitions_of
from headrace.cli.client.records import delete_records, produce
from headrace.cli.main import main
from headrace.storage.records.codec import Record
from headrace.storage.records.compression import Codec
from tests.cli.command_lines import Run
from tests.forked_cluster import ForkedCluster, shared_cluster

pytestmark = pytest.mark.requirement("X14")
source = shared_cluster()
COUNT = 60
HEADERS: list[tuple[str, bytes | None]] = [("one", b"1"), ("none", None)]


def _records(count: int = COUNT) -> list[Record]:
    return [
        Record(number, 1_700_000_000_000 + number, b"k%d" % number, b"v%d" % number, HEADERS) for number in range(count)
    ]


def _write(bootstrap: str, topic: str, records: Sequence[Record], *, at_once: int = 7) -> None:
    """Append them to partition 0, in batches of so many."""
    with open_admin(bootstrap) as cluster:
        leader = partitions_of(cluster, [topic])[topic, 0]
        for first in range(0, len(records), at_once):
            some = [each._replace(offset=number) for number, each in enumerate(records[first : first + at_once])]
            produce(cluster, leader, topic, 0, some, Codec.LZ4)


def _byte(records: list[Record]) -> list[Record]:
    return [*records[:41], records[41]._replace(value=b"V41"), *records[42:]]


DIFFERENCES: dict[str, tuple[Callable[[list[Record]], list[Record]], str, dict[str, int]]] = {
    "byte": (_byte, "different", {"first_offset": 41, "changed": 1}),
    "missing": (lambda r: [*r[:41], *r[42:]], "different", {"first_offset": 41, "changed": COUNT - 42}),
    "doubled": (lambda r: [*r[:41], *r[40:]], "different", {"first_offset": 41, "changed": COUNT - 41}),
    "short": (lambda r: r[:-3], "behind", {"first_offset": -1, "changed": 0}),
    "equal": (lambda r: r, "equal", {"first_offset": -1, "changed": 0}),
}


class Both:
    """The topics of both clusters, and `headrace link verify` of a link that names them.

    As after a promotion: none is a copy any more.
    """

    def __init__(self, source: str, here: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.source, self.here, self._capsys = source, here, capsys

    def verify(self, *words: str, status: int) -> dict[str, Any]:
        """The partitions that it prints, by topic."""
        self._capsys.readouterr()
        assert main(["link", "verify", "checked", *words, "-b", self.here, "--json"]) == status
        found = json.loads(self._capsys.readouterr().out)
        assert found["equal"] == (status == 0)
        return {each["topic"]: each for each in found["partitions"]}


@pytest.fixture
def both(run: Run, server: ForkedCluster, source: ForkedCluster, capsys: pytest.CaptureFixture[str]) -> Iterator[Both]:
    """A topic for each planted difference, and one that the source alone has."""
    create_topic(source.bootstrap, "both.absent", 1)
    for name, (change, *_) in DIFFERENCES.items():
        sides = ((source.bootstrap, _records(), 7), (server.bootstrap, change(_records()), 9))
        for bootstrap, records, at_once in sides:
            create_topic(bootstrap, f"both.{name}", 1)
            _write(bootstrap, f"both.{name}", records, at_once=at_once)
    paused = ("--set", "link.state=paused")  # or it would copy the topic that is not here
    run("link", "create", "checked", "--from", source.bootstrap, "--topics", r"both\..*", *paused)
    yield Both(source.bootstrap, server.bootstrap, capsys)
    run("link", "drop", "checked")


def test_each_planted_difference_is_found(both: Both, run: Run, plain: Run) -> None:
    found = both.verify(status=1)
    for name, (_, result, differences) in DIFFERENCES.items():
        row = found[f"both.{name}"]
        assert row["result"] == result, row
        assert {each: row["differences"][each] for each in differences} == differences
    assert (found["both.absent"]["result"], found["both.absent"]["notes"]) == ("missing", ["the topic is not here"])
    equal = found["both.equal"]
    assert equal["source_records"] == equal["here_records"] == COUNT
    assert equal["source_checksum"] == equal["here_checksum"] != found["both.byte"]["here_checksum"]
    assert found["both.byte"]["source_checksum"] == equal["source_checksum"]

    until = ("--until", "both.byte:0:41", "--until", "both.short:0:57")
    assert set(both.verify("--topics", "both.(equal|byte|short)", *until, status=0)) == {
        "both.equal", "both.byte", "both.short"
    }  # fmt: skip
    assert both.verify("--topics", "both.byte", "--sample", status=1)["both.byte"]["differences"]["changed"] == 1
    assert "not TOPIC:PARTITION:OFFSET: both.byte:41" in _refusal(both, "--until", "both.byte:41")
    assert "has no such topic" in run("link", "verify", "checked", "--topics", "nothing", status=1)

    with open_admin(both.source) as cluster:  # and what people get, after the source removed some
        delete_records(cluster, partitions_of(cluster, ["both.equal"])["both.equal", 0], "both.equal", {0: 30})
    head, row, last = plain("link", "verify", "checked", "--topics", "both.equal")
    assert head[:6] == ["TOPIC", "PARTITION", "RESULT", "FROM", "TO", "RECORDS"]
    assert row[:6] == ["both.equal", "0", "equal", "30", "60", "30"]
    assert " ".join(row[7:]) == "the copy begins at 0, the source at 30: removed since it was copied"
    assert " ".join(last) == "1 of 1 partitions are equal: all records were compared, 30"


def _refusal(both: Both, *words: str) -> str:
    with pytest.raises(SystemExit):
        both.verify(*words, status=2)
    return both._capsys.readouterr().err
