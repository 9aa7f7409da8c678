"""Keeps this process in the life of its metastore: compares server and bucket, and begins a new life if it must.

Place: asked by watch.py every few seconds in every process that writes, and by `headrace migrate --restored`.
Invariant: this process names a life in its writing calls only after the bucket confirmed that it is the newest, and
that the server has at least what it once had. The bucket names a life before Postgres begins it. If the process
crashes between the two, the next check of any process finishes it. A process that is not connected to the metastore,
because the address has moved, leaves its connections (leaving.py).
"""

from __future__ import annotations

import logging
import random
import uuid

from headrace.metastore.api.life import LifeApi, ServerLife
from headrace.metastore.life.bucket import (
    LifeRecord,
    Position,
    newest_life,
    read_position,
    record_life,
    write_position,
)
from headrace.metastore.life.flushed import FlushedPosition
from headrace.metastore.life.leaving import LeavePolicy
from headrace.metastore.life.numbers import NO_LIFE, epoch_floor
from headrace.metastore.life.verdict import LifeVerdict, judge, went_back
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""Races that one check may lose against other processes before it leaves the rest to the next one."""


class LifeKeeper:
    """One per process: by `name_for` it keeps all connections of the process in one life."""

    def __init__(self, api: LifeApi, store: ObjectStore, clock: Clock, rng: random.Random) -> None:
        self.verdict = LifeVerdict.CURRENT
        """Of the newest check."""
        self._api = api
        self._named = [api]
        self._store = store
        self._clock = clock
        self._rng = rng
        self._newest: LifeRecord | None = None
        self._reached = FlushedPosition()
        self._leaving = LeavePolicy(rng)

    def name_for(self, other: LifeApi) -> None:
        """Name the life for these connections of the same process, too. Another thread may use them: what one
        check finds holds for all of them."""
        self._named.append(other)
        other.name_life(self._api.named_life)

    @property
    def life(self) -> int:
        """That this process names; NO_LIFE if it knows of none in which it may write."""
        return self._api.named_life

    async def check(self) -> LifeVerdict:
        """Compare, and begin a new life after a promotion. Names the life that holds, or none.

        Errors as LifeApi's and ObjectStore's: then nothing is known, and everything stays as it is.
        """
        for _ in range(ATTEMPTS):
            found, verdict = await self._judge()
            if verdict is LifeVerdict.RECORD:
                await self._record(found, found.life, found.incarnation_id, "first")
            elif verdict is LifeVerdict.BEGIN:
                reason = f"timeline {found.begun_on.timeline} -> {found.server.timeline}"
                await self._begin(found, reason, self._draw())
            else:
                self._take(verdict, found)
                return verdict
        raise UnavailableError(f"other processes begin a life of the metastore at the same time: tries={ATTEMPTS}")

    async def begin_anew(self, reason: str) -> int:
        """Begin and name a new life on this server, which an operator declares to be the metastore; its number.

        A life that was prepared here before is not finished: if this server is a copy, its original may have used it.
        """
        drawn: list[uuid.UUID] = []
        for _ in range(ATTEMPTS):
            found, verdict = await self._judge()
            if verdict is LifeVerdict.RECORD:
                await self._record(found, found.life, found.incarnation_id, "first")
                continue
            spent = None if found.prepared in drawn else found.prepared
            drawn.append(self._draw())
            if await self._begin(found, reason, drawn[-1], spent) and await self.check() is LifeVerdict.CURRENT:
                return self._api.named_life
        raise UnavailableError(f"other processes begin a life of the metastore at the same time: tries={ATTEMPTS}")

    async def note_position(self) -> None:
        """Write to the bucket how far the server got for certain; nothing unless it is the metastore."""
        if self.verdict is LifeVerdict.CURRENT and self._reached.newest is not None:
            await write_position(self._store, self._reached.newest)

    async def _judge(self) -> tuple[ServerLife, LifeVerdict]:
        """The bucket is read before the server: what it says of the server is never ahead of it."""
        self._newest = newest = await newest_life(self._store, self._newest)
        reached = self._reached.newest
        if newest is not None and (reached is None or reached.life != newest.life):
            reached = await read_position(self._store, newest.life)
            if reached is not None:
                self._reached.start_from(reached)
        found = await self._api.describe_life()
        if newest is not None and newest.life < found.life:  # another process began a life meanwhile
            self._newest = newest = await newest_life(self._store, newest)
        return found, judge(found, newest, reached)

    async def _record(self, found: ServerLife, life: int, incarnation_id: uuid.UUID, reason: str) -> bool:
        flushed = Position.of(found) if found.wal_bytes <= found.flushed_bytes else self._reached.newest
        return await record_life(
            self._store,
            LifeRecord(
                cluster_id=found.cluster_id,
                life=life,
                incarnation_id=incarnation_id,
                system_identifier=found.server.system_identifier,
                timeline=found.server.timeline,
                reason=reason,
                begun_ms=self._clock.wall_ms(),
                wal_bytes=0 if flushed is None else flushed.wal_bytes,
                feed_sum=0 if flushed is None else flushed.feed_sum,
            ),
        )

    def _draw(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    async def _begin(self, found: ServerLife, reason: str, drawn: uuid.UUID, spent: uuid.UUID | None = None) -> bool:
        """True if a new life has begun here; False if another process or server was faster.

        Its incarnation id is the one that is prepared here already, unless that is `spent`; else `drawn`.
        """
        prepared = await self._api.prepare_life(drawn, spent)
        if (await self._api.describe_life()).life != found.life:
            return False  # what was prepared may be for the life after the one that has just begun
        newest = self._newest
        if newest is not None and newest.incarnation_id == prepared:
            life = newest.life
        else:
            life = max(found.life, -1 if newest is None else newest.life) + 1
            epoch_floor(life)  # InvalidError if the cluster has no number left for it
            if not await self._record(found, life, prepared, reason):
                return False
        begun = await self._api.begin_life(life, prepared)
        logger.warning("life of the metastore begins: life=%d reason=%s begun=%s", life, reason, begun)
        return begun

    def _take(self, verdict: LifeVerdict, found: ServerLife) -> None:
        if verdict is LifeVerdict.CURRENT:
            self._reached.take(found)
        elif verdict is LifeVerdict.RESTORED and went_back(found, self._reached.newest):
            logger.error("the metastore went back: had: %s; has: %s", self._reached.newest, Position.of(found))
        if verdict is not self.verdict:
            logger.log(
                logging.INFO if verdict is LifeVerdict.CURRENT else logging.ERROR,
                "life of the metastore: verdict=%s life=%d newest=%s server=%s begun_on=%s",
                verdict.value,
                found.life,
                None if self._newest is None else self._newest.life,
                found.server,
                found.begun_on,
            )
        self.verdict = verdict
        for api in self._named:
            api.name_life(found.life if verdict is LifeVerdict.CURRENT else NO_LIFE)
        if self._leaving.leaves(verdict, found.server, self._clock.monotonic()):
            for api in self._named:
                api.leave_connections()
