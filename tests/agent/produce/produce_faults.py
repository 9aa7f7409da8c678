"""A store and a metastore in which every call waits until the test decides its result.

Fault model: a put may succeed late, fail before or after it was stored, or be stored short; a commit
may be answered late, fail before it did anything, lose its answer, or happen after the caller gave up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.metastore.api.commit import CommitApi, FileAnswer, FileCommit
from headrace.storage.objects.store import ObjectInfo, ObjectStore, StoreDecorator


class HeldPut:
    """One put in the hands of the test."""

    def __init__(self, store: ObjectStore, key: str, body: bytes | memoryview) -> None:
        self._store, self.key, self.body = store, key, body
        self.result: asyncio.Future[ObjectInfo] = asyncio.get_running_loop().create_future()

    async def finish(self) -> None:
        """It works."""
        self.result.set_result(await self._store.put(self.key, self.body))

    def fail(self, error: Exception) -> None:
        """It raises `error`, and stored nothing."""
        self.result.set_exception(error)


class HeldStore(StoreDecorator):
    """`puts`: every put that was asked for, in order."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.puts: list[HeldPut] = []

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        put = HeldPut(self._inner, key, body)
        self.puts.append(put)
        return await put.result


class HeldCommit:
    """One commit call in the hands of the test."""

    def __init__(self, inner: CommitApi, node_id: int, epoch: int, files: Sequence[FileCommit]) -> None:
        self._inner, self.node_id, self.epoch, self.files = inner, node_id, epoch, list(files)
        self.result: asyncio.Future[list[FileAnswer]] = asyncio.get_running_loop().create_future()

    async def happen(self) -> list[FileAnswer]:
        """It takes effect; the caller hears nothing yet."""
        return await self._inner.commit_files(self.node_id, self.epoch, self.files)

    async def finish(self) -> None:
        """It takes effect and is answered."""
        self.result.set_result(await self.happen())

    def answer(self, answers: list[FileAnswer]) -> None:
        """It is answered so in every case."""
        self.result.set_result(answers)

    def fail(self, error: Exception) -> None:
        """It raises `error`."""
        self.result.set_exception(error)


class HeldMetastore:
    """`commits`: every commit call, in order."""

    def __init__(self, inner: CommitApi) -> None:
        self._inner = inner
        self.commits: list[HeldCommit] = []

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        call = HeldCommit(self._inner, node_id, broker_epoch, files)
        self.commits.append(call)
        return await call.result

    async def allocate_producer_ids(self, count: int) -> range:
        return await self._inner.allocate_producer_ids(count)
