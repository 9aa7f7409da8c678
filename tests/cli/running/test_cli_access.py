"""`headrace users`, `acls`, `quotas`, `features` and `transactions` against a running cluster of two agents."""

from __future__ import annotations

import argparse
import datetime
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import OutOfBoundValue
from kio.static.primitive import i16, i32, i32Timedelta, i64

from headrace.cli import transactions
from headrace.cli.passwords import password_in, password_of
from headrace.cli.transactions import DescribedProducer, ListedTransaction
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.described_transactions import (
    DescribedTransaction,
    DescribedTransactions,
    DescribedTransactionTopic,
)
from headrace.storage.errors import InvalidError
from load.dev_server import DevServer
from tests.cli.access_checks import check_acls, check_features, check_quotas, check_transactions, check_users
from tests.cli.command_lines import Run


def test_users(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_users(run, monkeypatch, tmp_path)


def test_acls(run: Run) -> None:
    check_acls(run)


def test_quotas(run: Run) -> None:
    check_quotas(run)


def test_features(run: Run) -> None:
    check_features(run, "metadata.format")


def test_transactions(run: Run, server: DevServer) -> None:
    check_transactions(run, server.bootstrap)


def _producer(producer_id: int, *, partition: int = 0, start: int | None = 5, last_ms: int = 0) -> DescribedProducer:
    return DescribedProducer("t", partition, producer_id, 0, -1, last_ms, 0, start)


def _known(producer_id: int, **topics: tuple[int, ...]) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=ErrorCode.none,
        transactional_id=f"id-{producer_id}",
        transaction_state="Ongoing",
        transaction_timeout=i32Timedelta.parse(datetime.timedelta(minutes=1)),
        transaction_start_ms=i64(0),
        producer_id=i64(producer_id),
        producer_epoch=i16(0),
        topics=tuple(
            DescribedTransactionTopic(topic=name, partitions=tuple(map(i32, p))) for name, p in topics.items()
        ),
    )


def test_a_transaction_hangs_if_no_coordinator_will_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's rule: an old open transaction that no coordinator knows, or without the partition."""
    remembered = [
        _producer(1),  # no transactional id
        _producer(2),  # its id has no open transaction
        _producer(3),  # its transaction is in another partition
        _producer(4),  # will be ended
        _producer(5, last_ms=95),  # young
        _producer(6, start=None),  # nothing is open
    ]
    known = {2: _known(2), 3: _known(3, t=(1,), u=(0,)), 4: _known(4, t=(0, 1))}
    asked: list[int] = []

    def listed(cluster: object, *, producer_ids: Sequence[int]) -> list[ListedTransaction]:
        asked.extend(producer_ids)
        return [ListedTransaction(f"id-{each}", 0, each, "Ongoing") for each in producer_ids if each in known]

    monkeypatch.setattr(transactions, "describe_producers", lambda *_: remembered)
    monkeypatch.setattr(transactions, "list_transactions", listed)
    monkeypatch.setattr(
        transactions, "describe_transactions", lambda _, names: {n: known[int(n.removeprefix("id-"))] for n in names}
    )
    found = transactions.find_hanging(cast(KafkaCluster, None), {("t", 0): 0}, 100, 10)
    assert [each.producer_id for each in found] == [1, 2, 3]
    assert asked == [1, 2, 3, 4], "the others are not looked up"


def test_a_start_time_may_be_missing() -> None:
    """Kafka answers -1 where no transaction is open; kio's own class refuses it."""
    answer = DescribedTransactions(
        throttle_time=i32Timedelta.parse(datetime.timedelta()),
        transaction_states=(replace(_known(1), transaction_start_ms=i64(-1)),),
    )
    entity_writer(DescribedTransactions)(stored := io.BytesIO(), answer)
    assert entity_reader(DescribedTransactions)(memoryview(stored.getvalue()), 0)[0] == answer
    with pytest.raises(OutOfBoundValue):
        entity_reader(DescribeTransactionsResponse)(memoryview(stored.getvalue()), 0)


def test_a_password_is_typed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    args = argparse.Namespace(password_file=None)
    for typed, why in (((" a ", " a "), ""), (("a", "b"), "differ"), (("", ""), "empty password")):
        answers = iter(typed)
        monkeypatch.setattr("getpass.getpass", lambda prompt, answers=answers: next(answers))
        if why:
            with pytest.raises(InvalidError, match=why):
                password_of(args, "ann")
        else:
            assert password_of(args, "ann") == " a ", "spaces are part of it"


def test_a_password_file_has_one_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content, why in ((b"a\nb\n", "one line"), (b"", "empty"), (b"\xff", "UTF-8"), (None, "No such file")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidError, match=why):
            password_in(file)
