"""Transactional batches on their way to the commit: what it learns of them, and what is refused before.

The planted bugs are what a change of this path could break without any other test seeing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import crc32c
import pytest

from headrace.agent.produce import receive, validate
from headrace.agent.produce.upload import StagedBatch
from headrace.agent.produce.validate import FIRST_IMPLICIT, NAMES_BYTES, ProducerNames
from headrace.metastore.api.agents import TRANSACTION_VERSION, FeatureRange
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, BatchTransaction, FileAnswer, FileCommit
from headrace.metastore.api.transactions import EPOCH_MAX, ProducerEpoch, Transaction, TransactionState
from headrace.protocol import errors
from headrace.storage.errors import UnavailableError
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CRC_START, HEADER, HEADER_BYTES, TRANSACTIONAL_BIT, read_header
from tests.agent.produce.produce_world import ProduceWorld
from tests.patch import Patch

OWN, OTHER, UNUSED = 5, 6, 7
"""Producer ids: of "tx", of "other", of no transactional id."""
REFUSED = {"invalid_txn_state"}


def batch(producer_id: int = OWN, *, epoch: int = 0, is_transactional: bool = True) -> bytes:
    """One record."""
    data = encode_batch(
        [Record(0, 1_700_000_000_000, None, b"v")],
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
    )
    if not is_transactional:
        return data
    header = read_header(data)._replace(attributes=TRANSACTIONAL_BIT)
    unsealed = HEADER.pack(*header) + data[HEADER_BYTES:]
    sealed = header._replace(crc=crc32c.crc32c(unsealed[CRC_START:]))
    return HEADER.pack(*sealed) + data[HEADER_BYTES:]


class TransactionWorld(ProduceWorld):
    """Agents with transactions, two transactional ids, and a topic `t`; `committed` has what commits were sent."""

    def __init__(self, level: int = 2) -> None:
        super().__init__()
        self.create_topic("t", 4)
        features = MappingProxyType({TRANSACTION_VERSION: FeatureRange(0, level)})
        self.view.image = self.view.head = replace(self.view.head, features=features)
        self.committed: list[StagedBatch] = []
        self.looked_up: list[str] = []
        self.answers: list[BatchOutcome] = []
        """What the next commits say of each of their batches; then they do what the model does."""
        self.failure: UnavailableError | None = None
        model = self.model

        class Noting:
            async def commit_files(_, node_id: int, epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
                self.committed += [each for file in files for each in file.batches]
                found = await model.commit_files(node_id, epoch, files)
                if not self.answers:
                    return found
                outcome = self.answers.pop()
                return [replace(f, batches=[BatchAnswer(outcome, -1, -1) for _ in f.batches]) for f in found]

            async def find_transactions(_, names: Sequence[str]) -> list[Transaction]:
                self.looked_up += names
                if self.failure is not None:
                    raise self.failure
                rows = {"tx": OWN, "other": OTHER}
                return [
                    Transaction(
                        transactional_id=name,
                        producer=ProducerEpoch(rows[name], 0),
                        state=TransactionState.EMPTY,
                        timeout_ms=1,
                    )
                    for name in names
                    if name in rows
                ]

        self.metastore = Noting()

    async def send(self, *batches: bytes, version: int = 12, name: str | None = "tx") -> set[str]:
        """One request with a partition for each batch; the errors of all."""
        sent = {"t": dict(enumerate(batches))}
        answers = await self.clock.run(self.produce(self.connect(), sent, version=version, transactional_id=name))
        assert answers is not None
        return {answer.error for answer in answers.values()}


async def check_what_the_commit_hears() -> None:
    """Return whether the batch is in a transaction, and whether it may add its partition."""
    for version in (9, 11, FIRST_IMPLICIT):
        async with TransactionWorld() as world:
            assert await world.send(batch(), version=version) == {"none"}
            (heard,) = world.committed
            implicit = BatchTransaction.ANY_PARTITION
            assert heard.transaction == (implicit if version == FIRST_IMPLICIT else BatchTransaction.ADDED)
    async with TransactionWorld() as world:
        assert await world.send(batch(is_transactional=False)) == {"none"}
        assert [each.transaction for each in world.committed] == [BatchTransaction.NO_TRANSACTION]


async def check_a_client_writes_in_its_own_transaction_only() -> None:
    """Also when this agent knows the other producer already; and one look-up is enough for each producer."""
    async with TransactionWorld() as world:
        for name, producer_id, error in (
            ("tx", OTHER, "invalid_producer_id_mapping"),
            ("other", OTHER, "none"),
            ("tx", OTHER, "invalid_producer_id_mapping"),
            ("tx", UNUSED, "invalid_producer_id_mapping"),
            ("absent", OWN, "invalid_producer_id_mapping"),
            ("tx", OWN, "none"),
        ):
            assert await world.send(batch(producer_id), name=name) == {error}, (name, producer_id)
        looked = len(world.looked_up)
        assert await world.send(batch(OWN, epoch=1)) == {"none"}
        assert len(world.looked_up) == looked
        assert {each.producer_id for each in world.committed} == {OWN, OTHER}


async def check_nothing_begins_without_the_feature() -> None:
    """An agent that does not know transactions may serve the records."""
    async with TransactionWorld(level=0) as world:
        assert await world.send(batch()) == REFUSED
        assert await world.send(batch(), name=None) == REFUSED
        assert not world.committed


async def check_errors_are_those_that_the_client_knows() -> None:
    """TRANSACTION_ABORTABLE since version 11."""
    for version, error in ((9, "invalid_txn_state"), (11, "transaction_abortable")):
        async with TransactionWorld() as world:
            world.answers = [BatchOutcome.INVALID_TXN_STATE]
            assert await world.send(batch(), version=version) == {error}
            world.answers = [BatchOutcome.INVALID_TXN_STATE]
            assert await world.send(batch(-1, is_transactional=False), version=version) == {"invalid_txn_state"}
            world.answers = [BatchOutcome.UNKNOWN_PRODUCER]
            assert await world.send(batch(epoch=1), version=version) == {"invalid_producer_id_mapping"}


CHECKS = [
    check_what_the_commit_hears,
    check_a_client_writes_in_its_own_transaction_only,
    check_nothing_begins_without_the_feature,
    check_errors_are_those_that_the_client_knows,
]


@pytest.mark.parametrize("check", CHECKS)
async def test_transactional_batches(check: Callable[[], Any]) -> None:
    await check()


@pytest.mark.parametrize(
    ("sent", "name", "error"),
    [
        (batch(), None, "transactional_id_authorization_failed"),
        (batch(-1), "tx", "invalid_record"),
        (batch(epoch=EPOCH_MAX + 1), "tx", "invalid_producer_epoch"),
    ],
)
async def test_what_no_transaction_can_have_is_refused(sent: bytes, name: str | None, error: str) -> None:
    """Alone: the commit would refuse the whole file."""
    async with TransactionWorld() as world:
        assert await world.send(sent, batch(is_transactional=False), name=name) == {error, "none"}


async def test_a_failed_look_up_stores_nothing_and_is_asked_again() -> None:
    async with TransactionWorld() as world:
        world.failure = UnavailableError("down")
        assert await world.send(batch(), batch(is_transactional=False)) == {"kafka_storage_error", "none"}
        world.failure = None
        assert await world.send(batch(epoch=1)) == {"none"}


async def test_only_so_many_producers_are_remembered() -> None:
    async def find(names: Sequence[str]) -> list[Transaction]:
        (name,) = names
        who = ProducerEpoch(int(name[-9:]), 0)
        return [Transaction(transactional_id=name, producer=who, state=TransactionState.EMPTY, timeout_ms=1)]

    names = ProducerNames(find)
    for number in range(3_000):
        assert await names.look_up(str(number).zfill(2_000), [number]) is None
        assert names.in_use_bytes <= NAMES_BYTES
    assert await names.look_up("7".zfill(300_000), [7]) is None, "too long to be remembered"


def _forget_the_flag(patch: Patch) -> None:
    patch.replace(receive, "transaction_of", lambda header, version: BatchTransaction.NO_TRANSACTION)


def _never_implicit(patch: Patch) -> None:
    patch.replace(validate, "FIRST_IMPLICIT", 13)


def _always_implicit(patch: Patch) -> None:
    patch.replace(validate, "FIRST_IMPLICIT", 3)


def _every_batch_is_transactional(patch: Patch) -> None:
    patch.replace(receive, "transaction_of", lambda header, version: BatchTransaction.ANY_PARTITION)


def _any_name_passes(patch: Patch) -> None:
    patch.replace(ProducerNames, "has_all", lambda self, produce: True)


def _a_known_producer_may_use_any_name(patch: Patch) -> None:
    look_up = ProducerNames.look_up

    async def by_producer_only(self: ProducerNames, name: str, producers: Sequence[int]) -> object:
        return await look_up(self, name, [each for each in producers if each not in self._names])

    patch.replace(ProducerNames, "look_up", by_producer_only)


def _remembers_nothing(patch: Patch) -> None:
    patch.replace(ProducerNames, "has_all", lambda self, produce: self._names.clear())


def _without_the_feature(patch: Patch) -> None:
    judge = validate.judge_transactional
    patch.replace(
        receive,
        "judge_transactional",
        lambda header, transactional_id, is_offered: judge(header, "tx", is_offered=True),
    )


def _old_errors(patch: Patch) -> None:
    patch.replace(errors, "FIRST_PRODUCE_WITH_ABORTABLE", 99)


def _new_errors(patch: Patch) -> None:
    patch.replace(errors, "FIRST_PRODUCE_WITH_ABORTABLE", -1)


PLANTED = [
    _forget_the_flag,
    _never_implicit,
    _always_implicit,
    _every_batch_is_transactional,
    _any_name_passes,
    _a_known_producer_may_use_any_name,
    _remembers_nothing,
    _without_the_feature,
    _old_errors,
    _new_errors,
]


@pytest.mark.parametrize("plant", PLANTED)
async def test_planted_bugs_are_found(plant: Callable[[Patch], None], patch: Patch) -> None:
    plant(patch)
    found = 0
    for check in CHECKS:
        try:
            await check()
        except AssertionError:
            found += 1
    assert found, "no check sees it"
