"""The life of the metastore: what the cluster's row or its server says, the change to another life.

Place: under metastore/life, which compares it with the bucket; the bucket in the row is also asked by `headrace
storage format` and `headrace storage adopt-bucket`.
Invariant of the bucket: the row names one bucket, once it is known. Only adopt_bucket names another.
Invariant: `named_life` is the life that this process's writing calls name; Postgres refuses them in another one, and
on a server that the life was not begun on.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class KnownBucket(NamedTuple):
    """What distinguishes the metastore's bucket from others."""

    bucket_id: uuid.UUID
    """The id in the bucket's bucket.properties; a copy has the same."""
    address: str
    """The address under which it was confirmed, as `bucket_address` spells it."""


class Server(NamedTuple):
    """What distinguishes a database of a Postgres server from others."""

    system_identifier: int
    """Drawn by initdb; a standby and a physical copy have the same."""
    timeline: int
    """The timeline of its WAL; each promotion raises it."""
    database: int = 0
    """The oid of the database: a rename keeps it, a restored dump and a template copy have another one. 0: not known,
    because a release without it began the life."""

    def __str__(self) -> str:
        return f"{self.system_identifier}/{self.timeline}/{self.database}"


@dataclass(frozen=True, slots=True)
class ServerLife:
    """The cluster's row, and the server that was asked."""

    cluster_id: str
    life: int
    incarnation_id: uuid.UUID
    begun_on: Server
    server: Server
    wal_bytes: int
    """The position up to which the server inserted WAL: it only grows on one timeline, but for what a crash loses
    unflushed.
    """
    feed_sum: int
    """The sum of the commit shards' heads: it only grows within a life."""
    metadata_head: int
    """The next offset of the metadata log: it only grows."""
    flushed_bytes: int
    """The position up to which WAL is flushed: a crash loses nothing below."""
    prepared: uuid.UUID | None = None
    """The incarnation id that prepare_life left here for the next life, if it was on the server's timeline."""
    bucket_id: uuid.UUID | None = None
    """The id of the metastore's bucket; None: not known yet."""


class LifeApi(Protocol):
    """The life is asked for every second or two. A bucket is recorded once, then only adopted."""

    @property
    def cluster_id(self) -> str:
        """The id that `headrace storage format` wrote."""

    @property
    def named_life(self) -> int:
        """metastore.life.numbers.NO_LIFE: this process may write in none."""

    def name_life(self, life: int) -> None:
        """Writing calls name this life from now on."""

    def leave_connections(self) -> None:
        """Make the next calls on new connections: the address may lead to another server. Calls under way finish.

        Any thread may call it.
        """

    async def describe_life(self) -> ServerLife:
        """Return what this server says."""

    async def prepare_life(self, incarnation_id: uuid.UUID, spent: uuid.UUID | None = None) -> uuid.UUID:
        """The id of the life that may begin on this server: the first one that was given here, unless that is `spent`.

        Then it is `incarnation_id`, and the life with the id `spent` does not begin here.
        """

    async def begin_life(self, life: int, incarnation_id: uuid.UUID) -> bool:
        """Begin it; True if it has begun. False if the server prepared another id, or changed meanwhile: ask again.

        Numbers that were handed out in an older life are never handed out in this one (metastore/life/numbers.py).
        Leader epochs rise, the metadata log continues from a snapshot, and leases of controllers end.
        """

    async def record_database(self, life: int, incarnation_id: uuid.UUID) -> bool:
        """Note this database as the one of the life, if none is noted; False if another life or database is."""

    async def known_bucket(self) -> KnownBucket | None:
        """Return the metastore's bucket; None if no process has recorded it yet."""

    async def record_bucket(self, bucket: KnownBucket) -> bool:
        """Note the bucket if none is noted; False if another one is."""

    async def adopt_bucket(self, before: KnownBucket | None, bucket: KnownBucket) -> bool:
        """Note `bucket` in the place of `before`; False if `before` is not what is noted. Files that it lacks now are
        accepted as lost.
        """

    async def sample_files(self, oldest: int, newest: int) -> list[uuid.UUID]:
        """Return so many of the oldest and of the newest files with live records, as far as there are any.

        Files from before the bucket was adopted are left out: an operator has accepted what is missing of them.
        """
