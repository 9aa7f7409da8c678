"""Decides which life of the metastore this is, from what the server, the cluster's row and the bucket say.

Place: pure policy under keeper.py; docs/decisions/0035 has the reasons and what stays undetected.
Invariant: a server that was promoted begins a new life by itself, unless a later promotion did. A server that went back
(a volume copy, a logical restore), and another database of the same server, begin one only when an operator says so. A
server with a life that is over never becomes the metastore again.
"""

from __future__ import annotations

import enum

from headrace.metastore.api.life import ServerLife
from headrace.metastore.life.bucket import LifeRecord, Position


class LifeVerdict(enum.Enum):
    """What to do next."""

    CURRENT = "current"
    """This server is the metastore: write."""
    RECORD = "record"
    """It is, and the bucket does not name its life yet: a cluster of an older version, or a new one."""
    BEGIN = "begin"
    """This server was promoted, or reached its timeline by a recovery: begin the next life."""
    SUPERSEDED = "superseded"
    """Another server is the metastore by now: write nothing."""
    RESTORED = "restored"
    """This server is older than it, or the server that it was copied from, was; or this is another database, a restored
    dump or a template copy: write nothing until an operator begins a new life."""
    WRONG_BUCKET = "wrong bucket"
    """The bucket does not know this life: write nothing."""
    OTHER_BUCKET = "other bucket"
    """The metastore has its files in another bucket: write nothing."""


def judge(found: ServerLife, newest: LifeRecord | None, reached: Position | None) -> LifeVerdict:
    """Return what follows from the server's answer.

    `newest`: the bucket's newest life, read before the server was asked. `reached`: the highest position that is
    known of that life, from the bucket or from this process's memory, read before the server was asked, too; of another
    life than the server's it only says that the life began.
    """
    same_database = _is_the_same_database(found, newest)
    promoted = same_database and found.server.timeline != found.begun_on.timeline
    if newest is None:
        return _first(found, promoted=promoted, same_database=same_database)
    if newest.life < found.life:
        return LifeVerdict.WRONG_BUCKET
    if promoted and _has_begun_its_life(found, newest, reached):
        return LifeVerdict.RESTORED
    if promoted:
        return LifeVerdict.SUPERSEDED if _is_of_an_older_timeline(found, newest) else LifeVerdict.BEGIN
    if not same_database:
        return LifeVerdict.RESTORED
    if newest.life > found.life or newest.incarnation_id != found.incarnation_id:
        return LifeVerdict.SUPERSEDED
    return LifeVerdict.RESTORED if went_back(found, reached) else LifeVerdict.CURRENT


def went_back(found: ServerLife, reached: Position | None) -> bool:
    """Return whether the server has less than it once had in this life."""
    if reached is None or reached.life != found.life:
        return False
    wal_went_back = reached.timeline == found.server.timeline and found.wal_bytes < reached.wal_bytes
    return wal_went_back or found.feed_sum < reached.feed_sum or found.metadata_head < reached.metadata_head


def _has_begun_its_life(found: ServerLife, newest: LifeRecord, reached: Position | None) -> bool:
    """Return whether this is a copy that was made after a life was prepared and before it began, and the original
    began it.
    """
    if newest.life == found.life or newest.incarnation_id != found.prepared:
        return False
    return reached is not None and reached.life == newest.life


def _is_of_an_older_timeline(found: ServerLife, newest: LifeRecord) -> bool:
    """Return whether this server was promoted, and another one after it: the newest life began there."""
    same_cluster = newest.system_identifier == found.server.system_identifier
    return same_cluster and newest.life > found.life and newest.timeline > found.server.timeline


def _is_the_same_database(found: ServerLife, newest: LifeRecord | None) -> bool:
    """Return whether the row, and the bucket's record of its life, name this database of this server or a copy of all
    of its databases. A database that is not known (0) is not compared.
    """
    is_its_life = newest is not None and (newest.life, newest.incarnation_id) == (found.life, found.incarnation_id)
    named = (found.begun_on.database, newest.database if newest is not None and is_its_life else 0)
    is_server = found.server.system_identifier == found.begun_on.system_identifier
    return is_server and all(database in (0, found.server.database) for database in named)


def _first(found: ServerLife, *, promoted: bool, same_database: bool) -> LifeVerdict:
    if found.life > 0:
        return LifeVerdict.WRONG_BUCKET
    if not same_database:
        return LifeVerdict.RESTORED
    return LifeVerdict.BEGIN if promoted else LifeVerdict.RECORD
