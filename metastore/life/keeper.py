"""Keeps this process in the life of its metastore: compares server and bucket, and begins a new life if it must.

Place: asked by watch.py every few seconds in every process with a role, by watch.py in the others, and by
`headrace migrate --restored`.
Invariant: this process names a life in its writing calls only after the bucket confirmed that it is the newest, and
that the server has at least what it once had. The bucket names a life before Postgres begins it. If the process
crashes between the two, the next check of any process finishes it. A process that is not connected to the metastore,
because the address has moved, leaves its connections (LeavePolicy). What names a life also names its database, and the
row the bucket: where a release before left one out, the first check that finds all else in order adds it, in the bucket
first, so that of a database and its copy only one is named.
"""

from __future__ import annotations

import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable

from headrace.metastore.api.life import LifeApi, Server, ServerLife
from headrace.metastore.life.bucket import (
    LifeRecord,
    Position,
    newest_life,
    read_position,
    record_database,
    record_life,
    with_database,
    write_position,
)
from headrace.metastore.life.numbers import NO_LIFE, epoch_floor
from headrace.metastore.life.verdict import LifeVerdict, judge, went_back
from headrace.storage.bucket_properties import read_bucket_id
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

WRITES = frozenset({LifeVerdict.CURRENT, LifeVerdict.RECORD, LifeVerdict.BEGIN})
"""After these, a process writes to the bucket, or names the life in which it writes."""
ATTEMPTS = 8
"""Races that one check may lose against other processes before it leaves the rest to the next one."""
FIRST_WAIT_SECONDS = 10.0
MOST_WAIT_SECONDS = 60.0
JITTER = 0.5
"""Share of a wait that is added at most, so that the processes of a cluster do not connect at the same time."""


class LifeKeeper:
    """One per process: by `name_for` it keeps all connections of the process in one life."""

    def __init__(
        self,
        api: LifeApi,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        *,
        begins: bool = True,
        learn_bucket: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`begins`: False for a process that compares only: it writes nothing to the bucket and begins no life.

        `learn_bucket`: records the bucket as the metastore's while none is known; False if it does not look like it.
        None: such a bucket is taken for the right one, and not recorded.
        """
        self._begins = begins
        self._learn_bucket = learn_bucket
        self._bucket_id: uuid.UUID | None = None
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
            if not self._begins:
                verdict = LifeVerdict.CURRENT if verdict is LifeVerdict.RECORD else verdict
                self._take(verdict, found)
                return verdict
            if verdict is LifeVerdict.RECORD:
                await self._record(found, found.life, found.incarnation_id, "first")
            elif verdict is LifeVerdict.BEGIN:
                reason = f"timeline {found.begun_on.timeline} -> {found.server.timeline}"
                await self._begin(found, reason, self._draw())
            elif verdict is LifeVerdict.CURRENT and not self._names_database(found):
                await self._record_database(found)
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
        self._newest = newest = await self._newest_life(self._newest)
        reached = self._reached.newest
        if newest is not None and (reached is None or reached.life != newest.life):
            reached = await read_position(self._store, newest.life)
            if reached is not None:
                self._reached.start_from(reached)
        found = await self._api.describe_life()
        if newest is not None and newest.life < found.life:  # another process began a life meanwhile
            self._newest = newest = await self._newest_life(newest)
        verdict = judge(found, newest, reached)
        if verdict in WRITES and not await self._is_its_bucket(found):
            verdict = LifeVerdict.OTHER_BUCKET
        return found, verdict

    async def _newest_life(self, known: LifeRecord | None) -> LifeRecord | None:
        newest = await newest_life(self._store, known)
        return None if newest is None else await with_database(self._store, newest)

    async def _is_its_bucket(self, found: ServerLife) -> bool:
        """Return whether the metastore's row names this bucket, or may from now on."""
        if found.bucket_id is None:
            return self._learn_bucket is None or await self._learn_bucket()
        if self._bucket_id != found.bucket_id:  # or it was adopted meanwhile
            self._bucket_id = await read_bucket_id(self._store)
        return self._bucket_id == found.bucket_id

    def _names_database(self, found: ServerLife) -> bool:
        """Return whether the row and the bucket both say which database began the life."""
        return bool(found.begun_on.database and self._newest is not None and self._newest.database)

    async def _record_database(self, found: ServerLife) -> None:
        """The bucket first: of two databases, the first one to be named there is the metastore."""
        newest = self._newest
        if newest is not None and not newest.database:
            await record_database(self._store, found.life, found.server.database)
            self._newest = newest = await with_database(self._store, newest)
        if newest is not None and newest.database == found.server.database:
            await self._api.record_database(found.life, found.incarnation_id)

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
                database=found.server.database,
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


class FlushedPosition:
    """The newest position that was flushed, and a later reading that waits for it: only what an ordinary crash of
    Postgres cannot take back. Pure.

    A reading shows WAL that Postgres has inserted, and rows of it, before they are flushed; a crash loses what is not
    flushed, and the server has less afterwards. So a reading is noted once a check sees that the server flushed all WAL
    that the reading shows. Compared is the inserted WAL, of which a server that recovered has at least as much.
    """

    def __init__(self) -> None:
        self.newest: Position | None = None
        """None until one is known."""
        self._waiting: Position | None = None

    def start_from(self, noted: Position | None) -> None:
        """Continue from what another process noted."""
        self.newest, self._waiting = noted, None

    def take(self, found: ServerLife) -> None:
        """Note what is flushed by now of this reading, or of the one that waits."""
        reading, waiting = Position.of(found), self._waiting
        if waiting is None or waiting.life != found.life or went_back(found, waiting):
            self._waiting = waiting = reading  # after a crash, what waited may be lost: it is never noted
        if waiting.wal_bytes <= found.flushed_bytes:
            self.newest, self._waiting = waiting, reading
        if reading.wal_bytes <= found.flushed_bytes:
            self.newest = reading


class LeavePolicy:
    """Policy of one process for leaving connections, when another server is at the address by now. Pure.

    Connections are left at once when the verdict changes away from CURRENT, or another server becomes CURRENT, and
    again while the verdict stays away, but never sooner than FIRST_WAIT_SECONDS after the last time. So each pool
    replaces all its connections six times a minute at most, also if the address points to the wrong server for days,
    or to two servers in turn. Times are seconds of the process's monotonic clock.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._server: Server | None = None
        """That was CURRENT last; None: none was yet."""
        self._is_away = False
        self._is_due = False
        """What is due stays due, also if the next check reaches the right server by another connection."""
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._not_before = -math.inf

    def leaves(self, verdict: LifeVerdict, server: Server, now: float) -> bool:
        """Return whether the process leaves its connections now, after this verdict on this server."""
        was_away, self._is_away = self._is_away, verdict is not LifeVerdict.CURRENT
        if self._is_away:
            self._is_due = True
        else:
            self._is_due |= not was_away and self._server not in (None, server)
            self._server = server
        if not self._is_due or now < self._not_before:
            return False
        if now >= self._not_before + MOST_WAIT_SECONDS:
            self._wait_seconds = FIRST_WAIT_SECONDS
        self._not_before = now + self._wait_seconds * (1 + JITTER * self._rng.random())
        self._wait_seconds = min(2 * self._wait_seconds, MOST_WAIT_SECONDS)
        self._is_due = False
        return True
