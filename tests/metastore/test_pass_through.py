"""Operations that are one line: what becomes of arguments and rows, and that a mistake in a line is seen at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.files import DeadFile, FileApi
from headrace.metastore.api.groups import GroupApi, GroupKind, GroupListing
from headrace.metastore.api.jobs import JobApi, JobState, JobToken
from headrace.metastore.api.outcomes import EndedTransaction, OutcomeApi
from headrace.metastore.api.restoring import RestoreOutcome, Revived
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import Connected, PostgresNoun, calls
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError

TOKEN, ID, OTHER = JobToken(7, 3), uuid.UUID(int=1), uuid.UUID(int=2)
Operation = Callable[..., Coroutine[Any, Any, Any]]


class Asked:
    """What statements were sent in place of a server, and the rows that answer each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.sent: list[tuple[object, str, dict[str, Any]]] = []
        asked = self

        async def send(self: Statement, pool: Pool, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
            asked.sent.append((pool, self.name, parameters))
            return asked.rows

        monkeypatch.setattr(Statement, "send", send)

    async def of(self, operation: Operation, rows: list[tuple[Any, ...]], *args: Any, **kwargs: Any) -> Any:
        noun = PostgresNoun(Connected("pool", "readers", Settings(), "", uuid.UUID(int=0), 1))  # type: ignore[arg-type]
        self.rows = rows
        return await operation(noun, *args, **kwargs)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


async def test_arguments_become_the_parameters_of_their_names(asked: Asked) -> None:
    drop = calls(FileApi.drop_files, writes=True, ids="file_ids")
    assert await asked.of(drop, [(2,)], TOKEN, [ID, OTHER]) == 2
    hand_over = calls(JobApi.hand_over_jobs, writes=True, by_job="by.job_id", by_epoch="by.epoch")
    assert await asked.of(hand_over, [(1,)], "a", "b", after_ms=5, attempts=6, by=TOKEN) == 1
    forget = calls(OutcomeApi.forget_outcomes, writes=True, keys="ended.partition_key", offsets="ended.marker_offset")
    ended = [EndedTransaction(4, 40, None), EndedTransaction(5, 50, None)]
    assert await asked.of(forget, [("",)], TOKEN, ended) is None
    assert asked.sent == [
        ("pool", "drop_files", {"job_id": 7, "epoch": 3, "ids": pack_uuids([ID, OTHER])}),
        (
            "pool",
            "hand_over_jobs",
            {"kind": "a", "to_kind": "b", "after_ms": 5, "attempts": 6, "by_job": 7, "by_epoch": 3},
        ),
        (
            "pool",
            "forget_outcomes",
            {"job_id": 7, "epoch": 3, "keys": pack_int8([4, 5]), "offsets": pack_int8([40, 50])},
        ),
    ]


async def test_defaults_keywords_and_the_connections_of_readers(asked: Asked) -> None:
    groups = calls(GroupApi.list_groups, writes=False, by_readers=True)
    rows = [("g", "classic", "Empty", "consumer"), ("h", "share", "Stable", "share")]
    listed = [
        GroupListing("g", GroupKind.CLASSIC, "Empty", "consumer"),
        GroupListing("h", GroupKind.SHARE, "Stable", "share"),
    ]
    assert await asked.of(groups, rows) == listed
    names = ["g"]
    assert await asked.of(groups, [], group_ids=names) == []
    assert asked.sent == [
        ("readers", "list_groups", {"group_ids": None}),
        ("readers", "list_groups", {"group_ids": ["g"]}),
    ]
    assert asked.sent[1][2]["group_ids"] is not names, "the caller may change its own"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((TOKEN,), {}), ((TOKEN, [], 1), {}), ((TOKEN,), {"ids": []}), ((TOKEN, []), {"token": TOKEN})],
)
async def test_arguments_are_those_of_the_protocol(asked: Asked, args: Any, kwargs: Any) -> None:
    drop = calls(FileApi.drop_files, writes=True, ids="file_ids")
    with pytest.raises(TypeError, match="argument"):
        await asked.of(drop, [(2,)], *args, **kwargs)
    assert asked.sent == []


async def test_rows_become_the_answer_by_its_type(asked: Asked) -> None:
    dead = calls(FileApi.take_dead_files, writes=True)
    assert await asked.of(dead, [(ID, 5, False)], TOKEN, OTHER, limit=1) == [DeadFile(ID, 5, False)]
    failed = await asked.of(calls(JobApi.fail_job, writes=True, retry_ms="retry_after_ms"), [(2,)], TOKEN, "x", None)
    assert failed is JobState.DONE
    revived = await asked.of(calls(TopicApi.revive_topic, writes=True), [(1, 9)], 4, limit=2)
    assert revived == Revived(RestoreOutcome.UNFINISHED, 9)
    assert isinstance(revived.outcome, RestoreOutcome)
    processes = await asked.of(calls(ClusterApi.compactors_without, writes=False), [("a",), ("b",)], "f", 1)
    assert processes == ("a", "b")
    with pytest.raises(ValueError, match="unpack"):
        await asked.of(calls(FileApi.janitor_state, writes=False), [])


class Pair(NamedTuple):
    """Two columns."""

    one: int
    two: int


class Strange(Protocol):
    """Operations that are no calls of the statements that the test names."""

    async def drop_files(self, token: JobToken, ids: Sequence[uuid.UUID]) -> Pair:
        """The function returns one column."""

    async def without_ids(self, token: JobToken) -> int:
        """The function has a parameter more."""

    async def one_id(self, token: JobToken, ids: uuid.UUID) -> int:
        """The function takes an array."""

    async def by_id(self, token: JobToken, ids: Mapping[uuid.UUID, int]) -> int:
        """So it does."""

    async def perhaps(self, token: JobToken, ids: Sequence[uuid.UUID]) -> Pair | None:
        """No row is no answer of one line."""

    async def outcomes(self, token: JobToken, keys: Sequence[Pair], offsets: Sequence[int]) -> None:
        """A pair has no third part."""


@pytest.mark.parametrize(
    ("operation", "name", "sources", "why"),
    [
        (Strange.drop_files, "drop_files", {}, "columns=1 wanted=2 to 2"),
        (Strange.without_ids, "drop_files", {}, "parameters=epoch,ids,job_id given=epoch,job_id"),
        (Strange.one_id, "drop_files", {}, "a sequence goes to an array, and nothing else does: ids"),
        (Strange.by_id, "drop_files", {}, "a sequence goes to an array, and nothing else does: ids"),
        (Strange.perhaps, "drop_files", {}, "needs a method"),
        (Strange.drop_files, "drop_files", {"ids": "file_ids"}, "no such arguments: file_ids"),
        (Strange.outcomes, "forget_outcomes", {"keys": "keys.three"}, "there is no keys.three"),
        (Strange.drop_files, "drop_file", {}, "neither a SQL function nor a query"),
    ],
)
def test_a_mistake_in_a_line_is_an_error_when_the_class_is_made(
    operation: Operation, name: str, sources: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidError, match=f"^{operation.__qualname__} is no call of {name}: .*{why}"):
        calls(operation, name, writes=True, **sources)
